"""A broker that hands its leaders over before it stops: what it asks, how often, and when it may go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.controlled_shutdown import ControlledShutdown
from kbroker.broker.facts import Leave
from kbroker.ports import TO_CONTROLLER, PeerAnswer, PeerFault, PeerFaultKind
from kbroker.replica.facts import InSyncProposed
from kbroker.replica.partition import Proposal
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.messages.control import ControlledShutdownRequest, ControlledShutdownResponse, RemainingPartition
from tests.controller.cluster import Cluster

BACKOFF_MS, TRIES = 100, 3
ASKED: Any = None  # of no interest to who asks one thing


class Line:
    """The line to the controller: what was asked. is_known: whether there is an endpoint to ask at."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, ControlledShutdownRequest]] = []
        self.is_known = True

    def ask(self, asker: object, broker_id: int, purpose: str, request: ControlledShutdownRequest) -> bool:
        self.asked.append((broker_id, purpose, request))
        return self.is_known


class Broker:
    """Broker 2 of a cluster whose controller is broker 1, with one replica of `replicas` brokers."""

    def __init__(self, *, at: int = 2, replicas: int = 2, **settings: str) -> None:
        given = {"controlled_shutdown_retry_backoff_ms": str(BACKOFF_MS), "controlled_shutdown_max_retries": str(TRIES)}
        self.cluster = Cluster(1, 2, **given, **settings)
        self.cluster.assign("t", (at, 3 - at))
        self.line = Line()
        self.plane = self.cluster.nodes[at].plane
        held = SimpleNamespace(partitions={("t", 0): SimpleNamespace(replicas=(1, 2)[:replicas])})
        self.clock = self.cluster.nodes[at].clock
        self.scheduler = Scheduler(self.clock.now_ms())
        self.leaving = ControlledShutdown(self.plane, held, self.line, self.clock, self.scheduler)  # type: ignore[arg-type]
        self.leaving.handlers[Leave](Leave(), self.clock.now_ms())
        self.cluster.settle()

    def answer(self, code: ErrorCode, *left: tuple[str, int]) -> None:
        remaining = [RemainingPartition(topic_name=topic, partition_index=index) for topic, index in left]
        response = ControlledShutdownResponse(error_code=code, remaining_partitions=remaining)
        self.leaving.heard(ASKED, PeerAnswer(ASKED, response), 0)

    def wait(self, by_ms: int) -> None:
        self.cluster.advance(by_ms)
        self.scheduler.ring(self.clock.now_ms())


def test_the_controller_is_asked_in_the_brokers_present_life() -> None:
    broker = Broker()
    ((to, purpose, request),) = broker.line.asked
    assert (to, purpose, request.broker_id) == (1, TO_CONTROLLER, 2)
    assert request.broker_epoch == broker.plane.control_requests.broker_epoch
    assert not broker.leaving.is_over


def test_it_may_stop_when_nothing_is_left() -> None:
    broker = Broker()
    broker.answer(ErrorCode.NONE)
    assert broker.leaving.is_over


@pytest.mark.parametrize("what", ["left", "refused", "silence"])
def test_it_asks_again_after_a_while_and_stops_in_the_end(what: str) -> None:
    broker = Broker()
    for number in range(TRIES):
        assert (len(broker.line.asked), broker.leaving.is_over) == (number + 1, False)
        if what == "left":
            broker.answer(ErrorCode.NONE, ("t", 0), ("t", 1))
        elif what == "refused":
            broker.answer(ErrorCode.NOT_CONTROLLER)
        else:
            broker.leaving.heard(ASKED, PeerFault(ASKED, PeerFaultKind.RESET, True, "gone"), 0)
        broker.wait(BACKOFF_MS - 1)
        assert len(broker.line.asked) == number + 1
        broker.wait(1)
    assert broker.leaving.is_over
    assert broker.scheduler.next_ms is None


def test_the_controller_hands_its_own_leaders_over_without_asking_anybody() -> None:
    broker = Broker(at=1)
    assert (broker.leaving.is_over, broker.line.asked) == (True, [])
    assert broker.cluster.state("t").leader == 2


def test_it_asks_again_when_the_controller_may_be_known() -> None:
    broker = Broker()
    broker.line.is_known = False
    broker.answer(ErrorCode.NOT_CONTROLLER)
    for _ in range(TRIES):
        broker.wait(BACKOFF_MS)
    assert (len(broker.line.asked), broker.leaving.is_over) == (TRIES, True)


def test_an_in_sync_set_on_its_way_to_the_control_planes_listener_is_not_in_the_way() -> None:
    cluster = Cluster(1, 2, control_plane_listener_name="INSIDE")
    cluster.assign("t", (2, 1))
    node = cluster.nodes[2]
    partition = node.replicas.partitions["t", 0]
    partition.proposal = Proposal((2,), partition.leader_epoch, partition.partition_epoch, -1)
    node.broker.tell(InSyncProposed(partition))
    assert node.core is not None
    node.turn(node.core.step, Leave(), node.clock.now_ms())
    cluster.settle()
    assert (node.broker.leaving.is_over, cluster.state("t").leader) == (True, 1)


def test_who_has_nothing_to_hand_over_goes_at_once() -> None:
    for broker in (Broker(replicas=1), Broker(controlled_shutdown_enable="false")):
        assert (broker.leaving.is_over, broker.line.asked) == (True, [])
