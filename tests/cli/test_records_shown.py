"""Records as text: safe on a terminal, exact in a pipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cli._records import as_json, formatter, shown, unescaped


def record(**fields: Any) -> Any:
    defaults = {
        "topic": "t", "partition": 1, "offset": 7, "timestamp": 0, "timestamp_type": 0,
        "key": b"k", "value": b"v", "headers": [],
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **fields})


def test_a_terminal_sees_where_when_key_value_and_headers() -> None:
    line = shown(record(headers=[("h", b"1"), ("n", None)]), with_topic=True).plain
    assert line.startswith("t 1:7 ")
    assert line.endswith("  k  v  h=1  n=null")


def test_a_terminal_gets_no_control_characters() -> None:
    line = shown(
        record(topic="\x1b[2J", key=b"\x1b]0;x\x07", value=b"a\nb\xff", headers=[("\r", b"\t")]), with_topic=True
    )
    assert line.plain.isprintable()
    assert r"a\nb\xff" in line.plain


def test_a_key_that_is_not_there_takes_no_room_and_a_null_value_is_said() -> None:
    assert shown(record(key=None, value=None), with_topic=False).plain.endswith("00  null")


@pytest.mark.parametrize("timestamp_ms", [-1, 1 << 62])
def test_any_timestamp_can_be_shown(timestamp_ms: int) -> None:
    assert shown(record(timestamp=timestamp_ms), with_topic=False).plain.startswith("1:7")


def test_json_is_one_line_whatever_the_bytes_are() -> None:
    line = as_json(record(key=b"a\nb", value=b"\xff", timestamp_type=1))
    assert line == (
        b'{"topic":"t","partition":1,"offset":7,"tstype":"logappend","ts":0,"headers":[],"key":"a\\nb",'
        b'"payload":null,"payload_base64":"/w=="}\n'
    )


@pytest.mark.parametrize(
    ("text", "data"),
    [(r"a\tb\n", b"a\tb\n"), (r"\x00\xff", b"\0\xff"), (r"\\n", b"\\n"), (r"\q", b"\\q"), ("ü", "ü".encode())],
)
def test_escapes_of_the_command_line_are_bytes(text: str, data: bytes) -> None:
    assert unescaped(text) == data


def test_a_format_of_a_record_without_value_says_its_length_is_minus_1() -> None:
    assert formatter("%s|%S|%k|%K")(record(value=None, key=None)) == b"|-1||-1"
