"""`kbroker perf`: how many records a second a cluster takes and gives. Options are near those of
kafka-producer-perf-test.sh and kafka-consumer-perf-test.sh.

What is measured is the cluster and librdkafka together, over the connection that there is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster
from kbroker.cli._librdkafka import (
    EARLIEST,
    LATEST,
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
from kbroker.cli._reader import Reader
from kbroker.cli._records import unescaped
from kbroker.cli._signals import ended_by_signals
from kbroker.cli._tables import show_done, show_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

MEGABYTE = 1 << 20
LOOK_S = 0.1
REPORT_S = 5.0  # between lines of what has been done so far
MOST_TIMES = 500_000  # that are kept, as Apache's tool does: of more records, of each second, third ... alone
PERCENTILES = (0.5, 0.95, 0.99, 0.999)

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of sentences.")
TOPIC = click.option("--topic", "-t", required=True, help="A topic.")


@click.group("perf")
def perf() -> None:
    """Measure how fast records are written and read.

    Exit code: 0 done, 2 it could not be done, 130 stopped by Ctrl-C.
    """


class _WithProps(click.Command):
    """Takes `--producer-props KEY=VALUE KEY=VALUE`, as Apache's tool does, for an -X before each."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What is left of the command line."""
        words: list[str] = []
        is_setting = False
        for word in args:
            is_setting = word == "--producer-props" or (is_setting and not word.startswith("-") and "=" in word)
            if is_setting and word != "--producer-props":
                words.append("-X")
            if word != "--producer-props":
                words.append(word)
        return super().parse_args(ctx, words)


@perf.command("produce", cls=_WithProps)
@carries_records
@TOPIC
@click.option("--num-records", type=Number(1), required=True, help="How many.")
@click.option("--record-size", type=Number(1), help="Bytes of each; all are alike at random.")
@click.option("--payload-file", type=click.Path(exists=True, dir_okay=False), help="Their values instead, in turn.")
@click.option(
    "--payload-delimiter", default="\\n", metavar="STRING", help="Between values of the file.  [default: \\n]"
)
@click.option("--throughput", type=Number(-1), default=-1, help="Records a second at most; -1: as fast as it goes.")
@AS_JSON
def produce(cluster: Cluster, topic: str, as_json: bool, **options: Any) -> int:
    """Write records, and say how many a second, and how long until they were acknowledged."""
    if (options["record_size"] is None) == (options["payload_file"] is None):
        raise click.UsageError("say --record-size, or --payload-file")
    if setting(cluster, "transactional.id") is not None:
        raise click.UsageError("-X transactional.id=...: records are measured without transactions")
    if options["throughput"] == 0:
        raise click.UsageError("--throughput 0: allowed: -1, or at least 1")
    with ended_by_signals():
        writing = _Writing(cluster, topic, options["num_records"], as_json)
        figures = writing.all(_payloads(options), options["throughput"])
    show_done(_sent(figures), figures, as_json=as_json)
    return 0


def _payloads(options: dict[str, Any]) -> Iterator[bytes]:
    """Without end. Raises: ClickException for a file without any."""
    if options["payload_file"] is None:
        return cycle([os.urandom(options["record_size"])])
    with open(options["payload_file"], "rb") as file:
        values = [each for each in file.read().split(unescaped(options["payload_delimiter"]) or b"\n") if each]
    if not values:
        raise click.ClickException(f"{options['payload_file']}: no value is in it")
    return cycle(values)


