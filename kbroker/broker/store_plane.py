"""The control plane of a broker on ZooKeeper: it registers, carries out the controller's requests, or is controller.

One of two (`control_plane.py`). Puts the parts of the control plane together and passes on what concerns them: events
of the store to those who await them, the own controller's requests to the queue that obeys them, answers back to the
controller. Handlers reach the parts through it. It decides nothing about topics or leaders.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from kbroker.broker.config_changes import ConfigChanges
from kbroker.broker.control_plane import UNCOUNTED, Counted
from kbroker.broker.controller_requests import ControllerRequestQueue, OwnRequest
from kbroker.broker.facts import EndpointsChanged, SettingsChanged
from kbroker.broker.producer_id_blocks import ProducerIdBlocks, ProducerIds
from kbroker.controller import Admin, Controller
from kbroker.controller.brokers import read_brokers
from kbroker.controller.controller_channel import ControlRequestDue
from kbroker.controller.events import AlterPartition, ControlAnswer, Registered, UncleanElectionsDue
from kbroker.log.facts import LogDirectoryFailed
from kbroker.metadata.features import SUPPORTED, FeatureNode, Features
from kbroker.metadata.requester import VERSIONS
from kbroker.metadata.steps import Procedure, SessionLostError, Steps, StoreRefusedError
from kbroker.metadata.store import (
    ALL_BROKERS,
    CLUSTER_ID,
    LOG_DIR_EVENTS,
    PERSISTENT,
    BrokerInfo,
    broker_path,
    config_path,
    decode_cluster_id,
    decode_config,
    decode_topic,
    encode_broker,
    encode_cluster_id,
    encode_config,
    encode_log_dir_event,
    encode_uuid,
    topic_path,
)
from kbroker.metadata.tree import ancestors
from kbroker.ports import (
    IN_SYNC,
    Create,
    Get,
    NodeChanged,
    Outcome,
    SessionExpired,
    SessionStarted,
    SetData,
    StoreAnswer,
    StoreFault,
)
from protocol.message import ZERO_UUID
from protocol.messages.control import LeaderAndIsrRequest
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kbroker.broker.control_plane import Basis
    from kbroker.broker.facts import Handler
    from kbroker.controller.admin import Charge, Made, NewTopic, Pending
    from kbroker.metadata.entities import Entities
    from kbroker.metadata.requester import Asker
    from kbroker.metadata.store import SupportedFeature
    from kbroker.ports import MetadataStore
    from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse

log = logging.getLogger("kbroker.cluster")

T = TypeVar("T")

NO_SESSION = 0
NO_BROKER = -1
SESSION_TIMEOUTS = 2
"""How often zookeeper.session.timeout.ms the broker id may be taken: after once, a former life is over for sure."""


class Image(Protocol):
    """What is known of a part of the metadata store."""

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins: all of it is read, before the broker registers."""

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""


ImageT = TypeVar("ImageT", bound=Image)


class Taken(NamedTuple):
    """The broker id is another session's. by: in words."""

    session: int
    by: str


