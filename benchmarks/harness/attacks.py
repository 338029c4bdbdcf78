"""Attacks for `scripts/bench fair`: well-formed requests of a hostile shape, sent again and again until it is ended.

Each row is a function of the broker's port, run in a process of its own. Those that need topics make them first, under
names that begin with `hostile-`, and leave them to who measures.
"""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from benchmarks.harness.wire import fetch_frame, frame, produce_frame
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.control import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    StopReplicaTopicV1,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
)
from protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.logdirs import DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import Record
from protocol.records.content import build_batch
from tests.frames import take

HEALTHY, HEALTHY_GROUP = "healthy", "healthy-group"
HOSTILE = "hostile-"  # what its topics' names begin with
HEAD = struct.Struct(">i")
HELD_FRAME = 99_000_000
ZSTD = 4
ANSWER_AT = 5  # in a flexible answer: behind its correlation id and no tags
CROWD = 3_200
FIRST = {"producer_epoch": 0, "base_sequence": 0}  # of a producer's batches
ELSEWHERE = "127.0.0.2"  # the address that a crowd comes from


def again(port: int, data: bytes) -> None:
    """One request after the other, on one connection after the other."""
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            while True:
                client.sendall(data)
                take(client)


def once(port: int, data: bytes) -> None:
    """One request, answered."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        client.sendall(data)
        take(client)


def hold(port: int, connections: int, parts: Callable[[], Iterator[bytes]], address: str = "127.0.0.1") -> None:
    """Send some bytes on many connections, read nothing, and begin again when one is closed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients: list[socket.socket] = []
    while True:
        for _ in range(connections - len(clients)):
            with suppress(OSError):
                client = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
                client.settimeout(2)
                clients.append(client)
                for part in parts():
                    client.sendall(part)
        time.sleep(0.5)
        clients = [each for each in clients if _is_open(each)]


def _is_open(client: socket.socket) -> bool:
    try:
        client.setblocking(False)
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


# ---- requests that name much


def _describe_configs() -> bytes:
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    return frame(DescribeConfigsRequest(resources=[broker] * 4000), 4)


def _find_coordinator() -> bytes:
    return frame(FindCoordinatorRequest(key_type=0, coordinator_keys=["k"] * 1_000_000), 4)


def _many_coordinators() -> bytes:
    return frame(FindCoordinatorRequest(key_type=0, coordinator_keys=[str(key) for key in range(190_000)]), 4)


def describe_groups(port: int) -> None:
    """One group, whose member has much to say, named again and again."""
    group = f"{HOSTILE}group"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        client.sendall(_join(group, 900_000))  # stays, waiting for others
        again(port, frame(DescribeGroupsRequest(groups=[group] * 8000), 5))


def _metadata() -> bytes:
    topics = [MetadataRequestTopic(name=f"{HOSTILE}{time.time_ns()}-{each}") for each in range(5000)]
    return frame(MetadataRequest(topics=topics), 9)


def _stop_replica() -> bytes:
    topics = [StopReplicaTopicV1(name="t", partition_indexes=list(range(1_900_000)))]
    return frame(StopReplicaRequest(controller_id=1, controller_epoch=1, topics=topics), 1)


def _fetch() -> bytes:
    partitions = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in range(49_000)]
    topics = [FetchTopic(topic="made-up", partitions=partitions)]
    return frame(FetchRequest(max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics), 12)


def fetch_session(port: int) -> None:
    """A fetch session grown step by step to what one may have; then small fetches of it."""
    partitions = 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(60)
        session_id = epoch = 0
        while True:
            step = [
                FetchPartition(partition=partitions + each, fetch_offset=0, partition_max_bytes=1)
                for each in range(7_000 if partitions < 49_000 else 0)
            ]
            partitions += len(step)
            topics = [FetchTopic(topic="made-up", partitions=step)] if step else []
            request = FetchRequest(
                max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics
            )
            client.sendall(frame(request, 12))
            answer = FetchResponse.decode(take(client), 12, ANSWER_AT)
            session_id, epoch = answer.session_id, epoch + 1


def _list_offsets() -> bytes:
    partitions = [ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(190_000)]
    topics = [ListOffsetsTopic(name="made-up", partitions=partitions)]
    return frame(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics), 7)


def all_metadata(port: int) -> None:
    """Everything there is, and there is much."""
    once(port, _topic("wide", 5_000))
    again(port, frame(MetadataRequest(topics=None), 9))


def all_log_dirs(port: int) -> None:
    """The sizes of all logs there are."""
    once(port, _topic("wide", 5_000))
    again(port, frame(DescribeLogDirsRequest(topics=None), 2))


