"""Partitions that move between brokers, on simulated machines; the test is the leader that takes them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kbroker.controller import reassignment
from kbroker.controller.events import AlterPartition, Rebalance
from kbroker.metadata.store import (
    ISR_CHANGES,
    PREFERRED_ELECTIONS,
    REASSIGNMENTS,
    Assignment,
    decode_reassignments,
    decode_topic,
    encode_reassignments,
    encode_state,
    encode_topic,
    state_path,
    topic_path,
)
from kbroker.ports import Create, Multi, Operation, SetData
from protocol.errors import ErrorCode
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
)
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    DeleteTopicsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.controller.cluster import Cluster

OLD, TARGET = (1, 2), (2, 3)
MOVING = Assignment((2, 3, 1), (3,), (1,))


@pytest.fixture
def cluster() -> Cluster:
    """t-0 on brokers 1 and 2 of three, led by 1."""
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", OLD)
    return cluster


def reassign(cluster: Cluster, replicas: tuple[int, ...] | None, topic: str = "t") -> ErrorCode:
    part = ReassignablePartition(partition_index=0, replicas=None if replicas is None else list(replicas))
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[part])])
    answer = cluster.ask(request, 0, cluster.controller.id)
    assert answer.error_code == ErrorCode.NONE
    cluster.settle()
    return ErrorCode(answer.responses[0].partitions[0].error_code)


def proposal(cluster: Cluster, *brokers: int) -> AlterPartitionRequest:
    """The leader says that these are in sync."""
    now = cluster.state("t", 0)
    state = AlterPartitionState(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=each) for each in brokers],
        partition_epoch=now.version,
    )
    plane = cluster.nodes[now.leader].plane
    topic = AlterPartitionTopic(topic_id=plane.cache.topic_id("t"), partitions=[state])
    return AlterPartitionRequest(broker_id=now.leader, broker_epoch=plane.control_requests.broker_epoch, topics=[topic])


def in_sync(cluster: Cluster, *brokers: int) -> ErrorCode:
    answer = cluster.ask(proposal(cluster, *brokers), 3, cluster.controller.id)
    cluster.settle()
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def assignment(cluster: Cluster) -> Assignment:
    return decode_topic(cluster.data(topic_path("t"))).partitions[0]


def holders(cluster: Cluster) -> list[int]:
    """The brokers that have a replica."""
    return [number for number, node in cluster.nodes.items() if ("t", 0) in node.replicas.partitions]


def last_told(cluster: Cluster, broker: int) -> LeaderAndIsrPartitionState:
    """What the controller, on another machine, last said of t-0."""
    told = [each for each in cluster.nodes[broker].inbox if isinstance(each, LeaderAndIsrRequest)]
    state: LeaderAndIsrPartitionState = told[-1].topic_states[0].partition_states[0]
    return state


def moving(cluster: Cluster) -> list[tuple[str, list[int]]]:
    answer = cluster.ask(ListPartitionReassignmentsRequest(topics=None), 0, cluster.controller.id)
    return [(topic.name, each.replicas) for topic in answer.topics for each in topic.partitions]


def test_a_replica_is_added_before_another_is_removed(cluster: Cluster) -> None:
    assert reassign(cluster, TARGET) is ErrorCode.NONE
    assert assignment(cluster) == MOVING
    assert moving(cluster) == [("t", [2, 3, 1])]
    assert holders(cluster) == [1, 2, 3]
    assert cluster.state("t").leader == 1


def test_the_new_replica_is_new_to_its_broker_and_the_old_ones_are_not(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    told = {number: last_told(cluster, number).is_new for number in (2, 3)}
    assert told == {2: False, 3: True}


def test_a_partition_is_where_it_is_to_be_once_the_new_replicas_are_in_sync(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    assert in_sync(cluster, 1, 2, 3) is ErrorCode.NONE
    assert assignment(cluster) == Assignment(TARGET)
    assert (cluster.state("t").leader, set(cluster.state("t").isr)) == (2, {2, 3})
    assert holders(cluster) == [2, 3]
    assert cluster.nodes[1].logs() == []
    assert moving(cluster) == []


def test_a_leader_of_an_old_protocol_may_take_the_new_replicas_in(cluster: Cluster) -> None:
    """It writes the set itself, and leaves a notice."""
    reassign(cluster, TARGET)
    now = cluster.state("t", 0)
    write(cluster, SetData(state_path("t", 0), encode_state(now._replace(isr=(1, 2, 3))), now.version))
    write(cluster, Create(f"{ISR_CHANGES}/isr_change_0", b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'))
    assert assignment(cluster) == Assignment(TARGET)


def test_a_leader_is_answered_once_though_what_follows_from_it_fails(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    node = cluster.controller
    answers: list[AlterPartitionResponse] = []
    node.plane.controller.put(AlterPartition(proposal(cluster, 1, 2, 3), 3, answers.append))
    while not answers:
        assert cluster.world.step(cluster.world.now_ms)
    assert not node.plane.controller.is_idle
    node.store.expire()
    cluster.settle()
    assert [each.error_code for each in answers] == [ErrorCode.NONE]
    assert assignment(cluster) == Assignment(TARGET)  # the next controller has seen to it


def test_everybody_hears_of_the_new_replicas(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    in_sync(cluster, 1, 2, 3)
    for node in cluster.nodes.values():
        state = node.plane.cache.partition("t", 0)
        assert state is not None
        assert (state.leader, state.replicas) == (2, [2, 3])


def test_a_leader_that_stays_keeps_leading_in_a_new_epoch(cluster: Cluster) -> None:
    before = cluster.state("t").leader_epoch
    reassign(cluster, (1, 3))
    in_sync(cluster, 1, 2, 3)
    now = cluster.state("t")
    assert (now.leader, set(now.isr)) == (1, {1, 3})
    assert now.leader_epoch > before + 1


def test_the_balance_of_leaders_waits_for_the_end(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    cluster.controller.plane.controller.put(Rebalance())
    cluster.settle()
    assert cluster.state("t").leader == 1


def test_the_balance_of_others_is_seen_to_meanwhile(cluster: Cluster) -> None:
    cluster.replicates = True
    cluster.assign("u", (2, 1))
    cluster.restart(2)
    cluster.advance(1000)
    cluster.replicates = False
    reassign(cluster, TARGET)
    assert moving(cluster)
    cluster.controller.plane.controller.put(Rebalance())
    cluster.settle()
    assert cluster.state("u").leader == 2
    assert cluster.state("t").leader == 1


def test_the_target_may_have_more_replicas_or_fewer(cluster: Cluster) -> None:
    reassign(cluster, (1, 2, 3))
    in_sync(cluster, 1, 2, 3)
    assert assignment(cluster) == Assignment((1, 2, 3))
    reassign(cluster, (3,))
    assert assignment(cluster) == Assignment((3,))
    assert (cluster.state("t").leader, cluster.state("t").isr) == (3, (3,))
    assert holders(cluster) == [3]


def test_another_order_makes_another_replica_the_preferred_one(cluster: Cluster) -> None:
    assert reassign(cluster, (2, 1)) is ErrorCode.NONE
    assert assignment(cluster) == Assignment((2, 1))
    assert cluster.state("t").leader == 1


def test_a_reassignment_can_be_called_off(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    assert reassign(cluster, None) is ErrorCode.NONE
    assert assignment(cluster) == Assignment((2, 1))  # the old order is not known any more, as in Kafka
    assert holders(cluster) == [1, 2]
    assert cluster.nodes[3].logs() == []
    assert reassign(cluster, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_later_target_takes_the_place_of_one_under_way() -> None:
    cluster = Cluster(1, 2, 3, 4)
    cluster.assign("t", OLD)
    reassign(cluster, TARGET)
    reassign(cluster, (2, 4))
    assert assignment(cluster) == Assignment((2, 4, 1), (4,), (1,))
    assert holders(cluster) == [1, 2, 4]
    assert cluster.nodes[3].logs() == []


def test_another_leads_at_once_where_a_later_target_is_without_the_leader() -> None:
    cluster = Cluster(1, 2, 3, 4)
    cluster.assign("t", OLD)
    reassign(cluster, (3, 4))
    in_sync(cluster, 1, 2, 3)
    write(cluster, Create(PREFERRED_ELECTIONS, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'))
    assert cluster.state("t").leader == 3
    assert reassign(cluster, (2, 4)) is ErrorCode.NONE
    assert (cluster.state("t").leader, set(cluster.state("t").isr)) == (2, {1, 2})
    assert all(cluster.leaders(each, "t") == [2] for each in cluster.nodes)


@pytest.mark.parametrize("target", [None, (2,)])
def test_the_only_replica_with_records_is_not_dropped(target: tuple[int, ...] | None) -> None:
    """Made while its broker was dead, and first led by the one that was to come."""
    cluster = Cluster(1, 2, 3)
    cluster.stop(3)
    cluster.write_topic("t", (3,))
    reassign(cluster, (1, 3))
    cluster.restart(2)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))
    assert reassign(cluster, target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (cluster.state("t").leader, holders(cluster)) == (1, [1])
    cluster.start(3)
    assert in_sync(cluster, 1, 3) is ErrorCode.NONE
    assert assignment(cluster) == Assignment((1, 3))


def test_a_new_controller_goes_on_with_what_is_under_way(cluster: Cluster) -> None:
    reassign(cluster, (1, 2, 3))
    cluster.assign("u", (1,))
    cluster.nodes[cluster.controller.id].store.expire()
    cluster.settle()
    assert moving(cluster) == [("t", [1, 2, 3])]
    in_sync(cluster, 1, 2, 3)
    assert assignment(cluster) == Assignment((1, 2, 3))


def test_a_topic_that_would_be_too_large_for_the_store_goes_nowhere(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.controller.epoch.TRANSACTION_BYTES", len(cluster.data(topic_path("t"))))
    assert reassign(cluster, TARGET) is ErrorCode.POLICY_VIOLATION
    write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): TARGET})))
    assert not cluster.has(REASSIGNMENTS)
    assert assignment(cluster) == Assignment(OLD)


def test_a_topic_too_large_for_the_store_may_still_arrive(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reassign(cluster, TARGET)
    monkeypatch.setattr("kbroker.controller.epoch.TRANSACTION_BYTES", 1)
    assert in_sync(cluster, 1, 2, 3) is ErrorCode.NONE
    assert assignment(cluster) == Assignment(TARGET)


def test_a_dead_broker_gets_no_new_replica(cluster: Cluster) -> None:
    cluster.stop(3)
    assert reassign(cluster, TARGET) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert assignment(cluster) == Assignment(OLD)


def test_a_broker_that_dies_on_the_way_is_waited_for(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    cluster.stop(3)
    cluster.start(3)
    assert holders(cluster) == [1, 2, 3]
    in_sync(cluster, 1, 2, 3)
    assert assignment(cluster) == Assignment(TARGET)


def test_the_old_replicas_stay_while_none_of_the_new_ones_can_lead(cluster: Cluster) -> None:
    """All that are wanted are in sync, and dead: so it may be when a controller is elected."""
    reassign(cluster, (3,))
    cluster.stop(3)
    now = cluster.state("t", 0)
    write(cluster, SetData(state_path("t", 0), encode_state(now._replace(leader=-1, isr=(3,))), now.version))
    cluster.controller.store.expire()
    cluster.settle()
    before = assignment(cluster).is_moving, holders(cluster)
    cluster.start(3)
    assert before == (True, [1, 2])
    assert (assignment(cluster), cluster.state("t", 0).leader, holders(cluster)) == (Assignment((3,)), 3, [3])


def test_a_topic_on_the_move_is_deleted_when_it_has_arrived(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    cluster.ensemble.tree.apply(Create("/admin/delete_topics/t"), 0)
    cluster.ensemble.spread()
    cluster.settle()
    assert cluster.has(topic_path("t"))
    in_sync(cluster, 1, 2, 3)
    assert not cluster.has(topic_path("t"))


def test_a_deletion_that_waits_for_a_reassignment_says_so(cluster: Cluster) -> None:
    reassign(cluster, (1, 2, 3))
    (answer,) = cluster.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5).responses
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message == (
        "The topic is marked for deletion, which waits for the reassignment of its partitions to end."
    )
    assert in_sync(cluster, 1, 2, 3) is ErrorCode.NONE
    assert not cluster.has(topic_path("t"))


def test_a_deletion_does_not_wait_for_a_dead_broker_that_the_topic_has_left() -> None:
    cluster = Cluster(1, 2, 3, 4)
    cluster.assign("t", (3, 2))
    reassign(cluster, (3, 4))
    write(cluster, Create("/admin/delete_topics/t"))
    cluster.stop(2)
    in_sync(cluster, 3, 4)
    assert not cluster.has(topic_path("t"))


def test_a_topic_grows_while_one_of_its_partitions_moves(cluster: Cluster) -> None:
    """By somebody who does not ask first: the new partition is not lost."""
    reassign(cluster, TARGET)
    content = decode_topic(cluster.data(topic_path("t")))
    grown = content._replace(partitions={**content.partitions, 1: Assignment((1,))})
    write(cluster, SetData(topic_path("t"), encode_topic(grown)))
    in_sync(cluster, 1, 2, 3)
    assert decode_topic(cluster.data(topic_path("t"))).partitions == {0: Assignment(TARGET), 1: Assignment((1,))}


def test_a_topic_that_grows_while_its_node_is_written_keeps_both(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cluster.controller.store
    submit = store.submit
    grown = decode_topic(cluster.data(topic_path("t")))
    grown = grown._replace(partitions={**grown.partitions, 1: Assignment((1,))})

    def grow_first(operations: Sequence[Operation], token: object) -> None:
        if any(isinstance(each, Multi) and each.operations[-1].path == topic_path("t") for each in operations):
            monkeypatch.undo()
            assert cluster.ensemble.tree.apply(SetData(topic_path("t"), encode_topic(grown)), 0).fault is None
        submit(operations, token)

    monkeypatch.setattr(store, "submit", grow_first)
    assert reassign(cluster, TARGET) is ErrorCode.NONE
    assert decode_topic(cluster.data(topic_path("t"))).partitions == {0: MOVING, 1: Assignment((1,))}


# -- by znode


def write(cluster: Cluster, operation: Create | SetData) -> None:
    assert cluster.ensemble.tree.apply(operation, 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_reassignment_may_be_written_into_the_store(cluster: Cluster, *, is_there: bool) -> None:
    """Also to a broker that has yet to come."""
    if not is_there:
        cluster.stop(3)
    write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): TARGET})))
    assert assignment(cluster) == MOVING
    assert decode_reassignments(cluster.data(REASSIGNMENTS)) == {("t", 0): TARGET}
    if not is_there:
        cluster.start(3)
    assert holders(cluster) == [1, 2, 3]
    in_sync(cluster, 1, 2, 3)
    assert assignment(cluster) == Assignment(TARGET)
    assert not cluster.has(REASSIGNMENTS)


def test_what_cannot_be_moved_is_taken_out_of_the_store(cluster: Cluster) -> None:
    write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): TARGET, ("none", 0): (1,), ("t", 7): (1,)})))
    assert decode_reassignments(cluster.data(REASSIGNMENTS)) == {("t", 0): TARGET}


def test_what_cannot_be_moved_is_looked_at_once_however_many_they_are(cluster: Cluster) -> None:
    cluster.assign("u", OLD)
    write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): TARGET, ("u", 0): TARGET})))
    looks = 0

    class Refused(list[tuple[str, int]]):
        def __iter__(self) -> Iterator[tuple[str, int]]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    epoch = cluster.controller.plane.controller.epoch
    assert epoch is not None
    node = cluster.controller
    node.turn(
        node.plane.start_procedure,
        reassignment._forget_requests(epoch, Refused([("t", 0)])),
        lambda _: None,
        pytest.fail,
    )
    cluster.settle()
    assert looks == 1


def test_a_second_one_is_heard_of_after_the_first(cluster: Cluster) -> None:
    for target in (TARGET, OLD):
        write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): target})))
        in_sync(cluster, 1, 2, 3)
        assert assignment(cluster) == Assignment(target)


def test_a_request_of_an_admin_takes_the_place_of_what_the_store_says(cluster: Cluster) -> None:
    write(cluster, Create(REASSIGNMENTS, encode_reassignments({("t", 0): TARGET})))
    reassign(cluster, (1, 3))
    assert not cluster.has(REASSIGNMENTS)
    assert assignment(cluster).target == (1, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"partitions":[{"topic":"t"}]}',
        b'{"version":1}',
        b'{"partitions":[{"topic":"t","partition":0,"replicas":[2,30000000000]}]}',
        b'{"partitions":[{"topic":"t","partition":0,"replicas":"23"}]}',
    ],
)
def test_what_makes_no_sense_in_the_store_moves_nothing(cluster: Cluster, content: bytes) -> None:
    for path in (REASSIGNMENTS, PREFERRED_ELECTIONS):
        write(cluster, Create(path, content))
    assert assignment(cluster) == Assignment(OLD)
    assert cluster.create("after") is ErrorCode.NONE


def test_preferred_leaders_may_be_asked_for_in_the_store(cluster: Cluster) -> None:
    reassign(cluster, (2, 1))
    for _ in range(2):
        write(cluster, Create(PREFERRED_ELECTIONS, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'))
        assert not cluster.has(PREFERRED_ELECTIONS)
    assert cluster.state("t").leader == 2


def test_replicas_that_come_and_go_are_named_to_the_brokers(cluster: Cluster) -> None:
    reassign(cluster, TARGET)
    state = last_told(cluster, 3)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ([2, 3, 1], [3], [1])


def test_a_moving_topic_that_is_to_be_deleted_gets_a_leader_again_to_arrive(cluster: Cluster) -> None:
    cluster.assign("other", (3,))
    reassign(cluster, (3,))
    for broker in (2, 1):
        cluster.stop(broker)
    write(cluster, Create("/admin/delete_topics/t"))
    assert cluster.state("t").leader == -1
    for broker in (1, 2):
        cluster.start(broker)
    in_sync(cluster, 1, 2, 3)
    assert not cluster.has(topic_path("t"))
