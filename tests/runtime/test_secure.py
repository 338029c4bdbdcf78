"""What a secured start makes: an authority, certificates, a password, settings; kept, renewed, and for one reader."""

from __future__ import annotations

import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kbroker.properties import parse_properties
from kbroker.runtime import secure as secured
from kbroker.runtime.client_security import context_of
from kbroker.runtime.secure import AUTHORITY_FILE, BROKER_FILE, Secured, put_admin, renew, secure
from kbroker.security.client import client_security
from kbroker.usage import UsageError

HERE = "SASL_SSL://127.0.0.1:9092"


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Both ends in memory. Raises: ssl.SSLError."""
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(outward, inward, server_hostname=host),
        server.wrap_bio(inward, outward, server_side=True),
    ]
    for step in range(8):
        try:
            ends[step % 2].do_handshake()
        except ssl.SSLWantReadError:
            continue


def server_of(made: Secured) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.settings["ssl.keystore.location"])
    context.load_verify_locations(made.settings["ssl.truststore.location"])
    if made.protocol == "SSL":
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "broker.example", "::1"])
def test_a_client_with_the_recipe_trusts_the_broker_by_all_its_names(tmp_path: Path, protocol: str, host: str) -> None:
    made = secure(str(tmp_path), protocol=protocol, listeners=f"{protocol}://:9092", hosts=["broker.example"])
    client = client_security(made.recipe("127.0.0.1:9092").java())
    handshake(server_of(made), context_of(client), host)


def test_a_client_that_trusts_others_refuses_it(tmp_path: Path) -> None:
    one = secure(str(tmp_path / "one"), listeners=HERE)
    other = secure(str(tmp_path / "other"), listeners=HERE)
    client = context_of(client_security(other.recipe("x:1").java()))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_of(one), client, "127.0.0.1")


def test_what_was_made_is_kept(tmp_path: Path) -> None:
    first = secure(str(tmp_path), listeners=HERE)
    first.write_recipe("127.0.0.1:9092")
    before = files(tmp_path)
    again = secure(str(tmp_path), listeners=HERE)
    assert (first.is_new, again.is_new, again.made) == (True, False, [])
    again.write_recipe("127.0.0.1:9092")
    assert files(tmp_path) == before


def test_files_with_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = secure(str(tmp_path / "data"), protocol="SSL", listeners="SSL://:1")
    made.write_recipe("127.0.0.1:1")
    put_admin(made.folder, made)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "data").iterdir()}
    assert modes.pop("secure-authority.pem") == 0o644
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(os.stat(tmp_path / "data").st_mode) == 0o700


@pytest.mark.parametrize(("days", "renewed"), [(200, False), (300, True), (3300, True)])
def test_a_certificate_is_renewed_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, renewed: bool
) -> None:
    secure(str(tmp_path), listeners=HERE)
    before = files(tmp_path)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(days=days)

    monkeypatch.setattr(secured, "datetime", Later)
    secure(str(tmp_path), listeners=HERE)
    changed = {name for name, data in files(tmp_path).items() if before[name] != data}
    assert ("secure-broker.pem" in changed) == renewed
    assert ("secure-authority.pem" in changed) == (days == 3300)


@pytest.mark.parametrize(("days", "renewed"), [(200, False), (300, True), (3500, True)])
def test_while_it_runs_only_certificates_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, renewed: bool
) -> None:
    secure(str(tmp_path), protocol="SSL", listeners="SSL://127.0.0.1:9092", hosts=["broker.example"])
    before = files(tmp_path)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(days=days)

    monkeypatch.setattr(secured, "datetime", Later)
    said = renew(str(tmp_path))
    changed = {name for name, data in files(tmp_path).items() if before[name] != data}
    assert said == (["a certificate of broker", "a certificate of admin"] if renewed else [])
    assert changed == ({"secure-broker.pem", "secure-client.pem"} if renewed else set())
    assert stat.S_IMODE((tmp_path / "secure-broker.pem").stat().st_mode) == 0o600
    own, ca = (x509.load_pem_x509_certificate((tmp_path / each).read_bytes()) for each in (BROKER_FILE, AUTHORITY_FILE))
    own.verify_directly_issued_by(ca)
    assert own.not_valid_after_utc <= ca.not_valid_after_utc
    assert "broker.example" in str(own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def test_without_the_authority_s_key_nothing_is_renewed(tmp_path: Path) -> None:
    secure(str(tmp_path), listeners=HERE)
    (tmp_path / "secure-authority.key").unlink()
    with pytest.raises(UsageError, match=r"secure-authority\.key: not there"):
        renew(str(tmp_path))


def test_another_name_is_another_certificate_of_the_same_authority(tmp_path: Path) -> None:
    secure(str(tmp_path), listeners=HERE)
    assert secure(str(tmp_path), listeners="SASL_SSL://10.0.0.9:9092").made == ["a certificate of broker"]


def test_the_settings_are_in_a_file_that_says_what_they_are(tmp_path: Path) -> None:
    made = secure(str(tmp_path), listeners=HERE)
    text = Path(made.properties).read_text()
    assert parse_properties(text) == made.settings
    assert "# Rules decide who may do what" in text


def test_no_secret_is_shown_by_a_value(tmp_path: Path) -> None:
    made = secure(str(tmp_path), listeners=HERE)
    assert made.password
    assert made.password not in f"{made!r} {made} {made.recipe('x:1')!r}"


@pytest.mark.parametrize("file", ["secure-authority.pem", "secure-broker.pem", "secure-admin.properties"])
def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path, file: str) -> None:
    made = secure(str(tmp_path), listeners=HERE)
    made.write_recipe("127.0.0.1:9092")
    (tmp_path / file).write_text("sasl.jaas.config=sesame")
    with pytest.raises(UsageError, match=f"{file}: ") as caught:
        secure(str(tmp_path), listeners=HERE)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("file", ["secure-authority.key", "secure-broker.pem", "secure-admin.properties"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, file: str) -> None:
    secure(str(tmp_path), listeners=HERE).write_recipe("127.0.0.1:9092")
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    with pytest.raises(UsageError, match=f"{file}: is no file"):
        secure(str(tmp_path), listeners=HERE)
