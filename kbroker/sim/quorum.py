"""A model of a metadata quorum: controllers on the simulated network elect, replicate, commit and take snapshots.

It is what an observer meets, and none of Apache's code: the network between controllers is left out. Each has a log of
its own; the one that leads appends, a majority's copy commits, and at an election the longest log of a majority wins.
A leader that does not know yet that another one was elected goes on, answers and appends: what it appends is never
committed, and an observer that fetched it finds its log to diverge. What was committed is kept apart (`committed`), for
the judge.

What controllers decide (registrations, fencing, what brokers ask) is in `sim/controllers.py`. Faults are called from
outside: `elect`, `stop`, `start`, `isolate`, `take_snapshot`.

Source: KafkaRaftClient and KafkaRaftLog of Apache Kafka 4.3, by behaviour; KIP-595, KIP-630.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from kbroker.quorum.metadata_log import METADATA_TOPIC_ID
from kbroker.quorum.snapshots import SnapshotHead, snapshot_batches
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.headers import encode_response_header, parse_request_header, request_header_version, skip_tags
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from protocol.messages.fetch import SnapshotId as FetchedSnapshotId
from protocol.messages.handshake import ApiVersion, ApiVersionsResponse
from protocol.messages.metadata import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.metadata_records import encode_record
from protocol.messages.quorum import (
    FetchSnapshotResponse,
    QuorumLeader,
    QuorumSnapshotId,
    SnapshotNodeEndpoint,
    SnapshotPartitionResult,
    SnapshotTopicResult,
)
from protocol.messages.stored import LeaderChangeMessage
from protocol.namedtuple import NamedTuple
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.records.control_records import build_quorum_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kbroker.sim.net import Net, Wire
    from kbroker.sim.world import World
    from protocol.message import Message
    from protocol.messages.fetch import FetchPartition, FetchRequest
    from protocol.messages.quorum import FetchSnapshotRequest

PORT = 9093
FIRST_ID = 3000
REPLICATE_MS = 40  # between two looks of a follower at its leader's log, at most
MOST_BATCHES = 500  # in an answer
NO_LEADER = -1
_base_offset, _epoch = attrgetter("base_offset"), attrgetter("epoch")
SERVED = {1: (4, 18), 18: (0, 4), 59: (0, 1), 60: (0, 2)}
"""Of the log and the greeting, by key."""


class LogBatch(NamedTuple):
    """A batch of a controller's log. records: what it says, none of a control batch."""

    base_offset: int
    end_offset: int
    epoch: int
    data: bytes
    records: tuple[Message, ...]


class ModelSnapshot(NamedTuple):
    """A snapshot of a controller. data: as in the file."""

    end_offset: int
    epoch: int
    data: bytes


class _Parked(NamedTuple):
    """A fetch that waits for records, or for the high watermark to move."""

    wire: Wire
    request: FetchRequest
    answer: Callable[[Message], None]
    deadline_ms: int


class State:
    """What the records come to; `controllers.py` has the one of a cluster."""

    def apply(self, record: Message) -> None:
        """The next record."""

    def records(self) -> Iterable[tuple[Message, int]]:
        """Those that a snapshot has: each in its version."""
        return ()


