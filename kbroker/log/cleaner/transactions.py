"""Which batches belong to aborted transactions, and which markers mark nothing any more, as a pass meets them in order.

Owned by one pass over a log, which shows it every batch. A transaction whose records are all gone leaves a marker that
says nothing; but it stays until its delete horizon, since a reader may have seen the records and wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.log.aborted import AbortedTransaction
from kbroker.log.producer_state import Marker
from protocol.records.batch import ATTRIBUTES, PRODUCER_ID, TRANSACTIONAL, HeaderTuple, last_offset_of


class Transactions:
    """The transactions open where the pass is. aborted_with_records: those whose marker was met, with records left."""

    __slots__ = ("_aborted", "_coming", "_committed", "_seen", "aborted_with_records")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """aborted: all that overlap what the pass will see."""
        self._coming = sorted(set(aborted), key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}  # producer id -> its aborted transaction
        self._seen: set[int] = set()  # producers of those that have records
        self._committed: set[int] = set()  # producers with records of a transaction that was not aborted
        self.aborted_with_records: list[AbortedTransaction] = []

    def is_aborted(self, header: HeaderTuple) -> bool:
        """Whether the records of a data batch were aborted."""
        self._begin_up_to(last_offset_of(header))
        if not header[ATTRIBUTES] & TRANSACTIONAL:
            return False
        producer_id = header[PRODUCER_ID]
        if producer_id in self._aborted:
            self._seen.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def marks_nothing(self, header: HeaderTuple, marker: Marker | None) -> bool:
        """Whether no record is left that a marker tells of. marker: None for a control batch that was emptied."""
        self._begin_up_to(last_offset_of(header))
        producer_id = header[PRODUCER_ID]
        if marker is None:
            return True
        if marker.is_commit:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        ended = self._aborted.pop(producer_id, None)
        if ended is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.aborted_with_records.append(ended)
        return False

    def _begin_up_to(self, offset: int) -> None:
        """Those that have begun at or before an offset are open now."""
        coming = self._coming
        while coming and coming[-1].first_offset <= offset:
            transaction = coming.pop()
            self._aborted.setdefault(transaction.producer_id, transaction)
