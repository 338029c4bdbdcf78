"""The last version of each API that older releases of Kafka serve, for a broker that is to act like one.

Source: the tables of the Kafka protocol guide of each release; APIs between brokers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

_OLDEST = {
    "Produce": 2, "Fetch": 2, "ListOffsets": 0, "Metadata": 1, "OffsetCommit": 2, "OffsetFetch": 1,
    "FindCoordinator": 0, "JoinGroup": 0, "Heartbeat": 0, "LeaveGroup": 0, "SyncGroup": 0, "DescribeGroups": 0,
    "ListGroups": 0, "SaslHandshake": 0, "ApiVersions": 0,
}  # fmt: skip
_FIRST_OF_FORMAT_2 = {
    "Produce": 5, "Fetch": 6, "ListOffsets": 2, "Metadata": 5, "OffsetCommit": 3, "OffsetFetch": 3,
    "FindCoordinator": 1, "JoinGroup": 2, "Heartbeat": 1, "LeaveGroup": 1, "SyncGroup": 1, "DescribeGroups": 1,
    "ListGroups": 1, "SaslHandshake": 1, "ApiVersions": 1, "CreateTopics": 2, "DeleteTopics": 1, "DeleteRecords": 0,
    "InitProducerId": 0, "OffsetForLeaderEpoch": 0, "AddPartitionsToTxn": 0, "AddOffsetsToTxn": 0, "EndTxn": 0,
    "WriteTxnMarkers": 0, "TxnOffsetCommit": 0, "DescribeAcls": 0, "CreateAcls": 0, "DeleteAcls": 0,
    "DescribeConfigs": 0, "AlterConfigs": 0, "AlterReplicaLogDirs": 0, "DescribeLogDirs": 0, "SaslAuthenticate": 0,
    "CreatePartitions": 0,
}  # fmt: skip
_LAST_OF_FORMAT_2 = {
    "Produce": 9, "Fetch": 12, "ListOffsets": 6, "Metadata": 11, "OffsetCommit": 8, "OffsetFetch": 7,
    "FindCoordinator": 3, "JoinGroup": 7, "Heartbeat": 4, "LeaveGroup": 4, "SyncGroup": 5, "DescribeGroups": 5,
    "ListGroups": 4, "SaslHandshake": 1, "ApiVersions": 3, "CreateTopics": 7, "DeleteTopics": 6, "DeleteRecords": 2,
    "InitProducerId": 4, "OffsetForLeaderEpoch": 4, "AddPartitionsToTxn": 3, "AddOffsetsToTxn": 3, "EndTxn": 3,
    "WriteTxnMarkers": 1, "TxnOffsetCommit": 3, "DescribeAcls": 2, "CreateAcls": 2, "DeleteAcls": 2,
    "DescribeConfigs": 4, "AlterConfigs": 2, "AlterReplicaLogDirs": 2, "DescribeLogDirs": 2, "SaslAuthenticate": 2,
    "CreatePartitions": 3, "CreateDelegationToken": 2, "RenewDelegationToken": 2, "ExpireDelegationToken": 2,
    "DescribeDelegationToken": 2, "DeleteGroups": 2, "ElectLeaders": 2, "IncrementalAlterConfigs": 1,
    "AlterPartitionReassignments": 0, "ListPartitionReassignments": 0, "OffsetDelete": 0, "DescribeClientQuotas": 1,
    "AlterClientQuotas": 1, "DescribeUserScramCredentials": 0, "AlterUserScramCredentials": 0, "DescribeCluster": 0,
    "DescribeProducers": 0,
}  # fmt: skip

RELEASES: Mapping[str, Mapping[str, int]] = {
    "0.10": _OLDEST,
    "1.0": _FIRST_OF_FORMAT_2,
    "2.8": _LAST_OF_FORMAT_2,
}
