"""Groups over the wire and the log: who coordinates, a group's life, offsets that outlive a restart, loading."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kbroker.api.coordinator_ready import READY_WAIT_MS
from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.coordinator import Caller
from kbroker.coordinator.store import SLICE_BYTES
from kbroker.core import EXPIRED
from kbroker.log.errors import UnforeseenError
from kbroker.log.log import Log
from kbroker.log.producer_state import Origin
from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.topics import DeleteTopicsRequest
from protocol.records import Record
from protocol.records.content import build_batch
from tests.requests import produce, produced
from tests.world import Client, World

GROUP = "g"


@pytest.fixture
def world() -> World:
    """A world with a topic, and the groups' own topic loaded."""
    world = World(offsets_topic_num_partitions="3")
    world.create("t", partitions=2)
    world.client().ask(FindCoordinatorRequest(key=GROUP), 3)
    return world


def join_request(member_id: str = "", session_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"wants t")],
    )


def join(world: World, client: Client) -> Any:
    """Join as the only member. Returns: the answer, with the member's id."""
    asked = client.ask(join_request(), 7)
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    number = client.send(join_request(asked.member_id), 7)
    world.advance(10)
    return client.look()[number]


def sync(client: Client, joined: Any, assignment: bytes = b"t-0, t-1") -> Any:
    mine = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)
    request = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[mine]
    )
    return client.ask(request, 3)


def commit_request(
    offset: int, *, topic: str = "t", topic_id: bytes = ZERO_UUID, index: int = 0, joined: Any = None
) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="here")
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=joined.generation_id if joined else -1,
        member_id=joined.member_id if joined else "",
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[part])],
    )


def commit(client: Client, offset: int, version: int = 8, **asked: Any) -> int:
    ((part,),) = [each.partitions for each in client.ask(commit_request(offset, **asked), version).topics]
    code: int = part.error_code
    return code


def committed(client: Client, index: int = 0) -> int:
    request = OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[index])])
    ((part,),) = [each.partitions for each in client.ask(request, 7).topics]
    offset: int = part.committed_offset
    return offset


def groups_log(world: World) -> Log:
    log = world.partition("__consumer_offsets", world.broker.groups.runtime.partition_of(GROUP)).log
    assert log is not None
    return log


# ---- who coordinates


@pytest.mark.parametrize("key_type", [0, 1])
@pytest.mark.parametrize("version", [3, 4])
def test_the_first_one_to_ask_is_answered_when_the_topic_is_there(key_type: int, version: int) -> None:
    world = World(offsets_topic_num_partitions="50", transaction_state_log_num_partitions="50")
    client = world.client()
    asked = {"key": GROUP} if version == 3 else {"coordinator_keys": [GROUP]}
    request = FindCoordinatorRequest(key_type=key_type, **asked)  # type: ignore[arg-type]
    first = client.start(request, version)  # nothing under way goes on
    second = client.start(ApiVersionsRequest(), 2)
    assert client.look() == {}
    world.advance(0)
    answers = client.look()
    found = answers[first] if version == 3 else answers[first].coordinators[0]
    assert (found.error_code, found.node_id, answers[second].error_code) == (0, 1, 0)
    if key_type == 0:
        assert not world.broker.groups.runtime.is_loading(GROUP)


def test_who_waits_for_the_coordinators_topic_for_too_long_asks_again() -> None:
    world = World()
    client = world.client()
    first = client.start(FindCoordinatorRequest(key=GROUP), 3)
    world.clock.advance(READY_WAIT_MS)  # and the store has not answered yet
    world.core.step(EXPIRED, world.clock.now_ms())
    assert client.look()[first].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_coordinators_topic_that_cannot_be_made_is_waited_for_by_none() -> None:
    client = World(offsets_topic_replication_factor="3").client()
    assert client.ask(FindCoordinatorRequest(key=GROUP), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_this_broker(client: Client, version: int) -> None:
    if version < 4:
        found = client.ask(FindCoordinatorRequest(key=GROUP), version)
    else:
        (found,) = client.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), version).coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "localhost", 9092)


def test_clients_may_not_write_to_the_groups_topic(client: Client) -> None:
    answer = produced(client.ask(produce(b"v", topic="__consumer_offsets"), 9))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# ---- a group's life