class QuorumNode:
    """A controller as the network knows it. serve: answers what is not of the log."""

    def __init__(self, quorum: Quorum, node_id: int) -> None:
        self.quorum = quorum
        self.id = node_id
        self.name = f"controller-{node_id}"
        self.up = True
        self.log: list[LogBatch] = []
        self.start_offset = 0
        self.start_epoch = 0
        self.snapshots: list[ModelSnapshot] = []
        self.high_watermark = 0
        self.epoch = 0
        self.leader_id = NO_LEADER
        self.matched: dict[int, int] = {}  # where logs of others agree with this leader's
        self.awaiting: list[tuple[int, Callable[[], None]]] = []  # what is done once this offset is committed
        self._parked: list[_Parked] = []
        self._wires: dict[Wire, None] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self.up and self.leader_id == self.id

    @property
    def end_offset(self) -> int:
        """Of the next record."""
        return self.log[-1].end_offset if self.log else self.start_offset

    @property
    def last_epoch(self) -> int:
        """Of the last record."""
        return self.log[-1].epoch if self.log else self.start_epoch

    # -- the network's side

    def accept(self, wire: Wire) -> bool:
        """A client connects."""
        if self.up:
            self._wires[wire] = None
        return self.up

    def gone(self, wire: Wire) -> None:
        """A client has gone."""
        self._wires.pop(wire, None)
        self._parked = [each for each in self._parked if each.wire is not wire]

    def receive(self, wire: Wire, frame: bytes) -> None:
        """A request, answered at once or later."""
        key, version, correlation_id, _, start = parse_request_header(frame)
        kind = BY_KEY[key].request
        if request_header_version(kind, version) == 2:
            start = skip_tags(frame, start)
        request = kind.decode(frame[start:], version)

        def answer(response: Message) -> None:
            data = encode_response_header(type(response), version, correlation_id) + response.encode(version)
            if wire in self._wires:
                wire.send_answers(lambda: len(data).to_bytes(4, "big") + data)

        name = kind.__name__.removesuffix("Request")
        if name == "ApiVersions":
            served = SERVED | self.quorum.served
            keys = [ApiVersion(api_key=each, min_version=low, max_version=high) for each, (low, high) in served.items()]
            answer(ApiVersionsResponse(error_code=0, api_keys=keys))
        elif name == "DescribeCluster":
            nodes = [DescribeClusterBroker(broker_id=each.id, host=each.name, port=PORT) for each in self.quorum.nodes]
            answer(
                DescribeClusterResponse(
                    error_code=0,
                    endpoint_type=request.endpoint_type,  # type: ignore[attr-defined]
                    cluster_id=self.quorum.cluster_id,
                    controller_id=self.leader_id,
                    brokers=nodes,
                )
            )
        elif name == "Fetch":
            self._fetch(wire, request, answer)  # type: ignore[arg-type]
        elif name == "FetchSnapshot":
            answer(self._fetch_snapshot(request))  # type: ignore[arg-type]
        else:
            self.quorum.serve(self, request, answer)

    # -- its log

    def append(self, records: Sequence[tuple[Message, int]]) -> int:
        """Append records as the leader, one batch; the offset behind it."""
        assert self.leads, self
        base = self.end_offset
        now_ms = self.quorum.wall_ms()
        built = [
            Record(base + at, now_ms, None, encode_record(record, version))
            for at, (record, version) in enumerate(records)
        ]
        data = bytes(build_batch(built, leader_epoch=self.epoch))
        return self._append(LogBatch(base, base + len(built), self.epoch, data, tuple(each for each, _ in records)))

    def lead(self, epoch: int) -> None:
        """It was elected."""
        self.epoch, self.leader_id, self.matched = epoch, self.id, {}
        message = LeaderChangeMessage(version=0, leader_id=self.id, voters=[], granting_voters=[])
        data = bytes(
            build_quorum_batch([message], timestamp=self.quorum.wall_ms(), offset=self.end_offset, leader_epoch=epoch)
        )
        self._append(LogBatch(self.end_offset, self.end_offset + 1, epoch, data, ()))
        self.quorum.leads(self)

    def _append(self, batch: LogBatch) -> int:
        self.log.append(batch)
        self.quorum.appended(self, batch)
        self._commit()
        self.moved()
        return batch.end_offset

    def follow(self, epoch: int, leader_id: int) -> None:
        """Another leads, or it is not known who does."""
        if (epoch, leader_id) == (self.epoch, self.leader_id):
            return
        self.epoch, self.leader_id = epoch, leader_id
        self.awaiting = []
        self.moved()

    def knows_of(self, follower: QuorumNode) -> bool:
        """Whether this leader knows how far a follower has come, and that one what is committed."""
        is_told = follower.high_watermark >= min(self.high_watermark, follower.end_offset)
        return is_told and self.matched.get(follower.id) == follower.end_offset

    def copy_from(self, leader: QuorumNode, batches: int) -> None:
        """Make the log agree with the leader's, and take so many more batches."""
        theirs = leader.log
        if self.log and theirs and self.log[-1] is theirs[-1] and leader.knows_of(self):
            return
        while self.log:  # where one batch is the same, so are all before it
            last = self.log[-1]
            at = bisect_left(theirs, last.base_offset, key=_base_offset)
            if last.end_offset <= leader.start_offset or (at < len(theirs) and theirs[at] is last):
                break
            self.log.pop()
        end = self.end_offset, self.last_epoch
        if end[0] < leader.start_offset or (end[0] == leader.start_offset > 0 and end[1] != leader.start_epoch):
            self.log, self.start_offset, self.start_epoch = [], leader.start_offset, leader.start_epoch
            self.snapshots = [each for each in leader.snapshots if each.end_offset == leader.start_offset]
            self.high_watermark = max(self.high_watermark, self.start_offset)
        at = bisect_left(theirs, self.end_offset, key=_base_offset)
        self.log += theirs[at : at + batches]
        leader.matched[self.id] = self.end_offset
        self.high_watermark = max(self.high_watermark, min(leader.high_watermark, self.end_offset))
        leader._commit()

    def _commit(self) -> None:
        """What a majority has is committed, once something of this epoch is."""
        ends = sorted(
            [self.end_offset, *(self.matched.get(each.id, 0) for each in self.quorum.nodes if each is not self)]
        )
        high_watermark = ends[-self.quorum.majority]
        if high_watermark <= self.high_watermark:
            return
        last = next((each for each in reversed(self.log) if each.end_offset <= high_watermark), None)
        if last is None or last.epoch != self.epoch:
            return
        self.high_watermark = high_watermark
        self.quorum.commit(self, high_watermark)
        ready = [what for offset, what in self.awaiting if offset <= high_watermark]
        self.awaiting = [each for each in self.awaiting if each[0] > high_watermark]
        for what in ready:
            what()
        self.moved()

    def take_snapshot(self, *, forget: bool) -> None:
        """Take one at the high watermark. forget: the log before it goes, and older snapshots."""
        end = self.high_watermark
        if end <= self.start_offset:
            return
        if all(each.end_offset != end for each in self.snapshots):
            state = self.quorum.state_at(end)
            epoch = next(each.epoch for each in reversed(self.log) if each.end_offset <= end)
            now_ms = self.quorum.wall_ms()
            values = (encode_record(record, version) for record, version in state.records())
            data = b"".join(map(bytes, snapshot_batches(SnapshotHead(epoch, now_ms), values, now_ms)))
            self.snapshots.append(ModelSnapshot(end, epoch, data))
        if forget:
            latest = self.snapshots[-1]
            self.snapshots = [latest]
            self.log = [each for each in self.log if each.base_offset >= latest.end_offset]
            self.start_offset, self.start_epoch = latest.end_offset, latest.epoch

    # -- what observers ask

    def moved(self) -> None:
        """Look at the fetches that wait."""
        parked, self._parked = self._parked, []
        for each in parked:
            self._fetch(each.wire, each.request, each.answer, each.deadline_ms)

    def time_is_up(self) -> None:
        """The same, where a deadline has come."""
        if any(each.deadline_ms <= self.quorum.world.now_ms for each in self._parked):
            self.moved()

    def _fetch(
        self,
        wire: Wire,
        request: FetchRequest,
        answer: Callable[[Message], None],
        deadline_ms: int | None = None,
    ) -> None:
        now_ms = self.quorum.world.now_ms
        if request.cluster_id not in (None, self.quorum.cluster_id):
            answer(FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[]))
            return
        asked = request.topics[0].partitions[0]
        error = self._who_may_be_asked(asked.current_leader_epoch)
        if error is not ErrorCode.NONE:
            answer(self._fetched(error))
            return
        latest = self.snapshots[-1] if self.snapshots else None
        wanted = self._wanted_snapshot(asked, latest)
        diverging = None if wanted is not None else self._diverging(asked)
        if wanted is not None or diverging is not None:
            answer(self._fetched(ErrorCode.NONE, snapshot=wanted, diverging=diverging))
            return
        at = bisect_left(self.log, asked.fetch_offset, key=_base_offset)
        assert at == len(self.log) or self.log[at].base_offset == asked.fetch_offset, (self, asked, self.start_offset)
        batches = [each.data for each in self.log[at : at + MOST_BATCHES]]
        data = b"".join(batches)[: max(request.max_bytes, len(batches[0]))] if batches else b""
        knows = asked.high_watermark == 2**63 - 1 or asked.high_watermark >= self.high_watermark
        deadline_ms = now_ms + request.max_wait_ms if deadline_ms is None else deadline_ms
        if not data and knows and now_ms < deadline_ms:
            self._parked.append(_Parked(wire, request, answer, deadline_ms))
            self.quorum.world.after(deadline_ms - now_ms, self.time_is_up)
            return
        answer(self._fetched(ErrorCode.NONE, data=data))

    def _who_may_be_asked(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _wanted_snapshot(self, asked: FetchPartition, latest: ModelSnapshot | None) -> ModelSnapshot | None:
        if latest is None:
            return None
        if asked.fetch_offset == 0 or asked.fetch_offset < self.start_offset:
            return latest
        oldest = self.snapshots[0]
        is_odd = asked.fetch_offset == self.start_offset > 0 and asked.last_fetched_epoch != oldest.epoch
        return latest if is_odd or (self.start_offset > 0 and asked.last_fetched_epoch < oldest.epoch) else None

    def _diverging(self, asked: FetchPartition) -> tuple[int, int] | None:
        """The largest epoch not above the observer's, and where it ends here, if that is before its end."""
        if self.start_offset == 0 and asked.fetch_offset == 0:
            return None
        epoch, end = self.start_epoch, self.start_offset
        at = bisect_right(self.log, asked.last_fetched_epoch, key=_epoch)
        if at:
            epoch, end = self.log[at - 1].epoch, self.log[at - 1].end_offset
        if epoch != asked.last_fetched_epoch or end < asked.fetch_offset:
            return epoch, end
        return None

    def _fetched(
        self,
        error: ErrorCode,
        *,
        data: bytes = b"",
        snapshot: ModelSnapshot | None = None,
        diverging: tuple[int, int] | None = None,
    ) -> FetchResponse:
        epoch, end_offset = (-1, -1) if diverging is None else diverging
        part = PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=self.high_watermark if error is ErrorCode.NONE else -1,
            log_start_offset=self.start_offset,
            diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset),
            current_leader=LeaderIdAndEpoch(leader_id=self.leader_id, leader_epoch=self.epoch),
            snapshot_id=FetchedSnapshotId()
            if snapshot is None
            else FetchedSnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            records=data,
        )
        endpoints = [NodeEndpoint(node_id=self.leader_id, host=f"controller-{self.leader_id}", port=PORT)]
        topic = FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[part])
        return FetchResponse(responses=[topic], node_endpoints=endpoints if self.leader_id >= 0 else [])

    def _fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        if request.cluster_id not in (None, self.quorum.cluster_id):
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
        asked = request.topics[0].partitions[0]
        wanted = asked.snapshot_id
        error = self._who_may_be_asked(asked.current_leader_epoch)
        found = next(
            (each for each in self.snapshots if (each.end_offset, each.epoch) == (wanted.end_offset, wanted.epoch)),
            None,
        )
        if error is ErrorCode.NONE and found is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif error is ErrorCode.NONE and found is not None and not 0 <= asked.position < len(found.data):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        data = (
            b"" if found is None or error is not ErrorCode.NONE else found.data[asked.position :][: request.max_bytes]
        )
        part = SnapshotPartitionResult(
            index=0,
            error_code=error,
            snapshot_id=QuorumSnapshotId(end_offset=wanted.end_offset, epoch=wanted.epoch),
            current_leader=QuorumLeader(leader_id=self.leader_id, leader_epoch=self.epoch),
            size=0 if found is None else len(found.data),
            position=asked.position,
            unaligned_records=data,
        )
        endpoints = [SnapshotNodeEndpoint(node_id=self.leader_id, host=f"controller-{self.leader_id}", port=PORT)]
        topic = SnapshotTopicResult(name="__cluster_metadata", partitions=[part])
        return FetchSnapshotResponse(
            error_code=0, topics=[topic], node_endpoints=endpoints if self.leader_id >= 0 else []
        )

    # -- faults

    def stop(self) -> None:
        """The process ends; its log stays."""
        self.up = False
        self.leader_id = NO_LEADER
        self.awaiting, self._parked = [], []
        wires, self._wires = self._wires, {}
        for wire in wires:
            wire.kill_server()

    def start(self) -> None:
        """It comes back, and knows no leader."""
        self.up = True
        self.leader_id = NO_LEADER


