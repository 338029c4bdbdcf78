"""Which leader is fetched from, when, and what becomes of who has no address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.facts import BrokerConfigChanged
from kbroker.broker.replica_fetchers import ReplicaFetchers
from kbroker.log.facts import LogTruncated
from kbroker.metadata.cache import MetadataDelta
from kbroker.metadata.requester import Requester
from kbroker.metadata.store import BrokerInfo
from kbroker.ports import Endpoint, PeerAnswer, PeerFault, PeerFaultKind
from kbroker.replica.facts import RoleChanged
from kbroker.replica.partition import LeaderState, Partition
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.flat import flattened
from protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tests.log.worlds import batch, copy_of
from tests.peers import Nobody
from tests.replica.test_fetcher import data
from tests.world import World

ME, LEADER = 1, 2
ID = bytes(range(16))


class Lines(Nobody):
    """Takes requests. tokens, purposes: of those that were sent, in order; dropped: the purposes of lines given up."""

    def __init__(self) -> None:
        self.tokens: list[object] = []
        self.purposes: list[str] = []
        self.dropped: list[str] = []

    def send(self, broker_id: int, address: object, purpose: str, *request: Any) -> None:
        self.tokens.append(request[2])
        self.purposes.append(purpose)

    def drop(self, broker_id: int, purpose: str) -> None:
        self.dropped.append(purpose)


class Follower:
    """A broker that follows p-0."""

    def __init__(self) -> None:
        self.world = World()
        self.lines = Lines()
        self.brokers = {LEADER: BrokerInfo(LEADER, (Endpoint("PLAINTEXT", 0, "h", 1),))}  # in the image
        plane = SimpleNamespace(
            broker_id=ME, configs=self.world.broker.plane.configs, broker_epoch=7,
        )  # fmt: skip
        clock = self.world.clock
        self.scheduler = Scheduler(clock.now_ms())
        cache = cast(Any, SimpleNamespace(brokers=self.brokers))
        requester = Requester(ME, cache, self.world.broker.plane.configs, lambda: self.lines, clock, "PLAINTEXT")
        self.fetchers = ReplicaFetchers(self.world.replicas, cast(Any, plane), requester, clock, self.scheduler)
        self.handlers = {**self.fetchers.handlers, **requester.handlers}
        self.follow(0)

    def follow(self, index: int) -> Partition:
        state = LeaderState(1, LEADER, 0, (ME, LEADER), 0, (ME, LEADER))
        self.world.replicas.become("p", index, ID, state, is_new=True)
        partition = self.world.partition("p", index)
        self.hear(RoleChanged(partition, 0, False))
        return partition

    def set(self, settings: dict[str, str]) -> None:
        """Dynamic settings of all brokers."""
        self.world.broker.plane.configs.set_dynamic(default=settings)
        self.hear(BrokerConfigChanged())

    def hear(self, fact: Any) -> None:
        self.handlers[type(fact)](fact, self.world.clock.now_ms())

    def answer(self, part: PartitionData) -> None:
        """What the leader says of p-0, in a session."""
        topic = FetchableTopicResponse(topic_id=ID, partitions=[part])
        answer = PeerAnswer(self.lines.tokens[-1], flattened(FetchResponse(session_id=5, responses=[topic])))
        self.hear(answer)

    def refuse(self) -> None:
        """The leader does not serve our version: it is asked again after a pause."""
        self.hear(PeerFault(self.lines.tokens[-1], PeerFaultKind.UNSUPPORTED, False, "too new"))

    def wait(self) -> None:
        due_ms = self.due_ms
        assert due_ms is not None
        self.world.clock.advance(due_ms - self.world.clock.now_ms())
        self.scheduler.ring(due_ms)

    @property
    def due_ms(self) -> int | None:
        return self.scheduler.next_ms


def test_who_may_not_ask_yet_is_woken_when_the_pause_ends() -> None:
    follower = Follower()
    follower.refuse()
    before = len(follower.lines.tokens)
    follower.wait()
    assert (before, len(follower.lines.tokens), follower.due_ms) == (1, 2, None)


def no_memory(*_: object) -> None:
    raise MemoryError


def test_a_leader_is_asked_again_though_memory_ran_out_at_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower()
    monkeypatch.setattr(follower.world.replicas, "append_as_follower", no_memory)
    with pytest.raises(MemoryError):  # for whoever reports bugs
        follower.answer(data(batch()))
    before = len(follower.lines.tokens)
    follower.wait()
    assert (before, len(follower.lines.tokens)) == (1, 2)


def test_a_leader_is_asked_again_though_memory_ran_out_behind_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower()
    follower.answer(data(batch(), start=1, high_watermark=1))
    follower.answer(data(batch(2), start=1, high_watermark=2))  # its log begins within a batch: kept until the cut ends
    log, before = follower.world.partition("p", 0).log, len(follower.lines.tokens)
    assert log is not None
    monkeypatch.setattr(follower.world.replicas, "append_as_follower", no_memory)
    with pytest.raises(MemoryError):  # for whoever reports bugs
        follower.hear(LogTruncated(("p", 0), log))
    assert (before, len(follower.lines.tokens)) == (2, 3)


def test_a_leader_that_is_too_old_to_say_where_its_log_ends_is_asked_again_after_a_pause() -> None:
    follower = Follower()
    follower.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower.refuse()
    before = len(follower.lines.tokens)
    follower.wait()
    assert (before, len(follower.lines.tokens)) == (2, 3)


def test_who_does_not_know_where_the_leader_is_when_the_pause_ends_waits_for_the_image_alone() -> None:
    follower = Follower()
    follower.refuse()
    leader = follower.brokers.pop(LEADER)
    follower.wait()
    meanwhile = follower.due_ms, len(follower.lines.tokens)
    follower.brokers[LEADER] = leader
    follower.hear(MetadataDelta(["p"]))
    assert (meanwhile, len(follower.lines.tokens)) == ((None, 1), 2)


def test_partitions_go_to_their_fetchers_when_another_number_is_set_and_none_is_left_behind() -> None:
    follower = Follower()
    follower.follow(1)  # Kafka gives it the second of two
    before = list(follower.lines.purposes)
    follower.set({"num.replica.fetchers": "2"})
    more = list(follower.lines.purposes)
    follower.set({})
    assert (before, more, follower.lines.dropped) == (["fetcher"], ["fetcher", "fetcher-1"], ["fetcher-1"])


def test_another_fetcher_cuts_nothing_that_was_followed_in_this_epoch() -> None:
    """A log without leader epochs is cut to the high watermark, but only if its leader may have changed."""
    follower = Follower()
    partition = follower.follow(1)
    follower.world.replicas.append_as_follower(partition, copy_of(batch(epoch=-1)), 0)
    log = partition.log
    assert log is not None
    before = log.epochs.latest, log.high_watermark, log.log_end_offset
    follower.set({"num.replica.fetchers": "2"})
    after = follower.lines.purposes, log.cuts_under_way, log.log_end_offset
    assert (before, after) == ((-1, 0, 1), (["fetcher", "fetcher-1"], 0, 1))
