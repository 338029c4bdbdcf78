"""What the broker says, to a person, to a file and to a machine."""

from __future__ import annotations

import io
import json
import logging

import pytest

from kbroker.runtime.logs import (
    DEBUG_LINES_PER_PLACE,
    LINES_PER_PLACE,
    MOST_CHARACTERS,
    JsonFormatter,
    RateLimit,
    TerminalFormatter,
    TextFormatter,
    may_colour,
    visible,
)

HOSTILE = "a\x1b[2J\nb\x9b\u202ec\x7f\t"
ESCAPED = "a\\x1b[2J\\nb\\x9b\\u202ec\\x7f\\t"


def event(message: str, level: int = logging.INFO, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("kbroker.groups", level, __file__, 1, message.replace("%", "%%"), (), info)


def test_what_a_client_calls_itself_stays_one_harmless_line() -> None:
    assert visible(HOSTILE) == ESCAPED
    assert TextFormatter().format(event(HOSTILE)).endswith(f" INFO    kbroker.groups: {ESCAPED}")
    assert TerminalFormatter(shows_colours=False).format(event(HOSTILE)).endswith(f" INFO    {ESCAPED}")


@pytest.mark.parametrize("formatter", [TextFormatter(), TerminalFormatter(shows_colours=False), JsonFormatter()])
def test_what_a_client_makes_long_is_cut_and_still_says_why(formatter: logging.Formatter) -> None:
    name = "x" * 32_767
    error = ValueError(f"{name} is no name")
    line = formatter.format(event(f"g: {name} was not heard of", logging.ERROR, error))
    assert len(line) < 3 * MOST_CHARACTERS
    line = " ".join(line.split())  # a terminal's is folded
    assert all(words in line for words in ("g: xxx", "was not heard of", "ValueError: xxx", "is no name"))


@pytest.mark.parametrize(
    ("level", "most"),
    [
        (logging.DEBUG, DEBUG_LINES_PER_PLACE),
        (logging.INFO, LINES_PER_PLACE),
        (logging.WARNING, LINES_PER_PLACE),
        (logging.ERROR, LINES_PER_PLACE),
    ],
)
def test_a_place_has_so_many_lines_a_second_at_any_level(level: int, most: int) -> None:
    limit, lines = RateLimit(), []
    for second in (1, 2):
        for number in range(most + 7):
            line = event(f"refused {number}", level)
            line.created = float(second)
            if limit.filter(line):
                lines.append(line.getMessage())
    assert len(lines) == 2 * most
    assert lines[most] == "refused 0 (7 lines like this were left out)"


def test_letters_of_any_script_are_not_escaped() -> None:
    assert visible("grüße, 注文, заказы") == "grüße, 注文, заказы"


def test_an_error_quoted_below_a_line_is_harmless_too() -> None:
    line = TextFormatter().format(event("it failed", logging.ERROR, ValueError("\x1b[31m")))
    assert line.endswith("ValueError: \\x1b[31m")
    assert "\x1b" not in line


def test_json_is_one_line_of_harmless_characters_and_reads_back() -> None:
    line = JsonFormatter().format(event(HOSTILE, logging.WARNING))
    assert visible(line) == line
    read = json.loads(line)
    assert (read["message"], read["level"], read["logger"]) == (HOSTILE, "warning", "kbroker.groups")


def test_json_has_the_error_beside_the_message() -> None:
    read = json.loads(JsonFormatter().format(event("it failed", logging.ERROR, ValueError("why"))))
    assert (read["message"], read["error"]) == ("it failed", "ValueError: why")


def test_json_has_the_parts_of_a_line_that_has_some() -> None:
    record = event("who did what")
    record.fields = {"principal": "User:a\n"}
    read = json.loads(JsonFormatter().format(record))
    assert (read["message"], read["principal"]) == ("who did what", "User:a\n")


@pytest.mark.parametrize("columns", [20, 80])
def test_a_terminal_gets_lines_that_fit_it(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = TerminalFormatter(shows_colours=False).format(event("word " * 40)).split("\n")
    assert max(map(len, lines)) <= max(columns, 40)
    assert all(line.startswith(" " * 17 + "word") for line in lines[1:])
    assert " ".join(lines).split()[2:] == ["word"] * 40


def test_a_level_is_coloured_only_where_colours_show() -> None:
    warning = event("careful", logging.WARNING)
    assert "\x1b[33mWARNING\x1b[0m careful" in TerminalFormatter(shows_colours=True).format(warning)
    assert "\x1b" not in TerminalFormatter(shows_colours=False).format(warning)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "name", "value", "expected"),
    [
        (Terminal(), "TERM", "xterm", True),
        (Terminal(), "TERM", "dumb", False),
        (Terminal(), "NO_COLOR", "1", False),
        (Terminal(), "NO_COLOR", "", True),
        (io.StringIO(), "TERM", "xterm", False),
    ],
)
def test_colours_are_for_terminals_whose_owner_wants_them(
    stream: io.StringIO, name: str, value: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    assert may_colour(stream) is expected
