"""What is served: the table of APIs and versions, and one `Route` per API, from the modules that handle them.

`handshake.py` advertises the table: a version that is not in it is neither served nor promised. `core.py` looks
requests up in `ROUTES`, which imports a module, and with it its messages, when one of its APIs is asked for the first
time: most brokers never need most of them, and all would be a tenth of a start and of the memory at rest. Each module
ends with its own `ROUTES`; what the table repeats of them a test holds equal. See docs/decisions/0022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from importlib import import_module
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from kbroker.api.authorization import authorized, by_address
from kbroker.config.limits import ELEMENTS_AT_ONCE
from kbroker.metadata.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from protocol.errors import ErrorCode
from protocol.headers import API_VERSIONS
from protocol.message import LAST_VERSION, Message
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.api.authorization import Change, Handle, Known, Need, Refuse
    from kbroker.api.call import Result
    from kbroker.broker.broker import Broker


class Served(NamedTuple):
    """What is promised of an API. module: what handles it, under `kbroker/api/`; first, last: versions.

    feature, level: it is told and served only while the cluster has finalized this feature at this level or a higher
    one (`metadata/features.py`); none: always. protocol: and while group.coordinator.rebalance.protocols names this.
    """

    name: str
    module: str
    first: int
    last: int
    feature: str = ""
    level: int = 1
    protocol: str = ""

    def why_not(self, broker: Broker) -> str:
        """Why it is neither told nor served now; empty if it is."""
        if self.feature and not broker.features.is_on(self.feature, self.level):
            return f"{self.name} waits for {self.feature} {self.level} to be finalized."
        if self.protocol and self.protocol not in broker.config.group_coordinator_rebalance_protocols:
            return f"group.coordinator.rebalance.protocols has no {self.protocol} groups."
        return ""


SERVED: dict[int, Served] = {
    0: Served("Produce", "produce", 0, 13),
    1: Served("Fetch", "fetch", 0, 18),
    2: Served("ListOffsets", "offsets", 0, 11),
    3: Served("Metadata", "metadata", 0, 13),
    4: Served("LeaderAndIsr", "control", 0, 7),
    5: Served("StopReplica", "control", 0, 4),
    6: Served("UpdateMetadata", "control", 0, 8),
    7: Served("ControlledShutdown", "control", 0, 3),
    8: Served("OffsetCommit", "groups", 0, 10),
    9: Served("OffsetFetch", "groups", 0, 10),
    10: Served("FindCoordinator", "groups", 0, 6),
    11: Served("JoinGroup", "groups", 0, 9),
    12: Served("Heartbeat", "groups", 0, 4),
    13: Served("LeaveGroup", "groups", 0, 5),
    14: Served("SyncGroup", "groups", 0, 5),
    15: Served("DescribeGroups", "groups", 0, 6),
    16: Served("ListGroups", "groups", 0, 5),
    17: Served("SaslHandshake", "sasl", 0, 1),
    18: Served("ApiVersions", "handshake", 0, 5),
    19: Served("CreateTopics", "topics", 0, 7),
    20: Served("DeleteTopics", "topics", 0, 6),
    21: Served("DeleteRecords", "offsets", 0, 2),
    22: Served("InitProducerId", "producer_ids", 0, 5),
    23: Served("OffsetForLeaderEpoch", "offsets", 0, 4),
    24: Served("AddPartitionsToTxn", "transactions", 0, 5),
    25: Served("AddOffsetsToTxn", "transactions", 0, 4),
    26: Served("EndTxn", "transactions", 0, 5),
    27: Served("WriteTxnMarkers", "transactions", 0, 2),
    28: Served("TxnOffsetCommit", "transactions", 0, 6),
    29: Served("DescribeAcls", "security", 0, 3),
    30: Served("CreateAcls", "security", 0, 3),
    31: Served("DeleteAcls", "security", 0, 3),
    32: Served("DescribeConfigs", "configs", 0, 4),
    33: Served("AlterConfigs", "configs", 0, 2),
    34: Served("AlterReplicaLogDirs", "logdirs", 0, 2),
    35: Served("DescribeLogDirs", "logdirs", 0, 5),
    36: Served("SaslAuthenticate", "sasl", 0, 2),
    37: Served("CreatePartitions", "topics", 0, 3),
    38: Served("CreateDelegationToken", "delegation_tokens", 0, 3),
    39: Served("RenewDelegationToken", "delegation_tokens", 0, 2),
    40: Served("ExpireDelegationToken", "delegation_tokens", 0, 2),
    41: Served("DescribeDelegationToken", "delegation_tokens", 0, 3),
    42: Served("DeleteGroups", "groups", 0, 3),
    43: Served("ElectLeaders", "topics", 0, 2),
    44: Served("IncrementalAlterConfigs", "configs", 0, 1),
    45: Served("AlterPartitionReassignments", "reassignments", 0, 1),
    46: Served("ListPartitionReassignments", "reassignments", 0, 0),
    47: Served("OffsetDelete", "groups", 0, 0),
    48: Served("DescribeClientQuotas", "client_quotas", 0, 1),
    49: Served("AlterClientQuotas", "client_quotas", 0, 1),
    50: Served("DescribeUserScramCredentials", "scram_users", 0, 0),
    51: Served("AlterUserScramCredentials", "scram_users", 0, 0),
    56: Served("AlterPartition", "control", 0, 3),
    57: Served("UpdateFeatures", "features", 0, 2),
    60: Served("DescribeCluster", "metadata", 0, 2),
    61: Served("DescribeProducers", "producers", 0, 0),
    65: Served("DescribeTransactions", "transactions", 0, 0),
    66: Served("ListTransactions", "transactions", 0, 2),
    67: Served("AllocateProducerIds", "control", 0, 0),
    68: Served("ConsumerGroupHeartbeat", "consumer_groups", 0, 1, GROUP_VERSION, protocol="consumer"),
    69: Served("ConsumerGroupDescribe", "consumer_groups", 0, 1, GROUP_VERSION, protocol="consumer"),
    74: Served("ListConfigResources", "configs", 0, 1),
    75: Served("DescribeTopicPartitions", "metadata", 0, 0),
    76: Served("ShareGroupHeartbeat", "share_groups", 1, 1, SHARE_VERSION),
    77: Served("ShareGroupDescribe", "share_groups", 1, 1, SHARE_VERSION),
    78: Served("ShareFetch", "share_fetch", 1, 2, SHARE_VERSION),
    79: Served("ShareAcknowledge", "share_fetch", 1, 2, SHARE_VERSION),
    83: Served("InitializeShareGroupState", "share_group_state", 0, 0, SHARE_VERSION),
    84: Served("ReadShareGroupState", "share_group_state", 0, 0, SHARE_VERSION),
    85: Served("WriteShareGroupState", "share_group_state", 0, 1, SHARE_VERSION),
    86: Served("DeleteShareGroupState", "share_group_state", 0, 0, SHARE_VERSION),
    87: Served("ReadShareGroupStateSummary", "share_group_state", 0, 1, SHARE_VERSION),
    88: Served("StreamsGroupHeartbeat", "streams_groups", 0, 1, STREAMS_VERSION, protocol="streams"),
    89: Served("StreamsGroupDescribe", "streams_groups", 0, 1, STREAMS_VERSION, protocol="streams"),
    90: Served("DescribeShareGroupOffsets", "share_groups", 0, 1, SHARE_VERSION),
    91: Served("AlterShareGroupOffsets", "share_groups", 0, 0, SHARE_VERSION),
    92: Served("DeleteShareGroupOffsets", "share_groups", 0, 0, SHARE_VERSION),
    93: Served("StreamsGroupTopologyDescriptionUpdate", "streams_groups", 0, 0, STREAMS_VERSION, protocol="streams"),
}
"""By API key."""


class NotLoadedError(Exception):
    """A module that handles an API cannot be imported: its file is gone, or another version's."""


