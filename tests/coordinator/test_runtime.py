"""The runtime with a shard that only counts: one way into the state, committed apart from applied, loading, leaving."""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.coordinator import CoordinatorEvent, KeyValue, Operation, Reply, Runtime, Shard, TimerKey
from kbroker.coordinator.effects import SetTimer, Written
from kbroker.metadata.cache import MetadataDelta
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.messages.groups import HeartbeatResponse
from protocol.records import RecordError
from tests.coordinator.memory import MemoryStore, Read, at_once

LOG, OTHER_LOG = SimpleNamespace(high_watermark=1), SimpleNamespace(high_watermark=1)
REPLICAS: dict[int, SimpleNamespace] = {}  # by their logs


class Counter(Shard[str]):
    """Words, in the order of the log. told: notes with what became of them."""

    IF_MISPLACED = "They are forgotten."

    def __init__(self, partition: int, epoch: int, store: MemoryStore) -> None:
        super().__init__(partition, epoch, store)
        self.words: list[tuple[str, int]] = []
        self.seen_committed = 0
        self.told: list[tuple[object, str]] = []
        self.news: list[str] = []

    @property
    def keys(self) -> list[str]:
        return [word for word, _ in self.words]

    def encode(self, record: str) -> KeyValue:
        return record.encode(), b""

    def decode(self, key: bytes, value: bytes | None) -> str | None:
        return None if key == b"newer" else key.decode()

    def replay(self, record: str, *, record_offset: int, producer_id: int = -1) -> None:
        self.words.append((record, producer_id))

    def replay_marker(self, producer_id: int, *, commit: bool, record_offset: int) -> None:
        self.words.append((f"marker {commit}", producer_id))

    def passed(self) -> None:
        self.seen_committed = self.high_watermark

    def committed(self, operation: Operation, note: object) -> None:
        self.told.append((note, "committed"))
        operation.reply(note, HeartbeatResponse(error_code=0))

    def abandoned(self, operation: Operation, note: object, code: ErrorCode) -> None:
        operation.reply(note, HeartbeatResponse(error_code=code))

    def loaded(self, operation: Operation) -> None:
        operation.set_timer("tick", "", 10)

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        assert not self.loading
        self.news += delta.topics

    def unload(self, operation: Operation) -> None:
        operation.cancel_timer("tick", "")

    def timer(self, operation: Operation, key: TimerKey) -> None:
        operation.write([key.kind], None)


class House:
    """A runtime that leads partition 0. answers: in order, (call, error code). event: what it told the log."""

    def __init__(self, partitions: int = 1) -> None:
        self.store = MemoryStore()
        self.answers: list[tuple[Hashable, int]] = []
        self.event: list[CoordinatorEvent] = []
        self.scheduler = Scheduler()
        self.runtime: Runtime[Counter] = Runtime(
            "t",
            self.store,
            lambda *where: Counter(*where, self.store),
            self._answer,
            self.event.append,
            self.scheduler,
        )
        self.runtime.resize(partitions)
        self.runtime.give = at_once

    def _answer(self, reply: Reply) -> None:
        response: Any = reply.response
        self.answers.append((reply.call, response.error_code))

    def serve(self) -> Counter:
        self.runtime.elected(0, 1, 0)
        while self.runtime.shards[0].loading:
            self.scheduler.ring_wanted(0)
        return self.runtime.shards[0]

    def write(self, word: str, note: object | None = None) -> ErrorCode:
        operation = self.runtime.shards[0].operation(0)
        code = operation.write([word], note)
        self.runtime.carry_out(operation.effects, 0)
        return code


def test_a_shard_hears_of_new_metadata_images_also_of_those_that_came_while_it_was_loading() -> None:
    house = House()
    house.runtime.elected(0, 1, 0)
    house.runtime.new_metadata_image(MetadataDelta(["a"]), 0)
    shard = house.runtime.shards[0]
    assert (shard.loading, shard.news) == (True, [])
    while shard.loading:
        house.scheduler.ring_wanted(0)
    house.runtime.new_metadata_image(MetadataDelta(["b"]), 0)
    assert (shard.news, shard.unheard) == (["a", "b"], [])


def test_what_is_written_is_applied_and_told_when_it_is_committed() -> None:
    house = House()
    shard = house.serve()
    house.store.hold = True
    house.write("a", "call")
    before = shard.words, list(house.answers)
    house.runtime.advanced(0, house.store.commit(0), 0)
    assert (before, house.answers) == (([("a", -1)], []), [("call", 0)])


