"""`kbroker produce`: records from standard input or files to a topic. Options are kcat's.

Each line is a record, or each file with --files; keys come from a delimiter in the line or are the same for all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster
from kbroker.cli._elsewhere import Also, ReadFile
from kbroker.cli._librdkafka import (
    TOPIC_S,
    Heard,
    carries_records,
    client_of,
    said,
    setting,
    topic_of,
    why_ended,
)
from kbroker.cli._numbers import Number
from kbroker.cli._properties import Headers, Piece, line_reader, properties
from kbroker.cli._records import unescaped
from kbroker.cli._signals import ended_by_signals
from kbroker.cli._tables import show_json
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

READ_BYTES = 64 << 10
FLUSH_SECONDS = 60.0
FLUSH_SECONDS_AFTER_CTRL_C = 1.0  # for what is on its way: who ends a command does not wait for a broker that hangs
LOOK_S = 0.1  # how often a wait looks whether it was ended
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MOST_BYTES = 1 << 20  # of a record
_NO_FILE = " Records are lines of standard input, or in files; -t names the topic."


class _Shape(NamedTuple):
    """How a piece of input becomes a record. partition: -1 by the key."""

    topic: str
    partition: int
    key: bytes | None
    key_delimiter: bytes | None
    headers: Headers | None
    null_empty: bool
    read: Callable[[bytes], Piece] | None

    def give(self, produce: Callable[..., None], piece: bytes) -> None:
        """Send a record, by the client's function. Raises: ValueError for a piece that is not as --property says."""
        topic, partition, key, key_delimiter, headers, null_empty, read = self
        value: bytes | None = piece
        if read is not None:
            said = read(piece)
            key, value, headers = (
                key if said.key is None else said.key,
                said.value,
                (headers or []) + (said.headers or []),
            )
        elif key_delimiter is not None and key_delimiter in piece:
            key, _, value = piece.partition(key_delimiter)
        if null_empty:
            key, value = key or None, value or None
        if headers:
            produce(topic, value, key, partition, headers=headers)
        else:
            produce(topic, value, key, partition)


