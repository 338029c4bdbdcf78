"""Topics in the controller's hands: new ones get replicas and leaders, growing ones more; those to be deleted are.

Procedures run by `controller.py` when a watch says that `/brokers/topics` or `/admin/delete_topics` has changed.

Where there are many new partitions, they are made some at a time, topics in turn, each time as if the topics had grown
by these: so other events have their turn in between, and whatever they are, they meet topics that are whole as far as
the context knows. Clients are told of the new partitions of a topic all at once, or they would spread records over a
part of them.

Deletion takes four steps, each of which a new controller can take up where the old one fell: brokers forget the
partitions (UpdateMetadata), replicas are stopped, then deleted (StopReplica), and when all have confirmed, the nodes
go, `/admin/delete_topics/T` last. A replica that cannot be deleted now (its broker is dead, its disk failed) is deleted
when it can be; until then the topic's nodes stay, while the living brokers have forgotten and deleted their part. A
topic that is being reassigned waits for the end of that.

Source: KafkaController and TopicDeletionManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from kbroker.controller.context import PartitionState, ReplicaState, TopicPartition
from kbroker.controller.epoch import (
    NEW_PARTITIONS_AT_ONCE,
    STEP_PARTITIONS,
    ControllerEpoch,
    check_fence,
    done,
    pieces,
)
from kbroker.controller.state_machines import (
    Replica,
    bring_online,
    elect_offline,
    transition_partitions,
    transition_replicas,
)
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
    understood,
)
from kbroker.ports import Children, Delete, Get, Random, SetData
from kbroker.timing import Touched
from protocol.errors import ErrorCode
from protocol.messages.control import StopReplicaRequest, StopReplicaResponse

log = logging.getLogger("kbroker.controller")

BEGINNING = 10
"""Beginning with the deletion of a topic, and its own broker's obeying, is as much work as so many partitions."""


# -- coming


def topics_changed(epoch: ControllerEpoch) -> Procedure[None]:
    """The set of topics is another one: bring new ones to life, forget lost ones."""
    (children,) = yield [Children(TOPICS, watch=True)]
    known = epoch.context.assignments.keys()
    for topic in known - set(children.names):
        epoch.context.remove_topic(topic)
    found = yield from read_topics(epoch, [name for name in children.names if name not in known])
    found |= yield from give_ids(epoch, found)
    at_once = _made_at_once(found)
    for some in pieces(list(found)):
        for topic in some:
            _take_in(epoch, topic, found[topic], topic in at_once)
        if len(some) < len(found):
            yield from epoch.pause()
    yield from _create(epoch, [partition for topic in found for partition in epoch.context.partitions_of(topic)])


def _take_in(epoch: ControllerEpoch, topic: str, info: TopicInfo, is_made_at_once: bool) -> None:
    """Remember a new topic, its partitions if they need not wait for their turn."""
    epoch.context.add_topic(topic, info.topic_id, dict(info.partitions) if is_made_at_once else {})
    if not is_made_at_once:
        epoch.context.unmade[topic] = dict(info.partitions)
    count = len(info.partitions)
    log.info("new topic %s with %d partition%s", topic, count, "s" * (count != 1))


def _made_at_once(found: Mapping[str, TopicInfo]) -> set[str]:
    """The topics that are not to wait for their turn: the smallest, as many as are made by one event."""
    chosen: set[str] = set()
    left = NEW_PARTITIONS_AT_ONCE
    for topic in sorted(found, key=lambda each: len(found[each].partitions)):
        left -= len(found[topic].partitions)
        if left < 0:
            break
        chosen.add(topic)
    return chosen


def read_topics(epoch: ControllerEpoch, topics: Sequence[str]) -> Procedure[dict[str, TopicInfo]]:
    """The nodes of topics, watched from now on, some at a time; those that have gone meanwhile are left out."""
    found: dict[str, TopicInfo] = {}
    for some in pieces(topics):
        answers = yield [Get(topic_path(topic), watch=True) for topic in some]
        found |= {
            topic: info
            for topic, answer in zip(some, answers, strict=True)
            if answer.fault is None and (info := understood(answer.path, answer.data, decode_topic)) is not None
        }
    return found


