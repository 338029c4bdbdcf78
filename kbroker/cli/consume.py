"""`kbroker consume`: the records of topics on standard output, from anywhere in the log to its end or for ever.

Options are kcat's, and the longer ones of kafka-console-consumer.sh. On a terminal each record is a line of its own
with where it is, its time, key, value and headers, over a live line of rate and lag (`_screen.py`); in a pipe it is the
value alone, as kcat prints it.

Unlike Kafka's and kcat's: a pattern of topics means those that there are when it begins, in a group, too; `-o e@TIME`
stops at the end that there is now, at the latest.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli import complain
from kbroker.cli._cluster import Cluster
from kbroker.cli._elsewhere import Also
from kbroker.cli._librdkafka import EARLIEST, LATEST, Place, carries_records, setting
from kbroker.cli._numbers import Number
from kbroker.cli._properties import printer, properties
from kbroker.cli._reader import Reader
from kbroker.cli._records import Clean, Consumed, as_it_is, as_json, consumed, delimited, formatter, harmless, unescaped
from kbroker.cli._signals import ended_by_signals
from kbroker.cli._times import TIMES, time_ms
from kbroker.cli._unpacking import unpacked_by

if TYPE_CHECKING:
    from confluent_kafka import Message
    from rich.console import Console

    Write = Callable[[Collection[Message]], None]
    Tell = Callable[[int], None]

MOST_NAMED = 3  # partitions in one line
OFFSETS = f"beginning, end, stored, N, -N, s@MILLISECONDS, {TIMES}"
FROM_BEGINNING = ("earliest", "beginning", "smallest")  # of auto.offset.reset
_NAMES = {"earliest": "beginning", "latest": "end"}  # of kafka-console-consumer.sh
NULL = b"NULL"


@click.command("consume")
@carries_records
@click.argument("more", metavar="[TOPIC]...", nargs=-1)
@click.option("--topic", "-t", "topics", multiple=True, help="A topic; may be repeated.")
@click.option("--partition", "-p", "partitions", type=Number(), multiple=True, help="Only this partition.")
@click.option(
    "--offset",
    "-o",
    "offsets",
    multiple=True,
    metavar="WHERE",
    help=f"Where to begin: {OFFSETS}; e@ and a time: where to stop.  [default: end]",
)
@click.option("--from-beginning", is_flag=True, help="The same as -o beginning.")
@click.option("--exit", "-e", "stop_at_end", is_flag=True, help="Stop at what is the end of the log now.")
@click.option("--max-messages", "-c", type=Number(1), metavar="N", help="Stop after so many records.")
@click.option("--timeout-ms", type=Number(1), metavar="N", help="Stop after so many ms without a record.")
@click.option("--include", metavar="REGEX", help="Topics whose names match, of those that there are now; or -t ^REGEX.")
@click.option("--group", "-G", help="Consume as a member of this group, and commit.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted"
)
@click.option("--format", "-f", "form", metavar="FORMAT", help="%s value, %k key, %t %p %o %T %h, \\n ... as kcat.")
@click.option("--key-delimiter", "-K", metavar="STRING", help="Print keys too, and this between key and value.")
@click.option("--delimiter", "-D", default="\\n", metavar="STRING", help="After each value.  [default: \\n]")
@click.option("--null", "-Z", "show_null", is_flag=True, help="Print NULL where there is no key or no value.")
@click.option(
    "--deserializer",
    "-s",
    "packed",
    multiple=True,
    metavar="[key=|value=]FORM",
    help="Print bytes as numbers: b h i q (of 1 to 8 bytes) ... as kcat; or LongDeserializer and the like.",
)
@click.option("--key-deserializer", metavar="CLASS", help="The same as -s key=CLASS.")
@click.option("--value-deserializer", metavar="CLASS", help="The same as -s value=CLASS.")
@click.option(
    "--property",
    "properties",
    cls=Also,
    also=("--formatter-property",),
    multiple=True,
    metavar="KEY=VALUE",
    help="print.key=true, key.separator=: ... as kafka-console-consumer.sh has them.",
)
@click.option("-u", "unbuffered", is_flag=True, hidden=True)  # kcat's: nothing is kept back here anyway
@click.option("--json", "-J", "json_lines", is_flag=True, help="One line of JSON for each record.")
@click.option("--quiet", "-q", is_flag=True, help="No live line.")
def consume(cluster: Cluster, more: tuple[str, ...], topics: tuple[str, ...], **options: Any) -> int:
    """Print the records of topics, to their end or for ever.

    Exit code: 0 done, 2 it could not be done, 130 stopped by Ctrl-C.
    """
    wanted = list(dict.fromkeys([*topics, *more]))
    patterns = [f"(?:{each}).*" for each in wanted if each.startswith("^")]
    patterns += [options["include"]] if options["include"] is not None else []
    if not wanted and not patterns:
        raise click.UsageError("name a topic: -t TOPIC")
    where, until_ms = _where(options["offsets"], is_early=setting(cluster, "auto.offset.reset") in FROM_BEGINNING)
    where = "beginning" if options["from_beginning"] else where
    _check(where, until_ms, options)
    write, console = _writer(options, many=len(wanted) > 1 or bool(patterns))
    with ended_by_signals():
        reader = _reader(cluster, where, options)
        try:
            named = [each for each in wanted if not each.startswith("^")]
            there = {topic: reader.partitions(topic) for topic in (*named, *reader.matching(patterns))}
            if options["group"]:
                reader.join(there)
            else:
                _assign(reader, _places(there, options["partitions"]), where or "end", until_ms)
            with _live_line(console, reader, options) as tell:
                _follow(reader, write, tell, options, stop_at_end=options["stop_at_end"] or until_ms is not None)
        finally:
            reader.close()
    return 0


def _where(offsets: tuple[str, ...], *, is_early: bool) -> tuple[str | None, int | None]:
    """Where to begin, and before what time to stop. is_early: at the beginning, if nothing else is said.

    Raises: UsageError.
    """
    begins = [_NAMES.get(each, each) for each in offsets if not each.startswith("e@")]
    stops = [each for each in offsets if each.startswith("e@")]
    if len(begins) > 1 or len(stops) > 1:
        raise click.UsageError("-o: allowed: one place to begin at, and one e@ to stop at")
    until_ms = None
    if stops and (until_ms := _time_of(stops[0].removeprefix("e@"))) is None:
        raise click.UsageError(f"-o {stops[0]}: allowed: e@MILLISECONDS, e@ and {TIMES}")
    first = "beginning" if is_early or stops else None
    return (begins[0] if begins else first), until_ms


def _check(where: str | None, until_ms: int | None, options: dict[str, Any]) -> None:
    """Refuse what cannot be meant before the cluster is asked."""
    if until_ms is not None and options["group"]:
        raise click.UsageError("-o e@...: a group goes on for ever, or to the end: -e")
    if where is not None and where not in ("beginning", "end", "stored"):
        if re.fullmatch("(s@|[+-])?[0-9]{1,19}", where) is None and _since_ms(where) is None:
            raise click.UsageError(f"-o {where}: allowed: {OFFSETS}")
        if options["group"]:
            raise click.UsageError(f"-o {where}: a group begins at what it has committed, or at beginning or end")
    if options["group"] and options["partitions"]:
        raise click.UsageError("-p goes without --group: a group's members share the partitions")
    if where == "stored" and not options["group"]:
        raise click.UsageError("-o stored wants --group")


def _since_ms(where: str) -> int | None:
    """The time that it is about, if it is about one."""
    return _time_of(where.removeprefix("s@")) if where.startswith("s@") else time_ms(where)


def _time_of(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else time_ms(text)


def _reader(cluster: Cluster, where: str | None, options: dict[str, Any]) -> Reader:
    own = {
        "auto.offset.reset": "earliest" if where == "beginning" else "latest",
        "isolation.level": options["isolation_level"],
    }
    return Reader(cluster, options["group"], own)


def _places(there: dict[str, set[int]], only: tuple[int, ...]) -> list[Place]:
    """All partitions of the topics, or the ones named. Raises: ClickException for one that is not there."""
    for topic, numbers in there.items():
        if absent := set(only) - numbers:
            raise click.ClickException(f"topic {topic} has no partition {min(absent)}")
    return [(topic, number) for topic, numbers in there.items() for number in sorted(only or numbers)]


def _assign(reader: Reader, places: list[Place], where: str, until_ms: int | None) -> None:
    ends = reader.offsets(places, LATEST)
    starts = _starts(reader, places, where, ends)
    if until_ms is None:
        reader.read(starts, ends)
    else:
        reader.read(starts, _since(reader, places, until_ms, ends), only=True)


def _starts(reader: Reader, places: list[Place], where: str, ends: dict[Place, int]) -> dict[Place, int]:
    """Offsets for beginning, end, N, -N (so many before the end) and times (the first record then or later)."""
    if where == "beginning":
        return reader.offsets(places, EARLIEST)
    if where == "end":
        return ends
    since_ms = _since_ms(where)
    if since_ms is not None:
        return _since(reader, places, since_ms, ends)
    begins = reader.offsets(places, EARLIEST)
    if not where.startswith("-"):  # one that is gone would be refused, and the client go to the end
        _tell_of_no_such(int(where), ends)
        return {place: max(begins[place], int(where)) for place in places}
    return {place: max(begins[place], ends[place] + int(where)) for place in places}


def _since(reader: Reader, places: list[Place], time_ms: int, ends: dict[Place, int]) -> dict[Place, int]:
    """The first offsets of that time or later; the ends where there are none."""
    return {place: ends[place] if at < 0 else at for place, at in reader.offsets(places, time_ms).items()}


def _tell_of_no_such(offset: int, ends: dict[Place, int]) -> None:
    """Say where an offset is none yet. The client goes to the end there, as Kafka's does, and would show nothing."""
    short = [f"{topic}-{partition} at {end}" for (topic, partition), end in ends.items() if offset > end]
    if short:
        more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
        some = ", ".join(short[:MOST_NAMED])
        complain(f"nothing is at offset {offset} yet: the log ends before it ({some}{more})")