class _Writing:
    """Records on their way, and how long they took."""

    def __init__(self, cluster: Cluster, topic: str, count: int, is_quiet: bool) -> None:
        """count: of the records to be sent. Raises: ClickException."""
        from confluent_kafka import Producer

        self._cluster, self._topic, self._is_quiet = cluster, topic, is_quiet
        self._heard = Heard(cluster.bootstrap)
        self._count = count
        self._every = -(-count // MOST_TIMES)
        self._took_s: list[float] = []  # of one in every so many
        self._done, self._all_s, self._longest_s, self._bytes = 0, 0.0, 0.0, 0
        self._error: KafkaError | None = None
        own = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "on_delivery": self._answered}
        self._producer = client_of(Producer, cluster, self._heard, own)
        if topic_of(self._producer, cluster, self._heard, topic, patience_s=TOPIC_S) is None:
            raise click.ClickException(f"there is no topic {topic!r} at {cluster.bootstrap}")

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = self._error or error
        else:
            took_s = message.latency()
            if self._done % self._every == 0:
                self._took_s.append(took_s)
            self._done += 1
            self._all_s += took_s
            self._longest_s = max(self._longest_s, took_s)
            self._bytes += len(message)

    def all(self, payloads: Iterator[bytes], a_second: int) -> dict[str, Any]:
        """Send them; the figures. Raises: ClickException."""
        begun_s = told_s = time.monotonic()
        try:
            for number in range(self._count):
                self._send(next(payloads))
                now_s = time.monotonic()
                if a_second > 0:
                    self._wait_until(begun_s + number / a_second)
                elif number % 100 == 0:
                    self._poll(0)
                if now_s >= told_s + REPORT_S:
                    told_s = now_s
                    self._show(now_s - begun_s)
            while self._producer.flush(LOOK_S):
                self._poll(0)
            self._poll(0)
        finally:
            self._producer.purge()
        return self._figures(time.monotonic() - begun_s)

    def _send(self, value: bytes) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.produce(self._topic, value)
                return
            except BufferError:  # too many are on their way
                self._poll(LOOK_S)
            except KafkaException as error:
                raise KafkaException(why_ended(self._producer, error.args[0])) from None

    def _wait_until(self, due_s: float) -> None:
        self._poll(0)
        while (left_s := due_s - time.monotonic()) > 0:
            self._poll(min(left_s, LOOK_S))

    def _poll(self, wait_s: float) -> None:
        self._producer.poll(wait_s)
        self._heard.check()
        if self._error is not None:
            raise click.ClickException(f"a record to {self._topic}: {said(self._error, self._cluster.bootstrap)}")

    def _show(self, passed_s: float) -> None:
        if not self._is_quiet:
            click.echo(_sent(self._figures(passed_s)), err=True)

    def _figures(self, passed_s: float) -> dict[str, Any]:
        took_s, count = sorted(self._took_s), self._done
        last = len(took_s) - 1
        at = {_percentile(share): _ms(took_s[min(last, int(len(took_s) * share))]) for share in PERCENTILES if took_s}
        return {
            "records": count,
            "seconds": round(passed_s, 3),
            "records_per_second": round(count / passed_s, 1),
            "mb_per_second": round(self._bytes / MEGABYTE / passed_s, 2),
            "latency_avg_ms": _ms(self._all_s / count) if count else None,
            "latency_max_ms": _ms(self._longest_s) if count else None,
            **at,
        }


def _percentile(share: float) -> str:
    return f"latency_p{share * 100:g}_ms".replace(".", "")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _sent(figures: dict[str, Any]) -> str:
    """As Apache's tool puts it."""
    text = (
        f"{figures['records']} records sent, {figures['records_per_second']:.1f} records/sec "
        f"({figures['mb_per_second']:.2f} MB/sec)"
    )
    if figures["latency_avg_ms"] is None:
        return text
    text += f", {figures['latency_avg_ms']} ms avg latency, {figures['latency_max_ms']} ms max latency"
    shares = (f"{figures[_percentile(share)]} ms {share * 100:g}th" for share in PERCENTILES)
    return f"{text}, {', '.join(shares)}."


@perf.command("consume")
@carries_records
@TOPIC
@click.option("--num-records", "--messages", type=Number(1), required=True, help="How many.")
@click.option("--group", help="As a member of this group; alone, of all partitions, without.")
@click.option("--from-latest", is_flag=True, help="Begin at the end of the log, not at its beginning.")
@click.option("--timeout", type=Number(1), default=10_000, show_default=True, help="Stop after so many ms without any.")
@AS_JSON
def consume(cluster: Cluster, topic: str, num_records: int, as_json: bool, **options: Any) -> int:
    """Read records, and say how many a second."""
    own = {"auto.offset.reset": "latest" if options["from_latest"] else "earliest"}
    with ended_by_signals():
        reader = Reader(cluster, options["group"], own)
        try:
            places = [(topic, number) for number in sorted(reader.partitions(topic))]
            if options["group"]:
                reader.join([topic])
            else:
                ends = reader.offsets(places, LATEST)
                reader.read(ends if options["from_latest"] else reader.offsets(places, EARLIEST), ends)
            figures = _read(reader, num_records, options["timeout"] / 1000)
        finally:
            reader.close()
    if as_json:
        show_json(figures)
    else:
        click.echo(
            f"{figures['records']} records read, {figures['records_per_second']:.1f} records/sec "
            f"({figures['mb_per_second']:.2f} MB/sec) in {figures['seconds']:.3f} s"
        )
        if figures["records"] < num_records:
            click.echo(f"No more came within {options['timeout']} ms.", err=True)
    return 0


def _read(reader: Reader, wanted: int, patience_s: float) -> dict[str, Any]:
    """Read so many, or until none come for a while; seconds are counted from the start to the last that came."""
    count = size = 0
    begun_s = last_s = time.monotonic()
    while count < wanted and time.monotonic() < last_s + patience_s:
        messages = reader.poll(wanted - count)
        if messages:
            last_s = time.monotonic()
            count += len(messages)
            size += sum(map(len, messages))
    passed_s = max(last_s - begun_s, sys.float_info.epsilon)
    return {
        "records": count,
        "bytes": size,
        "seconds": round(passed_s, 3),
        "records_per_second": round(count / passed_s, 1),
        "mb_per_second": round(size / MEGABYTE / passed_s, 2),
    }
