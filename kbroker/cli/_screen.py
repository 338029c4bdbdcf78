"""Records on a terminal, and the live line under them: what `kbroker consume` shows to people.

A record that fits is one line: where, when, key, value, headers; of one that does not, the value stands below, folded
and indented. The day is said when it changes. What a client put into a record never reaches the terminal as it is:
control characters are escaped, and the escapes are dim, so that text in binary data can be made out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.live import Live
from rich.text import Text

from kbroker.cli._tables import printable

if TYPE_CHECKING:
    from kbroker.cli._reader import Reader
    from kbroker.cli._records import Consumed

NULL = "null"
EMPTY = "(empty)"
INDENT = 4  # of a value below its record
LONGEST_KEY = 20  # that others are lined up with
LAG_SECONDS = 1.0  # between two questions for the ends of the log
BAR = 20  # characters
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[ntr])")
_highlight_json = JSONHighlighter()


class Screen:
    """Records as text of one width, lined up with those before them."""

    def __init__(self, width: Callable[[], int], *, with_topic: bool) -> None:
        """width: of the terminal now, in characters. with_topic: there are several."""
        self._width = width
        self._with_topic = with_topic
        self._place = 5  # characters that the column of places takes
        self._key = 0
        self._day = ""

    def shown(self, records: Iterable[Consumed]) -> Text:
        """Some records, line by line."""
        width = self._width()
        return Text("\n").join(line for each in records for line in self._lines(each, width))

    def _lines(self, record: Consumed, width: int) -> Iterator[Text]:
        day, clock = _day_and_time(record.timestamp)
        if day != self._day:
            self._day = day
            yield Text(f"--- {day} ".ljust(width, "-"), style="dim", no_wrap=True)
        head = self._head(record, clock)
        value, headers = _value(record.value), _headers(record)
        if head.cell_len + value.cell_len + headers.cell_len <= width:
            yield Text.assemble(head, value, headers)
            return
        head.append_text(headers[2:])
        head.rstrip()
        yield head
        for line in _folded(value, width - INDENT):
            yield Text(" " * INDENT).append_text(line)

    def _head(self, record: Consumed, clock: str) -> Text:
        place = f"{record.partition}:{record.offset}"
        topic = f"{printable(record.topic)} " if self._with_topic else ""
        self._place = max(self._place, cell_len(topic + place))
        head = Text.assemble((topic, "magenta"), (place, "cyan"), " " * (self._place - cell_len(topic + place)))
        head.append(f"  {clock}  ", style="dim")
        if record.key is None:
            return head.append(" " * (self._key + 2 if self._key else 0))
        key = _text(record.key, "bold yellow")
        self._key = max(self._key, min(key.cell_len, LONGEST_KEY))
        return head.append_text(key).append(" " * max(2, self._key + 2 - key.cell_len))


def _folded(text: Text, width: int) -> Iterator[Text]:
    """Pieces that fit; where one ends is of no meaning, hence no words are kept together."""
    at = 0
    while at < len(text.plain):
        end = at + max(1, width)
        while end > at + 1 and cell_len(text.plain[at:end]) > width:
            end -= 1
        yield text[at:end]
        at = end


def _headers(record: Consumed) -> Text:
    line = Text()
    for name, value in record.headers or ():
        line.append(f"  {printable(name)}=", style="dim")
        line.append_text(Text(NULL, style="dim italic") if value is None else _text(value, "dim green"))
    return line


def _value(data: bytes | None) -> Text:
    if data is None:
        return Text(NULL, style="dim italic")
    text = _text(data, "")
    if data[:1] in (b"{", b"["):
        _highlight_json.highlight(text)
    return text


def _text(data: bytes, style: str) -> Text:
    if not data:
        return Text(EMPTY, style="dim italic")
    text = Text(printable(data.decode(errors="backslashreplace")), style=style)
    text.highlight_regex(_ESCAPE, "dim")
    return text


def _day_and_time(timestamp_ms: int | None) -> tuple[str, str]:
    """In the local time zone; a client may have written any number. None: message format v0 has no times."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "no time", "-".ljust(12)
    try:
        day, _, clock = datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds").partition(" ")
    except (OverflowError, ValueError, OSError):
        return "no day", str(timestamp_ms)
    return day, clock


@contextmanager
def live_line(console: Console, consumer: Reader, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A function that is told how many records came, and keeps a line of rate and lag under them.

    At the end the line gives way to one of what there was in all.
    """
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    line = LiveLine(consumer, ascii_only=console.options.ascii_only)
    try:
        with Live(Text(), console=console, auto_refresh=False, transient=True) as live:
            yield lambda count: live.update(line.after(count), refresh=True)
    finally:
        console.print(line.end(), style="dim", no_wrap=True)


class LiveLine:
    """Counts, and how far there is to go. Rate and lag are those of the last second or so: lag is asked for."""

    def __init__(self, consumer: Reader, *, ascii_only: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._now_s = now_s
        self._dash = "-" if ascii_only else "\u2501"
        self._total = 0
        self._lag = 0
        self._rate = 0.0
        self._recent = 0
        self._began_s = self._since_s = now_s()
        self._is_first = True

    def after(self, count: int) -> Text:
        """The line, so many records later."""
        self._total += count
        self._recent += count
        passed_s = self._now_s() - self._since_s
        if passed_s >= LAG_SECONDS or (self._is_first and count):
            self._is_first = False
            self._rate = self._recent / max(passed_s, 0.001)
            with suppress(KeyError):  # the client's, of a partition that has no leader just now
                ends = self._consumer.end_offsets(self._consumer.assignment())
                self._lag = sum(max(0, end - self._consumer.position(place)) for place, end in ends.items())
        if passed_s >= LAG_SECONDS:
            self._since_s, self._recent = self._now_s(), 0
        return self._line()

    def _line(self) -> Text:
        known = self._total + self._lag
        done = BAR * self._total // known if known else BAR
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self._dash * done, style="green" if done == BAR else "cyan")
        text.append(self._dash * (BAR - done), style="dim")
        text.append(f"  {self._total:,}", style="bold").append(_records(self._total))
        text.append(f"   {self._rate:,.0f}", style="bold").append("/s")
        text.append("   lag ").append(f"{self._lag:,}", style="bold yellow" if self._lag else "bold green")
        return text.append("   Ctrl-C ends", style="dim")

    def end(self) -> str:
        """What there was in all."""
        took_s = max(self._now_s() - self._began_s, 0.001)
        lag = f", {self._lag:,} not read" if self._lag else ""
        return f"{self._total:,}{_records(self._total)} in {took_s:,.1f} s{lag}"


def _records(count: int) -> str:
    return " record" if count == 1 else " records"
