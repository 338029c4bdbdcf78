"""Plays of what becomes of a cluster: the steps of `play.py` and `transaction_play.py`, and those of links and leaders.

    cut BROKER from BROKER ...                 neither hears the other from now on
    cut BROKER to BROKER                       nothing gets from the first to the second
    cut BROKER from ZooKeeper                  its session ends after 18 s, and it does not hear of that
    heal BROKER and BROKER ... | ZooKeeper     both ways; what was sent meanwhile arrives
    slow BROKER by MS                          what it asks others for takes longer, and so do their answers; 0: no more
    NAME produce TOPIC-P VALUE ... to=BROKER   once, to whom NAME takes for the leader
    NAME begins to produce ...                 the same, and the play goes on before the outcome is known
    reassign TOPIC-P to BROKER,...             the preferred leader first
    cancel reassignment of TOPIC-P
    elect preferred | unclean TOPIC-P
    set TOPIC KEY=VALUE
    until BROKER leads TOPIC-P                 event by event: what follows begins in the very moment in which it holds;
    until BROKER is controller                 60 s at most
    until isr of TOPIC-P is BROKER,...
    until replicas of TOPIC-P are BROKER,...
    until log end of TOPIC-P on BROKER is OFFSET
    until high watermark of TOPIC-P on BROKER is OFFSET
    partition TOPIC-P                          what ZooKeeper says of it, and what each broker has
    controller                                 who believes to be it, and whom the others obey
    compare                                    every replica with the others, and with what was acknowledged

BROKER is its id. ZooKeeper is simulated as well (`store.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.metadata.store import LeaderIsr, decode_state, decode_topic, state_path, topic_path
from kbroker.sim.operators import Operator
from kbroker.sim.play import STEP_MS, VERSIONS, perform_on, where_of
from kbroker.sim.replicated import ReplicatedChecks, values_in
from kbroker.sim.transaction_play import TransactionStage

if TYPE_CHECKING:
    from kbroker.log.log import Log
    from kbroker.replica import Partition
    from kbroker.sim.checks import Where
    from kbroker.sim.client import Script
    from kbroker.sim.machine import Machine

ZOOKEEPER = "ZooKeeper"


class ClusterStage(TransactionStage):
    """The world of one play."""

    def do(self, words: list[str]) -> list[str]:
        """See Stage."""
        match words:
            case ["cut" | "heal", *_]:
                self._link(words)
            case ["slow", broker, "by", ms]:
                self.net.slow_ms[self._broker(broker).name] = int(ms)
            case ["until", *condition]:
                return self._until(condition)
            case ["reassign", place, "to", brokers]:
                self._operate(lambda each: each.reassign(where_of(place), _ids(brokers)))
            case ["cancel", "reassignment", "of", place]:
                self._operate(lambda each: each.reassign(where_of(place), None))
            case ["elect", "preferred" | "unclean" as kind, place]:
                self._operate(lambda each: each.elect(kind, where_of(place)))
            case ["set", topic, pair]:
                key, _, value = pair.partition("=")
                self._operate(lambda each: each.set(topic, key, value))
            case ["partition", place]:
                return self._partition(where_of(place))
            case ["controller"]:
                return self._controller()
            case ["compare"]:
                return self._compare()
            case [name, "produce", place, *values] if values[-1].startswith("to="):
                self._produce_to(name, where_of(place), values)
                self.wait_for(self._actor(name))
            case [name, "begins", "to", "produce", place, *values]:
                self._produce_to(name, where_of(place), values)
            case _:
                return super().do(words)
        return []

    def _broker(self, number: str) -> Machine:
        (machine,) = [each for each in self.machines if str(each.broker_id) == number]
        return machine

    # ---- links

    def _link(self, words: list[str]) -> None:
        match words:
            case ["cut", broker, "from", "ZooKeeper"]:
                store = self._broker(broker).store
                assert store is not None, broker
                store.cut()
            case ["heal", broker, "and", "ZooKeeper"]:
                store = self._broker(broker).store
                assert store is not None, broker
                store.heal()
            case ["cut", one, "from", *others]:
                for other in others:
                    self._block(one, other)
                    self._block(other, one)
            case ["cut", one, "to", other]:
                self._block(one, other)
            case ["heal", one, "and", *others]:
                for other in others:
                    self.net.unblock(self._broker(one).name, self._broker(other).name)
                    self.net.unblock(self._broker(other).name, self._broker(one).name)
            case _:
                raise ValueError(f"no such step: {' '.join(words)}")

    def _block(self, source: str, target: str) -> None:
        self.net.block(self._broker(source).name, self._broker(target).name)

    # ---- deeds

    def _operate(self, script: Callable[[Operator], Script]) -> None:
        operator = Operator("operator", self.world, self.net, self.machines, self.checks)
        operator.fixed_versions = dict(VERSIONS)
        operator.play(lambda: script(operator))
        self.wait_for(operator)

    def _produce_to(self, name: str, where: Where, words: list[str]) -> None:
        """Begin to produce with acks=all, once; the outcome is told when it is there."""
        actor = self._actor(name)
        actor.acks, actor.tries = -1, 1
        values = [word.encode() for word in words if "=" not in word]
        (to,) = [word.removeprefix("to=") for word in words if word.startswith("to=")]
        actor.believe(where, self._broker(to))
        actor.play(lambda: actor.produce(where, values))

    # ---- what is so

    def _until(self, condition: list[str]) -> list[str]:
        holds = self._condition(condition)
        begin_ms = self.world.now_ms
        while not holds():
            if not self.world.step(begin_ms + STEP_MS):
                raise self.world.broken(f"it is not so that {' '.join(condition)}")
        return [f"within {-(begin_ms - self.world.now_ms) // 1000 + 1} s"]

    def _condition(self, words: list[str]) -> Callable[[], bool]:
        match words:
            case [broker, "is", "controller"]:
                machine = self._broker(broker)
                return lambda: machine.up and machine.broker.store_plane.controller.is_active
            case [broker, "leads", place]:
                return lambda: (held := self._held_by(broker, place)) is not None and held.is_leader
            case ["isr", "of", place, "is", brokers]:
                return lambda: sorted(self._state(where_of(place)).isr) == sorted(_ids(brokers))
            case ["replicas", "of", place, "are", brokers]:
                return lambda: self._replicas(where_of(place)) == _ids(brokers)
            case ["log", "end", "of", place, "on", broker, "is", offset]:
                return lambda: (log := self._log_on(broker, place)) is not None and log.log_end_offset == int(offset)
            case ["high", "watermark", "of", place, "on", broker, "is", offset]:
                return lambda: (log := self._log_on(broker, place)) is not None and log.high_watermark == int(offset)
        raise ValueError(f"no such condition: {' '.join(words)}")

    def _held_by(self, broker: str, place: str) -> Partition | None:
        machine = self._broker(broker)
        return machine.broker.replicas.partitions.get(where_of(place)) if machine.up else None

    def _log_on(self, broker: str, place: str) -> Log | None:
        held = self._held_by(broker, place)
        return None if held is None else held.log

    def _state(self, where: Where) -> LeaderIsr:
        node = self.ensemble.tree.nodes[state_path(*where)]
        return decode_state(node.data, node.stat())

    def _replicas(self, where: Where) -> list[int]:
        topic, index = where
        return list(decode_topic(self.ensemble.tree.nodes[topic_path(topic)].data).partitions[index].replicas)

    def _partition(self, where: Where) -> list[str]:
        state = self._state(where)
        leader = f"{state.leader} leads" if state.leader >= 0 else "no broker leads"
        replicas, isr = _listed(self._replicas(where)), _listed(sorted(state.isr))
        said = [f"ZooKeeper: {leader} in epoch {state.leader_epoch}; replicas {replicas}, in sync {isr}"]
        for machine in self.machines:
            if not machine.up:
                said.append(f"{machine}: down")
                continue
            held = machine.broker.replicas.partitions.get(where)
            if held is not None and held.log is not None:
                role = "leads" if held.is_leader else f"follows {held.leader_id}"
                values = " ".join(value.decode() for _, value in sorted(values_in(held.log).items())) or "nothing"
                bounds = f"high watermark {held.log.high_watermark} of {held.log.log_end_offset}"
                said.append(f"{machine}: {role} in epoch {held.leader_epoch}, {bounds}: {values}")
        return said

    def _controller(self) -> list[str]:
        said = []
        for machine in self.machines:
            if not machine.up:
                continue
            epoch = machine.broker.store_plane.controller.epoch
            obeyed = machine.broker.store_plane.control_requests.controller_epoch
            believes = "" if epoch is None else f" is controller in epoch {epoch.context.epoch}, and"
            said.append(f"{machine}{believes} obeys epoch {obeyed}")
        return said

    def _compare(self) -> list[str]:
        assert isinstance(self.checks, ReplicatedChecks)
        self.checks.all_is_there()
        lost = self.checks.allowed_loss.lost_from.items()
        said = [f"{topic}-{index} has lost what was committed, from {at} on" for (topic, index), at in lost]
        return said or ["every replica has the same, and all that was acknowledged"]


def _ids(brokers: str) -> list[int]:
    return [int(each) for each in brokers.split(",")]


def _listed(brokers: list[int]) -> str:
    return " ".join(map(str, brokers)) or "none"


def perform(text: str) -> str:
    """Play a play; the text with what really happened. Raises: Broken, ValueError."""
    return perform_on(ClusterStage(), text)