def give_ids(epoch: ControllerEpoch, topics: Mapping[str, TopicInfo]) -> Procedure[dict[str, TopicInfo]]:
    """Have those of these topics an id that have none: a Kafka before 2.8, or a tool of its, made them.

    Without one it is unknown of which topic a broker speaks in its answer to LeaderAndIsr. Returns: the topics as they
    are now; one that a tool writes at this moment waits for the next controller.
    """
    found: dict[str, TopicInfo] = {}
    for some in pieces([topic for topic, info in topics.items() if info.topic_id is None]):
        answers = yield [Get(topic_path(topic)) for topic in some]
        named: dict[str, TopicInfo] = {}
        writes = []
        for topic, answer in zip(some, answers, strict=True):
            info = None if answer.stat is None else understood(answer.path, answer.data, decode_topic)
            if info is not None and answer.stat is not None:
                named[topic] = TopicInfo(info.topic_id or new_topic_id(epoch.random), info.partitions)
                writes.append(SetData(answer.path, encode_topic(named[topic]), answer.stat.version))
        written = yield from epoch.write(writes)
        found |= {topic: named[topic] for topic, answer in zip(named, written, strict=True) if answer.fault is None}
    return found


def new_topic_id(random: Random) -> bytes:
    """A fresh topic id, whose text form must not begin with a dash: command lines would take it for an option."""
    while True:
        fresh = random.token(16)
        if fresh[:15] != bytes(15) and fresh[0] >> 2 != 62:  # 62 is "-" in base64url
            return fresh


def partitions_changed(epoch: ControllerEpoch, topic: str) -> Procedure[None]:
    """A topic's node was written: it may have more partitions."""
    found = yield from read_topics(epoch, [topic])
    known = epoch.context.assignments.get(topic)
    if topic not in found or known is None:
        return
    fresh = {index: each for index, each in found[topic].partitions.items() if index not in known}
    if not fresh:
        return
    if topic in epoch.context.to_delete:
        yield from _give_no_more(epoch, topic)
        return
    log.info("%s gets %d more partition%s", topic, len(fresh), "s" * (len(fresh) != 1))
    if topic in epoch.context.unmade or len(fresh) > NEW_PARTITIONS_AT_ONCE:
        epoch.context.unmade[topic] = fresh
        return
    known.update(fresh)
    yield from _create(epoch, [(topic, index) for index in fresh])


def _give_no_more(epoch: ControllerEpoch, topic: str) -> Procedure[None]:
    """A topic that is to be deleted has the partitions that were made, and keeps to them."""
    log.warning("%s gets no more partitions: it is being deleted", topic)
    context = epoch.context
    context.unmade.pop(topic, None)
    info = TopicInfo(context.topic_ids.get(topic), context.assignments[topic])
    done((yield [epoch.fenced(SetData(topic_path(topic), encode_topic(info)))]))


def make_next(epoch: ControllerEpoch) -> Procedure[None]:
    """Make some of the new partitions that wait for their turn; those left of a topic have the last."""
    context = epoch.context
    made: list[TopicPartition] = []
    told: list[TopicPartition] = []
    for topic in list(context.unmade):
        unmade = context.unmade.pop(topic)
        some = list(islice(unmade, NEW_PARTITIONS_AT_ONCE - len(made)))
        context.assignments[topic].update({index: unmade.pop(index) for index in some})
        made += [(topic, index) for index in some]
        if unmade:
            context.unmade[topic] = unmade  # at the end of the line
            context.untold.setdefault(topic, set()).update(some)
            break
        told += [(topic, index) for index in sorted(context.untold.pop(topic, ()))]
        if len(made) == NEW_PARTITIONS_AT_ONCE:
            break
    yield from _create(epoch, made, told)


