"""LeaderAndIsr, StopReplica, UpdateMetadata as a broker receives them, in every version."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kbroker.broker.controller_requests import REPLICAS_AT_ONCE
from kbroker.metadata.store import PRODUCER_ID_BLOCK, config_path, decode_producer_id_block, encode_config
from kbroker.ports import Create
from kbroker.timing.scheduler import FIRST_STEPS
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    ControlledShutdownRequest,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
    UpdateMetadataRequest,
)
from tests.controller.cluster import Client, Cluster

ID = b"i" * 16
EPOCH = 5
SLOW_MS = 1_000  # of a job for the disk


def lead(
    index: int = 0, leader: int = 1, leader_epoch: int = 0, replicas: tuple[int, ...] = (1, 2), topic: str = ""
) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        topic_name=topic, partition_index=index, controller_epoch=EPOCH, leader=leader, leader_epoch=leader_epoch,
        isr=[1], partition_epoch=0, replicas=list(replicas), is_new=False,
    )  # fmt: skip


def tell(
    cluster: Cluster, *states: LeaderAndIsrPartitionState, version: int = 7, topic_id: bytes = ID, epoch: int = EPOCH
) -> list[ErrorCode]:
    """The codes of the partitions."""
    request = LeaderAndIsrRequest(controller_id=9, controller_epoch=epoch, live_leaders=[])
    if version >= 2:
        named = topic_id if version >= 5 else ZERO_UUID
        request.topic_states = [LeaderAndIsrTopicState(topic_name="t", topic_id=named, partition_states=list(states))]
    else:
        request.ungrouped_partition_states = list(states)
    response: Any = cluster.ask(request, version)
    errors = response.partition_errors or [each for topic in response.topics for each in topic.partition_errors]
    return [ErrorCode(each.error_code) for each in errors]


def stop(
    cluster: Cluster, leader_epoch: int, *, delete: bool = False, version: int = 4, index: int = 0
) -> list[ErrorCode]:
    request = StopReplicaRequest(controller_id=9, controller_epoch=EPOCH)
    if version >= 3:
        state = StopReplicaPartitionState(partition_index=index, leader_epoch=leader_epoch, delete_partition=delete)
        request.topic_states = [StopReplicaTopicState(topic_name="t", partition_states=[state])]
    else:
        request.delete_partitions = delete
        if version >= 1:
            request.topics = [StopReplicaTopicV1(name="t", partition_indexes=[index])]
        else:
            request.ungrouped_partitions = [StopReplicaPartitionV0(topic_name="t", partition_index=index)]
    response: Any = cluster.ask(request, version)
    return [ErrorCode(each.error_code) for each in response.partition_errors]


def held(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """(leader, leader epoch) by partition."""
    replicas = cluster.nodes[1].replicas.partitions
    return {index: (each.leader_id, each.leader_epoch) for (_, index), each in replicas.items()}


# -- LeaderAndIsr


@pytest.mark.parametrize("version", range(8))
def test_leaders_and_followers_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    codes = tell(cluster, lead(0, topic="t"), lead(1, leader=2, leader_epoch=4, topic="t"), version=version)
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert held(cluster) == {0: (1, 0), 1: (2, 4)}


def test_only_newer_leader_epochs_count() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(leader_epoch=3))
    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    codes = [tell(cluster, lead(leader=2, leader_epoch=epoch)) for epoch in (2, 3, 4)]
    assert codes == [[stale], [stale], [ErrorCode.NONE]]
    assert held(cluster) == {0: (2, 4)}


def test_a_topic_id_may_come_later_within_an_epoch() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(), version=4)
    assert tell(cluster, lead()) == [ErrorCode.NONE]


def test_another_topic_of_the_same_name_is_refused() -> None:
    cluster = Cluster(1)
    tell(cluster, lead())
    assert tell(cluster, lead(leader_epoch=1), topic_id=b"j" * 16) == [ErrorCode.INCONSISTENT_TOPIC_ID]


def test_a_partition_of_others_is_refused() -> None:
    assert tell(Cluster(1), lead(replicas=(2, 3))) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_partition_on_a_failed_disk_is_said_to_be_so() -> None:
    cluster = Cluster(1)
    tell(cluster, lead())
    cluster.nodes[1].replicas.partitions["t", 0].log = None
    assert tell(cluster, lead(leader_epoch=1)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert stop(cluster, 1) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_an_older_controller_is_refused_partition_by_partition() -> None:
    cluster = Cluster(1)
    tell(cluster, lead())
    for version in (4, 7):
        codes = tell(cluster, lead(leader_epoch=1), version=version, epoch=EPOCH - 1)
        assert codes == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert held(cluster) == {0: (1, 0)}


def test_settings_are_read_first_and_the_queue_keeps_its_order() -> None:
    cluster = Cluster(1)
    cluster.ensemble.tree.apply(Create(config_path("topics", "t"), encode_config({"retention.ms": "7"})), 0)
    clients = [Client(cluster.nodes[1]) for _ in range(2)]
    first = LeaderAndIsrRequest(
        controller_id=9,
        controller_epoch=EPOCH,
        topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=ID, partition_states=[lead()])],
        live_leaders=[],
    )
    second = UpdateMetadataRequest(controller_id=9, controller_epoch=EPOCH, live_brokers=[])
    for client, request, version in zip(clients, (first, second), (7, 8), strict=True):
        client.send(request, version)
    assert ([client.answer() for client in clients], held(cluster)) == ([None, None], {})
    cluster.settle()
    assert [client.answer().error_code for client in clients] == [ErrorCode.NONE] * 2
    assert cluster.nodes[1].configs.topic_config("t").retention_ms == 7


def test_a_session_that_ends_meanwhile_refuses_what_waits() -> None:
    cluster = Cluster(1)
    node = cluster.nodes[1]
    node.store.cut()
    request = LeaderAndIsrRequest(
        controller_id=9,
        controller_epoch=EPOCH,
        topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=ID, partition_states=[lead()])],
        live_leaders=[],
    )
    client = Client(node)
    client.send(request, 7)
    node.store.expire()
    node.store.heal()
    cluster.settle()
    assert client.answer().error_code == ErrorCode.STALE_BROKER_EPOCH


def request_of(*states: LeaderAndIsrPartitionState) -> LeaderAndIsrRequest:
    topics = [LeaderAndIsrTopicState(topic_name="t", topic_id=ID, partition_states=list(states))]
    return LeaderAndIsrRequest(controller_id=9, controller_epoch=EPOCH, topic_states=topics, live_leaders=[])


def begin_cut(cluster: Cluster, index: int = 0) -> None:
    """Cut a follower's log; the disk takes its time over it."""
    node = cluster.nodes[1]
    node.job_ms = (SLOW_MS, SLOW_MS)
    partition = node.replicas.partitions["t", index]
    node.turn(lambda: node.replicas.truncate(partition, 0, start_over=True))


