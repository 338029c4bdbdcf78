"""What old clients cost: records into another message format, beside Apache Kafka 3.9.1, the last that knows old ones.

    scripts/bench conversion [--rounds N] [--megabytes N]

Two rows, of uncompressed records of 1 KB: down, a log of v2 batches fetched as v1 messages (Fetch v2); and up, sets of
v1 messages produced to a topic of v2 (Produce v2). Both brokers run at once and get their rounds in turn. Printed:
processor seconds of the broker's process for a GB of values, warm, and our ratio to Apache's, round by round, of which
the median decides. Budget: no more than Apache's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.brokers import Apache, Broker, Kbroker
from benchmarks.harness.rows import GB, KEEP, MB
from benchmarks.harness.wire import Connection, LoadError, Producer, batch, create_topics, frame, produce_frame
from protocol.headers import parse_response_header
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records import Record, legacy

RELEASE = "3.9.1"
MOST = 1.0
OLD_FETCH, OLD_PRODUCE = 2, 2
VALUE_BYTES, RECORDS = 1000, 60  # in a batch, or a set: what a producer with a little time sends
MESSAGE_BYTES = 34 + VALUE_BYTES  # v1, without a key
PARTITION_BYTES = 1 << 20
WARM_UP_BYTES = 1500 * MB  # a JVM compiles for the first of it


class OldApache(Apache):
    """The last release that converts."""

    release = RELEASE


def fetch_log(connection: Connection, end_offset: int) -> int:
    """Read a log as messages of v1 from its start to its end, a MiB at a time; bytes of values."""
    offset = 0
    while offset < end_offset:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES)
        topics = [FetchTopic(topic="down", partitions=[partition])]
        answer = connection.ask(FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics), OLD_FETCH)
        found = answer.responses[0].partitions[0]
        if found.error_code:
            raise LoadError(f"fetch at {offset}: error {found.error_code}")
        assert isinstance(found.records, memoryview | bytes), found
        count = len(found.records) // MESSAGE_BYTES  # the last one may be cut off
        first, magic = int.from_bytes(found.records[:8], "big"), found.records[legacy.MAGIC_AT]
        if not count or first > offset or magic != 1:
            raise LoadError(f"fetch at {offset}: {len(found.records)} bytes from offset {first} on, magic {magic}")
        offset = first + count
    return end_offset * VALUE_BYTES


class OldProducer:
    """A set of v1 messages again and again, five in flight."""

    def __init__(self, connection: Connection) -> None:
        value = batch(1, VALUE_BYTES)[-VALUE_BYTES:]
        messages = legacy.build_set([Record(at, 1000 + at, None, value) for at in range(RECORDS)], 1)
        data = [PartitionProduceData(index=0, records=bytes(messages))]
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name="up", partition_data=data)]
        )
        self._data = frame(request, OLD_PRODUCE)
        self._connection = connection

    def run(self, count: int) -> int:
        """So many sets, each acknowledged; bytes of values."""
        for at in range(count + 5):
            if at < count:
                self._connection.send_bytes(self._data)
            if at >= 5:
                self._check(self._connection.frame())
        return count * RECORDS * VALUE_BYTES

    def _check(self, answer: memoryview) -> None:
        _, start = parse_response_header(ProduceResponse, OLD_PRODUCE, answer)
        [topic] = ProduceResponse.decode(answer, OLD_PRODUCE, start).responses
        if topic.partition_responses[0].error_code:
            raise LoadError(f"produce: error {topic.partition_responses[0].error_code}")


def prepare(broker: Broker, megabytes: int) -> int:
    """Make the topics, and the log that is read; its end."""
    batches = megabytes * MB // (RECORDS * VALUE_BYTES)
    with broker.connect() as connection:
        create_topics(connection, ["down"])
        create_topics(connection, ["up"], configs=KEEP)
        Producer(connection, produce_frame("down", [batch(RECORDS, VALUE_BYTES)])).run(batches)
    return (batches + 1) * RECORDS


def cost(broker: Broker, load: Callable[[Connection], int]) -> float:
    """Processor seconds of a broker for a GB."""
    with broker.connect() as connection:
        before = broker.cpu_s()
        size = load(connection)
        return (broker.cpu_s() - before) / size * GB


def measure(brokers: list[Broker], name: str, load: Callable[[Connection], int], rounds: int, warm: int) -> bool:
    """One row; whether its budget holds."""
    ours, theirs = brokers
    for _ in range(warm):
        cost(theirs, load)
    cost(ours, load)
    costs = [(cost(ours, load), cost(theirs, load)) for _ in range(rounds)]
    ratio = statistics.median(mine / other for mine, other in costs)
    mine, other = (statistics.median(each) for each in zip(*costs, strict=True))
    each = ", ".join(f"{mine / other:.2f}" for mine, other in costs)
    print(f"{name}: kbroker {mine:.2f} s a GB, Apache {RELEASE} {other:.2f} s: {ratio:.2f}x ({each})", end="")
    print(f", at most {MOST:.2f}x: {'ok' if ratio <= MOST else 'MISSED'}", flush=True)
    return ratio <= MOST


def main() -> int:
    """Measure; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench conversion", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=250, help="of values, a round")
    arguments = parser.parse_args()
    warm = -(-WARM_UP_BYTES // (arguments.megabytes * MB))
    with tempfile.TemporaryDirectory(prefix="kbroker-conversion-") as name, ExitStack() as stack:
        brokers: list[Broker] = [Kbroker(Path(name, "kbroker"), {}), OldApache(Path(name, "apache"), {})]
        for broker in brokers:
            stack.enter_context(broker).launch_ready()
        [end_offset] = {prepare(broker, arguments.megabytes) for broker in brokers}
        sets = end_offset // RECORDS
        held = measure(brokers, "v2 to v1", lambda to: fetch_log(to, end_offset), arguments.rounds, warm)
        held &= measure(brokers, "v1 to v2", lambda to: OldProducer(to).run(sets), arguments.rounds, warm)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
