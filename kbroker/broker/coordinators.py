"""Coordinators as parts of a broker: which partitions they serve, when they wake, where their answers go.

Between `kbroker.coordinator`, whose runtimes know no broker, and the facts that concern them: who leads a partition of
their topic, how many there are, what is new in the image of the cluster. One for each coordinator's topic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.broker.control_plane import UNCOUNTED, Counted
from kbroker.broker.coordinator_types import Parts
from kbroker.broker.facts import PartialAnswer, Reply, Touched
from kbroker.coordinator import Runtime, TopicStore
from kbroker.metadata.cache import MetadataDelta
from kbroker.replica.facts import RoleChanged
from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.coordinator_types import CoordinatorType, Loaded
    from kbroker.broker.facts import Handler, Tell
    from kbroker.coordinator import CoordinatorEvent
    from kbroker.coordinator import Reply as CoordinatorReply
    from kbroker.coordinator.runtime import Give
    from kbroker.metadata.cache import MetadataCache
    from kbroker.ports import Clock, Random
    from kbroker.replica import Partition, ReplicaManager
    from kbroker.timing import Scheduler

    Count = Callable[[str, Callable[[Counted], None], Callable[[Exception], None]], None]

log = logging.getLogger("kbroker.coordinator")


class CoordinatorKey(NamedTuple):
    """What a request watches that waits for a coordinator: its shards are loaded, its topic's partitions counted."""

    topic: str


class CoordinatorPart:
    """One coordinator. topic: in whose partitions its state is. count: finds out how many partitions that has."""

    def __init__(self, runtime: Runtime[Any], cache: MetadataCache, count: Count) -> None:
        self.topic = runtime.topic
        self.runtime = runtime
        self._cache = cache
        self._count_partitions = count
        self._counted = UNCOUNTED
        self._largest = 0  # number of partitions that it was seen to have
        self._asking = False

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Who leads the partitions of its topic, and how many there are."""
        return {
            RoleChanged: self._role_changed,
            MetadataDelta: self._new_image,
        }

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        if fact.partition.topic == self.topic:
            self.runtime.role_changed(fact.partition, now_ms, is_leader=fact.is_leader)

    def _new_image(self, fact: MetadataDelta, now_ms: int) -> None:
        self.runtime.new_metadata_image(fact, now_ms)
        self._count_shards(fact)

    def _count_shards(self, fact: MetadataDelta) -> None:
        """The topic decides how its keys are spread, whatever the settings say today: as it is when it is first seen.

        An image may lack partitions that never had a leader, and who counts its partitions then looks for a group on
        another one than the rest of the cluster does. So the store is asked, and until it has answered no key has a
        partition. From then on a key keeps its partition, as in Kafka: in one that is added, nothing is kept of it.
        """
        image = self._cache.topics.get(self.topic)
        if self.topic not in fact.topics or image is None:
            return
        if not self._counted.partitions or image.topic_id not in (ZERO_UUID, self._counted.topic_id):
            self._ask()
        elif len(image.partitions) > self._largest:
            self._largest = len(image.partitions)
            log.warning(
                "%s has %d partitions now: ids keep theirs of the first %d until this broker starts again, and then"
                " most belong to another one, where what is kept of them is not found",
                self.topic,
                self._largest,
                self._counted.partitions,
            )

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        self.runtime.resize(0)  # until there is an answer
        self._count_partitions(self.topic, self._count, self._cannot_count)

    def _count(self, counted: Counted) -> None:
        self._asking = False
        self._counted, self._largest = counted, counted.partitions
        self.runtime.resize(counted.partitions)

    def _cannot_count(self, error: Exception) -> None:
        """The session with the store has ended: the next one brings a whole image."""
        self._asking = False

    def give_jobs_to(self, give: Give) -> None:
        """Where what it reads while it loads becomes a job."""
        self.runtime.give = give

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition of its topic has records, or another high watermark."""
        self.runtime.moved(partition, now_ms)


class LateCoordinator(CoordinatorPart):
    """The coordinator of a type, over this broker's replicas of its topic. runtime: is there from the start.

    forward: does what its effects carry.
    """

    def __init__(
        self,
        kind: CoordinatorType,
        plane: ControlPlane,
        replicas: ReplicaManager,
        clock: Clock,
        random: Random,
        scheduler: Scheduler,
        tell: Tell,
        forward: Callable[[Any, int], None] | None = None,
    ) -> None:
        config = plane.configs.broker
        store = TopicStore(kind.topic, replicas, clock, kind.codec(config))
        runtime: Runtime[Any] = Runtime(
            kind.topic,
            store,
            lambda partition, epoch: self._loaded().make_shard(partition, epoch),
            answers(tell),
            self._log_event,
            scheduler,
            forward,
            lambda: tell(Touched([CoordinatorKey(kind.topic)])),
        )
        super().__init__(runtime, plane.cache, plane.count_partitions)
        self._kind = kind
        new_id, features = plane.producer_ids.take_now, plane.features
        self._parts = Parts(runtime, store, config, plane.configs, plane.cache, random, new_id, features)
        self._made: Loaded | None = None

    def _loaded(self) -> Loaded:
        if self._made is None:
            self._made = self._kind.load(self._parts)
        return self._made

    @property
    def coordinator(self) -> Any:
        """What requests are handed to; loaded now if it was not before."""
        return (self._made or self._loaded()).coordinator

    @property
    def held_bytes(self) -> int:
        """Memory in use for clients, about."""
        return 0 if self._made is None else self._made.held_bytes()

    def _log_event(self, event: CoordinatorEvent) -> None:
        level = logging.DEBUG if event.is_detail else logging.INFO
        self._kind.log.log(level, "%s %s: %s", self._kind.word, event.name, event.what)


def answers(tell: Tell) -> Callable[[CoordinatorReply], None]:
    """Where a coordinator's replies go: to the core, or into an answer that several make together."""

    def answer(reply: CoordinatorReply) -> None:
        whole = reply.call.answered(reply.response) if isinstance(reply.call, PartialAnswer) else Reply(*reply)
        if whole is not None:
            tell(whole)

    return answer
