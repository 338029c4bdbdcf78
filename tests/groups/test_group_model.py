"""Random members in one group, with appends held up or lost, restarts and silence: what must always hold.

- The assignments of a generation are those that its leader gave, and never overlap.
- Generations only rise, as far as anything was told under them.
- Every parked join and sync is answered by its deadline.
- A broker that reads the log knows the same group and offsets, and none that were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.coordinator import Caller, Effect
from kbroker.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.groups.membership import NEW_MEMBER_JOIN_TIMEOUT_MS
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.groups.theatre import subscription
from tests.groups.world import World, config_of

PARTITIONS = range(6)
SESSION_MS, REBALANCE_MS, INITIAL_DELAY_MS = 8_000, 12_000, 1_500
# A join waits at most for the initial delay with all its extensions, then for a rebalance that cannot begin before the
# sessions of absent static members end; a sync for its own round.
LONGEST_WAIT_MS = 3 * (SESSION_MS + REBALANCE_MS)

MEMBERS = st.integers(0, 4)
FAILURES = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]


@dataclass
class Member:
    """A client that goes by the answers it gets, but may do anything at any time."""

    name: str
    instance: str | None
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    roster: tuple[str, ...] = ()  # as leader


class RandomGroup(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.members = [Member(f"m{number}", f"i{number}" if number > 2 else None) for number in range(5)]
        self.given: dict[int, dict[str, bytes]] = {}  # by generation, what its leader gave, as first handed out
        self.told = -1  # highest generation with an assignment handed out
        self.parked: dict[object, tuple[Member, str, int]] = {}
        self.proposed: dict[int, list[dict[str, bytes]]] = {}
        self.committed: dict[int, int] = {}
        self.deleting = False  # tombstones are being written

    @initialize(delay=st.sampled_from(["0", str(INITIAL_DELAY_MS)]), seed=st.integers(0, 1000))
    def begin(self, delay: str, seed: int) -> None:
        self.world = World(config_of(group_initial_rebalance_delay_ms=delay, group_max_size="4"), seed)
        self.world.observe = self.settle

    # --- steps

    @rule(
        number=MEMBERS,
        version=st.sampled_from([3, 5, 9]),
        protocols=st.sampled_from(["a", "ab", "ba"]),
        rebalance_ms=st.sampled_from([0, REBALANCE_MS]),
    )
    def join(self, number: int, version: int, protocols: str, rebalance_ms: int = REBALANCE_MS) -> None:
        member = self.members[number]
        caller = self.world.call(version, member.name)
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member.member_id,
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription(["t"])) for name in protocols],
        )
        self.send(member, "join", caller, self.world.groups.join(request, caller, self.world.now_ms))

    @rule(number=MEMBERS, stale=st.booleans())
    def sync(self, number: int, stale: bool) -> None:
        member = self.members[number]
        caller = self.world.call(5, member.name)
        generation = member.generation - stale
        share = {
            each: bytes(PARTITIONS[(at + generation) % len(member.roster) :: len(member.roster)])
            for at, each in enumerate(member.roster)
        }
        if share:
            self.proposed.setdefault(generation, []).append(share)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocol_name=member.protocol,
            assignments=[SyncGroupRequestAssignment(member_id=key, assignment=value) for key, value in share.items()],
        )
        self.send(member, "sync", caller, self.world.groups.sync(request, caller, self.world.now_ms))

    @rule(number=MEMBERS)
    def heartbeat(self, number: int) -> None:
        member = self.members[number]
        request = HeartbeatRequest(
            group_id="g",
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance,
        )
        caller = self.world.call(4)
        assert self.world.ask(self.world.groups.heartbeat(request, caller, self.world.now_ms), caller) is not None

    @rule(number=MEMBERS, by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        member = self.members[number]
        who = MemberIdentity(
            member_id="" if by_instance else member.member_id, group_instance_id=member.instance, reason=None
        )
        caller = self.world.call(5)
        request = LeaveGroupRequest(group_id="g", members=[who])
        assert self.world.ask(self.world.groups.leave(request, caller, self.world.now_ms), caller) is not None

    @rule(number=MEMBERS, rounds=st.integers(1, 3))
    def some_behave(self, number: int, rounds: int) -> None:
        """Clients number and up go by the book for a while: join, join again with the id given, sync."""
        for _ in range(rounds):
            for each in range(number, 5):
                self.join(each, 9, "ab")
                self.join(each, 9, "ab")
            for each in range(number, 5):
                if self.members[each].generation >= 0:
                    self.sync(each, False)

    @rule(number=MEMBERS)
    def forget(self, number: int) -> None:
        """The process is started again."""
        self.members[number] = Member(self.members[number].name, self.members[number].instance)

    @rule(number=MEMBERS, partition=st.integers(0, 5), offset=st.integers(0, 100))
    def commit(self, number: int, partition: int, offset: int) -> None:
        member = self.members[number]
        each = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=str(offset)
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[each])],
        )
        caller = self.world.call(8)
        answer = self.world.ask(self.world.groups.commit_offsets(request, caller, self.world.now_ms), caller)
        if isinstance(answer, OffsetCommitResponse) and answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
            self.committed[partition] = offset
        elif answer is None:
            self.committed.pop(partition, None)  # its answer comes later: either offset is right from now on

    @rule(partition=st.integers(0, 5))
    def delete_offset(self, partition: int) -> None:
        """By an admin client, which is refused while members read the topic."""
        each = OffsetDeleteRequestPartition(partition_index=partition)
        topic = OffsetDeleteRequestTopic(name="t", partitions=[each])
        group, caller = self.group(), self.world.call(0)
        if group is not None and group.state is EMPTY:
            self.forget_offsets([partition])
        request = OffsetDeleteRequest(group_id="g", topics=[topic])
        self.remove(lambda: self.world.run(self.world.groups.delete_offsets(request, caller, self.world.now_ms)))

    @rule()
    def delete_group(self) -> None:
        """By an admin client, which is refused while there are members."""
        group, caller = self.group(), self.world.call(2)
        if group is not None and group.state is EMPTY:
            self.forget_offsets(PARTITIONS)
        request = DeleteGroupsRequest(groups_names=["g"])
        self.remove(lambda: self.world.run(self.world.groups.delete_groups(request, caller, self.world.now_ms)))

    @rule(partition=st.integers(0, 5))
    def delete_partition(self, partition: int) -> None:
        """The topic is gone, and made again."""
        self.forget_offsets([partition])
        self.remove(lambda: self.world.delete_partitions(("t", partition)))

    def forget_offsets(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.committed.pop(partition, None)

    def remove(self, begin: Callable[[], None]) -> None:
        self.deleting = self.world.store.hold
        begin()
        if self.group() is None:  # the next one begins with generation 1 again
            self.told = -1
            self.given.clear()
            self.proposed.clear()

    @rule(delay_ms=st.sampled_from([1, 500, 1_500, 4_000, 9_000, 13_000]))
    def wait(self, delay_ms: int) -> None:
        self.world.wait(delay_ms)

    @rule()
    def hold(self) -> None:
        self.world.hold_appends()

    @rule()
    def commit_appends(self) -> None:
        self.deleting = False
        self.world.commit_appends()

    @rule(error=st.sampled_from([*FAILURES, None]))
    def refuse_appends(self, error: ErrorCode | None) -> None:
        self.world.refuse_appends(error)

    @precondition(lambda self: not self.world.has_uncommitted)
    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.parked.clear()

    # --- what must hold

    @invariant()
    def parked_calls_are_answered_in_time(self) -> None:
        if not self.world.store.hold:
            late = [what for what in self.parked.values() if what[2] + LONGEST_WAIT_MS < self.world.now_ms]
            assert not late, late

    @invariant()
    def log_says_the_same(self) -> None:
        if self.world.has_uncommitted:
            return
        read, present = self.world.reader().groups.get("g"), self.group()
        if present is None:
            assert read is None or (read.generation, read.offsets.committed) == (0, {})
            return
        if present.generation == 0:
            assert present.offsets.committed == (read.offsets.committed if read else {})
            return
        assert read is None or read.generation <= present.generation
        assert present.offsets.committed == (read.offsets.committed if read else {})
        if present.state is STABLE:
            assert read is not None
            assert described(read) == described(present)

    @invariant()
    def committed_offsets_are_those_acknowledged(self) -> None:
        group = self.group()
        if group is not None:
            found = {partition: commit.offset for (_, partition), commit in group.offsets.committed.items()}
            assert {partition: found.get(partition) for partition in self.committed} == self.committed

    @invariant()
    def group_is_in_order(self) -> None:
        group = self.group()
        if group is None:
            return
        assert set(group.static.values()) <= group.members.keys()
        assert not group.members or group.leader in group.members
        assert group.joining.keys() <= group.members.keys()
        assert not group.syncing or group.state is COMPLETING
        assert group.syncing.keys() <= group.members.keys()
        assert len(group.joining) <= 4  # group.max.size; those who have not come back do not count yet
        if group.state is PREPARING:
            assert not group.unsynced

    def teardown(self) -> None:
        """With everything going well again and nobody asking, no call stays parked."""
        if not hasattr(self, "world"):
            return
        self.world.refuse_appends(None)
        self.world.commit_appends()
        self.world.wait(NEW_MEMBER_JOIN_TIMEOUT_MS + LONGEST_WAIT_MS)
        assert not self.parked
        group = self.group()
        assert group is None or not group.members

    # ---

    def group(self) -> ClassicGroup | None:
        group = self.world.shard.groups.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def send(self, member: Member, what: str, caller: Caller, effects: list[Effect]) -> None:
        self.parked[caller.call] = (member, what, self.world.now_ms)
        self.world.run(effects)

    def settle(self) -> None:
        for call in [call for call in self.parked if call in self.world.replies]:
            member, _, _ = self.parked.pop(call)
            answer = self.world.replies[call]
            if isinstance(answer, JoinGroupResponse):
                self.joined(member, answer)
            else:
                assert isinstance(answer, SyncGroupResponse)
                self.synced(member, answer)

    def joined(self, member: Member, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.NONE:
            member.member_id, member.generation = answer.member_id, answer.generation_id
            member.protocol = answer.protocol_name or ""
            member.roster = tuple(each.member_id for each in answer.members)
            assert not member.roster or answer.leader == answer.member_id
            assert answer.generation_id >= self.told
        elif answer.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNKNOWN_MEMBER_ID):
            member.member_id = answer.member_id

    def synced(self, member: Member, answer: SyncGroupResponse) -> None:
        if answer.error_code != ErrorCode.NONE:
            return
        group = self.group()
        assert group is not None
        assert group.state is STABLE or group.generation > self.told, group.state
        generation = group.generation
        assert generation >= self.told
        self.told = generation
        handed_out = {each.member_id: each.assignment for each in group.members.values()}
        spread = [partition for assignment in handed_out.values() for partition in assignment]
        assert len(spread) == len(set(spread)), handed_out
        before = self.given.setdefault(generation, handed_out)
        assert sorted(before.values()) == sorted(handed_out.values()), (before, handed_out)
        assert any(
            sorted(share.values()) == sorted(value for value in handed_out.values() if value)
            or not any(handed_out.values())
            for share in self.proposed.get(generation, [{}])
        ), (self.proposed, handed_out)
        assert answer.assignment in handed_out.values()


def described(group: ClassicGroup) -> object:
    assert group.protocol is not None
    members = [
        (
            each.member_id,
            each.instance_id,
            each.client_id,
            each.session_timeout_ms,
            each.rebalance_timeout_ms,
            each.metadata(group.protocol),
            each.assignment,
        )
        for each in group.members.values()
    ]
    return group.state, group.generation, group.protocol_type, group.protocol, group.leader, group.subscribed, members


TestRandomGroup = RandomGroup.TestCase
TestRandomGroup.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
