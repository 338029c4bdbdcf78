"""Controllers that come and go, brokers that die, leaders that move: plays on simulated machines."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from kbroker.broker.facts import EndpointsChanged
from kbroker.controller import epoch
from kbroker.controller.events import ControlAnswer, ShutDown
from kbroker.metadata.store import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    LOG_DIR_EVENTS,
    Endpoint,
    broker_path,
    decode_broker,
    decode_controller,
    encode_config,
    encode_state,
    state_path,
)
from kbroker.ports import Create, Multi, Operation, SessionExpired, SetData
from protocol.errors import ErrorCode
from protocol.messages.control import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.messages.topics import ElectLeadersRequest, TopicPartitions
from tests.controller.cluster import Cluster, Node


def elect(cluster: Cluster, kind: int, topic: str | None, partitions: list[int] | None = None) -> list[ErrorCode]:
    wanted = None if topic is None else [TopicPartitions(topic=topic, partitions=partitions or [0])]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=1000)
    response = cluster.ask(request, 2, cluster.controller.id)
    return [
        ErrorCode(each.error_code) for topic in response.replica_election_results for each in topic.partition_result
    ]


# -- who is controller


def test_the_first_broker_is_controller() -> None:
    cluster = Cluster(1, 2, 3)
    assert cluster.controller.id == 1
    assert decode_controller(cluster.data(CONTROLLER)) == 1
    assert [node.plane.controller.active_id for node in cluster.nodes.values()] == [1, 1, 1]


def test_every_broker_knows_all_brokers_and_the_controller() -> None:
    cluster = Cluster(1, 2, 3)
    for node in cluster.nodes.values():
        assert node.plane.ready
        assert (sorted(node.plane.cache.brokers), node.plane.cache.controller_id) == ([1, 2, 3], 1)
    cluster.net.hosts["elsewhere"] = cluster.nodes[2]
    moved = cluster.data(broker_path(2)).replace(b"host2", b"elsewhere")
    assert cluster.ensemble.tree.apply(SetData(broker_path(2), moved), 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()
    found = [node.plane.cache.brokers[2].endpoint("PLAINTEXT") for node in cluster.nodes.values()]
    assert [each.host for each in found if each is not None] == ["elsewhere"] * 3


def test_a_broker_registers_as_an_apache_broker_reads_it() -> None:
    cluster = Cluster(7)
    node = cluster.ensemble.tree.nodes["/brokers/ids/7"]
    info = decode_broker(7, node.data, node.stat())
    assert (info.endpoints[1].listener, info.endpoints[1].host, info.endpoints[1].port) == ("INSIDE", "inside7", 9093)
    assert info.epoch == cluster.nodes[7].plane.control_requests.broker_epoch == node.czxid


def test_another_broker_takes_over_in_a_higher_epoch() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 3, 3)
    cluster.stop(1)
    assert cluster.controller.id in (2, 3)
    assert cluster.data(CONTROLLER_EPOCH) == b"2"
    assert 1 not in cluster.leaders(2, "t")
    assert cluster.create("u", 2, 2) is ErrorCode.NONE


def test_all_agree_on_the_cluster_id() -> None:
    cluster = Cluster(1, 2)
    ids = {node.plane.cluster_id for node in cluster.nodes.values()}
    assert len(ids) == 1
    assert len(ids.pop() or "") == 22


def test_a_broker_of_another_cluster_does_not_join() -> None:
    cluster = Cluster(1)
    node = cluster.start(2)
    assert node.plane.fatal == ""
    cluster.stop(2)
    stranger = Node(cluster, 3, cluster_id="A" * 22)
    stranger.start()
    cluster.settle()
    assert "A" * 22 in stranger.plane.fatal
    assert not cluster.has("/brokers/ids/3")


def test_a_broker_id_that_is_taken_is_waited_for_and_then_given_up() -> None:
    cluster = Cluster(1)
    twin = Node(cluster, 1, zookeeper_session_timeout_ms="6000")
    twin.start()
    cluster.settle()
    assert not twin.plane.fatal
    cluster.advance(11_999)
    assert not twin.plane.fatal
    cluster.advance(1)
    assert twin.plane.fatal.startswith("broker.id 1 is taken: another broker is registered with it, PLAINTEXT://host1")


def test_a_broker_id_that_a_former_life_left_behind_is_registered_once_its_session_is_over() -> None:
    cluster = Cluster(1)
    former = cluster.nodes[1]
    twin = cluster.nodes[1] = Node(cluster, 1)
    twin.start()
    cluster.settle()
    assert not twin.plane.ready
    cluster.ensemble.end_session(former.store.session)
    cluster.settle()
    assert twin.plane.ready
    cluster.advance(3_600_000)
    assert not twin.plane.fatal


def test_each_session_waits_anew_for_the_end_of_a_former_life() -> None:
    cluster = Cluster(1)
    twin = Node(cluster, 1, zookeeper_session_timeout_ms="6000")
    twin.start()
    cluster.settle()
    cluster.advance(11_000)
    twin.store.expire()
    cluster.settle()
    cluster.advance(11_999)
    assert not twin.plane.fatal
    cluster.advance(1)
    assert twin.plane.fatal.startswith("broker.id 1 is taken")


def test_addresses_that_have_changed_are_told_to_all_brokers() -> None:
    cluster = Cluster(1, 2)
    node = cluster.nodes[2]
    for host in ("inside2", "host2"):
        node.post(EndpointsChanged((Endpoint("PLAINTEXT", 0, host, 9092),)))
        cluster.settle()
        told = [each.plane.cache.node(2, "PLAINTEXT") for each in cluster.nodes.values()]
        assert told == [Endpoint("PLAINTEXT", 0, host, 9092)] * 2
    assert decode_broker(2, cluster.data(broker_path(2)), cluster.ensemble.tree.nodes[broker_path(2)].stat()).epoch == (
        node.plane.control_requests.broker_epoch
    )


def test_addresses_that_change_without_a_session_are_told_in_the_next() -> None:
    cluster = Cluster(1, 2)
    node = cluster.nodes[2]
    node.store.expire()
    node.post(EndpointsChanged((Endpoint("PLAINTEXT", 0, "inside2", 9092),)))
    cluster.settle()
    told = [each.plane.cache.node(2, "PLAINTEXT") for each in cluster.nodes.values()]
    assert told == [Endpoint("PLAINTEXT", 0, "inside2", 9092)] * 2


def test_a_broker_without_a_session_does_not_give_up_its_id() -> None:
    cluster = Cluster(1)
    twin = Node(cluster, 1, zookeeper_session_timeout_ms="6000")
    twin.start()
    cluster.settle()
    twin.post(SessionExpired())
    cluster.advance(3_600_000)
    assert not twin.plane.fatal


# -- sessions


def test_a_controller_whose_session_ends_has_to_be_elected_again() -> None:
    cluster = Cluster(1, 2)
    cluster.nodes[1].store.expire()
    cluster.settle()
    assert cluster.data(CONTROLLER_EPOCH) == b"2"
    assert cluster.controller.id in (1, 2)
    for node in cluster.nodes.values():
        assert (node.plane.ready, sorted(node.plane.cache.brokers)) == (True, [1, 2])
        told = [1, 2] if node is cluster.controller else []  # what an epoch had to say ends with it
        assert node.plane.controller.channels.brokers() == told


def test_a_lone_broker_whose_session_ends_starts_anew() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    cluster.nodes[1].store.expire()
    cluster.settle()
    assert cluster.controller.id == 1
    assert cluster.data(CONTROLLER_EPOCH) == b"2"
    assert cluster.create("u") is ErrorCode.NONE
    assert (cluster.leaders(1, "t"), cluster.leaders(1, "u")) == ([1], [1])


def test_a_broker_waits_for_the_end_of_its_earlier_session() -> None:
    cluster = Cluster(1)
    node = cluster.nodes[1]
    earlier = node.store.session
    node.kill()
    node.start()
    cluster.settle()
    assert not node.plane.ready
    cluster.ensemble.end_session(earlier)
    cluster.settle()
    assert node.plane.ready
    assert cluster.controller.id == 1


# -- fences


def test_a_write_of_an_old_controller_is_fenced() -> None:
    cluster = Cluster(1)
    cluster.ensemble.tree.apply(SetData(CONTROLLER_EPOCH, b"9"), 0)  # as a newer controller would
    assert cluster.create("t") is ErrorCode.NOT_CONTROLLER
    assert not cluster.has("/brokers/topics/t")


def test_requests_of_an_old_controller_are_refused() -> None:
    cluster = Cluster(1)
    epoch = cluster.nodes[1].plane.control_requests.controller_epoch
    requests = (
        (LeaderAndIsrRequest(controller_id=9, controller_epoch=epoch - 1, live_leaders=[]), 7),
        (StopReplicaRequest(controller_id=9, controller_epoch=epoch - 1), 4),
        (UpdateMetadataRequest(controller_id=9, controller_epoch=epoch - 1, live_brokers=[]), 8),
    )
    codes = {cluster.ask(request, version).error_code for request, version in requests}
    assert codes == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert cluster.nodes[1].plane.cache.controller_id == 1


def test_requests_for_an_earlier_life_are_refused() -> None:
    cluster = Cluster(1)
    plane = cluster.nodes[1].plane
    request = UpdateMetadataRequest(
        controller_id=1, controller_epoch=9, broker_epoch=plane.control_requests.broker_epoch - 1, live_brokers=[]
    )
    assert cluster.ask(request, 8).error_code == ErrorCode.STALE_BROKER_EPOCH


# -- brokers that die


def test_a_dead_leader_is_replaced_from_the_in_sync_replicas() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (3, 2, 1))
    cluster.stop(3)
    state = cluster.state("t")
    assert (state.leader, state.isr, cluster.leaders(1, "t")) == (2, (2, 1), [2])
    assert cluster.nodes[1].replicas.partitions["t", 0].leader_id == 2


def test_a_dead_follower_leaves_the_in_sync_replicas() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    cluster.stop(2)
    state = cluster.state("t")
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 1)


def test_the_last_replica_in_sync_stays_so_without_leading() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2,))
    cluster.stop(2)
    state = cluster.state("t")
    assert (state.leader, state.isr) == (-1, (2,))
    cluster.start(2)
    assert (cluster.state("t").leader, cluster.leaders(1, "t")) == (2, [2])


def test_a_broker_that_comes_back_follows() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.restart(2)
    (told,) = [each for each in cluster.nodes[2].inbox if isinstance(each, LeaderAndIsrRequest)]
    assert cluster.nodes[2].replicas.partitions["t", 0].leader_id == 1
    assert not told.topic_states[0].partition_states[0].is_new


def restart_unseen(cluster: Cluster, *broker_ids: int) -> None:
    """Brokers, the controller among them, die, and are back before their sessions have ended."""
    sessions = [cluster.nodes[each].store.session for each in broker_ids]
    for each in broker_ids:
        cluster.nodes[each].kill()
        cluster.nodes[each].start()
    cluster.settle()
    for session in sessions:
        cluster.ensemble.end_session(session)
    cluster.settle()


@pytest.mark.parametrize(
    ("replicas", "restarted", "leader", "isr"),
    [
        pytest.param((1, 2, 3), (1,), 2, (2, 3), id="the leader"),
        pytest.param((2, 1, 3), (1,), 2, (2, 3), id="a follower"),
        pytest.param((1, 3, 2), (1, 3), 2, (2,), id="both"),
        pytest.param((1, 3), (1, 3), 1, (1, 3), id="all in sync"),
    ],
)
def test_who_restarted_while_nobody_was_controller_is_not_taken_for_in_sync(
    replicas: tuple[int, ...], restarted: tuple[int, ...], leader: int, isr: tuple[int, ...]
) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", replicas)
    restart_unseen(cluster, *restarted)
    state = cluster.state("t")
    assert (cluster.controller.id, state.leader, state.isr, state.leader_epoch) == (2, leader, isr, 1)
    assert state.controller_epoch == 2
    assert all(cluster.leaders(each, "t") == [leader] for each in (1, 2, 3))


def test_a_single_replica_that_restarted_unseen_goes_on() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1,))
    restart_unseen(cluster, 1)
    assert cluster.state("t")[:3] == (1, 0, (1,))


def test_a_new_controller_changes_nothing_where_nobody_restarted() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (2, 3))
    cluster.stop(1)
    assert cluster.state("t")[:3] == (2, 0, (2, 3))


def test_a_lone_broker_leads_its_topics_again_after_a_restart() -> None:
    cluster = Cluster(1)
    cluster.create("t", 2)
    before = cluster.state("t")
    cluster.restart(1)
    assert cluster.leaders(1, "t") == [1, 1]
    assert cluster.state("t").leader_epoch >= before.leader_epoch


def test_unclean_elections_only_where_they_are_allowed() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("safe", (2, 1))
    cluster.assign("fast", (2, 1))
    cluster.stop(1)
    cluster.ensemble.tree.apply(
        SetData("/config/topics/fast", encode_config({"unclean.leader.election.enable": "true"})), 0
    )
    assert cluster.state("fast").isr == (2,)
    cluster.start(1)
    cluster.stop(2)
    assert (cluster.state("safe").leader, cluster.state("safe").isr) == (-1, (2,))
    fast = cluster.state("fast")
    assert (fast.leader, fast.isr, fast.recovery) == (1, (1,), 1)


def test_an_unclean_election_where_the_leader_shrank_the_set_and_died_before_it_told() -> None:
    """As one does that does not ask the controller, of an inter.broker.protocol.version below 2.7."""
    cluster = Cluster(1, 2, 3, unclean_leader_election_enable="true")
    cluster.assign("t", (2, 3))
    alone = encode_state(cluster.state("t")._replace(isr=(2,)))
    cluster.ensemble.tree.apply(SetData(state_path("t", 0), alone), 0)
    cluster.stop(2)
    state = cluster.state("t")
    assert (state.leader, state.isr, state.recovery) == (3, (3,), 1)


# -- disks


def test_partitions_of_a_failed_disk_get_other_leaders() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    node = cluster.nodes[1]
    topic_id = node.plane.cache.topic_id("t")
    error = LeaderAndIsrPartitionError(partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    response = LeaderAndIsrResponse(
        error_code=0, topics=[LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=[error])]
    )
    request = LeaderAndIsrRequest(controller_id=1, controller_epoch=1, live_leaders=[])
    node.plane.controller.put(ControlAnswer(2, request, response))
    cluster.settle()
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))
    partition = node.plane.cache.partition("t", 0)
    assert partition is not None
    assert partition.offline_replicas == [2]


def test_a_broker_says_that_a_log_directory_has_failed() -> None:
    cluster = Cluster(1, 2, log_dirs="/data,/more")
    cluster.assign("t", (2, 1))
    cluster.assign("elsewhere", (2, 1))
    cluster.assign("gone", (2,))
    cluster.nodes[2].disk.fail("rename", "/data/gone-0", errno.EIO)
    cluster.nodes[1].turn(cluster.nodes[1].plane.admin.delete, ["gone"])
    cluster.settle()
    assert cluster.nodes[2].replicas.partitions["t", 0].log is None
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))
    assert (cluster.state("elsewhere").leader, cluster.state("elsewhere").isr) == (2, (2, 1))
    assert not cluster.ensemble.tree.nodes[LOG_DIR_EVENTS].children


# -- elections on demand


def test_the_preferred_leader_is_elected_on_demand() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.restart(2)
    _join_isr(cluster, "t", (1, 2))
    assert elect(cluster, 0, "t") == [ErrorCode.NONE]
    assert cluster.leaders(1, "t") == [2]


def test_a_preferred_leader_out_of_sync_is_not_elected() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.restart(2)
    assert elect(cluster, 0, "t") == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]


def test_elections_that_are_not_needed_or_not_possible() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert elect(cluster, 0, "t", [0, 7]) == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert elect(cluster, 1, "t") == [ErrorCode.ELECTION_NOT_NEEDED]


def test_an_election_of_everything_lists_only_what_changed() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1), (1, 2))
    cluster.restart(2)
    _join_isr(cluster, "t", (1, 2))
    assert elect(cluster, 0, None) == [ErrorCode.NONE]


def test_the_leaders_of_many_are_elected_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", *[(2, 1)] * 9)
    cluster.restart(2)
    for index in range(9):
        _join_isr(cluster, "t", (1, 2), index)
    monkeypatch.setattr(epoch, "STEP_PARTITIONS", 2)
    sizes: list[int] = []
    store = cluster.controller.store
    submit = store.submit

    def count(steps: Sequence[Operation], token: object) -> None:
        sizes.append(sum(len(each.operations) - 1 if isinstance(each, Multi) else 1 for each in steps))
        submit(steps, token)

    monkeypatch.setattr(store, "submit", count)
    assert elect(cluster, 0, "t", list(range(9))) == [ErrorCode.NONE] * 9
    assert (cluster.leaders(1, "t"), max(sizes)) == ([2] * 9, 2)


def test_an_unclean_election_on_demand() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.stop(1)
    cluster.start(1)
    cluster.stop(2)
    assert cluster.state("t").leader == -1
    assert elect(cluster, 1, "t") == [ErrorCode.NONE]
    assert cluster.state("t").leader == 1


def test_only_the_controller_elects() -> None:
    cluster = Cluster(1, 2)
    cluster.create("t")
    request = ElectLeadersRequest(
        election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=1000
    )
    (topic,) = cluster.ask(request, 2, 2).replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.NOT_CONTROLLER


def test_leaders_go_back_to_the_preferred_replicas_in_time() -> None:
    cluster = Cluster(1, 2)
    cluster.replicates = True
    cluster.assign("t", (2, 1))
    cluster.restart(2)
    cluster.advance(300_000)
    assert cluster.leaders(1, "t") == [2]


def test_a_new_controller_soon_looks_at_the_balance_of_leaders() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.replicates = True
    cluster.assign("t", (2, 3))
    cluster.advance(6_000)
    cluster.restart(2)
    cluster.advance(20_000)
    assert (cluster.controller.id, cluster.leaders(3, "t")) == (1, [3])
    cluster.stop(1)
    cluster.advance(4_900)
    assert (cluster.controller.id != 1, cluster.leaders(3, "t")) == (True, [3])
    cluster.advance(200)
    assert cluster.leaders(3, "t") == [2]


def test_a_partition_that_never_had_a_leader_does_not_keep_others_from_theirs() -> None:
    """Its only replica is in a log directory that has failed, of a broker that lives."""
    cluster = Cluster(1, 2)
    cluster.replicates = True
    cluster.assign("t", (2, 1))
    cluster.restart(2)
    context = cluster.controller.plane.controller.epoch.context  # type: ignore[union-attr]
    context.failed_disks[2] = {("dark", 0)}
    cluster.assign("dark", (2,))
    assert not cluster.has(state_path("dark", 0))
    cluster.advance(300_000)
    assert cluster.leaders(1, "t") == [2]


def _join_isr(cluster: Cluster, topic: str, isr: tuple[int, ...], index: int = 0) -> None:
    """As a leader does: the in-sync set is written over the state, and a notice left."""
    state = cluster.state(topic, index)
    tree = cluster.ensemble.tree
    tree.apply(SetData(state_path(topic, index), encode_state(state._replace(isr=isr))), 0)
    notice = b'{"version":1,"partitions":[{"topic":"%s","partition":%d}]}' % (topic.encode(), index)
    tree.apply(Create("/isr_change_notification/isr_change_", notice, sequential=True), 0)
    cluster.ensemble.spread()
    cluster.settle()
    assert cluster.ensemble.tree.nodes["/isr_change_notification"].children == set()


# -- orderly stops


def test_a_broker_that_is_about_to_stop_hands_its_leaders_over() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1))
    cluster.assign("alone", (2,))
    outcomes: list[tuple[ErrorCode, list[tuple[str, int]]]] = []
    cluster.controller.plane.controller.put(ShutDown(2, -1, lambda code, left: outcomes.append((code, left))))
    cluster.settle()
    assert outcomes == [(ErrorCode.NONE, [])]
    assert (cluster.state("t").leader, cluster.state("t").isr, cluster.leaders(1, "t")) == (1, (1,), [1])
    assert cluster.nodes[2].replicas.partitions["t", 0].leader_id == 1  # it takes no more that the new leader lacks
    assert cluster.leaders(1, "alone") == [2]


def test_after_an_orderly_stop_the_replicas_of_a_broker_are_offline() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2, 1), (1, 2))
    cluster.controller.plane.controller.put(ShutDown(2, -1, lambda code, left: None))
    cluster.settle()
    cluster.stop(2)
    image = cluster.nodes[1].plane.cache.topics["t"]
    assert [state.offline_replicas for state in image.partitions.values()] == [[2], [2]]
    cluster.start(2)
    assert [state.offline_replicas for state in image.partitions.values()] == [[], []]


def test_a_stop_meant_for_an_earlier_life_is_refused() -> None:
    cluster = Cluster(1, 2)
    outcomes: list[ErrorCode] = []
    cluster.controller.plane.controller.put(ShutDown(2, 0, lambda code, left: outcomes.append(code)))
    cluster.settle()
    assert outcomes == [ErrorCode.STALE_BROKER_EPOCH]


# -- everything at once


def test_all_brokers_restart_and_everything_is_as_before() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 6, 3, retention_ms="77")
    for broker in (1, 2, 3):
        cluster.stop(broker)
    for broker in (3, 1, 2):
        cluster.start(broker)
    assert all(leader > 0 for leader in cluster.leaders(1, "t"))
    assert all(len(node.replicas.partitions) == 6 for node in cluster.nodes.values())
    assert {node.configs.topic_config("t").retention_ms for node in cluster.nodes.values()} == {77}


def test_a_broker_that_comes_hears_of_the_others_before_it_is_to_follow_them() -> None:
    """An Apache broker does not follow a leader that its UpdateMetadata has not named: it waits for the next change."""
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    node = cluster.restart(2)
    first = [type(each) for each in node.inbox]
    assert first.index(UpdateMetadataRequest) < first.index(LeaderAndIsrRequest)
