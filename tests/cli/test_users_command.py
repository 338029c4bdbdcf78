"""`kbroker users`: who may log in by SCRAM, and what never stands on a command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import Ask


def test_a_user_is_made_shown_altered_and_deleted(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wonder land\n")
    sentence = "Completed updating config for user alice.\n"
    assert ask("users", "--create", "--user", "alice", "--password-file", str(file))[:2] == (0, sentence)
    assert ask("users", "--create", "--user", "bob", "--mechanism", "scram-sha-256", stdin=b"sesame\n")[0] == 0
    out = ask("users", "--list")[1]
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["alice", "SCRAM-SHA-512"], ["bob", "SCRAM-SHA-256"]]
    assert ask("users", "--alter", "--user", "alice", "--iterations", "8192", stdin=b"x\n")[0] == 0
    (row,) = json.loads(ask("users", "--describe", "--user", "alice", "--json")[1])
    assert row == {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192}
    assert ask("users", "--delete", "--user", "alice")[:2] == (0, sentence)
    assert ask("users", "--describe", "--user", "alice")[::2] == (2, "kbroker: there is no user 'alice'\n")


def test_the_flags_of_kafka_configs_are_taken(ask: Ask) -> None:
    words = "users --alter --entity-type users --entity-name carol"
    both = "SCRAM-SHA-256=[iterations=8192,password=a,b],SCRAM-SHA-512=[password=c]"
    assert ask(*words.split(), "--add-config", both)[::2] == (0, "")
    rows = json.loads(ask("users", "--describe", "--entity-name", "carol", "--json")[1])
    assert [(each["mechanism"], each["iterations"]) for each in rows] == [
        ("SCRAM-SHA-256", 8192),
        ("SCRAM-SHA-512", 4096),
    ]
    assert ask(*words.split(), "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")[0] == 0
    assert json.loads(ask("users", "--list", "--json")[1]) == [] or "carol" not in ask("users", "--list")[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--create", "--create wants --user"),
        ("--create --user dan", "no password for dan: type it at a terminal, pipe it in, or use --password-file"),
        ("--create --user dan --password-file /no/such", "/no/such: No such file or directory"),
        ("--create --user dan --iterations 5", "Invalid value for '--iterations'"),
        ("--alter --user nosuch", "there is no user 'nosuch'"),
        ("--delete --user nosuch --mechanism SCRAM-SHA-256", "there is no user 'nosuch'"),
        ("--describe --user nosuch", "there is no user 'nosuch'"),
        ("--alter --user dan --add-config SCRAM-SHA-1=[password=sesame]", "SCRAM-SHA-1: allowed for users here: SCRAM"),
        ("--alter --user dan --add-config SCRAM-SHA-256=sesame", "--add-config SCRAM-SHA-256=...: write it as SCRAM"),
        ("--alter --user dan --add-config SCRAM-SHA-256=[iterations=1,password=sesame]", "iterations=1: allowed: 4096"),
        ("--create --user dan --add-config SCRAM-SHA-256=[password=sesame]", "--add-config and --delete-config go"),
    ],
)
def test_a_mistake_is_a_line_without_the_password(ask: Ask, words: str, line: str) -> None:
    code, out, err = ask("users", *words.split())
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "sesame" not in err


def test_a_user_that_is_there_is_not_made_again(ask: Ask) -> None:
    assert ask("users", "--create", "--user", "eve", stdin=b"x\n")[0] == 0
    code, _, err = ask("users", "--create", "--user", "eve", stdin=b"y\n")
    assert (code, err) == (
        2, "kbroker: there is a user 'eve' with SCRAM-SHA-512 already; --alter gives another password\n"
    )  # fmt: skip
