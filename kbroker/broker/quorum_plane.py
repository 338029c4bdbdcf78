"""The control plane on a metadata quorum (KRaft): what the log of metadata records says, done and told.

One of two (`control_plane.py`). Records that are committed make the image of the cluster (`quorum/image.py`). Once that
has come to this broker's own registration, each change of it is published: settings, users and features at once; what
concerns replicas, and what clients are told of the cluster, as requests in the queue that obeys controllers
(`controller_requests.py`). When the first of it has been obeyed, the broker asks to be unfenced (`life.py`). What is to
be changed in the cluster is asked of the quorum's leader (`to_controller.py`).

Source: BrokerServer, BrokerMetadataPublisher and MetadataLoader of Apache Kafka 4.3, by behaviour; KIP-500, KIP-631.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

from kbroker.broker.control_plane import UNCOUNTED, Counted
from kbroker.broker.controller_requests import ControllerRequestQueue, OwnRequest
from kbroker.broker.facts import EndpointsChanged, Leave, Touched
from kbroker.broker.life import Life
from kbroker.broker.metadata_publisher import requests_of
from kbroker.broker.observer import Observer
from kbroker.broker.producer_id_blocks import ProducerIds
from kbroker.broker.published_settings import PublishedSettings
from kbroker.broker.to_controller import ToController
from kbroker.controller.admin import Pending, creation_elsewhere, made_elsewhere
from kbroker.controller.events import ControlAnswer
from kbroker.log.facts import LogDirectoryFailed, LogMoved
from kbroker.metadata.features import Features, unsupported
from kbroker.metadata.requester import VERSIONS
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.ports import TO_CONTROLLER
from kbroker.quorum.facts import Committed, LeftCluster, Registered
from kbroker.quorum.image import TOPIC, ImageError, MetadataDelta, MetadataImage, differences
from kbroker.quorum.life import Identity
from kbroker.quorum.metadata_version import supported_features
from kbroker.quorum.observer import QuorumObserver
from kbroker.quorum.snapshots import image_values
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from protocol.messages.metadata_records import BrokerRegistrationChangeRecord
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kbroker.broker.control_plane import Basis, Quorum
    from kbroker.broker.facts import Handler, Part
    from kbroker.broker.jobs import Job, Owner
    from kbroker.controller.admin import Charge, Made, NewTopic
    from kbroker.metadata.entities import Entities
    from kbroker.metadata.requester import Asker
    from kbroker.metadata.store import SupportedFeature
    from protocol.message import Message
    from protocol.messages.control import (
        AllocateProducerIdsResponse,
        AlterPartitionRequest,
        AlterPartitionResponse,
        EnvelopeRequest,
        EnvelopeResponse,
    )
    from protocol.messages.topics import CreateTopicsResponse

log = logging.getLogger("kbroker.cluster")

CREATE_TOPICS_VERSIONS = (2, 7)
PRODUCER_IDS_PATIENCE_MS = 60_000


class Join(NamedTuple):
    """Fact from outside: all parts are there, and addresses are bound: the broker may join its cluster."""


class Publisher(Protocol):
    """What is told of each change of the image, before what concerns replicas is done."""

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Act on what has changed."""