def test_a_member_joins_syncs_beats_and_leaves(world: World, client: Client) -> None:
    joined = join(world, client)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert sync(client, joined).assignment == b"t-0, t-1"
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    assert client.ask(beat, 3).error_code == 0
    leave = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=joined.member_id)])
    assert client.ask(leave, 3).error_code == 0
    assert client.ask(beat, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_for_its_session_is_out(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    world.advance(10_000)
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    assert client.ask(beat, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_one_join_again(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    other = world.client()
    newcomer = other.ask(join_request(), 7).member_id
    waiting = other.send(join_request(newcomer), 7)
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    assert client.ask(beat, 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = client.send(join_request(joined.member_id), 7)
    world.advance(10)
    assert (other.look()[waiting].generation_id, client.look()[again].generation_id) == (2, 2)


def test_groups_are_listed_and_described(world: World, client: Client) -> None:
    sync(client, join(world, client))
    assert [(group.group_id, group.group_state) for group in client.ask(ListGroupsRequest(), 4).groups] == [
        (GROUP, "Stable")
    ]
    (described,) = client.ask(DescribeGroupsRequest(groups=[GROUP]), 5).groups
    (member,) = described.members
    assert (described.group_state, member.client_id, member.client_host) == ("Stable", "test", "/127.0.0.1")


# ---- offsets


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_commits(world: World, client: Client, version: int) -> None:
    name, topic_id = ("t", ZERO_UUID) if version < 10 else ("", world.topic_id("t"))
    assert commit(client, 7, version, topic=name, topic_id=topic_id) == 0
    assert committed(client) == 7


def test_a_retention_beyond_all_time_is_for_ever(world: World, client: Client) -> None:
    request = commit_request(7)
    request.retention_time_ms = (1 << 63) - 1
    (part,) = client.ask(request, 3).topics[0].partitions
    assert (part.error_code, committed(client)) == (0, 7)


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_fetches_what_was_committed(world: World, client: Client, version: int) -> None:
    commit(client, 7)
    if version < 8:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        answer = client.ask(OffsetFetchRequest(group_id=GROUP, topics=[topic]), version)
        parts = answer.topics[0].partitions
    else:
        asked = OffsetFetchRequestTopics(
            name="t" if version < 10 else "", topic_id=world.topic_id("t"), partition_indexes=[0, 1]
        )
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])])
        parts = client.ask(request, version).groups[0].topics[0].partitions
    assert [(part.partition_index, part.committed_offset, part.metadata) for part in parts] == [
        (0, 7, "here"),
        (1, -1, ""),
    ]


def test_all_offsets_of_a_group_are_asked_for_by_null(client: Client) -> None:
    commit(client, 7, index=1)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    (topic,) = client.ask(request, 8).groups[0].topics
    assert [(topic.name, part.partition_index, part.committed_offset) for part in topic.partitions] == [("t", 1, 7)]


def test_offsets_of_a_topic_without_an_id_are_shown_by_name_only(world: World, client: Client) -> None:
    commit(client, 7)
    unchecked = commit_request(1, topic="of-the-past")  # as if read from the log of another broker
    groups, now_ms = world.broker.groups, world.clock.now_ms()
    groups.runtime.carry_out(groups.commit_offsets(unchecked, Caller(None, 8), now_ms), now_ms)
    world.broker.facts.clear()
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    by_name, by_id = client.ask(request, 9).groups[0].topics, client.ask(request, 10).groups[0].topics
    assert [topic.name for topic in by_name] == ["t", "of-the-past"]
    assert [topic.topic_id for topic in by_id] == [world.topic_id("t")]


def test_offsets_of_partitions_that_do_not_exist_are_refused(client: Client) -> None:
    assert commit(client, 7, index=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, 7, 10, topic="", topic_id=bytes(range(16))) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_partition_that_a_known_topic_does_not_have_is_refused_as_such(world: World, client: Client) -> None:
    code = commit(client, 7, 10, topic="", topic_id=world.topic_id("t"), index=9)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_stranger_may_not_commit_for_a_group_with_members(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    assert commit(client, 7, joined=joined) == 0
    assert commit(client, 8) == ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(client) == 7


@pytest.mark.parametrize(
    ("version", "told"),
    [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND), (10, ErrorCode.GROUP_ID_NOT_FOUND)],
)
@pytest.mark.parametrize("generation", [0, 1])
def test_a_member_of_a_group_that_is_gone_is_told_so_in_words_that_its_version_has(
    world: World, client: Client, generation: int, version: int, told: ErrorCode
) -> None:
    zombie = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id="zombie")
    named = {"topic": "", "topic_id": world.topic_id("t")} if version >= 10 else {}
    assert commit(client, 7, version, joined=zombie, **named) == told
    assert committed(client) == -1


