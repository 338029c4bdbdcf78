"""The explorer finds every state of a model, and each fault that is put into a state machine, by the shortest way."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import pytest

from kbroker.groups.consumer_group import ConsumerGroupMember
from kbroker.groups.reconciliation import HasOwner
from kbroker.groups.streams.reconciliation import Current, Owners
from kbroker.log.producer_state import BatchSpan, Origin, Producers
from kbroker.replica.followers import Follower
from kbroker.replica.partition import Partition
from kbroker.share.share_partition import Change, SharePartition
from kbroker.sim.explored_in_sync import Cluster, InSyncEvent, InSyncModel, _known
from kbroker.sim.explored_members import MemberWorld
from kbroker.sim.explored_partitions import PartitionModel
from kbroker.sim.explored_producer import ProducerModel
from kbroker.sim.explored_records import IsWritten, RecordModel
from kbroker.sim.explored_records import Written as Stored
from kbroker.sim.explored_tasks import TaskModel
from kbroker.sim.explorer import MOST_STATES, Explored, ObjectionError, explore
from protocol.records.batch import PRODUCER_EPOCH, PRODUCER_ID, HeaderTuple


class Counters:
    """Two counters up to 3, which may never be 2 and 3."""

    def __init__(self, forbidden: tuple[int, int] | None = None) -> None:
        self.forbidden = forbidden

    def begins(self) -> list[tuple[int, int]]:
        return [(0, 0)]

    def events(self, state: tuple[int, int]) -> Iterator[str]:
        yield from ("left", "right")

    def after(self, state: tuple[int, int], event: str) -> tuple[int, int] | None:
        left, right = state
        moved = (left + 1, right) if event == "left" else (left, right + 1)
        return None if max(moved) > 3 else moved

    def key(self, state: tuple[int, int]) -> tuple[int, int]:
        return state

    def objection(self, before: tuple[int, int], event: str, after: tuple[int, int]) -> str | None:
        return "forbidden" if after == self.forbidden else None


def test_every_state_is_met_once_and_every_transition_followed() -> None:
    assert explore(Counters()) == Explored(states=16, transitions=24, depth=6, closed=True)


def test_an_objection_comes_with_a_shortest_path() -> None:
    with pytest.raises(ObjectionError) as raised:
        explore(Counters(forbidden=(1, 2)))
    assert sorted(map(str, raised.value.path)) == ["left", "right", "right"]


def test_a_bound_is_said_to_have_been_met() -> None:
    assert explore(Counters(), most_states=5) == Explored(states=5, transitions=10, depth=2, closed=False)


# --- a producer's sequences


def test_a_log_never_has_a_batch_twice_or_out_of_turn() -> None:
    explored = explore(ProducerModel(batches=6))
    assert explored.closed
    assert explored.states > 100


class ForgetsDuplicates(Producers):
    """Does not tell that a batch was appended before."""

    def check(self, header: HeaderTuple, origin: Origin) -> BatchSpan | None:
        super().check(header, origin)
        return None


class ForgetsEpochs(Producers):
    """Takes batches of a producer's old epoch for its own."""

    def check(self, header: HeaderTuple, origin: Origin) -> BatchSpan | None:
        entry = self.get(header[PRODUCER_ID])
        if entry is not None and header[PRODUCER_EPOCH] < entry.epoch:
            return None
        return super().check(header, origin)


class SnapshotsNothing(Producers):
    """Writes snapshots without producers."""

    def snapshot(self) -> bytes:
        return Producers().snapshot()


@pytest.mark.parametrize(("fault", "steps"), [(ForgetsDuplicates, 2), (ForgetsEpochs, 4), (SnapshotsNothing, 4)])
def test_a_fault_in_the_memory_of_producers_is_found(fault: type[Producers], steps: int) -> None:
    with pytest.raises(ObjectionError) as raised:
        explore(ProducerModel(make=fault))
    assert len(raised.value.path) == steps


# --- tasks of a streams group


