"""Requests that wait in the core: how many may, and whom it concerns when one fails."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker import core as core_module
from kbroker.api.call import FIRST, LATER, SILENCE
from kbroker.api.routes import ROUTES, Route, load
from kbroker.broker.authorizer import AuthHelper
from kbroker.broker.counters import Counters
from kbroker.broker.facts import Reply, Touched
from kbroker.channel import Channel
from kbroker.core import AT_REST, EXPIRED, Closed, Core
from kbroker.metadata.features import Features
from kbroker.timing import Scheduler
from protocol.headers import encode_request_header
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

NOW_MS = 1_000
READY, LATE, TOLD = 1, 2, 3  # error codes that tell by which way an answer came


class Patient:
    """Waits for one of its keys."""

    deadline_ms = NOW_MS + 500

    def __init__(self, fails: bool, keys: Sequence[str] = ("moved", "gone")) -> None:
        self._fails = fails
        self.keys = keys

    def answer(self, now_ms: int) -> HeartbeatResponse:
        """At once."""
        if self._fails:
            raise RuntimeError("the file is gone")
        return HeartbeatResponse(error_code=READY)

    def expired(self, now_ms: int) -> HeartbeatResponse:
        """Time is up."""
        if self._fails:
            raise RuntimeError("the file is gone")
        return HeartbeatResponse(error_code=LATE)


class Parts:
    """A broker of which nothing is asked but what moved."""

    strict = False
    plane = SimpleNamespace(controller=object())  # a broker alone, which may be its own controller

    def __init__(self) -> None:
        self.facts: deque[object] = deque()
        self.tell = self.facts.append
        self.replicas = SimpleNamespace(touched=[])
        self.scheduler = Scheduler(NOW_MS)
        self.counters = Counters()
        self.auth_helper = AuthHelper()
        self.features = Features()
        self.logins = None
        self.begun: list[Any] = []  # tickets of requests that are answered later

    def on(self, kind: type, then: object) -> None:
        """There are no quotas that could change."""

    def take_touched(self) -> Sequence[object]:
        """All of them."""
        touched, self.replicas.touched = self.replicas.touched, []
        return touched

    def disconnected(self, session: object) -> None:
        """Who has gone moves the key "gone"."""
        self.facts.append(Touched(["gone"]))

    def handle(self, event: object, now_ms: int) -> None:
        """The event is the key that moved."""
        self.facts.append(Touched([cast(str, event)]))


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    load()

    def heartbeat(request: HeartbeatRequest, call: Any) -> Any:
        if request.member_id == "silent":
            return SILENCE
        if request.member_id in ("later", "first"):
            call.broker.begun.append(call.ticket)
            return LATER if request.member_id == "later" else FIRST
        if request.member_id == "other":
            return Patient(fails=False, keys=["other"])
        return Patient(fails=request.member_id == "fails")

    for api in (12, 1):  # one of the data path behaves like the others here, but for when it is begun
        route = Route(api, HeartbeatRequest, 0, 4, heartbeat, lambda *given: HeartbeatResponse(0), ())
        monkeypatch.setitem(ROUTES, api, route)
    return Core(cast(Any, Parts()), NOW_MS)


def ask(core: Core, channel: Channel, member: str = "waits", api: int = 12) -> None:
    """A request that waits."""
    body = HeartbeatRequest(group_id="", generation_id=0, member_id=member).encode(0)
    frame = bytearray(encode_request_header(HeartbeatRequest, 0, 1, None) + body)
    struct.pack_into(">h", frame, 0, api)
    core.receive(channel, memoryview(frame), NOW_MS)


def codes(channel: Channel) -> list[int]:
    """The error codes of the answers so far."""
    return [struct.unpack(">h", cast(bytes, piece)[-2:])[0] for piece in channel.out]


def test_an_answer_waits_until_its_key_moves(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    ask(core, channel)
    before = codes(channel)
    core.step("moved", NOW_MS)
    assert (before, codes(channel)) == ([], [READY])


def test_beyond_the_most_that_may_wait_the_time_of_the_next_is_up(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "PARKED_OPERATIONS", 3)
    channels = [core.open("PLAINTEXT", "10.0.0.1", port) for port in range(5)]
    for channel in channels:
        ask(core, channel)
    assert [codes(channel) for channel in channels] == [[], [], [], [LATE], [LATE]]


def test_a_waiting_request_that_fails_costs_its_own_connection(core: Core) -> None:
    failing, other = (core.open("PLAINTEXT", "10.0.0.1", port) for port in range(2))
    ask(core, failing, "fails")
    ask(core, other)
    core.step("moved", NOW_MS)
    assert (bool(failing.closing), other.closing, codes(other)) == (True, "", [READY])
    writes = core.effects.take_writes()  # neither was at work itself: one is to be written, one closed
    assert set(writes) == {failing, other}


def test_silence_of_a_request_that_was_held_does_not_hold_up_the_next(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    for member in ("waits", "silent", "waits too"):
        ask(core, channel, member)
    core.step("moved", NOW_MS)
    first = codes(channel)
    core.step("moved", NOW_MS)
    assert (first, codes(channel), channel.busy) == ([READY], [READY, READY], False)


def test_a_waiting_request_that_fails_at_its_deadline_does_not_stop_time(core: Core) -> None:
    failing, other = (core.open("PLAINTEXT", "10.0.0.1", port) for port in range(2))
    ask(core, failing, "fails")
    ask(core, other)
    core.step(EXPIRED, NOW_MS + 600)
    assert (bool(failing.closing), codes(other)) == (True, [LATE])


def test_what_the_end_of_a_connection_leads_to_is_heeded_at_once(core: Core) -> None:
    waiting, gone = (core.open("PLAINTEXT", "10.0.0.1", port) for port in range(2))
    ask(core, waiting)
    core.step(Closed(gone), NOW_MS)
    assert codes(waiting) == [READY]


def test_a_connection_that_closes_takes_its_waiting_requests_along(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    ask(core, channel)
    core.step(Closed(channel), NOW_MS)
    assert len(core._purgatory) == 0


def tell(core: Core) -> None:
    """The answer that was to come later."""
    core._broker.tell(Reply(core._broker.begun[-1], HeartbeatResponse(error_code=TOLD)))  # type: ignore[attr-defined]
    core.step("nothing", NOW_MS)


def test_a_request_that_was_held_and_is_answered_later_holds_up_nobody_then(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    for member in ("waits", "later", "waits too"):
        ask(core, channel, member)
    core.step("moved", NOW_MS)
    tell(core)
    core.step("moved", NOW_MS)
    assert codes(channel) == [READY, TOLD, READY]


def test_a_request_that_was_held_is_begun_once_whatever_comes_behind_it(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    ask(core, channel)
    ask(core, channel, "later")
    ask(core, channel, "other", api=1)  # is begun at once, and answered before the one that it is behind
    core.step("moved", NOW_MS)
    core.step("other", NOW_MS)
    before = codes(channel)
    tell(core)
    assert (before, codes(channel)) == ([READY], [READY, TOLD, READY])
    assert len(core._broker.begun) == 1  # type: ignore[attr-defined]


def test_a_request_that_comes_first_holds_its_connection_up_until_it_is_carried_out(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    ask(core, channel, "first")
    held_by = channel.held_by
    tell(core)
    assert (held_by, codes(channel), channel.held_by) == (core._broker.begun[0], [TOLD], None)  # type: ignore[attr-defined]


def test_what_it_held_up_goes_on_though_it_waits_for_its_answer(core: Core) -> None:
    channel = core.open("PLAINTEXT", "10.0.0.1", 1)
    ask(core, channel, "first")
    core.effects.take_writes()
    core._broker.tell(Reply(core._broker.begun[-1], Patient(fails=False)))  # type: ignore[attr-defined]
    core.step("nothing", NOW_MS)
    assert (codes(channel), channel.held_by, core.effects.take_writes()) == ([], None, (channel,))


# ---- looking later


@pytest.fixture
def gathering(core: Core) -> Core:
    core.gathers = True
    return core


def move(core: Core, key: str) -> None:
    """As a request does that moves a partition."""
    core._broker.replicas.touched.append(cast(Any, key))
    core._drain_facts(NOW_MS)


def test_what_moved_is_looked_at_when_somebody_says_so(gathering: Core) -> None:
    channel = gathering.open("PLAINTEXT", "10.0.0.1", 1)
    ask(gathering, channel)
    move(gathering, "moved")
    before = codes(channel)
    gathering.step(AT_REST, NOW_MS)
    assert (before, codes(channel), gathering.effects.moved) == ([], [READY], {})


def test_a_channel_is_told_of_as_soon_as_its_answer_is_made(gathering: Core) -> None:
    channels = [gathering.open("PLAINTEXT", "10.0.0.1", 1) for _ in range(2)]
    for channel in channels:
        ask(gathering, channel)
    move(gathering, "moved")
    seen = [(channel, [codes(each) for each in channels]) for channel in gathering.at_rest(NOW_MS)]
    assert seen == [(channels[0], [[READY], []]), (channels[1], [[READY], [READY]])]


def test_who_is_gone_by_the_time_another_was_answered_is_left_out(gathering: Core) -> None:
    first, second = (gathering.open("PLAINTEXT", "10.0.0.1", 1) for _ in range(2))
    for channel in (first, second):
        ask(gathering, channel)
    move(gathering, "moved")
    seen = []
    for channel in gathering.at_rest(NOW_MS):
        seen.append(channel)
        gathering.step(Closed(second), NOW_MS)
    assert seen == [first]


def test_what_moved_before_a_deadline_is_looked_at_before_time_is_up(gathering: Core) -> None:
    channel = gathering.open("PLAINTEXT", "10.0.0.1", 1)
    ask(gathering, channel)
    move(gathering, "moved")
    gathering.step(EXPIRED, NOW_MS + 600)
    assert codes(channel) == [READY]


def test_what_nobody_waits_for_is_not_gathered(gathering: Core) -> None:
    move(gathering, "moved")
    assert gathering.effects.moved == {}
