"""The simulated network between machines: what a block lets through, and when."""

from __future__ import annotations

import pytest

from kbroker.sim.net import Net, Wire
from kbroker.sim.world import World


class Echo:
    """A host that answers each frame with itself, in upper case."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[bytes] = []
        self.is_gone = False

    def accept(self, wire: Wire) -> bool:
        return True

    def receive(self, wire: Wire, frame: bytes) -> None:
        self.heard.append(frame)
        wire.send_answers(lambda: frame.upper())

    def gone(self, wire: Wire) -> None:
        self.is_gone = True


class Line:
    """A connection from a to b."""

    def __init__(self) -> None:
        self.world = World("net")
        self.net = Net(self.world, (1, 5))
        self.host = Echo("b")
        self.got: list[bytes] = []
        self.lost: list[str] = []
        self.wire = self.net.connect("a", self.host, self.got.append, self.lost.append)

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self.wire.send(frame)

    def wait(self, ms: int = 50) -> None:
        self.world.run_until(self.world.now_ms + ms)


def test_what_is_sent_into_a_block_arrives_when_it_is_gone() -> None:
    line = Line()
    line.send(b"x")
    line.wait()
    line.net.block("a", "b")
    line.send(b"y", b"z")
    line.wait()
    assert line.host.heard == [b"x"]
    line.net.unblock("a", "b")
    line.wait()
    assert line.host.heard == [b"x", b"y", b"z"]


def test_a_block_one_way_holds_answers_only() -> None:
    line = Line()
    line.send(b"x")
    line.wait()
    line.net.block("b", "a")
    line.send(b"y")
    line.wait()
    assert (line.host.heard, line.got) == ([b"x", b"y"], [b"X"])
    line.net.unblock("b", "a")
    line.wait()
    assert line.got == [b"X", b"Y"]


def test_nothing_overtakes_what_a_block_has_held() -> None:
    for later in range(6):
        line = Line()
        line.wait()
        line.net.block("a", "b")
        line.send(b"1", b"2")
        line.wait(3)
        line.send(b"3")
        line.net.unblock("a", "b")
        line.wait(later)
        line.send(b"4")
        line.wait()
        assert line.host.heard == [b"1", b"2", b"3", b"4"]


def test_what_a_sender_has_given_up_may_arrive_late_and_its_end_behind_it() -> None:
    line = Line()
    line.wait()
    line.net.block("a", "b")
    line.send(b"x")
    line.wire.close()
    line.wait()
    assert not line.host.is_gone
    line.net.unblock("a", "b")
    line.wait()
    assert (line.host.heard, line.host.is_gone, line.got) == ([b"x"], True, [])


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_nobody_connects_through_a_block(way: tuple[str, str]) -> None:
    line = Line()
    line.net.block(*way)
    lost: list[str] = []
    line.net.connect("a", line.host, line.got.append, lost.append)
    line.wait(10_000)
    assert lost == ["unreachable"]


def test_blocks_of_other_machines_are_not_noticed() -> None:
    line = Line()
    line.net.block("a", "c")
    line.net.block("c", "b")
    line.send(b"x")
    line.wait()
    assert line.got == [b"X"]
