"""How much groups may hold, of what members say and of offsets."""

from __future__ import annotations

import pytest

from kbroker.coordinator import Caller
from kbroker.groups.classic_group import MEMBER_BYTES, ClassicGroup
from kbroker.groups.memory import join_bytes
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest
from protocol.messages.groups import DeleteGroupsRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tests.groups.test_coordinator import commit_request, committed, join_request, joined
from tests.groups.world import World, config_of


def large_join(group_id: str, size: int = 1_000_000, **given: object) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(size))]
    request = join_request(group_id, **given)
    request.protocols = protocols
    return request


def test_what_members_say_of_themselves_is_bounded_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 10_000_000)
    world = World()
    codes = [joined(world, large_join(f"g-{at}"), version=3) for at in range(15)]
    held = sum(
        member.said_bytes
        for group in world.shard.groups.values()
        if isinstance(group, ClassicGroup)
        for member in group.members.values()
    )
    assert held < 10_000_000
    assert codes[-1].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_who_has_little_held_may_join_where_another_has_filled_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 10_000_000)
    world = World()
    for at in range(15):
        joined(world, large_join(f"g-{at}"), version=3)
    other = Caller("other", 3, "client", "/10.0.0.2")
    world.run(world.groups.join(join_request("mine"), other, world.now_ms))
    assert "mine" in world.shard.groups


def test_what_has_left_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 10_000_000)
    world = World()
    for at in range(15):
        joined(world, large_join(f"g-{at}"), version=3)
    world.wait(10 * 60_000)  # nobody sends heartbeats
    late = world.call(3)
    world.run(world.groups.join(large_join("late"), late, world.now_ms))
    assert "late" in world.shard.groups


def wordy(group_id: str, *, partitions: int = 10, size: int = 4_000) -> OffsetCommitRequest:
    """A commit of as much text as one may say."""
    request = commit_request(group_id, partitions)
    for each in request.topics[0].partitions:
        each.committed_metadata = "m" * size
    return request


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> World:
    """A broker whose groups have all the memory they may have: of offsets that one address has committed."""
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 1_000_000)
    world = World()
    while committed(world, wordy(f"g-{len(world.shard.groups)}"))[0] == 0:
        assert len(world.shard.groups) < 50
    return world


def test_offsets_are_bounded_over_all_groups(crowded: World) -> None:
    held = sum(len(each.metadata) for group in crowded.shard.groups.values() for each in group.offsets.all())
    assert (800_000 < held < 1_000_000, committed(crowded, wordy("one-more"))) == (
        True,
        [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 10,
    )


def test_an_offset_that_is_there_may_be_moved_however_much_is_held(crowded: World) -> None:
    assert committed(crowded, wordy("g-0")) == [0] * 10


def test_who_has_committed_little_may_where_another_has_filled_the_room(crowded: World) -> None:
    other = Caller("other", 9, "client", "/10.0.0.2")
    answer = crowded.ask(crowded.groups.commit_offsets(commit_request("mine"), other, crowded.now_ms), other)
    assert answer.topics[0].partitions[0].error_code == 0  # type: ignore[union-attr]


def test_offsets_that_are_gone_count_no_more(crowded: World) -> None:
    caller = crowded.call()
    crowded.ask(crowded.groups.delete_groups(DeleteGroupsRequest(groups_names=["g-0"]), caller, crowded.now_ms), caller)
    crowded.now_ms += 1_000
    assert committed(crowded, wordy("late")) == [0] * 10


def test_offsets_read_from_the_log_are_in_the_account(crowded: World) -> None:
    crowded.restart()
    crowded.now_ms += 1_000
    codes = [committed(crowded, wordy(f"new-{at}"))[0] for at in range(50)]
    assert codes[-1] == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_groups_may_hold_a_part_of_a_larger_limit_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 100_000)
    world = World(config_of(queued_max_request_bytes=str(2_000_000), socket_request_max_bytes=str(1_000_000)))
    codes = [committed(world, wordy(f"g-{at}"))[0] for at in range(12)]
    assert codes == [0] * 10 + [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 2  # 44 KB each


def test_a_member_may_join_again_however_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 10_000_000)
    world = World()
    members = [joined(world, large_join(f"g-{at}"), version=3).member_id for at in range(9)]
    again = [joined(world, large_join(f"g-{at}", member_id=each), version=3) for at, each in enumerate(members)]
    larger = joined(world, large_join("g-0", 2_000_000, member_id=members[0]), version=3)
    assert [each.error_code for each in again] == [0] * 9
    assert larger.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_may_come_back_however_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.groups.memory.GROUP_METADATA_BYTES", 10_000_000)
    world = World()
    codes = [joined(world, large_join(f"g-{at % 9}", group_instance_id="i"), version=5).error_code for at in range(18)]
    assert codes == [0] * 18


def test_newcomer_is_counted_beside_a_static_member_whose_instance_id_is_empty() -> None:
    world = World()
    joined(world, join_request(group_instance_id=""), version=6)
    group = world.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert join_bytes(group, join_request()) > MEMBER_BYTES
