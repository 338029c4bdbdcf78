"""One exchange for each API that a controller uses, good for every version: the test is the controller.

It speaks in the broker's own controller epoch (1, as of a new cluster), and only of topics that the real
controller has never heard of.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.e2e.exchanges import exchange
from tests.e2e.world import NODE, NONE, Topic, World

EPOCH = 1
CONTROLLER = {"controller_id": NODE, "controller_epoch": EPOCH}


def leading(here: World, version: int) -> Topic:
    """A topic whose only replica this broker leads, because a LeaderAndIsr of this version says so."""
    topic = Topic(here.name("led"), here.name("led").encode()[-16:].rjust(16, b"x"))
    state = LeaderAndIsrPartitionState(
        topic_name=topic.name if version < 2 else "",
        partition_index=0,
        controller_epoch=EPOCH,
        leader=NODE,
        leader_epoch=0,
        isr=[NODE],
        partition_epoch=0,
        replicas=[NODE],
        is_new=version >= 1,
    )
    leader = LeaderAndIsrLiveLeader(broker_id=NODE, host_name=here.host, port=here.port)
    request = LeaderAndIsrRequest(
        **CONTROLLER,
        ungrouped_partition_states=[state] if version < 2 else [],
        topic_states=[LeaderAndIsrTopicState(topic_name=topic.name, topic_id=topic.id, partition_states=[state])]
        if version >= 2
        else [],
        live_leaders=[leader],
    )
    answer = here.ask(request, version)
    assert answer.error_code == NONE, answer
    return topic


@exchange(4)
def leader_and_isr(here: World, version: int) -> None:
    topic = leading(here, version)
    assert here.produce(topic, b"first").base_offset == 0


@exchange(5)
def stop_replica(here: World, version: int) -> None:
    topic = leading(here, 4)
    before = here.produce(topic, b"first").error_code
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=0, delete_partition=True)
    request = StopReplicaRequest(
        **CONTROLLER,
        delete_partitions=version < 3,
        ungrouped_partitions=[StopReplicaPartitionV0(topic_name=topic.name, partition_index=0)] if version == 0 else [],
        topics=[StopReplicaTopicV1(name=topic.name, partition_indexes=[0])] if version in (1, 2) else [],
        topic_states=[StopReplicaTopicState(topic_name=topic.name, partition_states=[state])] if version >= 3 else [],
    )
    assert here.ask(request, version).error_code == NONE
    assert (before, here.produce(topic, b"second").error_code) == (NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@exchange(6)
def update_metadata(here: World, version: int) -> None:
    topic = Topic(here.name("told"), here.name("told").encode()[-16:].rjust(16, b"y"))
    state = UpdateMetadataPartitionState(
        topic_name=topic.name if version < 5 else "",
        partition_index=0,
        controller_epoch=EPOCH,
        leader=NODE,
        leader_epoch=7,
        isr=[NODE],
        zk_version=0,
        replicas=[NODE],
    )
    endpoint = UpdateMetadataEndpoint(
        port=here.port, host=here.host, listener="PLAINTEXT" if version >= 3 else "", security_protocol=0
    )
    broker = UpdateMetadataBroker(id=NODE, endpoints=[endpoint] if version >= 1 else [], rack=None)
    request = UpdateMetadataRequest(
        **CONTROLLER,
        ungrouped_partition_states=[state] if version < 5 else [],
        topic_states=[UpdateMetadataTopicState(topic_name=topic.name, topic_id=topic.id, partition_states=[state])]
        if version >= 5
        else [],
        live_brokers=[broker],
    )
    assert here.ask(request, version).error_code == NONE
    found = here.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]), 9)
    assert [(each.leader_id, each.leader_epoch) for each in found.topics[0].partitions] == [(NODE, 7)]


@exchange(7)
def controlled_shutdown(here: World, version: int) -> None:
    """Of a broker that is not there: one that is would lead nothing any more."""
    answer = here.ask(ControlledShutdownRequest(broker_id=99), version)
    assert (answer.error_code, answer.remaining_partitions) == (ErrorCode.BROKER_NOT_AVAILABLE, [])


@exchange(67)
def allocate_producer_ids(here: World, version: int) -> None:
    """As AlterPartition: only the broker knows its epoch."""
    answer = here.ask(AllocateProducerIdsRequest(broker_id=NODE, broker_epoch=-2), version)
    assert (answer.error_code, answer.producer_id_len) == (ErrorCode.STALE_BROKER_EPOCH, 0)


@exchange(56)
def alter_partition(here: World, version: int) -> None:
    """Of a life of the broker that never was: nobody but the broker itself knows the epoch it is in."""
    topic = here.topic()
    state = AlterPartitionState(
        partition_index=0,
        leader_epoch=0,
        new_isr=[NODE] if version < 3 else [],
        new_isr_with_epochs=[BrokerState(broker_id=NODE)] if version >= 3 else [],
        partition_epoch=0,
    )
    named = AlterPartitionTopic(
        topic_name=topic.name if version < 2 else "",
        topic_id=topic.id if version >= 2 else bytes(16),
        partitions=[state],
    )
    request = AlterPartitionRequest(broker_id=NODE, broker_epoch=-2, topics=[named])
    assert here.ask(request, version).error_code == ErrorCode.STALE_BROKER_EPOCH
