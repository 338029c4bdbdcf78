"""What a change of the metadata log means for this broker: the requests that a controller on ZooKeeper would send it.

Called by `quorum_plane.py` with the image of the cluster after some records, and what they have changed. A delta comes
to a StopReplica, a LeaderAndIsr and an UpdateMetadata, in this order: what is not wanted here any more goes first,
since a topic may be deleted and created again by one change; clients are told of a leader once it leads. They are
obeyed by `controller_requests.py`, as those that come over the network are. It changes nothing and keeps nothing.

Source: BrokerMetadataPublisher, LocalReplicaChanges and ReplicaManager.applyDelta of Apache Kafka 4.3, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kbroker.metadata.cache import LEADER_DURING_DELETE
from protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from kbroker.broker.controller_requests import ControlRequest
    from kbroker.quorum.image import MetadataDelta, MetadataImage
    from protocol.messages.metadata_records import PartitionRecord, RegisterBrokerRecord

    Key: TypeAlias = tuple[bytes, int]
    """Topic id and index."""

ANY_LIFE = -1  # of a broker epoch: what the log says is meant for the broker as it is
ANY_EPOCH = -1  # of a leader: the replica goes in any of them


def live_brokers(image: MetadataImage) -> dict[int, RegisterBrokerRecord]:
    """Those that are registered and not fenced."""
    return {broker_id: each for broker_id, each in image.brokers.items() if not each.fenced}


def requests_of(
    image: MetadataImage, delta: MetadataDelta, broker_id: int, epoch: int, *, is_first: bool
) -> list[ControlRequest]:
    """What this broker is to do, in order; the last one is an UpdateMetadata, which is there even if nothing changed.

    epoch: of the quorum's leader. is_first: whether nothing was published before in this life of the process: then
    replicas may have logs though the delta has them as new.
    """
    stops = _stop_replica(image, delta, broker_id, epoch)
    roles = _leader_and_isr(image, delta, broker_id, epoch, is_first=is_first)
    return [*stops, *roles, _update_metadata(image, delta, broker_id, epoch)]


def _changed(image: MetadataImage, delta: MetadataDelta) -> Iterator[tuple[Key, PartitionRecord | None]]:
    """Each partition of the delta, as it is now; None if it is gone."""
    for topic_id, index in delta.partitions:
        yield (topic_id, index), image.partition(topic_id, index)


def _topic_name(image: MetadataImage, delta: MetadataDelta, topic_id: bytes) -> str:
    topic = image.topics.get(topic_id) or delta.topics[topic_id]
    assert topic is not None, topic_id
    return topic.name


def _grouped(keys: Iterable[Key]) -> dict[bytes, list[int]]:
    """Indices by topic id."""
    found: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        found.setdefault(topic_id, []).append(index)
    return found


# -- replicas of this broker


def _stop_replica(
    image: MetadataImage, delta: MetadataDelta, broker_id: int, epoch: int
) -> Iterator[StopReplicaRequest]:
    """Replicas that were here, and are not to be any more: their logs go."""
    gone = [
        key
        for key, now in _changed(image, delta)
        if (before := delta.partitions[key]) is not None
        and broker_id in before.replicas
        and (now is None or broker_id not in now.replicas)
    ]
    if gone:
        topics = [
            StopReplicaTopicState(
                topic_name=_topic_name(image, delta, topic_id),
                partition_states=[
                    StopReplicaPartitionState(partition_index=index, leader_epoch=ANY_EPOCH, delete_partition=True)
                    for index in indices
                ],
            )
            for topic_id, indices in _grouped(gone).items()
        ]
        yield StopReplicaRequest(controller_id=-1, controller_epoch=epoch, broker_epoch=ANY_LIFE, topic_states=topics)


def _leader_and_isr(
    image: MetadataImage, delta: MetadataDelta, broker_id: int, epoch: int, *, is_first: bool
) -> Iterator[LeaderAndIsrRequest]:
    """Replicas that are here, or are to be, with what has changed of them."""
    ours = {key: now for key, now in _changed(image, delta) if now is not None and broker_id in now.replicas}
    if not ours:
        return

    def state(key: Key) -> LeaderAndIsrPartitionState:
        now, before = ours[key], delta.partitions[key]
        is_new = not is_first and (before is None or broker_id not in before.replicas)
        return LeaderAndIsrPartitionState(
            partition_index=key[1],
            controller_epoch=epoch,
            leader=now.leader,
            leader_epoch=now.leader_epoch,
            isr=now.isr,
            partition_epoch=now.partition_epoch,
            replicas=now.replicas,
            adding_replicas=now.adding_replicas,
            removing_replicas=now.removing_replicas,
            is_new=is_new,
            leader_recovery_state=now.leader_recovery_state,
        )

    topics = [
        LeaderAndIsrTopicState(
            topic_name=image.topics[topic_id].name,
            topic_id=topic_id,
            partition_states=[state((topic_id, index)) for index in indices],
        )
        for topic_id, indices in _grouped(ours).items()
    ]
    yield LeaderAndIsrRequest(
        controller_id=-1, controller_epoch=epoch, broker_epoch=ANY_LIFE, topic_states=topics, live_leaders=[]
    )


# -- the image of the cluster


def _update_metadata(image: MetadataImage, delta: MetadataDelta, broker_id: int, epoch: int) -> UpdateMetadataRequest:
    live = live_brokers(image)
    changed = dict.fromkeys(delta.partitions)
    turned = {each for each, before in delta.brokers.items() if _was_live(before) != (each in live)}
    if turned:  # who is fenced, or not any more, is in no record of the partitions that it is out of sync in
        changed |= {
            (topic_id, index): None
            for topic_id, topic in image.topics.items()
            for index, partition in topic.partitions.items()
            if not turned.isdisjoint(partition.replicas)
        }
    topics = [
        UpdateMetadataTopicState(
            topic_name=_topic_name(image, delta, topic_id),
            topic_id=topic_id,
            partition_states=[_partition_state(image.partition(topic_id, index), index, epoch, live) for index in some],
        )
        for topic_id, some in sorted(_grouped(changed).items(), key=lambda item: item[0] in image.topics)
    ]
    return UpdateMetadataRequest(
        controller_id=broker_id if broker_id in live else min(live, default=-1),  # any broker: each passes on to it
        controller_epoch=epoch,
        broker_epoch=ANY_LIFE,
        topic_states=topics,
        live_brokers=[_broker(each) for each in live.values()],
    )


def _was_live(before: RegisterBrokerRecord | None) -> bool:
    return before is not None and not before.fenced


def _partition_state(
    partition: PartitionRecord | None, index: int, epoch: int, live: Collection[int]
) -> UpdateMetadataPartitionState:
    """None: of a partition that is gone."""
    if partition is None:
        return UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=epoch,
            leader=LEADER_DURING_DELETE,
            leader_epoch=-1,
            isr=[],
            zk_version=-1,
            replicas=[],
        )
    return UpdateMetadataPartitionState(
        partition_index=index,
        controller_epoch=epoch,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        zk_version=partition.partition_epoch,
        replicas=partition.replicas,
        offline_replicas=[each for each in partition.replicas if each not in live],
    )


def _broker(record: RegisterBrokerRecord) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=record.broker_id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=each.port, host=each.host, listener=each.name, security_protocol=each.security_protocol
            )
            for each in record.end_points
        ],
        rack=record.rack,
    )
