"""How soon a member of a quorum's cluster sees a change, and what 10,000 partitions cost it.

A controller of Apache Kafka 4.4.0, and two brokers: a kbroker, and one that is nothing but registered (this process
sends its heartbeats), so that the partitions need no logs. Topics are made one after the other by the controller, whose
answer says that they are committed; from then on the kbroker is asked for the topic until it knows it. Before that: the
image of a snapshot of as many partitions, in this process; and what the kbroker needs to come up in that cluster.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.report import markdown_table
from compat_tests.apache import Quorum
from compat_tests.brokers import KbrokerMember
from compat_tests.raw import Connection
from kbroker.quorum.image import MetadataImage
from kbroker.quorum.metadata_version import HIGHEST, METADATA_VERSION, supported_features
from kbroker.quorum.snapshots import SnapshotHead, image_values, snapshot_batches
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.metadata_records import FeatureLevelRecord, PartitionRecord, TopicRecord, decode_record
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RegistrationFeature,
    RegistrationListener,
)
from protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from protocol.records.content import parse_set

RELEASE = "4.4.0"
IMAGE_S, IMAGE_MB, SEEN_MS = 1.0, 60.0, 50.0
OURS, IDLE = 1, 2
A_TOPIC = 10  # partitions of each topic that is there before
AT_ONCE = 100  # topics in a request
HEARTBEAT_S = 1.0
HEADINGS = ("what", "found", "budget")


def main() -> int:
    """Measure; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench quorum", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=300)
    arguments = parser.parse_args()
    seconds, megabytes = image_of_a_snapshot(arguments.partitions)
    up_s, resident, seen = in_a_cluster(arguments.partitions, arguments.changes)
    p99_ms = statistics.quantiles(seen, n=100, method="inclusive")[98] * 1000
    budgets = [
        (f"image of {arguments.partitions:,} partitions, from a snapshot", f"{seconds:.2f} s", seconds <= IMAGE_S),
        ("... kept in memory", f"{megabytes:.1f} MB", megabytes <= IMAGE_MB),
        ("commit to seen, p99", f"{p99_ms:.1f} ms", p99_ms <= SEEN_MS),
    ]
    limits = (f"<= {IMAGE_S:g} s", f"<= {IMAGE_MB:g} MB", f"<= {SEEN_MS:g} ms")
    lines = [
        (what, found, f"{limit}: {'holds' if holds else 'MISSED'}")
        for (what, found, holds), limit in zip(budgets, limits, strict=True)
    ]
    lines += [
        ("... median", f"{statistics.median(seen) * 1000:.1f} ms", ""),
        ("... longest", f"{max(seen) * 1000:.1f} ms", ""),
        ("start of a new kbroker in that cluster", f"{up_s:.1f} s", ""),
        ("... resident", f"{resident:.0f} MB", ""),
    ]
    print(markdown_table(HEADINGS, lines))
    return int(not all(holds for _, _, holds in budgets))


def image_of_a_snapshot(partitions: int) -> tuple[float, float]:
    """Seconds of this process to make the image, and megabytes that it keeps."""
    data = _snapshot(partitions)
    _load(data)  # what is compiled once is not a cost of each
    begun = time.process_time()
    _load(data)
    seconds = time.process_time() - begun
    gc.collect()
    tracemalloc.start()
    image = _load(data)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(topic.partitions) for topic in image.topics.values()) == partitions
    return seconds, size / 1e6


def _snapshot(partitions: int) -> bytes:
    image = MetadataImage()
    image.apply(FeatureLevelRecord(name=METADATA_VERSION, feature_level=HIGHEST))
    for number in range(partitions // A_TOPIC):
        topic_id = os.urandom(16)
        image.apply(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        for index in range(A_TOPIC):
            replicas = [(number + index + at) % 6 for at in range(3)]
            image.apply(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=replicas,
                    isr=replicas,
                    removing_replicas=[],
                    adding_replicas=[],
                    leader=replicas[0],
                    leader_epoch=number,
                    partition_epoch=number,
                    directories=[each.to_bytes(16, "big") for each in replicas],
                )
            )
    return b"".join(snapshot_batches(SnapshotHead(1, 0), image_values(image), 0))


def _load(data: bytes) -> MetadataImage:
    image = MetadataImage()
    for header, records in parse_set(data):
        if not header.is_control:
            for record in records:
                image.apply(decode_record(record.value)[0])
    image.take_delta()
    return image


def in_a_cluster(partitions: int, changes: int) -> tuple[float, float, list[float]]:
    """Seconds of a start, megabytes that are resident then, and seconds from commit to seen of each change."""
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as folder:
        quorum = Quorum(RELEASE, Path(folder))
        (controller,) = quorum.controllers.values()
        with controller, _idle_broker(controller.port, quorum.cluster_id), Connection(controller.port, 60) as asked:
            names = [f"topic-{number}" for number in range(partitions // A_TOPIC)]
            for first in range(0, len(names), AT_ONCE):
                _create(asked, names[first : first + AT_ONCE], A_TOPIC)
            begun = time.monotonic()
            with KbrokerMember(quorum, Path(folder) / "ours", OURS) as member:
                up_s = time.monotonic() - begun
                with Connection(member.port) as reader:
                    _until_known(reader, names[-1])
                    resident = _resident_mb(member.pid)
                    seen = [_seen(asked, reader, f"change-{number}") for number in range(changes)]
                return up_s, resident, seen


def _seen(asked: Connection, reader: Connection, topic: str) -> float:
    _create(asked, [topic], 1)
    begun = time.perf_counter()
    _until_known(reader, topic)
    return time.perf_counter() - begun


def _create(asked: Connection, names: Sequence[str], partitions: int) -> None:
    """Topics with a replica on the broker that is nothing but registered."""
    assignments = [CreatableReplicaAssignment(partition_index=at, broker_ids=[IDLE]) for at in range(partitions)]
    topics = [
        CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
        for name in names
    ]
    answer = asked.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    assert all(each.error_code == ErrorCode.NONE for each in answer.topics), answer


def _until_known(reader: Connection, topic: str) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    while reader.ask(request, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        time.sleep(0.0005)


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _idle_broker(port: int, cluster_id: str) -> Iterator[None]:
    """A broker that registers, is unfenced, lives, and does nothing."""
    over = threading.Event()
    with Connection(port, 60) as connection:
        request = BrokerRegistrationRequest(
            broker_id=IDLE,
            cluster_id=cluster_id,
            incarnation_id=os.urandom(16),
            listeners=[RegistrationListener(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)],
            features=[
                RegistrationFeature(name=each.name, min_supported_version=each.first, max_supported_version=each.last)
                for each in supported_features()
            ],
            rack=None,
            log_dirs=[os.urandom(16)],
        )
        answer = connection.ask(request, 4)
        while answer.error_code == ErrorCode.NOT_CONTROLLER:
            time.sleep(0.1)
            answer = connection.ask(request, 4)
        assert answer.error_code == ErrorCode.NONE, answer
        epoch = answer.broker_epoch

        def beat() -> bool:
            heartbeat = BrokerHeartbeatRequest(
                broker_id=IDLE,
                broker_epoch=epoch,
                current_metadata_offset=2**62,
                want_fence=False,
                want_shut_down=False,
            )
            is_fenced: bool = connection.ask(heartbeat, 1).is_fenced
            return is_fenced

        while beat():
            time.sleep(0.1)

        def live() -> None:
            while not over.wait(HEARTBEAT_S):
                beat()

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        yield
        over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
