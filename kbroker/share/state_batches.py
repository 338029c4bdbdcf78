"""How batches of record states are laid over each other: what the share coordinator keeps of a share-partition.

Called by `share_shard.py` for each write. Where batches overlap, the one of more deliveries counts, and of these the
one whose state is the larger number: a later fate of the same records never has fewer of either. Source:
PersisterStateBatchCombiner of Apache Kafka 4.4, by behaviour.
"""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from kbroker.share.share_partition import StateBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

_first, _fate = itemgetter(0), itemgetter(3, 2)  # deliveries, then state


def combine(known: Iterable[StateBatch], newer: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """One batch for each stretch of the same fate, in order, of what lies at or behind a start offset.

    start_offset: -1 for none.
    """
    batches = [_from(each, start_offset) for each in (*known, *newer) if each.last >= start_offset]
    if len(batches) < 2:
        return tuple(batches)
    batches.sort(key=_first)
    if all(one.last < other.first for one, other in pairwise(batches)):
        return _joined(batches)
    return _joined(_swept(batches))


def _from(batch: StateBatch, start_offset: int) -> StateBatch:
    return batch if batch.first >= start_offset else batch._replace(first=start_offset)


def _swept(batches: list[StateBatch]) -> Iterable[StateBatch]:
    """The winner of each stretch between two borders."""
    borders = sorted({each.first for each in batches} | {each.last + 1 for each in batches})
    open_now: list[StateBatch] = []
    at = 0
    for border, end in pairwise(borders):
        while at < len(batches) and batches[at].first == border:
            open_now.append(batches[at])
            at += 1
        open_now = [each for each in open_now if each.last >= border]
        if open_now:
            yield max(open_now, key=_fate)._replace(first=border, last=end - 1)


def _joined(batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
    joined: list[StateBatch] = []
    for batch in batches:
        before = joined[-1] if joined else None
        if before and before.last + 1 == batch.first and (before.state, before.deliveries) == batch[2:]:
            joined[-1] = before._replace(last=batch.last)
        else:
            joined.append(batch)
    return tuple(joined)