def _writer(options: dict[str, Any], *, many: bool) -> tuple[Write, Console | None]:
    """How records are printed, and the terminal that the live line is on, if there is one."""
    given = [name for name in ("form", "key_delimiter", "json_lines", "properties") if options[name]]
    if len(given) > 1:
        raise click.UsageError("one of --format, --key-delimiter, --json and --property")
    said = properties(options["properties"])
    key, value = (options[f"{each}_deserializer"] or said.get(f"{each}.deserializer") for each in ("key", "value"))
    unpacked = unpacked_by(options["packed"], key, value)
    read = consumed if unpacked is None else lambda message: unpacked(consumed(message))
    on_terminal = sys.stdout.isatty()
    is_plain = not given and not options["show_null"]
    if on_terminal and is_plain and options["delimiter"] == "\\n":
        return _shown(read, many=many)
    write: Write
    if is_plain and not on_terminal and unpacked is None:
        write = _values(unescaped(options["delimiter"]))
    else:
        as_bytes = _form(options, said, harmless if on_terminal else as_it_is)
        write = lambda messages: _put(as_bytes(read(each)) for each in messages)  # noqa: E731
    if options["quiet"] or not sys.stderr.isatty():
        return write, None
    from rich.console import Console

    return write, Console(stderr=True)


