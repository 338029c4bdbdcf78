"""`kbroker consume`: the records of topics on standard output, from anywhere in the log to its end or for ever.

Options are kcat's, and the longer ones of kafka-console-consumer.sh. On a terminal each record is a line of its own
with where it is, its time, key, value and headers, over a live line of rate and lag (`_screen.py`); in a pipe it is the
value alone, as kcat prints it.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli import complain
from kbroker.cli._cluster import Cluster
from kbroker.cli._librdkafka import EARLIEST, LATEST, Place, carries_records
from kbroker.cli._numbers import Number
from kbroker.cli._reader import Reader
from kbroker.cli._records import Consumed, as_it_is, as_json, consumed, delimited, formatter, harmless, unescaped
from kbroker.cli._signals import ended_by_signals
from kbroker.cli._times import TIMES, time_ms

if TYPE_CHECKING:
    from confluent_kafka import Message
    from rich.console import Console

    Write = Callable[[Collection[Message]], None]
    Tell = Callable[[int], None]

MOST_NAMED = 3  # partitions in one line
OFFSETS = f"beginning, end, stored, N, -N, s@MILLISECONDS, {TIMES}"


@click.command("consume")
@carries_records
@click.argument("more", metavar="[TOPIC]...", nargs=-1)
@click.option("--topic", "-t", "topics", multiple=True, help="A topic; may be repeated.")
@click.option("--partition", "-p", "partitions", type=Number(), multiple=True, help="Only this partition.")
@click.option("--offset", "-o", default=None, metavar="WHERE", help=f"Where to begin: {OFFSETS}.  [default: end]")
@click.option("--from-beginning", is_flag=True, help="The same as -o beginning.")
@click.option("--exit", "-e", "stop_at_end", is_flag=True, help="Stop at what is the end of the log now.")
@click.option("--max-messages", "-c", type=Number(1), metavar="N", help="Stop after so many records.")
@click.option("--group", "-G", help="Consume as a member of this group, and commit.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted"
)
@click.option("--format", "-f", "form", metavar="FORMAT", help="%s value, %k key, %t %p %o %T %h, \\n ... as kcat.")
@click.option("--key-delimiter", "-K", metavar="STRING", help="Print keys too, and this between key and value.")
@click.option("--delimiter", "-D", default="\\n", metavar="STRING", help="After each value.  [default: \\n]")
@click.option("--json", "-J", "json_lines", is_flag=True, help="One line of JSON for each record.")
@click.option("--quiet", "-q", is_flag=True, help="No live line.")
def consume(cluster: Cluster, more: tuple[str, ...], topics: tuple[str, ...], **options: Any) -> int:
    """Print the records of topics, to their end or for ever.

    Exit code: 0 done, 2 it could not be done, 130 stopped by Ctrl-C.
    """
    wanted = list(dict.fromkeys([*topics, *more]))
    if not wanted:
        raise click.UsageError("name a topic: -t TOPIC")
    where = "beginning" if options["from_beginning"] else options["offset"]
    _check(where, options)
    write, console = _writer(options, many=len(wanted) > 1)
    with ended_by_signals():
        reader = _reader(cluster, where, options)
        try:
            there = {topic: reader.partitions(topic) for topic in wanted}
            if options["group"]:
                reader.join(wanted)
            else:
                places = _places(there, options["partitions"])
                ends = reader.offsets(places, LATEST)
                reader.read(_starts(reader, places, where or "end", ends), ends)
            with _live_line(console, reader, options) as tell:
                _follow(reader, write, tell, options)
        finally:
            reader.close()
    return 0


def _check(where: str | None, options: dict[str, Any]) -> None:
    """Refuse what cannot be meant before the cluster is asked."""
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
    match = re.fullmatch("s@([0-9]{1,19})", where)
    return int(match[1]) if match else time_ms(where.removeprefix("s@"))


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


def _starts(reader: Reader, places: list[Place], where: str, ends: dict[Place, int]) -> dict[Place, int]:
    """Offsets for beginning, end, N, -N (so many before the end) and times (the first record then or later)."""
    if where == "beginning":
        return reader.offsets(places, EARLIEST)
    if where == "end":
        return ends
    since_ms = _since_ms(where)
    if since_ms is not None:
        found = reader.offsets(places, since_ms)
        return {place: ends[place] if at < 0 else at for place, at in found.items()}
    begins = reader.offsets(places, EARLIEST)
    if not where.startswith("-"):  # one that is gone would be refused, and the client go to the end
        _tell_of_no_such(int(where), ends)
        return {place: max(begins[place], int(where)) for place in places}
    return {place: max(begins[place], ends[place] + int(where)) for place in places}


def _tell_of_no_such(offset: int, ends: dict[Place, int]) -> None:
    """Say where an offset is none yet. The client goes to the end there, as Kafka's does, and would show nothing."""
    short = [f"{topic}-{partition} at {end}" for (topic, partition), end in ends.items() if offset > end]
    if short:
        more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
        some = ", ".join(short[:MOST_NAMED])
        complain(f"nothing is at offset {offset} yet: the log ends before it ({some}{more})")


