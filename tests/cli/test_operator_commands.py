"""Commands of who runs a cluster: offsets of partitions, records deleted, leaders elected, throttled moves, speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import run
from kbroker.testing import Cluster, cluster
from tests.cli.asking import Ask, Captured


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


# ---- topics --offsets, and the brokers' own topics


def test_a_partition_has_a_begin_an_end_and_so_many_records(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "counted", "--partitions", "2")
    ask("produce", "-t", "counted", "-p", "1", stdin=b"1\n2\n3\n")
    ask("delete-records", "--topic", "counted", "--partition", "1", "--offset", "2")
    found = rows(ask("topics", "--offsets", "--topic", "counted", "--json")[1])
    assert found == [
        {"topic": "counted", "partition": 0, "earliest": 0, "latest": 0, "count": 0},
        {"topic": "counted", "partition": 1, "earliest": 2, "latest": 3, "count": 1},
    ]
    heading, *_ = ask("topics", "--offsets", "--topic", "counted")[1].splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "EARLIEST", "LATEST", "COUNT"]


@pytest.mark.parametrize(
    ("when", "offset"),
    [
        ("-1h", 0),
        ("2999-01-01", None),
        ("0", 0),
        ("earliest", 0),
        ("latest", 2),
        ("-1", 2),
        ("-2", 0),
        ("max-timestamp", 1),
    ],
)
def test_an_offset_by_time(ask: Ask, when: str, offset: int | None) -> None:
    if "by-time" not in ask("topics", "--list")[1].split():
        ask("produce", "-t", "by-time", stdin=b"1\n")
        ask("produce", "-t", "by-time", stdin=b"2\n")
    (found,) = rows(ask("topics", "--offsets", "--topic", "by-time", "--time", when, "--json")[1])
    assert found["offset"] == offset


def test_a_partition_without_a_leader_has_no_offsets(capsys: Captured) -> None:
    with cluster(2) as c:
        words = ["topics", "-b", c.brokers[0].bootstrap]
        run([*words, "--create", "--topic", "spread", "--replica-assignment", "1,2"])
        c.brokers[1].kill()
        capsys.readouterr()
        assert run([*words, "--offsets", "--topic", "spread", "--json"]) == 0
        assert [each["latest"] for each in rows(capsys.readouterr().out)] == [0, None]


def test_topics_that_brokers_keep_for_themselves_are_shown_to_who_asks_for_them(ask: Ask) -> None:
    ask("produce", "-t", "own", stdin=b"1\n")
    ask("consume", "own", "-G", "own", "-o", "beginning", "-c", "1")
    internal = "__consumer_offsets"
    assert internal not in ask("topics", "--list")[1]
    assert internal not in ask("topics", "--list", "--topic", ".*")[1]
    assert internal not in ask("topics", "--describe", "--json")[1]
    assert internal not in ask("topics", "--offsets", "--json")[1]
    assert internal in ask("topics", "--list", "--include-internal")[1].split()
    assert ask("topics", "--list", "--topic", "__consumer.*")[1] == f"{internal}\n"
    assert ask("topics", "--delete", "--topic", "_.*")[2] == "kbroker: there is no topic '_.*'\n"
    assert ask("topics", "--list", "--exclude-internal", "--topic", "__.*")[1] == ""


# ---- delete-records


def test_records_are_deleted_by_a_file(ask: Ask, tmp_path: Path) -> None:
    ask("produce", "-t", "cut-short", stdin=b"1\n2\n3\n")
    (file := tmp_path / "f").write_text('{"partitions":[{"topic":"cut-short","partition":0,"offset":1}],"version":1}')
    code, out, err = ask("delete-records", "--offset-json-file", str(file), "--json")
    assert (code, err, rows(out)) == (0, "", [{"partition": "cut-short-0", "low_watermark": 1, "error": None}])
    assert ask("consume", "cut-short", "-o", "beginning", "-e")[1] == "2\n3\n"
    assert ask("delete-records", "--topic", "cut-short", "--offset", "-1")[0] == 0
    assert ask("consume", "cut-short", "-o", "beginning", "-e")[1] == ""


def test_an_offset_that_is_not_there_yet_is_refused(ask: Ask) -> None:
    ask("produce", "-t", "too-far", stdin=b"1\n")
    code, out, err = ask("delete-records", "--topic", "too-far", "--offset", "5", "--json")
    assert (code, err) == (1, "")
    assert rows(out)[0]["error"].startswith("OFFSET_OUT_OF_RANGE: ")


# ---- elect-leaders


@pytest.fixture(scope="module")
def two() -> Any:
    with cluster(2) as c:
        yield c


def asked(c: Cluster, capsys: Captured, *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = run([*words, "-b", c.bootstrap])
    return code, capsys.readouterr().out


def leaders(c: Cluster, capsys: Captured, topic: str) -> list[int]:
    """Once all replicas are in sync."""
    while True:
        (found,) = rows(asked(c, capsys, "topics", "--describe", "--topic", topic, "--json")[1])
        if all(len(each["isr"]) == 2 for each in found["partitions"]):
            return [each["leader"] for each in found["partitions"]]


@pytest.mark.parametrize("how", ["one", "all", "file"])
def test_a_partition_is_led_by_its_first_replica_again(
    two: Cluster, capsys: Captured, tmp_path: Path, how: str
) -> None:
    asked(two, capsys, "topics", "--create", "--topic", how, "--replica-assignment", "2:1,1:2")
    two.brokers[0].restart()
    assert leaders(two, capsys, how) == [2, 2]
    (file := tmp_path / "f").write_text(json.dumps({"partitions": [{"topic": how, "partition": at} for at in (0, 1)]}))
    chosen = {
        "one": ("--topic", how, "--partition", "1"),
        "all": ("--all-topic-partitions",),
        "file": ("--path-to-json-file", str(file)),
    }[how]
    code, out = asked(two, capsys, "elect-leaders", "--election-type", "PREFERRED", *chosen, "--json")
    results = {each["partition"]: each["result"] for each in rows(out)}
    assert (code, results[f"{how}-1"], results.get(f"{how}-0", "not needed")) == (0, "elected", "not needed")
    assert leaders(two, capsys, how) == [2, 1]


def test_a_leader_that_cannot_be_elected_is_told(ask: Ask) -> None:
    code, out, _ = ask("elect-leaders", "--election-type", "preferred", "--topic", "no", "--partition", "0", "--json")
    (row,) = rows(out)
    assert (code, row["result"], row["error"].partition(":")[0]) == (1, "failed", "UNKNOWN_TOPIC_OR_PARTITION")


# ---- reassign --throttle


def settings(c: Cluster, capsys: Captured, *whose: str) -> dict[str, str]:
    found = rows(asked(c, capsys, "configs", "--describe", *whose, "--json")[1])
    return {each["name"]: each["value"] for each in found if "throttled" in each["name"]}


def test_a_move_is_throttled_until_it_is_verified(two: Cluster, capsys: Captured, tmp_path: Path) -> None:
    asked(two, capsys, "topics", "--create", "--topic", "slow", "--replica-assignment", "1,1")
    plan = {"version": 1, "partitions": [{"topic": "slow", "partition": at, "replicas": [2]} for at in (0, 1)]}
    (file := tmp_path / "plan").write_text(json.dumps(plan))
    words = ("reassign", "--reassignment-json-file", str(file))
    code, out = asked(two, capsys, *words, "--execute", "--throttle", "1000000")
    assert (code, "The inter-broker throttle is 1000000 B/s" in out) == (0, True)
    assert settings(two, capsys, "--topic", "slow") == {
        "leader.replication.throttled.replicas": "0:1,1:1",
        "follower.replication.throttled.replicas": "0:2,1:2",
    }
    rates = {f"{role}.replication.throttled.rate": "1000000" for role in ("leader", "follower")}
    assert settings(two, capsys, "--broker", "1") == settings(two, capsys, "--broker", "2") == rates
    while asked(two, capsys, "reassign", "--list", "--json")[1] != "[]\n":
        pass
    assert asked(two, capsys, *words, "--verify", "--preserve-throttles")[0] == 0
    assert settings(two, capsys, "--broker", "1") == rates
    assert asked(two, capsys, *words, "--verify")[0] == 0
    assert [settings(two, capsys, *each) for each in (("--topic", "slow"), ("--broker", "1"), ("--broker", "2"))] == [
        {}
    ] * 3


# ---- perf


def test_speed_is_measured_and_said(ask: Ask, tmp_path: Path) -> None:
    code, out, err = ask("perf", "produce", "-t", "speed", "--num-records", "1000", "--record-size", "100", "--json")
    written = json.loads(out)
    assert (code, err, written["records"]) == (0, "", 1000)
    assert 0 < written["latency_p50_ms"] <= written["latency_p999_ms"] <= written["latency_max_ms"]
    (file := tmp_path / "values").write_bytes(b"one|two|")
    words = ("--num-records", "5", "--payload-file", str(file), "--payload-delimiter", "|", "--throughput", "1000")
    assert ask("perf", "produce", "-t", "speed", *words)[1].startswith("5 records sent, ")
    assert ask("consume", "speed", "-o", "1000", "-e")[1].split() == ["one", "two", "one", "two", "one"]
    read = json.loads(ask("perf", "consume", "-t", "speed", "--num-records", "1005", "--json")[1])
    assert (read["records"], read["bytes"]) == (1005, 100_000 + 15)
    said = ask("perf", "consume", "-t", "speed", "--messages", "2000", "--timeout", "1500", "--group", "timed")
    assert said[1].startswith("1005 records read, ")
    assert said[2] == "No more came within 1500 ms.\n"


def test_of_many_records_some_times_are_kept(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cli.perf.MOST_TIMES", 1)
    out = ask("perf", "produce", "-t", "sampled", "--num-records", "100", "--record-size", "1", "--json")[1]
    figures = json.loads(out)
    assert figures["records"] == 100
    assert 0 < figures["latency_p50_ms"] == figures["latency_p999_ms"] <= figures["latency_max_ms"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("topics --list --time -1h", "--time goes with --offsets"),
        ("topics --offsets --time soon", "--time soon: allowed: earliest, latest, max-timestamp, MILLISECONDS, "),
        ("topics --offsets --topic nosuch", "there is no topic 'nosuch'"),
        ("delete-records", "say --offset-json-file; or --topic and --offset"),
        ("delete-records --topic t", "say --offset-json-file; or --topic and --offset"),
        ("delete-records --topic nosuch --offset 1", "there is no topic 'nosuch'"),
        ("delete-records --topic t --partition 99 --offset 1", "there is no partition t-99"),
        ("elect-leaders --topic t --partition 0", "Missing option '--election-type'"),
        ("elect-leaders --election-type preferred", "say --topic and --partition, --path-to-json-file, or --all"),
        ("elect-leaders --election-type unclean --topic t", "say --topic and --partition, --path-to-json-file, or --"),
        ("perf produce -t t --num-records 1", "say --record-size, or --payload-file"),
        (
            "perf produce -t t --num-records 1 --record-size 1 --throughput 0",
            "--throughput 0: allowed: -1, or at least",
        ),
        ("perf consume -t nosuch --num-records 1", "there is no topic 'nosuch' at "),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: str, line: str) -> None:
    ask("topics", "--create", "--topic", "t", "--if-not-exists")
    code, out, err = ask(*words.split())
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)
