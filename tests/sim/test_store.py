"""The simulated ensemble: order under delays, sessions that end, brokers that are cut off."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kbroker.ports import (
    Children,
    Create,
    Get,
    NodeChanged,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.sim.store import SESSION_TIMEOUT_MS, Ensemble, SimSession


class World:
    """A heap of jobs, and one delay after the other from a list."""

    def __init__(self, delays: list[int] | None = None) -> None:
        self.now = 0
        self._jobs: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._delays = delays or []
        self.ensemble = Ensemble(self.later, lambda: self._delays.pop(0) if self._delays else 1)

    def later(self, delay_ms: int, job: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._jobs, (self.now + delay_ms, self._count, job))

    def run(self, until: int = 1000) -> None:
        while self._jobs and self._jobs[0][0] <= self.now + until:
            at, _, job = heapq.heappop(self._jobs)
            until -= at - self.now
            self.now = at
            job()

    def broker(self) -> tuple[SimSession, list[StoreEvent]]:
        events: list[StoreEvent] = []
        store = self.ensemble.connect(events.append)
        self.run()
        assert isinstance(events.pop(0), SessionStarted)
        return store, events


def test_answers_keep_their_order_whatever_the_delays() -> None:
    world = World()
    store, events = world.broker()
    world._delays += [50, 1, 1, 30]
    store.submit([Create("/a")], 1)
    store.submit([Get("/a")], 2)
    world.run()
    assert [event.token for event in events if isinstance(event, StoreAnswer)] == [1, 2]


def test_one_broker_watches_what_another_does() -> None:
    world = World()
    one, seen = world.broker()
    other, _ = world.broker()
    one.submit([Children("/", watch=True)], 1)
    world.run()
    other.submit([Create("/a")], 1)
    world.run()
    assert seen[-1] == NodeChanged("/", "children")


def test_an_expired_session_loses_its_ephemeral_nodes_and_gets_a_new_one() -> None:
    world = World()
    one, events = world.broker()
    one.submit([Create("/e", ephemeral=True)], 1)
    world.run()
    one.expire()
    world.run()
    assert "/e" not in world.ensemble.tree.nodes
    assert isinstance(events[-2], SessionExpired)
    assert isinstance(events[-1], SessionStarted)


def test_what_an_expired_session_submits_fails() -> None:
    world = World()
    one, events = world.broker()
    one.expire()
    one.submit([Create("/a")], 1)
    world.run()
    answers = [event for event in events if isinstance(event, StoreAnswer)]
    assert [outcome.fault for outcome in answers[0].outcomes] == [StoreFault.SESSION_EXPIRED]


def test_a_crashed_broker_keeps_its_ephemeral_nodes_until_the_timeout() -> None:
    world = World()
    one, _ = world.broker()
    one.submit([Create("/e", ephemeral=True)], 1)
    world.run()
    one.crash()
    world.run(SESSION_TIMEOUT_MS - 10_000)
    assert "/e" in world.ensemble.tree.nodes
    world.run(20_000)
    assert "/e" not in world.ensemble.tree.nodes


def test_a_broker_that_is_cut_off_too_long_hears_of_its_end_when_it_is_back() -> None:
    world = World()
    one, events = world.broker()
    one.cut()
    world.run(2 * SESSION_TIMEOUT_MS)
    assert events == []
    one.heal()
    world.run()
    assert [type(event) for event in events] == [SessionExpired, SessionStarted]


def test_a_short_cut_only_delays() -> None:
    world = World()
    one, events = world.broker()
    one.cut()
    one.submit([Create("/a")], 1)
    world.run(SESSION_TIMEOUT_MS - 10_000)
    one.heal()
    world.run(10_000)
    assert [type(event) for event in events] == [StoreAnswer]
