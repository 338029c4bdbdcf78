"""The offsets of one group: what is committed, what is on its way, what has grown too old.

Owned by a Group, changed by its shard: an offset is `begin`-ned when its record goes to the log, and counts from
`finish`, when the record is committed. The offsets of a transaction count from its marker on. Replay puts them in
directly. It never decides whether a commit is allowed (membership.py does).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]


class Commit(NamedTuple):
    """One committed offset.

    offset: the next one to read. leader_epoch: -1 unknown. committed_ms: when. expires_ms: an expiry that the client
    asked for (OffsetCommit v2-v4), -1 for the broker's own. position: the offset of its record in __consumer_offsets,
    -1 while it is not known; later positions win.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = -1
    position: int = -1


class GroupOffsets:
    """Offsets by (topic, partition)."""

    __slots__ = ("_in_transactions", "_on_the_way", "committed")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Commit] = {}
        self._on_the_way: dict[TopicPartition, int] = {}  # number of the latest commit under way
        self._in_transactions: dict[int, dict[TopicPartition, Commit]] = {}  # by producer id

    def __bool__(self) -> bool:
        """Whether there is anything to keep the group for."""
        return bool(self.committed or self._on_the_way or self._in_transactions)

    # --- plain commits

    def begin(self, number: int, offsets: Iterable[TopicPartition]) -> None:
        """A commit is being written. number: larger than any before."""
        for where in offsets:
            assert self._on_the_way.get(where, -1) < number, (where, number)
            self._on_the_way[where] = number

    def finish(self, number: int, offsets: dict[TopicPartition, Commit], position: int) -> None:
        """A commit has been written at `position`. An offset whose topic was deleted meanwhile stays forgotten."""
        for where, commit in offsets.items():
            if where in self._on_the_way:
                self._put(where, commit._replace(position=position))
        self.fail(number, offsets)

    def fail(self, number: int, offsets: Iterable[TopicPartition]) -> None:
        """A commit is over; nothing of it is on the way any more."""
        for where in offsets:
            if self._on_the_way.get(where) == number:
                del self._on_the_way[where]

    def put(self, where: TopicPartition, commit: Commit) -> None:
        """Replay of a plain commit: the log's order is the order that counts."""
        self.committed[where] = commit

    def drop(self, where: TopicPartition) -> None:
        """Replay of a plain tombstone."""
        self.committed.pop(where, None)

    # --- commits in transactions

    def begin_transaction(self, producer_id: int, offsets: dict[TopicPartition, Commit]) -> None:
        """Offsets of a transaction are being written; they have no position yet."""
        self._in_transactions.setdefault(producer_id, {}).update(offsets)

    def written_in_transaction(self, producer_id: int, offsets: dict[TopicPartition, Commit], position: int) -> None:
        """Offsets of a transaction have been written at `position`."""
        pending = self._in_transactions.get(producer_id, {})
        for where, commit in offsets.items():
            if pending.get(where) == commit:
                pending[where] = commit._replace(position=position)

    def fail_in_transaction(self, producer_id: int, offsets: Iterable[TopicPartition]) -> None:
        """Offsets of a transaction could not be written."""
        pending = self._in_transactions.get(producer_id, {})
        for where in offsets:
            pending.pop(where, None)
        if not pending:
            self._in_transactions.pop(producer_id, None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The transaction's marker is in the log: its offsets count, or are forgotten."""
        for where, offset in self._in_transactions.pop(producer_id, {}).items():
            if commit:
                assert offset.position >= 0, f"{where} of producer {producer_id} was never written"
                self._put(where, offset)

    def drop_in_transaction(self, producer_id: int, where: TopicPartition) -> None:
        """Replay of a tombstone inside a transaction."""
        self._in_transactions.get(producer_id, {}).pop(where, None)

    # --- questions

    def unstable(self, where: TopicPartition) -> bool:
        """Whether a commit for a partition is still on its way (KIP-447)."""
        return where in self._on_the_way or any(where in pending for pending in self._in_transactions.values())

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        *,
        since_ms: int | None,
        kept: set[str] = frozenset(),  # type: ignore[assignment]
    ) -> list[TopicPartition]:
        """Offsets that are too old. Source: KIP-211.

        since_ms: when their age began; None for each one's own commit. kept: topics that are being read.
        """
        return [
            where
            for where, commit in self.committed.items()
            if where[0] not in kept
            and where not in self._on_the_way
            and _expired(commit, now_ms, retention_ms, since_ms)
        ]

    def forget(self, wheres: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Drop offsets, also those on their way; returns those that have a record in the log, and need a tombstone."""
        gone = []
        for where in wheres:
            is_in_log = self._on_the_way.pop(where, None) is not None
            for pending in self._in_transactions.values():
                pending.pop(where, None)
            if self.committed.pop(where, None) is not None or is_in_log:
                gone.append(where)
        return gone

    def places(self) -> list[TopicPartition]:
        """The partitions that have an offset, or one on its way."""
        pending = chain.from_iterable(self._in_transactions.values())
        return list(dict.fromkeys(chain(self.committed, self._on_the_way, pending)))

    def _put(self, where: TopicPartition, commit: Commit) -> None:
        before = self.committed.get(where)
        if before is None or before.position < commit.position:
            self.committed[where] = commit


def _expired(commit: Commit, now_ms: int, retention_ms: int, since_ms: int | None) -> bool:
    if commit.expires_ms >= 0:
        return now_ms >= commit.expires_ms
    return now_ms - (commit.committed_ms if since_ms is None else since_ms) >= retention_ms


def metadata_length(metadata: str) -> int:
    """The length that offset.metadata.max.bytes bounds: UTF-16 units, as Java counts."""
    return len(metadata.encode("utf-16-le", "surrogatepass")) // 2
