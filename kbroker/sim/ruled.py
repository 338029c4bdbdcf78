"""A simulated world of access rules and quotas that change, from one seed: what was refused is in no log.

`simulate(seed)` is what `scripts/sim ruled` and the tests run: the world of `swarm.py`, and in it a topic that two
outsiders write to, each as a user of its own. Rulers deny them that and let them again, by user or by host, and give
them quotas and take those back, through any machine, while machines die, are cut off and lose their sessions. After the
faults each machine must know the rules and the quotas that the metadata store has.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import TYPE_CHECKING, Any

from kbroker.broker.acl_authorizer import AclAuthorizer
from kbroker.broker.acls import (
    ALL,
    EVERYONE,
    WILDCARD,
    Pattern,
    PatternType,
    Permission,
    Rule,
    decode_rules,
    encode_rules,
    pattern_path,
)
from kbroker.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from kbroker.broker.client_quotas import PRODUCER_BYTE_RATE
from kbroker.broker.session import Principal
from kbroker.config.broker import AUTHORIZERS
from kbroker.metadata.entities import user_path
from kbroker.metadata.store import decode_config
from kbroker.metadata.tree import NO_SESSION, ancestors
from kbroker.ports import Create
from kbroker.sim.checks import Checks
from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from kbroker.sim.producers import Batch, Producer
from kbroker.sim.swarm import Outcome, Swarm
from kbroker.sim.topics import Topic
from protocol.errors import ErrorCode
from protocol.messages.quotas import AlterClientQuotasEntry, AlterClientQuotasRequest, EntityData, OpData
from protocol.messages.security import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest

if TYPE_CHECKING:
    import random

    from kbroker.sim.checks import Moment, Promise
    from kbroker.sim.client import Client
    from kbroker.sim.machine import Machine
    from kbroker.sim.world import World
    from protocol.message import Message

GUARDED = "guarded"
OUTSIDERS = ("outsider-0", "outsider-1")
PATTERN = Pattern(ResourceType.TOPIC, GUARDED, PatternType.LITERAL)
RATES = (None, 200.0, 2_000.0)  # bytes a second, for an outsider's records
EACH_MAY = Rule(EVERYONE, WILDCARD, ALL, Permission.ALLOW)


class RuledChecks(Checks):
    """The same checks, and that no record is in a log whose write was refused. refused: the values of such."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.refused: set[bytes] = set()
        self._seen: set[bytes] = set()  # of what outsiders wrote

    def refuses(self, values: Collection[bytes]) -> None:
        """A machine has refused these records, which were sent once."""
        for value in values:
            self._hold_against(value, is_seen=value in self._seen)
        self.refused.update(values)

    def _place(self, promise: Promise, offset: int, value: bytes) -> None:
        super()._place(promise, offset, value)
        if promise.where[0] == GUARDED:
            self._seen.add(value)
            self._hold_against(value, is_seen=value in self.refused)

    def _hold_against(self, value: bytes, *, is_seen: bool) -> None:
        if is_seen:
            raise self.world.broken(f"{value!r} was refused, and is in a log")


class Outsider(Producer):
    """Writes to the guarded topic, each batch once: what is refused was not sent before."""

    tries = 1
    checks: RuledChecks

    def _conclude(self, batch: Batch, answer: Message, moment: Moment, leader: Machine) -> bool:
        part: Any = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
        if part.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return super()._conclude(batch, answer, moment, leader)
        self.note(f"is refused {len(batch.values)} to {batch.where}")
        self.checks.refuses(batch.values)
        return True


class Ruler(Router):
    """Denies outsiders to write, and lets them again; gives them quotas. restless: whether it goes on."""

    restless = True
    pace_ms = 6_000

    def live(self) -> Script:
        """One change after the other, each through any machine."""
        yield from self.shake_hands()
        while self.restless:
            yield from self.pause(self.pace_ms)
            yield from self._change(self._next_change())

    def _next_change(self) -> Message:
        outsider, draw = self.rng.choice(OUTSIDERS), self.rng.random()
        whom = self.rng.choice(((f"User:{outsider}", WILDCARD), (EVERYONE, outsider)))
        if draw < 0.4:
            return CreateAclsRequest(creations=[rule_of(*whom)])
        if draw < 0.8:
            return DeleteAclsRequest(filters=[filter_of(*whom)])
        return quota_of(outsider, self.rng.choice(RATES))

    def _change(self, request: Message) -> Generator[Any, Any, None]:
        try:
            answer: Any = yield from self.ask(request, to=self.rng.choice(self.machines))
        except Lost as lost:
            self.note(f"lost: {lost.why}")
            return
        (result,) = next(
            getattr(answer, each) for each in ("results", "filter_results", "entries") if hasattr(answer, each)
        )
        self.note(f"{type(request).__name__}: {ErrorCode.of(result.error_code).name}")


