"""Simulated members of consumer groups: they join, share out partitions, read, commit, leave or vanish, and come back.

The classic group protocol as clients speak it: FindCoordinator, JoinGroup (twice, for a newcomer), SyncGroup,
OffsetFetch, then fetches with heartbeats and commits in between, until the group rebalances. The leader deals the
partitions out in turn. Static members (KIP-345) come back under the name that they had.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script, Sleep
from kbroker.sim.consumers import EARLIEST, Reader
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from kbroker.sim.checks import Checks, Where
    from kbroker.sim.machine import Machine
    from kbroker.sim.topics import Topic

FIND, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, OFFSETS = 10, 11, 14, 12, 13, 8, 9
STATIC_SINCE = {JOIN: 5, SYNC: 3, HEARTBEAT: 3, COMMIT: 7}
SKIPS_ASSIGNMENT_SINCE = 9  # JoinGroup
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS = 10_000, 10_000, 3_000

WAIT = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
IN_DOUBT = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_COORDINATOR,  # the disk may have failed behind the append: a restart finds it
    }
)
STRANGER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,  # OffsetCommit, from version 9 on
    }
)
OTHERS = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})


class Refused(Exception):  # noqa: N818 - what happened, not an error
    """The coordinator said no: what to do next is up to `live`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Member(Reader):
    """Reads topics in a group.

    restless: whether it leaves or vanishes now and then. static: whether it has a name of its own in the group.
    """

    group = "readers"
    static = False
    restless = False
    max_wait_ms = 1_000
    commit_ms = 2_000

    @property
    def forgets_that_it_leads(self) -> bool:
        """Whether a leader that comes back is not told that it leads: so it will not see new partitions (KIP-814)."""
        return self.instance is not None and self.versions[JOIN] < SKIPS_ASSIGNMENT_SINCE

    def live(self) -> Script:
        """Join, work, and again."""
        self.start_over()
        self.member_id, self.generation = "", -1
        self.assigned: list[Where] | None = None
        self._coordinator: Machine | None = None
        self._dealt: list[Where] | None = None  # by this member as the leader of its generation; None: another leads
        self._placed = False  # whether it knows where to begin reading what it was assigned
        self._beaten_ms = (
            0  # when it said last that it lives: also a member whose commits are refused goes on with that
        )
        yield from self.shake_hands()
        self.instance = self.name if self.static and self._may_be_static() else None
        yield from self.know(self.topics)
        while True:
            try:
                yield from self._find()
                if self.assigned is None:
                    yield from self._join()
                if not self._placed:
                    yield from self._positions()
                yield from self._work()
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
                yield from self.pause(500)
            except Refused as refused:
                self.note(f"is refused: {refused.code.name}")
                self._handle_changes(refused.code)
                yield from self.pause(200)

    def _handle_changes(self, code: ErrorCode) -> None:
        if code in STRANGER:
            self.member_id, self.generation = "", -1
            self.assigned = None
        elif code in OTHERS:
            self.assigned = None
        elif code not in WAIT:
            raise self.world.broken(f"{self}: {code.name}")

    def _may_be_static(self) -> bool:
        return all(self.versions[api] >= version for api, version in STATIC_SINCE.items())

    def _check(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise Refused(ErrorCode.of(code))

    # ---- becoming a member

    def _find(self) -> Generator[Any, Any, None]:
        by_list = self.versions[FIND] >= 4
        request = (
            FindCoordinatorRequest(coordinator_keys=[self.group]) if by_list else FindCoordinatorRequest(key=self.group)
        )
        answer: FindCoordinatorResponse = yield from self.ask(request)
        found = answer.coordinators[0] if by_list else answer
        self._check(found.error_code)
        self._coordinator = self.machine(found.node_id)

    def _join(self) -> Generator[Any, Any, None]:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS if self.versions[JOIN] else -1,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name="deal", metadata=subscription([topic.name for topic in self.topics]))
            ],
        )
        answer: JoinGroupResponse = yield from self.ask(request, to=self._coordinator)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        self._check(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        deal: list[SyncGroupRequestAssignment] = []
        self._dealt = None if answer.leader != self.member_id else []
        if answer.leader == self.member_id and not answer.skip_assignment:
            deal = self._deal(sorted(member.member_id for member in answer.members))
        losses = self.checks.losses
        sync: SyncGroupResponse = yield from self.ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocol_name="deal",
                assignments=deal,
            ),
            to=self._coordinator,
        )
        self._check(sync.error_code)
        self._beaten_ms = self.world.now_ms
        self._placed = False
        self.assigned = _places(bytes(sync.assignment))
        who = self.instance or self.member_id  # a static member keeps its part under every id that it gets
        self.checks.groups.assigned(self.group, self.generation, who, self.assigned, losses)
        self.note(f"has {len(self.assigned)} partitions in generation {self.generation} of {self.group}")

    def _deal(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        shares: list[list[Where]] = [[] for _ in members]
        self._dealt = places = self.places()
        for at, where in enumerate(places):
            shares[at % len(members)].append(where)
        return [
            SyncGroupRequestAssignment(
                member_id=member, assignment=",".join(f"{topic}-{index}" for topic, index in share).encode()
            )
            for member, share in zip(members, shares, strict=True)
        ]

    def _positions(self) -> Generator[Any, Any, None]:
        """Where the group has got to, of every partition assigned."""
        assert self.assigned is not None
        self.start_over()
        moment = self.checks.moment
        groups = self.checks.groups
        before = {where: groups.candidates(self.group, where) for where in self.assigned}
        while True:
            names = self._names()
            answer: OffsetFetchResponse = yield from self.ask(self._offsets_request(), to=self._coordinator)
            code, found = self._offsets_found(answer, names)
            if code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                yield from self.pause(100)
                continue
            self._check(code)
            break
        missing = []
        for where in self.assigned:
            offset = found[where]
            groups.fetched(self.group, where, offset, before[where])
            if offset < 0:
                missing.append(where)
            else:
                self.positions[where] = offset
                self.placed[where] = (0, moment[1])  # what was committed may have been read before a power cut
        self._committed = dict(self.positions)
        if missing:
            yield from self.look_up(missing, EARLIEST)
        self._placed = True

    def _names(self) -> dict[bytes, str]:
        """Topics by the ids that a request of now has them under."""
        return {self.checks.catalogue.topic_id(topic.name): topic.name for topic in self.topics}

    def _offsets_request(self) -> OffsetFetchRequest:
        version = self.versions[OFFSETS]
        by_topic: dict[str, list[int]] = {}
        for topic, index in self.assigned or ():
            by_topic.setdefault(topic, []).append(index)
        if version < 8:
            topics = [
                OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()
            ]
            return OffsetFetchRequest(group_id=self.group, topics=topics, require_stable=version >= 7)
        wanted = [
            OffsetFetchRequestTopics(
                name="" if version >= 10 else name,
                topic_id=self.checks.catalogue.topic_id(name) if version >= 10 else bytes(16),
                partition_indexes=indexes,
            )
            for name, indexes in by_topic.items()
        ]
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group, topics=wanted)], require_stable=True
        )

    def _offsets_found(
        self, answer: OffsetFetchResponse, names: dict[bytes, str]
    ) -> tuple[ErrorCode, dict[Where, int]]:
        """The first error there is, and the offsets."""
        topics: Sequence[Any] = answer.topics
        code = answer.error_code
        if self.versions[OFFSETS] >= 8:
            topics, code = answer.groups[0].topics, answer.groups[0].error_code
        found: dict[Where, int] = {}
        for topic in topics:
            name = topic.name or names[topic.topic_id]
            for part in topic.partitions:
                code = code or part.error_code
                found[name, part.partition_index] = part.committed_offset
        return ErrorCode.of(code), found

    # ---- being one

    def _work(self) -> Generator[Any, Any, None]:
        """Read, commit, beat, until something is refused or lost."""
        begun_ms = committed_ms = self.world.now_ms
        while True:
            now_ms = self.world.now_ms
            if now_ms - self._beaten_ms >= HEARTBEAT_MS:
                self._beaten_ms = now_ms
                yield from self._place_missing()
                answer: HeartbeatResponse = yield from self.ask(
                    HeartbeatRequest(
                        group_id=self.group,
                        generation_id=self.generation,
                        member_id=self.member_id,
                        group_instance_id=self.instance,
                    ),
                    to=self._coordinator,
                )
                if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS and self.rng.random() < 0.7:
                    yield from self._commit()
                self._check(answer.error_code)
            if self._dealt is not None and self._dealt != self.places():  # the leader sees that there are others
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
            if now_ms - committed_ms >= self.commit_ms:
                committed_ms = now_ms
                yield from self._commit()
            if not self.positions:
                yield Sleep(1_000)
            elif not (yield from self.fetch()):
                yield Sleep(100)
            if self.restless and now_ms - begun_ms > 5_000 and self.rng.random() < 0.05:
                yield from self._go_away()
                return

    def _place_missing(self) -> Generator[Any, Any, None]:
        """Partitions that were not there before, or not led, may be now."""
        missing = [where for where in self.assigned or () if where not in self.positions]
        if missing:
            yield from self.look_up(missing, EARLIEST)

    def _commit(self) -> Generator[Any, Any, None]:
        moved = {where: at for where, at in self.positions.items() if self._committed.get(where) != at}
        if not moved:
            return
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), position in moved.items():
            part = OffsetCommitRequestPartition(partition_index=index, committed_offset=position, committed_metadata="")
            by_topic.setdefault(topic, []).append(part)
        by_id = self.versions[COMMIT] >= 10
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[
                OffsetCommitRequestTopic(
                    name="" if by_id else name,
                    topic_id=self.checks.catalogue.topic_id(name) if by_id else bytes(16),
                    partitions=parts,
                )
                for name, parts in by_topic.items()
            ],
        )
        groups, moment = self.checks.groups, self.checks.moment
        sent = {where: groups.committing(self.group, where, position) for where, position in moved.items()}
        names = self._names()
        answer: OffsetCommitResponse = yield from self.ask(request, to=self._coordinator)
        worst = ErrorCode.NONE
        for outcome in answer.topics:
            for result in outcome.partitions:
                where = outcome.name or names[outcome.topic_id], result.partition_index
                code = ErrorCode.of(result.error_code)
                worst = worst or code
                if code is ErrorCode.NONE:
                    self._committed[where] = moved[where]
                if code not in IN_DOUBT and self.checks.is_same_topic(moment, where[0]):
                    groups.answered(self.group, where, sent[where], accepted=code is ErrorCode.NONE)
        self.note(f"commits {len(moved)} offsets: {worst.name}")
        self._check(worst)

    def _go_away(self) -> Generator[Any, Any, None]:
        """Leave as a good member does, or vanish; then come back as a new process."""
        if self.rng.random() < 0.5 and self.instance is None:
            many = self.versions[LEAVE] >= 3
            request = LeaveGroupRequest(
                group_id=self.group,
                member_id="" if many else self.member_id,
                members=[MemberIdentity(member_id=self.member_id)] if many else [],
            )
            answer: LeaveGroupResponse = yield from self.ask(request, to=self._coordinator)
            self._check(answer.error_code)
            self.note("leaves")
        else:
            self.note("vanishes")
        self.hang_up()
        self.start_over()
        self.member_id, self.generation, self.assigned = "", -1, None
        yield from self.pause(5_000)


def subscription(topics: list[str]) -> bytes:
    """What a consumer says under each protocol: version, topics, no data of its own."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def _places(assignment: bytes) -> list[Where]:
    parts = [part.rpartition("-") for part in assignment.decode().split(",") if part]
    return [(topic, int(index)) for topic, _, index in parts]


def all_is_shared(checks: Checks, members: Sequence[Member], topics: Sequence[Topic]) -> None:
    """Every partition is read by one member of the group, to its end."""
    owners: dict[Where, Member] = {}
    for member in members:
        for where, position in member.positions.items() if member.assigned else ():
            if where in owners:
                raise checks.world.broken(f"{member} and {owners[where]} both read {where}")
            owners[where] = member
            end = checks.log_end(where)
            if position != end and where in member.places():
                raise checks.world.broken(f"{member} stands at {position} of {where}, which ends at {end}")
    sees_growth = not any(member.forgets_that_it_leads for member in members)
    for topic in topics:
        for index in range(checks.catalogue.count(topic) if sees_growth else topic.partitions):
            if (topic.name, index) not in owners:
                raise checks.world.broken(f"no member of {members[0].group} reads {topic.name}-{index}")