def _create(
    epoch: ControllerEpoch, partitions: Sequence[TopicPartition], told: Sequence[TopicPartition] = ()
) -> Procedure[None]:
    """New partitions: replicas, then leaders. told: of which clients hear with them."""
    batch = epoch.batch()
    if told:
        batch.update_metadata(epoch.context.brokers, told)
    for some in pieces(partitions):
        replicas = [(partition, broker) for partition in some for broker in epoch.context.replicas(partition)]
        transition_partitions(epoch, some, PartitionState.NEW)
        yield from transition_replicas(epoch, batch, replicas, ReplicaState.NEW)
        yield from bring_online(epoch, batch, some, elect_offline(epoch, set()))
        yield from transition_replicas(epoch, batch, replicas, ReplicaState.ONLINE)
    yield from epoch.send(batch)


# -- going


def deletions_changed(epoch: ControllerEpoch) -> Procedure[None]:
    """A client asks for the deletion of topics."""
    (children,) = yield [Children(DELETE_TOPICS, watch=True)]
    unknown = [topic for topic in children.names if topic not in epoch.context.assignments]
    requested = [topic for topic in children.names if topic in epoch.context.assignments]
    if not epoch.configs.broker.delete_topic_enable:
        unknown, requested = list(children.names), []
    if unknown:
        check_fence((yield [epoch.fenced(Delete(delete_topic_path(topic))) for topic in unknown]))
    epoch.context.to_delete.update(requested)
    for topic in requested:
        if topic in epoch.context.unmade:
            yield from _give_no_more(epoch, topic)
    yield from resume_deletions(epoch)


def resume_deletions(epoch: ControllerEpoch, topics: Iterable[str] | None = None) -> Procedure[None]:
    """Take deletions as far as they can go now. topics: of these; None: of all that are to be deleted."""
    context = epoch.context
    work = 0  # in partitions
    for topic in sorted(context.to_delete if topics is None else context.to_delete.intersection(topics)):
        if work >= STEP_PARTITIONS:
            work = 0
            yield from epoch.pause()
        replicas = context.replicas_of_topic(topic)
        states = {context.replica_state(*replica) for replica in replicas}
        work += 1 + len(replicas)
        if states <= {ReplicaState.DELETION_DONE}:
            yield from _finish(epoch, topic)
        elif ReplicaState.DELETION_STARTED not in states and not _is_blocked(epoch, topic):
            yield from _start(epoch, topic)
            work += BEGINNING


def _is_blocked(epoch: ControllerEpoch, topic: str) -> bool:
    """Whether a topic has to wait: it is being moved, or a replica could not be deleted and nothing has changed."""
    context = epoch.context
    if context.is_moving(topic):
        log.info("the deletion of %s has to wait: it is being moved", topic)
        return True
    return topic in context.undeletable


def _start(epoch: ControllerEpoch, topic: str) -> Procedure[None]:
    """Brokers forget the topic's partitions; the replicas on living brokers are stopped and deleted."""
    context = epoch.context
    log.info("deleting topic %s", topic)
    context.deleting.add(topic)
    batch = epoch.batch()
    batch.update_metadata(context.brokers, context.partitions_of(topic))
    yield from epoch.send(batch)
    replicas = [
        replica
        for replica in context.replicas_of_topic(topic)
        if context.replica_state(*replica) is not ReplicaState.DELETION_DONE
    ]
    dead = [each for each in replicas if not context.is_replica_live(each[1], each[0], stopping=True)]
    yield from _transition(epoch, replicas, ReplicaState.OFFLINE)
    yield from _transition(epoch, dead, ReplicaState.DELETION_IMPOSSIBLE)
    gone = set(dead)
    yield from _transition(epoch, [each for each in replicas if each not in gone], ReplicaState.DELETION_STARTED)
    if dead:
        log.info("the deletion of %s has to wait for broker %d", topic, dead[0][1])
        _hold(epoch, [topic])


