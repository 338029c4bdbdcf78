"""In-sync sets that leaders propose (AlterPartition), on simulated machines."""

from __future__ import annotations

import pytest

from kbroker.controller.events import ShutDown
from kbroker.metadata.store import ISR_CHANGES, LeaderIsr, encode_state, state_path
from kbroker.ports import Create, SetData
from protocol.errors import ErrorCode
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
)
from tests.controller.cluster import Cluster

NEWEST = 3


@pytest.fixture
def cluster() -> Cluster:
    """t-0 of three replicas, all in sync."""
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 1, 3)
    return cluster


def propose(
    cluster: Cluster,
    isr: list[int],
    *,
    version: int = NEWEST,
    epoch: int = 0,
    partition_epoch: int = 0,
    recovery: int = 0,
    topic_id: bytes | None = None,
    broker_epoch: int | None = None,
    at: int | None = None,
) -> AlterPartitionResponse:
    """What the leader is told that wants this set. at: the broker it asks, the controller unless given."""
    leader = cluster.state("t", 0).leader
    state = AlterPartitionState(
        partition_index=0,
        leader_epoch=epoch,
        new_isr=isr if version < 3 else [],
        new_isr_with_epochs=[BrokerState(broker_id=each) for each in isr] if version >= 3 else [],
        leader_recovery_state=recovery,
        partition_epoch=partition_epoch,
    )
    own_epoch = cluster.nodes[leader].plane.control_requests.broker_epoch
    topic = AlterPartitionTopic(
        topic_name="t" if version < 2 else "",
        topic_id=(topic_id or cluster.nodes[leader].plane.cache.topic_id("t")) if version >= 2 else bytes(16),
        partitions=[state],
    )
    request = AlterPartitionRequest(
        broker_id=leader, broker_epoch=own_epoch if broker_epoch is None else broker_epoch, topics=[topic]
    )
    answer: AlterPartitionResponse = cluster.ask(request, version, at or cluster.controller.id)
    return answer


def code(answer: AlterPartitionResponse) -> ErrorCode:
    return ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)


def followers(cluster: Cluster) -> list[int]:
    return [each for each in (1, 2, 3) if each != cluster.state("t", 0).leader]


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_a_leader_may_shrink_its_in_sync_set_and_learns_the_new_partition_epoch(cluster: Cluster, version: int) -> None:
    leader = cluster.state("t", 0).leader
    (result,) = propose(cluster, [leader], version=version).topics[0].partitions
    assert (result.error_code, result.leader_id, result.isr, result.partition_epoch) == (0, leader, [leader], 1)
    assert cluster.state("t", 0) == LeaderIsr(leader, 0, (leader,), 1, 0, 1)


def test_everybody_hears_of_the_new_set(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    propose(cluster, [leader])
    known = [node.plane.cache.partition("t", 0) for node in cluster.nodes.values()]
    assert [each.isr for each in known if each is not None] == [[leader]] * 3


def test_a_proposal_over_an_older_state_is_void(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    propose(cluster, [leader])
    assert code(propose(cluster, [1, 2, 3], partition_epoch=0)) is ErrorCode.INVALID_UPDATE_VERSION


def test_what_is_in_force_already_is_granted_again(cluster: Cluster) -> None:
    leader = cluster.state("t", 0).leader
    propose(cluster, [leader])
    answer = propose(cluster, [leader], partition_epoch=0)
    assert (code(answer), answer.topics[0].partitions[0].partition_epoch) == (ErrorCode.NONE, 1)


def test_a_leader_of_an_older_epoch_is_fenced(cluster: Cluster) -> None:
    assert code(propose(cluster, [1], epoch=-1)) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(("epoch", "partition_epoch"), [(1, 0), (0, 1)])
def test_a_leader_that_knows_more_is_sent_to_look_for_a_newer_controller(
    cluster: Cluster, epoch: int, partition_epoch: int
) -> None:
    answer = propose(cluster, [1], epoch=epoch, partition_epoch=partition_epoch)
    assert code(answer) is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    ("version", "expected"), [(1, ErrorCode.OPERATION_NOT_ATTEMPTED), (2, ErrorCode.INELIGIBLE_REPLICA)]
)
def test_a_dead_replica_cannot_be_in_sync(version: int, expected: ErrorCode) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 1, 3)
    gone = next(each for each in followers(cluster) if each != cluster.controller.id)
    cluster.stop(gone)
    epochs = {"epoch": cluster.state("t", 0).leader_epoch, "partition_epoch": cluster.state("t", 0).version}
    assert code(propose(cluster, [1, 2, 3], version=version, **epochs)) is expected  # type: ignore[arg-type]


def test_a_replica_that_is_about_to_stop_does_not_come_back_into_the_set() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (1, 2, 3))
    cluster.controller.plane.controller.put(ShutDown(3, -1, lambda code, left: None))
    cluster.settle()
    now = cluster.state("t", 0)
    refused = code(propose(cluster, [1, 2, 3], epoch=now.leader_epoch, partition_epoch=now.version))
    assert (now.isr, refused, cluster.state("t", 0)) == ((1, 2), ErrorCode.INELIGIBLE_REPLICA, now)


