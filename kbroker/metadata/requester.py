"""Requests of this broker to other brokers: their addresses, versions and time limits, and who gets each answer.

A part of the broker, one for all who ask (an `Asker`: a sender of `broker/`, or procedures). Who asks says which
broker, for which purpose, and what; and hears of the end of each request, be it an answer or a fault. The purpose tells
the connection of `Peers` that it goes over, the listener and the patience. A fault is said here, once a minute for each
broker, so that askers need not.

What is the same for all: a connection has one request under way, in order; who has more to ask gathers it while
`is_asking`. A connection pauses after a fault, longer each time, so who wants to go on asks again at once. A broker
that comes back at another address is asked there: what was on its connection to the old one fails. One that has gone is
asked nothing, for there is no endpoint; what is on its way to it fails by itself, or is dropped. Requests carry broker
epochs where they matter.

Source: NodeToControllerChannelManager and InterBrokerSendThread of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, cast

from kbroker.config.limits import PEER_FAILURES_SAID_EVERY_MS
from kbroker.ports import (
    CONTROL,
    DEAD_LETTERS,
    END_OFFSETS,
    IN_SYNC,
    LIFE,
    MARKERS,
    QUORUM,
    SHARE_STATE,
    TRANSACTIONS,
    FlatRequest,
    PeerAnswer,
    PeerFault,
    PeerFaultKind,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.store import BrokerInfo, Endpoint
    from kbroker.ports import Clock, PeerEvent, Peers, Versions
    from protocol.message import Message

log = logging.getLogger("kbroker.peers")

VERSIONS = {
    "AddPartitionsToTxnRequest": 5,
    "ControlledShutdownRequest": 3,
    "CreateTopicsRequest": 7,
    "LeaderAndIsrRequest": 7,
    "StopReplicaRequest": 4,
    "UpdateMetadataRequest": 8,
    "WriteTxnMarkersRequest": 1,
}
"""In which brokers of Apache 3.9 ask each other. Of others it depends on what is asked: their askers say it."""

OF_COORDINATORS = frozenset({MARKERS, TRANSACTIONS, SHARE_STATE, DEAD_LETTERS, END_OFFSETS})
"""Purposes that have the patience of request.timeout.ms; controllers have that of controller.socket.timeout.ms."""

FOR_THE_OPERATOR = frozenset({PeerFaultKind.UNSUPPORTED, PeerFaultKind.UNSPOKEN, PeerFaultKind.NOT_LET_IN})
"""Faults that do not end by themselves."""


class OnceAMinute:
    """What goes on happening is said the first time, and then once a minute."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[int, int]] = {}  # when it may be said again, and how often it was not since

    def may_say(self, what: Hashable, now_ms: int) -> bool:
        """Whether this is the time to say it."""
        return self.times_before(what, now_ms) is not None

    def times_before(self, what: Hashable, now_ms: int) -> int | None:
        """How often it has happened since it was said last; None if it is not to be said now."""
        again_ms, times = self._said.get(what, (now_ms, 0))
        if now_ms < again_ms:
            self._said[what] = again_ms, times + 1
            return None
        self._said[what] = now_ms + PEER_FAILURES_SAID_EVERY_MS, 0
        return times


class Asked(NamedTuple):
    """A request to another broker. token: by which its asker knows it."""

    asker: Asker
    broker_id: int
    endpoint: Endpoint
    purpose: str
    request: Message | FlatRequest
    token: object

    def __str__(self) -> str:
        kind = self.request.kind if isinstance(self.request, FlatRequest) else type(self.request)
        at = f"{self.endpoint.host}:{self.endpoint.port}"
        kind_of_node = "controller" if self.purpose in (QUORUM, LIFE) else "broker"
        whom = f"{kind_of_node} {self.broker_id} at {at}" if self.broker_id >= 0 else f"{kind_of_node} at {at}"
        return f"{kind.__name__.removesuffix('Request')} to {whom}"


class Asker(Protocol):
    """Who asks other brokers."""

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """A request has come to its end; it is not under way any more."""
        ...


