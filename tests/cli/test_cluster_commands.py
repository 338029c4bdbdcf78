"""The commands that speak to a cluster, on a broker in this process: what they print."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from kbroker.cli import run
from kbroker.testing import Broker, broker, cluster
from tests.cli.asking import Ask, Captured


def read(ask: Ask, topic: str, *words: str) -> str:
    """All of a topic, as `consume` prints it."""
    code, out, err = ask("consume", "-t", topic, "-o", "beginning", "-e", *words)
    assert (code, err) == (0, "")
    return out


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


# ---- topics


def test_a_topic_is_made_listed_grown_and_deleted(ask: Ask) -> None:
    assert ask("topics", "--create", "--topic", "life", "--partitions", "2")[:2] == (0, "Created topic life.\n")
    assert "life" in ask("topics", "--list")[1].split()
    assert ask("topics", "--alter", "--topic", "life", "--partitions", "3")[0] == 0
    (described,) = rows(ask("topics", "--describe", "--topic", "life", "--json")[1])
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert ask("topics", "--delete", "--topic", "life")[:2] == (0, "Deleted topic life.\n")
    assert "life" not in ask("topics", "--list")[1].split()


def test_a_described_topic_is_a_table_with_its_own_settings_above(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "table", "--config", "retention.ms=60000")
    head, columns, row = ask("topics", "--describe", "--topic", "table")[1].rstrip().splitlines()
    assert head.startswith("table  id ")
    assert head.endswith("1 partition x 1 replica, settings: retention.ms=60000")
    assert columns.split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "OFFLINE"]
    assert row.split() == ["0", "1", "1", "1", "-"]


def test_topics_are_chosen_by_a_whole_regular_expression(ask: Ask) -> None:
    for name in ("re-1", "re-2", "re-22"):
        ask("topics", "--create", "--topic", name)
    assert ask("topics", "--list", "--topic", "re-.")[1] == "re-1\nre-2\n"
    assert ask("topics", "--delete", "--topic", "re-.*")[1].count("Deleted") == 3


def test_only_topics_with_settings_of_their_own_are_described_if_asked(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "own-1", "--config", "retention.ms=1000")
    ask("topics", "--create", "--topic", "own-2")
    out = ask("topics", "--describe", "--topic", "own-.", "--topics-with-overrides", "--json")[1]
    assert [each["topic"] for each in rows(out)] == ["own-1"]


@pytest.mark.parametrize(
    ("narrow", "hurt"), [("--under-replicated-partitions", "both"), ("--unavailable-partitions", "alone")]
)
def test_topics_are_described_only_with_partitions_that_are_asked_for(capsys: Captured, narrow: str, hurt: str) -> None:
    def topics(*words: str) -> str:
        assert run(["topics", "-b", c.brokers[0].bootstrap, *words]) == 0
        return capsys.readouterr().out

    with cluster(2) as c:
        for topic, assignment in (("healthy", "1"), ("alone", "2"), ("both", "2:1")):
            topics("--create", "--topic", topic, "--replica-assignment", assignment)
        assert rows(topics("--describe", narrow, "--json")) == []
        c.brokers[1].kill()
        assert [each["topic"] for each in rows(topics("--describe", narrow, "--json"))] == [hurt]
        assert [each.split()[0] for each in topics("--describe", narrow).split("\n\n") if each.strip()] == [hurt]


def test_a_topic_that_is_there_or_is_not_is_no_error_if_so_asked(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "twice")
    assert ask("topics", "--create", "--topic", "twice", "--if-not-exists")[0] == 0
    assert ask("topics", "--delete", "--topic", "never", "--if-exists")[0] == 0
    assert ask("topics", "--alter", "--topic", "never", "--partitions", "2", "--if-exists")[0] == 0


# ---- produce and consume


def test_lines_become_records_and_come_back_as_lines(ask: Ask) -> None:
    assert ask("produce", "-t", "lines", stdin=b"one\ntwo\nthree")[0] == 0
    assert read(ask, "lines") == "one\ntwo\nthree\n"


def test_keys_headers_and_tombstones_travel(ask: Ask) -> None:
    ask("produce", "-t", "keyed", "-K", ":", "-Z", "-H", "a=b", "-z", "zstd", stdin=b"x:1\ny:\n")
    first, second = map(json.loads, read(ask, "keyed", "-J").splitlines())
    assert (first["key"], first["payload"], first["headers"]) == ("x", "1", ["a", "b"])
    assert (second["key"], second["payload"], second["offset"]) == ("y", None, 1)


def test_a_key_given_once_is_every_records(ask: Ask) -> None:
    ask("produce", "-t", "same-key", "-k", "k", stdin=b"1\n2\n")
    assert read(ask, "same-key", "-K", "|") == "k|1\nk|2\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_json_in_every_locale(ask: Ask, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    ask("topics", "--create", "--topic", "of-cafe")
    ask("consume", "of-cafe", "-G", "caf\xe9", "-e")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out := io.BytesIO(), encoding=encoding))
    assert run(["groups", "--list", "--json"]) == 0
    assert "caf\xe9" in [each["group"] for each in rows(out.getvalue().decode())]


def test_a_file_is_one_record_or_its_lines_are(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\nb\n")
    ask("produce", "-t", "whole", str(file))
    ask("produce", "-t", "parts", "-l", str(file))
    assert read(ask, "whole", "-D", "|") == "a\nb\n|"
    assert read(ask, "parts", "-D", "|") == "a|b|"


def test_no_more_records_are_sent_than_asked_for(ask: Ask) -> None:
    ask("produce", "-t", "few", "-c", "2", stdin=b"1\n2\n3\n")
    assert read(ask, "few") == "1\n2\n"


class OneLine(io.BytesIO):
    """What somebody types who waits for it to be sent: a line, and no more."""

    def read1(self, size: int | None = -1) -> bytes:
        line = self.readline()
        assert line, "another line is waited for"
        return line


def test_the_last_record_asked_for_is_not_followed_by_waiting_for_another(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(OneLine(b"1\n")))
    assert run(["produce", "-b", bootstrap, "-t", "typed", "-c", "1"]) == 0
    assert read(ask, "typed") == "1\n"


class Hangs(io.BytesIO):
    """Two lines, between which the broker ceases to answer; behind them the input ends, or Ctrl-C is pressed."""

    def __init__(self, running: Broker, *, ctrl_c: bool) -> None:
        super().__init__(b"1\n2\n")
        self._running = running
        self._ctrl_c = ctrl_c

    def read1(self, size: int | None = -1) -> bytes:
        line = self.readline()
        if line == b"2\n":
            self._running.pause()
        if not line and self._ctrl_c:
            raise KeyboardInterrupt
        return line


@pytest.mark.parametrize(
    ("ctrl_c", "code", "said"),
    [
        (False, 2, "kbroker: not all of 2 records were acknowledged within 0.5 s\n"),
        (True, 130, "\n"),
    ],
)
def test_a_broker_that_hangs_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, ctrl_c: bool, code: int, said: str
) -> None:
    monkeypatch.setattr("kbroker.cli.produce.FLUSH_SECONDS", 0.5)
    monkeypatch.setattr("kbroker.cli.produce.FLUSH_SECONDS_AFTER_CTRL_C", 0.1)
    with broker() as b:
        b.create_topic("t")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Hangs(b, ctrl_c=ctrl_c)))
        assert run(["produce", "-b", b.bootstrap, "-t", "t"]) == code
        b.resume()
    for sender in [each for each in threading.enumerate() if each.name.startswith("kafka-python-producer")]:
        cast(Any, sender).force_close()  # the end of the command's process would: it disturbed other tests
        sender.join()
    assert capsys.readouterr().err == said


def test_bytes_that_are_no_text_are_base64_in_json(ask: Ask) -> None:
    ask("produce", "-t", "binary", stdin=b"\xff\x00\n")
    (line,) = map(json.loads, read(ask, "binary", "-J").splitlines())
    assert (line["payload"], line["payload_base64"]) == (None, "/wA=")


@pytest.mark.parametrize(
    ("where", "values"),
    [("beginning", "0 1 2 3"), ("2", "2 3"), ("-1", "3"), ("-9", "0 1 2 3"), ("s@0", "0 1 2 3"), ("end", "")],
)
def test_consuming_begins_where_it_is_told_to(ask: Ask, where: str, values: str) -> None:
    if "where" not in ask("topics", "--list")[1].split():
        ask("produce", "-t", "where", stdin=b"0\n1\n2\n3\n")
    code, out, _ = ask("consume", "where", "-o", where, "-e")
    assert (code, out.split()) == (0, values.split())


def test_a_group_goes_on_where_it_stopped(ask: Ask) -> None:
    ask("produce", "-t", "shared", stdin=b"1\n2\n3\n")
    assert ask("consume", "shared", "-G", "readers", "-o", "beginning", "-c", "2")[1] == "1\n2\n"
    assert ask("consume", "shared", "-G", "readers", "-c", "1")[1] == "3\n"


def test_a_group_has_committed_the_end_that_it_began_at(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "begun", "--partitions", "2")
    ask("produce", "-t", "begun", "-p", "0", stdin=b"1\n2\n")
    assert ask("consume", "begun", "-G", "late", "-e")[:2] == (0, "")
    described = rows(ask("groups", "--describe", "--group", "late", "--json")[1])
    assert [(each["partition"], each["current_offset"]) for each in described] == [(0, 2), (1, 0)]


def test_an_offset_before_the_first_record_is_the_first_record(ask: Ask, bootstrap: str) -> None:
    ask("produce", "-t", "cut", stdin=b"0\n1\n2\n3\n")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.delete_records({TopicPartition("cut", 0): 2})
    admin.close()
    assert ask("consume", "cut", "-o", "0", "-e")[:2] == (0, "2\n3\n")


def test_an_offset_after_the_last_record_is_told_to_be_none(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "short", "--partitions", "4")
    ask("produce", "-t", "short", "-p", "0", stdin=b"0\n1\n")
    told = "kbroker: nothing is at offset {} yet: the log ends before it ({})\n"
    assert ask("consume", "short", "-p", "0", "-o", "2", "-e") == (0, "", "")
    assert ask("consume", "short", "-p", "0", "-o", "3", "-e") == (0, "", told.format(3, "short-0 at 2"))
    rest = "short-1 at 0, short-2 at 0, short-3 at 0"
    assert ask("consume", "short", "-o", "1", "-e") == (0, "1\n", told.format(1, rest))
    rest = "short-0 at 2, short-1 at 0, short-2 at 0 and 1 more"
    assert ask("consume", "short", "-o", "9", "-e") == (0, "", told.format(9, rest))


def test_a_partition_without_a_leader_is_named(capsys: Captured) -> None:
    with cluster(2) as c:
        c.create_topic("spread", partitions=2)
        c.brokers[1].kill()
        for where in ("beginning", "-1"):
            code = run(["consume", "-b", c.brokers[0].bootstrap, "-t", "spread", "-o", where, "-e"])
            said = re.fullmatch(r"kbroker: spread-[01] has no leader: is its broker away\?\n", capsys.readouterr().err)
            assert (code, bool(said)) == (2, True)


def test_nothing_is_produced_where_there_is_no_input_at_all(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("topics", "--create", "--topic", "no-input")
    monkeypatch.setattr(sys, "stdin", None)  # as a shell's `<&-` leaves it
    assert run(["produce", "-t", "no-input"]) == 0
    assert read(ask, "no-input") == ""


def test_a_format_names_every_part_of_a_record(ask: Ask) -> None:
    ask("produce", "-t", "formed", "-k", "key", "-H", "h=v", stdin=b"value\n")
    assert read(ask, "formed", "-f", "%t %p %o %k(%K) %s(%S) %h %%\\n") == "formed 0 0 key(3) value(5) h=v %\n"


# ---- groups


@pytest.fixture
def group(ask: Ask) -> str:
    """A group that has read two of the three records of topic `of-group`."""
    if "of-group" not in ask("topics", "--list")[1].split():
        ask("produce", "-t", "of-group", stdin=b"1\n2\n3\n")
        ask("consume", "of-group", "-G", "billing", "-o", "beginning", "-c", "2")
    ask("groups", "--reset-offsets", "--group", "billing", "--topic", "of-group", "--to-offset", "2", "--execute")
    return "billing"


def test_a_group_is_described_with_its_lag(ask: Ask, group: str) -> None:
    (row,) = rows(ask("groups", "--describe", "--group", group, "--json")[1])
    assert (row["current_offset"], row["log_end_offset"], row["lag"]) == (2, 3, 1)


def test_a_group_has_a_state(ask: Ask, group: str) -> None:
    (row,) = rows(ask("groups", "--describe", "--group", group, "--state", "--json")[1])
    assert (row["state"], row["members"]) == ("Empty", 0)
    assert group in ask("groups", "--list")[1].split()


@pytest.mark.parametrize(
    ("how", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 3),
        (("--to-current",), 2),
        (("--to-offset", "1"), 1),
        (("--to-offset", "99"), 3),
        (("--shift-by", "-1"), 1),
        (("--shift-by", "-9"), 0),
        (("--by-duration", "PT1H"), 0),
        (("--by-duration", "P99999D"), 0),
        (("--to-datetime", "2999-01-01T00:00:00.000"), 3),
    ],
)
def test_a_reset_is_planned_within_the_log_and_made_only_if_asked(
    ask: Ask, group: str, how: tuple[str, ...], offset: int
) -> None:
    words = ("groups", "--reset-offsets", "--group", group, "--topic", "of-group", *how, "--json")
    assert rows(ask(*words)[1])[0]["new_offset"] == offset
    assert rows(ask("groups", "--describe", "--group", group, "--json")[1])[0]["current_offset"] == 2
    ask(*words, "--execute")
    assert rows(ask("groups", "--describe", "--group", group, "--json")[1])[0]["current_offset"] == offset


def test_an_exported_reset_is_read_back(ask: Ask, group: str, tmp_path: Path) -> None:
    plan = ask("groups", "--reset-offsets", "--group", group, "--topic", "of-group", "--to-earliest", "--export")[1]
    assert plan == '"billing","of-group",0,0\n'
    file = tmp_path / "plan.csv"
    file.write_text(plan)
    ask("groups", "--reset-offsets", "--group", group, "--from-file", str(file), "--execute")
    assert rows(ask("groups", "--describe", "--group", group, "--json")[1])[0]["current_offset"] == 0


def test_a_groups_offsets_of_a_topic_are_forgotten(ask: Ask) -> None:
    ask("produce", "-t", "forget", stdin=b"1\n")
    ask("consume", "forget", "-G", "forgetful", "-o", "beginning", "-c", "1")
    forgot = ask("groups", "--delete-offsets", "--group", "forgetful", "--topic", "forget")
    assert forgot == (0, "Forgot 1 offsets of group forgetful.\n", "")


def test_offsets_that_no_group_has_are_not_forgotten_silently(ask: Ask, group: str) -> None:
    code, out, err = ask("groups", "--delete-offsets", "--group", group, "--topic", "of-grop")
    assert (code, out, err) == (2, "", "kbroker: nothing is committed for of-grop by billing\n")


def test_a_reset_from_a_file_names_a_partition_that_is_not_there(ask: Ask, group: str, tmp_path: Path) -> None:
    (file := tmp_path / "plan.csv").write_text("of-group,0,1\nof-group,7,1\n")
    code, out, err = ask("groups", "--reset-offsets", "--group", group, "--from-file", str(file), "--execute")
    assert (code, out, err) == (2, "", f"kbroker: {file}: there is no partition of-group-7\n")
    assert rows(ask("groups", "--describe", "--group", group, "--json")[1])[0]["current_offset"] == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"of-group,0,1\nof-group,0\n", " line 2: allowed: group,topic,partition,offset"),
        (b"of-group,0,1\n" + b"a" * 200_000, " line 2: allowed: group,topic,partition,offset"),
        (b"of-group,0,1\n# caf\xe9\n", ": allowed: text in UTF-8"),
    ],
)
def test_a_file_of_offsets_that_is_none_is_named(
    ask: Ask, group: str, tmp_path: Path, content: bytes, told: str
) -> None:
    (file := tmp_path / "plan.csv").write_bytes(content)
    said = ask("groups", "--reset-offsets", "--group", group, "--from-file", str(file))
    assert said == (2, "", f"kbroker: {file}{told}\n")


def test_a_mark_of_byte_order_is_no_part_of_the_first_topic(ask: Ask, group: str, tmp_path: Path) -> None:
    (file := tmp_path / "plan.csv").write_bytes(b"\xef\xbb\xbfof-group,0,1\n")
    code, out, err = ask("groups", "--reset-offsets", "--group", group, "--from-file", str(file), "--json")
    assert (code, err, rows(out)[0]["new_offset"]) == (0, "", 1)


def test_a_group_is_deleted(ask: Ask) -> None:
    ask("produce", "-t", "leave", stdin=b"1\n")
    ask("consume", "leave", "-G", "gone", "-o", "beginning", "-c", "1")
    assert ask("groups", "--delete", "--group", "gone")[:2] == (0, "Deleted group gone.\n")
    assert "gone" not in ask("groups", "--list")[1].split()


def test_a_group_that_nobody_has_is_said_even_before_there_are_offsets(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker() as unused:
        monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", unused.bootstrap)
        code = run(["groups", "--describe", "--group", "nobody"])
    assert (code, capsys.readouterr().err) == (2, "kbroker: there is no consumer group 'nobody'\n")


# ---- changes as JSON


def test_every_change_is_said_as_json_if_asked(ask: Ask, tmp_path: Path) -> None:
    def said(*words: str, stdin: bytes = b"") -> Any:
        code, out, err = ask(*words, "--json", stdin=stdin)
        assert (code, err) == (0, ""), words
        return json.loads(out)

    topic = ("--topic", "told")
    assert said("topics", "--create", *topic) == {"created": ["told"]}
    assert said("topics", "--create", *topic, "--if-not-exists") == {"created": []}
    assert said("topics", "--alter", *topic, "--partitions", "2") == {
        "altered": [{"topic": "told", "partition_count": 2}]
    }
    assert said("topics", "--alter", "--topic", "none", "--partitions", "2", "--if-exists") == {"altered": []}
    assert said("configs", "--alter", *topic, "--add-config", "retention.ms=5", "--delete-config", "segment.ms") == {
        "entity_type": "topics",
        "entity": "told",
        "set": {"retention.ms": "5"},
        "deleted": ["segment.ms"],
    }
    assert said("configs", "--alter", "--broker-defaults", "--delete-config", "log.retention.ms")["deleted"] == [
        "log.retention.ms"
    ]
    assert said("produce", "-t", "told", "-p", "0", stdin=b"1\n2\n") == {"topic": "told", "records": 2}
    assert said("produce", "-t", "told", "-p", "1", stdin=b"3\n") == {"topic": "told", "records": 1}
    ask("consume", "told", "-G", "teller", "-o", "beginning", "-c", "3")  # commits in both: a group without is deleted
    assert said("groups", "--delete-offsets", "--group", "teller", "--topic", "told:0") == {
        "forgotten": [{"group": "teller", "topic": "told", "partition": 0}]
    }
    assert said("groups", "--delete", "--group", "teller") == {"deleted": ["teller"]}
    (tmp_path / "topics").write_text('{"topics":[{"topic":"told"}]}')
    plans = said("reassign", "--generate", "--topics-to-move-json-file", str(tmp_path / "topics"), "--broker-list", "1")
    assert plans["current"] == plans["proposed"]
    (tmp_path / "plan").write_text(json.dumps(plans["proposed"]))
    plan = ("--reassignment-json-file", str(tmp_path / "plan"))
    assert said("reassign", "--execute", *plan) == {"before": plans["current"], "moving": ["told-0", "told-1"]}
    assert said("reassign", "--cancel", *plan) == {"cancelled": []}
    assert said("topics", "--delete", *topic) == {"deleted": ["told"]}
    assert said("topics", "--delete", *topic, "--if-exists") == {"deleted": []}
    assert list(said("cluster", "--cluster-id")) == ["cluster_id"]


# ---- reassign


def test_a_plan_is_generated_from_what_there_is(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = {"brokers": [{"broker_id": each} for each in (1, 7, 8)]}
    monkeypatch.setattr(KafkaAdminClient, "describe_cluster", lambda _: brokers)
    ask("topics", "--create", "--topic", "move", "--partitions", "2")
    file = tmp_path / "topics.json"
    file.write_text('{"version":1,"topics":[{"topic":"move"}]}')
    out = ask("reassign", "--generate", "--topics-to-move-json-file", str(file), "--broker-list", "7,8")[1]
    current, proposed = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    assert [each["replicas"] for each in current["partitions"]] == [[1], [1]]
    assert [each["replicas"] for each in proposed["partitions"]] == [[7], [8]]


def test_a_plan_may_come_by_a_pipe(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "piped")
    for action in ("--execute", "--verify"):
        reading, writing = os.pipe()
        os.write(writing, b'{"version":1,"partitions":[{"topic":"piped","partition":0,"replicas":[1]}]}')
        os.close(writing)
        code, _, err = ask("reassign", action, "--reassignment-json-file", f"/dev/fd/{reading}")
        os.close(reading)
        assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("partition", "told"),
    [
        ('"partition":1e999,"replicas":[1]', "allowed: "),
        ('"partition":0,"replicas":[1e999]', "allowed: "),
        ('"partition":0,"replicas":[true]', "allowed: "),
        ('"partition":0,"replicas":[1.9]', "allowed: "),
        ('"partition":"0","replicas":[1]', "allowed: "),
        ('"partition":0,"replicas":"1"', "allowed: "),
        ('"partition":0,"replicas":[1,1]', "move-0: a partition, and each of its replicas, once"),
        ('"partition":0,"replicas":[1]},{"topic":"move","partition":0,"replicas":[2]', "move-0: a partition, and each"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_named(ask: Ask, tmp_path: Path, partition: str, told: str) -> None:
    (file := tmp_path / "plan.json").write_text(f'{{"version":1,"partitions":[{{"topic":"move",{partition}}}]}}')
    code, out, err = ask("reassign", "--verify", "--reassignment-json-file", str(file))
    assert err.startswith(f"kbroker: {file}: {told}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_brokers_to_move_to_are_named_once(ask: Ask, tmp_path: Path) -> None:
    (file := tmp_path / "topics.json").write_text('{"version":1,"topics":[{"topic":"move"}]}')
    code, out, err = ask("reassign", "--generate", "--topics-to-move-json-file", str(file), "--broker-list", "1,2,1")
    assert (code, out, err.startswith("kbroker: --broker-list 1,2,1: each broker once")) == (2, "", True)


def test_a_topic_that_is_not_there_has_no_plan(ask: Ask, tmp_path: Path) -> None:
    (file := tmp_path / "topics.json").write_text('{"version":1,"topics":[{"topic":"nosuch"}]}')
    said = ask("reassign", "--generate", "--topics-to-move-json-file", str(file), "--broker-list", "1")
    assert said == (2, "", "kbroker: there is no topic 'nosuch'\n")


@pytest.mark.parametrize("text", ["{", "[]", '{"topics":[{}]}', '{"topics":[{"topic":1}]}', "[" * 100_000])
def test_a_file_of_topics_that_cannot_be_read_is_named(ask: Ask, tmp_path: Path, text: str) -> None:
    file = tmp_path / "topics.json"
    file.write_text(text)
    code, _, err = ask("reassign", "--generate", "--topics-to-move-json-file", str(file), "--broker-list", "1")
    assert (code, err.startswith(f"kbroker: {file}: "), err.count("\n")) == (2, True, 1)


# ---- configs, cluster


def test_settings_are_made_shown_and_taken_back(ask: Ask) -> None:
    ask("topics", "--create", "--topic", "set")
    added = "retention.ms=5,cleanup.policy=[compact,delete]"
    assert ask("configs", "--alter", "--topic", "set", "--add-config", added)[0] == 0
    shown = {row["name"]: row["value"] for row in rows(ask("configs", "--describe", "--topic", "set", "--json")[1])}
    assert shown == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    ask("configs", "--alter", "--topic", "set", "--delete-config", "retention.ms,cleanup.policy")
    assert rows(ask("configs", "--describe", "--topic", "set", "--json")[1]) == []


def test_settings_come_from_a_file(ask: Ask, tmp_path: Path) -> None:
    ask("topics", "--create", "--topic", "from-file")
    (tmp_path / "f").write_text("# comment\nsegment.ms=7000\n")
    ask("configs", "--alter", "--topic", "from-file", "--add-config-file", str(tmp_path / "f"))
    (row,) = rows(ask("configs", "--describe", "--topic", "from-file", "--json")[1])
    assert (row["name"], row["value"]) == ("segment.ms", "7000")


@pytest.mark.parametrize("whose", [("--entity-type", "brokers", "--entity-default"), ("--broker-defaults",)])
def test_what_holds_for_all_brokers_is_set_and_taken_back(ask: Ask, whose: tuple[str, ...]) -> None:
    assert ask("configs", "--alter", *whose, "--add-config", "log.retention.ms=777,message.max.bytes=5000")[:2] == (
        0,
        "Completed updating default config for brokers in the cluster.\n",
    )
    shown = {row["name"]: row["value"] for row in rows(ask("configs", "--describe", *whose, "--json")[1])}
    assert shown == {"log.retention.ms": "777", "message.max.bytes": "5000"}
    ask("configs", "--alter", *whose, "--delete-config", "log.retention.ms,message.max.bytes")
    assert rows(ask("configs", "--describe", *whose, "--json")[1]) == []


def test_defaults_are_shown_if_asked(ask: Ask) -> None:
    names = {row["name"] for row in rows(ask("configs", "--describe", "--broker", "1", "--all", "--json")[1])}
    assert {"num.partitions", "log.retention.hours"} <= names


def test_the_cluster_is_described(ask: Ask, bootstrap: str) -> None:
    found = json.loads(ask("cluster", "--describe", "--json")[1])
    assert [(each["broker"], each["role"]) for each in found["brokers"]] == [(1, "controller")]
    assert ask("cluster", "--cluster-id")[1] == found["cluster_id"] + "\n"


def test_log_directories_and_api_versions_are_shown(ask: Ask) -> None:
    ask("produce", "-t", "stored", stdin=b"1\n")
    (row,) = rows(ask("cluster", "--log-dirs", "--topic", "stored", "--json")[1])
    assert row["bytes"] > 0
    assert {"key": 18, "api": "ApiVersions", "min": 0, "max": 5} in rows(ask("cluster", "--api-versions", "--json")[1])


def test_a_log_directory_without_partitions_is_shown(capsys: Captured, tmp_path: Path) -> None:
    with broker(data=tmp_path / "data") as empty:
        assert run(["cluster", "--log-dirs", "-b", empty.bootstrap]) == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    assert row.split()[:4] == ["1", str(tmp_path / "data" / "data"), "0", "0"]


def test_a_log_directory_that_has_failed_is_in_the_json_too(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"partition_index": 0, "partition_size": 9, "offset_lag": 0, "is_future_key": False}
    sound = {"log_dir": "/a", "error_code": 0, "topics": [{"name": "t", "partitions": [part]}]}
    failed = {"log_dir": "/b", "error_code": 56, "topics": []}
    told = [{"broker": 1, "log_dirs": [sound, failed]}]
    monkeypatch.setattr("kbroker.cli.cluster.described_log_dirs", lambda _: told)
    first, second = rows(ask("cluster", "--log-dirs", "--json")[1])
    assert (first["log_dir"], first["topic"]) == ("/a", "t")
    assert (second["log_dir"], second["state"]) == ("/b", "KAFKA_STORAGE_ERROR")