def _form(options: dict[str, Any], said: dict[str, str], clean: Clean) -> Callable[[Consumed], bytes]:
    null = NULL if options["show_null"] else b""
    if options["json_lines"]:
        return as_json
    if said:
        return printer(said, clean)
    if options["form"]:
        return formatter(options["form"], clean, null)
    return delimited(options["key_delimiter"], options["delimiter"], clean, null)


def _values(end: bytes) -> Write:
    """Values alone, into a pipe: the shortest way."""
    return lambda messages: _put((each.value() or b"") + end for each in messages)


def _put(pieces: Iterable[bytes]) -> None:
    out = sys.stdout.buffer
    out.write(b"".join(pieces))
    out.flush()


def _shown(read: Callable[[Message], Consumed], *, many: bool) -> tuple[Write, Console]:
    from rich.console import Console

    from kbroker.cli._screen import Screen

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not know all characters
    console = Console(highlight=False, soft_wrap=True)
    screen = Screen(lambda: console.width, with_topic=many)
    return lambda messages: console.print(screen.shown(map(read, messages))), console


def _live_line(console: Console | None, reader: Reader, options: dict[str, Any]) -> AbstractContextManager[Tell]:
    if console is None:
        return nullcontext(lambda count: None)
    from kbroker.cli._screen import live_line

    return live_line(console, reader, quiet=options["quiet"])


def _follow(reader: Reader, write: Write, tell: Tell, options: dict[str, Any], *, stop_at_end: bool) -> None:
    """Print until the end that there is now, the number asked for, none for as long as asked for, or Ctrl-C."""
    left, patience_ms = options["max_messages"], options["timeout_ms"]
    last_s = time.monotonic()
    while left is None or left > 0:
        if stop_at_end and reader.is_done():
            return
        if patience_ms is not None and time.monotonic() >= last_s + patience_ms / 1000:
            return
        messages = reader.poll(left)
        if messages:
            last_s = time.monotonic()
            write(messages)
            left = None if left is None else left - len(messages)
        tell(len(messages))
