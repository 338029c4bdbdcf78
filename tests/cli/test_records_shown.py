"""Records as text and bytes: safe on a terminal, exact in a pipe; and the live line under them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from kbroker.cli._records import as_json, delimited, formatter, harmless, unescaped
from kbroker.cli._screen import LiveLine, Screen


def record(**fields: Any) -> Any:
    defaults = {
        "topic": "t", "partition": 1, "offset": 7, "timestamp": 0, "timestamp_type": 0,
        "key": b"k", "value": b"v", "headers": [],
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **fields})


def lines(*records: Any, width: int = 80, with_topic: bool = False) -> list[str]:
    """What a terminal shows, without the line of the day."""
    return Screen(lambda: width, with_topic=with_topic).shown(records).plain.split("\n")[1:]


def test_a_terminal_sees_where_when_key_value_and_headers() -> None:
    (line,) = lines(record(headers=[("h", b"1"), ("n", None)]), with_topic=True)
    assert line.startswith("t 1:7  ")
    assert line.endswith("  k  v  h=1  n=null")


def test_a_terminal_gets_no_control_characters() -> None:
    text = lines(
        record(topic="\x1b[2J", key=b"\x1b]0;x\x07", value=b"a\nb\xff\xe2\x80\xae", headers=[("\r", b"\t")]),
        with_topic=True,
        width=200,
    )
    assert [each.isprintable() for each in text] == [True]
    assert r"a\nb\xff\u202e" in text[0]


def test_a_key_that_is_not_there_takes_no_room_and_null_and_empty_values_are_said() -> None:
    (null,) = lines(record(key=None, value=None))
    (empty,) = lines(record(key=None, value=b""))
    assert null.endswith("00  null")
    assert empty.endswith("00  (empty)")


def test_a_value_that_does_not_fit_stands_below_folded_and_whole() -> None:
    value = "".join(f"word{at}\u65e5 " for at in range(40))
    head, *below = lines(record(value=value.encode(), headers=[("h", b"1")]), width=60)
    assert head.endswith("  k  h=1")
    assert all(line.startswith("    ") and cell_len(line) <= 60 for line in below)
    assert "".join(line[4:] for line in below) == value


def test_records_are_lined_up_with_those_before_them() -> None:
    shown = lines(record(key=b"a-key"), record(offset=1_234_567), record(key=None))
    assert len({line.index("v") for line in shown[1:]}) == 1


def test_the_day_is_said_when_it_changes() -> None:
    day_ms = 86_400_000
    text = Screen(lambda: 40, with_topic=False).shown([record(timestamp=at) for at in (day_ms, day_ms, 3 * day_ms)])
    rules = [line for line in text.plain.split("\n") if line.startswith("---")]
    assert len(rules) == 2
    assert {len(rule) for rule in rules} == {40}


@pytest.mark.parametrize("timestamp_ms", [-1, 1 << 62])
def test_any_timestamp_can_be_shown(timestamp_ms: int) -> None:
    assert lines(record(timestamp=timestamp_ms))[0].startswith("1:7")


class Reader:
    """A consumer of one partition with a log of some length."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.at = 0
        self.asked = 0

    def assignment(self) -> set[int]:
        return {0}

    def end_offsets(self, places: set[int]) -> dict[int, int]:
        self.asked += 1
        return dict.fromkeys(places, self.end)

    def position(self, place: int) -> int:
        return self.at


def test_the_live_line_says_rate_and_lag_and_asks_for_the_end_once_a_second() -> None:
    reader, now = Reader(1000), [0.0]
    line = LiveLine(reader, ascii_only=True, now_s=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(10):
        now[0] += 0.25
        reader.at += 25
        text = line.after(25)
    assert text.plain == "-" * 20 + "  250 records   100/s   lag 800   Ctrl-C ends"
    assert reader.asked == 3
    assert [span.style for span in text.spans[:2]] == ["cyan", "dim"]
    assert line.end() == "250 records in 2.5 s, 800 not read"


def test_the_live_line_goes_on_while_a_partition_has_no_leader() -> None:
    class Leaderless(Reader):
        def end_offsets(self, places: set[int]) -> dict[int, int]:
            raise KeyError(*places)

    line = LiveLine(Leaderless(1000), ascii_only=True, now_s=iter((0.0, 2.0, 2.0)).__next__)  # type: ignore[arg-type]
    assert line.after(2).plain == "-" * 20 + "  2 records   1/s   lag 0   Ctrl-C ends"


def test_the_live_line_of_an_idle_topic_asks_once_a_second_too() -> None:
    reader, now = Reader(0), [0.0]
    line = LiveLine(reader, ascii_only=True, now_s=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(20):
        now[0] += 0.25
        text = line.after(0)
    assert reader.asked == 5
    assert "0 records   0/s   lag 0" in text.plain


def test_a_format_is_harmless_on_a_terminal_and_exact_in_a_pipe() -> None:
    asked = record(value=b"\x1b[2J\xff")
    assert formatter("%s\\n", harmless)(asked) == b"\\x1b[2J\\xff\n"
    assert formatter("%s\\n")(asked) == b"\x1b[2J\xff\n"
    assert delimited(":", "\\n", harmless)(asked) == b"k:\\x1b[2J\\xff\n"


def test_json_has_no_control_characters_and_still_is_json() -> None:
    text = "\x9b31m\x7f\u202e\U000e0001\xe9"
    line = as_json(record(value=text.encode())).decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["payload"] == text


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


def test_a_record_of_a_format_that_has_no_time_is_shown_without() -> None:
    assert formatter("%T")(record(timestamp=None, timestamp_type=None)) == b"-1"
    assert Screen(lambda: 80, with_topic=False).shown([record(timestamp=None)]).plain.startswith("--- no time ---")
