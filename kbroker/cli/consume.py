"""`kbroker consume`: the records of topics on standard output, from anywhere in the log to its end or for ever.

Options are kcat's, and the longer ones of kafka-console-consumer.sh. On a terminal each record is a line of its own
with where it is, its time, key, value and headers, over a live line of rate and lag (`_screen.py`); in a pipe it is the
value alone, as kcat prints it.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kbroker.cli import complain
from kbroker.cli._cluster import Cluster, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._records import as_it_is, as_json, delimited, formatter, harmless
from kbroker.cli._screen import Screen, live_line

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord

    Write = Callable[[Iterable[ConsumerRecord]], None]

POLL_MS = 250  # how long a look at an idle topic waits: as often as the live line moves
MOST_NAMED = 3  # partitions in one line
OFFSETS = "beginning, end, stored, N, -N, s@MILLISECONDS"


@click.command("consume")
@speaks_to_cluster
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
    wanted = [*topics, *more]
    if not wanted:
        raise click.UsageError("name a topic: -t TOPIC")
    where = "beginning" if options["from_beginning"] else options["offset"]
    _check(where, options)
    write, console = _writer(options, many=len(wanted) > 1)
    consumer = _consumer(cluster, where, options)
    try:
        for topic in wanted:
            if not consumer.partitions_for_topic(topic):
                raise click.ClickException(f"there is no topic {topic!r} at {cluster.bootstrap}")
        if options["group"]:
            consumer.subscribe(wanted)
        else:
            _assign(consumer, wanted, where or "end", options["partitions"])
        _follow(consumer, write, console, options)
    finally:
        consumer.close()
    return 0


def _check(where: str | None, options: dict[str, Any]) -> None:
    """Refuse what cannot be meant before anybody is asked."""
    if where is not None and where not in ("beginning", "end", "stored"):
        if re.fullmatch("(s@|[+-])?[0-9]{1,19}", where) is None:
            raise click.UsageError(f"-o {where}: allowed: {OFFSETS}")
        if options["group"]:
            raise click.UsageError(f"-o {where}: a group begins at what it has committed, or at beginning or end")
    if options["group"] and options["partitions"]:
        raise click.UsageError("-p goes without --group: a group's members share the partitions")
    if where == "stored" and not options["group"]:
        raise click.UsageError("-o stored wants --group")


def _consumer(cluster: Cluster, where: str | None, options: dict[str, Any]) -> KafkaConsumer:
    from kafka import KafkaConsumer

    own = {
        "group_id": options["group"],
        "auto_offset_reset": "earliest" if where == "beginning" else "latest",
        "enable_auto_commit": bool(options["group"]),
        "isolation_level": options["isolation_level"],
    }
    return KafkaConsumer(**cluster.options(KafkaConsumer.DEFAULT_CONFIG, **own))


def _assign(consumer: KafkaConsumer, topics: Iterable[str], where: str, only: tuple[int, ...]) -> None:
    """Take all partitions, or the ones named, and go to where it begins."""
    from kafka import TopicPartition

    places = []
    for topic in topics:
        there = consumer.partitions_for_topic(topic)
        if absent := set(only) - there:
            raise click.ClickException(f"topic {topic} has no partition {min(absent)}")
        places += [TopicPartition(topic, number) for number in sorted(only or there)]
    consumer.assign(places)
    if where == "beginning":
        consumer.seek_to_beginning()
    elif where == "end":
        consumer.seek_to_end()
    else:
        for place, offset in _starts(consumer, places, where).items():
            consumer.seek(place, offset)


def _starts(consumer: KafkaConsumer, places: list[TopicPartition], where: str) -> dict[TopicPartition, int]:
    """Offsets for N, -N (so many before the end) and s@TIME (the first at that time or later)."""
    ends, begins = _asked(consumer.end_offsets, places), _asked(consumer.beginning_offsets, places)
    if where.startswith("s@"):
        found = consumer.offsets_for_times(dict.fromkeys(places, int(where[2:])))
        return {place: ends[place] if at is None else at.offset for place, at in found.items()}
    if not where.startswith("-"):  # one that is gone would be refused, and the client go to the end
        _tell_of_no_such(int(where), ends)
        return {place: max(begins[place], int(where)) for place in places}
    return {place: max(begins[place], ends[place] + int(where)) for place in places}


def _tell_of_no_such(offset: int, ends: dict[TopicPartition, int]) -> None:
    """Say where an offset is none yet. The client goes to the end there, as Kafka's does, and would show nothing."""
    short = [f"{place.topic}-{place.partition} at {end}" for place, end in ends.items() if offset > end]
    if short:
        more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
        some = ", ".join(short[:MOST_NAMED])
        complain(f"nothing is at offset {offset} yet: the log ends before it ({some}{more})")


def _asked(ask: Callable[[Any], Any], places: Iterable[TopicPartition]) -> Any:
    """Offsets of partitions. Raises: ClickException for one without a leader, which the client forgets."""
    try:
        return ask(places)
    except KeyError as error:
        (place,) = error.args
        raise click.ClickException(f"{place.topic}-{place.partition} has no leader: is its broker away?") from None


def _writer(options: dict[str, Any], *, many: bool) -> tuple[Write, Console]:
    """How records are printed, and the terminal that the live line is on."""
    given = [name for name in ("form", "key_delimiter", "json_lines") if options[name]]
    if len(given) > 1:
        raise click.UsageError("one of --format, --key-delimiter and --json")
    on_terminal = sys.stdout.isatty()
    if on_terminal and not given and options["delimiter"] == "\\n":
        return _shown(many=many)
    clean = harmless if on_terminal else as_it_is
    as_bytes: Callable[[ConsumerRecord], bytes]
    if options["json_lines"]:
        as_bytes = as_json
    elif options["form"]:
        as_bytes = formatter(options["form"], clean)
    else:
        as_bytes = delimited(options["key_delimiter"], options["delimiter"], clean)
    out = sys.stdout.buffer

    def write(records: Iterable[ConsumerRecord]) -> None:
        out.write(b"".join(map(as_bytes, records)))
        out.flush()

    return write, Console(stderr=True)


def _shown(*, many: bool) -> tuple[Write, Console]:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not know all characters
    console = Console(highlight=False, soft_wrap=True)
    screen = Screen(lambda: console.width, with_topic=many)
    return lambda records: console.print(screen.shown(records)), console


def _follow(consumer: KafkaConsumer, write: Write, console: Console, options: dict[str, Any]) -> None:
    """Print until the end that there is now, the number asked for, or Ctrl-C."""
    left = options["max_messages"]
    ends: dict[TopicPartition, int] | None = None
    with live_line(console, consumer, quiet=options["quiet"]) as tell:
        while left is None or left > 0:
            polled = consumer.poll(timeout_ms=POLL_MS, max_records=left)
            records = [each for batch in polled.values() for each in batch]
            if records:
                write(records)
                left = None if left is None else left - len(records)
            tell(len(records))
            if options["stop_at_end"] and (assigned := consumer.assignment()):
                ends = ends or _asked(consumer.end_offsets, assigned)
                if all(consumer.position(place) >= ends.get(place, 0) for place in assigned):
                    return