def codes_of(client: Client) -> list[ErrorCode] | None:
    """What a LeaderAndIsr has come to, or None."""
    answer = client.answer()
    errors = [each for topic in answer.topics for each in topic.partition_errors] if answer else []
    return [ErrorCode(each.error_code) for each in errors] if answer else None


def test_nobody_leads_a_partition_while_its_log_is_being_cut_and_the_queue_keeps_its_order() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(leader=2), lead(1, leader=2))
    begin_cut(cluster)
    clients = [Client(cluster.nodes[1]) for _ in range(2)]
    for client, state in zip(clients, (lead(leader_epoch=1), lead(1, leader_epoch=1)), strict=True):
        client.send(request_of(state), 7)
    cluster.settle()
    before = held(cluster), [codes_of(client) for client in clients]
    cluster.advance(2 * SLOW_MS)
    assert before == ({0: (2, 0), 1: (2, 0)}, [None, None])
    assert (held(cluster), [codes_of(client) for client in clients]) == (
        {0: (1, 1), 1: (1, 1)},
        [[ErrorCode.NONE]] * 2,
    )


def test_many_replicas_are_led_in_slices_up_to_one_whose_log_is_being_cut() -> None:
    cluster = Cluster(1)
    count = 2 * REPLICAS_AT_ONCE
    tell(cluster, *(lead(index, leader=2) for index in range(count)))
    begin_cut(cluster, count - 1)
    client = Client(cluster.nodes[1])
    client.send(request_of(*(lead(index, leader_epoch=1) for index in range(count))), 7)
    cluster.settle()
    before = codes_of(client), held(cluster)[count - 1]
    cluster.advance(2 * SLOW_MS)
    assert before == (None, (2, 0))
    assert (codes_of(client), held(cluster)[count - 1]) == ([ErrorCode.NONE] * count, (1, 1))