def _topic(name: str, partitions: int, **settings: str) -> bytes:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    topic = CreatableTopic(
        name=f"{HOSTILE}{name}", num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
    )
    return frame(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)


def _produce_nothing() -> bytes:
    """To 19,000 partitions that do not exist."""
    data = [PartitionProduceData(index=each, records=None) for each in range(19_000)]
    topics = [TopicProduceData(name="made-up", partition_data=data)]
    return frame(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 7)


# ---- records that become much


def _bomb(records: int = 1, size: int = 120 << 20) -> bytes:
    """A batch of some kilobytes that opens to a hundred megabytes."""
    value = bytes(size // records)
    batch = build_batch([Record(at, at, None, value) for at in range(records)], codec_id=ZSTD)
    return bytes(batch)


def _produce(topic: str, batches: list[bytes], index: int | None = None) -> bytes:
    """index: the partition that all go to; None: a partition for each."""
    data = [PartitionProduceData(index=at if index is None else index, records=each) for at, each in enumerate(batches)]
    topics = [TopicProduceData(name=f"{HOSTILE}{topic}", partition_data=data)]
    return frame(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 7)


def produce_bombs(port: int) -> None:
    """One partition, named 25 times."""
    once(port, _topic("bombs", 1))
    again(port, _produce("bombs", [_bomb()] * 25, index=0))


def recompress_bombs(port: int) -> None:
    """Four, onto a topic with a codec of its own."""
    once(port, _topic("gzip", 4, compression_type="gzip", max_message_bytes="10000000"))
    again(port, _produce("gzip", [_bomb(1000)] * 4))


def look_up_in_bombs(port: int) -> None:
    """Times in ten batches, each of many records."""
    once(port, _topic("times", 10))
    batch = _bomb(100_000, 1 << 20)
    once(port, _produce("times", [batch] * 10))
    partitions = [ListOffsetsPartition(partition_index=each, timestamp=99_999) for each in range(10)]
    topics = [ListOffsetsTopic(name=f"{HOSTILE}times", partitions=partitions)]
    again(port, frame(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics), 7))


def large_produce(port: int) -> None:
    """Requests of nearly a hundred megabytes, in batches that are as large as they may be."""
    once(port, _topic("large", 90, retention_bytes="1000000", segment_bytes="2000000"))
    batch = bytes(build_batch([Record(0, 0, None, bytes(1_000_000))]))
    again(port, _produce("large", [batch] * 90))


# ---- connections that hold much


def _half_frame() -> Iterator[bytes]:
    yield HEAD.pack(HELD_FRAME)
    for _ in range(HELD_FRAME // (1 << 20) - 1):
        yield bytes(1 << 20)


def _long_polls() -> Iterator[bytes]:
    poll, at = fetch_frame(HEALTHY, max_wait_ms=600_000, partition_bytes=1, min_bytes=1 << 30)
    struct.pack_into(">q", poll, at, 0)
    yield bytes(poll) * 64


def _parked_and_held() -> Iterator[bytes]:
    yield from _long_polls()
    yield HEAD.pack(HELD_FRAME)
    for _ in range(HELD_FRAME // (1 << 20)):
        yield bytes(1 << 20)


def _unread() -> Iterator[bytes]:
    yield frame(ApiVersionsRequest(), 0) * 50_000


def _would_be_controllers() -> Iterator[bytes]:
    """Idle ones, once they have said who they would be."""
    yield frame(StopReplicaRequest(controller_id=1, controller_epoch=1, topics=[]), 1)


def busy_controllers(port: int) -> None:
    """Three that do not stop."""
    (data,) = _would_be_controllers()
    threads = [threading.Thread(target=again, args=(port, data), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def false_controller(port: int) -> None:
    """Deletes the topic of those who behave, sends them to a broker that is not there, and leads what it likes."""
    claim = {"controller_id": 1, "controller_epoch": 1 << 30}
    state = {"topic_name": HEALTHY, "partition_index": 0, "controller_epoch": 1 << 30, "leader": 77}
    state |= {"leader_epoch": 1 << 30, "isr": [77], "replicas": [77]}
    endpoint = UpdateMetadataEndpoint(port=1, host="127.0.0.1", listener="PLAINTEXT", security_protocol=0)
    gone = StopReplicaTopicV1(name=HEALTHY, partition_indexes=[0])
    stop = StopReplicaRequest(**claim, delete_partitions=True, topics=[gone])
    update = UpdateMetadataRequest(
        **claim,
        topic_states=[
            UpdateMetadataTopicState(
                topic_name=HEALTHY,
                partition_states=[UpdateMetadataPartitionState(**state, zk_version=1 << 30, offline_replicas=[])],
            )
        ],
        live_brokers=[UpdateMetadataBroker(id=77, endpoints=[endpoint], rack=None)],
    )
    lead = LeaderAndIsrRequest(
        **claim,
        topic_states=[
            LeaderAndIsrTopicState(
                topic_name=HEALTHY, partition_states=[LeaderAndIsrPartitionState(**state, partition_epoch=1 << 30)]
            )
        ],
        live_leaders=[LeaderAndIsrLiveLeader(broker_id=77, host_name="127.0.0.1", port=1)],
    )
    again(port, frame(update, 5) + frame(lead, 2) + frame(stop, 1))


# ---- groups


def group_metadata(port: int) -> None:
    """A new group at each request, its member with 7.9 MB to say."""
    number = 0
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(2)
            number += 1
            client.sendall(_join(f"{HOSTILE}{number}", 7_900_000))
            take(client)


def _join(group: str, size: int) -> bytes:
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size))],
    )
    return frame(join, 3)


