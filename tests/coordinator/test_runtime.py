"""The runtime with a shard that only counts: one way into the state, committed apart from applied, loading, leaving."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kbroker.coordinator import KeyValue, Reply, Runtime, Shard, TimerKey, Turn
from protocol.errors import ErrorCode
from protocol.messages.groups import HeartbeatResponse
from tests.coordinator.memory import MemoryStore


class Counter(Shard[str]):
    """Words, in the order of the log. told: notes with what became of them."""

    def __init__(self, partition: int, epoch: int, store: MemoryStore) -> None:
        super().__init__(partition, epoch, store)
        self.words: list[tuple[str, int]] = []
        self.seen_committed = 0
        self.told: list[tuple[object, str]] = []

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

    def committed(self, turn: Turn, note: object) -> None:
        self.told.append((note, "committed"))
        turn.reply(note, HeartbeatResponse(error_code=0))

    def abandoned(self, turn: Turn, note: object, code: ErrorCode) -> None:
        turn.reply(note, HeartbeatResponse(error_code=code))

    def loaded(self, turn: Turn) -> None:
        turn.set_timer("tick", "", 10)

    def unload(self, turn: Turn) -> None:
        turn.cancel_timer("tick", "")

    def timer(self, turn: Turn, key: TimerKey) -> None:
        turn.write([key.kind], None)


class House:
    """A runtime that leads partition 0. answers: in order, (call, error code)."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.answers: list[tuple[Hashable, int]] = []
        self.runtime: Runtime[Counter] = Runtime(
            "t", 1, self.store, lambda *where: Counter(*where, self.store), self._answer, lambda _: None, 0
        )

    def _answer(self, reply: Reply) -> None:
        response: Any = reply.response
        self.answers.append((reply.call, response.error_code))

    def serve(self) -> Counter:
        self.runtime.elected(0, 1, 0)
        while self.runtime.shards[0].loading:
            self.runtime.expire(0)
        return self.runtime.shards[0]

    def write(self, word: str, note: object | None = None) -> ErrorCode:
        turn = self.runtime.shards[0].turn(0)
        code = turn.write([word], note)
        self.runtime.carry_out(turn.effects, 0)
        return code


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
    house.runtime.expire(0)
    assert (nobody, loading, house.runtime.find("g")) == (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        house.runtime.shards[0],
    )


def test_leadership_lost_while_loading_ends_the_loading() -> None:
    house = House()
    house.runtime.elected(0, 1, 0)
    house.runtime.resigned(0, 0)
    assert house.runtime.next_deadline_ms() is None


def test_timer_of_a_shard_goes_with_it() -> None:
    house = House()
    shard = house.serve()
    house.runtime.expire(10)
    rings = [word for word, _ in shard.words]
    house.runtime.elected(0, 2, 10)
    house.runtime.expire(10)
    house.runtime.resigned(0, 10)
    assert (rings, house.runtime.next_deadline_ms()) == (["tick"], None)
