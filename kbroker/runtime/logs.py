"""The broker's own log: one line an event on standard error, for people or (JSON lines) for machines.

Set up once by `kbroker start`. A line that would repeat without end, such as one for each refused connection, is
limited to so many a second for each place in the code; how many were left out is said with the next one.
"""

from __future__ import annotations

import json
import logging
import sys
import time

LINES_PER_PLACE = 10  # in one second; enough to see what is going on, too few to fill a disk


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Send everything of `level` ("debug", "info", ...) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    handler.addFilter(_RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, with line breaks of the message made visible: one event stays one line."""
        record.message = record.message.replace("\n", "\\n")
        return super().formatMessage(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object: time (ISO 8601, UTC), level, logger, message, and error with a traceback if there is one."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _RateLimit(logging.Filter):
    """Passes LINES_PER_PLACE lines a second of each place that logs; debug lines and errors always."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], list[int]] = {}  # second, lines passed, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes out; it says how many before it did not."""
        if record.levelno not in (logging.INFO, logging.WARNING):
            return True
        second = int(record.created)
        place = self._places.setdefault((record.pathname, record.lineno), [second, 0, 0])
        if place[0] != second:
            if place[2]:
                record.msg = f"{record.msg} ({place[2]} lines like this were left out)"
            place[:] = [second, 0, 0]
        if place[1] >= LINES_PER_PLACE:
            place[2] += 1
            return False
        place[1] += 1
        return True
