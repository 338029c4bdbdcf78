"""A simulated machine: when its process ends."""

from __future__ import annotations

from kbroker.sim.compose import one_of_several
from kbroker.sim.faults import ROUND_MS, Faults
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.store import SESSION_TIMEOUT_MS, Ensemble
from kbroker.sim.world import World


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
    Faults(twins.world, twins.net, [twins.second], ["nobody"], []).begin()
    twins.wait(2 * SESSION_TIMEOUT_MS + 1_000)
    twins.first.stop()
    twins.wait(ROUND_MS + 1_000)
    assert (twins.second.boots, twins.second.broker.plane.ready) == (2, True)
