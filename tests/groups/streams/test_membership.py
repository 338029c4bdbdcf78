"""Streams groups as their members meet them: join, tasks, leave, lost answers, time, failover."""

from __future__ import annotations

import pytest

from kbroker.groups.modern import State
from kbroker.groups.streams.describe import describe
from kbroker.groups.streams.tasks import Tasks
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse, ListGroupsRequest
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from tests.groups.streams.theatre import GROUP, Actor, Stage, statuses, subtopology, topology


def stage(partitions: int = 4, **settings: str) -> Stage:
    made = Stage(**settings)
    made.topic("lines", partitions)
    return made


def test_the_first_member_gets_all_tasks() -> None:
    scene = stage()
    alone = Actor(scene, "a")
    answer = alone.join()
    assert (answer.error_code, answer.member_epoch, alone.active) == (0, 2, [0, 1, 2, 3])
    assert scene.group.state is State.STABLE


def test_a_second_member_waits_for_the_first_to_let_go() -> None:
    scene = stage()
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join()
    second.join()
    assert (first.active, second.active, scene.group.state) == ([0, 1, 2, 3], [], State.RECONCILING)
    first.beat()
    assert (len(first.active), first.epoch) == (2, 2)
    second.beat()
    assert second.active == []
    first.settle()
    second.beat()
    assert sorted(first.active + second.active) == [0, 1, 2, 3]
    assert (first.epoch, second.epoch, scene.group.state) == (3, 3, State.STABLE)


def test_what_has_not_changed_is_left_out() -> None:
    alone = Actor(stage(), "a")
    alone.join()
    answer = alone.settle()
    assert (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks) == (None, None, None)


def test_a_member_that_leaves_gives_its_tasks_to_the_others() -> None:
    scene = stage()
    first, second = Actor(scene, "a"), Actor(scene, "b")
    for each in (first, second):
        each.join()
    for each in (first, first, second):
        each.settle()
    assert first.leave().member_epoch == -1
    second.settle()
    assert second.active == [0, 1, 2, 3]


def test_a_member_that_is_silent_is_removed() -> None:
    scene = stage()
    Actor(scene, "a").join()
    scene.world.wait(45_000)
    assert (scene.group.members, scene.group.state) == ({}, State.EMPTY)


def test_a_member_that_does_not_let_go_in_time_is_removed() -> None:
    scene = stage()
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join()
    second.join()
    first.beat()
    scene.world.wait(10_000)
    assert list(scene.group.members) == ["b"]
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    second.settle()
    assert second.active == [0, 1, 2, 3]


def test_an_epoch_of_the_future_or_the_far_past_is_fenced() -> None:
    scene = stage()
    alone = Actor(scene, "a")
    alone.join()
    for epoch, word in ((9, "greater"), (1, "smaller")):
        alone.epoch = epoch
        answer = alone.beat()
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert f"a {word} member epoch ({epoch}) than the one known by the group coordinator (2)" in str(
            answer.error_message
        )


def test_a_lost_answer_is_made_good() -> None:
    scene = stage()
    alone = Actor(scene, "a")
    alone.join()
    had = alone.tasks
    scene.topic("lines", 5)
    alone.settle()
    assert alone.epoch == 3
    alone.epoch, alone.tasks = 2, had  # as if it had not heard
    answer = alone.settle()
    assert (answer.error_code, answer.member_epoch) == (0, 3)
    alone.epoch, alone.tasks = 2, had
    says_all = alone._request(had)
    says_all.rebalance_timeout_ms = 60_000  # as a client does that has lost an answer
    alone._hear(says_all)
    assert alone.active == [0, 1, 2, 3, 4]


def test_missing_source_topics_are_told_and_waited_for() -> None:
    scene = Stage()
    alone = Actor(scene, "a")
    assert statuses(alone.join()) == [(1, "Source topics lines are missing.")]
    assert scene.group.state is State.NOT_READY
    scene.topic("lines", 2)
    assert statuses(alone.beat()) == []
    assert alone.active == [0, 1]


def test_internal_topics_are_asked_for_until_they_are_there() -> None:
    scene = stage(3)
    alone = Actor(scene, "a")
    answer = alone.join(topology(subtopology(keeps="counts")))
    assert statuses(answer) == [(3, "Internal topics are missing: counts")]
    assert alone.missing["counts"].partitions == 3
    scene.topic("counts", 3)
    assert alone.beat().error_code == 0
    assert (alone.active, alone.missing) == ([0, 1, 2], {})