def _transition(epoch: ControllerEpoch, replicas: Sequence[Replica], target: ReplicaState) -> Procedure[None]:
    """Bring replicas into a state, and tell the brokers, some at a time."""
    for some in pieces(replicas):
        batch = epoch.batch()
        yield from transition_replicas(epoch, batch, some, target)
        yield from epoch.send(batch)
        if len(some) < len(replicas):
            yield from epoch.pause()


def _hold(epoch: ControllerEpoch, topics: Iterable[str]) -> None:
    """The rest of these topics' deletion waits for a broker; who waits for the brokers that live need not."""
    epoch.context.undeletable.update(topics)
    epoch.tell(Touched([TopicKey(topic) for topic in topics]))


def replicas_stopped(
    epoch: ControllerEpoch, broker: int, request: StopReplicaRequest, response: StopReplicaResponse
) -> Procedure[None]:
    """A broker has answered a StopReplica; what it was told to delete for a topic deletion is deleted, or is not."""
    codes = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    deleted: list[Replica] = []
    failed: list[Replica] = []
    for topic in request.topic_states:
        for state in topic.partition_states:
            partition = (topic.topic_name, state.partition_index)
            is_ours = epoch.context.replica_state(partition, broker) is ReplicaState.DELETION_STARTED
            if not state.delete_partition or not is_ours:
                continue
            code = response.error_code or codes.get(partition, ErrorCode.NONE)
            (failed if code else deleted).append((partition, broker))
    yield from fail_deletions(epoch, failed)
    yield from transition_replicas(epoch, epoch.batch(), deleted, ReplicaState.DELETION_DONE)
    if len(deleted) >= STEP_PARTITIONS:  # one of many such answers, after each of which all of a topic is looked at
        yield from epoch.pause()
    if deleted:
        yield from resume_deletions(epoch, {topic for (topic, _), _ in deleted})


def fail_deletions(epoch: ControllerEpoch, replicas: Iterable[Replica]) -> Procedure[None]:
    """These replicas cannot be deleted now: their topics wait until `unblock`."""
    failed = list(replicas)
    if failed:
        _hold(epoch, {topic for (topic, _), _ in failed})
        log.warning("%d replicas cannot be deleted now, %s-%d the first", len(failed), *failed[0][0])
        started = [each for each in failed if epoch.context.replica_state(*each) is ReplicaState.DELETION_STARTED]
        yield from transition_replicas(epoch, epoch.batch(), started, ReplicaState.DELETION_IMPOSSIBLE)


def unblock(epoch: ControllerEpoch, topics: Iterable[str]) -> Procedure[None]:
    """What held these topics' deletion up may be over: try again."""
    for topic in epoch.context.to_delete.intersection(topics):
        epoch.context.undeletable.discard(topic)
    yield from resume_deletions(epoch)


def _finish(epoch: ControllerEpoch, topic: str) -> Procedure[None]:
    """All replicas are deleted: take the nodes away, the request last, and forget the topic."""
    partitions = epoch.context.partitions_of(topic)
    paths = [state_path(*partition) for partition in partitions]
    paths += [partition_path(*partition) for partition in partitions]
    paths += [partitions_path(topic), topic_path(topic), config_path("topics", topic), delete_topic_path(topic)]
    for some in pieces(paths):
        yield from epoch.write([Delete(path) for path in some], may_be_refused=False)  # or a part of it would stay
    transition_partitions(epoch, partitions, PartitionState.OFFLINE)
    transition_partitions(epoch, partitions, PartitionState.NON_EXISTENT)
    epoch.context.remove_topic(topic)
    epoch.tell(Touched([TopicKey(topic)]))
    log.info("deleted topic %s", topic)


def assigned(replicas: Iterable[Sequence[int]]) -> dict[int, Assignment]:
    """Partitions 0, 1, ... with these replicas."""
    return {index: Assignment(tuple(brokers)) for index, brokers in enumerate(replicas)}
