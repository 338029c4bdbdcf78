"""A simulated client that knows, or finds out, which machine leads a partition and which is controller.

What it was told last is believed until a machine says that it is wrong, or does not answer. In a world of one machine
there is nothing to know, and nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.sim.client import Client
from protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from kbroker.sim.checks import Checks, Where
    from kbroker.sim.machine import Machine
    from kbroker.sim.net import Net
    from kbroker.sim.world import World

T = TypeVar("T")

METADATA = 3
NAMES_CONTROLLER_SINCE = 1


class Router(Client):
    """Sends each request to the machine that it is for."""

    def __init__(self, name: str, world: World, net: Net, bootstrap: Sequence[Machine], checks: Checks) -> None:
        super().__init__(name, world, net, bootstrap, checks)
        self._leaders: dict[Where, Machine] = {}
        self._controller: Machine | None = None

    def by_leader(
        self, things: Iterable[T], where: Callable[[T], Where]
    ) -> Generator[Any, Any, tuple[dict[Machine, list[T]], list[T]]]:
        """Things by the machine that leads their partition; and those without a known leader. Raises: Lost."""
        wanted = list(things)
        if len(self.machines) == 1:
            return {self.machines[0]: wanted}, []
        if any(where(each) not in self._leaders for each in wanted):
            yield from self._learn()
        led: dict[Machine, list[T]] = {}
        orphans: list[T] = []
        for each in wanted:
            leader = self._leaders.get(where(each))
            if leader is None:
                orphans.append(each)
            else:
                led.setdefault(leader, []).append(each)
        return led, orphans

    def believe(self, where: Where, leader: Machine) -> None:
        """Remember who leads a partition, as a broker has said."""
        self._leaders[where] = leader

    def misled(self, where: Where) -> None:
        """Who was believed to lead a partition does not, or cannot be reached."""
        self._leaders.pop(where, None)

    def controller(self) -> Generator[Any, Any, Machine]:
        """The controller, as far as is known; any machine if it is not known. Raises: Lost."""
        if len(self.machines) == 1:
            return self.machines[0]
        if self._controller is None:
            yield from self._learn()
        return self._controller or self.rng.choice(self.machines)

    def misled_by_controller(self) -> None:
        """It is not controller, or cannot be reached."""
        self._controller = None

    def machine(self, broker_id: int) -> Machine:
        """The machine of a broker that an answer names."""
        for machine in self.machines:
            if machine.broker_id == broker_id:
                return machine
        raise self.world.broken(f"{self} is told of broker {broker_id}, which there is not")

    def _learn(self) -> Generator[Any, Any, None]:
        """Ask any machine how things are (Metadata)."""
        if METADATA not in self.versions:
            yield from self.connect()
        version = self.versions[METADATA]
        answer: MetadataResponse = yield from self.ask(
            MetadataRequest(topics=None if version else []), to=self.rng.choice(self.machines)
        )
        if version >= NAMES_CONTROLLER_SINCE:
            self._controller = self.machine(answer.controller_id) if answer.controller_id >= 0 else None
        for topic in answer.topics:
            for part in topic.partitions:
                if part.leader_id >= 0:
                    self._leaders[topic.name or "", part.partition_index] = self.machine(part.leader_id)
                else:
                    self._leaders.pop((topic.name or "", part.partition_index), None)