@pytest.mark.slow
def test_tasks_never_have_two_owners_and_members_never_wait_for_nothing() -> None:
    explored = explore(TaskModel(targets=2))
    assert explored.closed
    assert explored.states > 1_000


class GivesTasksAway(TaskModel):
    """Does not ask whether a task is free."""

    def _owners(self, known: object) -> Owners:
        return Owners()


class BelievesAtOnce(TaskModel):
    """Takes tasks away from a member that has not said that it has let go of them."""

    def _reconcile(self, current: Current, member: int, state: MemberWorld, said: object) -> Current:
        return super()._reconcile(current, member, state, state.target[member])


class NeverReleases(TaskModel):
    """Lets a member wait that has said that it has let go."""

    def _reconcile(self, current: Current, member: int, state: MemberWorld, said: object) -> Current:
        return super()._reconcile(current, member, state, current.tasks.with_all(current.pending))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (GivesTasksAway, "is given to two members"),
        (BelievesAtOnce, "is with two members"),
        (NeverReleases, "waits for nothing"),
    ],
)
def test_a_fault_in_the_reconciliation_of_tasks_is_found(fault: type[TaskModel], why: str) -> None:
    with pytest.raises(ObjectionError, match=why):
        explore(fault(targets=2, with_standby=False))


# --- partitions of a consumer group


def test_partitions_never_have_two_owners_and_members_never_wait_for_nothing() -> None:
    explored = explore(PartitionModel(targets=2))
    assert explored.closed
    assert explored.states > 3_000


class GivesPartitionsAway(PartitionModel):
    """Does not ask whether a partition is free."""

    def _owners(self, known: object) -> HasOwner:
        return lambda topic, partition: False


class BelievesInPartitions(PartitionModel):
    """Takes partitions away from a member that has not said that it has let go of them."""

    def _reconcile(
        self, current: ConsumerGroupMember, member: int, state: MemberWorld, said: object
    ) -> ConsumerGroupMember:
        return super()._reconcile(current, member, state, state.target[member])


class NeverHearsOfPartitions(PartitionModel):
    """Lets a member wait that has said that it has let go."""

    def _reconcile(
        self, current: ConsumerGroupMember, member: int, state: MemberWorld, said: object
    ) -> ConsumerGroupMember:
        return super()._reconcile(current, member, state, None)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (GivesPartitionsAway, "is given to two members"),
        (BelievesInPartitions, "is with two members"),
        (NeverHearsOfPartitions, "waits for nothing"),
    ],
)
def test_a_fault_in_the_reconciliation_of_partitions_is_found(fault: type[PartitionModel], why: str) -> None:
    with pytest.raises(ObjectionError, match=why):
        explore(fault(targets=2))


# --- records of a share group


@pytest.mark.parametrize("model", [RecordModel(records=1, writes=2), RecordModel(members=1)])
def test_records_of_a_share_group_are_neither_lost_nor_given_out_again(model: RecordModel) -> None:
    assert explore(model).closed


class DoesNotHearOfWrites(RecordModel):
    """Takes every write for one that failed."""

    def _end_write(self, partition: SharePartition, change: Change, event: IsWritten) -> None:
        super()._end_write(partition, change, IsWritten(is_written=False, is_late=True))


class CountsWrongly(RecordModel):
    """Gives a record out once too often."""

    def _load(self, records: tuple[Stored, ...]) -> SharePartition:
        partition = super()._load(records)
        partition.limits = partition.limits._replace(deliveries=partition.limits.deliveries + 1)
        return partition


class DropsWhatExpires(RecordModel):
    """Passes the first record by when its lock runs out."""

    def _expire(self, partition: SharePartition) -> Change:
        change = super()._expire(partition)
        partition.log_starts_at(1)
        return change


