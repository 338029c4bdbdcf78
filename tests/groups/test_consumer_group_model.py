"""Random members of both protocols in one consumer group, with appends held up or lost, restarts, silence, growth.

A client goes by the answers it gets, but may be slow, silent, or a zombie that has not heard of being fenced. What must
always hold:

- No partition belongs to two members, whatever each of them knows.
- Who reads a partition and speaks in the epoch that the coordinator knows of it owns that partition there.
- Committed offsets never go back: no two members have ever committed what both read.
- The group epoch only rises while the group is there; no member is ahead of it.
- A broker that reads the log knows the same group.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.coordinator import Caller, Effect
from kbroker.coordinator.effects import Again
from kbroker.groups.classic_group import ClassicGroup
from kbroker.groups.consumer import ConsumerGroups
from kbroker.groups.consumer_group import ConsumerGroup
from kbroker.groups.group import GroupType
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
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
from tests.groups.world import World, again_of, config_of, plain

SESSION_MS, REBALANCE_MS = 8_000, 12_000
CLIENTS = 5
NUMBERS = st.integers(0, CLIENTS - 1)
FAILURES = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]
ANEW = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}


@dataclass
class Client:
    """A consumer, of one protocol or the other. reads: the next offset to commit, of each partition that it reads."""

    name: str
    instance: str | None
    classic: bool = False
    member_id: str = ""
    epoch: int = 0  # or the generation
    reads: dict[int, int] = field(default_factory=dict)
    told: set[int] | None = None  # what it may read, once it has let go of what is not in there
    reports: bool = True
    roster: tuple[str, ...] = ()
    waits_for: object = None  # one call at a time
    sent: dict[int, int] = field(default_factory=dict)

    def begin_anew(self) -> None:
        self.epoch, self.reads, self.told, self.reports, self.roster = 0, {}, None, True, ()


def assignment(partitions: list[int]) -> bytes:
    return struct.pack(f">hih1si{len(partitions)}ii", 0, 1, 1, b"t", len(partitions), *partitions, -1)


def partitions_of(data: bytes) -> set[int]:
    if not data or struct.unpack_from(">i", data, 2) == (0,):
        return set()
    (count,) = struct.unpack_from(">i", data, 9)
    return set(struct.unpack_from(f">{count}i", data, 13))


class MixedGroup(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients = [Client(f"c{at}", f"i{at}" if at == CLIENTS - 1 else None) for at in range(CLIENTS)]
        self.partitions = 3
        self.offsets: dict[int, int] = {}
        self.epoch = 0
        self.fresh = 0
        self.again: dict[str, Again] = {}

    @initialize(seed=st.integers(0, 1000), interval_ms=st.sampled_from(["0", "1000"]))
    def begin(self, seed: int, interval_ms: str) -> None:
        config = config_of(
            group_consumer_migration_policy="bidirectional",
            group_consumer_min_session_timeout_ms="1",
            group_consumer_session_timeout_ms=str(SESSION_MS),
            group_consumer_min_heartbeat_interval_ms="1",
            group_consumer_heartbeat_interval_ms="1000",
            group_consumer_assignment_interval_ms=interval_ms,
        )
        self.world = World(config, seed)
        self.world.observe = self.settle
        self.world.topics(t=self.partitions)

    # --- what clients do

    @rule(number=NUMBERS)
    def speak(self, number: int) -> None:
        """The next thing that a client's protocol has it say."""
        client = self.clients[number]
        if client.waits_for is not None:
            return
        if client.classic:
            self.speak_classic(client)
            return
        if not client.member_id:
            self.fresh += 1
            client.member_id = f"{client.name}-{self.fresh}"
        joins = client.epoch == 0
        owned = [TopicPartitions(topic_id=self.world.image.topic_id("t"), partitions=sorted(client.reads))]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=["t"] if joins else None,
            topic_partitions=[] if joins else owned if client.reports else None,
        )
        client.reports = False
        caller = self.world.call(1, client.name)
        self.check_short_way(request, caller)
        self.send(client, caller, self.world.groups.consumer_group_heartbeat(request, caller, self.world.now_ms))

    def check_short_way(self, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> None:
        """A heartbeat that is answered without a look at all that it might say gets the answer of one that is not.

        And as long as the same one is said to have the same answer, it is such a heartbeat.
        """
        shard, again = self.world.shard, self.again.pop(said := repr((request, caller[1:])), None)
        rules = shard.kind(GroupType.CONSUMER)
        assert isinstance(rules, ConsumerGroups)
        is_short = not shard.loading and not self.world.has_uncommitted and rules._is_quiet(request, caller)
        assert is_short or again is None or not again.holds(self.world.now_ms)
        if not is_short:
            return
        short, long = shard.operation(self.world.now_ms), shard.operation(self.world.now_ms)
        rules._lives_on(short, request, caller)
        rules._beat(long, request, caller, lambda topic: True)
        assert (plain(short.effects), self.world.has_uncommitted) == (plain(long.effects), False)
        self.again[said] = again_of(short.effects)

    def speak_classic(self, client: Client) -> None:
        if client.epoch == 0:
            caller = self.world.call(9, client.name)
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=client.member_id,
                group_instance_id=client.instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(["t"]))],
            )
            self.send(client, caller, self.world.groups.join(request, caller, self.world.now_ms))
        elif client.told is None:
            shares = {
                each: assignment(list(range(self.partitions))[at :: len(client.roster)])
                for at, each in enumerate(client.roster)
            }
            sync = SyncGroupRequest(
                group_id="g",
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(member_id=key, assignment=each) for key, each in shares.items()
                ],
            )
            caller = self.world.call(5, client.name)
            self.send(client, caller, self.world.groups.sync(sync, caller, self.world.now_ms))
        else:
            beat = HeartbeatRequest(
                group_id="g",
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance,
            )
            caller = self.world.call(4, client.name)
            self.send(client, caller, self.world.groups.heartbeat(beat, caller, self.world.now_ms))

    @rule(number=NUMBERS)
    def obey(self, number: int) -> None:
        """A client lets go of what it was told to, and begins with what is new to it, where the group stands."""
        client = self.clients[number]
        if client.waits_for is not None or client.told is None or client.told == client.reads.keys():
            return
        found = self.world.groups.fetch_offsets("g", [("t", partition) for partition in client.told])
        if isinstance(found, ErrorCode):
            return
        reads = {}
        for (_, partition), (commit, error) in found.items():
            if partition in client.reads:
                reads[partition] = client.reads[partition]
            elif error:
                return
            else:
                reads[partition] = max(commit.offset, 0) + 1
        client.reads, client.reports = reads, True

    @rule(number=NUMBERS)
    def commit(self, number: int) -> None:
        """A client commits one record more of all that it reads, as what it believes to be."""
        client = self.clients[number]
        if client.waits_for is not None or not client.reads:
            return
        parts = [
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
            for partition, offset in client.reads.items()
        ]
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=client.epoch,
            member_id=client.member_id,
            group_instance_id=client.instance,
            topics=[OffsetCommitRequestTopic(name="t", partitions=parts)],
        )
        client.sent = dict(client.reads)
        caller = self.world.call(8 if client.classic else 9)
        self.send(client, caller, self.world.groups.commit_offsets(request, caller, self.world.now_ms))

    @rule(number=NUMBERS, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients[number]
        if client.waits_for is not None or not client.member_id or client.epoch == 0:
            return
        if client.classic:
            caller = self.world.call(5)
            who = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance)
            left = LeaveGroupRequest(group_id="g", members=[who])
            self.world.run(self.world.groups.leave(left, caller, self.world.now_ms))
        else:
            caller = self.world.call(1)
            request = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=client.member_id,
                member_epoch=-2 if for_a_while and client.instance is not None else -1,
                instance_id=client.instance,
            )
            self.world.run(self.world.groups.consumer_group_heartbeat(request, caller, self.world.now_ms))
        self.restart_client(number, client.classic)

    @rule(number=NUMBERS, classic=st.booleans())
    def restart_client(self, number: int, classic: bool) -> None:
        """The process is started again, perhaps with the other protocol: so groups are migrated."""
        self.clients[number] = Client(self.clients[number].name, self.clients[number].instance, classic)

    @rule(number=NUMBERS)
    def give_up(self, number: int) -> None:
        """An answer comes too late for its client."""
        self.clients[number].waits_for = None

    @rule(rounds=st.integers(1, 4))
    def all_behave(self, rounds: int) -> None:
        for _ in range(rounds):
            for number in range(CLIENTS):
                self.speak(number)
                self.obey(number)
                self.commit(number)
            self.world.wait(500)

    # --- what else happens

    @rule(delay_ms=st.sampled_from([1, 500, 2_000, 5_000, 9_000, 13_000]))
    def wait(self, delay_ms: int) -> None:
        self.world.wait(delay_ms)

    @precondition(lambda self: self.partitions < 6)
    @rule()
    def add_a_partition(self) -> None:
        self.partitions += 1
        self.world.topics(t=self.partitions)

    @rule()
    def hold(self) -> None:
        self.world.hold_appends()

    @rule()
    def commit_appends(self) -> None:
        self.world.commit_appends()

    @rule(error=st.sampled_from([*FAILURES, None, None]))
    def refuse_appends(self, error: ErrorCode | None) -> None:
        self.world.refuse_appends(error)

    @rule()
    def restart(self) -> None:
        """What was not committed is lost with the broker, and so are all calls, and what it knew of connections."""
        self.world.restart()
        self.again.clear()
        for client in self.clients:
            client.waits_for = None

    # --- what must hold

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        group = self.group()
        if isinstance(group, ConsumerGroup):
            held = [
                partition
                for member in group.members.values()
                for owned in (member.assigned, member.pending_revocation)
                for parts in owned.values()
                for partition in parts
            ]
            assert len(held) == len(set(held)), group.members

    @invariant()
    def who_reads_in_the_known_epoch_is_the_owner(self) -> None:
        group = self.group()
        if not isinstance(group, ConsumerGroup):
            return
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is None or member.member_epoch != client.epoch or self.world.has_uncommitted:
                continue
            owned = {*_flat(member.assigned), *_flat(member.pending_revocation)}
            assert client.reads.keys() <= owned, (client, member)

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.group()
        if not isinstance(group, ConsumerGroup):
            self.epoch = 0
            return
        if not self.world.has_uncommitted:
            assert group.group_epoch >= self.epoch
            self.epoch = group.group_epoch
        assert group.assignment_epoch <= group.group_epoch
        assert all(member.member_epoch <= group.assignment_epoch for member in group.members.values())

    @invariant()
    def offsets_never_go_back(self) -> None:
        group = self.group()
        if group is None:
            self.offsets = {}
            return
        found = {partition: commit.offset for (_, partition), commit in group.offsets.committed.items()}
        for partition, offset in self.offsets.items():
            assert found.get(partition, -1) >= offset, (partition, offset, found)
        self.offsets = found

    @invariant()
    def log_says_the_same(self) -> None:
        group = self.group()
        if self.world.has_uncommitted or not isinstance(group, ConsumerGroup) or not group.is_recorded:
            return
        read = self.world.reader().groups.get("g")
        assert isinstance(read, ConsumerGroup), read
        assert read.members == group.members
        assert read.target == group.target
        assert (read.group_epoch, read.assignment_epoch) == (group.group_epoch, group.assignment_epoch)
        assert read.owners == group.owners

    def teardown(self) -> None:
        """With everything going well again, all partitions are read, each by one client, up to date."""
        if not hasattr(self, "world"):
            return
        self.world.refuse_appends(None)
        self.world.commit_appends()
        self.world.wait(4 * (SESSION_MS + REBALANCE_MS))
        for client in self.clients:
            client.waits_for = None
        for _ in range(30):
            self.all_behave(1)
            self.no_partition_has_two_owners()
            self.who_reads_in_the_known_epoch_is_the_owner()
            self.offsets_never_go_back()
        reads = [partition for client in self.clients for partition in client.reads]
        assert sorted(reads) == list(range(self.partitions)), (self.clients, self.group())

    # ---

    def group(self) -> ClassicGroup | ConsumerGroup | None:
        group = self.world.shard.groups.get("g")
        assert group is None or isinstance(group, ClassicGroup | ConsumerGroup)
        return group

    def send(self, client: Client, caller: Caller, effects: list[Effect]) -> None:
        client.waits_for = caller.call
        self.world.run(effects)

    def settle(self) -> None:
        for client in self.clients:
            if client.waits_for is not None and client.waits_for in self.world.replies:
                answer = self.world.replies[client.waits_for]
                client.waits_for = None
                self.handle_changes(client, answer)

    def handle_changes(self, client: Client, answer: Message) -> None:
        if isinstance(answer, OffsetCommitResponse):
            for each in answer.topics[0].partitions:
                if each.error_code == ErrorCode.NONE and each.partition_index in client.reads:
                    client.reads[each.partition_index] = client.sent[each.partition_index] + 1
            return
        assert isinstance(
            answer, ConsumerGroupHeartbeatResponse | JoinGroupResponse | SyncGroupResponse | HeartbeatResponse
        )
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.NONE:
            self.heed_success(client, answer)
        elif code in ANEW or client.classic:
            if isinstance(answer, JoinGroupResponse) and code is ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            elif code is ErrorCode.UNKNOWN_MEMBER_ID and client.classic:
                client.member_id = ""
            client.begin_anew()
        else:
            client.reports = True

    def heed_success(self, client: Client, answer: Message) -> None:
        if isinstance(answer, ConsumerGroupHeartbeatResponse):
            client.epoch = answer.member_epoch
            if answer.assignment is not None:
                client.told = {each for topic in answer.assignment.topic_partitions for each in topic.partitions}
        elif isinstance(answer, JoinGroupResponse):
            client.begin_anew()
            client.member_id, client.epoch = answer.member_id, answer.generation_id
            client.roster = tuple(each.member_id for each in answer.members)
        elif isinstance(answer, SyncGroupResponse):
            client.told = partitions_of(answer.assignment)


def _flat(owned: Mapping[bytes, Mapping[int, int]]) -> set[int]:
    return {partition for parts in owned.values() for partition in parts}


TestMixedGroup = MixedGroup.TestCase
TestMixedGroup.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
