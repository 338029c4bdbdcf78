"""The groups of one partition of __consumer_offsets: every operation on them, replay, and unloading.

The coordinator (coordinator.py) has already found this shard for the group. Operations take a turn and leave their
effects in it. What must survive is written through the turn; `replay` applies it, and `committed` lets the answers go.
Replaying the same records, in order, into a new shard gives the same groups and offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.config import BrokerConfig
from kbroker.coordinator import Caller, Shard, Store, TimerKey, Turn
from kbroker.groups import membership, records
from kbroker.groups.effects import (
    Gathering,
    GroupStored,
    OffsetsStored,
    Removed,
    StaticMemberReplaced,
    commit_error,
    removal_error,
)
from kbroker.groups.group import COMPLETING, CONSUMER, DEAD, EMPTY, PREPARING, STABLE, Group
from kbroker.groups.memory import GroupMemory, commit_bytes, join_bytes
from kbroker.groups.offsets import Commit, TopicPartition, metadata_length
from kbroker.groups.records import GroupRecord, GroupsRecord, OffsetRecord
from kbroker.metadata.cache import MetadataDelta
from kbroker.ports import Random
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.groups import JoinGroupRequest, MemberIdentity, SyncGroupRequest
from protocol.messages.transactions import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from protocol.messages.transactions import TxnOffsetCommitRequest

MINUTE_MS = 60_000

TOMBSTONES_PER_BATCH = 1_000
"""Those of one group; all in one batch would be too large from some 20,000 on, and the group could never be deleted."""


class GroupShard(Shard[GroupsRecord]):
    """Groups by id."""

    IF_MISPLACED = (
        "The offsets that these groups have committed are not found: consumers begin where auto.offset.reset says."
    )

    def __init__(
        self, partition: int, epoch: int, store: Store, config: BrokerConfig, chance: Random, memory: GroupMemory
    ) -> None:
        super().__init__(partition, epoch, store)
        self._memory = memory
        self.config = config
        self.groups: dict[str, Group] = {}
        self._chance = chance
        self._in_transactions: dict[int, set[str]] = {}  # groups by producer id
        self._on_the_way: deque[tuple[int, str, TopicPartition, Commit | None]] = deque()  # offsets, by record_offset
        self._doubtful_below = 0  # the end of what was on the way already when this began to serve
        self.given_up_below = 0  # the end of what was waited for too long
        self._patience: deque[tuple[int, int]] = deque()  # until when what ends here is waited for

    @property
    def keys(self) -> Iterable[str]:
        """See Shard.keys."""
        return self.groups

    # --- membership

    def join(self, turn: Turn, request: JoinGroupRequest, caller: Caller) -> None:
        """See membership.join; a newcomer makes the group, a member of a group that is gone must join as a new one."""
        config = self.config
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            membership.refuse_join(turn, caller, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
            return
        group = self.groups.get(request.group_id)
        if group is None and request.member_id:
            membership.refuse_join(turn, caller, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            return
        if not self._memory.admits(caller.client_host, join_bytes(group, request), turn.now_ms):
            membership.refuse_join(turn, caller, ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
            return
        if group is None:
            group = self._make(request.group_id, turn.wall_ms)
        membership.join(turn, group, request, caller, config, self._chance)

    def sync(self, turn: Turn, request: SyncGroupRequest, caller: Caller) -> None:
        """See membership.sync."""
        group = self.groups.get(request.group_id)
        if group is None:
            membership.refuse_sync(turn, caller, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            membership.sync(turn, group, request, caller, self.config)

    def heartbeat(
        self, turn: Turn, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """See membership.heartbeat."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return membership.heartbeat(turn, group, member_id, instance_id, generation)

    def leave(self, turn: Turn, group_id: str, who: MemberIdentity) -> ErrorCode:
        """See membership.leave."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return membership.leave(turn, group, who, self.config)

    def timer(self, turn: Turn, key: TimerKey) -> None:
        """A deadline that was set has passed."""
        if key.kind == "expiry":
            self._forget_old_offsets(turn)
            return
        if key.kind == "commit":
            self._commit_timed_out(turn)
            return
        group = self.groups.get(key.name)
        if group is None:
            return
        if key.kind == "session":
            membership.session_timer(turn, group, key.member_id, self.config)
        elif key.kind == "join":
            membership.join_timer(turn, group, self.config)
        else:
            assert key.kind == "sync", key
            membership.sync_timer(turn, group, self.config)

    # --- offsets

    def commit_error(self, turn: Turn, request: OffsetCommitRequest) -> ErrorCode:
        """Whether the sender may commit for the group; a commit of a member is a sign of life."""
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        group = self.groups.get(request.group_id)
        if group is None:
            # offsets may be kept for a group without members; a generation speaks of a group that is gone
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        outsider = not member_id and request.group_instance_id is None and generation < 0
        if group.state is EMPTY and generation < 0:
            return ErrorCode.NONE
        if outsider:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _member_of_generation(group, member_id, request.group_instance_id, generation)
        if error is ErrorCode.NONE and group.state is COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE:
            assert group.state in (STABLE, PREPARING), group.state
            session_timeout_ms = group.members[member_id].session_timeout_ms
            turn.set_timer("session", group.group_id, session_timeout_ms, member_id)
        return error

    def transactional_commit_error(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Whether the sender may commit for the group in a transaction; old clients do not say who they are."""
        group = self.groups.get(request.group_id)
        generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
        if group is None:  # a generation speaks of a group that is gone
            return ErrorCode.NONE if generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID
        if generation < 0 and group.state is EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            return _member_of_generation(group, member_id, instance_id, generation)
        return ErrorCode.NONE

    def store_offsets(
        self,
        turn: Turn,
        group_id: str,
        offsets: dict[TopicPartition, Commit],
        note: OffsetsStored,
        host: str,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Write offsets that may be committed; they count when the batch is committed, or the transaction is."""
        assert offsets, group_id
        stored = [OffsetRecord(group_id, where, commit) for where, commit in offsets.items()]
        code = turn.write(stored, note, producer_id, producer_epoch)
        if code is not ErrorCode.NONE:
            _put_code(note, commit_error(code))
            turn.reply(note.call, note.response)
        elif (group := self.groups.get(group_id)) is not None:
            group.committed_from = host

    def is_in_doubt(self, group: Group) -> bool:
        """Whether it is unknown which offsets of a group are committed, so that none can be told.

        A new leader may find commits in its log that an earlier one has answered, above a high watermark that is older:
        what is below it may be long superseded, until the followers have fetched. If they do not, as when too few are
        in sync, what is in the log is told after offsets.commit.timeout.ms: a leader in sync has all that was answered.
        """
        told_below = max(self.high_watermark, self.given_up_below)
        return told_below < self._doubtful_below and group.offsets.is_any_on_the_way

    def has_room(self, turn: Turn, group_id: str, commits: Mapping[TopicPartition, Commit], host: str) -> bool:
        """Whether offsets may be held for a client of this address."""
        return self._memory.admits(host, commit_bytes(self.groups.get(group_id), group_id, commits), turn.now_ms)

    def metadata_fits(self, metadata: str) -> bool:
        """Whether the text beside an offset is within offset.metadata.max.bytes."""
        most = self.config.offset_metadata_max_bytes
        return len(metadata) * 2 <= most or metadata_length(metadata) <= most

    # --- removal

    def delete(self, turn: Turn, group_id: str, gathering: Gathering, place: object) -> ErrorCode:
        """Forget a group without members, and its offsets. place: in the response, where a failure shows."""
        group = self.groups.get(group_id)
        if group is None or _is_going(group):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        gone = group.offsets.places()
        code = self._remove(turn, group, gone, dead=True, gathering=gathering, places=[place])
        if code is ErrorCode.NONE:
            turn.happened(group_id, f"deleted, with {len(gone)} offsets")
        return code

    def delete_offsets(
        self, turn: Turn, group_id: str, gathering: Gathering, places: Mapping[TopicPartition, object]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Forget offsets of topics that no member reads. Returns: the group's error, or one a partition."""
        group = self.groups.get(group_id)
        if group is None or _is_going(group):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY and group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP
        in_use = {where for where in places if group.state is not EMPTY and group.reads(where[0])}
        free = [where for where in places if where not in in_use]
        have = set(group.offsets.places())
        gone = [where for where in free if where in have]
        dead = bool(free) and _is_spent(group, gone)
        code = self._remove(turn, group, gone, dead=dead, gathering=gathering, places=[places[where] for where in gone])
        codes = dict.fromkeys(in_use, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) | dict.fromkeys(gone, code)
        return {where: codes.get(where, ErrorCode.NONE) for where in places}

    def new_metadata_image(self, turn: Turn, delta: MetadataDelta) -> None:
        """Offsets of partitions that no longer exist are forgotten, and groups that only held those."""
        deleted = set(delta.deleted)
        for group in list(self.groups.values()) if deleted else ():
            gone = [where for where in group.offsets.places() if where in deleted]
            if gone:
                self._remove(turn, group, gone, dead=_is_spent(group, gone))

    def _forget_old_offsets(self, turn: Turn) -> None:
        turn.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)
        wall_ms, retention_ms = turn.wall_ms, self.config.offsets_retention_minutes * MINUTE_MS
        for group in list(self.groups.values()):
            gone = _old_offsets(group, wall_ms, retention_ms)
            dead = _is_spent(group, gone)
            if (gone or dead) and self._remove(turn, group, gone, dead=dead) is ErrorCode.NONE:
                also = ", and the group" if dead else ""
                turn.happened(group.group_id, f"old: {len(gone)} offsets forgotten{also}")

    def _remove(
        self,
        turn: Turn,
        group: Group,
        gone: list[TopicPartition],
        *,
        dead: bool,
        gathering: Gathering | None = None,
        places: Iterable[object] = (),
    ) -> ErrorCode:
        """Write tombstones for offsets, and for the group if it is dead and the log knows of it.

        Returns: NONE, or why some of them could not be written; then the group stays.
        """
        tombstones: list[GroupsRecord] = [OffsetRecord(group.group_id, where, None) for where in gone]
        if dead and group.generation > 0:  # else it only kept offsets, and has no record of its own
            tombstones.append(GroupRecord(group.group_id, None))
        note = None if gathering is None else Removed(gathering, list(places))
        for at in range(0, len(tombstones), TOMBSTONES_PER_BATCH):
            code = turn.write(tombstones[at : at + TOMBSTONES_PER_BATCH], note)
            if code is not ErrorCode.NONE:
                turn.happened(group.group_id, f"could not be written to __consumer_offsets: {code.name}")
                return removal_error(code)
            if gathering is not None:
                gathering.waiting += 1
        if dead:
            for member_id in group.pending_members:
                turn.cancel_timer("session", group.group_id, member_id)
            group.pending_members.clear()
            self._let_go(group)
        return ErrorCode.NONE

    def _let_go(self, group: Group) -> None:
        """Forget a group of which nothing is left, in the log or on its way there."""
        if _is_gone(group) and not group.offsets and self.groups.pop(group.group_id, None) is not None:
            group.state = DEAD

    # --- what has been written

    def committed(self, turn: Turn, note: object) -> None:
        """See Shard.committed."""
        if isinstance(note, OffsetsStored):
            turn.reply(note.call, note.response)
        elif isinstance(note, Removed):
            _one_less(turn, note.gathering)
        elif isinstance(note, GroupStored):
            group = self.groups.get(note.group_id)
            if group is not None:
                membership.assignment_stored(turn, group, note)
        else:
            assert isinstance(note, StaticMemberReplaced), note
            group = self.groups.get(note.group_id)
            if group is not None:
                membership.static_member_stored(turn, group, note)

    def abandoned(self, turn: Turn, note: object, code: ErrorCode) -> None:
        """See Shard.abandoned. At the leadership's end `unload` has answered parked joins and syncs."""
        if isinstance(note, OffsetsStored):
            _put_code(note, commit_error(code))
            turn.reply(note.call, note.response)
        elif isinstance(note, Removed):
            for place in note.places:
                place.error_code = removal_error(code)  # type: ignore[attr-defined]
            _one_less(turn, note.gathering)
        elif isinstance(note, GroupStored):
            group = self.groups.get(note.group_id)
            if group is not None:
                membership.assignment_not_stored(turn, group, note, self.config, code)
        else:
            assert isinstance(note, StaticMemberReplaced), note
            group = self.groups.get(note.group_id)
            if group is not None:
                membership.static_member_not_stored(turn, group, note, code)

    def uncommitted(self, turn: Turn) -> None:
        """See Shard.uncommitted: no request waits longer than offsets.commit.timeout.ms."""
        self._arm_commit_timeout(turn, self.waiting[-1][0])

    def _arm_commit_timeout(self, turn: Turn, end: int) -> None:
        patience = self._patience
        if patience and patience[-1][1] >= end:
            return
        if not patience:
            turn.set_timer("commit", "", self.config.offsets_commit_timeout_ms)
        patience.append((turn.now_ms + self.config.offsets_commit_timeout_ms, end))

    def _commit_timed_out(self, turn: Turn) -> None:
        patience = self._patience
        while patience and patience[0][0] <= turn.now_ms:
            self.given_up_below = patience.popleft()[1]
            self.fail_pending_below(turn, self.given_up_below, ErrorCode.REQUEST_TIMED_OUT)
        if self._doubtful_below <= self.given_up_below:
            self._count_below(self._doubtful_below)
        if patience:
            turn.set_timer("commit", "", patience[0][0] - turn.now_ms)

    def passed(self) -> None:
        """See Shard.passed."""
        patience = self._patience
        while patience and patience[0][1] <= self.high_watermark:
            patience.popleft()
        self._count_below(self.high_watermark)

    def _count_below(self, end: int) -> None:
        """Offsets and tombstones in the log below `end` count."""
        on_the_way = self._on_the_way
        while on_the_way and on_the_way[0][0] < end:
            record_offset, group_id, where, commit = on_the_way.popleft()
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.passed(where, commit, record_offset)
                if commit is None and not self.loading:
                    self._let_go(group)

    # --- replay

    encode = staticmethod(records.encode)  # once an offset: a method that calls it would cost as much again
    decode = staticmethod(records.decode)

    def replay(self, record: GroupsRecord, *, record_offset: int, producer_id: int = -1) -> None:
        """See Shard.replay."""
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = Group(record.group_id, None)
        if record.__class__ is OffsetRecord:
            self._replay_offset(group, record, record_offset, producer_id)
            return
        assert isinstance(record, GroupRecord), record
        group.take(record.value)
        if self.loading:  # live, a generation begins with its members' answers
            group.state = STABLE if group.members else EMPTY

    def _replay_offset(self, group: Group, record: OffsetRecord, record_offset: int, producer_id: int) -> None:
        where, commit = record.where, record.commit
        if commit is not None:
            commit = Commit(commit[0], commit[1], commit[2], commit[3], commit[4], record_offset)
        if producer_id >= 0:
            group.offsets.put_in_transaction(producer_id, where, commit)
            self._in_transactions.setdefault(producer_id, set()).add(group.group_id)
        elif record_offset >= self.high_watermark:
            group.offsets.appended(where, commit, record_offset)
            self._on_the_way.append((record_offset, group.group_id, where, commit))
        elif commit is not None:
            group.offsets.put(where, commit)
        else:
            group.offsets.drop(where)

    def replay_marker(self, producer_id: int, *, commit: bool, record_offset: int) -> None:
        """See Shard.replay_marker."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            for where, offset in group.offsets.end_transaction(producer_id).items():
                if commit:
                    group.offsets.appended(where, offset, record_offset)
                    self._on_the_way.append((record_offset, group_id, where, offset))
        self.passed()

    def loaded(self, turn: Turn) -> None:
        """See Shard.loaded."""
        if self._on_the_way:
            self._doubtful_below = self._on_the_way[-1][0] + 1
            self._arm_commit_timeout(turn, self._doubtful_below)
        for group in list(self.groups.values()):
            if _is_gone(group) and not group.offsets:
                del self.groups[group.group_id]  # its offsets were there, and went
                continue
            if group.state_since_ms is None and group.protocol_type is None:
                group.state_since_ms = turn.wall_ms
            membership.loaded(turn, group, self.config)
        turn.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)

    def unload(self, turn: Turn) -> None:
        """See Shard.unload."""
        for group in self.groups.values():
            membership.unload(turn, group)
        turn.cancel_timer("expiry", "")
        turn.cancel_timer("commit", "")
        self.groups.clear()

    def _make(self, group_id: str, wall_ms: int) -> Group:
        group = self.groups[group_id] = Group(group_id, wall_ms)
        return group


def _one_less(turn: Turn, gathering: Gathering) -> None:
    gathering.waiting -= 1
    if not gathering.waiting:
        turn.reply(gathering.call, gathering.response)


def _put_code(note: OffsetsStored, code: ErrorCode) -> None:
    """Mark the partitions of a commit that failed; those refused before keep their own code."""
    assert isinstance(note.response, OffsetCommitResponse | TxnOffsetCommitResponse), note.response
    failed = set(note.partitions)
    for topic in note.response.topics:
        for each in topic.partitions:
            if (topic.name, each.partition_index) in failed:
                each.error_code = code


def _member_of_generation(group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    error = membership.member_error(group, member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _old_offsets(group: Group, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Offsets to forget: of a group without members since it has none, else of topics without a reader (KIP-211)."""
    if group.protocol_type is None:
        return group.offsets.expired(wall_ms, retention_ms, since_ms=None)
    if group.state is EMPTY:
        return group.offsets.expired(wall_ms, retention_ms, since_ms=group.state_since_ms)
    if group.state is STABLE and group.protocol_type == CONSUMER and group.subscribed is not None:
        return group.offsets.expired(wall_ms, retention_ms, since_ms=None, kept=group.subscribed)
    return []


def _is_spent(group: Group, gone: list[TopicPartition]) -> bool:
    """Whether nothing is left to keep a group for once these offsets are gone."""
    return group.state is EMPTY and not group.pending_members and len(group.offsets.places()) == len(gone)


def _is_going(group: Group) -> bool:
    """Whether a group has been deleted, and is here only until its tombstones are committed."""
    return _is_gone(group) and bool(group.offsets)


def _is_gone(group: Group) -> bool:
    """Whether the log, up to its end, knows of no such group, and no member is about to join it."""
    return group.state is EMPTY and group.generation == 0 and not group.pending_members and not group.offsets.places()
