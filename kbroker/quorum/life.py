"""The life of a member of a quorum's cluster: registered, caught up, unfenced, leaving; what it tells controllers when.

Driven by `broker/life.py`, which carries requests to the quorum's leader and answers back: one is under way. It reads
no clock and knows no socket. Its states, by the names of Apache's BrokerState:

    STARTING --caught up--> RECOVERY --unfenced--> RUNNING --asked to leave--> PENDING_CONTROLLED_SHUTDOWN
       \\------------------------\\-------- asked to leave --------\\------------> SHUTTING_DOWN

Each life has an incarnation, a random id: controllers take a registration of the same id from another incarnation only
once the former is dead (DUPLICATE_BROKER_REGISTRATION). A broker begins fenced; it asks to be unfenced once it has
applied the log up to its own registration and is ready to serve. What it has not heard in time it asks again: nothing
is lost by a request that is sent twice.

Source: BrokerLifecycleManager of Apache Kafka 4.3, by behaviour; KIP-631, KIP-858, KIP-966.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegistrationFeature,
    RegistrationListener,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.config import BrokerConfig
    from kbroker.metadata.store import Endpoint, SupportedFeature

log = logging.getLogger("kbroker.quorum")

REGISTRATION_VERSIONS = (3, 4)  # 3: Kafka 3.8. 4 has features whose lowest level is 0
HEARTBEAT_VERSIONS = (1, 1)  # 1: with directories that have failed
NO_EPOCH = -1
CATCHING_UP_MS = 10  # between two heartbeats while the log is caught up with
LEAVING_MS = 50  # to the second heartbeat that asks to leave
RETRY_MS = 100  # where no controller has answered, or none that leads

LifeRequest: TypeAlias = "BrokerRegistrationRequest | BrokerHeartbeatRequest"
LifeResponse: TypeAlias = "BrokerRegistrationResponse | BrokerHeartbeatResponse"


class BrokerState(Enum):
    """How far a broker is in its life; the numbers are those that Apache's brokers report."""

    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


MAY_FOLLOW = {
    BrokerState.STARTING: {BrokerState.RECOVERY, BrokerState.SHUTTING_DOWN},
    BrokerState.RECOVERY: {BrokerState.RUNNING, BrokerState.SHUTTING_DOWN},
    BrokerState.RUNNING: {BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN},
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: {BrokerState.SHUTTING_DOWN},
    BrokerState.SHUTTING_DOWN: set(),
}
"""Which state may come behind which."""


class Identity(NamedTuple):
    """What a broker says of itself when it registers.

    incarnation_id: 16 random bytes, of this life. previous_epoch: of the life that ended with a clean stop, else -1.
    directory_ids: of its log directories that work.
    """

    node_id: int
    cluster_id: str
    incarnation_id: bytes
    rack: str | None
    features: tuple[SupportedFeature, ...]
    directory_ids: tuple[bytes, ...]
    previous_epoch: int = NO_EPOCH