@click.command("produce")
@carries_records
@click.argument("paths", nargs=-1, type=ReadFile(lambda path: _NO_FILE))
@click.option("--topic", "-t", required=True, help="Where to.")
@click.option("--partition", "-p", type=Number(0), help="To this partition; by the key if left out.")
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-delimiter", "-K", metavar="STRING", help="What is before it in a line is the record's key.")
@click.option("--delimiter", "-D", default="\\n", metavar="STRING", help="Between records.  [default: \\n]")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME[=VALUE]", help="May be repeated.")
@click.option(
    "--property",
    "properties",
    cls=Also,
    also=("--reader-property",),
    multiple=True,
    metavar="KEY=VALUE",
    help="parse.key=true, key.separator=: ... as kafka-console-producer.sh has them.",
)
@click.option(
    "--compression-codec",
    "-z",
    type=click.Choice(CODECS),
    is_flag=False,
    flag_value="gzip",  # as kafka-console-producer.sh has it
    default="none",
    show_default=True,
)
@click.option(
    "--acks",
    cls=Also,
    also=("--request-required-acks",),
    type=click.Choice(["all", "-1", "1", "0"]),
    default="all",
    show_default=True,
)
@click.option("--null-empty", "-Z", is_flag=True, help="An empty key or value is null: a tombstone.")
@click.option("--lines", "-l", is_flag=True, help="Each line of a file is a record; without it, each file.")
@click.option("--max-messages", "-c", type=Number(1), metavar="N", help="Stop after so many records.")
@click.option("--json", "as_json", is_flag=True, help="Say at the end, as a JSON document, how many were sent.")
def produce(cluster: Cluster, paths: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Write standard input to a topic, a record for each line; or files.

    Exit code: 0 all records were acknowledged, 2 something was not.
    """
    delimiter = unescaped(options["delimiter"])
    if not delimiter:
        raise click.UsageError("--delimiter: at least one character is allowed")
    shape = _Shape(
        options["topic"],
        -1 if options["partition"] is None else options["partition"],
        None if options["key"] is None else options["key"].encode(),
        None if options["key_delimiter"] is None else unescaped(options["key_delimiter"]),
        [_header(each) for each in options["headers"]] or None,
        options["null_empty"],
        line_reader(properties(options["properties"])) if options["properties"] else None,
    )
    if shape.read is not None and shape.key_delimiter is not None:
        raise click.UsageError("one of --key-delimiter and --property")
    pieces = _at_most(options["max_messages"], _pieces(paths, delimiter, lines=options["lines"]))
    with ended_by_signals():
        sent = _Sending(cluster, shape, options).all(pieces)
    if as_json:
        show_json({"topic": shape.topic, "records": sent})
    elif sys.stderr.isatty():
        click.echo(f"{sent:,} record{'s' * (sent != 1)} to {shape.topic}", err=True)
    return 0


class _RefusedRecord(click.ClickException):
    """A record is not what it has to be; those before it are sent all the same."""


class _Sending:
    """Records on their way; the first that fails ends it."""

    def __init__(self, cluster: Cluster, shape: _Shape, options: dict[str, Any]) -> None:
        """Raises: ClickException, KafkaException."""
        from confluent_kafka import Producer

        own = {
            "acks": options["acks"],
            "compression.type": options["compression_codec"],
            "linger.ms": 5,
            "enable.idempotence": options["acks"] in ("all", "-1"),
            "message.max.bytes": MOST_BYTES,
            "partitioner": "murmur2_random",  # as Java's clients choose: a key has one partition, for all clients
            "delivery.report.only.error": True,
            "on_delivery": self._failed,
        }
        self._cluster = cluster
        self._shape = shape
        self._heard = Heard(cluster.bootstrap)
        self._error: KafkaError | None = None
        self._producer: Producer = client_of(Producer, cluster, self._heard, own)
        found = topic_of(self._producer, cluster, self._heard, shape.topic, patience_s=TOPIC_S)
        if found is None:
            raise click.ClickException(f"there is no topic {shape.topic!r} at {cluster.bootstrap}")
        self._partitions = len(found.partitions)
        self._sent = 0
        self._in_transaction = setting(cluster, "transactional.id") is not None
        if self._in_transaction:
            self._producer.init_transactions(FLUSH_SECONDS)
            self._producer.begin_transaction()

    def all(self, pieces: Iterator[list[bytes]]) -> int:
        """Send until the input ends; how many were. pieces: as many at a time as came in.

        Raises: ClickException; KafkaException where the client cannot go on.
        """
        try:
            for some in pieces:
                self._send(some)
                self._producer.poll(0)
                self._check()
            if self._flush(FLUSH_SECONDS):
                said = f"not all of {self._sent} records were acknowledged within {FLUSH_SECONDS:g} s"
                raise click.ClickException(said)
            if self._in_transaction:
                self._producer.commit_transaction(FLUSH_SECONDS)
        except _RefusedRecord as refused:
            if self._give_up(FLUSH_SECONDS):
                left = f"not all records before it were acknowledged within {FLUSH_SECONDS:g} s"
                raise click.ClickException(f"{refused.message}; {left}") from None
            raise
        except BaseException:
            self._give_up(FLUSH_SECONDS_AFTER_CTRL_C)
            raise
        finally:
            self._producer.purge()  # or its end waits for them
        return self._sent

    def _give_up(self, seconds: float) -> bool:
        """Abort the transaction; without one, have what was read before sent. Returns: whether some of it was not."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException, click.ClickException):
            if not self._in_transaction:
                return self._flush(seconds)
            self._producer.abort_transaction(seconds)
            return False
        return not self._in_transaction

    def _send(self, pieces: list[bytes]) -> None:
        """Raises: ClickException."""
        from confluent_kafka import KafkaException

        shape, produce = self._shape, self._producer.produce
        topic, partition, key, key_delimiter, headers, null_empty, read = shape
        if pieces and partition >= self._partitions:
            raise self._not_sent("record 1", f"Unrecognized partition {partition} for topic {topic}")
        is_plain = key_delimiter is None and not null_empty and not headers and read is None
        for piece in pieces:
            self._sent += 1
            try:
                if is_plain:
                    produce(topic, piece, key, partition)
                else:
                    shape.give(produce, piece)
            except BufferError:  # too many are on their way
                self._send_later(piece)
            except KafkaException as error:
                raise self._refused(len(piece), error.args[0]) from None
            except ValueError as error:
                raise self._not_sent(f"record {self._sent}", str(error), _RefusedRecord) from None

    def _refused(self, size: int, error: KafkaError) -> click.ClickException:
        """By the client, before it is sent; or the client has ended."""
        which = f"record {self._sent}"
        if error.code() == error.MSG_SIZE_TOO_LARGE:
            why = f"MESSAGE_TOO_LARGE: it has {size} bytes; -X max.request.size=N allows more than {MOST_BYTES}"
            return self._not_sent(which, why, _RefusedRecord)
        return self._not_sent(which, said(why_ended(self._producer, error), self._cluster.bootstrap))

    def _send_later(self, piece: bytes) -> None:
        while True:
            self._producer.poll(LOOK_S)
            self._check()
            with suppress(BufferError):
                self._shape.give(self._producer.produce, piece)
                return

    def _flush(self, seconds: float) -> bool:
        """Wait until all are acknowledged; whether some are not. Raises: ClickException for one that failed."""
        end_s = time.monotonic() + seconds
        while self._producer.flush(min(LOOK_S, seconds)) and time.monotonic() < end_s:
            self._check()
        self._check()
        return len(self._producer) > 0

    def _check(self) -> None:
        self._heard.check()
        if self._error is not None:
            raise self._not_sent("a record", said(self._error, self._cluster.bootstrap))

    def _failed(self, error: KafkaError, message: Message) -> None:
        self._error = self._error or error

    def _not_sent(
        self, which: str, why: str, kind: type[click.ClickException] = click.ClickException
    ) -> click.ClickException:
        return kind(f"{which} to {self._shape.topic}: {why}")


def _at_most(most: int | None, pieces: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """As many, and then no more is asked for: at a terminal that would wait for a line."""
    while most is None or most > 0:
        some = next(pieces, None)
        if some is None:
            return
        yield some if most is None else some[:most]
        most = None if most is None else most - len(some)


def _pieces(paths: tuple[str, ...], delimiter: bytes, *, lines: bool) -> Iterator[list[bytes]]:
    if not paths:
        if sys.stdin.isatty():
            click.echo("Type records, one a line; Ctrl-D ends.", err=True)
        yield from _split(sys.stdin.buffer, delimiter)
    for path in paths:
        with open(path, "rb") as file:
            if lines:
                yield from _split(file, delimiter)
            else:
                yield [file.read()]


def _split(file: IO[bytes], delimiter: bytes) -> Iterator[list[bytes]]:
    """Pieces as they come in: a line typed is a record sent. Nothing behind the last delimiter is no record."""
    rest = b""
    while data := file.read1(READ_BYTES):  # type: ignore[attr-defined]  # both are buffered readers
        *whole, rest = (rest + data).split(delimiter)
        yield whole
    if rest:
        yield [rest]


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise click.UsageError(f"--header {text}: write it as NAME=VALUE, or NAME")
    return name, value.encode() if equals else None
