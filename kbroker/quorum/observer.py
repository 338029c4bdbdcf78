"""How a node without a vote follows its quorum: whom it asks next, for what, and what it makes of the answers.

Driven by `broker/observer.py`, which carries requests to controllers and answers back, runs jobs and knows the time:
one request is under way. It reads no clock and knows no socket. What is committed is read by `committed.py`.

    unattached --an answer names the leader--> following --a snapshot is wanted--> fetching a snapshot
        ^                                        |  ^  |                               |
        +---- it does not answer, or leads no ---+  |  +--diverging--> truncating -----+
                        more                        +----------------------------------+

Who is unattached asks any controller; each names the leader and its epoch, as far as it knows them. The log is the
leader's: where it differs, the leader says up to where it may agree, and what is behind is cut; but nothing below the
high watermark, ever: a leader that asks for that has lost what was committed, and this node ends.

Source: KafkaRaftClient of Apache Kafka 4.3 (as observer), by behaviour; KIP-595, KIP-630, KIP-853, KIP-1166.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias, cast

from kbroker.log.jobs import FlushJob
from kbroker.log.names import METADATA_LOG
from kbroker.quorum.metadata_log import METADATA_TOPIC_ID, NO_EPOCH, NO_LEADER, Install, SnapshotId
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumSnapshotId,
    SnapshotPartition,
    SnapshotTopic,
)
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.config import BrokerConfig
    from kbroker.config.quorum import QuorumSettings
    from kbroker.log.jobs import DeleteJob, SyncJob, Truncated
    from kbroker.ports import Random
    from kbroker.quorum.metadata_log import MetadataLog, PartialSnapshot
    from protocol.messages.fetch import NodeEndpoint, PartitionData
    from protocol.messages.quorum import SnapshotNodeEndpoint

log = logging.getLogger("kbroker.quorum")

FETCH_VERSIONS = (17, 18)
"""17: with the directory, and answers with the controllers' addresses (Kafka 3.9). 18: with the high watermark, so that
the leader answers as soon as it moves (KIP-1166)."""
FETCH_SNAPSHOT_VERSIONS = (0, 1)
MAX_WAIT_MS = 500
UNKNOWN = -1
FIRST_UNKNOWN_ID = -2  # of bootstrap servers, whose ids are not known; then -3, and so on, as in Kafka
MOST_BACKOFF_MS = 1000  # of a controller that does not answer, again and again

Address: TypeAlias = "tuple[str, int]"


class Controller(NamedTuple):
    """A controller to ask. node_id: below -1 while it is known by its address only."""

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> Address:
        """Host and port."""
        return self.host, self.port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.node_id < 0 else f"{self.node_id} at {self.host}:{self.port}"


class Leader(NamedTuple):
    """Who leads the quorum in an epoch."""

    controller: Controller
    epoch: int


class QuorumRequest(NamedTuple):
    """What is asked next, and of whom. versions: lowest and highest."""

    controller: Controller
    request: FetchRequest | FetchSnapshotRequest
    versions: tuple[int, int]


QuorumResponse: TypeAlias = "FetchResponse | FetchSnapshotResponse"
Work: TypeAlias = "Install | FlushJob | SyncJob | DeleteJob"


class QuorumObserver:
    """One node's view of its quorum.

    epoch, leader_id: the last that is known of. high_watermark: below it all is committed; -1 unknown. fault: why this
    node cannot go on, else empty. jobs: to be run, in order; a fetch waits for those of `waits_for`.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        cluster_id: str,
        directory_id: bytes,
        metadata_log: MetadataLog,
        random: Random,
    ) -> None:
        self.metadata_log = metadata_log
        self.fault = ""
        self.epoch = max(metadata_log.state.leader_epoch, metadata_log.last_epoch)
        self.leader_id = NO_LEADER  # whom quorum-state names may be gone
        snapshot = metadata_log.latest_snapshot
        self.high_watermark = UNKNOWN if snapshot is None else snapshot.end_offset
        self.jobs: list[Work] = []
        self.waits_for: set[int] = set()  # identities of jobs
        self.heard_ms = 0  # when the leader answered last, or was found
        self._settings = settings
        self._cluster_id = cluster_id
        self._directory_id = directory_id
        self._random = random
        self._leader: Controller | None = None
        self._known: dict[int, Address] = {each.node_id: (each.host, each.port) for each in settings.voters}
        self._servers = [
            Controller(FIRST_UNKNOWN_ID - number, *address) for number, address in enumerate(settings.servers)
        ]
        self._failures: dict[Address, int] = {}  # in a row
        self._rests_until_ms: dict[Address, int] = {}
        self._strangers: set[Address] = set()  # at which a controller of another cluster was
        self._partial: PartialSnapshot | None = None

    @property
    def leader(self) -> Leader | None:
        """Who leads, where that and its address are known."""
        return None if self._leader is None else Leader(self._leader, self.epoch)

    def learn(self, voters: Iterable[tuple[int, Address]]) -> None:
        """Where controllers are, by what the log says of its voters (KIP-853)."""
        self._known |= dict(voters)

    # -- asking

    def next_request(self, config: BrokerConfig, now_ms: int) -> QuorumRequest | None:
        """What to ask; None while something is to be waited for: `rests_until_ms`, or the end of a job."""
        if self.fault or self.waits_for:
            return None
        controller = self._controller(config, now_ms)
        if controller is None:
            return None
        if controller is self._leader and self._partial is not None:
            return QuorumRequest(controller, self._snapshot_request(config, self._partial), FETCH_SNAPSHOT_VERSIONS)
        return QuorumRequest(controller, self._fetch_request(config), FETCH_VERSIONS)

    def rests_until_ms(self) -> int:
        """When there is a controller again that may be asked."""
        addresses = {each.address for each in self._servers}
        if self._leader is not None:
            addresses.add(self._leader.address)
        return min(self._rests_until_ms.get(each, 0) for each in addresses)

    def _controller(self, config: BrokerConfig, now_ms: int) -> Controller | None:
        """The leader, or any other while it rests, or once it has been silent for too long."""
        is_silent = now_ms - self.heard_ms > config.controller_quorum_fetch_timeout_ms
        if self._leader is not None and not is_silent and not self._rests(self._leader, now_ms):
            return self._leader
        ready = [each for each in self._servers if not self._rests(each, now_ms)]
        return ready[self._random.below(len(ready))] if ready else None

    def _rests(self, controller: Controller, now_ms: int) -> bool:
        return self._rests_until_ms.get(controller.address, 0) > now_ms

    def _fetch_request(self, config: BrokerConfig) -> FetchRequest:
        found = self.metadata_log
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=self.epoch,
            fetch_offset=found.end_offset,
            last_fetched_epoch=found.last_epoch,
            log_start_offset=found.start_offset,
            partition_max_bytes=config.controller_quorum_fetch_max_bytes,
            replica_directory_id=self._directory_id,
            high_watermark=self.high_watermark,
        )
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=ReplicaState(replica_id=self._settings.node_id),
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=0,
            max_bytes=config.controller_quorum_fetch_max_bytes,
            topics=[FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        )

    def _snapshot_request(self, config: BrokerConfig, partial: PartialSnapshot) -> FetchSnapshotRequest:
        partition = SnapshotPartition(
            partition=0,
            current_leader_epoch=self.epoch,
            snapshot_id=QuorumSnapshotId(end_offset=partial.id.end_offset, epoch=partial.id.epoch),
            position=partial.size,
            replica_directory_id=self._directory_id,
        )
        return FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            replica_id=self._settings.node_id,
            max_bytes=config.controller_quorum_fetch_snapshot_max_bytes,
            topics=[SnapshotTopic(name=METADATA_LOG, partitions=[partition])],
        )

    # -- answers

    def failed(self, controller: Controller, config: BrokerConfig, now_ms: int) -> None:
        """A controller has not answered, or cannot just now: it rests, longer each time, and others are asked."""
        address = controller.address
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        backoff_ms = config.controller_quorum_retry_backoff_ms << min(failures - 1, 10)
        self._rests_until_ms[address] = now_ms + min(max(backoff_ms, 1), MOST_BACKOFF_MS)

    def is_strange(self, controller: Controller, config: BrokerConfig, now_ms: int) -> None:
        """A controller is of another cluster. An address may be out of date; if all are, the node ends."""
        why = f"controller {controller} is of another cluster than {self._cluster_id}, which meta.properties names"
        address = controller.address
        if address not in self._strangers:
            self._strangers.add(address)
            log.error("%s", why)
        self.failed(controller, config, now_ms)
        if self._leader is not None and self._leader.address == address:
            self._leader = None
        if self._leader is None and self._strangers.issuperset(self._settings.servers):
            self.fault = why

    def answered(
        self, controller: Controller, response: QuorumResponse, config: BrokerConfig, now_ms: int, wall_ms: int
    ) -> None:
        """A controller has answered. Raises: OSError; the directory of the metadata log has failed then."""
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.is_strange(controller, config, now_ms)
        elif error is not ErrorCode.NONE:
            if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                log.error("controller %s does not let this broker read the metadata log", controller)
            self.failed(controller, config, now_ms)
        elif isinstance(response, FetchResponse):
            self._fetched(controller, response, config, now_ms, wall_ms)
        else:
            self._snapshot_fetched(controller, response, config, now_ms, wall_ms)

    def _fetched(
        self, controller: Controller, response: FetchResponse, config: BrokerConfig, now_ms: int, wall_ms: int
    ) -> None:
        parts = [part for topic in response.responses for part in topic.partitions]
        if len(parts) != 1:
            self.failed(controller, config, now_ms)
            return
        part = parts[0]
        error = ErrorCode.of(part.error_code)
        current = part.current_leader
        if not self._follows(
            controller, error, current.leader_id, current.leader_epoch, response.node_endpoints, config, now_ms
        ):
            return
        try:
            self._take(controller, part, config, now_ms, wall_ms)
        except (KafkaError, RecordError) as damaged:
            log.error("controller %s sent records that cannot be taken: %s", controller, damaged)
            self.failed(controller, config, now_ms)

    def _follows(
        self,
        controller: Controller,
        error: ErrorCode,
        leader_id: int,
        epoch: int,
        endpoints: Iterable[NodeEndpoint | SnapshotNodeEndpoint],
        config: BrokerConfig,
        now_ms: int,
    ) -> bool:
        """Take note of who leads; whether the answer is the leader's of the epoch that was asked for."""
        self.learn((each.node_id, (each.host, each.port)) for each in endpoints)
        if error is ErrorCode.NONE and leader_id >= 0 and leader_id not in self._known:
            self._known[leader_id] = controller.address  # the leader alone answers so
        if epoch < self.epoch or error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self.failed(controller, config, now_ms)  # it is behind, and will know more soon
            return False
        if epoch > self.epoch:
            self._attach(epoch, leader_id, now_ms)
            self._answers(controller, now_ms)
            if self._leader is None:
                self.failed(controller, config, now_ms)
            return False
        if leader_id >= 0 and self.leader_id >= 0 and leader_id != self.leader_id:
            log.error(
                "controller %s says that %d leads in epoch %d, others say %d",
                controller,
                leader_id,
                epoch,
                self.leader_id,
            )
            self.failed(controller, config, now_ms)
            return False
        if leader_id >= 0:
            self._attach(epoch, leader_id, now_ms)
        if error is ErrorCode.NONE or error is ErrorCode.SNAPSHOT_NOT_FOUND:
            self._answers(controller, now_ms)
            return True
        if error not in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.BROKER_NOT_AVAILABLE,
        ):
            log.error("controller %s answers a fetch of the metadata log with %s", controller, error.name)
        if not self._leads_elsewhere(controller, now_ms):
            self.failed(controller, config, now_ms)
        return False

    def _leads_elsewhere(self, controller: Controller, now_ms: int) -> bool:
        """Whether there is a leader at another address, which may be asked at once."""
        leader = self._leader
        if leader is None or self._rests(leader, now_ms):
            return False
        return leader.address != controller.address

    def _attach(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """This one leads in this epoch; -1: it is not known yet who does."""
        if (epoch, leader_id) != (self.epoch, self.leader_id):
            self._give_partial_up()
            who = "no leader yet" if leader_id < 0 else f"controller {leader_id} leads"
            log.info("epoch %d of the metadata quorum: %s", epoch, who)
        self.epoch, self.leader_id = epoch, leader_id
        address = self._known.get(leader_id)
        found = None if leader_id < 0 or address is None else Controller(leader_id, *address)
        self._leader, self.heard_ms = self._leader if found == self._leader else found, now_ms

    def _answers(self, controller: Controller, now_ms: int) -> None:
        address = controller.address
        self._strangers.discard(address)
        self._failures.pop(address, None)
        self._rests_until_ms.pop(address, None)

    def _take(
        self, controller: Controller, part: PartitionData, config: BrokerConfig, now_ms: int, wall_ms: int
    ) -> None:
        """What the leader has sent: a cut, a snapshot's id, or records and the high watermark."""
        diverging, wanted = part.diverging_epoch, part.snapshot_id
        if diverging.epoch >= 0:
            before = self.metadata_log.end_offset
            self._truncate(controller, diverging.epoch, diverging.end_offset, wall_ms)
            if before == self.metadata_log.end_offset:
                self.failed(controller, config, now_ms)  # nothing was cut: it would say the same at once
        elif wanted.epoch >= 0 and wanted.end_offset >= 0:
            self._begin_snapshot(controller, SnapshotId(wanted.end_offset, wanted.epoch), config, now_ms, wall_ms)
        else:
            if part.records:
                full = self.metadata_log.append(memoryview(cast("memoryview", part.records)), wall_ms)
                if full is not None:
                    self._give(full)
            if part.high_watermark >= 0:
                self._commit(part.high_watermark)
        self.heard_ms = now_ms

    def _commit(self, high_watermark: int) -> None:
        committed = min(high_watermark, self.metadata_log.end_offset)
        if committed > self.high_watermark:
            self.high_watermark = self.metadata_log.log.set_high_watermark(committed)

    def _truncate(self, controller: Controller, epoch: int, end_offset: int, wall_ms: int) -> None:
        offset = self.metadata_log.offset_to_truncate_to(epoch=epoch, end_offset=end_offset)
        if min(offset, end_offset) < self.high_watermark:
            self.fault = (
                f"controller {controller}, the leader of epoch {self.epoch}, has the metadata log to {end_offset} in "
                f"epoch {epoch}; this node knows that all below {self.high_watermark} was committed, and ends"
            )
            return
        log.info("the metadata log is cut at %d of %d, as the leader has it", offset, self.metadata_log.end_offset)
        self._settle(self.metadata_log.truncate_to(offset, wall_ms))

    def _settle(self, truncated: Truncated) -> None:
        """Have a cut made durable; nothing is fetched before."""
        if truncated.sync is not None:
            self._give(truncated.sync, is_awaited=True)
        if truncated.removed is not None:
            self._give(truncated.removed)

    def _give(self, job: Work, *, is_awaited: bool = False) -> None:
        self.jobs.append(job)
        if is_awaited:
            self.waits_for.add(id(job))

    def take_jobs(self) -> list[Work]:
        """What is to be run on another thread, each by itself."""
        jobs, self.jobs = self.jobs, []
        return jobs

    def finished(self, job: object, now_ms: int, wall_ms: int) -> None:
        """A job has ended well. Raises: OSError."""
        self.waits_for.discard(id(job))
        if isinstance(job, FlushJob):
            self.metadata_log.flushed(job, now_ms)
        elif isinstance(job, Install):
            self.metadata_log.installed(job.snapshot)
            self._start_at_snapshot(wall_ms)

    # -- snapshots

    def _begin_snapshot(
        self, controller: Controller, snapshot: SnapshotId, config: BrokerConfig, now_ms: int, wall_ms: int
    ) -> None:
        """The leader's log begins behind the end of ours, at a snapshot."""
        if self._partial is not None and self._partial.id == snapshot:
            return
        self._give_partial_up()
        self._partial = self.metadata_log.begin_snapshot(snapshot)
        if self._partial is not None:
            log.info("snapshot %s of the metadata log is fetched from controller %s", snapshot, controller)
        elif not self._start_at_snapshot(wall_ms):
            self.failed(controller, config, now_ms)  # it is here, and the log goes further: what is asked for is odd

    def _snapshot_fetched(
        self, controller: Controller, response: FetchSnapshotResponse, config: BrokerConfig, now_ms: int, wall_ms: int
    ) -> None:
        parts = [part for topic in response.topics for part in topic.partitions]
        if len(parts) != 1:
            self.failed(controller, config, now_ms)
            return
        part, current, partial = parts[0], parts[0].current_leader, self._partial
        error = ErrorCode.of(part.error_code)
        endpoints = response.node_endpoints
        if not self._follows(controller, error, current.leader_id, current.leader_epoch, endpoints, config, now_ms):
            return
        self.heard_ms = now_ms
        if partial is None:
            return
        found = SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch)
        if error is ErrorCode.SNAPSHOT_NOT_FOUND or found.end_offset < 0 or found.epoch < 0:
            log.info("snapshot %s is gone at controller %s: another one is asked for", partial.id, controller)
            self._give_partial_up()
        elif found != partial.id or part.position != partial.size:
            log.error(
                "controller %s sent snapshot %s from %d, asked for was %s from %d",
                controller,
                found,
                part.position,
                partial.id,
                partial.size,
            )
            self._give_partial_up()
            self.failed(controller, config, now_ms)
        else:
            if part.unaligned_records:
                partial.append([cast("memoryview", part.unaligned_records)])
            if partial.size >= part.size:
                log.info("snapshot %s of the metadata log is here: %d bytes", partial.id, partial.size)
                self._partial = None
                self._give(partial.install(), is_awaited=True)
            elif not part.unaligned_records:
                self.failed(controller, config, now_ms)  # it would be asked again and again, at once

    def _start_at_snapshot(self, wall_ms: int) -> bool:
        """Go on from the newest snapshot; whether it is ahead of the log."""
        truncated = self.metadata_log.start_at_latest_snapshot(wall_ms)
        if truncated is None:
            return False
        snapshot = self.metadata_log.latest_snapshot
        assert snapshot is not None
        self._settle(truncated)
        for job in self.metadata_log.forget_before(snapshot, wall_ms):
            self._give(job)
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        return True

    def _give_partial_up(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            partial.close()


__all__ = ["NO_EPOCH", "Controller", "Leader", "QuorumObserver", "QuorumRequest"]
