"""What is asked of other brokers: where, in which version, and what is said of those that do not answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.config import BrokerLayers, Given
from kbroker.config.limits import PEER_FAILURES_SAID_EVERY_MS
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.metadata.requester import VERSIONS, Asked, Requester
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.ports import (
    CONTROL,
    DEAD_LETTERS,
    END_OFFSETS,
    FETCHER,
    IN_SYNC,
    MARKERS,
    SHARE_STATE,
    TO_CONTROLLER,
    TRANSACTIONS,
    PeerAnswer,
    PeerEvent,
    PeerFault,
)
from kbroker.ports import PeerFaultKind as Kind
from protocol.apis import BY_KEY
from protocol.messages.control import ControlledShutdownRequest
from tests.peers import Nobody

ME, OTHER = 1, 2
INSIDE, CONTROLLERS = Endpoint("INSIDE", 3, "other", 9093), Endpoint("CONTROLLERS", 1, "other", 9094)
REQUEST = ControlledShutdownRequest(broker_id=ME, broker_epoch=7)


class Peers(Nobody):
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.dropped: list[tuple[int, str]] = []

    def send(self, *what: Any) -> None:
        self.sent.append(what)

    def drop(self, *line: Any) -> None:
        self.dropped.append(line)


class Bench:
    """A requester of broker 1, and who asks by it. heard: what was."""

    def __init__(self, **settings: str) -> None:
        static = {key.replace("_", "."): Given(text, "test") for key, text in settings.items()}
        self.ms = 0
        self.peers = Peers()
        self.heard_of: list[PeerEvent] = []
        self.then: Callable[[], object] = lambda: None
        cache = MetadataCache()
        self.brokers = cache.brokers
        self.brokers.update({ME: BrokerInfo(ME, (INSIDE,)), OTHER: BrokerInfo(OTHER, (INSIDE, CONTROLLERS))})
        clock = cast(Any, SimpleNamespace(now_ms=lambda: self.ms))
        self.requester = Requester(ME, cache, Configs(BrokerLayers(static=static)), lambda: self.peers, clock, "INSIDE")

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        self.heard_of.append(event)
        self.then()

    def ask(self, broker_id: int = OTHER, purpose: str = TO_CONTROLLER, **more: Any) -> bool:
        return self.requester.ask(self, broker_id, purpose, REQUEST, **more)

    def end(self, number: int = -1, kind: Kind | None = None, why: str = "Connection refused") -> None:
        token = self.peers.sent[number][5]
        event = PeerFault(token, kind, False, why) if kind is not None else PeerAnswer(token, ())
        self.requester.handlers[type(event)](event, self.ms)


@pytest.mark.parametrize(
    ("purpose", "endpoint"),
    [
        (TO_CONTROLLER, INSIDE),
        (MARKERS, INSIDE),
        (TRANSACTIONS, INSIDE),
        (SHARE_STATE, INSIDE),
        (DEAD_LETTERS, INSIDE),
        (END_OFFSETS, INSIDE),
        (FETCHER, INSIDE),
        (f"{FETCHER}-1", INSIDE),
        (CONTROL, CONTROLLERS),
        (IN_SYNC, CONTROLLERS),
    ],
)
def test_each_purpose_has_its_listener_with_its_security_protocol(purpose: str, endpoint: Endpoint) -> None:
    bench = Bench(
        listeners="INSIDE://:9093,CONTROLLERS://:9094",
        listener_security_protocol_map="INSIDE:SASL_SSL,CONTROLLERS:SSL",
        inter_broker_listener_name="INSIDE",
        control_plane_listener_name="CONTROLLERS",
    )
    assert bench.ask(purpose=purpose)
    assert bench.peers.sent[0][:3] == (OTHER, endpoint, purpose)


def test_who_cannot_be_reached_is_not_asked() -> None:
    bench = Bench()
    bench.brokers[3] = BrokerInfo(3, ())
    assert ([bench.ask(each) for each in (ME, 3, 4)], bench.peers.sent) == ([False] * 3, [])


def test_a_broker_that_has_come_back_is_asked_where_it_is_now() -> None:
    bench = Bench()
    moved = INSIDE._replace(host="elsewhere")
    bench.ask()
    bench.brokers[OTHER] = BrokerInfo(OTHER, (moved,), epoch=9)
    bench.ask()
    assert [endpoint for _, endpoint, *_ in bench.peers.sent] == [INSIDE, moved]


def test_every_version_is_one_that_its_request_has() -> None:
    kinds = {each.request.__name__: each.request for each in BY_KEY.values()}
    assert all(kinds[name].versions[0] <= version <= kinds[name].versions[1] for name, version in VERSIONS.items())


@pytest.mark.parametrize(("purpose", "patience_ms"), [(CONTROL, 1_000), (TO_CONTROLLER, 1_000), (MARKERS, 2_000)])
def test_an_answer_is_waited_for_as_long_as_the_settings_say(purpose: str, patience_ms: int) -> None:
    bench = Bench(controller_socket_timeout_ms="1000", request_timeout_ms="2000")
    bench.ask(purpose=purpose)
    bench.ask(purpose=purpose, timeout_ms=7)
    assert [each[-1] for each in bench.peers.sent] == [patience_ms, 7]


def test_a_request_is_under_way_until_its_end_is_heard_or_it_is_dropped() -> None:
    bench, is_asking = Bench(), []
    bench.then = lambda: is_asking.append(bench.requester.is_asking(OTHER, CONTROL))
    bench.ask(purpose=CONTROL)
    is_asking.append(bench.requester.is_asking(OTHER, CONTROL))
    bench.end()
    bench.ask(purpose=CONTROL)
    bench.requester.drop(OTHER, CONTROL)
    bench.then()
    assert (is_asking, bench.peers.dropped) == ([True, False, False], [(OTHER, CONTROL)])


def test_of_several_requests_on_a_line_the_last_one_counts() -> None:
    bench = Bench()
    bench.ask()
    bench.ask()
    bench.end(0)
    assert bench.requester.is_asking(OTHER, TO_CONTROLLER)
    bench.end(1, Kind.RESET)
    assert not bench.requester.is_asking(OTHER, TO_CONTROLLER)


def test_failures_are_said_the_first_time_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker.peers")
    bench = Bench()
    for at_ms in (0, 5_000, 10_000, PEER_FAILURES_SAID_EVERY_MS, 2 * PEER_FAILURES_SAID_EVERY_MS):
        bench.ms = at_ms
        for purpose in (TO_CONTROLLER, CONTROL)[: 2 if at_ms == 5_000 else 1]:
            bench.ask(purpose=purpose)
            bench.end(kind=Kind.REFUSED)
    said = "ControlledShutdown to broker 2 at other:9093 failed: Connection refused"
    assert caplog.messages == [said, f"{said} (3 times before)", said]
    assert len(bench.heard_of) == 6


def test_what_only_an_operator_can_mend_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker.peers")
    bench = Bench()
    for kind in (Kind.RESET, Kind.UNSUPPORTED, Kind.UNSPOKEN):
        bench.ask()
        bench.end(kind=kind)
    bench.brokers[3] = BrokerInfo(3, (CONTROLLERS,))
    for _ in range(2):
        bench.ask(3)
    assert [each.levelname for each in caplog.records] == ["INFO", "ERROR", "ERROR"]
    assert caplog.messages[-1] == "broker 3 is asked nothing: it has no listener INSIDE"