class Quorum:
    """The controllers. make_state: what records come to, for snapshots and for who decides."""

    def __init__(
        self,
        world: World,
        net: Net,
        make_state: Callable[[], State],
        *,
        controllers: int = 3,
        cluster_id: str = "simulated-cluster-00000",
    ) -> None:
        self.world = world
        self.net = net
        self.cluster_id = cluster_id
        self.make_state = make_state
        self.committed: list[LogBatch] = []
        self.served: dict[int, tuple[int, int]] = {}
        self.isolated: set[int] = set()  # ids of controllers that others do not hear, nor they them
        self.rng = world.rng("quorum")
        self.nodes = [QuorumNode(self, FIRST_ID + number) for number in range(controllers)]
        self.majority = controllers // 2 + 1
        for each in self.nodes:
            net.hosts[each.name] = each
        self.elect()
        self._replicate()

    def wall_ms(self) -> int:
        """For timestamps."""
        return self.world.now_ms + 1_700_000_000_000

    @property
    def leader(self) -> QuorumNode | None:
        """The newest that leads, if it can commit."""
        leading = [each for each in self.nodes if each.leads]
        return max(leading, key=lambda each: each.epoch, default=None)

    # -- to be overridden

    def serve(self, node: QuorumNode, request: Message, answer: Callable[[Message], None]) -> None:
        """What is not of the log."""
        raise AssertionError(f"{request!r} is not served")

    def leads(self, node: QuorumNode) -> None:
        """A controller begins to lead."""

    def appended(self, node: QuorumNode, batch: LogBatch) -> None:
        """A leader has appended."""

    # -- what it comes to

    def commit(self, node: QuorumNode, high_watermark: int) -> None:
        """A leader has found that all below is committed: it was not, or is the same."""
        end = self.committed[-1].end_offset if self.committed else 0
        for batch in node.log[bisect_left(node.log, end, key=_base_offset) :]:
            if batch.end_offset <= high_watermark:
                assert batch.base_offset == end, (batch.base_offset, end)
                self.committed.append(batch)
                end = batch.end_offset

    def state_at(self, end_offset: int) -> State:
        """What all below an offset comes to."""
        state = self.make_state()
        for batch in self.committed:
            if batch.end_offset <= end_offset:
                for record in batch.records:
                    state.apply(record)
        return state

    # -- faults

    def elect(self, *, all_hear: bool = True) -> QuorumNode | None:
        """Another election. all_hear: those who did not vote learn of it at once, else when they are replicated to."""
        reachable = [each for each in self.nodes if each.up and each.id not in self.isolated]
        if len(reachable) < self.majority:
            return None
        voters = reachable if all_hear else self.rng.sample(reachable, self.majority)
        wanted = max((each.last_epoch, each.end_offset) for each in voters)
        found = self.rng.choice([each for each in voters if (each.last_epoch, each.end_offset) == wanted])
        epoch = max(each.epoch for each in self.nodes) + 1
        for each in voters:
            if each is not found:
                each.follow(epoch, found.id)
        self.world.note(f"{found} leads in epoch {epoch} from {found.end_offset} on")
        found.lead(epoch)
        return found

    def _replicate(self) -> None:
        """Followers copy, and learn who leads."""
        for leader in [each for each in self.nodes if each.leads]:
            for each in self.nodes:
                if each is leader or not each.up or not leader.leads:
                    continue
                if self.isolated and {each.id, leader.id} & self.isolated:
                    continue
                if each.epoch > leader.epoch:
                    leader.follow(each.epoch, each.leader_id)
                    break
                each.follow(leader.epoch, leader.id)
                each.copy_from(leader, self.rng.choice((0, 1, 1000)))
        self.world.after(self.rng.randint(1, REPLICATE_MS), self._replicate)
