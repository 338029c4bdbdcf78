"""Worlds of the groups of Kafka 4 on replicated topics, whose coordinators die: `scripts/sim groups`.

As a replicated world, with members of a consumer group, a share group and a streams group beside those of a classic
one. The cluster agrees on the features first. What must hold besides what `members.py` and `share_members.py` check of
what they are told:

- no coordinator has a partition, or a task, with two members of a group at a time;
- once all has healed, each group has its partitions shared out, and has read, or worked off, all that there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.groups.consumer_group import ConsumerGroup
from kbroker.metadata.features import newest
from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from kbroker.sim.members import all_is_shared
from kbroker.sim.modern_members import ConsumerMember, EpochMember, StreamsMember
from kbroker.sim.replicated import FAULTS_MS, ReplicatedSwarm
from kbroker.sim.share_members import Shared, ShareMember
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from kbroker.groups.group import Group
    from kbroker.sim.client import Client
    from kbroker.sim.machine import Machine

UPDATE_FEATURES, ALTER = 57, 44
GROUP_RESOURCE, SET = 32, 0
DELIVERIES = 5
SHARE_GROUP = "work"
WORKED_OFF_MS = 30_000
"""By when what is left is worked off: a member that is gone, and the locks of several deliveries."""


class Agreement(Router):
    """Has the cluster agree on what it can do, and the share group begin with the first record."""

    is_over = False

    def live(self) -> Script:
        """Again and again, until both are done."""
        for step in (self._agree, self._set_up):
            done = False
            while not done:
                try:
                    yield from self.shake_hands()
                    done = yield from step()
                except Lost as lost:
                    self.misled_by_controller()
                    self.note(f"lost an answer: {lost.why}")
                yield from self.pause(500)
        self.is_over = True

    def _agree(self) -> Any:
        levels = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in newest().items()]
        answer: UpdateFeaturesResponse = yield from self.ask(
            UpdateFeaturesRequest(feature_updates=levels, timeout_ms=10_000), to=(yield from self.controller())
        )
        self.note(f"asks for features: {ErrorCode.of(answer.error_code).name} {answer.error_message}")
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            self.misled_by_controller()
        codes = {answer.error_code, *(each.error_code for each in answer.results)}
        return codes == {ErrorCode.NONE}

    def _set_up(self) -> Any:
        config = IncrementalAlterableConfig(name="share.auto.offset.reset", config_operation=SET, value="earliest")
        wanted = IncrementalAlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=SHARE_GROUP, configs=[config]
        )
        answer: IncrementalAlterConfigsResponse = yield from self.ask(
            IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False),
            to=(yield from self.controller()),
        )
        code = ErrorCode.of(answer.responses[0].error_code)
        self.note(f"has {SHARE_GROUP} begin at the start: {code.name} {answer.responses[0].error_message}")
        return code is ErrorCode.NONE


class ModernGroups(ReplicatedSwarm):
    """A world of groups of all kinds."""

    more_settings: Mapping[str, str] = {
        "transaction.state.log.replication.factor": "3",
        "offsets.topic.replication.factor": "3",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "10000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "1000",
        "group.streams.min.session.timeout.ms": "1000",
        "group.streams.session.timeout.ms": "10000",
        "group.streams.min.heartbeat.interval.ms": "1000",
        "group.streams.heartbeat.interval.ms": "1000",
        "group.share.min.session.timeout.ms": "1000",
        "group.share.session.timeout.ms": "10000",
        "group.share.min.heartbeat.interval.ms": "1000",
        "group.share.heartbeat.interval.ms": "1000",
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": "5000",
        "group.share.delivery.count.limit": str(DELIVERIES),
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
    }

    def _more_clients(self) -> Sequence[Client]:
        given = self.world, self.net, self.machines, self.checks
        rng = self.world.rng("modern groups")
        self.old_topics = []
        self.agreement = Agreement("agreement", *given)
        self.shared = Shared(self.world, DELIVERIES)
        self.of_epochs: list[EpochMember] = []
        for kind, group, count in ((ConsumerMember, "modern", 3), (StreamsMember, "tasks", rng.randint(0, 2))):
            for number in range(count):
                member = kind(f"{group}-{number}", *given)
                member.group, member.topics = group, self.topics
                member.static, member.restless = rng.random() < 0.3, rng.random() < 0.5
                member.commit_ms, member.max_wait_ms = rng.choice((500, 5_000)), 500
                self.of_epochs.append(member)
        self.workers: list[ShareMember] = []
        for number in range(rng.randint(1, 3)):
            worker = ShareMember(f"worker-{number}", *given)
            worker.group, worker.topics, worker.shared = SHARE_GROUP, self.topics, self.shared
            worker.may_begin = self._is_set_up
            worker.restless = rng.random() < 0.5
            worker.max_records = rng.choice((1, 10, 500))
            self.workers.append(worker)
        self.world.watchers.append(self._look_at_coordinators)
        return [self.agreement, *self.of_epochs, *self.workers]

    def _is_set_up(self) -> bool:
        """Whether each broker knows where the share group begins: who does not would begin with what comes next."""
        configs = [machine.broker.plane.configs for machine in self.machines if machine.up]
        return self.agreement.is_over and all(each.group(SHARE_GROUP) for each in configs)

    # ---- looking on

    def _look_at_coordinators(self) -> None:
        for machine in self.machines:
            if machine.up and machine.moved:
                for group in _groups(machine):
                    self._look_at(machine, group)

    def _look_at(self, machine: Machine, group: Group) -> None:
        if not isinstance(group, ConsumerGroup):
            return
        held = Counter(
            (topic, partition)
            for member in group.members.values()
            for owned in (member.assigned, member.pending_revocation)
            for topic, parts in owned.items()
            for partition in parts
        )
        twice = [where for where, count in held.items() if count > 1]
        if twice:
            raise self.world.broken(f"{machine}: {twice} of {group.group_id} are with two members")

    # ---- its life

    def run(self, faults_ms: int = FAULTS_MS, healing_ms: int = 120_000) -> int:
        """See ReplicatedSwarm: the restless settle once it heals."""
        self.world.after(faults_ms, self._settle)
        acknowledged = super().run(faults_ms, healing_ms)
        for group in {member.group: None for member in self.of_epochs}:
            all_is_shared(self.checks, [each for each in self.of_epochs if each.group == group], self.topics)
        self.world.run_until(self.world.now_ms + WORKED_OFF_MS)
        for topic in self.topics:
            for index in range(topic.partitions):
                where = topic.name, index
                missing = self.shared.missing(where, self.checks.log_end(where))
                if missing:
                    raise self.world.broken(f"{where}: nothing came of {missing[:10]} of {SHARE_GROUP}")
        return acknowledged

    def _settle(self) -> None:
        for member in self.of_epochs:
            member.restless = False
        for worker in self.workers:
            worker.restless, worker.hurries, worker.max_records = False, True, 500


def _groups(machine: Machine) -> Iterator[Group]:
    for shard in machine.broker.group_runtime.shards.values():
        if not shard.loading:
            yield from shard.groups.values()
