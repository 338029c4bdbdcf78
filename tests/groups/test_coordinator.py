"""What plays do not tell: hashing, record bytes, versions of answers, transactions, bounds."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.limits import GROUP_ID_LENGTH, PENDING_MEMBERS_PER_GROUP, PROTOCOLS_PER_MEMBER
from kbroker.coordinator import Caller, Reply, java_hash, partition_for
from kbroker.groups import records
from kbroker.groups.classic_group import MAY_FOLLOW, ClassicGroup, State, subscribed_topics
from kbroker.groups.offsets import Commit
from kbroker.groups.records import GroupRecord, OffsetRecord
from kbroker.groups.shard import TOMBSTONES_PER_BATCH
from protocol.errors import ErrorCode
from protocol.message import DecodeError
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.stored import GroupMetadataValue, MemberMetadata, encode_versioned
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.records.batch import unpack_header
from tests.groups.theatre import subscription
from tests.groups.world import World

NONE = ErrorCode.NONE


def join_request(group_id: str = "g", member_id: str = "", protocols: int = 1, **given: object) -> JoinGroupRequest:
    names = ["range", *(f"assignor-{number}" for number in range(1, protocols))]
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription(["t"])) for name in names],
        **given,  # type: ignore[arg-type]
    )


def joined(world: World, request: JoinGroupRequest, version: int = 9) -> JoinGroupResponse:
    caller = world.call(version)
    response = world.ask(world.groups.join(request, caller, world.now_ms), caller)
    assert isinstance(response, JoinGroupResponse)
    return response


# --- where a group belongs


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("ä€", 15432), ("😀", 1772899)],
)
def test_hash_is_that_of_java_strings(text: str, value: int) -> None:
    assert java_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("g", 3), ("readers", 28), ("connect-cluster", 13), ("my-group", 12), ("test-consumer-group", 31)],
)
def test_group_belongs_to_the_partition_in_which_apache_brokers_keep_it(group_id: str, partition: int) -> None:
    """The last two have negative hashes; partitions as printed by Utils.abs(hashCode) % 50 of kafka-clients 3.9.1."""
    assert partition_for(group_id, 50) == partition


def test_most_negative_hash_has_a_partition() -> None:
    assert partition_for("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 100))
def test_every_group_has_a_partition(group_id: str, partitions: int) -> None:
    assert 0 <= partition_for(group_id, partitions) < partitions


def test_group_of_a_partition_led_elsewhere_is_not_coordinated_here() -> None:
    world = World()
    world.runtime.resize(50)
    mine = next(name for name in "abcdefh" if world.runtime.partition_of(name) != 0)
    assert world.groups.fetch_offsets(mine, None) is ErrorCode.NOT_COORDINATOR
    world.runtime.elected(world.runtime.partition_of(mine), 1, world.now_ms)
    world.load()
    assert world.groups.fetch_offsets(mine, None) == {}


# --- states


def test_dead_is_the_end() -> None:
    assert MAY_FOLLOW[State.DEAD] == set()


def test_every_state_may_die() -> None:
    assert all(State.DEAD in after for state, after in MAY_FOLLOW.items() if state is not State.DEAD)


# --- records


def test_offset_is_written_as_kafka_writes_it() -> None:
    key, value = records.encode(OffsetRecord("g", ("t", 7), Commit(5, 3, "m", 1_000)))
    assert key == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\7"
    assert value == b"\0\3" + (5).to_bytes(8, "big") + (3).to_bytes(4, "big") + b"\0\1m" + (1_000).to_bytes(8, "big")


def test_offset_with_its_own_expiry_is_written_in_version_1() -> None:
    key, value = records.encode(OffsetRecord("g", ("t", 7), Commit(5, 3, "m", 1_000, 2_000)))
    assert value is not None
    assert value[:2] == b"\0\1"
    assert records.decode(key, value) == OffsetRecord("g", ("t", 7), Commit(5, -1, "m", 1_000, 2_000))


@pytest.mark.parametrize("record", [OffsetRecord("g", ("t", 7), None), GroupRecord("g", None)])
def test_tombstone_is_read_as_it_was_written(record: records.GroupsRecord) -> None:
    key, value = records.encode(record)
    assert (value, records.decode(key, value)) == (None, record)


def test_key_of_a_newer_kind_is_passed_by() -> None:
    assert records.decode(b"\0\x63rest", None) is None


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1", b"\0\2\0\5g"])
def test_broken_key_is_a_decode_error(key: bytes) -> None:
    with pytest.raises(DecodeError):
        records.decode(key, None)


OFFSET_KEY = records.encode(OffsetRecord("g", ("t", 7), None))[0]
GROUP_KEY = records.encode(GroupRecord("g", None))[0]


@given(st.binary())
def test_any_value_is_read_or_refused(value: bytes) -> None:
    for key in (OFFSET_KEY, GROUP_KEY):
        with suppress(DecodeError):
            records.decode(key, value)


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription([]), set()),
        (subscription(["a", "b", "a"]), {"a", "b"}),
        (b"\0\3" + subscription(["a"])[2:] + b"newer fields", {"a"}),
        (b"", None),
        (b"\0\0\xff\xff\xff\xff", None),
        (b"\0\0\0\0\0\1\0\5ab", None),
        (b"\0\0\x7f\xff\xff\xff", None),
        (b"\xff\xff\0\0\0\0", None),
        (b"\0\0\0\0\0\1\0\1\xff", {"\ufffd"}),
    ],
)
def test_topics_are_read_from_the_beginning_of_a_subscription(metadata: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics(metadata) == topics


@pytest.mark.parametrize(
    ("leader", "members", "protocol"), [("a", "aa", "range"), ("b", "a", "range"), ("a", "a", None)]
)
def test_group_that_contradicts_itself_is_a_decode_error(leader: str, members: str, protocol: str | None) -> None:
    member = {"client_id": "", "client_host": "", "session_timeout": 1, "subscription": b"", "assignment": b""}
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol=protocol,
        leader=leader,
        members=[MemberMetadata(member_id=each, **member) for each in members],  # type: ignore[arg-type]
    )
    with pytest.raises(DecodeError):
        records.decode(GROUP_KEY, encode_versioned(value, 3))


def test_members_beside_a_static_one_whose_instance_id_is_empty_are_loaded_as_themselves() -> None:
    world = World()
    static = joined(world, join_request(group_instance_id=""), version=6).member_id
    stored(world, static)
    call = world.call(3)
    world.run(world.groups.join(join_request(), call, world.now_ms))
    joined(world, join_request(member_id=static, group_instance_id=""), version=6)
    dynamic = world.replies[call.call].member_id  # type: ignore[attr-defined]
    stored(world, static, generation=2)
    world.restart()
    group = world.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert {key: each.member_id for key, each in group.members.items()} == {
        static: static,
        dynamic: dynamic,
    }


def stored(world: World, leader: str, generation: int = 1) -> None:
    """The static leader brings an assignment."""
    request = SyncGroupRequest(
        group_id="g", generation_id=generation, member_id=leader, group_instance_id="", assignments=[]
    )
    answer = world.ask(world.groups.sync(request, caller := world.call(3), world.now_ms), caller)
    assert isinstance(answer, SyncGroupResponse), answer
    assert answer.error_code == NONE


@given(st.binary())
def test_any_metadata_is_a_subscription_or_not(metadata: bytes) -> None:
    subscribed_topics(metadata)


# --- versions of requests and answers


def test_refused_join_has_an_empty_protocol_name_for_old_clients_and_none_for_new_ones() -> None:
    world = World()
    answers = [joined(world, join_request(member_id="nobody"), version) for version in (6, 7)]
    assert [answer.protocol_name for answer in answers] == ["", None]
    for answer, version in zip(answers, (6, 7), strict=True):
        assert JoinGroupResponse.decode(answer.encode(version), version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_of_version_5_without_protocols_is_inconsistent() -> None:
    world = World()
    caller = world.call(5)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id="x", assignments=[])
    answer = world.ask(world.groups.sync(request, caller, world.now_ms), caller)
    assert isinstance(answer, SyncGroupResponse)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leave_before_version_3_answers_for_the_one_member() -> None:
    world = World()
    member_id = joined(world, join_request(), version=3).member_id
    codes = []
    for _ in range(2):
        caller = world.call(2)
        request = LeaveGroupRequest(group_id="g", member_id=member_id)
        answer = world.ask(world.groups.leave(request, caller, world.now_ms), caller)
        assert isinstance(answer, LeaveGroupResponse)
        codes.append((ErrorCode(answer.error_code), answer.members))
    assert codes == [(NONE, []), (ErrorCode.UNKNOWN_MEMBER_ID, [])]


def test_unknown_group_is_dead_for_old_clients_and_not_found_for_new_ones() -> None:
    groups = World().groups
    assert groups.describe_group("g", 5).group_state == "Dead"
    assert groups.describe_group("g", 5).error_code == NONE
    assert groups.describe_group("g", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_are_listed_by_type_whatever_its_case() -> None:
    world = World()
    joined(world, join_request(), version=3)
    found = [
        [each.group_id for each in world.groups.list_groups(ListGroupsRequest(types_filter=types)).groups]
        for types in ([], ["Classic"], ["consumer"], ["nonsense"])
    ]
    assert found == [["g"], ["g"], [], []]


@pytest.mark.parametrize("group_id", ["", "g"])
def test_only_offsets_may_live_under_the_empty_id(group_id: str) -> None:
    world = World()
    wanted = ErrorCode.INVALID_GROUP_ID if not group_id else ErrorCode.MEMBER_ID_REQUIRED
    assert joined(world, join_request(group_id)).error_code == wanted
    assert committed(world, commit_request(group_id)) == [NONE]


# --- commits


def commit_request(group_id: str = "g", partitions: int = 1, **given: object) -> OffsetCommitRequest:
    each = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=5, committed_metadata=None)
        for index in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id=group_id,
        topics=[OffsetCommitRequestTopic(name="t", partitions=each)],
        **given,  # type: ignore[arg-type]
    )


def committed(world: World, request: OffsetCommitRequest, **given: dict[tuple[str, int], ErrorCode]) -> list[ErrorCode]:
    caller = world.call(8)
    answer = world.ask(world.groups.commit_offsets(request, caller, world.now_ms, **given), caller)
    assert isinstance(answer, OffsetCommitResponse)
    return [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]


def test_partitions_refused_by_the_handler_keep_their_code_and_their_place() -> None:
    world = World()
    refused = {("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert committed(world, commit_request(partitions=2), refused=refused) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        NONE,
    ]
    assert world.groups.fetch_offsets("g", None) == {("t", 1): (Commit(5, -1, "", world.now_ms, -1, 0), NONE)}


def test_commit_is_as_old_as_a_client_of_version_1_says() -> None:
    world = World()
    request = commit_request()
    request.topics[0].partitions[0].commit_timestamp = 5
    assert committed(world, request) == [NONE]
    assert world.groups.fetch_offsets("g", None) == {("t", 0): (Commit(5, -1, "", 5, -1, 0), NONE)}


def test_an_offset_is_stored_with_the_id_of_its_topic() -> None:
    key, value = records.encode(OffsetRecord("g", ("t", 7), Commit(5, 3, "m", 1_000, topic_id=b"i" * 16)))
    assert value is not None
    assert (value[:2], b"i" * 16 in value) == (b"\0\4", True)
    assert records.decode(key, value) == OffsetRecord("g", ("t", 7), Commit(5, 3, "m", 1_000, topic_id=b"i" * 16))


def test_offsets_of_a_topic_that_was_made_again_stay_when_this_broker_hears_late_that_the_first_is_gone() -> None:
    world = World()
    world.topics(t=2)
    request = commit_request(partitions=2)
    committed(world, request)
    request.topics[0].topic_id = world.image.topic_id("t")
    request.topics[0].partitions.pop()
    committed(world, request)
    world.delete_partitions(("t", 0), ("t", 1))
    assert world.groups.committed_places("g") == [("t", 0)]


def test_group_with_very_many_offsets_is_deleted_in_several_batches() -> None:
    world = World()
    committed(world, commit_request(partitions=2 * TOMBSTONES_PER_BATCH + 1))
    before = len(world.store.batches[0])
    caller = world.call(2)
    answer = world.ask(
        world.groups.delete_groups(DeleteGroupsRequest(groups_names=["g"]), caller, world.now_ms), caller
    )
    assert isinstance(answer, DeleteGroupsResponse)
    sizes = [unpack_header(each, 0)[12] for each in world.store.batches[0][before:]]
    assert (answer.results[0].error_code, sizes) == (NONE, [TOMBSTONES_PER_BATCH, TOMBSTONES_PER_BATCH, 1])


def test_group_whose_tombstones_are_refused_keeps_what_the_log_has_of_it() -> None:
    world = World()
    committed(world, commit_request(partitions=2))
    world.refuse_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    caller = world.call(2)
    answer = world.ask(
        world.groups.delete_groups(DeleteGroupsRequest(groups_names=["g"]), caller, world.now_ms), caller
    )
    assert isinstance(answer, DeleteGroupsResponse)
    assert answer.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(fetched(world)) == 2


def test_reader_sees_an_offset_until_its_tombstone_is_committed() -> None:
    world = World()
    committed(world, commit_request())
    world.hold_appends()
    world.run(world.groups.delete_groups(DeleteGroupsRequest(groups_names=["g"]), world.call(2), world.now_ms))
    before = fetched(world)
    world.commit_appends()
    assert (len(before), len(fetched(world))) == (1, 0)


def test_group_deleted_while_its_tombstone_is_on_its_way_is_not_there() -> None:
    world = World()
    committed(world, commit_request())
    world.hold_appends()
    request = DeleteGroupsRequest(groups_names=["g"])
    world.run(world.groups.delete_groups(request, world.call(2), world.now_ms))
    caller = world.call(2)
    answer = world.ask(world.groups.delete_groups(request, caller, world.now_ms), caller)
    assert isinstance(answer, DeleteGroupsResponse)
    assert answer.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def fetched(world: World) -> dict[tuple[str, int], tuple[Commit, ErrorCode]]:
    found = world.groups.fetch_offsets("g", None)
    assert isinstance(found, dict)
    return found


def test_refused_partition_keeps_its_code_when_the_append_fails() -> None:
    world = World()
    world.refuse_appends(ErrorCode.NOT_ENOUGH_REPLICAS)
    caller = world.call(8)
    refused = {("t", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    request = commit_request(partitions=2)
    answer = world.ask(world.groups.commit_offsets(request, caller, world.now_ms, refused), caller)
    assert isinstance(answer, OffsetCommitResponse)
    assert [each.error_code for each in answer.topics[0].partitions] == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]


def test_commit_without_partitions_is_answered_at_once() -> None:
    world = World()
    world.hold_appends()
    assert committed(world, OffsetCommitRequest(group_id="g", topics=[])) == []


def test_commit_that_the_next_leader_may_not_have_is_not_acknowledged() -> None:
    world = World()
    world.hold_appends()
    caller = world.call(8)
    assert world.ask(world.groups.commit_offsets(commit_request(), caller, world.now_ms), caller) is None
    world.resign()
    answer = world.replies[caller.call]
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_later_of_two_commits_on_their_way_counts_once_it_is_committed_itself() -> None:
    world = World()
    world.hold_appends()
    for offset in (1, 2):
        request = commit_request()
        request.topics[0].partitions[0].committed_offset = offset
        world.run(world.groups.commit_offsets(request, world.call(8), world.now_ms))
    world.store.marks[0] = 1
    world.runtime.advanced(0, 1, world.now_ms)
    first = (offset_of(world), offset_of(world, stable=True))
    world.commit_appends()
    assert (first, offset_of(world, stable=True)) == ((1, ErrorCode.UNSTABLE_OFFSET_COMMIT), 2)


def lead_anew(world: World, high_watermark: int) -> None:
    """Another replica takes over: it has the whole log, and has not heard how far it is committed."""
    world.store.marks[0] = high_watermark
    world.groups = world.coordinator()
    world.elect()
    world.load()


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("known", [0, 1])
def test_commits_above_the_high_watermark_of_a_new_leader_are_neither_told_nor_denied(
    known: int, *, stable: bool
) -> None:
    world = World()
    for offset in (5, 6):
        request = commit_request()
        request.topics[0].partitions[0].committed_offset = offset
        committed(world, request)
    lead_anew(world, known)
    for asked in ([("t", 0)], None):
        found = world.groups.fetch_offsets("g", asked, require_stable=stable)
        assert found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.commit_appends()
    assert offset_of(world, stable=stable) == 6


def test_transaction_that_ended_above_the_high_watermark_of_a_new_leader_is_not_denied() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.end_transaction(7, commit=True)
    lead_anew(world, 1)
    assert world.groups.fetch_offsets("g", [("t", 0)]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.commit_appends()
    assert offset_of(world) == 11


def test_what_a_new_leader_itself_has_on_the_way_hides_no_committed_offset() -> None:
    world = World()
    committed(world, commit_request())
    lead_anew(world, 1)
    world.hold_appends()
    request = commit_request()
    request.topics[0].partitions[0].committed_offset = 6
    world.run(world.groups.commit_offsets(request, world.call(8), world.now_ms))
    assert offset_of(world) == 5


# --- transactions


def txn_commit(
    world: World, producer_id: int, offset: int, group_id: str = "g", *, version: int = 3, **given: object
) -> ErrorCode:
    caller = world.call(version)
    each = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[each])],
        **given,  # type: ignore[arg-type]
    )
    answer = world.ask(world.groups.commit_offsets_in_transaction(request, caller, world.now_ms), caller)
    assert isinstance(answer, TxnOffsetCommitResponse)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def offset_of(world: World, *, stable: bool = False) -> int | ErrorCode:
    found = world.groups.fetch_offsets("g", [("t", 0)], require_stable=stable)
    assert isinstance(found, dict)
    commit, error = found["t", 0]
    return commit.offset if error is NONE else error


def test_offset_of_a_transaction_counts_from_its_marker_on() -> None:
    world = World()
    assert txn_commit(world, 7, 11) is NONE
    assert (offset_of(world), offset_of(world, stable=True)) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.end_transaction(7, commit=True)
    assert offset_of(world, stable=True) == 11


def test_offset_of_an_aborted_transaction_never_counts() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.end_transaction(7, commit=False)
    assert offset_of(world, stable=True) == -1


def test_transaction_does_not_undo_a_later_plain_commit() -> None:
    world = World()
    txn_commit(world, 7, 11)
    committed(world, commit_request())
    world.end_transaction(7, commit=True)
    assert offset_of(world) == 5


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.COORDINATOR_NOT_AVAILABLE), (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
)
def test_client_that_may_crash_at_it_is_not_told_that_groups_are_loading(version: int, code: ErrorCode) -> None:
    world = World()
    world.elect()
    assert txn_commit(world, 7, 11, version=version) is code


def test_records_of_a_transaction_are_marked_with_its_producer() -> None:
    world = World()
    txn_commit(world, 7, 11)
    assert [producer_id for _, producer_id in world.log] == [7]


def test_open_transaction_survives_a_restart() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.restart()
    assert offset_of(world, stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(7, commit=True)
    assert offset_of(world, stable=True) == 11


def test_marker_in_the_log_ends_the_transaction_at_replay() -> None:
    world = World()
    txn_commit(world, 7, 11)
    txn_commit(world, 8, 12)
    world.store.append_marker(0, 7, commit=True)
    world.store.append_marker(0, 8, commit=False)
    world.restart()
    assert [commit.offset for commit, _ in fetched(world).values()] == [11]


def test_tombstone_in_a_transaction_takes_its_offset_back_at_replay() -> None:
    world = World()
    txn_commit(world, 7, 11)
    (record, _), *_ = world.log
    assert record.key is not None
    world.store.append(0, [(record.key, None)], 7, 0)
    world.restart()
    assert offset_of(world, stable=True) == -1


def test_plain_tombstone_takes_an_offset_out_of_transactions_live_and_at_replay() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.delete_partitions(("t", 0))
    live = offset_of(world, stable=True)
    world.restart()
    world.end_transaction(7, commit=True)
    assert (live, offset_of(world, stable=True)) == (-1, -1)


def test_offset_of_a_transaction_is_not_there_before_its_marker_is_committed() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.hold_appends()
    world.end_transaction(7, commit=True)
    before = offset_of(world), offset_of(world, stable=True)
    world.commit_appends()
    assert (before, offset_of(world, stable=True)) == ((-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), 11)


def test_transaction_of_a_stranger_to_a_group_with_members_is_let_in_without_identity_only() -> None:
    world = World()
    joined(world, join_request(), version=3)
    assert txn_commit(world, 7, 11) is NONE  # old clients do not say who they are
    assert txn_commit(world, 7, 11, member_id="stranger", generation_id=1) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("version", "told"),
    [(4, ErrorCode.UNKNOWN_MEMBER_ID), (5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)],
    ids=["4", "5", "6"],
)
@pytest.mark.parametrize("generation", [0, 1])
def test_member_of_a_group_that_is_gone_commits_nothing_in_a_transaction(
    generation: int, version: int, told: ErrorCode
) -> None:
    world = World()
    code = txn_commit(world, 7, 11, version=version, member_id="zombie", generation_id=generation)
    assert (code, world.log) == (told, [])


def test_group_deleted_during_a_transaction_is_gone_at_once() -> None:
    world = World()
    txn_commit(world, 7, 11)
    world.run(world.groups.delete_groups(DeleteGroupsRequest(groups_names=["g"]), world.call(2), world.now_ms))
    assert world.shard.groups == {}
    world.end_transaction(7, commit=True)
    assert (offset_of(world, stable=True), world.shard.groups) == (-1, {})


def test_append_of_a_transaction_that_failed_leaves_nothing_behind() -> None:
    world = World()
    world.refuse_appends(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert txn_commit(world, 7, 11) is ErrorCode.NOT_COORDINATOR
    world.refuse_appends(None)
    world.end_transaction(7, commit=True)
    assert (offset_of(world, stable=True), world.shard.groups) == (-1, {})


# --- bounds


def test_ids_handed_out_and_never_used_are_bounded() -> None:
    world = World()
    first = joined(world, join_request()).member_id
    for _ in range(PENDING_MEMBERS_PER_GROUP):
        world.groups.join(join_request(), Caller(None, 9), world.now_ms)
    assert joined(world, join_request(member_id=first)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_with_too_many_protocols_is_turned_away() -> None:
    answer = joined(World(), join_request(protocols=PROTOCOLS_PER_MEMBER + 1), version=3)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("instance_id", [None, "\u20ac" * 10_920])
def test_longest_names_make_a_member_id_that_can_be_told_and_stored(instance_id: str | None) -> None:
    world = World()
    caller = world.call(5, "x" * 32_767)
    answer = world.ask(world.groups.join(join_request(group_instance_id=instance_id), caller, world.now_ms), caller)
    assert isinstance(answer, JoinGroupResponse)
    if instance_id is None:
        answer = joined(world, join_request(member_id=answer.member_id), version=5)
    answer.encode(5)
    caller = world.call(3)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=answer.member_id, assignments=[])
    synced = world.ask(world.groups.sync(request, caller, world.now_ms), caller)
    assert isinstance(synced, SyncGroupResponse)
    assert synced.error_code == NONE


def test_pending_id_cannot_be_used_with_an_instance_id() -> None:
    world = World()
    pending = joined(world, join_request()).member_id
    answer = joined(world, join_request(member_id=pending, group_instance_id="i1"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_costs_no_append() -> None:
    world = World()
    member_id = joined(world, join_request(), version=3).member_id
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    effects = world.groups.heartbeat(request, world.call(), world.now_ms)
    assert sum(isinstance(effect, Reply) for effect in effects) == 1
    assert not world.log


def test_member_may_be_named_without_its_instance() -> None:
    world = World()
    member_id = joined(world, join_request(group_instance_id="i1")).member_id
    caller = world.call(5)
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    answer = world.ask(world.groups.leave(request, caller, world.now_ms), caller)
    assert isinstance(answer, LeaveGroupResponse)
    assert answer.members[0].error_code == NONE


def test_a_group_id_without_end_is_refused() -> None:
    assert joined(World(), join_request("g" * (GROUP_ID_LENGTH + 1))).error_code == ErrorCode.INVALID_GROUP_ID
