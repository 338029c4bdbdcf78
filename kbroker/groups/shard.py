"""The groups of one partition of __consumer_offsets, of all kinds: the table of them, their offsets, replay, unloading.

The coordinator (coordinator.py) has already found this shard for the group. Requests are operations, which gather
effects. What must survive is written through the operation; `replay` applies it, and `committed` lets the answers go.
Replaying the same records, in order, into a new shard gives the same groups and offsets. What differs between kinds of
groups is asked of their `GroupKind` (kinds.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.coordinator import Operation, Shard, TimerKey
from kbroker.groups import records
from kbroker.groups.effects import (
    Answered,
    Gathering,
    OffsetsStored,
    Removed,
    commit_error,
    write_error,
)
from kbroker.groups.group import Group, GroupType
from kbroker.groups.kinds import KINDS, TYPE_OF_KEY, GroupKind, Surroundings, refuse_join, refuse_sync
from kbroker.groups.memory import commit_bytes
from kbroker.groups.offsets import Commit, TopicPartition, metadata_length
from kbroker.groups.records import GroupRecord, GroupsRecord, OffsetRecord
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.transactions import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.coordinator import Caller, Store
    from kbroker.coordinator.effects import Again, Call
    from kbroker.metadata.cache import MetadataDelta
    from protocol.message import Message
    from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, MemberIdentity, SyncGroupRequest
    from protocol.messages.transactions import TxnOffsetCommitRequest

MINUTE_MS = 60_000
KNOWS_GONE_SINCE = 6  # TxnOffsetCommit: that the group is not there (KIP-1319)
OF_KAFKA_4_SINCE = 5  # TxnOffsetCommit: no coordinator of Kafka 3.9 serves it
COMMIT_KNOWS_GONE_SINCE = 9  # the same of OffsetCommit (KIP-848)

TOMBSTONES_PER_BATCH = 1_000
"""Those of one group; all in one batch would be too large from some 20,000 on, and the group could never be deleted."""


class GroupShard(Shard[GroupsRecord]):
    """Groups by id."""

    IF_MISPLACED = (
        "The offsets that these groups have committed are not found: consumers begin where auto.offset.reset says."
    )

    def __init__(self, partition: int, epoch: int, store: Store, surroundings: Surroundings) -> None:
        super().__init__(partition, epoch, store)
        self.config, self.rng, self.memory, self.image, self.group_configs = surroundings
        self.groups: dict[str, Group] = {}
        self._kinds: dict[GroupType, GroupKind] = {}
        self._in_transactions: dict[int, set[str]] = {}  # groups by producer id
        self._on_the_way: deque[tuple[int, str, TopicPartition, Commit | None]] = deque()  # offsets, by record_offset
        self._topic_ids: dict[bytes, bytes] = {}  # of committed offsets: each once, though every record has its own
        self._doubtful_below = 0  # the end of what was on the way already when this began to serve
        self.given_up_below = 0  # the end of what was waited for too long
        self._patience: deque[tuple[int, int]] = deque()  # until when what ends here is waited for

    @property
    def keys(self) -> Iterable[str]:
        """See Shard.keys."""
        return self.groups

    # --- kinds

    def kind(self, group_type: GroupType) -> GroupKind:
        """The rules of a kind of groups; loaded now if they were not before."""
        return self._kinds.get(group_type) or self._kinds.setdefault(group_type, KINDS[group_type]()(self))

    def has_met(self, group_type: GroupType) -> bool:
        """Whether there may be groups of this kind, or were since this began to serve."""
        return group_type in self._kinds

    def kind_of(self, group: Group | None) -> GroupKind:
        """The rules of a group's kind; where there is none, those of classic groups."""
        return self.kind(GroupType.CLASSIC if group is None else group.TYPE)

    def _make(self, group_type: GroupType, group_id: str, before: Group | None = None) -> Group:
        """A group that a record speaks of. before: in whose place it comes, with its offsets."""
        group = self.groups[group_id] = self.kind(group_type).make(group_id, None)
        if before is not None:
            group.offsets, group.committed_from = before.offsets, before.committed_from
        return group

    def write_and_reply(
        self,
        operation: Operation,
        changes: list[GroupsRecord],
        call: Call,
        response: Message,
        refused: Callable[[ErrorCode], Message],
        again: Again | None = None,
    ) -> bool:
        """Write records in one batch, and answer when they, and all before them, are committed.

        again: see Reply. Returns: whether they were written, and so applied; else the answer is `refused`.
        """
        if changes and (code := operation.write(changes, None)) is not ErrorCode.NONE:
            operation.reply(call, refused(write_error(code)))
            return False
        if self.has_uncommitted:
            self.tell_in_order(operation, Answered(call, response, refused, again))
        else:
            operation.reply(call, response, again)
        return True

    # --- requests of classic members

    def join(self, operation: Operation, request: JoinGroupRequest, caller: Caller) -> None:
        """JoinGroup: by the rules of the group's kind."""
        config, group = self.config, self.groups.get(request.group_id)
        kind = self.kind_of(group)
        if config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            kind.join(operation, group, request, caller)
        else:
            refuse_join(operation, caller, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)

    def sync(self, operation: Operation, request: SyncGroupRequest, caller: Caller) -> None:
        """SyncGroup: by the rules of the group's kind."""
        group = self.groups.get(request.group_id)
        if group is None:
            refuse_sync(operation, caller, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self.kind_of(group).sync(operation, group, request, caller)

    def heartbeat(self, operation: Operation, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat: by the rules of the group's kind."""
        group = self.groups.get(request.group_id)
        return (
            ErrorCode.UNKNOWN_MEMBER_ID if group is None else self.kind_of(group).heartbeat(operation, group, request)
        )

    def leave(self, operation: Operation, group_id: str, who: list[MemberIdentity]) -> list[ErrorCode]:
        """LeaveGroup: by the rules of the group's kind; a code for each."""
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID for _ in who]
        return self.kind_of(group).leave(operation, group, who)

    def timer(self, operation: Operation, key: TimerKey) -> None:
        """A deadline that was set has passed."""
        if key.kind == "expiry":
            self._expire_offsets(operation)
        elif key.kind == "commit":
            self._commit_timed_out(operation)
        elif (group := self.groups.get(key.name)) is not None:
            self.kind_of(group).timer(operation, group, key)

    # --- offsets

    def commit_error(self, operation: Operation, request: OffsetCommitRequest, version: int) -> ErrorCode:
        """Whether the sender may commit for the group; a commit of a member may be a sign of life."""
        group = self.groups.get(request.group_id)
        if group is None:
            # offsets may be kept for a group without members; a generation speaks of a group that is gone
            gone = ErrorCode.GROUP_ID_NOT_FOUND if version >= COMMIT_KNOWS_GONE_SINCE else ErrorCode.ILLEGAL_GENERATION
            return ErrorCode.NONE if request.generation_id_or_member_epoch < 0 else gone
        return self.kind_of(group).commit_error(operation, group, request, version)

    def transactional_commit_error(self, request: TxnOffsetCommitRequest, version: int) -> ErrorCode:
        """Whether the sender may commit for the group in a transaction."""
        group = self.groups.get(request.group_id)
        if group is None:  # a generation speaks of a group that is gone
            of_version = ErrorCode.ILLEGAL_GENERATION if version >= OF_KAFKA_4_SINCE else ErrorCode.UNKNOWN_MEMBER_ID
            gone = ErrorCode.GROUP_ID_NOT_FOUND if version >= KNOWS_GONE_SINCE else of_version
            return ErrorCode.NONE if request.generation_id < 0 else gone
        return self.kind_of(group).transactional_commit_error(group, request, version)

    def store_offsets(
        self,
        operation: Operation,
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
        code = operation.write(stored, note, producer_id, producer_epoch)
        if code is not ErrorCode.NONE:
            _put_code(note, commit_error(code))
            operation.reply(note.call, note.response)
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

    def has_room(
        self, operation: Operation, group_id: str, commits: Mapping[TopicPartition, Commit], host: str
    ) -> bool:
        """Whether offsets may be held for a client of this address."""
        return self.memory.admits(host, commit_bytes(self.groups.get(group_id), group_id, commits), operation.now_ms)

    def metadata_fits(self, metadata: str) -> bool:
        """Whether the text beside an offset is within offset.metadata.max.bytes."""
        most = self.config.offset_metadata_max_bytes
        return len(metadata) * 2 <= most or metadata_length(metadata) <= most

    # --- removal

    def delete(self, operation: Operation, group_id: str, gathering: Gathering, place: object) -> ErrorCode:
        """Forget a group without members, and its offsets. place: in the response, where a failure shows."""
        group = self.groups.get(group_id)
        if group is None or group.is_going:
            return ErrorCode.GROUP_ID_NOT_FOUND
        code = self.kind_of(group).delete_error(group)
        if code is not ErrorCode.NONE:
            return code
        gone = group.offsets.places()
        code = self._remove(operation, group, gone, dead=True, gathering=gathering, places=[place])
        if code is ErrorCode.NONE:
            operation.event(group_id, f"deleted, with {len(gone)} offsets")
        return code

    def delete_offsets(
        self, operation: Operation, group_id: str, gathering: Gathering, places: Mapping[TopicPartition, object]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Forget offsets of topics that no member reads. Returns: the group's error, or one a partition."""
        group = self.groups.get(group_id)
        if group is None or group.is_going:
            return ErrorCode.GROUP_ID_NOT_FOUND
        code = self.kind_of(group).offset_delete_error(group)
        if code is not ErrorCode.NONE:
            return code
        in_use = {where for where in places if group.size and group.reads(where[0])}
        free = [where for where in places if where not in in_use]
        have = set(group.offsets.places())
        gone = [where for where in free if where in have]
        dead = bool(free) and group.is_spent_without(len(gone))
        code = self._remove(
            operation, group, gone, dead=dead, gathering=gathering, places=[places[where] for where in gone]
        )
        codes = dict.fromkeys(in_use, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) | dict.fromkeys(gone, code)
        return {where: codes.get(where, ErrorCode.NONE) for where in places}

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """Offsets of partitions that no longer exist are forgotten, and groups that only held those.

        Not those of another topic that has got the name: this broker may hear late of both.
        """
        for kind in list(self._kinds.values()):
            kind.new_metadata_image(operation, delta)
        deleted = set(delta.deleted)
        for group in list(self.groups.values()) if deleted else ():
            gone = [
                where
                for where in group.offsets.places()
                if where in deleted and not group.offsets.has_of(where, self.image.topic_id(where[0]))
            ]
            if gone:
                self._remove(operation, group, gone, dead=group.is_spent_without(len(gone)))

    def _expire_offsets(self, operation: Operation) -> None:
        operation.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)
        wall_ms, retention_ms = operation.wall_ms, self.config.offsets_retention_minutes * MINUTE_MS
        for group in list(self.groups.values()):
            aging = group.aging()
            gone = [] if aging is None else group.offsets.expired(wall_ms, retention_ms, **aging._asdict())
            dead = group.is_spent_without(len(gone))
            if (gone or dead) and self._remove(operation, group, gone, dead=dead) is ErrorCode.NONE:
                also = ", and the group" if dead else ""
                operation.event(group.group_id, f"old: {len(gone)} offsets forgotten{also}")

    def _remove(
        self,
        operation: Operation,
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
        if dead:
            tombstones += self.kind_of(group).tombstones(group)
        note = None if gathering is None else Removed(gathering, list(places))
        for at in range(0, len(tombstones), TOMBSTONES_PER_BATCH):
            code = operation.write(tombstones[at : at + TOMBSTONES_PER_BATCH], note)
            if code is not ErrorCode.NONE:
                operation.event(group.group_id, f"could not be written to __consumer_offsets: {code.name}")
                return write_error(code)
            if gathering is not None:
                gathering.waiting += 1
        if dead:
            self.kind_of(group).forgotten(operation, group)
            self._release(group.group_id)
        return ErrorCode.NONE

    def _release(self, group_id: str) -> None:
        """Forget a group of which nothing is left, in the log or on its way there."""
        group = self.groups.get(group_id)
        if group is not None and group.is_gone and not group.offsets:
            del self.groups[group_id]

    # --- what has been written

    def committed(self, operation: Operation, note: object) -> None:
        """See Shard.committed."""
        if isinstance(note, Answered):
            operation.reply(note.call, note.response, note.again)
        elif isinstance(note, OffsetsStored):
            operation.reply(note.call, note.response)
        elif isinstance(note, Removed):
            _one_less(operation, note.gathering)
        else:
            self.kind(note.group_type).committed(operation, note)  # type: ignore[attr-defined]

    def abandoned(self, operation: Operation, note: object, code: ErrorCode) -> None:
        """See Shard.abandoned."""
        if isinstance(note, OffsetsStored):
            _put_code(note, commit_error(code))
            operation.reply(note.call, note.response)
        elif isinstance(note, Answered):
            operation.reply(note.call, note.refused(write_error(code)))
        elif isinstance(note, Removed):
            for place in note.places:
                place.error_code = write_error(code)  # type: ignore[attr-defined]
            _one_less(operation, note.gathering)
        else:
            self.kind(note.group_type).abandoned(operation, note, code)  # type: ignore[attr-defined]

    def uncommitted(self, operation: Operation) -> None:
        """See Shard.uncommitted: no request waits longer than offsets.commit.timeout.ms."""
        self._arm_commit_timeout(operation, self.waiting[-1][0])

    def _arm_commit_timeout(self, operation: Operation, end: int) -> None:
        patience = self._patience
        if patience and patience[-1][1] >= end:
            return
        if not patience:
            operation.set_timer("commit", "", self.config.offsets_commit_timeout_ms)
        patience.append((operation.now_ms + self.config.offsets_commit_timeout_ms, end))

    def _commit_timed_out(self, operation: Operation) -> None:
        patience = self._patience
        while patience and patience[0][0] <= operation.now_ms:
            self.given_up_below = patience.popleft()[1]
            self.fail_pending_below(operation, self.given_up_below, ErrorCode.REQUEST_TIMED_OUT)
        if self._doubtful_below <= self.given_up_below:
            self._count_below(self._doubtful_below)
        if patience:
            operation.set_timer("commit", "", patience[0][0] - operation.now_ms)

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
                    self._release(group_id)

    # --- replay

    encode = staticmethod(records.encode)  # once an offset: a method that calls it would cost as much again
    decode = staticmethod(records.decode)

    def replay(self, record: GroupsRecord, *, record_offset: int, producer_id: int = -1) -> None:
        """See Shard.replay."""
        group = self.groups.get(record.group_id)
        if isinstance(record, OffsetRecord):
            if group is None:
                group = self._make(GroupType.CLASSIC, record.group_id)
            self._replay_offset(group, record, record_offset, producer_id)
            return
        group_type = GroupType.CLASSIC if isinstance(record, GroupRecord) else TYPE_OF_KEY[record.key_type]
        if group is None or group.TYPE is not group_type:
            if record.value is None:
                return  # it speaks of what is not there, or not of this kind any more
            group = self._make(group_type, record.group_id, group)
        group.changes += 1
        if self.kind(group_type).replay(group, record):
            self._make(GroupType.CLASSIC, record.group_id, group)  # what is left of it are offsets

    def _replay_offset(self, group: Group, record: OffsetRecord, record_offset: int, producer_id: int) -> None:
        where, commit = record.where, record.commit
        if commit is not None:
            topic_id = self._topic_ids.setdefault(commit[6], commit[6])
            commit = Commit(commit[0], commit[1], commit[2], commit[3], commit[4], record_offset, topic_id)
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

    def loaded(self, operation: Operation) -> None:
        """See Shard.loaded."""
        if self._on_the_way:
            self._doubtful_below = self._on_the_way[-1][0] + 1
            self._arm_commit_timeout(operation, self._doubtful_below)
        for group in list(self.groups.values()):
            if group.is_gone and not group.offsets:
                del self.groups[group.group_id]  # its offsets were there, and went
            else:
                self.kind_of(group).loaded(operation, group)
        operation.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)

    def unload(self, operation: Operation) -> None:
        """See Shard.unload."""
        for group in self.groups.values():
            self.kind_of(group).unload(operation, group)
        operation.cancel_timer("expiry", "")
        operation.cancel_timer("commit", "")
        self.groups.clear()


def _one_less(operation: Operation, gathering: Gathering) -> None:
    gathering.waiting -= 1
    if not gathering.waiting:
        operation.reply(gathering.call, gathering.response)


def _put_code(note: OffsetsStored, code: ErrorCode) -> None:
    """Mark the partitions of a commit that failed; those refused before keep their own code."""
    assert isinstance(note.response, OffsetCommitResponse | TxnOffsetCommitResponse), note.response
    failed = set(note.partitions)
    for topic in note.response.topics:
        for each in topic.partitions:
            if (topic.name, each.partition_index) in failed:
                each.error_code = code