def _writer(options: dict[str, Any], *, many: bool) -> tuple[Write, Console | None]:
    """How records are printed, and the terminal that the live line is on, if there is one."""
    given = [name for name in ("form", "key_delimiter", "json_lines") if options[name]]
    if len(given) > 1:
        raise click.UsageError("one of --format, --key-delimiter and --json")
    on_terminal = sys.stdout.isatty()
    if on_terminal and not given and options["delimiter"] == "\\n":
        return _shown(many=many)
    write: Write
    if not given and not on_terminal:
        write = _values(unescaped(options["delimiter"]))
    else:
        write = _formed(_form(options, harmless if on_terminal else as_it_is))
    if options["quiet"] or not sys.stderr.isatty():
        return write, None
    from rich.console import Console

    return write, Console(stderr=True)


def _form(options: dict[str, Any], clean: Callable[[bytes], bytes]) -> Callable[[Consumed], bytes]:
    if options["json_lines"]:
        return as_json
    if options["form"]:
        return formatter(options["form"], clean)
    return delimited(options["key_delimiter"], options["delimiter"], clean)


def _formed(as_bytes: Callable[[Consumed], bytes]) -> Write:
    return lambda messages: _put(as_bytes(consumed(each)) for each in messages)


def _values(end: bytes) -> Write:
    """Values alone, into a pipe: the shortest way."""
    return lambda messages: _put((each.value() or b"") + end for each in messages)


def _put(pieces: Iterable[bytes]) -> None:
    out = sys.stdout.buffer
    out.write(b"".join(pieces))
    out.flush()


def _shown(*, many: bool) -> tuple[Write, Console]:
    from rich.console import Console

    from kbroker.cli._screen import Screen

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not know all characters
    console = Console(highlight=False, soft_wrap=True)
    screen = Screen(lambda: console.width, with_topic=many)
    return lambda messages: console.print(screen.shown(map(consumed, messages))), console


def _live_line(console: Console | None, reader: Reader, options: dict[str, Any]) -> AbstractContextManager[Tell]:
    if console is None:
        return nullcontext(lambda count: None)
    from kbroker.cli._screen import live_line

    return live_line(console, reader, quiet=options["quiet"])


def _follow(reader: Reader, write: Write, tell: Tell, options: dict[str, Any]) -> None:
    """Print until the end that there is now, the number asked for, or Ctrl-C."""
    left = options["max_messages"]
    while left is None or left > 0:
        if options["stop_at_end"] and reader.is_done():
            return
        messages = reader.poll(left)
        if messages:
            write(messages)
            left = None if left is None else left - len(messages)
        tell(len(messages))
