"""`scripts/bench pipeline_at_size`: five million records of every kind, archived, replayed, audited: no difference.

Apache Kafka 3.9.1 holds them, for it writes the old formats and compacts: v2 batches in every codec, v0 and v1 message
sets, transactions of which a third is aborted, a compacted topic; skewed keys, late timestamps, nulls, empty values and
headers. kbroker gets them, by a replay and by a mirror. Exit code: 0 if nothing differs.

    scripts/bench pipeline_at_size [--records N]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count as count_up
from pathlib import Path
from typing import Any

from benchmarks.harness.brokers import OURS, started
from benchmarks.pipeline import scratch
from compat_tests.apache import zookeeper_cluster
from compat_tests.waiting import eventually
from kbroker.log.checkpoints import parse_offsets
from kbroker.pipeline import archive, audit, mirror, replay, session
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch
from tests.processes import Client

T0 = 1_700_000_000_000
KEEP = {"retention.ms": "-1"}
SHARES = {"mixed": 40, "v0": 15, "v1": 15, "transactions": 15, "compacted": 15}
"""Percent of the records."""
PARTITIONS, RUN = 2, 500
CODECS = {"mixed": 5, "v0": 4, "v1": 4, "compacted": 5}
"""How many of the codecs, from 0 on: the old formats have no zstd."""


def main() -> int:
    """Fill, copy, compare; 1 if anything differs."""
    options = argparse.ArgumentParser(prog="scripts/bench pipeline_at_size")
    options.add_argument("--records", type=int, default=5_000_000)
    given = options.parse_args()
    spark = session.start("local[2]", conf={"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "8"})
    old = {"inter_broker_protocol_version": "2.8", "log_cleaner_backoff_ms": "500"}
    with (
        scratch() as folder,
        zookeeper_cluster(folder / "apache", 1, **old) as [apache],
        started(OURS, folder / "ours") as ours,
    ):
        there, here = Source(apache.address), Source(ours.address)
        _timed("filled", lambda: fill(apache.address, apache.port, given.records))
        _timed("cleaned", lambda: eventually(lambda: is_cleaned(apache.log_dirs[0]), 600))
        same = copied(spark, there, here, folder)
    spark.stop()
    return 0 if same else 1


def is_cleaned(log_dir: Path) -> bool:
    """Whether the cleaner has been through all of `compacted` but its active segments: it changes no more."""
    checkpoint = log_dir / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return False
    cleaned = {(place.topic, place.partition): end for place, end in parse_offsets(checkpoint.read_text()).items()}
    active = [
        max(int(path.stem) for path in (log_dir / f"compacted-{partition}").glob("*.log"))
        for partition in range(PARTITIONS)
    ]
    return all(0 < base <= cleaned.get(("compacted", partition), 0) for partition, base in enumerate(active))


def copied(spark: Any, there: Source, here: Source, folder: Path) -> bool:
    """Whether an archive, its replay, the source and its mirror all hold the same."""
    to, topics = str(folder / "archive"), list(SHARES)
    replayed = {topic: f"{topic}-replayed" for topic in topics}
    mirrored = {topic: f"{topic}-mirrored" for topic in topics}
    done = _timed("archived", lambda: archive.archive(spark, there, topics, to, until_now=True))
    print(f"  {done['records']:,} records in {done['files']} files", flush=True)
    _timed("replayed", lambda: replay.replay(spark, here, to, topics=replayed))
    found = [_timed("archive and replay compared", lambda: audit.audit(spark, to, here, replayed))]
    _timed("mirrored", lambda: mirror.mirror(spark, there, here, mirrored, str(folder / "state"), codec="zstd"))
    found.append(_timed("source and mirror compared", lambda: audit.audit(spark, there, here, mirrored)))
    for each in found:
        gaps = sum(place["left"]["missing"] for place in each["partitions"])
        print(f"  left {each['records_left']:,}, right {each['records_right']:,}, offsets without a record {gaps:,}")
        print(f"  equal: {each['equal']}, differences: {each['differences'][:5]}", flush=True)
    compacted = [place["left"]["missing"] for place in found[-1]["partitions"] if place["topic"] == "compacted"]
    print(f"  offsets that compaction has taken out: {compacted}", flush=True)
    return all(each["equal"] for each in found) and all(compacted)


def _timed(what: str, step: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    result = step()
    print(f"{what} in {time.perf_counter() - begun:.0f} s", flush=True)
    return result


# ---- what is in the topics


def fill(address: str, port: int, count: int) -> None:
    """Make the topics and their records."""
    with Cluster(Source(address).settings) as cluster:
        cluster.create("mixed", PARTITIONS, KEEP)
        cluster.create("v0", PARTITIONS, {**KEEP, "message.format.version": "0.9.0"})
        cluster.create("v1", PARTITIONS, {**KEEP, "message.format.version": "0.10.2"})
        cluster.create("transactions", PARTITIONS, KEEP)
        soon = {"min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(max(1 << 16, count // 5))}
        cluster.create("compacted", PARTITIONS, {"cleanup.policy": "compact", **soon})
        for topic, codecs in CODECS.items():
            for partition in range(PARTITIONS):
                mine = count * SHARES[topic] // 100 // PARTITIONS
                batches = (
                    build_batch(run, codec_id=number % codecs)
                    for number, run in enumerate(runs(topic, partition, mine))
                )
                cluster.append((topic, partition), batches)
        cluster.learn_leaders(["transactions"])
    transactions(port, count * SHARES["transactions"] // 100)


def runs(topic: str, partition: int, count: int) -> Iterator[list[Record]]:
    """So many records in batches, each unlike all others of its partition."""
    for first in range(0, count, RUN):
        run = []
        for index in range(first, min(count, first + RUN)):
            rng = (index * 2654435761 + partition) & 0xFFFFFFFF
            skewed = (rng >> 8) % (1 << (rng & 15))  # half of all are 0, a quarter 0 or 1, ...
            key = None if rng % 7 == 0 and topic != "compacted" else b"key-%d" % skewed
            value = b"%s %d " % (topic.encode(), index) * (rng % 4)
            time_ms = T0 + 10 * index - (3_600_000 if rng % 50 == 0 else 0)
            headers = ((b"trace", b"%d" % index), (b"none", None)) if rng % 5 == 0 and topic[0] != "v" else ()
            run.append(Record(index - first, time_ms, key, None if key and rng % 11 == 0 else value, headers))
        yield run


def transactions(port: int, count: int) -> None:
    """Transactions of up to two batches in each partition, every third of them aborted."""
    client = Client(port)
    _taken(client, FindCoordinatorRequest(key="tx", key_type=1))
    given = _taken(client, InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000))
    who = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    places = [AddPartitionsToTxnTopic(name="transactions", partitions=list(range(PARTITIONS)))]
    join = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_topics=places,
        **{f"v3_and_below_{name}": value for name, value in who.items()},
    )
    sources = [runs("transactions", partition, count // PARTITIONS) for partition in range(PARTITIONS)]
    sequence = [0] * PARTITIONS
    for number in count_up():
        pairs = [(index, next(each, None)) for _ in range(2) for index, each in enumerate(sources)]
        batches = [(index, run) for index, run in pairs if run]
        if not batches:
            break
        _taken(client, join)
        for index, run in batches:
            batch = build_batch(run, base_sequence=sequence[index], transactional=True, **who)
            sequence[index] += len(run)
            part = PartitionProduceData(index=index, records=batch)
            data = TopicProduceData(name="transactions", partition_data=[part])
            answer = client.ask(ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=30_000, topic_data=[data]), 7)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
        _taken(client, EndTxnRequest(transactional_id="tx", committed=number % 3 != 2, **who))
    client.close()


def _taken(client: Client, request: Message) -> Any:
    """The answer, asked for again while the coordinator is not ready or ends the transaction before."""
    while True:
        answer = client.ask(request, 1)
        if isinstance(request, AddPartitionsToTxnRequest):
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        else:
            code = answer.error_code
        if not code:
            return answer
        assert ErrorCode.of(code).retriable or code == ErrorCode.CONCURRENT_TRANSACTIONS, answer
        threading.Event().wait(0.01)


if __name__ == "__main__":
    sys.exit(main())