def rule_of(principal: str, host: str) -> AclCreation:
    """That an outsider may not write to the guarded topic."""
    return AclCreation(
        resource_type=PATTERN.resource,
        resource_name=PATTERN.name,
        resource_pattern_type=PATTERN.kind,
        principal=principal,
        host=host,
        operation=Operation.WRITE,
        permission_type=Permission.DENY,
    )


def filter_of(principal: str, host: str) -> DeleteAclsFilter:
    """The rule of an outsider; never the one that lets each do everything."""
    return DeleteAclsFilter(
        resource_type_filter=PATTERN.resource,
        resource_name_filter=PATTERN.name,
        pattern_type_filter=PATTERN.kind,
        principal_filter=principal,
        host_filter=host,
        operation=Operation.WRITE,
        permission_type=Permission.DENY,
    )


def quota_of(user: str, rate: float | None) -> AlterClientQuotasRequest:
    """How fast a user may write; None: as it can."""
    change = OpData(key=PRODUCER_BYTE_RATE, value=rate or 0.0, remove=rate is None)
    entity = EntityData(entity_type="user", entity_name=user)
    return AlterClientQuotasRequest(
        entries=[AlterClientQuotasEntry(entity=[entity], ops=[change])], validate_only=False
    )


class Ruled(Swarm):
    """The world."""

    checks: RuledChecks

    def _make_others(self) -> list[Client]:
        rng = self.world.rng("ruled")
        self._begin_with(Pattern(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL), self._of_the_cluster())
        self._begin_with(PATTERN, [EACH_MAY])
        given = self.world, self.net, self.machines, self.checks
        self.outsiders = [Outsider(name, *given) for name in OUTSIDERS]
        for outsider in self.outsiders:
            outsider.topics = [topic for topic in self.topics if topic.name == GUARDED]
            outsider.acks, outsider.pace_ms = rng.choice((-1, 1)), 500
        for machine in self.machines:
            machine.principals = {name: Principal("User", name) for name in OUTSIDERS}
        self.rulers = [Ruler(f"ruler-{number}", *given) for number in range(2)]
        return [*self.outsiders, *self.rulers]

    def _begin_with(self, pattern: Pattern, rules: Collection[Rule]) -> None:
        """These rules are in the metadata store before any machine starts."""
        path = pattern_path(pattern)
        for each in ancestors(path):
            self.ensemble.tree.apply(Create(each), NO_SESSION)
        self.ensemble.tree.apply(Create(path, encode_rules(rules)), NO_SESSION)

    def _of_the_cluster(self) -> list[Rule]:
        """Each may do everything, but a machine that is alone obeys no controller: some hostile client says it is."""
        obeys = Rule(EVERYONE, WILDCARD, Operation.CLUSTER_ACTION, Permission.DENY)
        return [EACH_MAY, obeys] if len(self.machines) == 1 else [EACH_MAY]

    def _make_checks(self) -> Checks:
        return RuledChecks(self.world)

    def _make_topics(self, rng: random.Random) -> list[Topic]:
        configs = {"retention.ms": "-1", "segment.index.bytes": "4096"}
        return [*super()._make_topics(rng), Topic(GUARDED, 2, configs)]

    def _make_settings(self, rng: random.Random) -> dict[str, str]:
        ruled = {"authorizer.class.name": AUTHORIZERS[0], "allow.everyone.if.no.acl.found": "true"}
        return super()._make_settings(rng) | ruled

    def _all_is_read(self) -> None:
        for each in (*self.outsiders, *self.rulers):
            each.stop()
        self.world.run_until(self.world.now_ms + 60_000)
        super()._all_is_read()
        node = self.ensemble.tree.nodes.get(pattern_path(PATTERN))
        rules = decode_rules(node.data) if node else frozenset()
        for machine in self.machines:
            authorizer = machine.broker.auth_helper.authorizer
            assert isinstance(authorizer, AclAuthorizer), authorizer
            known = authorizer.rules.by_pattern.get(PATTERN, frozenset())
            if known != rules:
                raise self.world.broken(f"{machine} knows of {known}, the rules are {rules}")
            self._compare_quotas(machine)

    def _compare_quotas(self, machine: Machine) -> None:
        quotas = machine.broker.quotas
        for name in OUTSIDERS:
            node = self.ensemble.tree.nodes.get(f"/config/{user_path(name)}")
            wanted = decode_config(node.data).get(PRODUCER_BYTE_RATE) if node else None
            known = None if quotas is None else quotas.produce.limits.get((name, None))
            if known != (None if wanted is None else float(wanted)):
                raise self.world.broken(f"{machine} knows of {known} for {name}, its quota is {wanted}")


def simulate(seed: int) -> Outcome:
    """Run the world of a seed to its end. Raises: Broken, or what the broker itself raised."""
    return Ruled(seed).run()