def delete_offset(client: Client, topic: str, index: int = 0) -> Any:
    asked = OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
    return client.ask(OffsetDeleteRequest(group_id=GROUP, topics=[asked]), 0)


def test_offsets_are_deleted(client: Client) -> None:
    commit(client, 7)
    assert delete_offset(client, "t").error_code == 0
    assert committed(client) == -1


@pytest.mark.parametrize(("topic", "index"), [("t", 9), ("unknown", 0)])
def test_offsets_of_partitions_that_do_not_exist_are_not_deleted(client: Client, topic: str, index: int) -> None:
    commit(client, 7)
    answer = delete_offset(client, topic, index)
    assert answer.error_code == 0
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_group_s_error_comes_before_those_of_partitions(client: Client) -> None:
    answer = delete_offset(client, "unknown")
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_a_deleted_group_has_no_offsets(client: Client) -> None:
    commit(client, 7)
    (result,) = client.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2).results
    assert (result.error_code, committed(client)) == (0, -1)


def test_a_commit_waits_for_the_high_watermark(world: World, client: Client) -> None:
    partition = world.partition("__consumer_offsets", world.broker.groups.runtime.partition_of(GROUP))
    partition.isr = (1, 2)
    number = client.send(commit_request(7), 8)
    assert client.look() == {}
    partition.isr = (1,)
    partition.advance_high_watermark()
    world.replicas.touched.append(partition)
    world.core.step(EXPIRED, world.clock.now_ms())
    assert client.look()[number].topics[0].partitions[0].error_code == 0


def test_a_commit_that_the_disk_refuses_fails(world: World, client: Client) -> None:
    world.disk.fail("write", ".log", 5)
    assert commit(client, 7) == ErrorCode.NOT_COORDINATOR


# ---- restarts


