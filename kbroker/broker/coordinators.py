"""Coordinators as parts of a broker: which partitions they serve, when they wake, where their answers go.

Between `kbroker.coordinator`, whose runtimes know no broker, and the facts that concern them: who leads a partition of
their topic, how many there are, what is new in the image of the cluster. One for each coordinator's topic.

What a coordinator's state is and how it changes is loaded with the first partition that it leads, or the first request
that asks it something: many brokers have neither groups nor transactions (docs/decisions/0030).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.broker.facts import JointPart, Reply
from kbroker.broker.transaction_partitions import Question
from kbroker.coordinator import Runtime, TopicStore
from kbroker.metadata.cache import CONSUMER_OFFSETS, TRANSACTION_STATE, MetadataDelta
from kbroker.metadata.store import decode_topic, topic_path
from kbroker.ports import Get
from kbroker.replica.facts import RoleChanged
from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kbroker.broker.facts import Handler, Tell
    from kbroker.config import BrokerConfig
    from kbroker.coordinator import Happened
    from kbroker.coordinator import Reply as CoordinatorReply
    from kbroker.coordinator.runtime import Give
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.groups.group import Group
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.steps import Procedure
    from kbroker.ports import Clock, Random
    from kbroker.replica import Partition, ReplicaManager
    from kbroker.timing import Scheduler
    from kbroker.txn.coordinator import TransactionCoordinator
    from kbroker.txn.shard import TransactionShard, WriteMarkers

    Run = Callable[[Procedure["Counted"], Callable[["Counted"], None], Callable[[Exception], None]], None]

coordinator_log = logging.getLogger("kbroker.coordinator")
log = logging.getLogger("kbroker.groups")
transactions_log = logging.getLogger("kbroker.transactions")


class Counted(NamedTuple):
    """How many partitions a topic has. topic_id: of which topic; the name may be given to another one."""

    topic_id: bytes
    partitions: int


UNKNOWN = Counted(ZERO_UUID, 0)


def count_partitions(topic: str) -> Procedure[Counted]:
    """How many partitions a topic has by its node in the store; `UNKNOWN` if it is not there."""
    (found,) = yield [Get(topic_path(topic))]
    if not found.stat:
        return UNKNOWN
    info = decode_topic(found.data)
    return Counted(info.topic_id or ZERO_UUID, len(info.partitions))


class CoordinatorPart:
    """One coordinator. topic: in whose partitions its state is. run: runs a procedure on the metadata store."""

    def __init__(self, runtime: Runtime[Any], cache: MetadataCache, run: Run) -> None:
        self.topic = runtime.topic
        self._runtime = runtime
        self._cache = cache
        self._run = run
        self._counted = UNKNOWN
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
            self._runtime.role_changed(fact.partition, now_ms, is_leader=fact.is_leader)

    def _new_image(self, fact: MetadataDelta, now_ms: int) -> None:
        self._runtime.new_metadata_image(fact, now_ms)
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
            coordinator_log.warning(
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
        self._runtime.resize(0)  # until there is an answer
        self._run(count_partitions(self.topic), self._count, self._cannot_count)

    def _count(self, counted: Counted) -> None:
        self._asking = False
        self._counted, self._largest = counted, counted.partitions
        self._runtime.resize(counted.partitions)

    def _cannot_count(self, error: Exception) -> None:
        """The session with the store has ended: the next one brings a whole image."""
        self._asking = False

    def give_jobs_to(self, give: Give) -> None:
        """Where what it reads while it loads becomes a job."""
        self._runtime.give = give

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition of its topic has records, or another high watermark."""
        self._runtime.moved(partition, now_ms)


class LateGroups:
    """The group coordinator of a broker, over its replicas of __consumer_offsets. runtime: is there from the start."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        clock: Clock,
        random: Random,
        scheduler: Scheduler,
        tell: Tell,
    ) -> None:
        self._config = config
        self._random = random
        self._store = TopicStore(CONSUMER_OFFSETS, replicas, clock, config.offsets_topic_compression_codec)
        self._made: GroupCoordinator | None = None
        self.runtime: Runtime[GroupShard] = Runtime(
            CONSUMER_OFFSETS,
            self._store,
            self._make_shard,
            answers(tell),
            self._happened,
            scheduler,
        )

    @property
    def coordinator(self) -> GroupCoordinator:
        """What requests are handed to; loaded now if it was not before."""
        if self._made is None:
            from kbroker.groups.coordinator import GroupCoordinator
            from kbroker.groups.memory import GroupMemory

            self._made = GroupCoordinator(self.runtime, GroupMemory(self._all, self._config))
        return self._made

    @property
    def held_bytes(self) -> int:
        """Memory in use for groups, about."""
        return self._made.memory.held_bytes if self._made is not None else 0

    def _all(self) -> Iterator[Group]:
        return (group for shard in self.runtime.shards.values() for group in shard.groups.values())

    def _make_shard(self, partition: int, epoch: int) -> GroupShard:
        from kbroker.groups.shard import GroupShard

        memory = self.coordinator.memory
        return GroupShard(partition, epoch, self._store, self._config, self._random, memory)

    def _happened(self, event: Happened) -> None:
        log.log(logging.DEBUG if event.is_detail else logging.INFO, "group %s: %s", event.name, event.what)


class LateTransactions:
    """The transaction coordinator of a broker, over its replicas of __transaction_state.

    runtime: is there from the start. new_id: see `ProducerIds.take_now`. send_markers: brings outcomes to partitions.
    """

    def __init__(
        self,
        configs: Configs,
        replicas: ReplicaManager,
        clock: Clock,
        scheduler: Scheduler,
        tell: Tell,
        new_id: Callable[[], int],
        send_markers: Callable[[WriteMarkers, int], None],
    ) -> None:
        self._configs = configs
        self._new_id = new_id
        self._store = TopicStore(TRANSACTION_STATE, replicas, clock)
        self._made: TransactionCoordinator | None = None
        self.runtime: Runtime[TransactionShard] = Runtime(
            TRANSACTION_STATE,
            self._store,
            self._make_shard,
            answers(tell),
            self._happened,
            scheduler,
            send_markers,
        )

    @property
    def coordinator(self) -> TransactionCoordinator:
        """What requests are handed to; loaded now if it was not before."""
        if self._made is None:
            from kbroker.txn.coordinator import TransactionCoordinator

            self._made = TransactionCoordinator(self.runtime)
        return self._made

    def have_marked(self, markers: WriteMarkers, now_ms: int) -> None:
        """Every partition of a transaction has its marker."""
        self.coordinator.have_marked(markers, now_ms)

    def _make_shard(self, partition: int, epoch: int) -> TransactionShard:
        from kbroker.txn.shard import TransactionShard

        return TransactionShard(partition, epoch, self._store, lambda: self._configs.broker, self._new_id)

    def _happened(self, event: Happened) -> None:
        transactions_log.info("transactional id %s: %s", event.name, event.what)


def answers(tell: Tell) -> Callable[[CoordinatorReply], None]:
    """Where a coordinator's replies go: to the core, or into an answer that several make together."""

    def answer(reply: CoordinatorReply) -> None:
        whole = reply.call.answered(reply.response) if isinstance(reply.call, JointPart | Question) else Reply(*reply)
        if whole is not None:
            tell(whole)

    return answer
