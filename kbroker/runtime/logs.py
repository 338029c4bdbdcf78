"""The broker's own log: one event after the other on standard error, for people or (JSON lines) for machines.

Set up once by `kbroker start`. On a terminal an event is its time, its level in colour, and what happened, folded at
the terminal's width; in a file or a pipe it is one line, with the date and the part of the broker that says it.
Whatever clients call themselves cannot move the cursor or break a line: control characters are written as escapes.

What clients can cause fills no disk: lines are limited to so many a second for each place in the code, whatever their
level, and how many were left out is said with the next one; and a line is cut to a length.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time

from protocol.errors import shortened

LINES_PER_PLACE = 10  # in one second; enough to see what is going on, too few to fill a disk
DEBUG_LINES_PER_PLACE = 100  # a person who wants those looks at single requests
MOST_CHARACTERS = 2_000  # of a line: clients choose names of up to 32 KB
NARROWEST = 40  # columns; a log that is folded more tightly cannot be read

# C0 and C1 controls, separators of lines, and what turns the direction of writing round
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_RESET = "\x1b[0m"
_COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[36m", "WARNING": "\x1b[33m", "ERROR": "\x1b[1;31m"}


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Send everything of `level` ("debug", "info", ...) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty():
        handler.setFormatter(TerminalFormatter(shows_colours=may_colour(sys.stderr)))
    else:
        handler.setFormatter(TextFormatter())
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def may_colour(stream: object) -> bool:
    """Whether a stream is a terminal that shows colours, and the environment does not ask for none (no-color.org)."""
    is_terminal: bool = stream.isatty()  # type: ignore[attr-defined]
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """The text with every control character as an escape, and not too long, so that it is one line and harmless."""
    return _CONTROL.sub(_escape, shortened(text, MOST_CHARACTERS))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(found[0]) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    )


class TextFormatter(logging.Formatter):
    """One line an event, and a traceback below it if there is one."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line."""
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """The traceback, its lines kept apart; what is quoted in it is made visible, too."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))  # type: ignore[arg-type]


class TerminalFormatter(TextFormatter):
    """For a person at a terminal: no date, no names of ours, folded at the terminal's width."""

    def __init__(self, *, shows_colours: bool) -> None:
        super().__init__()
        self._shows_colours = shows_colours

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The event; what does not fit the first line stands below its beginning."""
        from shutil import get_terminal_size  # only a terminal pays for loading these
        from textwrap import wrap

        now = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:7}"
        indent = " " * (len(now) + 1 + len(level) + 1)
        width = max(get_terminal_size().columns, NARROWEST) - len(indent)
        lines = wrap(visible(record.message), width, break_on_hyphens=False) or [""]
        if self._shows_colours:
            level = f"{_COLOURS.get(record.levelname, '')}{level}{_RESET}"
        return f"{now} {level} " + f"\n{indent}".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (ISO 8601, UTC), level, logger, message, and error with a traceback if there is one."""
        message = shortened(record.getMessage(), MOST_CHARACTERS)
        line: dict[str, object] = {"logger": record.name, "message": message}
        for name, value in getattr(record, "fields", {}).items():  # of a line that has parts (`broker/audit.py`)
            line[name] = shortened(value, MOST_CHARACTERS) if isinstance(value, str) else value
        if record.exc_info:
            error = self.formatException(record.exc_info)
            line["error"] = "\n".join(shortened(each, MOST_CHARACTERS) for each in error.split("\n"))
        return json_line(record.levelname.lower(), record.created, line)


def json_line(level: str, seconds: float, fields: dict[str, object]) -> str:
    """An event as a machine reads it. seconds: since 1970."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03d}Z"
    line = json.dumps({"time": when, "level": level, **fields}, ensure_ascii=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)  # those that JSON may leave as they are


class RateLimit(logging.Filter):
    """Passes so many lines a second of each place that logs."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], list[int]] = {}  # second, lines passed, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes out; it says how many before it did not."""
        second = int(record.created)
        place = self._places.setdefault((record.pathname, record.lineno), [second, 0, 0])
        if place[0] != second:
            if place[2]:
                record.msg = f"{record.msg} ({place[2]} lines like this were left out)"
            place[:] = [second, 0, 0]
        if place[1] >= (LINES_PER_PLACE if record.levelno > logging.DEBUG else DEBUG_LINES_PER_PLACE):
            place[2] += 1
            return False
        place[1] += 1
        return True
