"""The groups of one partition of __consumer_offsets: every operation on them, replay, and unloading.

The coordinator (coordinator.py) has already found this shard for the group; it lives as long as this broker leads the
partition in one leader epoch. Operations take `now_ms` and return effects. What must survive is appended before it is
told: `written` is called when an append is committed or has failed, and only then do the answers leave. Replaying the
same records, in order, into a new shard gives the same groups and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.config import BrokerConfig
from kbroker.groups import membership, records
from kbroker.groups.effects import (
    Caller,
    EmptyGroupStored,
    Gathering,
    GroupStored,
    OffsetsStored,
    Removed,
    StaticMemberReplaced,
    TimerKey,
    Turn,
    Write,
)
from kbroker.groups.group import COMPLETING, CONSUMER, DEAD, EMPTY, PREPARING, STABLE, Group
from kbroker.groups.offsets import Commit, TopicPartition, metadata_length
from kbroker.ports import Random
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest
from protocol.messages.groups import JoinGroupRequest, MemberIdentity, SyncGroupRequest

if TYPE_CHECKING:
    from protocol.messages.transactions import TxnOffsetCommitRequest

MINUTE_MS = 60_000

TOMBSTONES_PER_BATCH = 1_000
"""Those of one group; all in one batch would be too large from some 20,000 on, and the group could never be deleted."""


class GroupShard:
    """Groups by id. loading: until `loaded`, nothing but replay touches it."""

    def __init__(self, partition: int, epoch: int, config: BrokerConfig, chance: Random) -> None:
        self.partition = partition
        self.epoch = epoch
        self.config = config
        self.groups: dict[str, Group] = {}
        self.loading = True
        self._chance = chance
        self._commits = 0
        self._in_transactions: dict[int, set[str]] = {}  # groups by producer id
        self._deleted_meanwhile: list[TopicPartition] = []  # partitions, while this was loading

    def turn(self, now_ms: int) -> Turn:
        """Begin an operation."""
        return Turn(now_ms, self.partition, self.epoch)

    # --- membership

    def join(self, turn: Turn, request: JoinGroupRequest, caller: Caller) -> None:
        """See membership.join; a newcomer makes the group, a member of a group that is gone has to come anew."""
        config = self.config
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            membership.refuse_join(turn, caller, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
            return
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                membership.refuse_join(turn, caller, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return
            group = self._make(request.group_id, turn.now_ms)
        membership.join(turn, group, request, caller, config, self._chance)

    def sync(self, turn: Turn, request: SyncGroupRequest, caller: Caller) -> None:
        """See membership.sync."""
        group = self.groups.get(request.group_id)
        if group is None:
            membership.refuse_sync(turn, caller, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            membership.sync(turn, group, request, caller)

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
        group = self.groups.get(key.group_id)
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
        if group is None or (generation < 0 and group.state is EMPTY):
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            return _member_of_generation(group, member_id, instance_id, generation)
        return ErrorCode.NONE

    def store_offsets(
        self,
        turn: Turn,
        group_id: str,
        offsets: dict[TopicPartition, Commit],
        write: OffsetsStored,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Append offsets that may be committed; they count when the append is committed, or the transaction is."""
        assert offsets, group_id
        group = self.groups.get(group_id) or self._make(group_id, turn.now_ms)
        if producer_id >= 0:
            group.offsets.begin_transaction(producer_id, offsets)
            self._in_transactions.setdefault(producer_id, set()).add(group_id)
        else:
            group.offsets.begin(write.number, offsets)
        stored = [records.offset_record(group_id, where, commit) for where, commit in offsets.items()]
        turn.append(stored, write, producer_id, producer_epoch)

    def next_commit(self) -> int:
        """A number for a commit, larger than all before."""
        self._commits += 1
        return self._commits

    def metadata_fits(self, metadata: str) -> bool:
        """Whether the text beside an offset is within offset.metadata.max.bytes."""
        most = self.config.offset_metadata_max_bytes
        return len(metadata) * 2 <= most or metadata_length(metadata) <= most

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The marker of a producer's transaction is in this partition."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, commit=commit)

    # --- removal

    def delete(self, turn: Turn, group_id: str, gathering: Gathering, place: object) -> ErrorCode:
        """Forget a group without members, and its offsets. place: in the response, where a failure shows."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        gone = group.offsets.forget(group.offsets.places())
        self._remove(turn, group, gone, dead=True, gathering=gathering, places=[place])
        turn.happened(group_id, f"deleted, with {len(gone)} offsets")
        return ErrorCode.NONE

    def delete_offsets(
        self, turn: Turn, group_id: str, gathering: Gathering, places: Mapping[TopicPartition, object]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Forget offsets of topics that no member reads. Returns: the group's error, or one a partition."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY and group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP
        in_use = {where for where in places if group.state is not EMPTY and group.reads(where[0])}
        free = [where for where in places if where not in in_use]
        gone = group.offsets.forget(free)
        self._remove(
            turn,
            group,
            gone,
            dead=bool(free) and _is_spent(group),
            gathering=gathering,
            places=[places[where] for where in gone],
        )
        return {where: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if where in in_use else ErrorCode.NONE for where in places}

    def partitions_deleted(self, turn: Turn, partitions: Iterable[TopicPartition]) -> None:
        """Offsets of partitions that no longer exist are forgotten, and groups that only held those."""
        if self.loading:
            self._deleted_meanwhile += partitions
            return
        deleted = set(partitions)
        for group in list(self.groups.values()):
            gone = group.offsets.forget([where for where in group.offsets.places() if where in deleted])
            if gone:
                self._remove(turn, group, gone, dead=_is_spent(group))

    def _forget_old_offsets(self, turn: Turn) -> None:
        turn.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)
        retention_ms = self.config.offsets_retention_minutes * MINUTE_MS
        for group in list(self.groups.values()):
            old = _old_offsets(group, turn.now_ms, retention_ms)
            gone = group.offsets.forget(old)
            dead = _is_spent(group)
            if gone or dead:
                turn.happened(group.group_id, f"old: {len(gone)} offsets forgotten{', and the group' if dead else ''}")
            self._remove(turn, group, gone, dead=dead)

    def _remove(
        self,
        turn: Turn,
        group: Group,
        gone: list[TopicPartition],
        *,
        dead: bool,
        gathering: Gathering | None = None,
        places: Iterable[object] = (),
    ) -> None:
        """Append tombstones for offsets, and for the group if it is dead and the log knows of it."""
        tombstones = [records.offset_tombstone(group.group_id, where) for where in gone]
        if dead:
            for member_id in group.pending:
                turn.cancel_timer("session", group.group_id, member_id)
            group.become(DEAD, turn.now_ms)
            del self.groups[group.group_id]
            if group.generation > 0:  # else it only kept offsets, and has no record of its own
                tombstones.append(records.group_tombstone(group.group_id))
        removed = Removed(self.partition, self.epoch, group.group_id, gathering, list(places))
        for at in range(0, len(tombstones), TOMBSTONES_PER_BATCH):
            turn.append(tombstones[at : at + TOMBSTONES_PER_BATCH], removed)
            if gathering is not None:
                gathering.waiting += 1

    # --- appends that are over

    def written(self, turn: Turn, write: Write, error: ErrorCode, position: int) -> None:
        """An append of this shard is committed, or failed. position: of its first record, -1 if it failed."""
        group = self.groups.get(write.group_id)
        if isinstance(write, OffsetsStored):
            if group is not None:
                _offsets_written(group, write, error, position)
        elif isinstance(write, EmptyGroupStored | Removed):
            if error is not ErrorCode.NONE:  # the log still says what was; it is corrected when it is next written
                turn.happened(write.group_id, f"could not be written to __consumer_offsets: {error.name}")
        elif group is None:
            return
        elif isinstance(write, GroupStored):
            membership.assignment_stored(turn, group, write, error, self.config)
        else:
            assert isinstance(write, StaticMemberReplaced), write
            membership.static_member_stored(turn, group, write, error)

    # --- loading

    def replay(self, key: bytes, value: bytes | None, *, position: int, producer_id: int = -1) -> None:
        """Take in one record of the partition, in the order of the log.

        position: the offset of its batch's first record. producer_id: of a transactional batch, else -1.
        Raises: DecodeError for a record that cannot be read.
        """
        assert self.loading, self.partition
        about = records.read_key(key)
        if isinstance(about, records.OffsetKey):
            self._replay_offset(about, value, position, producer_id)
        elif isinstance(about, str):
            self._replay_group(about, value)

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        """Take in the marker that ends a producer's transaction."""
        assert self.loading, self.partition
        self.end_transaction(producer_id, commit=commit)

    def loaded(self, turn: Turn) -> None:
        """All records have been replayed: begin to serve."""
        self.loading = False
        for group in list(self.groups.values()):
            if group.state is EMPTY and group.generation == 0 and not group.offsets:
                del self.groups[group.group_id]  # its offsets were there, and went
                continue
            if group.state_since_ms is None and group.protocol_type is None:
                group.state_since_ms = turn.now_ms
            membership.loaded(turn, group, self.config)
        self.partitions_deleted(turn, self._deleted_meanwhile)
        turn.set_timer("expiry", "", self.config.offsets_retention_check_interval_ms)

    def unload(self, turn: Turn) -> None:
        """This broker no longer leads the partition: answer everybody, forget everything."""
        for group in self.groups.values():
            membership.unload(turn, group)
        turn.cancel_timer("expiry", "")
        self.groups.clear()

    def _replay_offset(self, key: records.OffsetKey, value: bytes | None, position: int, producer_id: int) -> None:
        group = self.groups.get(key.group_id)
        if group is None:
            group = self.groups[key.group_id] = Group(key.group_id, None)
        offsets = group.offsets
        if value is None:
            if producer_id >= 0:
                offsets.drop_in_transaction(producer_id, key.where)
            else:
                offsets.drop(key.where)
            return
        commit = records.read_offset(value, position)
        if producer_id >= 0:
            offsets.begin_transaction(producer_id, {key.where: commit})
            self._in_transactions.setdefault(producer_id, set()).add(key.group_id)
        else:
            offsets.put(key.where, commit)

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        before = self.groups.get(group_id)
        group = Group(group_id, None) if value is None else records.read_group(group_id, value)
        if before is not None:
            group.offsets = before.offsets  # a tombstone of the group leaves offsets that were not deleted
        self.groups[group_id] = group

    def _make(self, group_id: str, now_ms: int) -> Group:
        group = self.groups[group_id] = Group(group_id, now_ms)
        return group


def _member_of_generation(group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    error = membership.member_error(group, member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _offsets_written(group: Group, write: OffsetsStored, error: ErrorCode, position: int) -> None:
    if write.producer_id >= 0:
        if error is ErrorCode.NONE:
            group.offsets.written_in_transaction(write.producer_id, write.offsets, position)
        else:
            group.offsets.fail_in_transaction(write.producer_id, write.offsets)
    elif error is ErrorCode.NONE:
        group.offsets.finish(write.number, write.offsets, position)
    else:
        group.offsets.fail(write.number, write.offsets)


def _old_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Offsets to forget: of a group without members since it has none, else of topics that nobody reads (KIP-211)."""
    if group.protocol_type is None:
        return group.offsets.expired(now_ms, retention_ms, since_ms=None)
    if group.state is EMPTY:
        return group.offsets.expired(now_ms, retention_ms, since_ms=group.state_since_ms)
    if group.state is STABLE and group.protocol_type == CONSUMER and group.subscribed is not None:
        return group.offsets.expired(now_ms, retention_ms, since_ms=None, kept=group.subscribed)
    return []


def _is_spent(group: Group) -> bool:
    """Whether nothing is left to keep a group for."""
    return group.state is EMPTY and not group.offsets and not group.pending
