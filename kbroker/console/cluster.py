"""What the console asks of a cluster, kbroker's or Apache's: Kafka's protocol over connections of one session.

Each question goes in the newest version that both sides have. Pages are made on several threads: a connection is asked
by one of them at a time, and goes back to the others with the answer. Every refusal, and every broker that cannot be
reached, is a `ConsoleError` of one line.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from kbroker.client import ProtocolError
from kbroker.console import CLIENT_ID
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.runtime.client_security import log_in, wrapped
from kbroker.security.client import ClientSecurity
from protocol.errors import ErrorCode
from protocol.message import DecodeError, EncodeError, Message
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic
from protocol.namedtuple import NamedTuple

Result = TypeVar("Result")
Address = tuple[str, int]
Place = tuple[str, int]
"""A topic's name and a partition's number."""

CONNECT_S = 5.0
ANSWER_S = 15.0
MOST_IDLE = 4  # connections kept to each broker
ASKED_AT_ONCE = 8  # brokers
MOST_SINGLE = 1000
METADATA_S = 5.0  # how long what is known of all topics counts: a page of ten thousand of them is made from it
COORDINATOR_TRIES, TRY_AGAIN_S = 20, 0.25  # a cluster makes its offsets topic when it is first asked for a coordinator
_COMES_YET = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
GROUP, TRANSACTION = 0, 1
ALTER_CLUSTER = 1 << 7
"""The bit of ALTER among authorized operations."""


class ConsoleError(Exception):
    """What cannot be shown or done, in one line. status: of the page that says so."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class LoginError(ConsoleError):
    """The cluster wants to know who asks, or does not let this user in."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 401)


class Broker(NamedTuple):
    """One broker, as Metadata has it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Partition(NamedTuple):
    """One partition, as Metadata has it. leader: -1 if there is none."""

    number: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]


class Topic(NamedTuple):
    """One topic, as Metadata has it."""

    name: str
    is_internal: bool
    partitions: list[Partition]

    @property
    def is_healthy(self) -> bool:
        """Whether every partition has a leader, and all its replicas are in sync."""
        return all(each.leader >= 0 and len(each.in_sync) == len(each.replicas) for each in self.partitions)


class Described(NamedTuple):
    """A cluster. topics: those that the user may see, by name."""

    cluster_id: str
    controller_id: int
    brokers: dict[int, Broker]
    topics: dict[str, Topic]


