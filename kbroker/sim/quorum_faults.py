"""What goes wrong with a simulated quorum: elections, leaders who do not know of them, deaths, snapshots.

Each kind again and again, at a rate that the seed draws; `heal` ends all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kbroker.sim.quorum import Quorum, QuorumNode
    from kbroker.sim.world import World

QUORUM_FAULTS = ("elections", "deposed", "controllers", "snapshots")
LEAST_MEAN_MS, MOST_MEAN_MS = 1_000, 30_000


class QuorumFaults:
    """The faults of one quorum. kinds: those that are on."""

    def __init__(self, world: World, quorum: Quorum, kinds: Sequence[str]) -> None:
        self.world = world
        self.kinds = list(kinds)
        self._quorum = quorum
        self._rng = world.rng("quorum faults")
        self._happen: dict[str, Callable[[], None]] = {
            "elections": self._elect,
            "deposed": self._depose,
            "controllers": self._end_one,
            "snapshots": self._snapshots,
        }
        for kind in self.kinds:
            self._plan(kind, int(LEAST_MEAN_MS * (MOST_MEAN_MS / LEAST_MEAN_MS) ** self._rng.random()))

    def heal(self) -> None:
        """Nothing goes wrong any more; controllers that are down come back, and one of them leads."""
        self.kinds = []
        self._quorum.isolated.clear()
        for each in self._quorum.nodes:
            if not each.up:
                each.start()
        self._quorum.elect()

    def _plan(self, kind: str, mean_ms: int) -> None:
        def happen() -> None:
            if kind in self.kinds:
                self._happen[kind]()
                self._plan(kind, mean_ms)

        self.world.after(1 + int(self._rng.expovariate(1 / mean_ms)), happen)

    def _elect(self) -> None:
        self._quorum.elect()

    def _depose(self) -> None:
        """The leader does not hear of its successor for a while."""
        quorum, leader = self._quorum, self._quorum.leader
        if leader is None or len(quorum.nodes) < 3 or quorum.isolated:
            return
        quorum.isolated.add(leader.id)
        self.world.note(f"{leader} is cut off from the others")
        self.world.after(self._rng.randrange(1500), lambda: _ignore(quorum.elect(all_hear=False)))
        self.world.after(self._rng.randrange(6000), quorum.isolated.discard, leader.id)

    def _end_one(self) -> None:
        """One ends, and comes back; another is elected if it led."""
        quorum = self._quorum
        up = [each for each in quorum.nodes if each.up]
        if not up or (len(up) <= quorum.majority and len(quorum.nodes) > 1):
            return
        found = self._rng.choice(up)
        self.world.note(f"{found} ends")
        led = found.leads
        found.stop()
        if led:
            self.world.after(self._rng.randrange(1000), lambda: _ignore(quorum.elect()))
        self.world.after(self._rng.randrange(5000), self._back, found)

    def _back(self, node: QuorumNode) -> None:
        if not node.up:
            node.start()
        if self._quorum.leader is None:
            self._quorum.elect()

    def _snapshots(self) -> None:
        for each in self._quorum.nodes:
            if each.up and self._rng.random() < 0.7:
                each.take_snapshot(forget=self._rng.random() < 0.7)


def _ignore(_: object) -> None:
    """What is given back does not matter."""