def test_topics_that_may_not_be_created_are_named() -> None:
    scene = stage(3)
    scene.forbidden = {"counts"}
    alone = Actor(scene, "a")
    answer = alone.join(topology(subtopology(keeps="counts")))
    detail = "Internal topics are missing: counts; Unauthorized to CREATE on topics counts."
    assert (statuses(answer), alone.missing) == ([(3, detail)], {})


def test_why_topics_could_not_be_created_is_told() -> None:
    scene = stage(3)
    scene.failed = ["counts (too few brokers)"]
    answer = Actor(scene, "a").join(topology(subtopology(keeps="counts")))
    detail = "Internal topics are missing: counts; Creation failed: counts (too few brokers)."
    assert statuses(answer) == [(3, detail)]


def test_more_partitions_are_more_tasks() -> None:
    scene = stage(1)
    alone = Actor(scene, "a")
    alone.join()
    scene.topic("lines", 3)
    alone.settle()
    assert (alone.active, alone.epoch) == ([0, 1, 2], 3)


def test_standby_tasks_are_given_to_other_processes() -> None:
    scene = stage(2, group_streams_num_standby_replicas="1")
    scene.topic("counts", 2)
    shape = topology(subtopology(keeps="counts"))
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join(shape)
    second.join(shape)
    for _ in range(3):
        first.settle()
        second.settle()
    assert first.tasks == Tasks(second.tasks.standby, second.tasks.active)
    assert scene.group.state is State.STABLE


def test_a_setting_of_the_group_counts_at_once() -> None:
    scene = stage(2)
    scene.topic("counts", 2)
    shape = topology(subtopology(keeps="counts"))
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join(shape)
    second.join(shape)
    scene.world.group_configs[GROUP] = {"streams.num.standby.replicas": "1", "streams.heartbeat.interval.ms": "7000"}
    for _ in range(3):
        first.settle()
        second.settle()
    assert (len(first.tasks.standby), len(second.tasks.standby)) == (1, 1)
    assert first.settle().heartbeat_interval_ms == 7000


def test_members_are_waited_for_before_tasks_are_given() -> None:
    scene = stage(4, group_streams_initial_rebalance_delay_ms="3000")
    first, second = Actor(scene, "a"), Actor(scene, "b")
    answer = first.join()
    assert statuses(answer) == [(5, "Assignment delayed due to the configured initial rebalance delay.")]
    assert (first.epoch, first.active) == (1, [])
    second.join()
    scene.world.wait(3000)
    first.beat()
    second.beat()
    assert (len(first.active), len(second.active)) == (2, 2)


def test_target_assignments_keep_their_distance() -> None:
    scene = stage(4, group_streams_assignment_interval_ms="1000")
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join()
    assert statuses(second.join()) == [(5, "Assignment delayed due to the configured assignment interval.")]
    scene.world.wait(1000)
    assert statuses(second.beat()) == []
    assert second.epoch == 3


def test_one_member_asks_all_to_shut_down() -> None:
    scene = stage()
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join()
    second.join()
    first.beat(shutdown=True)
    (told,) = statuses(second.beat())
    assert told[0] == 4
    assert told[1].startswith("Streams group member a encountered a fatal error")
    first.leave()
    second.leave()
    third = Actor(scene, "c")
    assert statuses(third.join()) == []


def test_members_hear_of_endpoints_once() -> None:
    scene = stage(2)
    first, second = Actor(scene, "a", port=1), Actor(scene, "b", port=2)
    first.join()
    second.join()
    for _ in range(3):
        first.settle()
        second.settle()
    answer = first.settle()
    if answer.partitions_by_user_endpoint is not None:
        answer = first.settle()
    assert answer.partitions_by_user_endpoint is None
    first.endpoint_epoch = -1
    told = first.settle().partitions_by_user_endpoint
    assert told is not None
    partitions = {each.user_endpoint.port: each.active_partitions[0].partitions for each in told}
    assert partitions == {1: first.active, 2: second.active}


def test_missing_client_tags_are_told_to_those_who_know_the_word() -> None:
    scene = stage(2, group_streams_rack_aware_assignment_tags="zone,cluster")
    alone = Actor(scene, "a")
    (told,) = statuses(alone.join(tags={"zone": "z"}))
    assert told[0] == 6
    assert "[cluster]" in told[1]
    answer, _ = scene.send(alone._request(None), version=0)
    assert statuses(answer) == []