class ByVersion(dict[int, Callable[..., Any]]):
    """What reads or writes a message, by version; made when a version is first asked for."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], Callable[..., Any]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, version: int) -> Callable[..., Any]:
        made = self[version] = self._make(version)
        return made


class Route:
    """How one API is served.

    first, last: versions served. handle: request and call to result, once what is needed first has been seen to; serve:
    the handler itself. refuse: request, code, text and version to the response that tells every part of the request the
    same error. needs: the rights that it takes (`authorization.py`), asked for in this order; none: every session may.
    known: what needs no asking, with rules. before: makes a handler that waits for something, before rights are
    asked for, of one that does not. flat: the response's class, where `handle` and `refuse` take and give tuples
    instead of messages (`protocol/flat.py`).
    readers: by version, (frame, start) to what `handle` takes, and its end; writers: by version, an answer to buffers
    and regions; read_slices, write_slices: the same with breaks, and how many elements may be read.
    flexible_from: first version with tagged fields in headers and bodies; answers_tagged_from: in headers of answers.
    elements: how many a large request may have in its arrays: more where `handle` does them in slices, and where only
    brokers ask.
    """

    __slots__ = (
        "answers_tagged_from",
        "api",
        "before",
        "elements",
        "first",
        "flat",
        "flexible_from",
        "handle",
        "known",
        "last",
        "needs",
        "read_slices",
        "readers",
        "refuse",
        "request",
        "serve",
        "write_slices",
        "writers",
    )

    def __init__(
        self,
        api: int,
        request: type[Message],
        first: int,
        last: int,
        handle: Handle,
        refuse: Refuse,
        needs: tuple[Need, ...],
        *,
        before: Callable[[Handle, Refuse], Handle] = lambda handle, refuse: handle,
        flat: type[Message] | None = None,
        elements: int = ELEMENTS_AT_ONCE,
        known: Known | None = None,
    ) -> None:
        self.api = api
        self.elements = elements
        self.request = request
        self.first = first
        self.last = last
        self.needs = needs
        self.known = known
        self.serve = handle
        self.before = before
        self.refuse = refuse
        self.handle = self._while_finalized(before(by_address(handle, needs, refuse), refuse))
        self.flat = flat
        self.readers = ByVersion(request.reader)
        self.read_slices: Callable[..., Any] = request.decode_slices
        self.writers = ByVersion(lambda version: methodcaller("encode_parts", version))
        self.write_slices: Callable[[Any, int], Any] = Message.encode_slices
        if flat is not None:
            self.readers, self.read_slices = ByVersion(request.flat_reader), request.read_flat_slices
            self.writers, self.write_slices = ByVersion(flat.flat_writer), flat.write_flat_slices
        tagged_from, tagged_to = request.flexible
        self.flexible_from = tagged_from if tagged_from <= tagged_to else LAST_VERSION + 1
        self.answers_tagged_from = LAST_VERSION + 1 if api == API_VERSIONS else self.flexible_from

    def with_rules(self) -> Route:
        """The same for a broker with access rules."""
        if not self.needs:
            return self
        made = copy(self)
        made.handle = self._while_finalized(self.before(authorized(self), self.refuse))
        return made

    def _while_finalized(self, handle: Handle) -> Handle:
        """The same for an API that waits for a feature: refused while that is off, as Apache's broker does."""
        served = SERVED.get(self.api)
        if served is None or not served.feature:
            return handle
        why_not, refuse = served.why_not, self.refuse

        def gated(request: Any, call: Any) -> Result:
            why = why_not(call.broker)
            return refuse(request, ErrorCode.UNSUPPORTED_VERSION, why, call.version) if why else handle(request, call)

        return gated

    def completed(self, changes: list[Change], left: Any) -> Route:
        """The same for one request, whose answer is changed before it is encoded. left: what is handled of it.

        changes: each is taken out when it is made, for they know the request, which knows this.
        """

        def changed(answer: Any) -> Any:
            while changes:
                answer = changes.pop(0)(answer)
            return answer

        made = copy(self)
        made.refuse = lambda request, code, text, version: self.refuse(left, code, text, version)
        made.writers = ByVersion(lambda version: lambda answer: self.writers[version](changed(answer)))
        made.write_slices = lambda answer, version: self.write_slices(changed(answer), version)
        return made

    @property
    def name(self) -> str:
        """Kafka's name of the API."""
        return self.request.__name__.removesuffix("Request")


