"""What a log's batches say of their producers, read again: when a log is opened, or was cut.

Called by the log and by recovery. Reads batches' headers, and of markers the record.

Unlike Kafka: a producer's last five batches are known again, where they are near the end of what it wrote, and not only
the one that is in a snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice, takewhile
from operator import attrgetter

from kbroker.log.append import marker_of
from kbroker.log.producer_state import CompletedTransaction, Producers
from kbroker.log.scan import headers
from kbroker.log.segment import Segment
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL,
    COUNT,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    HeaderTuple,
    last_offset_of,
    size_of,
)

STRETCHES = 10  # of the log, from one entry of its index to the next: five large batches of two producers
_base_offset = attrgetter("base_offset")


def replay_producers(segments: list[Segment], producers: Producers, end_offset: int) -> None:
    """Bring the producers, which a snapshot brought, from their own end up to end_offset, from the batches' headers."""
    if len(producers):
        _recall(segments, producers)
    if producers.end_offset >= end_offset:
        return
    first = bisect_right(segments, producers.end_offset, key=_base_offset) - 1
    for segment in segments[max(first, 0) :]:
        if segment.base_offset >= end_offset:
            break
        start = segment.offsets.lookup(producers.end_offset)[1] if producers.end_offset > segment.base_offset else 0
        for position, header in segment.batches_from(start):
            if header[BASE_OFFSET] < producers.end_offset:
                continue
            if last_offset_of(header) >= end_offset:
                break
            replay_batch(segment, producers, position, header)
    producers.end_offset = max(producers.end_offset, end_offset)


def _recall(segments: list[Segment], producers: Producers) -> None:
    """Have producers know again the batches before the one that is in a snapshot.

    One that sends them again would be told that they are out of order: Apache's client then raises its epoch, and
    writes them a second time.
    """
    lacking: set[int] = set()
    for stretch in islice(_stretches(segments, producers.last_offset), STRETCHES):
        for header in reversed(stretch):
            (lacking.add if producers.recall(header) else lacking.discard)(header[PRODUCER_ID])
        if not lacking:
            break


def _stretches(segments: list[Segment], last_offset: int) -> Iterator[list[HeaderTuple]]:
    """Headers of the batches up to one, from one entry of an index to the next at a time, the last ones first."""
    for segment in reversed(segments[: bisect_right(segments, last_offset, key=_base_offset)]):
        offsets, end = segment.offsets, segment.size
        for slot in range(offsets.slot(last_offset), -2, -1):
            start = offsets.entry(slot)[1] if slot >= 0 else 0
            batches = (header for _, header in headers(segment.file, start, end))
            yield list(takewhile(lambda header: header[BASE_OFFSET] <= last_offset, batches))
            end = start


def replay_batch(
    segment: Segment, producers: Producers, position: int, header: HeaderTuple
) -> CompletedTransaction | None:
    """Apply one batch that the log has already; the transaction that it ended. Raises KafkaError for a bad marker."""
    completed = None
    if header[PRODUCER_ID] >= 0 and not header[ATTRIBUTES] & CONTROL:
        producers.update(header, header[BASE_OFFSET], header[MAX_TIMESTAMP])
    elif header[PRODUCER_ID] >= 0 and header[COUNT] > 0:  # compaction may have emptied it
        batch = memoryview(segment.file.read(position, size_of(header)))
        completed = producers.end_transaction(header, header[BASE_OFFSET], marker_of(batch, header))
        if completed is not None:
            producers.forget_completed(completed)
    producers.end_offset = last_offset_of(header) + 1
    return completed