class Requester:
    """What is asked, and what is under way. listener: over which brokers speak to each other.

    make_peers: called with the first request. Most brokers have no others, and what speaks to them is not loaded there.
    """

    def __init__(
        self,
        broker_id: int,
        cache: MetadataCache,
        configs: Configs,
        make_peers: Callable[[], Peers],
        clock: Clock,
        listener: str,
    ) -> None:
        self.listener = listener
        self.cluster_id = ""  # whose brokers may be spoken to: known before the first request
        self._broker_id = broker_id
        self._cache = cache
        self._configs = configs
        self._make_peers = make_peers
        self._peers: Peers | None = None
        self._clock = clock
        of_control_plane = (configs.broker.control_plane_listener_name or listener).upper()
        self._listeners = {CONTROL: of_control_plane, IN_SYNC: of_control_plane}  # of purposes that have their own
        self._last: dict[tuple[int, str], Asked] = {}  # on each line, while it is under way
        self._said = OnceAMinute()

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What becomes of requests."""
        return {PeerAnswer: self._heard, PeerFault: self._failed}

    def endpoint(
        self, broker_id: int, purpose: str, brokers: Mapping[int, BrokerInfo] | None = None
    ) -> Endpoint | None:
        """Where a broker is asked; None if that is not known, or it is this one.

        brokers: where it is looked up, if not in this broker's image of the cluster; a controller knows it before.
        """
        broker = (self._cache.brokers if brokers is None else brokers).get(broker_id)
        if broker is None or broker_id == self._broker_id:
            return None
        found = broker.endpoint(listener := self._listeners.get(purpose, self.listener))
        if found is None and self._said.may_say((broker_id, listener), self._clock.now_ms()):
            log.error("broker %d is asked nothing: it has no listener %s", broker_id, listener)
        return found

    def ask(
        self,
        asker: Asker,
        broker_id: int,
        purpose: str,
        request: Message | FlatRequest,
        token: object = None,
        *,
        endpoint: Endpoint | None = None,
        version: Versions | None = None,
        timeout_ms: int | None = None,
    ) -> bool:
        """Ask a broker something; `asker` hears what becomes of it. Returns: whether there is an endpoint to ask at.

        endpoint: if it has been looked up already. version, timeout_ms: if not those of its class and of the purpose.
        """
        endpoint = endpoint or self.endpoint(broker_id, purpose)
        if endpoint is None:
            return False
        version = VERSIONS[type(request).__name__] if version is None else version
        asked = self._last[broker_id, purpose] = Asked(asker, broker_id, endpoint, purpose, request, token)
        timeout_ms = timeout_ms or self._patience_ms(purpose)
        peers = self._peers or self._join()
        peers.send(broker_id, endpoint, purpose, request, version, asked, timeout_ms)
        return True

    def _join(self) -> Peers:
        peers = self._peers = self._make_peers()
        peers.join(self.cluster_id)
        return peers

    def _patience_ms(self, purpose: str) -> int:
        """As long as coordinators of Kafka wait for each other, or else as the controller does."""
        config = self._configs.broker
        return config.request_timeout_ms if purpose in OF_COORDINATORS else config.controller_socket_timeout_ms

    def is_asking(self, broker_id: int, purpose: str) -> bool:
        """Whether a request of this purpose is under way to a broker."""
        return (broker_id, purpose) in self._last

    def drop(self, broker_id: int, purpose: str) -> None:
        """Forget what is under way; its askers hear nothing of it."""
        self._last.pop((broker_id, purpose), None)
        if self._peers is not None:
            self._peers.drop(broker_id, purpose)

    def close(self) -> None:
        """Drop every connection."""
        if self._peers is not None:
            self._peers.close()

    def _heard(self, event: PeerEvent, now_ms: int) -> None:
        asked = cast("Asked", event.token)
        if self._last.get(line := (asked.broker_id, asked.purpose)) is asked:
            del self._last[line]
        asked.asker.heard(asked, event, now_ms)

    def _failed(self, fault: PeerFault, now_ms: int) -> None:
        asked = cast("Asked", fault.token)
        level = logging.ERROR if fault.kind in FOR_THE_OPERATOR else logging.INFO
        times = self._said.times_before((asked.broker_id, level), now_ms)
        if times is not None:
            before = f" ({times} times before)" if times else ""
            log.log(level, "%s failed: %s%s", asked, fault.why, before)
        self._heard(fault, now_ms)


def inter_broker_listener(configs: Configs, endpoints: Sequence[Endpoint]) -> str:
    """The listener over which brokers speak to each other; the first one, where the settings name none that exists."""
    broker = configs.broker
    wanted = (broker.inter_broker_listener_name or broker.security_inter_broker_protocol).upper()
    names = [each.listener for each in endpoints]
    return wanted if wanted in names or not names else names[0]
