"""The table of APIs: what can be asked of a broker, in which versions, and which classes read and write it.

Looked up once per request by its key: to route, to find the header's version, to decode and to answer. ApiVersions
is answered from it. It decides nothing about who may ask, and not which of the declared versions a broker offers.

Importing it imports no message: a class comes at its first use, from the file under `protocol/messages/` that the
row names. What the rows repeat of the classes (versions, flexible) a test holds equal to them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from protocol.message import parse_versions

if TYPE_CHECKING:
    from protocol.message import Message

__all__ = ["APIS", "API_VERSIONS", "BY_KEY", "BY_NAME", "Api"]

API_VERSIONS = 18  # asked before a client knows any version, so its answer keeps the oldest header (KIP-511)
CONTROLLED_SHUTDOWN = 7


class Api:
    """One row: a kind of request and its response.

    key: int16 in the header of each request. name: Kafka's. versions: first and last that the classes declare.
    flexible_from: first version with compact lengths and tagged fields (KIP-482); None: none has.
    control_plane: spoken between controller and brokers only; such requests go before those of clients.
    kafka_3_9, kafka_4_4: first and last version that Apache's broker serves on a broker's listener, 3.9 with
    ZooKeeper, 4.3 without; None: not served there.
    """

    __slots__ = (
        "_request",
        "_response",
        "control_plane",
        "flexible_from",
        "kafka_3_9",
        "kafka_4_4",
        "key",
        "module",
        "name",
        "versions",
    )

    def __init__(
        self,
        key: int,
        name: str,
        module: str,
        versions: str,
        flexible_from: int | None,
        kafka_3_9: str | None,
        kafka_4_4: str | None,
        *,
        control_plane: bool = False,
    ) -> None:
        self.key = key
        self.name = name
        self.module = module
        self.versions = parse_versions(versions)
        self.flexible_from = flexible_from
        self.kafka_3_9 = parse_versions(kafka_3_9) if kafka_3_9 else None
        self.kafka_4_4 = parse_versions(kafka_4_4) if kafka_4_4 else None
        self.control_plane = control_plane
        self._request: type[Message] | None = None
        self._response: type[Message] | None = None

    @property
    def request(self) -> type[Message]:
        """The class of the request."""
        if self._request is None:
            self._request = self._class("Request")
        return self._request

    @property
    def response(self) -> type[Message]:
        """The class of the response."""
        if self._response is None:
            self._response = self._class("Response")
        return self._response

    def has_version(self, version: int) -> bool:
        """Whether the classes can read and write this version."""
        return self.versions[0] <= version <= self.versions[1]

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        """Version of the header in front of a request of this version.

        2 with tagged fields, 1 with a client id, 0 without: ControlledShutdown 0 alone. Holds for versions that we do
        not know, too, so that ApiVersions can be answered whatever its version.
        """
        if self.is_flexible(version):
            return 2
        return 0 if self.key == CONTROLLED_SHUTDOWN and version == 0 else 1

    def response_header_version(self, version: int) -> int:
        """Version of the header in front of a response of this version: 1 with tagged fields, 0 without."""
        return 1 if self.is_flexible(version) and self.key != API_VERSIONS else 0

    def _class(self, suffix: str) -> type[Message]:
        found: type[Message] = getattr(import_module(f"{__package__}.messages.{self.module}"), self.name + suffix)
        return found

    def __repr__(self) -> str:
        return f"<{self.name} {self.versions[0]}-{self.versions[1]}>"


# fmt: off
APIS: tuple[Api, ...] = (
    #   key  name                            module              versions   flexible  3.9        4.4
    Api(0,  "Produce",                      "produce",         "0-13",   9,     "0-11",   "0-13"),
    Api(1,  "Fetch",                        "fetch",           "0-18",   12,    "0-17",   "4-18"),
    Api(2,  "ListOffsets",                  "offsets",         "0-11",   6,     "0-9",    "1-11"),
    Api(3,  "Metadata",                     "metadata",        "0-13",   9,     "0-12",   "0-13"),
    Api(4,  "LeaderAndIsr",                 "control",         "0-7",    4,     "0-7",    None, control_plane=True),
    Api(5,  "StopReplica",                  "control",         "0-4",    2,     "0-4",    None, control_plane=True),
    Api(6,  "UpdateMetadata",               "control",         "0-8",    6,     "0-8",    None, control_plane=True),
    Api(7,  "ControlledShutdown",           "control",         "0-3",    3,     "0-3",    None, control_plane=True),
    Api(8,  "OffsetCommit",                 "group_offsets",   "0-10",   8,     "0-9",    "2-10"),
    Api(9,  "OffsetFetch",                  "group_offsets",   "0-10",   6,     "0-9",    "1-10"),
    Api(10, "FindCoordinator",              "groups",          "0-6",    3,     "0-6",    "0-6"),
    Api(11, "JoinGroup",                    "groups",          "0-9",    6,     "0-9",    "0-9"),
    Api(12, "Heartbeat",                    "groups",          "0-4",    4,     "0-4",    "0-4"),
    Api(13, "LeaveGroup",                   "groups",          "0-5",    4,     "0-5",    "0-5"),
    Api(14, "SyncGroup",                    "groups",          "0-5",    4,     "0-5",    "0-5"),
    Api(15, "DescribeGroups",               "groups",          "0-6",    5,     "0-5",    "0-6"),
    Api(16, "ListGroups",                   "groups",          "0-5",    3,     "0-5",    "0-5"),
    Api(17, "SaslHandshake",                "handshake",       "0-1",    None,  "0-1",    "0-1"),
    Api(18, "ApiVersions",                  "handshake",       "0-5",    3,     "0-4",    "0-5"),
    Api(19, "CreateTopics",                 "topics",          "0-7",    5,     "0-7",    "2-7"),
    Api(20, "DeleteTopics",                 "topics",          "0-6",    4,     "0-6",    "1-6"),
    Api(21, "DeleteRecords",                "offsets",         "0-2",    2,     "0-2",    "0-2"),
    Api(22, "InitProducerId",               "transactions",    "0-6",    2,     "0-5",    "0-5"),
    Api(23, "OffsetForLeaderEpoch",         "offsets",         "0-4",    4,     "0-4",    "2-4"),
    Api(24, "AddPartitionsToTxn",           "transactions",    "0-5",    3,     "0-5",    "0-5"),
    Api(25, "AddOffsetsToTxn",              "transactions",    "0-4",    3,     "0-4",    "0-4"),
    Api(26, "EndTxn",                       "transactions",    "0-5",    3,     "0-4",    "0-5"),
    Api(27, "WriteTxnMarkers",              "transactions",    "0-2",    1,     "0-1",    "1-2"),
    Api(28, "TxnOffsetCommit",              "transactions",    "0-6",    3,     "0-4",    "0-6"),
    Api(29, "DescribeAcls",                 "security",        "0-3",    2,     "0-3",    "1-3"),
    Api(30, "CreateAcls",                   "security",        "0-3",    2,     "0-3",    "1-3"),
    Api(31, "DeleteAcls",                   "security",        "0-3",    2,     "0-3",    "1-3"),
    Api(32, "DescribeConfigs",              "configs",         "0-4",    4,     "0-4",    "1-4"),
    Api(33, "AlterConfigs",                 "configs",         "0-2",    2,     "0-2",    "0-2"),
    Api(34, "AlterReplicaLogDirs",          "logdirs",         "0-2",    2,     "0-2",    "1-2"),
    Api(35, "DescribeLogDirs",              "logdirs",         "0-5",    2,     "0-4",    "1-5"),
    Api(36, "SaslAuthenticate",             "handshake",       "0-2",    2,     "0-2",    "0-2"),
    Api(37, "CreatePartitions",             "topics",          "0-3",    2,     "0-3",    "0-3"),
    Api(38, "CreateDelegationToken",        "security",        "0-3",    2,     "0-3",    "1-3"),
    Api(39, "RenewDelegationToken",         "security",        "0-2",    2,     "0-2",    "1-2"),
    Api(40, "ExpireDelegationToken",        "security",        "0-2",    2,     "0-2",    "1-2"),
    Api(41, "DescribeDelegationToken",      "security",        "0-3",    2,     "0-3",    "1-3"),
    Api(42, "DeleteGroups",                 "groups",          "0-3",    2,     "0-2",    "0-3"),
    Api(43, "ElectLeaders",                 "topics",          "0-2",    2,     "0-2",    "0-2"),
    Api(44, "IncrementalAlterConfigs",      "configs",         "0-1",    1,     "0-1",    "0-1"),
    Api(45, "AlterPartitionReassignments",  "topics",          "0-1",    0,     "0",      "0-1"),
    Api(46, "ListPartitionReassignments",   "topics",          "0",      0,     "0",      "0"),
    Api(47, "OffsetDelete",                 "group_offsets",   "0",      None,  "0",      "0"),
    Api(48, "DescribeClientQuotas",         "quotas",          "0-1",    1,     "0-1",    "0-1"),
    Api(49, "AlterClientQuotas",            "quotas",          "0-1",    1,     "0-1",    "0-1"),
    Api(50, "DescribeUserScramCredentials", "security",        "0",      0,     "0",      "0"),
    Api(51, "AlterUserScramCredentials",    "security",        "0",      0,     "0",      "0"),
    Api(55, "DescribeQuorum",               "quorum",          "0-2",    0,     None,     "0-2"),
    Api(56, "AlterPartition",               "control",         "0-3",    0,     "0-3",    None, control_plane=True),
    Api(57, "UpdateFeatures",               "features",        "0-2",    0,     "0-1",    "0-2"),
    Api(58, "Envelope",                     "control",         "0",      0,     "0",      None, control_plane=True),
    Api(59, "FetchSnapshot",                "quorum",          "0-1",    0,     None,     None, control_plane=True),
    Api(60, "DescribeCluster",              "metadata",        "0-2",    0,     "0-1",    "0-2"),
    Api(61, "DescribeProducers",            "transactions",    "0",      0,     "0",      "0"),
    Api(62, "BrokerRegistration",           "quorum",          "0-4",    0,     None,     None, control_plane=True),
    Api(63, "BrokerHeartbeat",              "quorum",          "0-2",    0,     None,     None, control_plane=True),
    Api(64, "UnregisterBroker",             "quorum",          "0",      0,     None,     "0"),
    Api(65, "DescribeTransactions",         "transactions",    "0",      0,     "0",      "0"),
    Api(66, "ListTransactions",             "transactions",    "0-2",    0,     "0-1",    "0-2"),
    Api(67, "AllocateProducerIds",          "control",         "0",      0,     "0",      None, control_plane=True),
    Api(68, "ConsumerGroupHeartbeat",       "consumer_groups", "0-1",    0,     "0",      "0-1"),
    Api(69, "ConsumerGroupDescribe",        "consumer_groups", "0-1",    0,     "0",      "0-1"),
    Api(73, "AssignReplicasToDirs",         "quorum",          "0",      0,     None,     None, control_plane=True),
    Api(74, "ListConfigResources",          "configs",         "0-1",    0,     None,     "0-1"),
    Api(75, "DescribeTopicPartitions",      "metadata",        "0",      0,     None,     "0"),
    Api(76, "ShareGroupHeartbeat",          "share_groups",    "1",      0,     None,     "1"),
    Api(77, "ShareGroupDescribe",           "share_groups",    "1",      0,     None,     "1"),
    Api(78, "ShareFetch",                   "share_groups",    "1-2",    0,     None,     "1-2"),
    Api(79, "ShareAcknowledge",             "share_groups",    "1-2",    0,     None,     "1-2"),
    Api(83, "InitializeShareGroupState",    "share_group_state", "0",    0,     None,     "0"),
    Api(84, "ReadShareGroupState",          "share_group_state", "0",    0,     None,     "0"),
    Api(85, "WriteShareGroupState",         "share_group_state", "0-1",  0,     None,     "0-1"),
    Api(86, "DeleteShareGroupState",        "share_group_state", "0",    0,     None,     "0"),
    Api(87, "ReadShareGroupStateSummary",   "share_group_state", "0-1",  0,     None,     "0-1"),
    Api(88, "StreamsGroupHeartbeat",        "streams_groups",  "0-1",    0,     None,     "0-1"),
    Api(89, "StreamsGroupDescribe",         "streams_groups",  "0-1",    0,     None,     "0-1"),
    Api(90, "DescribeShareGroupOffsets",    "share_group_offsets", "0-1", 0,    None,     "0-1"),
    Api(91, "AlterShareGroupOffsets",       "share_group_offsets", "0",  0,     None,     "0"),
    Api(92, "DeleteShareGroupOffsets",      "share_group_offsets", "0",  0,     None,     "0"),
    Api(93, "StreamsGroupTopologyDescriptionUpdate", "streams_groups", "0", 0, None, "0"),
)
# fmt: on
BY_KEY: dict[int, Api] = {api.key: api for api in APIS}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS}
