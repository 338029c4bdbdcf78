"""What users of Apache's tools and of kcat type: it works as there, or the line that refuses it says what to type."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest

from kbroker.cli import run
from tests.cli.asking import Ask, Captured

# ---- names of programs and of options


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("kafka-topics.sh --list", "No such command 'kafka-topics.sh': it is kbroker topics here"),
        ("kafka-get-offsets --topic t", "No such command 'kafka-get-offsets': it is kbroker topics --offsets here"),
        ("console-consumer", "No such command 'console-consumer': it is kbroker consume here"),
        ("consumer-groups --list", "No such command 'consumer-groups': it is kbroker groups here"),
        ("producer-perf-test", "No such command 'producer-perf-test': it is kbroker perf produce here"),
        ("topics --list orders", "Got unexpected extra argument (orders); did you mean kbroker topics --topic"),
        ("kcat -C", "No such command 'kcat': it is kbroker produce or kbroker consume here"),
        ("-L", "No such option '-L'. kcat's -L is kbroker topics --describe, or kbroker cluster --describe"),
        ("-b localhost:9092 -C -t t", "No such option '-b'. kcat's -C is kbroker consume"),
    ],
)
def test_another_tools_name_is_answered_by_what_does_it_here(capsys: Captured, words: str, line: str) -> None:
    assert run(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"kbroker: {line}")


@pytest.mark.parametrize("option", ["--consumer.config", "--producer.config", "--admin.config", "-F"])
def test_a_file_of_settings_goes_by_each_tools_name(ask: Ask, tmp_path: Path, option: str) -> None:
    (file := tmp_path / "f").write_text("retris=3\n")
    assert ask("topics", "--list", option, str(file))[2].startswith("kbroker: retris: no setting of ")


@pytest.mark.parametrize("option", ["--consumer-property", "--producer-property", "--command-property"])
def test_a_setting_goes_by_each_tools_name(ask: Ask, option: str) -> None:
    assert ask("topics", "--list", option, "retris=3", "-X", "retries=3")[2].startswith("kbroker: retris: no setting ")


def test_a_file_of_kcats_serves_commands_that_ask_a_cluster(ask: Ask, tmp_path: Path) -> None:
    (file := tmp_path / "kcat.conf").write_text("socket.keepalive.enable=true\nstatistics.interval.ms=0\n")
    assert ask("topics", "--list", "-F", str(file))[::2] == (0, "")
    assert ask("produce", "-t", "kept-alive", "-F", str(file), stdin=b"1\n") == (0, "", "")


def test_names_that_only_other_tools_have_are_not_in_the_help(capsys: Captured) -> None:
    run(["consume", "--help"])
    assert "--broker-list" not in capsys.readouterr().out
    assert run(["consume", "-t", "t", "--broker-list", "localhost:1", "-X", "bootstrap.timeout.ms=200"]) == 2
    assert capsys.readouterr().err == "kbroker: no broker answers at localhost:1\n"


# ---- topics


def test_a_topic_has_its_id_as_kafka_writes_it(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "known")
    (described,) = json.loads(ask("topics", "--describe", "--topic", "known", "--json")[1])
    assert len(urlsafe_b64decode(described["topic_id"] + "==")) == 16
    (again,) = json.loads(ask("topics", "--describe", "--topic-id", described["topic_id"], "--json")[1])
    assert again == described
    code, _, err = ask("topics", "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    assert (code, err) == (2, "kbroker: there is no topic 'AAAAAAAAAAAAAAAAAAAAAQ'\n")


@pytest.mark.parametrize(
    ("narrow", "topics"), [("--under-min-isr-partitions", ["strict"]), ("--at-min-isr-partitions", ["alone", "both"])]
)
def test_topics_are_described_by_how_many_have_to_be_in_sync(ask: Ask, narrow: str, topics: list[str]) -> None:
    for topic, least in (("alone", 1), ("both", 1), ("strict", 2)):
        ask("topics", "--create", "--topic", f"min-{topic}", "--config", f"min.insync.replicas={least}")
    out = ask("topics", "--describe", "--topic", "min-.*", narrow, "--json")[1]
    assert [each["topic"] for each in json.loads(out)] == [f"min-{topic}" for topic in topics]


# ---- groups


@pytest.mark.parametrize(
    ("words", "is_listed"),
    [
        ("--state", True),
        ("--state stable,EMPTY", True),
        ("--state Stable", False),
        ("--type classic", True),
        ("--type share,streams", False),
        ("--type --state Empty", True),
    ],
)
def test_groups_are_listed_by_state_and_type(ask: Ask, words: str, is_listed: bool) -> None:
    ask("produce", "-t", "listed", stdin=b"1\n")
    ask("consume", "listed", "-G", "listed", "-o", "beginning", "-c", "1")
    code, out, _ = ask("groups", "--list", *words.split())
    rows = [line.split() for line in out.splitlines()[1:]]
    assert (code, ["listed", "Empty", "classic"] in rows) == (0, is_listed)


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("groups --list --state Emtpy", "--state emtpy: allowed: PreparingRebalance, "),
        ("groups --list --type consumers", "--type consumers: allowed: classic, consumer, share, streams"),
        ("configs --describe --entity-type ips --entity-name ::1", "--entity-type ips: it is kbroker quotas here"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: str, line: str) -> None:
    ask("topics", "--create", "--topic", "t", "--if-not-exists")
    code, out, err = ask(*words.split(), stdin=b"")
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)
