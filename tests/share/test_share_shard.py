"""The share coordinator: what it keeps of a share-partition, who may change it, and what another broker finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.config import BrokerConfig, BrokerLayers, Given, resolve_broker
from kbroker.coordinator import Reply, Runtime
from kbroker.metadata.cache import MetadataCache, MetadataDelta
from kbroker.share.share_coordinator import ShareCoordinator
from kbroker.share.share_partition import StateBatch
from kbroker.share.share_records import Place, ShareState, decode
from kbroker.share.share_shard import ShareShard
from kbroker.share.state_batches import combine
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.messages.share_group_state import (
    InitializeStatePartition,
    ReadStatePartition,
    WriteStatePartition,
)
from protocol.messages.share_group_state import StateBatch as Sent
from tests.coordinator.memory import MemoryStore, at_once

TOPIC_ID = b"t" * 16
PLACE = Place("g", TOPIC_ID, 0)


class Image(MetadataCache):
    """A cluster with a topic, until it is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there = True

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == TOPIC_ID and self.is_there else None

    def partition(self, topic: str, index: int) -> Any:
        return SimpleNamespace(leader_epoch=9) if topic == "t" and index < 3 else None


class World:
    """A broker that leads the only partition of __share_group_state."""

    def __init__(self, **static: str) -> None:
        given = {key.replace("_", "."): Given(text, "test") for key, text in static.items()}
        self.config: BrokerConfig = resolve_broker(BrokerLayers(static=given))
        self.store, self.image = MemoryStore(), Image()
        self.now_ms = 1_000_000
        self.store.wall_ms = lambda: self.now_ms
        self.forgotten: list[int] = []
        self.said: list[Any] = []
        self.epoch = 0
        self.elect()

    def elect(self) -> None:
        """Another broker leads, and has what is in the log."""
        self.scheduler = Scheduler(self.now_ms)

        def make(partition: int, epoch: int) -> ShareShard:
            return ShareShard(
                partition,
                epoch,
                self.store,
                lambda: self.config,
                self.image,
                lambda partition, offset: self.forgotten.append(offset),
            )

        def answer(reply: Reply) -> None:
            self.said.append(reply.response)

        runtime: Runtime[ShareShard] = Runtime(
            "__share_group_state", self.store, make, answer, lambda event: None, self.scheduler
        )
        self.coordinator = ShareCoordinator(runtime)
        runtime.give = at_once
        runtime.resize(1)
        self.epoch += 1
        runtime.elected(0, self.epoch, self.now_ms)
        while runtime.shards[0].loading:
            self.scheduler.ring_wanted(self.now_ms)

    @property
    def shard(self) -> ShareShard:
        return self.coordinator.runtime.shards[0]

    @property
    def state(self) -> ShareState:
        return self.shard.states[PLACE]

    def _run(self, effects: Any) -> Any:
        before = len(self.said)
        self.coordinator.runtime.carry_out(effects, self.now_ms)
        assert len(self.said) <= before + 1
        return self.said[-1] if len(self.said) > before else None

    def begin(self, state_epoch: int = 1, start_offset: int = 0, place: Place = PLACE) -> Any:
        said = InitializeStatePartition(partition=place.partition, state_epoch=state_epoch, start_offset=start_offset)
        return self._run(self.coordinator.initialize(place, said, object(), self.now_ms))

    def read(self, leader_epoch: int = 0) -> Any:
        said = ReadStatePartition(partition=0, leader_epoch=leader_epoch)
        return self._run(self.coordinator.read(PLACE, said, object(), self.now_ms))

    def summarize(self) -> Any:
        return self.summarize_of(PLACE)

    def summarize_of(self, place: Place) -> Any:
        return self._run(self.coordinator.summarize(place, object(), self.now_ms))

    def write(
        self,
        *batches: tuple[int, int, int, int],
        start: int = 0,
        leader_epoch: int = 0,
        state_epoch: int = 1,
        complete: int = 0,
    ) -> Any:
        said = WriteStatePartition(
            partition=0,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=complete,
            state_batches=[
                Sent(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in batches
            ],
        )
        return self._run(self.coordinator.write(PLACE, said, object(), self.now_ms))

    def pass_time(self, by_ms: int) -> None:
        """Let what is due happen, every minute."""
        for _ in range(by_ms // 60_000):
            self.now_ms += 60_000
            self.scheduler.ring(self.now_ms)


def test_state_that_was_written_is_read_by_the_next_leader() -> None:
    world = World()
    assert world.begin().error_code == ErrorCode.NONE
    assert world.write((0, 4, 2, 1), (7, 7, 0, 2), start=0).error_code == ErrorCode.NONE
    world.elect()
    read = world.read(leader_epoch=3)
    assert (read.state_epoch, read.start_offset) == (1, 0)
    assert [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in read.state_batches
    ] == [
        (0, 4, 2, 1),
        (7, 7, 0, 2),
    ]


def test_a_leader_of_an_older_epoch_is_fenced() -> None:
    world = World()
    world.begin()
    world.read(leader_epoch=5)
    assert world.write((0, 0, 2, 1), leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.read(leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    world.elect()
    assert world.write((0, 0, 2, 1), leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.write((0, 0, 2, 1), leader_epoch=5).error_code == ErrorCode.NONE


def test_a_leader_epoch_that_is_still_to_come_fences_no_leader() -> None:
    world = World()
    world.begin()
    for epoch in (10, 2**31 - 1):
        assert world.read(leader_epoch=epoch).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.write((0, 0, 2, 1), leader_epoch=epoch).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.read(leader_epoch=9).error_code == ErrorCode.NONE


def test_a_group_that_begins_again_fences_what_was_before() -> None:
    world = World()
    world.begin(state_epoch=1)
    world.write((0, 4, 2, 1))
    assert world.begin(state_epoch=2, start_offset=100).error_code == ErrorCode.NONE
    assert world.write((0, 4, 2, 1), state_epoch=1).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert world.begin(state_epoch=1).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert (world.state.start_offset, world.state.batches) == (100, ())


def test_what_was_not_begun_is_neither_read_nor_written() -> None:
    world = World()
    assert world.read().error_code == ErrorCode.INVALID_REQUEST
    assert world.write((0, 0, 2, 1)).error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_that_does_not_exist_is_not_begun() -> None:
    world = World()
    assert world.begin(place=PLACE._replace(partition=3)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.begin(place=PLACE._replace(topic_id=b"u" * 16)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_no_broker_asks_is_refused_in_words() -> None:
    world = World()
    refused = [world.begin(state_epoch=-1), world.summarize_of(PLACE._replace(partition=-1))]
    assert [(each.error_code, each.error_message) for each in refused] == [
        (ErrorCode.INVALID_REQUEST, "The state epoch cannot be a negative number."),
        (ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."),
    ]


def test_the_start_offset_never_goes_back() -> None:
    world = World()
    world.begin()
    world.write((5, 9, 2, 1), start=5, complete=5)
    world.write((0, 0, 2, 1), start=0, complete=1)
    assert (world.state.start_offset, world.state.complete) == (5, 5)


def test_nothing_is_answered_before_it_is_committed() -> None:
    world = World()
    world.begin()
    world.store.hold = True
    assert world.write((0, 4, 2, 1)) is None
    assert world.read(leader_epoch=0) is None  # it would speak of what may be lost
    world.coordinator.runtime.advanced(0, world.store.end(0), world.now_ms)
    assert [each.error_code for each in world.said[-2:]] == [0, 0]


def test_a_write_that_is_not_committed_in_time_says_so() -> None:
    world = World()
    world.begin()
    world.store.hold = True
    assert world.write((0, 4, 2, 1)) is None
    world.pass_time(60_000)
    assert world.said[-1].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_was_waited_for_too_long_is_told_once_it_is_committed() -> None:
    world = World()
    world.begin()
    world.store.hold = True
    assert world.write((0, 4, 2, 1), start=5) is None
    world.pass_time(60_000)
    before = len(world.said)
    assert world.summarize() is None
    world.pass_time(60_000)
    assert [each.error_code for each in world.said[before:]] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert world.summarize() is None
    world.coordinator.runtime.advanced(0, world.store.end(0), world.now_ms)
    assert (world.said[-1].error_code, world.said[-1].start_offset) == (ErrorCode.NONE, 5)


def test_a_write_that_the_log_refuses_changes_nothing() -> None:
    world = World()
    world.begin()
    world.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.write((0, 4, 2, 1)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state.batches == ()


def kinds(world: World) -> str:
    """The records in the log: S a snapshot, U an update."""
    from protocol.records.content import parse_set

    found = ""
    for batch in world.store.batches[0]:
        for _, records in parse_set(bytes(batch)):
            for record in records:
                assert record.key is not None
                decoded = decode(record.key, record.value)
                assert decoded is not None
                found += "U" if decoded.is_update else "S"
    return found


def test_so_many_updates_make_a_snapshot() -> None:
    world = World(share_coordinator_snapshot_update_records_per_snapshot="3")
    world.begin()
    for offset in range(6):
        world.write((offset, offset, 2, 1))
    assert kinds(world) == "SUUUSUU"
    before = world.state
    world.elect()
    assert world.state == before


def test_what_is_of_no_use_any_more_goes_from_the_log() -> None:
    world = World(share_coordinator_snapshot_update_records_per_snapshot="2")
    world.begin()
    world.begin(place=PLACE._replace(partition=1))
    for offset in range(4):
        world.write((offset, offset, 2, 1))
    world.pass_time(301_000 // 60_000 * 60_000)  # the quiet one is written again
    world.pass_time(300_000)
    assert world.forgotten[-1] > 1
    assert world.forgotten == sorted(world.forgotten)


def test_what_is_kept_of_a_deleted_topic_goes() -> None:
    world = World()
    world.begin()
    world.image.is_there = False
    world.coordinator.runtime.new_metadata_image(MetadataDelta(["t"], deleted=[("t", 0)]), world.now_ms)
    assert PLACE not in world.shard.states
    world.elect()
    assert PLACE not in world.shard.states


def test_deleting_forgets_and_may_be_done_twice() -> None:
    world = World()
    world.begin()
    for _ in range(2):
        result = world._run(world.coordinator.delete(PLACE, object(), world.now_ms))
        assert result.error_code == ErrorCode.NONE
    assert world.read().error_code == ErrorCode.INVALID_REQUEST


def test_a_summary_says_how_far_a_share_partition_is() -> None:
    world = World()
    unknown = world._run(world.coordinator.summarize(PLACE, object(), world.now_ms))
    assert (unknown.error_code, unknown.start_offset) == (0, -1)
    world.begin()
    world.write((0, 4, 2, 1), complete=5)
    known = world._run(world.coordinator.summarize(PLACE, object(), world.now_ms))
    assert (known.start_offset, known.delivery_complete_count, known.state_epoch) == (0, 5, 1)


def test_of_batches_that_overlap_the_later_fate_counts() -> None:
    older = [StateBatch(0, 9, 0, 1), StateBatch(20, 29, 2, 1)]
    newer = [StateBatch(5, 6, 2, 2), StateBatch(9, 12, 0, 1)]
    assert combine(older, newer, 2) == (
        StateBatch(2, 4, 0, 1),
        StateBatch(5, 6, 2, 2),
        StateBatch(7, 12, 0, 1),
        StateBatch(20, 29, 2, 1),
    )
