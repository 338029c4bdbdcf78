"""Who may log in by SCRAM: made, told and deleted by requests, and made while no broker runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import run
from kbroker.metadata.store import decode_config
from kbroker.runtime.tree_file import TreeFile
from kbroker.security.scram import read_credential
from protocol.errors import ErrorCode
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.security.sasl_world import SaslClient, SaslWorld

SHA_256, SHA_512 = 1, 2


@pytest.fixture
def admin() -> SaslClient:
    client = SaslWorld().client()
    client.log_in_plain("alice", "alice-secret")
    return client


def upsertion(name: str, password: str = "secret", mechanism: int = SHA_256, **other: Any) -> ScramCredentialUpsertion:
    salt, iterations = other.get("salt", b"some salt"), other.get("iterations", 4096)
    salted = hashlib.pbkdf2_hmac("sha256" if mechanism == SHA_256 else "sha512", password.encode(), b"some salt", 4096)
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=other.get("salted", salted),
    )


def alter(admin: SaslClient, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, Any]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    return {each.user: (each.error_code, each.error_message) for each in admin.ask(request, 0).results}


def described(admin: SaslClient, *names: str) -> dict[str, Any]:
    users = [UserName(name=name) for name in names] if names else None
    answer = admin.ask(DescribeUserScramCredentialsRequest(users=users), 0)
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def test_a_user_that_was_made_logs_in_at_once_and_not_once_deleted(admin: SaslClient) -> None:
    world: SaslWorld = admin._world  # type: ignore[assignment]
    assert alter(admin, upsertion("carol"), upsertion("carol", mechanism=SHA_512)) == {"carol": (0, None)}
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert world.client().log_in_scram(mechanism, "carol", "secret").error_code == 0
    assert described(admin) == described(admin, "carol") == {"carol": [(SHA_256, 4096), (SHA_512, 4096)]}
    assert alter(admin, ScramCredentialDeletion(name="carol", mechanism=SHA_256)) == {"carol": (0, None)}
    assert described(admin) == {"carol": [(SHA_512, 4096)]}
    with pytest.raises(AssertionError, match="no answer"):
        world.client().log_in_scram("SCRAM-SHA-256", "carol", "secret")


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ([upsertion("u", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion("u", iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ([upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion("u", mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion("u", mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion("u"), upsertion("u")], ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice"),
        (
            [upsertion("u"), ScramCredentialDeletion(name="u", mechanism=SHA_512)],
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
    ],
)
def test_a_change_that_is_not_legal_leaves_the_user_as_it_was(
    admin: SaslClient, changes: list[Any], code: ErrorCode, text: str
) -> None:
    outcome = alter(admin, *changes, upsertion("other"))
    (user,) = outcome.keys() - {"other"}
    assert outcome[user][0] == code
    assert outcome[user][1].startswith(text)
    assert described(admin) == {"other": [(SHA_256, 4096)]}


def test_users_that_are_asked_for_by_name_are_told_what_is_wrong(admin: SaslClient) -> None:
    alter(admin, upsertion("carol"))
    assert described(admin, "carol", "dave", "eve", "eve") == {
        "carol": [(SHA_256, 4096)],
        "dave": ErrorCode.RESOURCE_NOT_FOUND,
        "eve": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_a_user_is_made_while_no_broker_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = "SCRAM-SHA-512=[name=admin,password=SECRET,iterations=8192]"
    assert run(["metadata", "add-scram", str(tmp_path), "--add-scram", written]) == 0
    said = capsys.readouterr()
    assert "admin logs in by SCRAM-SHA-512" in said.out
    assert "SECRET" not in said.out + said.err
    file = TreeFile(f"{tmp_path}/metadata.db")
    settings = decode_config(file.tree.nodes["/config/users/admin"].data)
    file.close()
    assert read_credential("SCRAM-SHA-512", settings["SCRAM-SHA-512"]).iterations == 8192


@pytest.mark.parametrize(
    "written",
    [
        "PLAIN=[name=a,password=SECRET]",
        "SCRAM-SHA-256=[password=SECRET]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=SECRET,iterations=7]",
        "SCRAM-SHA-256=[name=a,saltedpassword=SECRET]",
        "SECRET",
    ],
)
def test_a_user_that_is_written_wrongly_is_one_line_without_the_password(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["metadata", "add-scram", str(tmp_path), "--add-scram", written]) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "SECRET" not in said
    assert not list(tmp_path.iterdir())