class Routes(dict[int, Route]):
    """Routes by API key; one that is not there yet comes with its module."""

    def __missing__(self, api: int) -> Route:
        """Raises: KeyError if the API is not served, NotLoadedError."""
        module = f"kbroker.api.{SERVED[api].module}"
        try:
            routes: Sequence[Route] = import_module(module).ROUTES
        except Exception as error:
            raise NotLoadedError(f"{module} cannot be imported: {error}") from error
        for route in routes:
            self.setdefault(route.api, route)
        return dict.__getitem__(self, api)


ROUTES = Routes()
"""Those that have been asked for."""


class AuthorizedRoutes(dict[int, Route]):
    """The same, for connections to a broker with access rules."""

    def __missing__(self, api: int) -> Route:
        """Raises: as `Routes`."""
        made = self[api] = ROUTES[api].with_rules()
        return made


AUTHORIZED = AuthorizedRoutes()


class Tables(NamedTuple):
    """What a broker serves: the routes of connections without access rules and with them, and what it tells of them."""

    routes: Mapping[int, Route]
    authorized: Mapping[int, Route]
    served: Mapping[int, Served]


def tables_of(broker: Broker) -> Tables:
    """Of a broker: in a cluster with a quorum it passes on what only controllers may do."""
    if broker.plane.controller is not None:
        return Tables(ROUTES, AUTHORIZED, SERVED)
    from kbroker.api.forwarding import SERVED_WITH_QUORUM, QuorumRoutes  # most brokers are in no such cluster

    return Tables(QuorumRoutes(ROUTES), QuorumRoutes(AUTHORIZED), SERVED_WITH_QUORUM)


def load() -> None:
    """Import every handler, for a caller that looks at all routes."""
    for api in SERVED:
        ROUTES[api]
