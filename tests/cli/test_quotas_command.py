"""`kbroker quotas`: its own options, and those of Apache's kafka-configs.sh."""

from __future__ import annotations

import json

import pytest

from tests.cli.asking import Ask


def test_quotas_are_set_shown_and_removed(ask: Ask) -> None:
    words = ("quotas", "--alter", "--user", "ann", "--client", "app")
    done = ask(*words, "--add-config", "producer_byte_rate=1000000,request_percentage=12.5")
    assert done == (0, "Completed updating quotas for user ann, client-id app.\n", "")
    out = ask("quotas", "--describe", "--user", "ann", "--client", "app")[1]
    assert [line.split()[-2:] for line in out.splitlines()[1:]] == [
        ["producer_byte_rate", "1e+06"],
        ["request_percentage", "12.5"],
    ]
    assert ask(*words, "--delete-config", "producer_byte_rate,request_percentage")[0] == 0
    assert ask("quotas", "--describe", "--user", "ann", "--client", "app") == (0, "", "No quotas are set.\n")


def test_defaults_are_those_of_all_others(ask: Ask) -> None:
    assert ask("quotas", "--alter", "--user-defaults", "--add-config", "consumer_byte_rate=5")[0] == 0
    assert ask("quotas", "--alter", "--ip", "10.0.0.1", "--add-config", "connection_creation_rate=7")[0] == 0
    rows = json.loads(ask("quotas", "--describe", "--json")[1])
    assert {"entity": {"user": None}, "quota": "consumer_byte_rate", "value": 5.0} in rows
    assert {"entity": {"ip": "10.0.0.1"}, "quota": "connection_creation_rate", "value": 7.0} in rows


def test_the_flags_of_kafka_configs_are_taken(ask: Ask) -> None:
    whose = ["--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default"]
    assert ask("quotas", "--alter", *whose, "--add-config", "producer_byte_rate=9")[0] == 0
    rows = json.loads(ask("quotas", "--describe", "--entity-type", "users", "--entity-type", "clients", "--json")[1])
    assert rows == [{"entity": {"user": "bob", "client-id": None}, "quota": "producer_byte_rate", "value": 9.0}]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--alter --add-config producer_byte_rate=1", "--alter wants to know whose"),
        ("--alter --user ann", "--alter wants --add-config or --delete-config"),
        (
            "--alter --user ann --add-config producer_byte_rate=much",
            "--add-config producer_byte_rate=much: allowed: a n",
        ),
        ("--alter --user ann --add-config no_such=1", "Invalid configuration key no_such"),
        ("--alter --user ann --add-config producer_byte_rate=1.5", "Configuration producer_byte_rate must be a LONG"),
        ("--alter --ip nowhere --add-config connection_creation_rate=1", "nowhere is not a valid IP"),
        (
            "--alter --ip 10.0.0.1 --user ann --add-config connection_creation_rate=1",
            "an address has its quotas by its",
        ),
        ("--describe --user ann --user-defaults", "--user and --user-defaults exclude each other"),
        ("--describe --add-config producer_byte_rate=1", "--add-config and --delete-config go with --alter"),
    ],
)
def test_a_mistake_is_a_line(ask: Ask, words: str, line: str) -> None:
    code, out, err = ask("quotas", *words.split())
    assert line in err, err
    assert (code, out, err.count("\n")) == (2, "", 1)
