"""What connections to other brokers do by themselves: when they wake, what they say, in which order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.config.limits import PEER_SETUP_MS
from kbroker.peers import BrokerConnection, BrokerConnections, Link
from kbroker.ports import CONTROL, Endpoint, PeerEvent, PeerFault
from protocol.messages.control import UpdateMetadataRequest


class DeadLink:
    """A connection on which nothing happens."""

    def send(self, data: bytes) -> None:
        raise AssertionError(data)

    def close(self) -> None:
        """Gone."""


class Dialled(BrokerConnections):
    """Connections that come to nothing unless a test says so. later: what is to be done after the step."""

    def __init__(self) -> None:
        self.ms = 0
        self.told: list[PeerEvent] = []
        self.later: list[Callable[[], None]] = []
        self.dialled: list[BrokerConnection] = []
        self.wakes: list[int | None] = []
        super().__init__("broker-1", lambda: self.ms, self.hear)

    def hear(self, event: PeerEvent) -> None:
        self.told.append(event)

    def dial(self, connection: BrokerConnection) -> Link:
        self.dialled.append(connection)
        return DeadLink()

    def soon(self, what: Callable[[], None]) -> None:
        self.later.append(what)

    def wake_at(self, deadline_ms: int | None) -> None:
        self.wakes.append(deadline_ms)

    def ask(self, token: object, broker_id: int = 2, *, port: int = 9092, timeout_ms: int = 60_000) -> None:
        request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=[])
        self.send(broker_id, Endpoint("PLAINTEXT", 0, "h", port), CONTROL, request, 8, token, timeout_ms)


@pytest.fixture
def lines() -> Dialled:
    made = Dialled()
    made.join("cluster")
    return made


def test_the_first_deadline_of_all_lines_counts(lines: Dialled) -> None:
    lines.ask("slow")
    before = lines.next_deadline_ms()
    lines.ask("quick", 3, timeout_ms=10)
    assert (before, lines.next_deadline_ms()) == (PEER_SETUP_MS, 10)


def test_only_what_is_due_sooner_than_all_else_moves_the_time_to_wake_up(lines: Dialled) -> None:
    lines.ask("slow")
    lines.ask("slower", 3)
    lines.ask("quick", 4, timeout_ms=10)
    assert lines.wakes == [PEER_SETUP_MS, 10]


def test_who_was_woken_says_anew_when(lines: Dialled) -> None:
    lines.ask("slow")
    lines.ask("quick", 3, timeout_ms=10)
    lines.ms = 10
    lines.expire()
    assert lines.wakes == [PEER_SETUP_MS, 10, PEER_SETUP_MS]


def test_nothing_is_left_for_later_where_nothing_has_happened(lines: Dialled) -> None:
    lines.ask("token")
    assert (lines.later, lines.told) == ([], [])


def test_what_a_move_fails_is_told_once_after_the_step(lines: Dialled) -> None:
    lines.ask("token")
    lines.ask("moved", port=9093)
    before = list(lines.told)
    for each in lines.later:
        each()
    assert (before, [(type(each), each.token) for each in lines.told]) == ([], [(PeerFault, "token")])


def test_an_event_is_told_when_the_one_before_has_been_heard_to_its_end(lines: Dialled) -> None:
    heard: list[object] = []

    def hear(event: PeerEvent) -> None:
        heard.append(("begins", event.token))
        lines.settle()
        heard.append(("ends", event.token))

    lines._post = hear
    lines.ask("one")
    lines.ask("two")
    lines.dialled[0].lost("reset", 0)
    lines.settle()
    assert heard == [("begins", "one"), ("ends", "one"), ("begins", "two"), ("ends", "two")]


def test_nobody_is_asked_before_a_cluster_is_joined_or_after_the_end(lines: Dialled) -> None:
    with pytest.raises(AssertionError, match="no cluster was joined"):
        Dialled().ask("token")
    lines.close()
    with pytest.raises(AssertionError, match="the connections are closed"):
        lines.ask("token")
