"""Requests to the leader of a quorum: asked again until they are answered, or their time is up."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.observer import ActiveController
from kbroker.broker.to_controller import RETRY_MS, ToController
from kbroker.config.limits import REQUESTS_TO_CONTROLLER
from kbroker.metadata.store import Endpoint
from kbroker.ports import TO_CONTROLLER, PeerAnswer, PeerFault, PeerFaultKind
from kbroker.quorum.facts import LeaderChanged
from kbroker.sim.clock import SimClock
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import AllocateProducerIdsResponse, EnvelopeRequest, EnvelopeResponse

FIRST, SECOND = (ActiveController(each, Endpoint("CONTROLLER", 0, f"c{each}", 9093)) for each in (100, 101))
PATIENCE_MS = 1000


class Line:
    """What was asked of which controller; the test answers. outcomes: what became of requests, in order."""

    def __init__(self, leader: ActiveController | None = FIRST) -> None:
        self.clock = SimClock()
        self.scheduler = Scheduler(self.clock.now_ms())
        self.leader = leader
        self.sent: list[tuple[int, Any, int]] = []
        self.outcomes: list[object] = []
        requester = cast(Any, SimpleNamespace(ask=self._send))
        self.controllers = ToController(requester, lambda: self.leader, self.clock, self.scheduler)

    def _send(self, asker: Any, node_id: int, purpose: str, request: Any, token: Any, **where: Any) -> bool:
        assert purpose == TO_CONTROLLER
        self.sent.append((node_id, token, where["timeout_ms"]))
        return True

    def ask(self) -> None:
        request = EnvelopeRequest(request_data=b"", request_principal=b"", client_host_address=b"")
        self.controllers.ask(request, 0, PATIENCE_MS, self.outcomes.append, self.outcomes.append)

    def hear(self, event: Any) -> None:
        self.controllers.heard(cast(Any, SimpleNamespace(token=self.sent[-1][1])), event, self.clock.now_ms())

    def fail(self, kind: PeerFaultKind = PeerFaultKind.RESET) -> None:
        self.hear(PeerFault(None, kind, True, "why"))

    def wait(self, by_ms: int = RETRY_MS) -> None:
        self.clock.advance(by_ms)
        self.scheduler.ring(self.clock.now_ms())

    @property
    def asked(self) -> list[int]:
        return [node_id for node_id, *_ in self.sent]


def test_the_leader_is_asked_and_its_answer_is_the_answer() -> None:
    line = Line()
    line.ask()
    line.hear(PeerAnswer(None, EnvelopeResponse(error_code=0)))
    assert (line.asked, len(line.outcomes)) == ([100], 1)


def test_without_an_answer_the_one_that_leads_by_then_is_asked_for_the_time_that_is_left() -> None:
    line = Line()
    line.ask()
    line.fail()
    line.leader = SECOND
    assert line.asked == [100]
    line.wait()
    assert (line.asked, line.sent[-1][2]) == ([100, 101], PATIENCE_MS - RETRY_MS)


@pytest.mark.parametrize(
    "response",
    [EnvelopeResponse, partial(AllocateProducerIdsResponse, producer_id_start=0, producer_id_len=0)],
    ids=["envelope", "producer ids"],
)
def test_one_that_does_not_lead_any_more_has_not_answered(response: Any) -> None:
    line = Line()
    line.ask()
    line.hear(PeerAnswer(None, response(error_code=ErrorCode.NOT_CONTROLLER)))
    assert line.outcomes == []
    line.leader = SECOND
    line.controllers.handlers[LeaderChanged](LeaderChanged(101, 2), line.clock.now_ms())
    assert line.asked == [100, 101]


def test_while_no_leader_is_known_a_request_waits_until_its_time_is_up() -> None:
    line = Line(None)
    line.ask()
    line.wait()
    line.leader = FIRST
    line.wait()
    assert line.asked == [100]
    line.fail()
    line.leader = None
    line.wait(PATIENCE_MS)
    (error,) = line.outcomes
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_version_that_the_controller_does_not_serve_is_refused_at_once() -> None:
    line = Line()
    line.ask()
    line.fail(PeerFaultKind.UNSUPPORTED)
    (error,) = line.outcomes
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.UNSUPPORTED_VERSION


def test_only_so_many_requests_wait() -> None:
    line = Line(None)
    for _ in range(REQUESTS_TO_CONTROLLER + 1):
        line.ask()
    assert len(line.outcomes) == 1