# --- static members


def test_a_static_member_keeps_its_tasks_while_it_is_away() -> None:
    scene = stage()
    first, second = Actor(scene, "a", instance="one"), Actor(scene, "b", instance="two")
    first.join()
    second.join()
    for _ in range(3):
        first.settle()
        second.settle()
    had, epoch = first.tasks, scene.group.group_epoch
    assert first.leave(for_a_while=True).member_epoch == -2
    back = Actor(scene, "c", first.process, instance="one")
    back.join()
    assert (back.tasks, scene.group.group_epoch) == (had, epoch)
    assert sorted(scene.group.members) == ["b", "c"]
    assert first.beat().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_the_place_of_a_static_member_that_is_there_is_not_taken() -> None:
    scene = stage()
    Actor(scene, "a", instance="one").join()
    answer = Actor(scene, "b", instance="one").join()
    assert answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_does_not_come_back_is_removed() -> None:
    scene = stage()
    alone = Actor(scene, "a", instance="one")
    alone.join()
    alone.leave(for_a_while=True)
    scene.world.wait(45_000)
    assert scene.group.members == {}


# --- refusals


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("member_id", " ", "MemberId can't be empty."),
        ("instance_id", "", "InstanceId can't be empty."),
        ("rack_id", "", "RackId can't be empty."),
        ("rebalance_timeout_ms", -1, "RebalanceTimeoutMs must be provided in first request."),
        ("standby_tasks", None, "StandbyTasks must be empty when (re-)joining."),
        ("topology", None, "Topology must be non-null when (re-)joining."),
        ("member_epoch", -3, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ("member_epoch", -2, "InstanceId can't be null."),
        ("member_epoch", 5, "Topology can only be provided when (re-)joining."),
    ],
)
def test_a_heartbeat_that_no_member_would_send_is_refused(field: str, value: object, why: str) -> None:
    request = StreamsGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="a",
        member_epoch=0,
        endpoint_information_epoch=-1,
        rebalance_timeout_ms=1000,
        topology=topology(),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    setattr(request, field, value)
    answer, _ = stage().send(request)
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, why)


def test_a_pattern_of_source_topics_is_refused() -> None:
    shape = topology()
    shape.subtopologies[0].source_topic_regex = ["a.*"]
    answer = Actor(stage(), "a").join(shape)
    assert answer.error_message == "Regular expressions for source topics are not supported yet."


def test_a_topology_that_loops_makes_no_group() -> None:
    scene = stage()
    shape = topology(subtopology(), subtopology("1"))
    shape.subtopologies[1].source_topics = []
    answer = Actor(scene, "a").join(shape)
    assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert GROUP not in scene.world.shard.groups


def test_another_topology_of_the_same_epoch_is_refused_and_an_older_one_is_told() -> None:
    scene = stage()
    scene.topic("other", 1)
    Actor(scene, "a").join(topology(epoch=3))
    other = Actor(scene, "b")
    answer = other.join(topology(subtopology(reads="other"), epoch=3))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Topology updates are not supported yet.",
    )
    assert statuses(other.join(topology(epoch=1)))[0] == (
        0,
        "The member's topology epoch 1 is behind the group's topology epoch 3.",
    )


def test_tasks_that_are_not_there_are_refused() -> None:
    alone = Actor(stage(2), "a")
    alone.join()
    assert alone.beat(says=Tasks(frozenset({("0", 2)}))).error_code == ErrorCode.INVALID_REQUEST
    assert alone.beat(says=Tasks(frozenset({("7", 0)}))).error_message == (
        "Subtopology 7 does not exist in the topology."
    )


def test_a_group_has_a_largest_size() -> None:
    scene = stage(2, group_streams_max_size="1")
    Actor(scene, "a").join()
    assert Actor(scene, "b").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert Actor(scene, "a").join().error_code == 0


def test_who_does_not_join_needs_a_group() -> None:
    lost = Actor(stage(), "a")
    lost.epoch = 5
    answer = lost.beat()
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Streams group {GROUP} not found.",
    )


def test_an_append_that_fails_changes_nothing() -> None:
    scene = stage()
    scene.world.refuse_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = Actor(scene, "a").join()
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in scene.world.shard.groups