def test_fifty_replicas_are_not_led_at_once() -> None:
    """Each may have to make a folder and three files: a busy disk takes a tenth of a second for fifty."""
    cluster = Cluster(1)
    tell(cluster, lead())  # from here on the topic's settings are known
    client = Client(cluster.nodes[1])
    client.send(request_of(*(lead(index, leader_epoch=1) for index in range(50))), 7)
    at_once = list(held(cluster).values()).count((1, 1))
    cluster.settle()
    assert (at_once, len(held(cluster)), codes_of(client)) == (FIRST_STEPS, 50, [ErrorCode.NONE] * 50)


def test_a_cut_that_begins_between_slices_is_waited_for() -> None:
    cluster = Cluster(1)
    count = 2 * REPLICAS_AT_ONCE
    tell(cluster, *(lead(index, leader=2) for index in range(count)))
    client = Client(cluster.nodes[1])
    client.send(request_of(*(lead(index, leader_epoch=1) for index in range(count))), 7)
    before = held(cluster)
    begin_cut(cluster, count - 1)
    cluster.settle()
    meanwhile = codes_of(client), held(cluster)[0], held(cluster)[count - 1]
    cluster.advance(2 * SLOW_MS)
    assert before[count - 1] == (2, 0)
    assert meanwhile == (None, (1, 1), (2, 0))
    assert (codes_of(client), held(cluster)[count - 1]) == ([ErrorCode.NONE] * count, (1, 1))


def test_a_follower_whose_log_is_being_cut_may_follow_another() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(leader=2))
    begin_cut(cluster)
    began_ms = cluster.world.now_ms
    assert tell(cluster, lead(leader=3, leader_epoch=1, replicas=(1, 2, 3))) == [ErrorCode.NONE]
    assert cluster.world.now_ms == began_ms


def test_what_waits_for_a_log_goes_on_when_its_disk_fails() -> None:
    cluster = Cluster(1, log_dirs="/data,/more")
    tell(cluster, lead(leader=2))
    node = cluster.nodes[1]
    begin_cut(cluster)
    client = Client(node)
    client.send(request_of(lead(leader_epoch=1)), 7)
    cluster.settle()
    before = codes_of(client)
    node.disk.fail("sync", "", errno.EIO)
    cluster.advance(2 * SLOW_MS)
    assert (before, codes_of(client)) == (None, [ErrorCode.KAFKA_STORAGE_ERROR])


@pytest.mark.parametrize("lacks", ["log", "descriptor"])
def test_what_waits_is_refused_when_it_goes_on_in_another_life_of_the_broker(lacks: str) -> None:
    cluster = Cluster(1)
    tell(cluster, lead(leader=2))
    node, index = cluster.nodes[1], int(lacks == "descriptor")
    begin_cut(cluster)
    client = Client(node)
    request = request_of(lead(index, leader_epoch=1))
    request.broker_epoch = node.plane.control_requests.broker_epoch
    node.disk.fail("open", ".log", errno.EMFILE)
    client.send(request, 7)
    node.store.expire()
    cluster.settle()
    before = codes_of(client)
    cluster.advance(2 * SLOW_MS)
    assert request.broker_epoch < node.plane.control_requests.broker_epoch
    assert (before, client.answer().error_code) == (None, ErrorCode.STALE_BROKER_EPOCH)
    assert 1 not in {leader for leader, _ in held(cluster).values()}


# -- StopReplica


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("delete", [True, False])
def test_replicas_are_stopped_in_every_version(version: int, delete: bool) -> None:
    cluster = Cluster(1)
    tell(cluster, lead())
    assert stop(cluster, 0, delete=delete, version=version) == [ErrorCode.NONE]
    assert (held(cluster), cluster.nodes[1].logs()) == ({}, [] if delete else [("t", 0)])