class StorePlane:
    """The parts: `cache`, `configs`, `controller`, `admin`, `control_requests`, `producer_ids`, `features`.

    cluster_id: None until it is known. listener: over which brokers speak to each other. fatal: why the broker cannot
    go on in this cluster; then its process stops.
    """

    def __init__(self, basis: Basis, store: MetadataStore) -> None:
        """The cluster's id is that of meta.properties, if it is known."""
        broker_id, configs, replicas, requester = basis.broker_id, basis.configs, basis.replicas, basis.requester
        clock, random, scheduler, tell = basis.clock, basis.random, basis.scheduler, basis.tell
        self.broker_id = broker_id
        self.configs = configs
        self.cluster_id = basis.cluster_id
        self.fatal = ""
        self._has_come_up = False  # was ready once, or has obeyed or refused its own controller's first LeaderAndIsr
        self.cache = basis.cache
        replicas.is_known = self.cache.partition
        replicas.rules.is_alive = lambda broker_id: broker_id in self.cache.brokers
        self._store = store
        self._requester = requester
        self._clock = clock
        self._random = random
        self._endpoints = self._registered_endpoints = basis.endpoints
        self._session = NO_SESSION
        self._joining_in = NO_SESSION
        self._taken: Taken | None = None
        self._tell = tell
        self._steps = Steps(store, requester)
        listener = self.listener = requester.listener
        self.controller = Controller(broker_id, self._steps, configs, random, clock, scheduler, listener, tell)
        self.admin = Admin(self._steps, self.cache, configs, self.controller, random, tell)
        self.control_requests = ControllerRequestQueue(
            broker_id, replicas, self.cache, configs, self._read_topic_settings, scheduler, clock, tell
        )
        self._patience = scheduler.alarm(self._is_still_taken)
        self.admin.ignores_case = basis.logs.ignores_case
        self.producer_id_blocks = ProducerIdBlocks(self._steps)
        self.producer_ids = ProducerIds(lambda done: self.producer_id_blocks.claim(broker_id, done), tell)
        self.notices = ConfigChanges(broker_id, configs, replicas, self._steps, scheduler, tell)
        self.features = Features(tell=tell)
        alone = bool(configs.layers.alone)
        self._images: list[Image] = [
            FeatureNode(self.features, self._steps, self._cannot_go_on, alone=alone),
            self.notices,
        ]

    @property
    def ready(self) -> bool:
        """Whether this broker is registered and has been told of the cluster, itself included.

        One that is alone leads by then what it led before: clients that are told to come again would come at once, and
        keep it from getting there. That is about a start: who was ready once stays it, also while becoming controller.
        """
        is_known = self.broker_id in self.cache.brokers and self.control_requests.broker_epoch >= 0
        if is_known and not self._has_come_up:
            self._has_come_up = not self._is_coming_up
        return is_known and self._has_come_up

    @property
    def _is_coming_up(self) -> bool:
        """Whether its own controller has still to have it lead, no other broker being there, and nothing in the way."""
        if len(self.cache.brokers) > 1 or self.control_requests.is_waiting_for_descriptors:
            return False
        return self.controller.is_taking_over or self.controller.channels.head(self.broker_id) is not None

    @property
    def open_to_brokers(self) -> bool:
        """Whether connections are to be taken: the controller, where it is another broker, comes by one.

        Where it is this one, or none yet, it is better that clients wait until there is something to tell them.
        """
        is_another = self.controller.active_id not in (NO_BROKER, self.broker_id)
        return self.ready or (is_another and self.control_requests.broker_epoch >= 0)

    @property
    def supported(self) -> tuple[SupportedFeature, ...]:
        """See `metadata/features.py`."""
        return SUPPORTED

    @property
    def broker_epoch(self) -> int:
        """Of this life of the broker, from its registration on; -1 before."""
        return self.control_requests.broker_epoch

    @property
    def entities(self) -> Entities:
        """What is set for users, clients and addresses."""
        return self.notices.entities

    # -- what is asked of the cluster

    def fenced_brokers(self) -> Sequence[BrokerInfo]:
        """None: who is registered serves."""
        return ()

    def eligible_leaders(self, topic: str, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """None: such a controller knows those in sync only."""
        return (), ()

    def count_partitions(
        self, topic: str, done: Callable[[Counted], None], failed: Callable[[Exception], None]
    ) -> None:
        """How many partitions a topic has by its node in the store."""
        self._steps.start(count_partitions(topic), done, failed)

    def find_hosts(self, done: Callable[[frozenset[str]], None], failed: Callable[[Exception], None]) -> None:
        """The hosts of all brokers that the store names."""
        self._steps.start(registered_hosts(), done, failed)

    def read_configs(self, entities: Sequence[tuple[str, str]]) -> Pending[dict[tuple[str, str], dict[str, str]]]:
        """What the store has for topics and groups."""
        return self.admin.read_configs(entities)

    def auto_create(self, topics: Sequence[NewTopic], charge: Charge | None = None) -> dict[str, Pending[Made]]:
        """See `Admin.auto_create`."""
        return self.admin.auto_create(topics, charge)

    def alter_partition(
        self,
        asker: Asker,
        request: AlterPartitionRequest,
        version: int,
        token: object,
        answered: Callable[[AlterPartitionResponse], None],
    ) -> bool:
        """Ask the controller to change in-sync sets, this broker's own if that is active."""
        if self.controller.is_active:
            self.controller.put(AlterPartition(request, version, answered))
            return True
        return self._requester.ask(asker, self.cache.controller_id, IN_SYNC, request, token, version=version)

    def start_procedure(
        self, procedure: Procedure[T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Have a procedure run on the metadata store. done: gets what it returns. failed: gets what it raises."""
        self._steps.start(procedure, done, failed)

    def keep(self, make: Callable[[Steps], ImageT]) -> ImageT:
        """Have an image of the metadata store, which is read in each session, and told of nodes that have changed."""
        image = make(self._steps)
        self._images.append(image)
        return image

    def _read_topic_settings(
        self,
        topics: list[str],
        done: Callable[[Mapping[str, Mapping[str, str]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._steps.start(topic_settings(topics), done, failed)

    # -- facts

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Events of the store, and what the controller says and is told."""
        return {
            StoreAnswer: lambda fact, now_ms: self._steps.resume(fact),
            NodeChanged: self._node_changed,
            SessionStarted: self._session_started,
            SessionExpired: self._session_expired,
            ControlRequestDue: self._send,
            ControlAnswer: self._answered,
            LogDirectoryFailed: self._log_directory_failed,
            **self.control_requests.handlers,
            EndpointsChanged: self._advertise,
            SettingsChanged: lambda fact, now_ms: self.controller.put(UncleanElectionsDue()),
        }

    def _session_started(self, fact: SessionStarted, now_ms: int) -> None:
        self._session = self._steps.session = fact.session
        self._join(fact.session)

    def _session_expired(self, fact: SessionExpired, now_ms: int) -> None:
        log.warning("broker %d was not heard of in time: it registers again", self.broker_id)
        self._taken = None  # it is unknown whether it still is: the next session looks, and waits again
        self.control_requests.broker_epoch = -1
        self.controller.session_ended()

    def _log_directory_failed(self, fact: LogDirectoryFailed, now_ms: int) -> None:
        """Tell the controller, which asks what was in it, and has others lead that; with the last one, end.

        Who is in no session is told of all its replicas in the next one, and says then which it has not.
        """
        if fact.is_last:
            self.fatal = "no log directory is left"
        elif self._session != NO_SESSION:
            self._steps.start(self._saying_that_a_directory_failed(), failed=_only_lost)

    def _saying_that_a_directory_failed(self) -> Procedure[None]:
        path = f"{LOG_DIR_EVENTS}/log_dir_event_"
        yield [Create(path, encode_log_dir_event(self.broker_id), sequential=True)]

    def _cannot_go_on(self, why: str) -> None:
        log.error("%s", why)
        self.fatal = why

    def _is_still_taken(self, now_ms: int) -> None:
        """The wait for this broker's id, which another holds, has been too long."""
        if self._taken is not None:
            self.fatal = f"broker.id {self.broker_id} is taken: {self._taken.by}"
            self._taken = None

    def close(self) -> None:
        """Leave the cluster: the session ends, and the registration with it."""
        self._requester.close()
        self._store.close()

    # -- what the own controller says

    def _send(self, due: ControlRequestDue, now_ms: int) -> None:
        """Obey what it has to say to this broker next; it is in line until answered."""
        if due.broker_id != self.broker_id:
            return
        request = self.controller.channels.head(self.broker_id)
        if request is None:
            return
        response = self.control_requests.handle(request, VERSIONS[type(request).__name__], OwnRequest(request))
        if response is not None:
            self._tell(ControlAnswer(self.broker_id, request, response))

    def _answered(self, answer: ControlAnswer, now_ms: int) -> None:
        """By a broker, this one or another."""
        if answer.broker_id == self.broker_id and isinstance(answer.request, LeaderAndIsrRequest):
            self._has_come_up = True
        if self.controller.channels.answered(answer.broker_id, answer.request):
            self.controller.put(answer)

    # -- joining the cluster

    def _join(self, session: int) -> None:
        """Register in a session, unless that is under way."""
        if self._joining_in == session:
            return
        self._joining_in = session

        def joined(epoch: int) -> None:
            if self._joining_in != session:
                return  # that session is over, and the next one's registration under way
            self._joining_in = NO_SESSION
            if epoch >= 0:
                self._taken = None
                self.control_requests.broker_epoch = epoch
                log.info("broker %d is registered, epoch %d", self.broker_id, epoch)
                self.controller.put(Registered(session))
                self._register_addresses()

        def failed(error: Exception) -> None:
            if self._joining_in == session:
                self._joining_in = NO_SESSION
            if isinstance(error, StoreRefusedError):
                self.fatal = f"it cannot be registered: {error}"
            elif not isinstance(error, SessionLostError):
                raise error

        self._steps.start(self._joining(), joined, failed)

    def _joining(self) -> Procedure[int]:
        """Everything a broker does in a new session. Returns: its epoch; -1 if it cannot be registered now."""
        paths = {above: None for path in (*PERSISTENT, CLUSTER_ID) for above in ancestors(path)}
        yield [Create(path) for path in (*paths, *PERSISTENT)]
        yield from self._agree_on_cluster()
        if self.fatal:
            return -1
        own, default = yield [
            Get(config_path("brokers", str(self.broker_id))),
            Get(config_path("brokers", ALL_BROKERS)),
        ]
        settings = yield from self._by_new_secret(own)
        self.notices.set_broker(own=settings, default=decode_config(default.data))
        for image in self._images:
            yield from image.begin(self._clock.now_ms())
        if self.fatal:
            return -1
        path = broker_path(self.broker_id)
        while True:
            (made,) = yield [Create(path, self._registration(), ephemeral=True)]
            if made.fault is StoreFault.NODE_EXISTS:
                (made,) = yield [Get(path, watch=True)]
            if made.stat is None:
                continue  # it was there, and is gone
            if made.stat.session != self._session:
                self._await_end_of_other(made)
                return -1
            return made.stat.czxid

    def _by_new_secret(self, found: Outcome) -> Procedure[dict[str, str]]:
        """This broker's own settings; passwords that the secret of before has enciphered are written again."""
        settings = decode_config(found.data)
        again = self.configs.enciphered_again(settings, self._random.token)
        if again == settings or found.stat is None:
            return settings
        (written,) = yield [SetData(found.path, encode_config(again), found.stat.version)]
        if written.fault is not None:
            return settings  # by the time of the next session, then: both secrets are known
        log.info("passwords set at run time are enciphered by the new password.encoder.secret")
        return again

    def _registration(self) -> bytes:
        """What this broker's node says of it now."""
        self._registered_endpoints = self._endpoints
        rack = self.configs.broker.broker_rack
        info = BrokerInfo(self.broker_id, self._endpoints, rack, features=SUPPORTED)
        return encode_broker(info, self._clock.wall_ms())

    def _advertise(self, fact: EndpointsChanged, now_ms: int) -> None:
        self._endpoints = fact.endpoints
        self._register_addresses()

    def _register_addresses(self) -> None:
        """Write addresses that have changed into the registration, which the controller watches."""
        if self.control_requests.broker_epoch < 0 or self._registered_endpoints == self._endpoints:
            return  # who is not registered yet will be with them

        def failed(error: Exception) -> None:
            if isinstance(error, StoreRefusedError):
                log.error("addresses that have changed cannot be registered: %s", error)
            else:
                _only_lost(error)

        self._steps.start(self._registering_addresses(), failed=failed)

    def _registering_addresses(self) -> Procedure[None]:
        yield [SetData(broker_path(self.broker_id), self._registration())]

    def _await_end_of_other(self, registration: Outcome) -> None:
        """The broker id is taken, most often by a former life of this broker, whose session has not ended yet.

        Such a session is over within its timeout. One that is heard of still is another broker's.
        """
        assert registration.stat is not None
        is_watched = self._taken is not None and self._taken.session == registration.stat.session
        if is_watched:
            return
        by = _whose(registration.data)
        patience_ms = SESSION_TIMEOUTS * self.configs.broker.zookeeper_session_timeout_ms
        self._taken = Taken(registration.stat.session, by)
        self._patience.set(self._clock.now_ms() + patience_ms)
        log.warning("broker.id %d is taken: %s; waiting for the end of its session", self.broker_id, by)

    def _agree_on_cluster(self) -> Procedure[None]:
        """The cluster's id: the one that is there, or else ours."""
        fresh = self.cluster_id or encode_uuid(self._random.token(16))
        _, found = yield [Create(CLUSTER_ID, encode_cluster_id(fresh)), Get(CLUSTER_ID)]
        there = decode_cluster_id(found.data)
        if self.cluster_id is not None and self.cluster_id != there:
            self.fatal = f"meta.properties is of cluster {self.cluster_id}, the metadata store of cluster {there}"
            log.error("%s", self.fatal)
            return
        self.cluster_id = there
        self._requester.cluster_id = there

    def _node_changed(self, change: NodeChanged, now_ms: int) -> None:
        if (
            change.path == broker_path(self.broker_id)
            and change.kind == "deleted"
            and self.control_requests.broker_epoch < 0
        ):
            self._join(self._session)
        elif not any(image.node_changed(change, now_ms) for image in self._images):
            self.controller.node_changed(change)


def _only_lost(error: Exception) -> None:
    if not isinstance(error, SessionLostError):
        raise error


def count_partitions(topic: str) -> Procedure[Counted]:
    """How many partitions a topic has by its node in the store; `UNCOUNTED` if it is not there."""
    (found,) = yield [Get(topic_path(topic))]
    if not found.stat:
        return UNCOUNTED
    info = decode_topic(found.data)
    return Counted(info.topic_id or ZERO_UUID, len(info.partitions))


def topic_settings(topics: Sequence[str]) -> Procedure[Mapping[str, Mapping[str, str]]]:
    """What is set for topics, by their nodes in the store."""
    outcomes = yield [Get(config_path("topics", topic)) for topic in topics]
    return {
        topic: decode_config(outcome.data) if outcome.fault is None else {}
        for topic, outcome in zip(topics, outcomes, strict=True)
    }


def registered_hosts() -> Procedure[frozenset[str]]:
    """The hosts of all brokers that are registered now."""
    brokers = yield from read_brokers(watch=False)
    return frozenset(endpoint.host for broker in brokers.values() for endpoint in broker.endpoints)


def _whose(registration: bytes) -> str:
    """The broker of a registration, for a person."""
    try:
        content = json.loads(registration)
        return f"another broker is registered with it, {', '.join(content['endpoints'])}"
    except (ValueError, KeyError, TypeError):
        return "another broker is registered with it"