class BrokerLife:
    """One life of one broker.

    broker_epoch: -1 before it is registered. is_fenced: as the last heartbeat's answer had it. fault: why the broker
    cannot go on, else empty. due_ms: when the next request is due; None while one is under way, or at the end.
    metadata_offset: of the last record that was applied.
    """

    def __init__(self, identity: Identity, endpoints: Iterable[Endpoint], config: BrokerConfig, now_ms: int) -> None:
        self.state = BrokerState.STARTING
        self.broker_epoch = NO_EPOCH
        self.is_fenced = True
        self.fault = ""
        self.due_ms: int | None = now_ms
        self.metadata_offset = -1
        self._identity = identity
        self._endpoints = tuple(endpoints)
        self._give_up_ms = now_ms + config.initial_broker_registration_timeout_ms
        self._is_registered = False  # as it is now
        self._is_ready = False
        self._is_asking = False
        self._is_wanted_at_once = False  # behind what is under way
        self._has_asked_to_leave = False
        self._refusal = ""  # of the registration, the last
        self._offline: dict[bytes, int | None] = {}  # directories that have failed, and until when that must be told

    # -- what happens

    def ready_to_serve(self, now_ms: int) -> None:
        """All that was committed when it was caught up is applied: it may lead, and wants to be unfenced."""
        if not self._is_ready:
            self._is_ready = True
            self._soon(now_ms)

    def directory_failed(self, directory_id: bytes, config: BrokerConfig, now_ms: int) -> None:
        """A log directory is offline: controllers must hear of it, or the broker ends."""
        if directory_id not in self._offline:
            self._offline[directory_id] = now_ms + config.log_dir_failure_timeout_ms
            if self._is_registered:
                self._soon(now_ms)

    def advertise(self, endpoints: Iterable[Endpoint], now_ms: int) -> None:
        """Other addresses: it registers again, in the same life."""
        self._endpoints = tuple(endpoints)
        self._is_registered = False
        self._soon(now_ms)

    def leave(self, now_ms: int) -> None:
        """Hand everything over, and stop then."""
        if self.state is BrokerState.RUNNING:
            self._become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
            self._soon(now_ms)
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.end()

    def end(self) -> None:
        """Say nothing more."""
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._become(BrokerState.SHUTTING_DOWN)
        self.due_ms = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to hand over."""
        return self.state is BrokerState.SHUTTING_DOWN

    # -- what is told

    def next_request(self, now_ms: int) -> LifeRequest | None:
        """What is due; None if nothing is, or it cannot be before what is under way has ended."""
        self.expire(now_ms)
        if self.fault or self._is_asking or self.due_ms is None or now_ms < self.due_ms:
            return None
        self._is_asking, self.due_ms = True, None
        return self._heartbeat() if self._is_registered else self._registration()

    def expire(self, now_ms: int) -> None:
        """Whether it has taken too long to register, or to tell of a directory."""
        if self.broker_epoch == NO_EPOCH and now_ms >= self._give_up_ms and not self.fault:
            why = self._refusal or "no controller has answered"
            self.fault = f"broker {self._identity.node_id} could not be registered in the quorum: {why}"
        for directory_id, until_ms in self._offline.items():
            if until_ms is not None and now_ms >= until_ms and not self.fault:
                self.fault = f"no controller could be told that log directory {directory_id.hex()} has failed"

    def deadline_ms(self) -> int | None:
        """When `expire` has something to find, if nothing happens before."""
        deadlines = [each for each in self._offline.values() if each is not None]
        if self.broker_epoch == NO_EPOCH:
            deadlines.append(self._give_up_ms)
        return min(deadlines, default=None)

    def _registration(self) -> BrokerRegistrationRequest:
        who = self._identity
        return BrokerRegistrationRequest(
            broker_id=who.node_id,
            cluster_id=who.cluster_id,
            incarnation_id=who.incarnation_id,
            listeners=[
                RegistrationListener(
                    name=each.listener, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in self._endpoints
            ],
            features=[
                RegistrationFeature(name=each.name, min_supported_version=each.first, max_supported_version=each.last)
                for each in who.features
            ],
            rack=who.rack,
            log_dirs=sorted(each for each in who.directory_ids if each not in self._offline),
            previous_broker_epoch=who.previous_epoch,
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self._identity.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self.metadata_offset,
            want_fence=not self._is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=list(self._offline),
        )

    # -- what is answered

    def failed(self, why: str, config: BrokerConfig, now_ms: int) -> None:
        """No answer: it is tried again, and not at once."""
        self._is_asking = self._is_wanted_at_once = False
        self._refusal = why
        self._again(min(RETRY_MS, config.broker_heartbeat_interval_ms), now_ms)

    def answered(self, request: LifeRequest, response: LifeResponse, config: BrokerConfig, now_ms: int) -> None:
        """The leader has answered."""
        self._is_asking = False
        error = ErrorCode.of(response.error_code)
        if self.is_over:
            return
        if isinstance(response, BrokerRegistrationResponse):
            if error is ErrorCode.NONE:
                self._registered(response.broker_epoch, now_ms)
            else:
                self._not_registered(error, config, now_ms)
        elif error is ErrorCode.NONE:
            assert isinstance(request, BrokerHeartbeatRequest), request
            self._heard(request, response, config, now_ms)
        else:
            self._heartbeat_refused(error, config, now_ms)

    def _registered(self, broker_epoch: int, now_ms: int) -> None:
        if self.broker_epoch != broker_epoch:
            log.info("broker %d is registered, epoch %d", self._identity.node_id, broker_epoch)
        self.broker_epoch = broker_epoch
        self._is_registered = True
        self._refusal = ""
        self._again(0, now_ms)

    def _not_registered(self, error: ErrorCode, config: BrokerConfig, now_ms: int) -> None:
        """Some refusals end by themselves; the broker ends by others, which do not."""
        node_id = self._identity.node_id
        why = {
            ErrorCode.DUPLICATE_BROKER_REGISTRATION: f"node.id={node_id} is that of another broker, which lives",
            ErrorCode.INCONSISTENT_CLUSTER_ID: f"it is none of cluster {self._identity.cluster_id}, which "
            "meta.properties names",
            ErrorCode.UNSUPPORTED_VERSION: "the cluster has finalized a feature at a level that this broker does not "
            f"have; it has {', '.join(f'{each.name} {each.first}-{each.last}' for each in self._identity.features)}",
            ErrorCode.BROKER_ID_NOT_REGISTERED: f"node.id={node_id} is none that it knows",
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "it does not let this broker in",
            ErrorCode.INVALID_REGISTRATION: "it does not take what this broker says of itself",
        }.get(error)
        if error is ErrorCode.NOT_CONTROLLER:
            self.failed("no controller leads", config, now_ms)
            return
        said = f"controller answers {error.name}" + (f": {why}" if why else "")
        if said != self._refusal:
            log.warning("broker %d is not registered: %s", node_id, said)
        self._refusal = said
        if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNSUPPORTED_VERSION):
            self.fault = f"broker {node_id} cannot be registered in the quorum: {said}"
        self._is_wanted_at_once = False
        self._again(config.broker_heartbeat_interval_ms, now_ms)

    def _heartbeat_refused(self, error: ErrorCode, config: BrokerConfig, now_ms: int) -> None:
        """Told it, and tried again; who is not known any more registers again."""
        self._is_wanted_at_once = False
        if error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            log.warning("broker %d registers again: a heartbeat is answered %s", self._identity.node_id, error.name)
            self._is_registered = False
        elif error is ErrorCode.NOT_CONTROLLER:
            self._again(min(RETRY_MS, config.broker_heartbeat_interval_ms), now_ms)
            return
        else:
            log.warning("broker %d: a heartbeat is answered %s", self._identity.node_id, error.name)
        self._again(config.broker_heartbeat_interval_ms, now_ms)

    def _heard(
        self,
        request: BrokerHeartbeatRequest,
        response: BrokerHeartbeatResponse,
        config: BrokerConfig,
        now_ms: int,
    ) -> None:
        self._offline |= dict.fromkeys(request.offline_log_dirs)
        if response.is_fenced is not self.is_fenced:
            self.is_fenced = response.is_fenced
            log.info("broker %d is %s", self._identity.node_id, "fenced" if self.is_fenced else "unfenced")
        wait_ms = config.broker_heartbeat_interval_ms
        if self.state is BrokerState.STARTING:
            wait_ms = CATCHING_UP_MS
            if response.is_caught_up:
                self._become(BrokerState.RECOVERY)
        elif self.state is BrokerState.RECOVERY:
            if not self.is_fenced:
                self._become(BrokerState.RUNNING)
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and request.want_shut_down:
            if response.should_shut_down:
                log.info("broker %d has handed over what it led", self._identity.node_id)
                self.end()
                return
            wait_ms = wait_ms if self._has_asked_to_leave else LEAVING_MS
            self._has_asked_to_leave = True
        self._again(wait_ms, now_ms)

    # -- within

    def _soon(self, now_ms: int) -> None:
        """As soon as nothing is under way."""
        if self._is_asking:
            self._is_wanted_at_once = True
        elif self.due_ms is not None:
            self.due_ms = now_ms

    def _again(self, wait_ms: int, now_ms: int) -> None:
        wait_ms, self._is_wanted_at_once = 0 if self._is_wanted_at_once else wait_ms, False
        if not self.is_over:
            self.due_ms = now_ms + wait_ms

    def _become(self, state: BrokerState) -> None:
        assert state in MAY_FOLLOW[self.state], (self.state, state)
        log.info("broker %d: from %s to %s", self._identity.node_id, self.state.name, state.name)
        self.state = state
