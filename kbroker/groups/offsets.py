"""The offsets of one group: what is committed, what is on its way, what has grown too old.

Owned by a Group, changed by its shard's replay alone: an offset is `appended` when its record is in the log, and counts
once that is committed. The offsets of a transaction count from its marker on. It never decides whether a commit is
allowed (shard.py does).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

TopicPartition: TypeAlias = tuple[str, int]


class Commit(NamedTuple):
    """One committed offset.

    offset: the next one to read. leader_epoch: -1 unknown. committed_ms: when. expires_ms: an expiry that the client
    asked for (OffsetCommit v2-v4), -1 for the broker's own. record_offset: that of its record in the
    partition of __consumer_offsets, -1 while it is not known; the greater one wins. topic_id: of the topic that it was
    committed for, zero unknown: another one may have got that name since.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = -1
    record_offset: int = -1
    topic_id: bytes = ZERO_UUID

    def is_of(self, topic_id: bytes) -> bool:
        """Whether it is, or may be, an offset of this topic; zero: of one whose id is not known."""
        return self.topic_id == topic_id or ZERO_UUID in (self.topic_id, topic_id)


NOWHERE = Commit(-1, -1, "", 0)  # what a partition without an offset answers


class GroupOffsets:
    """Offsets by (topic, partition).

    committed: what readers are told. Beside it are offsets, and tombstones (None), that are in the log and that the
    high watermark has still to pass, and those of transactions that are open.
    """

    __slots__ = ("_in_transactions", "_on_the_way", "committed")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Commit] = {}
        self._on_the_way: dict[TopicPartition, tuple[int, Commit | None]] = {}  # the latest, with its place in the log
        self._in_transactions: dict[int, dict[TopicPartition, Commit]] = {}  # by producer id

    def __bool__(self) -> bool:
        """Whether there is anything to keep the group for."""
        return bool(self.committed or self._on_the_way or self._in_transactions)

    # --- plain commits

    def appended(self, where: TopicPartition, commit: Commit | None, record_offset: int) -> None:
        """An offset, or a tombstone, is in the log at `record_offset`, but not committed yet."""
        self._on_the_way[where] = record_offset, commit
        if commit is None:
            self._drop_in_transactions(where)

    def passed(self, where: TopicPartition, commit: Commit | None, record_offset: int) -> None:
        """What was `appended` is committed."""
        if self._on_the_way.get(where, (-1, None))[0] == record_offset:
            del self._on_the_way[where]
        if commit is not None:
            self._put(where, commit)
        else:
            before = self.committed.get(where)
            if before is not None and before.record_offset < record_offset:
                del self.committed[where]

    def put(self, where: TopicPartition, commit: Commit) -> None:
        """A plain commit that is committed: the log's order is the order that counts."""
        self.committed[where] = commit

    def drop(self, where: TopicPartition) -> None:
        """A tombstone that is committed: the offset is gone, also from transactions that are open (as in Kafka 4)."""
        self.committed.pop(where, None)
        self._drop_in_transactions(where)

    # --- commits in transactions

    def put_in_transaction(self, producer_id: int, where: TopicPartition, commit: Commit | None) -> None:
        """A commit, or a tombstone, inside a transaction."""
        if commit is not None:
            self._in_transactions.setdefault(producer_id, {})[where] = commit
        else:
            self._take_back(producer_id, where)

    def end_transaction(self, producer_id: int) -> dict[TopicPartition, Commit]:
        """The transaction's marker is in the log; returns its offsets, which are `appended` or `passed` now."""
        return self._in_transactions.pop(producer_id, {})

    # --- questions

    def unstable(self, where: TopicPartition, given_up_below: int = 0) -> bool:
        """Whether a commit for a partition is still on its way (KIP-447). given_up_below: not one that is older."""
        record_offset, _ = self._on_the_way.get(where, (-1, None))
        return record_offset >= given_up_below or any(where in pending for pending in self._in_transactions.values())

    def has_of(self, where: TopicPartition, topic_id: bytes) -> bool:
        """Whether some commit for a partition, an unfinished one too, is known to be of the topic with this id."""
        commits = [self.committed.get(where), self._on_the_way.get(where, (0, None))[1]]
        commits += [pending.get(where) for pending in self._in_transactions.values()]
        return topic_id != ZERO_UUID and any(each is not None and each.topic_id == topic_id for each in commits)

    @property
    def is_any_on_the_way(self) -> bool:
        """Whether the high watermark has still to pass an offset, or a tombstone."""
        return bool(self._on_the_way)

    def expired(
        self,
        wall_ms: int,
        retention_ms: int,
        *,
        since_ms: int | None,
        kept: set[str] = frozenset(),  # type: ignore[assignment]
    ) -> list[TopicPartition]:
        """Offsets that are older than offsets.retention.minutes. Source: KIP-211.

        since_ms: when their age began; None for each one's own commit. kept: topics that are being read.
        """
        return [
            where
            for where, commit in self.committed.items()
            if where[0] not in kept and not self.unstable(where) and _expired(commit, wall_ms, retention_ms, since_ms)
        ]

    def all(self) -> Iterator[Commit]:
        """Every offset that is remembered: committed, on its way, or in a transaction."""
        yield from self.committed.values()
        yield from (commit for _, commit in self._on_the_way.values() if commit is not None)
        for pending in self._in_transactions.values():
            yield from pending.values()

    def places(self) -> list[TopicPartition]:
        """The partitions that have an offset in the log, committed or on its way, or in a transaction.

        Those whose tombstone is on its way have none.
        """
        pending = chain.from_iterable(self._in_transactions.values())
        on_the_way = (where for where, (_, commit) in self._on_the_way.items() if commit is not None)
        found = dict.fromkeys(chain(self.committed, on_the_way, pending))
        return [where for where in found if self._on_the_way.get(where, (0, NOWHERE))[1] is not None]

    def _drop_in_transactions(self, where: TopicPartition) -> None:
        for producer_id in list(self._in_transactions):
            self._take_back(producer_id, where)

    def _take_back(self, producer_id: int, where: TopicPartition) -> None:
        pending = self._in_transactions.get(producer_id, {})
        pending.pop(where, None)
        if not pending:  # then it is nothing to keep the group for
            self._in_transactions.pop(producer_id, None)

    def _put(self, where: TopicPartition, commit: Commit) -> None:
        before = self.committed.get(where)
        if before is None or before.record_offset < commit.record_offset:
            self.committed[where] = commit


def _expired(commit: Commit, wall_ms: int, retention_ms: int, since_ms: int | None) -> bool:
    if commit.expires_ms >= 0:
        return wall_ms >= commit.expires_ms
    return wall_ms - (commit.committed_ms if since_ms is None else since_ms) >= retention_ms


def metadata_length(metadata: str) -> int:
    """The length that offset.metadata.max.bytes bounds: UTF-16 units, as Java counts."""
    return len(metadata.encode("utf-16-le", "surrogatepass")) // 2
