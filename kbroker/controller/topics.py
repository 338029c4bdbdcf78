"""Topics in the controller's hands: new ones get replicas and leaders, growing ones more, doomed ones are deleted.

Procedures run by `controller.py` when a watch says that `/brokers/topics` or `/admin/delete_topics` has changed.

Deletion takes four steps, each of which a new controller can take up where the old one fell: brokers forget the
partitions (UpdateMetadata), replicas are stopped, then deleted (StopReplica), and when all have confirmed, the nodes
go, `/admin/delete_topics/T` last. A replica that cannot be deleted now (its broker is dead, its disk failed) holds its
topic up until it can. Unlike Kafka, whose controller has the living brokers forget and delete their part at once, a
topic with a replica on a dead broker stays whole until that broker is back: its DeleteTopics times out, and it is still
served.

Source: KafkaController and TopicDeletionManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from kbroker.controller.context import PartitionState, ReplicaState, TopicPartition
from kbroker.controller.machine import Replica, bring_online, elect_offline, move_partitions, move_replicas
from kbroker.controller.term import Term, check_fence, done
from kbroker.metadata.cache import TopicKey
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    DELETE_TOPICS,
    TOPICS,
    Assignment,
    TopicInfo,
    config_path,
    decode_topic,
    delete_topic_path,
    encode_topic,
    partition_path,
    partitions_path,
    state_path,
    topic_path,
)
from kbroker.ports import Children, Delete, Get, SetData
from kbroker.timing import Touched
from protocol.errors import ErrorCode
from protocol.messages.control import StopReplicaRequest, StopReplicaResponse

log = logging.getLogger("kbroker.controller")


# -- coming


def topics_changed(term: Term) -> Procedure[None]:
    """The set of topics is another one: bring new ones to life, forget lost ones."""
    (children,) = yield [Children(TOPICS, watch=True)]
    known = term.context.assignments.keys()
    for topic in known - set(children.names):
        term.context.remove_topic(topic)
    found = yield from read_topics(term, [name for name in children.names if name not in known])
    for topic, info in found.items():
        term.context.add_topic(topic, info.topic_id, dict(info.partitions))
        count = len(info.partitions)
        log.info("new topic %s with %d partition%s", topic, count, "s" * (count != 1))
    yield from _create(term, [(topic, index) for topic, info in found.items() for index in info.partitions])


def read_topics(term: Term, topics: Sequence[str]) -> Procedure[dict[str, TopicInfo]]:
    """The nodes of topics, watched from now on; those that have gone meanwhile are left out."""
    answers = yield [Get(topic_path(topic), watch=True) for topic in topics]
    return {
        topic: decode_topic(answer.data) for topic, answer in zip(topics, answers, strict=True) if answer.fault is None
    }


def partitions_changed(term: Term, topic: str) -> Procedure[None]:
    """A topic's node was written: it may have more partitions."""
    found = yield from read_topics(term, [topic])
    known = term.context.assignments.get(topic)
    if topic not in found or known is None:
        return
    fresh = {index: each for index, each in found[topic].partitions.items() if index not in known}
    if not fresh:
        return
    if topic in term.context.to_delete:
        log.warning("%s gets no more partitions: it is being deleted", topic)
        info = TopicInfo(term.context.topic_ids.get(topic), known)
        done((yield [term.fenced(SetData(topic_path(topic), encode_topic(info)))]))
        return
    known.update(fresh)
    log.info("%s gets %d more partition%s", topic, len(fresh), "s" * (len(fresh) != 1))
    yield from _create(term, [(topic, index) for index in fresh])


def _create(term: Term, partitions: Sequence[TopicPartition]) -> Procedure[None]:
    """New partitions: replicas, then leaders."""
    batch = term.batch()
    replicas = [(partition, broker) for partition in partitions for broker in term.context.replicas(partition)]
    move_partitions(term, partitions, PartitionState.NEW)
    yield from move_replicas(term, batch, replicas, ReplicaState.NEW)
    yield from bring_online(term, batch, partitions, elect_offline(term, set()))
    yield from move_replicas(term, batch, replicas, ReplicaState.ONLINE)
    batch.send()


# -- going


def deletions_changed(term: Term) -> Procedure[None]:
    """There are new wishes to delete a topic."""
    (children,) = yield [Children(DELETE_TOPICS, watch=True)]
    unknown = [topic for topic in children.names if topic not in term.context.assignments]
    doomed = [topic for topic in children.names if topic in term.context.assignments]
    if not term.configs.broker.delete_topic_enable:
        unknown, doomed = list(children.names), []
    if unknown:
        check_fence((yield [term.fenced(Delete(delete_topic_path(topic))) for topic in unknown]))
    term.context.to_delete.update(doomed)
    yield from resume_deletions(term)