def test_offsets_and_members_are_there_after_a_restart(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    commit(client, 7, joined=joined)
    world.restart()
    world.advance(100)
    again = world.client()
    assert committed(again) == 7
    beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
    assert again.ask(beat, 3).error_code == 0


def lead_groups(world: World, *, leader: int) -> None:
    """The controller has elected a leader of the group's partition, in a new epoch."""
    partition = world.partition("__consumer_offsets", world.broker.groups.runtime.partition_of(GROUP))
    state = LeaderState(1, leader, partition.leader_epoch + 1, (leader,), 1, (1, 2))
    world.replicas.become(partition.topic, partition.index, partition.topic_id, state, is_new=False)
    world.core.step(EXPIRED, world.clock.now_ms())


def test_a_new_epoch_of_the_same_leader_leaves_groups_as_they_are(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    second = world.client()
    number = second.send(join_request(), 3)  # parked until the first one has joined again
    lead_groups(world, leader=1)
    assert second.look() == {}
    assert client.ask(join_request(joined.member_id), 7).generation_id == 2
    assert second.look()[number].generation_id == 2


def test_groups_are_loaded_again_by_a_leader_that_was_a_follower(world: World, client: Client) -> None:
    joined = join(world, client)
    sync(client, joined)
    commit(client, 7, joined=joined)
    lead_groups(world, leader=2)
    assert commit(client, 8, joined=joined) == ErrorCode.NOT_COORDINATOR
    lead_groups(world, leader=1)
    world.advance(100)
    assert committed(client) == 7
    assert commit(client, 8, joined=joined) == 0


def test_who_begins_while_a_group_s_partition_is_loaded_is_answered_when_it_is(world: World, client: Client) -> None:
    commit(client, 7)
    world.stop()
    world.disk.restart(power_loss=False)
    world.start()  # no time has passed: nothing is loaded yet
    asks, joins = world.client(), world.client()
    request = OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    asked, joined = asks.send(request, 7), joins.send(join_request(), 7)
    assert (asks.look(), joins.look()) == ({}, {})
    world.advance(0)
    assert asks.look()[asked].topics[0].partitions[0].committed_offset == 7
    assert joins.look()[joined].error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_group_is_refused_while_its_partition_is_loaded(world: World, client: Client) -> None:
    commit(client, 7)
    world.stop()
    world.disk.restart(power_loss=False)
    world.start()  # no time has passed: nothing is loaded yet
    request = commit_request(8)
    refused = world.client()
    number = refused.send(request, 8)
    assert refused.look()[number].topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.advance(100)
    assert committed(world.client()) == 7


def test_a_disk_that_takes_its_time_over_a_group_s_partition_holds_up_no_other(world: World, client: Client) -> None:
    commit(client, 7)
    world.restart()
    world.disk_is_busy = True
    world.advance(10_000)
    request = OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    waits = world.client()
    number = waits.send(request, 7)
    other = produced(world.client().ask(produce(b"v"), 9)).error_code
    world.advance(READY_WAIT_MS)
    loading = waits.look()[number].error_code
    world.disk_is_busy = False
    world.advance(100)
    assert (loading, other, committed(world.client())) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0, 7)


def test_a_disk_that_fails_while_groups_are_loaded_ends_its_directory_and_not_the_broker(
    world: World, client: Client
) -> None:
    commit(client, 7)
    world.restart()
    world.disk.fail("read", ".log", errno.EIO)
    world.advance(100)
    request = OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert world.client().ask(request, 7).error_code == ErrorCode.NOT_COORDINATOR


def test_groups_are_loaded_though_a_slice_of_them_ended_by_what_nobody_foresaw(world: World, client: Client) -> None:
    commit(client, 7)
    world.restart()
    left = [UnforeseenError("MemoryError()")]
    world.disk.fault = lambda call, path: left.pop() if left and call == "read" and path.endswith(".log") else None
    world.advance(DESCRIPTOR_RETRY_MS + 100)
    assert (left, committed(world.client())) == ([], 7)


def test_a_partition_larger_than_a_slice_is_loaded_in_several(world: World, client: Client) -> None:
    for offset in range(3000):
        commit(client, offset)
    assert groups_log(world).size > SLICE_BYTES
    world.restart()
    world.core.step(EXPIRED, world.clock.now_ms())
    world.advance(100)
    assert committed(world.client()) == 2999


def test_a_log_start_that_moves_while_groups_are_loaded_is_followed(world: World, client: Client) -> None:
    for offset in range(3000):
        commit(client, offset)
    world.restart()
    world.core.step(EXPIRED, world.clock.now_ms())  # the first slice
    groups_log(world).advance_log_start(2990)
    world.advance(100)
    assert committed(world.client()) == 2999


def test_a_batch_that_cannot_be_read_does_not_cost_the_groups_behind_it(world: World, client: Client) -> None:
    commit(client, 7)
    unreadable = build_batch([Record(0, 0, b"\0\1?", b"?")])
    partition = world.partition("__consumer_offsets", world.broker.groups.runtime.partition_of(GROUP))
    world.replicas.append(partition, memoryview(unreadable), -1, Origin.COORDINATOR, world.clock.wall_ms())
    commit(client, 8)
    world.restart()
    world.advance(100)
    assert committed(world.client()) == 8


def test_a_marker_that_was_cleaned_away_does_not_stop_groups_from_loading(world: World, client: Client) -> None:
    commit(client, 7)
    log = groups_log(world)
    cleaned = build_batch(
        [], base_offset=1, last_offset=1, max_timestamp=0, producer_id=7, transactional=True, control=True
    )
    log.append_as_follower(memoryview(cleaned), world.clock.wall_ms())
    log.set_high_watermark(2)
    commit(client, 8)
    world.restart()
    world.advance(100)
    assert committed(world.client()) == 8


def test_the_offsets_of_a_deleted_topic_are_forgotten(world: World, client: Client) -> None:
    commit(client, 7)
    number = client.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    world.advance(100)
    assert client.look()[number].responses[0].error_code == 0
    assert committed(client) == -1


def test_a_rebalance_is_one_line_of_the_log_for_who_does_not_look_closer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="kbroker.groups")
    client = world.client()
    joined = join(world, client)
    everybody = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    asked = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id, assignments=everybody
    )
    assert client.ask(asked, 3).error_code == ErrorCode.NONE
    lines = [each.getMessage() for each in caplog.records if each.levelname == "INFO"]
    assert lines == ["group g: begins generation 1 with 1 member"]