class QuorumPlane:
    """See `ControlPlane`. image: what the metadata log says; life, observer: of this broker in the quorum's cluster.

    publishers: who hears of changes; is added to before the broker joins.
    """

    controller = None
    is_over = True  # of a controlled shutdown: until one has begun

    def __init__(self, basis: Basis, observer: Observer, life: Life, to_controller: ToController) -> None:
        assert basis.cluster_id is not None, basis.broker_id
        requester, replicas = basis.requester, basis.replicas
        self.broker_id = basis.broker_id
        self.cluster_id: str | None = basis.cluster_id
        self.configs = basis.configs
        self.cache = basis.cache
        self.listener = requester.listener
        self.image = MetadataImage()
        self.observer = observer
        self.life = life
        self.features = Features(tell=basis.tell)
        self.settings = PublishedSettings(basis.broker_id, basis.configs, replicas, basis.tell)
        self.publishers: list[Publisher] = [self.settings]
        self.producer_ids = ProducerIds(self._claim_producer_ids, basis.tell)
        self.control_requests = ControllerRequestQueue(
            basis.broker_id, replicas, basis.cache, basis.configs, self._read_settings, basis.scheduler, basis.clock,
            basis.tell,
        )  # fmt: skip
        self.control_requests.heeds_partition_epochs = True
        requester.cluster_id = basis.cluster_id
        replicas.is_known = basis.cache.partition
        replicas.rules.is_alive = self._may_be_in_sync
        self._logs = basis.logs
        self._requester = requester
        self._to_controller = to_controller
        self._endpoints = basis.endpoints
        self._tell = basis.tell
        self._fatal = ""
        self._loading: MetadataImage | None = None  # of a snapshot that takes the place of all before it
        self._has_published = False
        self._offset = self._epoch = -1  # of the last record that was applied
        self._obeyed: deque[tuple[UpdateMetadataRequest, int]] = deque()  # what waits in the queue, up to which offset
        self._auto: dict[str, Pending[Made]] = {}

    # -- what is asked of it

    @property
    def entities(self) -> Entities:
        """What is set for users, clients and addresses."""
        return self.settings.entities

    @property
    def broker_epoch(self) -> int:
        """Of this life of the broker, from its registration on; -1 before."""
        return self.life.broker_epoch

    @property
    def fatal(self) -> str:
        """Why the broker cannot go on in this cluster, or empty."""
        return self._fatal or self.observer.fatal or self.life.fatal

    @property
    def ready(self) -> bool:
        """Whether this broker is registered and unfenced, and has been told so."""
        return self.broker_id in self.cache.brokers and not self.life.is_fenced

    @property
    def open_to_brokers(self) -> bool:
        """Whether connections are to be taken. A leader's followers come as soon as their log says so."""
        return self._has_published

    @property
    def supported(self) -> tuple[SupportedFeature, ...]:
        """Those of every cluster, and metadata.version with those that belong to it."""
        return supported_features()

    @property
    def parts(self) -> Sequence[Part]:
        """Those of a member of a quorum's cluster, that hear facts beside it."""
        return self.observer, self.life, self._to_controller

    def fenced_brokers(self) -> Sequence[BrokerInfo]:
        """As the image has them."""
        return [
            BrokerInfo(
                each.broker_id,
                tuple(Endpoint(at.name, at.security_protocol, at.host, at.port) for at in each.end_points),
                each.rack,
            )
            for each in self.image.brokers.values()
            if each.fenced
        ]

    def eligible_leaders(self, topic: str, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """As the image has them."""
        found = self.image.topic_named(topic)
        partition = None if found is None else found.partitions.get(index)
        if partition is None:
            return (), ()
        return partition.eligible_leader_replicas or (), partition.last_known_elr or ()

    def count_partitions(
        self, topic: str, done: Callable[[Counted], None], failed: Callable[[Exception], None]
    ) -> None:
        """As the image has them."""
        found = self.image.topic_named(topic)
        done(UNCOUNTED if found is None else Counted(found.topic_id, len(found.partitions)))

    def find_hosts(self, done: Callable[[frozenset[str]], None], failed: Callable[[Exception], None]) -> None:
        """The hosts of all brokers that are registered, fenced ones too."""
        done(frozenset(each.host for broker in self.image.brokers.values() for each in broker.end_points))

    def read_configs(self, entities: Sequence[tuple[str, str]]) -> Pending[dict[tuple[str, str], dict[str, str]]]:
        """As the image has them."""
        pending: Pending[dict[tuple[str, str], dict[str, str]]] = Pending()
        pending.value = {entity: self.settings.of_entity(self.image, *entity) for entity in entities}
        return pending

    def _may_be_in_sync(self, broker_id: int) -> bool:
        """Whether controllers take a broker into an in-sync set: it serves, and is not about to stop (KIP-841)."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    # -- what it asks of the controllers

    def forward(
        self,
        envelope: EnvelopeRequest,
        done: Callable[[EnvelopeResponse], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Pass a client's request on."""
        self._to_controller.ask(envelope, 0, self.configs.broker.request_timeout_ms, done, failed)

    def auto_create(self, topics: Sequence[NewTopic], charge: Charge | None = None) -> dict[str, Pending[Made]]:
        """Have the controllers make topics because a client asked for them; once, however many ask."""
        found = {topic.name: self._auto.get(topic.name) for topic in topics}
        new = [topic for topic in topics if found[topic.name] is None]
        begun = self._create(new) if new else Pending()
        return {name: begun if pending is None else pending for name, pending in found.items()}

    def _create(self, topics: Sequence[NewTopic]) -> Pending[Made]:
        pending: Pending[Made] = Pending()
        self._auto |= dict.fromkeys((topic.name for topic in topics), pending)

        def ended() -> None:
            for topic in topics:
                self._auto.pop(topic.name, None)
            self._tell(Touched([pending]))

        def done(response: CreateTopicsResponse) -> None:
            pending.value = made_elsewhere(topics, response)
            ended()

        def failed(error: KafkaError) -> None:
            pending.error = error
            ended()

        patience_ms = self.configs.broker.request_timeout_ms
        request = creation_elsewhere(topics, patience_ms)
        self._to_controller.ask(request, CREATE_TOPICS_VERSIONS, 2 * patience_ms, done, failed)
        return pending

    def _claim_producer_ids(self, claimed: Callable[[range | None], None]) -> None:
        def done(response: AllocateProducerIdsResponse) -> None:
            code = ErrorCode.of(response.error_code)
            if code is not ErrorCode.NONE:
                log.warning("AllocateProducerIds is answered with %s", code.name)
                claimed(None)
                return
            first = response.producer_id_start
            claimed(range(first, first + response.producer_id_len))

        request = AllocateProducerIdsRequest(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
        self._to_controller.ask(request, 0, PRODUCER_IDS_PATIENCE_MS, done, lambda error: claimed(None))

    def alter_partition(
        self,
        asker: Asker,
        request: AlterPartitionRequest,
        version: int,
        token: object,
        answered: Callable[[AlterPartitionResponse], None],
    ) -> bool:
        """Ask the quorum's leader to change in-sync sets."""
        leader = self.observer.leader
        if leader is None:
            return False
        return self._requester.ask(
            asker, leader.node_id, TO_CONTROLLER, request, token, endpoint=leader.endpoint, version=version
        )

    # -- facts

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What the log says, what has been done about it, and the ends of this life."""
        return {
            Join: self._join,
            Committed: self._committed,
            Registered: lambda fact, now_ms: self._begin(now_ms),
            ControlAnswer: self._done,
            LogDirectoryFailed: self._log_directory_failed,
            LogMoved: self._log_moved,
            **self.control_requests.handlers,
            EndpointsChanged: self._advertise,
            Leave: self._leave,
            LeftCluster: self._left,
        }

    def _join(self, fact: Join, now_ms: int) -> None:
        self.observer.start(now_ms)
        self.life.start(self._endpoints, now_ms)

    def _advertise(self, fact: EndpointsChanged, now_ms: int) -> None:
        if fact.endpoints != self._endpoints:
            self._endpoints = fact.endpoints
            self.life.advertise(fact.endpoints, now_ms)

    def _leave(self, fact: Leave, now_ms: int) -> None:
        """Hand over what is led here, if this broker is in the cluster at all."""
        if self.broker_epoch >= 0 and self.configs.broker.controlled_shutdown_enable:
            log.info("broker %d hands its leaders over", self.broker_id)
            self.is_over = False
            self.life.leave(now_ms)

    def _left(self, fact: LeftCluster, now_ms: int) -> None:
        self.is_over = True

    def _log_directory_failed(self, fact: LogDirectoryFailed, now_ms: int) -> None:
        if fact.is_last:
            self._fatal = "no log directory is left"
            return
        failed = next((each for each in self._logs.directories if each.path == fact.path), None)
        if failed is not None and failed.meta.directory_id is not None:
            self.life.directory_failed(failed.meta.directory_id, now_ms)

    def close(self) -> None:
        """Leave the cluster."""
        self.life.close()
        self._requester.close()
        self.observer.close()

    # -- the image

    def _committed(self, fact: Committed, now_ms: int) -> None:
        if self._fatal:
            return
        if fact.is_snapshot and fact.is_first:
            self._loading = MetadataImage()
        image = self._loading or self.image
        try:
            for record in fact.records:
                image.apply(record)
        except ImageError as error:
            self._cannot_go_on(f"the metadata log cannot be applied at offset {fact.offset}: {error}")
            return
        if not fact.is_last:
            return
        if self._has_published and self.is_over and any(_fences(each, self.broker_id) for each in fact.records):
            log.warning("broker %d is fenced: controllers have not heard of it in time", self.broker_id)
        before, self.image, self._loading = self.image, image, None
        self._offset, self._epoch = fact.offset, fact.epoch
        if self._has_published:
            delta = image.take_delta()
            self._publish(delta if image is before else differences(before, image), now_ms)
        else:
            self.life.published(fact.offset)
            self._begin(now_ms)
        if self.observer.wants_snapshot and not image.in_transaction:
            self.observer.take_snapshot(image_values(image), fact)

    def _begin(self, now_ms: int) -> None:
        """Publish all there is, once this broker's own registration is in it: before, the log is of another time."""
        own = self.image.brokers.get(self.broker_id)
        if self._has_published or own is None or own.broker_epoch != self.broker_epoch:
            return
        self._take_features()
        if not self._fatal:
            self._has_published = True
            self._set_strays_aside()
            self.image.take_delta()
            self._publish(differences(MetadataImage(), self.image), now_ms, is_first=True)

    def _publish(self, delta: MetadataDelta, now_ms: int, *, is_first: bool = False) -> None:
        """Act on what has changed."""
        if delta.features and not is_first:
            self._take_features()
        if self._fatal:
            return
        for each in self.publishers:
            each.publish(self.image, delta)
        if not (is_first or delta.topics or delta.partitions or delta.brokers):
            if not self._obeyed:
                self.life.published(self._offset)
            return
        requests = requests_of(self.image, delta, self.broker_id, self._epoch, is_first=is_first)
        update = requests[-1]
        assert isinstance(update, UpdateMetadataRequest), update
        self._obeyed.append((update, self._offset))
        for request in requests:
            version = VERSIONS[type(request).__name__]
            response = self.control_requests.handle(request, version, OwnRequest(request))
            if response is not None:
                self._done(ControlAnswer(self.broker_id, request, response), now_ms)

    def _set_strays_aside(self) -> None:
        """Logs of partitions that went elsewhere, or were deleted, while this broker was away: kept, and not read."""
        for name, index in list(self._logs):
            topic = self.image.topic_named(name)
            partition = None if topic is None else topic.partitions.get(index)
            if partition is None or self.broker_id not in partition.replicas:
                log.warning("%s-%d is not this broker's any more: its log is set aside", name, index)
                try:
                    self._logs.set_aside(name, index)
                except KafkaError as error:  # its directory has failed by now
                    log.error("%s-%d cannot be set aside: %s", name, index, error.message)

    def _take_features(self) -> None:
        unfit = unsupported(self.image.features, supported_features())
        if unfit:
            wanted = ", ".join(f"{name}={level}" for name, level in unfit.items())
            able = ", ".join(f"{each.name} {each.first}-{each.last}" for each in supported_features())
            self._cannot_go_on(f"the cluster has finalized {wanted}; this broker supports {able}")
            return
        self.features.adopt(dict(self.image.features), self._offset)

    def _cannot_go_on(self, why: str) -> None:
        log.error("%s", why)
        self._fatal = why

    def _read_settings(
        self,
        topics: list[str],
        done: Callable[[Mapping[str, Mapping[str, str]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """For the queue, of topics that are new here."""
        done({topic: self.image.configs.get((TOPIC, topic), {}) for topic in topics})

    # -- what has been done

    def _done(self, answer: ControlAnswer, now_ms: int) -> None:
        """A request has been obeyed, or what of it can be."""
        if isinstance(answer.request, LeaderAndIsrRequest):
            self._assign_directories(answer.request, now_ms)
        elif self._obeyed and answer.request is self._obeyed[0][0]:
            _, offset = self._obeyed.popleft()
            self.life.published(offset)
            self.life.ready_to_serve(now_ms)

    def _assign_directories(self, request: LeaderAndIsrRequest, now_ms: int) -> None:
        for topic in request.topic_states:
            for state in topic.partition_states:
                self._assign_directory(topic.topic_name, state.partition_index, now_ms)

    def _log_moved(self, fact: LogMoved, now_ms: int) -> None:
        topic, index = fact.partition
        self._assign_directory(topic, index, now_ms)

    def _assign_directory(self, name: str, index: int, now_ms: int) -> None:
        """Tell controllers of a replica that is in another directory than they know (KIP-858)."""
        topic, found = self.image.topic_named(name), self._logs.directory_of(name, index)
        known = None if topic is None else topic.partitions.get(index)
        if topic is None or known is None or found is None or self.broker_id not in known.replicas:
            return
        own = found.meta.directory_id
        said = known.directories[known.replicas.index(self.broker_id)] if known.directories else None
        if own is not None and own != said:
            self.life.assigned(topic.topic_id, index, own, now_ms)
        else:
            self.life.unassigned(topic.topic_id, index)


def _fences(record: Message, broker_id: int) -> bool:
    """Whether controllers have taken a broker for dead: what it led, others lead. It may have come back by now."""
    return isinstance(record, BrokerRegistrationChangeRecord) and record.broker_id == broker_id and record.fenced == 1


def quorum_plane(quorum: Quorum, basis: Basis, give: Callable[[Job, Owner], None]) -> QuorumPlane:
    """The plane with its parts. give: work for the disk, to the broker that is about to be there."""
    settings, metadata_log, directory_ids, incarnation_id, previous_epoch = quorum
    broker_id, cluster_id, configs, requester = basis.broker_id, basis.cluster_id, basis.configs, basis.requester
    clock, scheduler, tell = basis.clock, basis.scheduler, basis.tell
    assert cluster_id is not None, broker_id
    metadata_dir = metadata_log.path.rpartition("/")[0]
    following = QuorumObserver(settings, cluster_id, directory_ids[metadata_dir], metadata_log, basis.random)
    observer = Observer(following, settings, requester, configs, clock, scheduler, give, tell)
    identity = Identity(
        broker_id,
        cluster_id,
        incarnation_id,
        configs.broker.broker_rack,
        supported_features(),
        tuple(directory_ids[each.path] for each in basis.logs.directories if each.online),
        previous_epoch,
    )
    life = Life(identity, observer, requester, configs, scheduler, tell)
    return QuorumPlane(basis, observer, life, ToController(requester, lambda: observer.leader, clock, scheduler))
