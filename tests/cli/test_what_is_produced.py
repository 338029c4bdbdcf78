"""`kbroker produce` told as kcat and kafka-console-producer.sh are: how lines are read, and in a transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.cli.produce import produce
from tests.cli.asking import Ask


def said(ask: Ask, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask("consume", topic, "-o", "beginning", "-e", "-J")[1].splitlines()]


def test_properties_say_how_a_line_becomes_a_record(ask: Ask) -> None:
    given = "--property parse.key=true --reader-property parse.headers=true --property key.separator=:"
    lines = b"a=1;b=N\tk:v\nN\tN:N\nc=\t:\n"
    more = "--property headers.separator=; --property headers.key.separator== --property null.marker=N"
    assert ask("produce", "-t", "parsed", *given.split(), *more.split(), stdin=lines) == (0, "", "")
    first, second, empty = said(ask, "parsed")
    assert (first["headers"], first["key"], first["payload"]) == (["a", "1", "b", None], "k", "v")
    assert (second["headers"], second["key"], second["payload"]) == ([], None, None)
    assert (empty["headers"], empty["key"], empty["payload"]) == (["c", ""], "", "")


def test_a_line_that_is_not_as_told_ends_it_behind_the_lines_before(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.cli.produce.FLUSH_SECONDS_AFTER_CTRL_C", 0.0)
    words = ("produce", "-t", "half", "--property", "parse.key=true", "--property", "key.separator=:")
    code, _, err = ask(*words, stdin=b"a:1\nb:2\nc\n")
    assert (code, err) == (2, "kbroker: record 3 to half: no key.separator ':' is in it\n")
    assert [each["payload"] for each in said(ask, "half")] == ["1", "2"]
    assert ask(*words, "--property", "ignore.error=true", stdin=b"d\n")[0] == 0
    assert (said(ask, "half")[2]["key"], said(ask, "half")[2]["payload"]) == (None, "d")


def test_a_line_that_is_not_as_told_says_that_the_lines_before_were_not_acknowledged(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.cli.produce.FLUSH_SECONDS", 0.0)
    words = ("--property", "parse.key=true", "--property", "key.separator=:", "-X", "linger.ms=60000")
    code, _, err = ask("produce", "-t", "unsent", *words, stdin=b"a:1\nb\n")
    assert code == 2
    assert err.endswith("is in it; not all records before it were acknowledged within 0 s\n")


def test_a_codec_that_is_not_named_is_gzip(ask: Ask) -> None:
    assert ask("produce", "--compression-codec", "--topic", "packed", stdin=b"1\n") == (0, "", "")
    assert ask("produce", "-t", "packed", "-z", "lz4", stdin=b"2\n") == (0, "", "")
    assert [each["payload"] for each in said(ask, "packed")] == ["1", "2"]
    assert produce.make_context("produce", ["-t", "t", "-z", "-c", "1"]).params["compression_codec"] == "gzip"


def test_a_header_without_a_value_has_none(ask: Ask) -> None:
    ask("produce", "-t", "headed", "-H", "no", "-H", "empty=", stdin=b"v\n")
    assert said(ask, "headed")[0]["headers"] == ["no", None, "empty", ""]


@pytest.mark.parametrize(
    "given",
    [
        "acks=1",
        "acks=0",
        "request.required.acks=1",
        "retries=0",
        "message.send.max.retries=0",
        "max.in.flight.requests.per.connection=6",
        "max.in.flight=6",
    ],
)
def test_a_setting_that_rules_idempotence_out_does_so_as_in_java(ask: Ask, given: str) -> None:
    assert ask("produce", "-t", "settled", "-X", given, stdin=b"1\n") == (0, "", "")
    perf = ("--num-records", "1", "--record-size", "1", "--throughput", "-1", "--producer-props", given, "linger.ms=0")
    assert ask("perf", "produce", "--topic", "settled", *perf)[::2] == (0, "")


def test_idempotence_that_is_asked_for_is_not_given_up_silently(ask: Ask) -> None:
    given = ("-X", "acks=1", "-X", "enable.idempotence=true")
    assert ask("produce", "-t", "settled", *given, stdin=b"1\n")[0] == 2


def test_records_are_written_in_a_transaction(ask: Ask) -> None:
    committed = ("consume", "exact", "-o", "beginning", "-e", "--isolation-level", "read_committed")
    written = ("produce", "-t", "exact", "-X", "transactional.id=shop", "--property", "parse.key=true")
    assert ask(*written, stdin=b"k\t1\nk\t2\n") == (0, "", "")
    assert ask(*written, stdin=b"k\t3\nbroken\n")[0] == 2
    assert ask(*written, stdin=b"k\t4\n")[0] == 0
    assert ask(*committed)[1] == "1\n2\n4\n"
    (listed,) = json.loads(ask("transactions", "list", "--json")[1])
    assert (listed["transactional_id"], listed["transaction_state"]) == ("shop", "CompleteCommit")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("produce -t t --property parse.key=true -K :", "one of --key-delimiter and --property"),
        ("produce -t t --property key.serializer=x", "--property key.serializer: allowed: parse.key, "),
        ("produce -t t --property headers.separator=:", "--property: separators are no empty text, and those of head"),
        ("perf produce -t t --num-records 1 --record-size 1 -X transactional.id=x", "-X transactional.id=...: records"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: str, line: str) -> None:
    ask("topics", "--create", "--topic", "t", "--if-not-exists")
    code, out, err = ask(*words.split(), stdin=b"")
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)