def test_append_that_is_refused_changes_nothing() -> None:
    house = House()
    shard = house.serve()
    house.store.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert house.write("a", "call") is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (shard.words, shard.waiting, house.answers) == ([], type(shard.waiting)(), [])


def test_next_leader_has_what_was_served() -> None:
    house = House()
    house.serve()
    for word in ("a", "newer", "b"):
        house.write(word)
    house.store.append_marker(0, 7, commit=True)
    assert house.serve().words == [("a", -1), ("b", -1), ("marker True", 7)]


def test_shard_knows_what_is_committed_while_it_applies() -> None:
    house = House()
    shard = house.serve()
    house.write("a")
    assert shard.seen_committed == 1


def test_high_watermark_never_goes_back() -> None:
    house = House()
    shard = house.serve()
    house.write("a")
    house.runtime.advanced(0, 0, 0)
    assert shard.high_watermark == 1


def test_those_who_wait_are_sent_away_with_the_leadership() -> None:
    house = House()
    house.serve()
    house.store.hold = True
    house.write("a", "call")
    house.runtime.resigned(0, 0)
    assert house.answers == [("call", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_nobody_is_served_while_a_shard_loads() -> None:
    house = House()
    nobody = house.runtime.find("g")
    house.runtime.elected(0, 1, 0)
    loading = house.runtime.find("g")
    house.scheduler.ring_wanted(0)
    assert (nobody, loading, house.runtime.find("g")) == (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        house.runtime.shards[0],
    )


def test_leadership_lost_while_loading_ends_the_loading() -> None:
    house = House()
    house.runtime.elected(0, 1, 0)
    house.runtime.resigned(0, 0)
    assert house.scheduler.next_ms is None


def test_timer_of_a_shard_goes_with_it() -> None:
    house = House()
    shard = house.serve()
    house.scheduler.ring(10)
    rings = [word for word, _ in shard.words]
    house.runtime.elected(0, 2, 10)
    house.scheduler.ring(10)
    house.runtime.resigned(0, 10)
    assert (rings, house.scheduler.next_ms) == (["tick"], None)


def test_timer_that_is_cancelled_does_not_ring() -> None:
    house = House()
    shard = house.serve()
    operation = shard.operation(0)
    operation.cancel_timer("tick", "")
    house.runtime.carry_out(operation.effects, 0)
    house.scheduler.ring(10)
    assert (shard.words, house.scheduler.next_ms) == ([], None)


def test_what_an_operator_wants_to_know_is_told() -> None:
    house = House()
    operation = house.serve().operation(0)
    operation.event("g", "is empty", is_detail=True)
    house.runtime.carry_out(operation.effects, 0)
    assert house.event == [CoordinatorEvent("g", "is empty", True)]


def test_those_who_wait_are_sent_away_when_the_partition_is_led_anew() -> None:
    house = House()
    house.serve()
    house.store.hold = True
    house.write("a", "call")
    house.runtime.elected(0, 2, 0)
    assert house.answers == [("call", ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_slice_that_was_read_for_a_former_leadership_is_not_replayed() -> None:
    house = House()
    house.serve()
    house.write("a")
    jobs: list[Any] = []
    house.runtime.give = lambda job, owner: jobs.append(job)
    house.runtime.elected(0, 2, 0)
    house.scheduler.ring_wanted(0)
    waits = house.scheduler.next_ms
    house.runtime.elected(0, 3, 0)
    house.runtime.finished(jobs[0], None, 0)
    assert (waits, house.scheduler.has_work, house.runtime.shards[0].words) == (None, True, [])


def test_timers_ring_while_a_slice_of_another_partition_is_read() -> None:
    house = House(partitions=2)
    shard = house.serve()
    house.store.append(1, [(b"a", b"")], -1, -1)
    house.runtime.give = lambda job, owner: None
    house.runtime.elected(1, 1, 0)
    house.scheduler.ring_wanted(0)
    waits = house.scheduler.next_ms
    house.scheduler.ring(10)
    assert (waits, [word for word, _ in shard.words]) == (10, ["tick"])


def test_partition_that_cannot_be_read_is_not_served_until_it_can() -> None:
    house = House()
    house.serve()
    house.write("a")
    house.runtime.give = lambda job, owner: owner.finished(job, OSError("gone"), 0)
    house.runtime.elected(0, 2, 0)
    house.scheduler.ring_wanted(0)
    waits = house.runtime.find("g"), house.scheduler.next_ms
    house.runtime.give = at_once
    house.scheduler.ring(DESCRIPTOR_RETRY_MS)
    house.scheduler.ring_wanted(DESCRIPTOR_RETRY_MS)
    assert waits == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, DESCRIPTOR_RETRY_MS)
    assert [word for word, _ in house.runtime.shards[0].words] == ["a"]
    assert house.runtime.find("g") is house.runtime.shards[0]


def test_partition_that_cannot_be_read_is_not_tried_again_once_it_is_led_elsewhere() -> None:
    house = House()
    house.serve()
    house.write("a")
    house.runtime.give = lambda job, owner: owner.finished(job, OSError("gone"), 0)
    house.runtime.elected(0, 2, 0)
    house.scheduler.ring_wanted(0)
    house.runtime.resigned(0, 0)
    assert house.scheduler.next_ms is None


def test_marker_is_applied_where_a_shard_serves_and_met_in_the_log_where_it_loads() -> None:
    house = House()
    house.runtime.marked(0, 7, 0, 1, 0, commit=True)  # there is no shard
    house.runtime.elected(0, 1, 0)
    house.runtime.marked(0, 7, 0, 1, 0, commit=True)
    shard = house.runtime.shards[0]
    loading = list(shard.words), shard.high_watermark
    house.scheduler.ring_wanted(0)
    house.runtime.marked(0, 7, 0, 1, 0, commit=False)
    assert (loading, shard.words, shard.high_watermark) == (([], 0), [("marker False", 7)], 1)


def partition(log: object = LOG, *, epoch: int = 1, is_leader: bool = True) -> Any:
    """The replica that has a log: the same one each time, as it is by now."""
    replica = REPLICAS.setdefault(id(log), SimpleNamespace(index=0, log=log))
    replica.leader_epoch, replica.is_leader = epoch, is_leader
    return replica


def test_new_epoch_under_the_same_leader_keeps_the_shard() -> None:
    house = House()
    house.runtime.role_changed(partition(), 0, is_leader=True)
    shard = house.runtime.shards[0]
    house.runtime.role_changed(partition(epoch=2), 0, is_leader=True)
    assert (house.runtime.shards[0] is shard, shard.epoch) == (True, 1)


def test_epochs_are_followed_one_by_one_and_one_that_was_missed_begins_anew() -> None:
    house = House()
    epochs = []
    for epoch in (1, 2, 3, 5, 5, 6):
        house.runtime.role_changed(partition(epoch=epoch), 0, is_leader=True)
        epochs.append(house.runtime.shards[0].epoch)
    assert epochs == [1, 1, 1, 5, 5, 5]


def test_leadership_by_another_replica_loads_again_and_without_one_ends() -> None:
    house = House()
    house.runtime.role_changed(partition(), 0, is_leader=True)
    house.runtime.role_changed(partition(OTHER_LOG, epoch=2), 0, is_leader=True)
    epoch = house.runtime.shards[0].epoch
    house.runtime.role_changed(partition(OTHER_LOG, epoch=3), 0, is_leader=False)
    gone = dict(house.runtime.shards)
    house.runtime.role_changed(partition(OTHER_LOG, epoch=4), 0, is_leader=True)
    assert (epoch, gone, house.runtime.shards[0].epoch) == (2, {}, 4)


def test_only_a_leader_s_high_watermark_commits() -> None:
    house = House()
    shard = house.serve()
    house.runtime.moved(partition(is_leader=False), 0)
    house.runtime.moved(partition(None), 0)
    before = shard.high_watermark
    house.runtime.moved(partition(), 0)
    assert (before, shard.high_watermark) == (0, 1)


def test_number_of_partitions_decides_whose_a_key_is() -> None:
    house = House()
    house.serve()
    house.runtime.resize(50)
    found = house.runtime.partition_of("g")
    assert (found, house.runtime.find("g")) == (ord("g") % 50, ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize("counted_first", [False, True])
def test_keys_that_belong_to_another_partition_are_told_with_what_is_lost(
    caplog: pytest.LogCaptureFixture, *, counted_first: bool
) -> None:
    house = House(partitions=1)
    house.serve()
    for word in ("a", "b", "c"):  # of which hashes are 97, 98 and 99
        house.write(word, word)
    house.runtime.resize(3 if counted_first else 0)
    caplog.clear()
    house.serve()
    house.runtime.resize(3)
    assert caplog.messages[0] == (
        "t-0: 2 of 3 ids found here, such as 'a', belong to other partitions: the topic has 3 partitions, and had"
        " another number when they were written. They are forgotten."
    )


def test_a_log_that_takes_nothing_is_told_once_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker.coordinator")
    house = House()
    shard = house.serve()
    for code in (ErrorCode.NOT_ENOUGH_REPLICAS, None, ErrorCode.NOT_ENOUGH_REPLICAS, None, ErrorCode.MESSAGE_TOO_LARGE):
        for _ in range(3):
            house.store.refuse = code
            shard.write(["a"], None)
            house.store.refuse = None
    for _ in range(3):  # as one client may have it, while others write
        house.store.refuse = ErrorCode.MESSAGE_TOO_LARGE
        shard.write(["a"], None)
        house.store.refuse = None
        shard.write(["a"], None)
    told = [each.split(":")[0].split(" can")[1] for each in caplog.messages]
    cannot, can = "not write to its partition 0", " write to its partition 0 again"
    assert told == [cannot, can, cannot, can, cannot]


def test_of_two_notes_the_one_that_is_committed_is_told() -> None:
    house = House()
    house.serve()
    house.store.hold = True
    house.write("a", "one")
    first = house.store.end(0)
    house.write("b", "two")
    house.runtime.advanced(0, first, 0)
    assert house.answers == [("one", 0)]


def test_a_high_watermark_that_stands_still_is_told_once() -> None:
    house = House()
    shard = house.serve()
    house.write("a")
    passed: list[int] = []
    shard.passed = lambda: passed.append(shard.high_watermark)  # type: ignore[method-assign]
    for high_watermark in (1, 2, 2, 1, 3):
        house.runtime.advanced(0, high_watermark, 0)
    assert passed == [2, 3]


def test_partitions_are_loaded_one_after_the_other_and_nothing_is_due_while_one_is_read() -> None:
    house = House(2)
    given: list[tuple[Any, Any]] = []
    house.runtime.give = lambda job, owner: given.append((job, owner))
    for partition in (0, 1):
        house.store.append(partition, [(b"%d" % partition, b"")], -1, -1)
        house.runtime.elected(partition, 1, 0)
    shards = house.runtime.shards
    seen = []
    while shards[1].loading:
        house.scheduler.ring_wanted(0)
        if given:
            house.scheduler.ring_wanted(0)  # as for a timer: what is read is not asked for again
        seen.append((shards[0].loading, house.scheduler.has_work, len(given)))
        for job, owner in given:
            job.run()
            owner.finished(job, None, 0)
        given.clear()
    assert seen == [(True, False, 1), (False, True, 0), (False, False, 1), (False, False, 0)]
    assert (shards[0].words, shards[1].words) == ([("0", -1)], [("1", -1)])


@pytest.mark.parametrize("late", [False, True])
def test_what_is_committed_while_a_partition_is_loaded_is_known_to_be(late: bool) -> None:
    house = House()
    given: list[Any] = []
    house.store.hold = True
    house.store.append(0, [(b"a", b"")], -1, -1)
    house.runtime.give = lambda job, owner: given.append(job)
    house.runtime.elected(0, 1, 0)
    house.scheduler.ring_wanted(0)
    if not late:
        house.store.commit(0)
    given[0].run()
    house.runtime.finished(given[0], None, 0)
    if late:
        house.store.commit(0)
        house.scheduler.ring_wanted(0)  # nothing more to read
    shard = house.runtime.shards[0]
    assert (shard.words, shard.seen_committed, shard.loading) == ([("a", -1)], 1, not late)


@pytest.mark.parametrize("when", ["found", "read"])
def test_bytes_that_are_no_batch_end_the_loading_and_the_shard_serves(when: str) -> None:
    house = House()
    house.store.append(0, [(b"a", b"")], -1, -1)
    house.runtime.elected(0, 1, 0)
    house.scheduler.ring_wanted(0)  # the first slice is sound

    def read(partition: int, offset: int) -> Read:
        if when == "found":
            raise RecordError(ErrorCode.CORRUPT_MESSAGE, 0, "no batch")
        return Read(offset, memoryview(bytes(100)))

    house.store.read = read  # type: ignore[method-assign]
    house.scheduler.ring_wanted(0)
    shard = house.runtime.shards[0]
    assert (shard.loading, shard.words, house.scheduler.next_ms) == (False, [("a", -1)], 10)


def test_a_turn_tells_of_what_it_has_written_only_if_somebody_waits_for_it() -> None:
    house = House()
    shard = house.serve()
    effects = []
    for note, refusal in ((None, None), ("call", ErrorCode.NOT_ENOUGH_REPLICAS), ("call", None)):
        house.store.refuse = refusal
        operation = shard.operation(0)
        operation.write(["a"], note)
        effects.append(operation.effects)
    assert effects == [[], [], [Written(0)]]


def test_a_turn_without_a_writer_is_of_no_partition() -> None:
    operation = Operation(5)
    operation.set_timer("tick", "", 10)
    assert operation.effects == [SetTimer(TimerKey("tick", -1, "", ""), 15)]