def test_a_late_stop_does_not_hit_a_newer_replica() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(leader_epoch=3))
    assert stop(cluster, 2) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert stop(cluster, -2) == [ErrorCode.NONE]  # the topic is being deleted


def test_what_is_not_led_or_followed_here_is_deleted_all_the_same() -> None:
    cluster = Cluster(1)
    tell(cluster, lead())
    cluster.restart(1)
    assert (held(cluster), cluster.nodes[1].logs()) == ({}, [("t", 0)])
    assert stop(cluster, -2, delete=True) == [ErrorCode.NONE]
    assert cluster.nodes[1].logs() == []


def test_settings_are_forgotten_with_the_last_replica() -> None:
    cluster = Cluster(1)
    tell(cluster, lead(0), lead(1))
    stop(cluster, -2, delete=True, index=0)
    assert "t" in cluster.nodes[1].configs.overrides
    stop(cluster, -2, delete=True, index=1)
    assert "t" not in cluster.nodes[1].configs.overrides


# -- UpdateMetadata


@pytest.mark.parametrize("version", range(9))
def test_news_are_taken_in_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    request = UpdateMetadataRequest(controller_id=9, controller_epoch=EPOCH, live_brokers=[])
    assert cluster.ask(request, version).error_code == ErrorCode.NONE
    assert (cluster.nodes[1].plane.cache.controller_id, cluster.nodes[1].plane.cache.brokers) == (9, {})


# -- what brokers ask the controller


@pytest.mark.parametrize("version", range(4))
def test_a_broker_that_is_about_to_stop_leads_nothing_that_another_can(version: int) -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1), (1, 2))
    answer = cluster.ask(ControlledShutdownRequest(broker_id=2), version)
    cluster.settle()
    assert (answer.error_code, answer.remaining_partitions) == (ErrorCode.NONE, [])
    assert cluster.leaders(1, "t") == [1, 1]
    assert [cluster.state("t", index).isr for index in (0, 1)] == [(1,), (1,)]


def test_what_nobody_else_can_lead_is_named_to_a_broker_that_is_about_to_stop() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.restart(1)
    in_sync = cluster.state("t").isr
    answer = cluster.ask(ControlledShutdownRequest(broker_id=2), 3, cluster.controller.id)
    assert in_sync == (2,)
    assert [(each.topic_name, each.partition_index) for each in answer.remaining_partitions] == [("t", 0)]


def test_a_former_life_of_a_broker_cannot_stop_the_present_one() -> None:
    cluster = Cluster(1, 2)
    epoch = cluster.nodes[2].plane.control_requests.broker_epoch
    asked = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch - 1)
    assert cluster.ask(asked, 3).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_only_the_controller_moves_leaders_and_gives_producer_ids() -> None:
    cluster = Cluster(1, 2)
    epoch = cluster.nodes[2].plane.control_requests.broker_epoch
    told = [
        cluster.ask(ControlledShutdownRequest(broker_id=2, broker_epoch=epoch), 3, 2),
        cluster.ask(AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch), 0, 2),
    ]
    assert [each.error_code for each in told] == [ErrorCode.NOT_CONTROLLER] * 2


def test_brokers_that_ask_get_producer_ids_that_nobody_else_has() -> None:
    cluster = Cluster(1, 2)
    epoch = cluster.nodes[2].plane.control_requests.broker_epoch
    asked = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
    blocks = [cluster.ask(asked, 0) for _ in range(2)]
    assert [(each.error_code, each.producer_id_start, each.producer_id_len) for each in blocks] == [
        (0, 0, 1000),
        (0, 1000, 1000),
    ]
    assert decode_producer_id_block(cluster.data(PRODUCER_ID_BLOCK)) == (2, 1000, 1999)


@pytest.mark.parametrize(
    ("broker", "code"), [(2, ErrorCode.STALE_BROKER_EPOCH), (9, ErrorCode.BROKER_ID_NOT_REGISTERED)]
)
def test_a_stranger_gets_no_producer_ids(broker: int, code: ErrorCode) -> None:
    cluster = Cluster(1, 2)
    assert cluster.ask(AllocateProducerIdsRequest(broker_id=broker, broker_epoch=-1), 0).error_code == code
