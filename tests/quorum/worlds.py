"""A metadata log on a simulated disk, batches for it, and an observer that a test answers by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kbroker.config import BrokerConfig, BrokerLayers, resolve_broker
from kbroker.config.quorum import QuorumSettings
from kbroker.log.config import LogConfig
from kbroker.quorum.metadata_log import METADATA_TOPIC_ID, MetadataLog, SnapshotId, open_metadata_log
from kbroker.quorum.observer import QuorumObserver, QuorumRequest
from kbroker.sim.disk import SimDisk
from protocol.errors import ErrorCode
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from protocol.messages.fetch import SnapshotId as FetchedSnapshotId
from protocol.messages.quorum import (
    FetchSnapshotResponse,
    QuorumLeader,
    QuorumSnapshotId,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    SnapshotPartitionResult,
    SnapshotTopicResult,
)
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.records.control_records import build_quorum_batch

NOW = 1_700_000_000_000
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
DIRECTORY_ID = b"d" * 16
DIRECTORY, FOLDER = "/data", "/data/__cluster_metadata-0"
SERVERS = (("one", 9093), ("two", 9093), ("three", 9093))
CONFIG = resolve_broker(BrokerLayers())


class Chance:
    """`Random`, of a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = random.Random(seed)

    def below(self, limit: int) -> int:
        """See ports."""
        return self._rng.randrange(limit)

    def token(self, size: int) -> bytes:
        """See ports."""
        return self._rng.randbytes(size)


def new_disk() -> SimDisk:
    """With an empty log directory."""
    return SimDisk(1, lambda: NOW)


def open_at(disk: SimDisk, config: LogConfig | None = None) -> MetadataLog:
    """The metadata log on a disk."""
    config = config or LogConfig(segment_index_bytes=4096, retention_ms=-1)
    return open_metadata_log(disk, DIRECTORY, config, Chance(), NOW)


def batch(base_offset: int, *values: bytes, epoch: int = 1) -> bytes:
    """Records from an offset on."""
    records = [Record(base_offset + at, NOW, None, value) for at, value in enumerate(values or (b"x",))]
    return bytes(build_batch(records, leader_epoch=epoch))


def snapshot(*values: bytes, epoch: int = 1) -> bytes:
    """The bytes of a snapshot, with these records."""
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=NOW)
    parts = [build_quorum_batch([header], timestamp=NOW, offset=0, leader_epoch=epoch)]
    parts += [build_batch([Record(1 + at, NOW, None, value)], leader_epoch=epoch) for at, value in enumerate(values)]
    footer = SnapshotFooterRecord(version=0)
    parts.append(build_quorum_batch([footer], timestamp=NOW, offset=1 + len(values), leader_epoch=epoch))
    return b"".join(map(bytes, parts))


def put_snapshot(found: MetadataLog, end_offset: int, *values: bytes, epoch: int = 1) -> SnapshotId:
    """Have a log have a snapshot."""
    partial = found.begin_snapshot(SnapshotId(end_offset, epoch))
    assert partial is not None
    partial.append([snapshot(*values, epoch=epoch)])
    partial.install().run()
    found.installed(partial.id)
    return partial.id


class Observed:
    """An observer whose controllers are a test. now_ms: moves when the test says so."""

    def __init__(
        self, disk: SimDisk | None = None, config: BrokerConfig = CONFIG, servers: Sequence[tuple[str, int]] = SERVERS
    ) -> None:
        self.disk = disk or new_disk()
        self.config = config
        self.now_ms = 10_000
        self.log = open_at(self.disk)
        settings = QuorumSettings(7, tuple(servers), (), "CONTROLLER", 0, DIRECTORY)
        self.observer = QuorumObserver(settings, CLUSTER, DIRECTORY_ID, self.log, Chance())

    def ask(self) -> QuorumRequest:
        """What it asks now."""
        found = self.observer.next_request(self.config, self.now_ms)
        assert found is not None
        return found

    def fetched(
        self,
        asked: QuorumRequest,
        *batches: bytes,
        error: ErrorCode = ErrorCode.NONE,
        leader: int = 3000,
        epoch: int = 1,
        high_watermark: int = -1,
        diverging: tuple[int, int] = (-1, -1),
        snapshot_id: tuple[int, int] = (-1, -1),
        address: tuple[str, int] | None = ("leader", 9093),
    ) -> None:
        """Answer a fetch. diverging: epoch and end. snapshot_id: end and epoch. address: of the leader, if told."""
        part = PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=high_watermark,
            diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
            current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
            snapshot_id=FetchedSnapshotId(end_offset=snapshot_id[0], epoch=snapshot_id[1]),
            records=b"".join(batches),
        )
        nodes = [] if address is None else [NodeEndpoint(node_id=leader, host=address[0], port=address[1])]
        topic = FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[part])
        self._answer(asked, FetchResponse(responses=[topic], node_endpoints=nodes))

    def refused(self, asked: QuorumRequest, error: ErrorCode) -> None:
        """Refuse a fetch as a whole."""
        self._answer(asked, FetchResponse(error_code=error, responses=[]))

    def piece(
        self,
        asked: QuorumRequest,
        data: bytes,
        *,
        size: int,
        position: int = 0,
        snapshot_id: tuple[int, int] = (100, 1),
        error: ErrorCode = ErrorCode.NONE,
        epoch: int = 1,
    ) -> None:
        """Answer a fetch of a snapshot."""
        part = SnapshotPartitionResult(
            index=0,
            error_code=error,
            snapshot_id=QuorumSnapshotId(end_offset=snapshot_id[0], epoch=snapshot_id[1]),
            current_leader=QuorumLeader(leader_id=3000, leader_epoch=epoch),
            size=size,
            position=position,
            unaligned_records=data,
        )
        topic = SnapshotTopicResult(name="__cluster_metadata", partitions=[part])
        self._answer(asked, FetchSnapshotResponse(error_code=0, topics=[topic]))

    def _answer(self, asked: QuorumRequest, response: FetchResponse | FetchSnapshotResponse) -> None:
        self.observer.answered(asked.controller, response, self.config, self.now_ms, NOW)

    def run_jobs(self) -> int:
        """Run what waits for the disk; how many."""
        count = 0
        while jobs := self.observer.take_jobs():
            for job in jobs:
                job.run()
                self.observer.finished(job, self.now_ms, NOW)
                count += 1
        return count

    def follow(self, *batches: bytes, high_watermark: int = -1, epoch: int = 1) -> None:
        """Find the leader, and take its first answer."""
        self.fetched(self.ask(), epoch=epoch, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetched(self.ask(), *batches, high_watermark=high_watermark, epoch=epoch)
