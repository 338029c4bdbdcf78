"""`kbroker produce`: records from standard input or files to a topic. Options are kcat's.

Each line is a record, or each file with --files; keys come from a delimiter in the line or are the same for all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster, said_by_client, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._records import unescaped
from kbroker.cli._tables import show_json
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kafka import KafkaProducer

READ_BYTES = 64 << 10
FLUSH_SECONDS = 60
FLUSH_SECONDS_AFTER_CTRL_C = 1  # for what is on its way: who ends a command does not wait for a broker that hangs
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class _Shape(NamedTuple):
    """How a piece of input becomes a record."""

    topic: str
    partition: int | None
    key: bytes | None
    key_delimiter: bytes | None
    headers: list[tuple[str, bytes]]
    null_empty: bool

    def record(self, piece: bytes) -> dict[str, Any]:
        """The arguments of the producer's send."""
        key, value = self.key, piece
        if self.key_delimiter is not None and self.key_delimiter in piece:
            key, _, value = piece.partition(self.key_delimiter)
        return {
            "topic": self.topic,
            "partition": self.partition,
            "key": None if self.null_empty and not key else key,
            "value": None if self.null_empty and not value else value,
            "headers": self.headers,
        }


@click.command("produce")
@speaks_to_cluster
@click.argument("paths", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--topic", "-t", required=True, help="Where to.")
@click.option("--partition", "-p", type=Number(0), help="To this partition; by the key if left out.")
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-delimiter", "-K", metavar="STRING", help="What is before it in a line is the record's key.")
@click.option("--delimiter", "-D", default="\\n", metavar="STRING", help="Between records.  [default: \\n]")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--compression-codec", "-z", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
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
        options["partition"],
        None if options["key"] is None else options["key"].encode(),
        None if options["key_delimiter"] is None else unescaped(options["key_delimiter"]),
        [_header(each) for each in options["headers"]],
        options["null_empty"],
    )
    pieces = _pieces(paths, delimiter, lines=options["lines"])
    sending = _Sending(_producer(cluster, options), shape)
    try:
        sent = sending.all(pieces, options["max_messages"])
    except _NotSentError as failed:
        is_value = isinstance(failed.error, AssertionError | ValueError)
        why = str(failed.error) if is_value else said_by_client(failed.error, cluster.bootstrap)
        raise click.ClickException(f"record {failed.number} to {shape.topic}: {why}") from None
    if as_json:
        show_json({"topic": shape.topic, "records": sent})
    elif sys.stderr.isatty():
        click.echo(f"{sent:,} record{'s' * (sent != 1)} to {shape.topic}", err=True)
    return 0


class _NotSentError(Exception):
    """A record was not acknowledged. number: from 1."""

    def __init__(self, number: int, error: Exception) -> None:
        self.number = number
        self.error = error


class _Sending:
    """Records on their way; the first that fails ends it."""

    def __init__(self, producer: KafkaProducer, shape: _Shape) -> None:
        self._producer = producer
        self._shape = shape
        self._failed: _NotSentError | None = None

    def all(self, pieces: Iterator[bytes], most: int | None) -> int:
        """Send until the input ends; how many were. Raises: _NotSentError, ClickException."""
        from kafka.errors import KafkaError, KafkaTimeoutError

        sent = 0
        patience_s = FLUSH_SECONDS
        try:
            for piece in islice(pieces, most):  # which asks for no more: at a terminal that would wait for a line
                if self._failed:
                    break
                sent += 1
                try:
                    self._producer.send(**self._shape.record(piece)).add_errback(self._fail, sent)
                except (KafkaError, AssertionError, ValueError) as error:
                    raise _NotSentError(sent, error) from None
            self._producer.flush(timeout=FLUSH_SECONDS)
        except KafkaTimeoutError:
            patience_s = 0
            if not self._failed:
                said = f"not all of {sent} records were acknowledged within {FLUSH_SECONDS} s"
                raise click.ClickException(said) from None
        except KeyboardInterrupt:
            patience_s = FLUSH_SECONDS_AFTER_CTRL_C
            raise
        finally:
            with suppress(KafkaTimeoutError):  # what it has to say is said by now
                self._producer.close(timeout=0 if self._failed else patience_s)
        if self._failed is not None:
            raise self._failed
        return sent

    def _fail(self, number: int, error: Exception) -> None:
        self._failed = self._failed or _NotSentError(number, error)


def _producer(cluster: Cluster, options: dict[str, Any]) -> KafkaProducer:
    from kafka import KafkaProducer

    acks = options["acks"]
    own = {
        "acks": acks if acks == "all" else int(acks),
        "compression_type": None if options["compression_codec"] == "none" else options["compression_codec"],
        "max_block_ms": 10_000,  # for a topic that is not there and is not made
        "linger_ms": 5,
        "enable_idempotence": acks == "all",
    }
    return KafkaProducer(**cluster.options(KafkaProducer.DEFAULT_CONFIG, **own))


def _pieces(paths: tuple[str, ...], delimiter: bytes, *, lines: bool) -> Iterator[bytes]:
    if not paths:
        if sys.stdin.isatty():
            click.echo("Type records, one a line; Ctrl-D ends.", err=True)
        yield from _split(sys.stdin.buffer, delimiter)
    for path in paths:
        with open(path, "rb") as file:
            if lines:
                yield from _split(file, delimiter)
            else:
                yield file.read()


def _split(file: IO[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Pieces as they come in: a line typed is a record sent. Nothing behind the last delimiter is no record."""
    rest = b""
    while data := file.read1(READ_BYTES):  # type: ignore[attr-defined]  # both are buffered readers
        *whole, rest = (rest + data).split(delimiter)
        yield from whole
    if rest:
        yield rest


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:  # the client library sends no header without a value
        raise click.UsageError(f"--header {text}: write it as NAME=VALUE")
    return name, value.encode()