def test_a_broker_that_is_no_replica_cannot_be_in_sync() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (1, 2))
    before = cluster.state("t", 0)
    refused = code(propose(cluster, [1, 2, 3], epoch=before.leader_epoch, partition_epoch=before.version))
    assert (refused, cluster.state("t", 0)) == (ErrorCode.INELIGIBLE_REPLICA, before)


@pytest.mark.parametrize("isr", [[1], [1, 2, 3]])
def test_nobody_goes_back_to_recovering(cluster: Cluster, isr: list[int]) -> None:
    assert code(propose(cluster, isr, recovery=1)) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("recovery", [-1, 2])
def test_a_recovery_state_that_nobody_knows_is_not_written_down(cluster: Cluster, recovery: int) -> None:
    before = cluster.state("t", 0)
    refused = code(propose(cluster, [before.leader], recovery=recovery))
    assert (refused, cluster.state("t", 0)) == (ErrorCode.INVALID_REQUEST, before)


def test_an_unknown_topic_id_is_said_to_be_unknown(cluster: Cluster) -> None:
    assert code(propose(cluster, [1], topic_id=b"?" * 16)) is ErrorCode.UNKNOWN_TOPIC_ID


def test_an_earlier_life_of_the_leader_is_refused_as_a_whole(cluster: Cluster) -> None:
    answer = propose(cluster, [1], broker_epoch=0)
    assert (answer.error_code, answer.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])


def test_only_the_controller_decides(cluster: Cluster) -> None:
    other = next(each for each in (1, 2, 3) if each != cluster.controller.id)
    assert code(propose(cluster, [1], at=other)) is ErrorCode.NOT_CONTROLLER


def test_a_set_that_changed_in_the_store_meanwhile_is_not_overwritten(cluster: Cluster) -> None:
    epoch = cluster.controller.plane.controller.epoch
    assert epoch is not None
    propose(cluster, [cluster.state("t", 0).leader])
    epoch.context.leaders["t", 0] = epoch.context.leaders["t", 0]._replace(version=0, isr=(1, 2, 3))
    assert code(propose(cluster, [2])) is ErrorCode.INVALID_UPDATE_VERSION


def test_a_leader_that_took_out_who_then_died_is_not_taken_for_one_that_knows_more() -> None:
    """As a leader of an old protocol does that writes the set itself; its notice is still to come."""
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (1, 2, 3))
    known = cluster.state("t", 0)
    smaller = SetData(state_path("t", 0), encode_state(known._replace(isr=(1, 2))), known.version)
    assert cluster.ensemble.tree.apply(smaller, 0).fault is None
    cluster.stop(3)
    now = cluster.state("t", 0)
    assert (now.isr, now.version) == ((1, 2), known.version + 1)
    assert code(propose(cluster, [1], epoch=now.leader_epoch, partition_epoch=now.version)) is ErrorCode.NONE


def test_that_the_dead_cannot_be_in_sync_is_said_once_for_all_partitions(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (1, 2, 3), (1, 2, 3), (1, 2, 3))
    cluster.stop(3)
    plane = cluster.nodes[1].plane
    states = [
        AlterPartitionState(
            partition_index=index,
            leader_epoch=cluster.state("t", index).leader_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=each) for each in (1, 2, 3)],
            partition_epoch=cluster.state("t", index).version,
        )
        for index in range(3)
    ]
    topic = AlterPartitionTopic(topic_id=plane.cache.topic_id("t"), partitions=states)
    request = AlterPartitionRequest(broker_id=1, broker_epoch=plane.control_requests.broker_epoch, topics=[topic])
    caplog.set_level("INFO")
    caplog.clear()
    answer = cluster.ask(request, 3, cluster.controller.id)
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [ErrorCode.INELIGIBLE_REPLICA] * 3
    assert caplog.messages == ["t-0 and 2 more: brokers [3] are not alive or no replicas: not in sync"]


def test_a_set_that_a_leader_of_an_old_protocol_has_written_itself_is_heard_of(cluster: Cluster) -> None:
    before = cluster.state("t", 0)
    smaller = before._replace(isr=(before.leader,))
    notice = f"{ISR_CHANGES}/isr_change_0000000000"
    for operation in (
        SetData(state_path("t", 0), encode_state(smaller)),
        Create(notice, b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"gone","partition":0}]}'),
    ):
        assert cluster.ensemble.tree.apply(operation, 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()
    told = [node.plane.cache.partition("t", 0) for node in cluster.nodes.values()]
    assert [tuple(each.isr) for each in told if each is not None] == [(before.leader,)] * 3
    assert not cluster.has(notice)
    assert code(propose(cluster, [1, 2, 3], partition_epoch=1)) is ErrorCode.NONE  # over what was written