# --- failover, offsets, administration


def test_another_coordinator_knows_the_same_group() -> None:
    scene = stage(4, group_streams_num_standby_replicas="1")
    scene.topic("counts", 4)
    shape = topology(subtopology(keeps="counts"))
    first, second = Actor(scene, "a", port=7), Actor(scene, "b", instance="two")
    first.join(shape, tags={"zone": "z"})
    second.join(shape)
    first.settle()
    before = describe(scene.group, with_description=False)
    scene.world.restart()
    after = describe(scene.group, with_description=False)
    for told in (before, after):  # partitions of internal topics are worked out by the next heartbeat
        assert told.topology is not None
        told.topology.subtopologies = []
    assert after == before
    for _ in range(3):
        first.settle()
        second.settle()
    assert scene.group.state is State.STABLE
    assert first.tasks == Tasks(second.tasks.standby, second.tasks.active)


def test_a_member_whose_session_ends_after_a_failover_is_removed() -> None:
    scene = stage()
    Actor(scene, "a").join()
    scene.world.restart()
    scene.world.wait(45_000)
    assert scene.group.members == {}


def commit(scene: Stage, member: str, epoch: int, partition: int = 0, version: int = 9) -> int:
    request = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                name="lines",
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=1, committed_metadata="")
                ],
            )
        ],
    )
    caller = scene.world.call(version)
    answer = scene.world.ask(scene.world.groups.commit_offsets(request, caller, scene.world.now_ms), caller)
    assert isinstance(answer, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def test_members_commit_in_their_epoch_and_in_those_since_they_had_the_task() -> None:
    scene = stage(2)
    first, second = Actor(scene, "a"), Actor(scene, "b")
    first.join()
    assert commit(scene, "a", 2) == 0
    assert commit(scene, "a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(scene, "b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(scene, "a", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    second.join()
    for _ in range(3):
        first.settle()
        second.settle()
    (kept,) = first.active
    assert first.epoch == 3
    assert commit(scene, "a", 2, kept) == 0
    assert commit(scene, "a", 2, 1 - kept) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(scene, "b", 2, 1 - kept) == ErrorCode.STALE_MEMBER_EPOCH


def test_who_reads_offsets_as_a_member_must_be_one() -> None:
    scene = stage()
    alone = Actor(scene, "a")
    alone.join()
    kind = scene.world.shard.kind_of(scene.group)
    answers = [kind.fetch_error(scene.group, *who) for who in ((None, -1), ("a", 2), ("a", 1), ("b", 2))]
    assert answers == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def delete(scene: Stage) -> int:
    caller = scene.world.call(2)
    request = DeleteGroupsRequest(groups_names=[GROUP])
    answer = scene.world.ask(scene.world.groups.delete_groups(request, caller, scene.world.now_ms), caller)
    assert isinstance(answer, DeleteGroupsResponse)
    return answer.results[0].error_code


def test_an_empty_group_is_deleted_and_leaves_nothing() -> None:
    scene = stage()
    alone = Actor(scene, "a")
    alone.join()
    assert commit(scene, "a", 2) == 0
    assert delete(scene) == ErrorCode.NON_EMPTY_GROUP
    alone.leave()
    assert delete(scene) == 0
    assert GROUP not in scene.world.shard.groups
    scene.world.restart()
    assert GROUP not in scene.world.shard.groups


def test_a_group_is_listed_by_type_and_state() -> None:
    scene = stage()
    Actor(scene, "a").join()

    def listed(**filters: list[str]) -> list[tuple[str, str, str]]:
        asked = {"states_filter": [], "types_filter": [], **filters}
        groups = scene.world.groups.list_groups(ListGroupsRequest(**asked)).groups  # type: ignore[arg-type]
        return [(each.protocol_type, each.group_state, each.group_type) for each in groups]

    assert listed(types_filter=["Streams"]) == [("streams", "Stable", "streams")]
    assert listed(states_filter=["stable"]) == [("streams", "Stable", "streams")]
    assert listed(types_filter=["classic"]) == []


def test_offsets_of_an_empty_classic_group_stay_when_it_becomes_a_streams_group() -> None:
    scene = stage()
    assert commit(scene, "", -1) == 0
    Actor(scene, "a").join()
    assert scene.group.offsets.committed[("lines", 0)].offset == 1
    assert ("lines", 0) in scene.world.reader().groups[GROUP].offsets.committed