def resume_deletions(term: Term) -> Procedure[None]:
    """Take each doomed topic as far as it can go now."""
    context = term.context
    for topic in sorted(context.to_delete):
        replicas = context.replicas_of_topic(topic)
        states = {context.replica_state(*replica) for replica in replicas}
        if states <= {ReplicaState.DELETION_DONE}:
            yield from _finish(term, topic)
        elif ReplicaState.DELETION_STARTED not in states and not _is_blocked(term, topic):
            yield from _start(term, topic)


def _is_blocked(term: Term, topic: str) -> bool:
    """Whether a topic has to wait: a replica cannot be deleted, or the topic is being moved."""
    context = term.context
    moving = any(each.adding or each.removing for each in context.assignments[topic].values())
    dead = [
        (partition, broker)
        for partition, broker in context.replicas_of_topic(topic)
        if not context.is_replica_live(broker, partition, stopping=True)
    ]
    if (dead or moving) and topic not in context.undeletable:
        context.undeletable.add(topic)
        why = f"replica {dead[0][1]} of {dead[0][0][0]}-{dead[0][0][1]} is not there" if dead else "it is being moved"
        log.info("the deletion of %s has to wait: %s", topic, why)
    elif not dead and not moving:
        context.undeletable.discard(topic)
    return topic in context.undeletable


def _start(term: Term, topic: str) -> Procedure[None]:
    """Brokers forget the topic's partitions; its replicas are stopped and deleted."""
    context = term.context
    log.info("deleting topic %s", topic)
    context.deleting.add(topic)
    batch = term.batch()
    batch.update_metadata(context.brokers, context.partitions_of(topic))
    batch.send()
    replicas = [
        replica
        for replica in context.replicas_of_topic(topic)
        if context.replica_state(*replica) is not ReplicaState.DELETION_DONE
    ]
    batch = term.batch()
    yield from move_replicas(term, batch, replicas, ReplicaState.OFFLINE)
    batch.send()
    batch = term.batch()
    yield from move_replicas(term, batch, replicas, ReplicaState.DELETION_STARTED)
    batch.send()


def replicas_stopped(
    term: Term, broker: int, request: StopReplicaRequest, response: StopReplicaResponse
) -> Procedure[None]:
    """A broker has answered a StopReplica; what it was told to delete for a doomed topic is deleted, or is not."""
    codes = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    deleted: list[Replica] = []
    failed: list[Replica] = []
    for topic in request.topic_states:
        for state in topic.partition_states:
            partition = (topic.topic_name, state.partition_index)
            is_ours = term.context.replica_state(partition, broker) is ReplicaState.DELETION_STARTED
            if not state.delete_partition or not is_ours:
                continue
            code = response.error_code or codes.get(partition, ErrorCode.NONE)
            (failed if code else deleted).append((partition, broker))
    yield from fail_deletions(term, failed)
    yield from move_replicas(term, term.batch(), deleted, ReplicaState.DELETION_DONE)
    if deleted:
        yield from resume_deletions(term)


def fail_deletions(term: Term, replicas: Iterable[Replica]) -> Procedure[None]:
    """These replicas cannot be deleted now: their topics wait until `unblock`."""
    failed = list(replicas)
    for (topic, _), _ in failed:
        term.context.undeletable.add(topic)
    if failed:
        log.warning("%d replicas cannot be deleted now, %s-%d the first", len(failed), *failed[0][0])
        started = [each for each in failed if term.context.replica_state(*each) is ReplicaState.DELETION_STARTED]
        yield from move_replicas(term, term.batch(), started, ReplicaState.DELETION_IMPOSSIBLE)


def unblock(term: Term, topics: Iterable[str]) -> Procedure[None]:
    """What held these topics' deletion up may be over: try again."""
    for topic in term.context.to_delete.intersection(topics):
        term.context.undeletable.discard(topic)
    yield from resume_deletions(term)


def _finish(term: Term, topic: str) -> Procedure[None]:
    """All replicas are deleted: take the nodes away, the wish last, and forget the topic."""
    partitions = term.context.partitions_of(topic)
    paths = [state_path(*partition) for partition in partitions]
    paths += [partition_path(*partition) for partition in partitions]
    paths += [partitions_path(topic), topic_path(topic), config_path("topics", topic), delete_topic_path(topic)]
    answers = yield [term.fenced(Delete(path)) for path in paths]
    check_fence(answers)
    move_partitions(term, partitions, PartitionState.OFFLINE)
    move_partitions(term, partitions, PartitionState.NON_EXISTENT)
    term.context.remove_topic(topic)
    term.tell(Touched([TopicKey(topic)]))
    log.info("deleted topic %s", topic)


def assigned(replicas: Iterable[Sequence[int]]) -> dict[int, Assignment]:
    """Partitions 0, 1, ... with these replicas."""
    return {index: Assignment(tuple(brokers)) for index, brokers in enumerate(replicas)}