class MixesWritesUp(RecordModel):
    """Has a lock that has run out wait for its write with all others, though it counts already."""

    def _expire(self, partition: SharePartition) -> Change:
        change = super()._expire(partition)
        now = {stretch.first: stretch for stretch in partition.stretches}
        change.stretches = [(now.get(batch.first, stretch), batch) for stretch, batch in change.stretches]
        return change


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (DoesNotHearOfWrites, "was accepted, and is given out again"),
        (CountsWrongly, "is given out 3 times"),
        (DropsWhatExpires, "is lost"),
        (MixesWritesUp, "is given out 3 times"),
    ],
)
def test_a_fault_in_what_becomes_of_shared_records_is_found(fault: type[RecordModel], why: str) -> None:
    with pytest.raises(ObjectionError, match=why):
        explore(fault(records=1, writes=2))


# --- the in-sync replicas


def test_what_is_committed_stays_with_whoever_is_in_sync() -> None:
    explored = explore(InSyncModel(records=1, epochs=2))
    assert explored.closed
    assert explored.states > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("min_insync", "states"), [(1, 23_952), (2, 23_291)])
def test_the_same_of_three_brokers(min_insync: int, states: int) -> None:
    explored = explore(InSyncModel(brokers=3, records=1, epochs=2, min_insync=min_insync))
    assert explored.closed
    assert explored.states == states


class TellsAllApart(InSyncModel):
    """Takes states for one only if they are equal, and looks whether those that it should take for one are alike."""

    def __init__(self, brokers: int, min_insync: int) -> None:
        super().__init__(brokers=brokers, records=1, epochs=2, min_insync=min_insync)
        self.futures: dict[Hashable, set[Hashable]] = {}

    def events(self, state: Cluster) -> Iterator[InSyncEvent]:
        found = list(super().events(state))
        afters = [self.after(state, event) for event in found]
        key = super().key(state)
        future = {super(TellsAllApart, self).key(after) for after in afters if after is not None} - {key}
        assert self.futures.setdefault(key, future) == future, (key, found)
        return iter(found)

    def key(self, state: Cluster) -> Hashable:
        parts = [
            (log.records, log.high_watermark, None if partition is None else _known(partition))
            for log, partition in zip(state.logs, state.partitions, strict=True)
        ]
        return tuple(parts), state.decided, state.committed


@pytest.mark.slow
@pytest.mark.parametrize("min_insync", [1, 2])
@pytest.mark.parametrize(("brokers", "most"), [(2, MOST_STATES), (3, 500)])
def test_states_of_brokers_that_are_taken_for_one_have_the_same_future(
    brokers: int, most: int, min_insync: int
) -> None:
    model = TellsAllApart(brokers, min_insync)
    explored = explore(model, most)
    assert explored.closed == (brokers == 2)
    assert len(model.futures) < 2 * explored.states / 3


class CommitsAlone(Partition):
    """Does not wait for followers."""

    def _min_isr_end_offset(self, log: object) -> int:
        return self._require_log().log_end_offset


class TakesAnyoneIn(Partition):
    """Takes followers into the set that do not have what is committed."""

    def _maybe_expand_isr(self, follower: Follower, log: object) -> None:
        self._propose((*self.isr, follower.broker_id), follower.broker_id)


class ForgetsWhoJoins(Partition):
    """Does not wait for a follower that was proposed, and may be in the set already."""

    def _propose(self, isr: tuple[int, ...], joining: int) -> None:
        super()._propose(isr, -1)

    def _min_isr_end_offset(self, log: object) -> int:
        ends = [each.log_end_offset for each in self.followers.values() if each.broker_id in self.isr]
        return min([self._require_log().log_end_offset, *ends])


class BelievesAnyGrant(Partition):
    """Shrinks the set before the controller has agreed."""

    def _propose(self, isr: tuple[int, ...], joining: int) -> None:
        super()._propose(isr, joining)
        if joining < 0:
            self.isr = isr


@pytest.mark.parametrize("fault", [CommitsAlone, TakesAnyoneIn, ForgetsWhoJoins, BelievesAnyGrant])
def test_a_fault_in_the_in_sync_set_is_found(fault: type[Partition]) -> None:
    with pytest.raises(ObjectionError, match=r"in sync|commits"):
        explore(InSyncModel(make=fault))