class Cluster:
    """Connections of one session."""

    def __init__(self, bootstrap: Sequence[Address], security: ClientSecurity, client_id: str = CLIENT_ID) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._client_id = client_id
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._addresses: dict[int, Address] = {}
        self._described: tuple[float, Described] | None = None
        self._told: tuple[float, Described] | None = None
        self._single: dict[str, tuple[float, Topic]] = {}  # topics asked for by themselves, and when
        self._is_closed = False

    @property
    def user(self) -> str:
        """Who asks; empty without a login."""
        return self._security.login.user if self._security.login is not None else ""

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for each in connections:
                each.close()

    # -- to ask

    def ask(self, request: Message, node: int | None = None, most: int | None = None) -> Any:
        """The answer of a broker. node: which; None for any. most: the newest version to ask in.

        Raises: ConsoleError.
        """
        with self.connection(node) as (connection, name):
            return asked(connection, request, name, most)

    @contextmanager
    def connection(self, node: int | None = None) -> Iterator[tuple[BlockingConnection, str]]:
        """A connection to ask several things over, and its address to name. Raises: ConsoleError."""
        address, connection = self._taken(node)
        name = f"{address[0]}:{address[1]}"
        try:
            yield connection, name
        except OSError as error:
            connection.close()
            raise ConsoleError(f"the broker at {name} does not answer: {_reason(error)}", 502) from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            idle = self._idle.setdefault(address, [])
            is_kept = not self._is_closed and len(idle) < MOST_IDLE
            if is_kept:
                idle.append(connection)
        if not is_kept:
            connection.close()

    def each(self, nodes: Iterable[int], ask: Callable[[int], Result]) -> dict[int, Result | ConsoleError]:
        """What several brokers answer, side by side; a refusal, or that one is not there, stands in its place."""

        def one(node: int) -> Result | ConsoleError:
            try:
                return ask(node)
            except ConsoleError as error:
                return error

        wanted = sorted(set(nodes))
        if len(wanted) < 2:
            return {node: one(node) for node in wanted}
        with ThreadPoolExecutor(min(len(wanted), ASKED_AT_ONCE)) as pool:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))

    def ask_all(self, request: Message, nodes: Iterable[int] | None = None) -> dict[int, Any]:
        """The same question to several brokers, all without `nodes`; those that refuse it are left out.

        Raises: ConsoleError if all refuse.
        """
        found = self.each(self.brokers() if nodes is None else nodes, lambda node: self.ask(request, node))
        good = {node: each for node, each in found.items() if not isinstance(each, ConsoleError)}
        if found and not good:
            raise next(each for each in found.values() if isinstance(each, ConsoleError))
        return good

    def serves(self, kind: type[Message], node: int | None = None) -> bool:
        """Whether a broker knows a request. Raises: ConsoleError."""
        with self.connection(node) as (connection, _):
            return kind.api in connection.protocol.served

    # -- who is there

    def described(self, *, fresh: bool = False) -> Described:
        """Brokers and topics, as they were a few seconds ago at most. Raises: ConsoleError."""
        known = self._described
        if known is not None and not fresh and time.monotonic() - known[0] < METADATA_S:
            return known[1]
        found = self._ask_metadata(None)
        with self._lock:
            self._described = time.monotonic(), found
            self._single.clear()
        return found

    def brokers(self) -> dict[int, Broker]:
        """Brokers, as they were a few seconds ago at most. Raises: ConsoleError."""
        return self._without_topics().brokers

    def _without_topics(self) -> Described:
        """What was told last, whichever topics were asked for."""
        known = self._told
        if known is None or time.monotonic() - known[0] >= METADATA_S:
            return self._ask_metadata([])
        return known[1]

    def topic(self, name: str) -> Topic:
        """One topic as it is now. Raises: ConsoleError if there is none that this user may see."""
        found = self._ask_single([name]).get(name)
        if found is None:
            raise ConsoleError(f"there is no topic {name!r}, or {self.user or 'this user'} may not see it", 404)
        return found

    def _ask_single(self, names: list[str]) -> dict[str, Topic]:
        """Some topics, to be remembered for a while. Raises: ConsoleError."""
        found = self._ask_metadata(names).topics
        with self._lock:
            for name in names:
                self._single.pop(name, None)
                if name in found:
                    self._single[name] = time.monotonic(), found[name]
            while len(self._single) > MOST_SINGLE:
                del self._single[next(iter(self._single))]
        return found

    def _learn(self, names: Iterable[str]) -> None:
        """Ask for topics by themselves where all are not known, and these are few."""
        now_s, all_of_them = time.monotonic(), self._described
        if all_of_them is not None and now_s - all_of_them[0] < METADATA_S:
            return
        wanted = [name for name in names if now_s - self._single.get(name, (0.0,))[0] >= METADATA_S]
        if wanted and len(wanted) <= MOST_SINGLE // 2:
            self._ask_single(wanted)

    def known(self, name: str) -> Topic | None:
        """One topic as it was a few seconds ago at most; None if there is none. It is cheap where it was just asked."""
        single = self._single.get(name)
        if single is not None and time.monotonic() - single[0] < METADATA_S:
            return single[1]
        return self.described().topics.get(name)

    def _ask_metadata(self, names: list[str] | None) -> Described:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        with self.connection() as (connection, where):
            served = connection.protocol.served.get(MetadataRequest.api or 3, (0, 0))[1]
            if topics is None and served == 0:
                topics = []  # what stands for all there
            answer = asked(connection, MetadataRequest(topics=topics, allow_auto_topic_creation=False), where)
        brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        with self._lock:
            self._addresses.update({each.node_id: (each.host, each.port) for each in brokers.values()})
        found = {
            each.name: Topic(
                each.name,
                each.is_internal,
                sorted(
                    Partition(
                        part.partition_index,
                        part.leader_id,
                        part.leader_epoch,
                        part.replica_nodes,
                        part.isr_nodes,
                        part.offline_replicas,
                    )
                    for part in each.partitions
                ),
            )
            for each in answer.topics
            if each.name and each.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
        }
        told = Described(answer.cluster_id or "", answer.controller_id, brokers, found)
        self._told = time.monotonic(), told
        return told

    def leaders(self, places: Iterable[Place]) -> dict[int, list[Place]]:
        """Partitions by their leaders; one without is left out."""
        wanted = list(places)
        names = dict.fromkeys(name for name, _ in wanted)
        self._learn(names)
        by_name = {name: self.known(name) for name in names}
        found: dict[int, list[Place]] = {}
        for name, number in wanted:
            topic = by_name[name]
            for each in topic.partitions if topic is not None else ():
                if each.number == number and each.leader >= 0:
                    found.setdefault(each.leader, []).append((name, number))
        return found

    def controller(self) -> int:
        """The broker that changes topics. Raises: ConsoleError."""
        found = self._without_topics().controller_id
        if found < 0:
            raise ConsoleError("the cluster has no controller now: try again", 503)
        return found

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The broker that has a group or a transactional id. Raises: ConsoleError."""
        pause = threading.Event()
        for _ in range(COORDINATOR_TRIES):
            request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[])
            with self.connection() as (connection, where):
                if connection.protocol.served.get(FindCoordinatorRequest.api or 10, (0, 0))[1] >= 4:
                    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
                answer = asked(connection, request, where)
            found = answer.coordinators[0] if answer.coordinators else answer
            if found.error_code not in _COMES_YET:
                check(found.error_code, found.error_message)
                with self._lock:
                    self._addresses[found.node_id] = found.host, found.port
                return int(found.node_id)
            pause.wait(TRY_AGAIN_S)
        raise ConsoleError(said_of(found.error_code), 503)

    def may_alter_cluster(self) -> bool:
        """Whether this user may ALTER the cluster; where there is no authorizer, anybody may. Raises: ConsoleError."""
        answer = self.ask(DescribeClusterRequest(include_cluster_authorized_operations=True))
        check(answer.error_code, answer.error_message)
        return bool(answer.cluster_authorized_operations & ALTER_CLUSTER)

    # -- connections

    def _taken(self, node: int | None) -> tuple[Address, BlockingConnection]:
        addresses = [self._address(node)] if node is not None else [*self._bootstrap, *self._addresses.values()]
        for address in addresses:
            while True:
                with self._lock:
                    idle = self._idle.get(address)
                    connection = idle.pop() if idle else None
                if connection is None:
                    break
                if not _has_ended(connection.socket):
                    return address, connection
                connection.close()
        error: ConsoleError | None = None
        for address in dict.fromkeys(addresses):
            try:
                return address, self._open(address)
            except LoginError:
                raise
            except ConsoleError as found:
                error = error or found
        assert error is not None, addresses
        raise error

    def _address(self, node: int) -> Address:
        if node not in self._addresses:
            self._ask_metadata([])
        found = self._addresses.get(node)
        if found is None:
            raise ConsoleError(f"there is no broker {node}", 404)
        return found

    def _open(self, address: Address) -> BlockingConnection:
        security, where = self._security, f"{address[0]}:{address[1]}"
        connection: BlockingConnection | None = None
        try:
            sock = wrapped(security, connect(*address, CONNECT_S), address[0])
            connection = BlockingConnection(
                sock, self._client_id, answer_s=ANSWER_S, negotiates=True, authenticates=security.login is not None
            )
            connection.negotiate()
            if security.login is not None:
                opened = connection
                log_in(security.login, lambda request: asked(opened, request, where, 1), where)
                connection.protocol.authenticated()
        except ValueError as error:  # of the login, or of the settings
            _close(connection)
            raise LoginError(str(error)) from None
        except ProtocolError as error:
            _close(connection)
            raise ConsoleError(
                f"what answers at {where} is no broker that this console speaks to: {error}", 502
            ) from None
        except OSError as error:
            _close(connection)
            raise ConsoleError(f"no broker answers at {where}: {_reason(error)}", 502) from None
        return connection


def _close(connection: BlockingConnection | None) -> None:
    if connection is not None:
        connection.close()


def asked(connection: BlockingConnection, request: Message, where: str, most: int | None = None) -> Any:
    """The answer over one connection. Raises: ConsoleError; OSError."""
    kind = type(request)
    assert kind.api is not None, kind
    first, last = connection.protocol.served.get(kind.api, (0, -1))
    version = min(last, kind.versions[1], kind.versions[1] if most is None else most)
    name = kind.__name__.removesuffix("Request")
    if version < max(first, kind.versions[0]):
        raise ConsoleError(f"the broker at {where} does not serve {name}", 501)
    try:
        return connection.ask(request, version)
    except EncodeError as error:
        raise ConsoleError(f"the broker at {where} is too old for this: {name} v{version}: {error}", 501) from None
    except DecodeError as error:
        raise ConsoleError(f"the answer of {where} to {name} v{version} cannot be read: {error}", 502) from None


def check(code: int, text: str | None = None) -> None:
    """Raises: ConsoleError unless a code of an answer says that all is well."""
    if code:
        name = ErrorCode.of(code).name
        is_forbidden, is_missing = name.endswith("AUTHORIZATION_FAILED"), name.endswith("NOT_FOUND")
        raise ConsoleError(said_of(code, text), 403 if is_forbidden else 404 if is_missing else 400)


def said_of(code: int, text: str | None = None) -> str:
    """An error code of an answer in one line. text: the broker's own, if it gave one."""
    found = ErrorCode.of(code)
    return f"{found.name}: {text or found.message}"


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Partitions' numbers by topic, in order."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return found


def merged(parts: Mapping[int, Mapping[Place, Result]]) -> dict[Place, Result]:
    """What several brokers have said of their own partitions, together."""
    return {place: value for part in parts.values() for place, value in part.items()}


def _has_ended(sock: socket.socket) -> bool:
    """Whether a connection that nothing is asked over has something to say: that can only be its end."""
    return bool(select.select([sock], [], [], 0)[0])


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
