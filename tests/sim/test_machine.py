"""A simulated machine: when its process ends, and what comes first within a millisecond."""

from __future__ import annotations

from kbroker.sim.compose import alone, one_of_several
from kbroker.sim.faults import ROUND_MS, Faults
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.store import SESSION_TIMEOUT_MS, Ensemble
from kbroker.sim.world import World
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header
from protocol.message import Message
from protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)

JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=6_000,
    rebalance_timeout_ms=60_000,
    member_id="",
    group_instance_id="static",
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
)


class Twins:
    """Two machines that are both told to be broker 1; the first has registered, the second waits."""

    def __init__(self) -> None:
        self.world = World("machine")
        self.net = Net(self.world, (1, 1))
        self.ensemble = Ensemble(lambda ms, job: self.world.after(ms, job) and None, lambda: 1)
        compose = one_of_several({}, self.ensemble)
        self.first, self.second = (Machine(self.world, self.net, 1, compose) for _ in range(2))
        self.first.start()
        self.wait(1_000)
        self.second.start()

    def wait(self, ms: int) -> None:
        self.world.run_until(self.world.now_ms + ms)


def test_a_machine_ends_when_its_broker_cannot_go_on() -> None:
    twins = Twins()
    twins.wait(2 * SESSION_TIMEOUT_MS - 1_000)
    assert twins.second.up
    twins.wait(2_000)
    assert (twins.first.up, twins.second.up) == (True, False)


def test_who_ended_by_itself_leaves_no_session_behind() -> None:
    twins = Twins()
    sessions = len(twins.ensemble.sessions)
    twins.wait(2 * SESSION_TIMEOUT_MS + 1_000)
    assert len(twins.ensemble.sessions) == sessions - 1


def test_a_machine_that_ended_by_itself_is_started_again() -> None:
    twins = Twins()
    Faults(twins.world, twins.net, [twins.second], ["nobody"], []).start([])
    twins.wait(2 * SESSION_TIMEOUT_MS + 1_000)
    twins.first.stop()
    twins.wait(ROUND_MS + 1_000)
    assert (twins.second.boots, twins.second.broker.plane.ready) == (2, True)


def test_a_session_that_is_over_has_ended_for_a_request_of_the_same_millisecond() -> None:
    world = World("machine")
    net = Net(world, (0, 0))
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    machine = Machine(
        world, net, 1, alone(settings, Ensemble(lambda ms, job: world.after(ms, job) and None, lambda: 1))
    )
    machine.start()
    world.run_until(1_000)
    answers: list[bytes] = []
    wire = net.connect("client", machine, answers.append, lambda why: None)

    def frame(request: Message, version: int) -> bytes:
        return encode_request_header(type(request), version, 1, "client") + request.encode(version)

    delete = frame(DeleteGroupsRequest(groups_names=["g"]), 1)
    wire.send(frame(FindCoordinatorRequest(key="g"), 3))
    world.run_until(2_000)
    world.after(JOIN.session_timeout_ms, machine.receive, wire, delete)  # planned before the timer is
    wire.send(frame(JOIN, 5))
    wire.send(delete)
    world.run_until(2_000 + JOIN.session_timeout_ms)
    codes = [ErrorCode(int.from_bytes(answer[-2:], "big")) for answer in answers[-2:]]
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE]