def offsets(port: int) -> None:
    """A new group at each request, with as much to remember of its offsets as one may say."""
    once(port, _topic("committed", 240))
    parts = [
        OffsetCommitRequestPartition(partition_index=each, committed_offset=0, committed_metadata="m" * 4_000)
        for each in range(240)
    ]
    topics = [OffsetCommitRequestTopic(name=f"{HOSTILE}committed", partitions=parts)]
    number = 0
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            while True:
                number += 1
                client.sendall(frame(OffsetCommitRequest(group_id=f"{HOSTILE}{number}", topics=topics), 7))
                take(client)


def transactional_ids(port: int) -> None:
    """A new one at each request."""
    number = 0
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            while True:
                some = [
                    frame(
                        InitProducerIdRequest(
                            transactional_id=f"{HOSTILE}{number + each}" * 10, transaction_timeout_ms=60_000
                        ),
                        3,
                    )
                    for each in range(16)
                ]
                number += len(some)
                client.sendall(b"".join(some))
                for _ in some:
                    take(client)


def producer_ids(port: int) -> None:
    """A new one in each batch, in each of fifty partitions."""
    once(port, _topic("ids", 50))
    number = 1 << 40  # never handed out
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            while True:
                number += 50
                ids = range(number, number + 50)
                new = [build_batch([Record(0, 0, None, b"v")], producer_id=each, **FIRST) for each in ids]
                client.sendall(_produce("ids", [bytes(each) for each in new]))
                take(client)


def long_group_ids(port: int) -> None:
    """As long as a string may be."""
    again(port, frame(OffsetFetchRequest(group_id="g" * 32_000, topics=None), 5))


def small_produce(port: int) -> None:
    """What is no attack: another producer that does not wait. For comparison."""
    once(port, _topic("other", 1))
    again(port, produce_frame(f"{HOSTILE}other", [bytes(build_batch([Record(0, 0, None, bytes(100))]))]))


ROWS: dict[str, Callable[[int], None]] = {
    "another-producer": small_produce,
    "describe-configs": lambda port: again(port, _describe_configs()),
    "describe-groups": describe_groups,
    "find-coordinator": lambda port: again(port, _find_coordinator()),
    "many-coordinators": lambda port: again(port, _many_coordinators()),
    "fetch-many": lambda port: again(port, _fetch()),
    "fetch-session": fetch_session,
    "list-offsets": lambda port: again(port, _list_offsets()),
    "all-metadata": all_metadata,
    "all-log-dirs": all_log_dirs,
    "metadata-new-topics": lambda port: again(port, _metadata()),
    "stop-replica": lambda port: again(port, _stop_replica()),
    "would-be-controllers": lambda port: hold(port, 1000, _would_be_controllers),
    "busy-controllers": busy_controllers,
    "false-controller": false_controller,
    "create-wide-topic": lambda port: again(port, _topic("wide", 10_000)),
    "produce-bombs": produce_bombs,
    "recompress-bombs": recompress_bombs,
    "look-up-in-bombs": look_up_in_bombs,
    "produce-nothing": lambda port: again(port, _produce_nothing()),
    "large-produce": large_produce,
    "half-frames": lambda port: hold(port, 12, _half_frame),
    "parked-and-held": lambda port: hold(port, 30, _parked_and_held),
    "long-polls": lambda port: hold(port, CROWD, _long_polls, ELSEWHERE),
    "unread-answers": lambda port: hold(port, 60, _unread),
    "group-metadata": group_metadata,
    "offsets": offsets,
    "transactional-ids": transactional_ids,
    "producer-ids": producer_ids,
    "long-group-ids": long_group_ids,
}
