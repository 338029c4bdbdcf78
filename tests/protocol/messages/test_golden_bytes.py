"""What the messages look like on the wire, byte by byte, worked out by hand from the protocol guide.

Other tests compare our bytes with other implementations'; these can be read. Each example goes both ways: the value
encodes to the bytes, the bytes decode to the value. In flexible versions a length is written plus one, 0 is null, and
each struct ends in the number of its tagged fields.
"""

from __future__ import annotations

from typing import Any

import pytest

from protocol.message import Message
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from protocol.messages.handshake import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SaslHandshakeRequest,
)
from protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicRequest,
)
from protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnResponse,
    InitProducerIdRequest,
)

TOPIC_ID = bytes(range(16))
TOPIC_ID_HEX = "00010203 04050607 08090a0b 0c0d0e0f"


def produced(records: bytes, **topic: Any) -> list[TopicProduceData]:
    return [TopicProduceData(**topic, partition_data=[PartitionProduceData(index=1, records=records)])]


EXAMPLES: list[tuple[str, Message, int, str]] = [
    (
        "produce before transactions",
        ProduceRequest(acks=1, timeout_ms=1500, topic_data=produced(b"\xaa\xbb", name="t")),
        2,
        """
        0001                # acks
        000005dc            # timeout
        00000001 0001 74    # one topic, "t"
        00000001 00000001   # one partition, 1
        00000002 aabb       # records
        """,
    ),
    (
        "produce with a transactional id",
        ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1500, topic_data=produced(b"\xaa\xbb", name="t")),
        3,
        "0001 78 ffff 000005dc 00000001 0001 74 00000001 00000001 00000002 aabb",
    ),
    (
        "flexible produce",
        ProduceRequest(acks=-1, timeout_ms=1500, topic_data=produced(b"\xaa\xbb", name="t")),
        9,
        """
        00                  # no transactional id
        ffff 000005dc       # acks, timeout
        02 02 74            # one topic, "t"
        02 00000001         # one partition, 1
        03 aabb             # records
        00 00 00            # tags of partition, topic, request
        """,
    ),
    (
        "produce by topic id",
        ProduceRequest(acks=-1, timeout_ms=1500, topic_data=produced(b"", topic_id=TOPIC_ID)),
        13,
        f"00 ffff 000005dc 02 {TOPIC_ID_HEX} 02 00000001 01 00 00 00",
    ),
    (
        "produced to a leader that has moved",
        ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name="t",
                    partition_responses=[
                        PartitionProduceResponse(
                            index=1,
                            error_code=6,
                            base_offset=-1,
                            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
                        )
                    ],
                )
            ],
            throttle_time_ms=0,
            node_endpoints=[NodeEndpoint(node_id=2, host="h", port=9092)],
        ),
        10,
        """
        02 02 74 02                         # one topic "t", one partition
        00000001 0006 ffffffffffffffff      # 1, NOT_LEADER_OR_FOLLOWER, no base offset
        ffffffffffffffff ffffffffffffffff   # no append time, no log start
        01 00                               # no record errors, no message
        01 00 09 00000002 00000009 00       # one tag: 0, 9 bytes, leader 2 in epoch 9
        00                                  # tags of topic
        00000000                            # throttle time
        01 00 0d                            # one tag: 0, 13 bytes
        02 00000002 02 68 00002384 00 00    # node 2, "h", 9092, no rack
        """,
    ),
    (
        "consumer's fetch",
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[
                FetchTopic(topic="t", partitions=[FetchPartition(partition=3, fetch_offset=7, partition_max_bytes=256)])
            ],
        ),
        4,
        """
        ffffffff 000001f4 00000001 00100000 01          # a consumer, wait, min, max, read committed
        00000001 0001 74                                # one topic "t"
        00000001 00000003 0000000000000007 00000100     # partition 3, offset 7, 256 bytes
        """,
    ),
    (
        "follower's fetch in a session",
        FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=5),
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=77,
            session_epoch=4,
            topics=[
                FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        FetchPartition(
                            partition=3,
                            current_leader_epoch=6,
                            fetch_offset=7,
                            last_fetched_epoch=5,
                            log_start_offset=0,
                            partition_max_bytes=256,
                            high_watermark=7,
                        )
                    ],
                )
            ],
        ),
        18,
        f"""
        000001f4 00000001 00100000 00               # wait, min, max, read uncommitted
        0000004d 00000004                           # session, its epoch
        02 {TOPIC_ID_HEX} 02                        # one topic, one partition
        00000003 00000006 0000000000000007          # 3, leader epoch 6, offset 7
        00000005 0000000000000000 00000100          # last epoch, log start, 256 bytes
        01 01 08 0000000000000007                   # one tag: 1, the high watermark
        00                                          # tags of topic
        01 01                                       # nothing to forget, no rack
        01 01 0d 00000002 0000000000000005 00       # one tag: 1, replica 2 in broker epoch 5
        """,
    ),
    (
        "nothing new in a session",
        FetchResponse(throttle_time_ms=0, error_code=0, session_id=77, responses=[]),
        7,
        "00000000 0000 0000004d 00000000",
    ),
    (
        "fetched with an aborted transaction",
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[
                        PartitionData(
                            partition_index=3,
                            error_code=0,
                            high_watermark=9,
                            last_stable_offset=8,
                            aborted_transactions=[AbortedTransaction(producer_id=4, first_offset=7)],
                            records=b"\xaa\xbb",
                        )
                    ],
                )
            ],
        ),
        4,
        """
        00000000 00000001 0001 74                           # throttle time, one topic "t"
        00000001 00000003 0000                              # partition 3, no error
        0000000000000009 0000000000000008                   # high watermark, last stable offset
        00000001 0000000000000004 0000000000000007          # one aborted transaction
        00000002 aabb                                       # records
        """,
    ),
    (
        "fetched by a follower that has forked off",
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[
                        PartitionData(
                            partition_index=3,
                            error_code=0,
                            high_watermark=9,
                            last_stable_offset=9,
                            log_start_offset=0,
                            diverging_epoch=EpochEndOffset(epoch=4, end_offset=6),
                            aborted_transactions=None,
                            records=b"",
                        )
                    ],
                )
            ],
        ),
        12,
        """
        00000000 0000 00000000 02 02 74 02                  # throttle, error, session; one topic "t", one partition
        00000003 0000 0000000000000009 0000000000000009     # 3, no error, high watermark, last stable offset
        0000000000000000 00 ffffffff 01                     # log start, None aborted, stay here, no records
        01 00 0d 00000004 0000000000000006 00               # one tag: 0, epoch 4 ends at 6
        00 00                                               # tags of topic and response
        """,
    ),
    ("metadata of all topics, as of old", MetadataRequest(topics=[]), 0, "00000000"),
    ("metadata of all topics", MetadataRequest(topics=None), 1, "ffffffff"),
    (
        "metadata by id",
        MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)],
            allow_auto_topic_creation=False,
        ),
        12,
        f"02 {TOPIC_ID_HEX} 00 00   00 00 00",
    ),
    (
        "metadata of a small cluster",
        MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=0, host="h", port=9092)],
            controller_id=0,
            topics=[
                MetadataResponseTopic(
                    error_code=0,
                    name="t",
                    partitions=[
                        MetadataResponsePartition(
                            error_code=0, partition_index=0, leader_id=0, replica_nodes=[0, 1], isr_nodes=[0]
                        )
                    ],
                )
            ],
        ),
        1,
        """
        00000001 00000000 0001 68 00002384 ffff         # one broker: 0, "h", 9092, no rack
        00000000                                        # controller
        00000001 0000 0001 74 00                        # one topic: no error, "t", not internal
        00000001 0000 00000000 00000000                 # one partition: no error, 0, leader 0
        00000002 00000000 00000001 00000001 00000000    # replicas 0 and 1, in sync 0
        """,
    ),
    (
        "page of partitions",
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name="t")],
            cursor=Cursor(topic_name="t", partition_index=5),
        ),
        0,
        "02 02 74 00  000007d0  01 02 74 00000005 00  00",  # a nullable struct opens with 1, or is -1
    ),
    (
        "first page of partitions",
        DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10),
        0,
        "01 0000000a ff 00",
    ),
    (
        "offsets as of old",
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="t",
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=0, error_code=0, old_style_offsets=[9, 0])
                    ],
                )
            ]
        ),
        0,
        "00000001 0001 74 00000001 00000000 0000 00000002 0000000000000009 0000000000000000",
    ),
    (
        "end of a log",
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1,
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])],
            timeout_ms=30_000,
        ),
        10,
        "ffffffff 01 02 02 74 02 00000000 ffffffff ffffffffffffffff 00 00  00007530 00",
    ),
    ("coordinator of a group", FindCoordinatorRequest(key="g"), 0, "0001 67"),
    ("coordinators", FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"]), 4, "01 03 02 61 02 62 00"),
    (
        "newcomer joins",
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01")],
        ),
        5,
        """
        0001 67 00002710 0000ea60 0000 ffff             # "g", 10 s, 60 s, no member id, dynamic
        0008 636f6e73756d6572                           # "consumer"
        00000001 0005 72616e6765 00000002 0001          # "range" and its metadata
        """,
    ),
    (
        "leader has joined",
        JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_type="consumer",
            protocol_name="range",
            leader="m",
            member_id="m",
            members=[JoinGroupResponseMember(member_id="m", group_instance_id="i", metadata=b"\x00\x01")],
        ),
        9,
        """
        00000000 0000 00000001                          # throttle time, no error, generation
        09 636f6e73756d6572 06 72616e6765               # "consumer", "range"
        02 6d 00 02 6d                                  # leader, it must assign, own member id
        02 02 6d 02 69 03 0001 00                       # one member
        00
        """,
    ),
    ("assignment", SyncGroupResponse(error_code=0, assignment=b"\xaa"), 0, "0000 00000001 aa"),
    (
        "commit with a retention",
        OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=3,
            member_id="m",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata=None)
                    ],
                )
            ],
        ),
        2,
        """
        0001 67 00000003 0001 6d ffffffffffffffff       # "g", generation 3, "m", the broker's retention
        00000001 0001 74                                # one topic "t"
        00000001 00000000 0000000000000005 ffff         # partition 0, offset 5, no metadata
        """,
    ),
    (
        "all offsets of a group",
        OffsetFetchRequest(group_id="", groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]),
        8,
        "02 02 67 00 00  00 00",
    ),
    (
        "heartbeat that changes nothing",
        ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0, error_code=0, member_id="m", member_epoch=2, heartbeat_interval_ms=5000
        ),
        0,
        "00000000 0000 00 02 6d 00000002 00001388 ff 00",
    ),
    ("versions, please", ApiVersionsRequest(), 0, ""),
    (
        "versions, please, from a named client",
        ApiVersionsRequest(client_software_name="c", client_software_version="1"),
        3,
        "02 63 02 31 00",
    ),
    (
        "versions",
        ApiVersionsResponse(
            error_code=0,
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
            finalized_features_epoch=3,
            finalized_features=[FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1)],
        ),
        3,
        """
        0000 02 0012 0000 0004 00 00000000              # no error, one api, throttle time
        02                                              # two tags
        01 08 0000000000000003                          # 1: epoch
        02 08 02 02 66 0002 0001 00                     # 2: one feature, its upper end first
        """,
    ),
    ("mechanism", SaslHandshakeRequest(mechanism="PLAIN"), 1, "0005 504c41494e"),
    (
        "idempotent producer",
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
        0,
        "ffff 0000ea60",
    ),
    (
        "transaction grows, for a client",
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=2,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ),
        3,
        "02 78 0000000000000001 0002 02 02 74 02 00000000 00 00",
    ),
    (
        "transaction is verified, for a broker",
        AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="x",
                    producer_id=1,
                    producer_epoch=2,
                    verify_only=True,
                    topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
                )
            ],
        ),
        4,
        "02 02 78 0000000000000001 0002 01 02 02 74 02 00000000 00 00 00",
    ),
    (
        "transaction ends in a new epoch",
        EndTxnResponse(throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=3),
        5,
        "00000000 0000 0000000000000001 0003 00",
    ),
]


def wire(text: str) -> bytes:
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


@pytest.mark.parametrize(("message", "version", "text"), [pytest.param(*e[1:], id=e[0]) for e in EXAMPLES])
def test_value_encodes_to_the_bytes(message: Message, version: int, text: str) -> None:
    assert message.encode(version).hex(" ") == wire(text).hex(" ")


@pytest.mark.parametrize(("message", "version", "text"), [pytest.param(*e[1:], id=e[0]) for e in EXAMPLES])
def test_bytes_decode_to_the_value(message: Message, version: int, text: str) -> None:
    assert type(message).decode(wire(text), version) == message
