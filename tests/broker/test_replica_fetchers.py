"""Which leader is fetched from, when, and what becomes of who has no address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kbroker.broker.facts import TopicsUpdated
from kbroker.broker.replica_fetchers import ReplicaFetchers
from kbroker.ports import PeerFault, PeerFaultKind
from kbroker.replica.facts import RoleChanged
from kbroker.replica.partition import LeaderState
from tests.peers import Nobody
from tests.world import World

ME, LEADER = 1, 2
ID = bytes(range(16))


class Lines(Nobody):
    """Takes requests; tokens: of those that were sent, in order."""

    def __init__(self) -> None:
        self.tokens: list[object] = []

    def send(self, broker_id: int, address: object, purpose: str, *request: Any) -> None:
        self.tokens.append(request[2])


class Follower:
    """A broker that follows p-0; address: of its leader, in the image."""

    def __init__(self) -> None:
        self.world = World()
        self.lines = Lines()
        self.address: object = SimpleNamespace(host="h", port=1, security_protocol=0)
        plane = SimpleNamespace(
            cache=SimpleNamespace(node=lambda *_: self.address), configs=self.world.broker.plane.configs, broker_id=ME,
            listener="PLAINTEXT", control_requests=SimpleNamespace(broker_epoch=7),
        )  # fmt: skip
        self.moves: list[object] = []
        self.fetchers = ReplicaFetchers(
            self.world.replicas, cast(Any, plane), self.lines, self.world.clock, lambda: self.moves.append("a deadline")
        )
        state = LeaderState(1, LEADER, 0, (ME, LEADER), 0, (ME, LEADER))
        self.world.replicas.become("p", 0, ID, state, is_new=True)
        self.hear(RoleChanged(self.world.partition("p"), 0, False))

    def hear(self, fact: Any) -> None:
        self.fetchers.handlers[type(fact)](fact, self.world.clock.now_ms())

    def refuse(self) -> None:
        """The leader does not serve our version: it is asked again after a pause."""
        self.hear(PeerFault(self.lines.tokens[-1], PeerFaultKind.UNSUPPORTED, False, "too new"))

    def wait(self) -> None:
        due_ms = self.due_ms
        assert due_ms is not None
        self.world.clock.advance(due_ms - self.world.clock.now_ms())
        self.fetchers.expire(due_ms)

    @property
    def due_ms(self) -> int | None:
        return self.fetchers.next_deadline_ms(self.world.clock.now_ms())


def test_who_may_not_ask_yet_is_woken_when_the_pause_ends() -> None:
    follower = Follower()
    follower.refuse()
    before = len(follower.lines.tokens)
    follower.wait()
    assert (before, len(follower.lines.tokens), follower.due_ms) == (1, 2, None)


def test_the_start_of_a_pause_is_told_to_who_wakes_the_broker() -> None:
    follower = Follower()
    before = list(follower.moves)
    follower.refuse()
    assert (before, follower.moves) == ([], ["a deadline"])


def test_who_does_not_know_where_the_leader_is_when_the_pause_ends_waits_for_the_image_alone() -> None:
    follower = Follower()
    follower.refuse()
    address, follower.address = follower.address, None
    follower.wait()
    meanwhile = follower.due_ms, len(follower.lines.tokens)
    follower.address = address
    follower.hear(TopicsUpdated(["p"]))
    assert (meanwhile, len(follower.lines.tokens)) == ((None, 1), 2)
