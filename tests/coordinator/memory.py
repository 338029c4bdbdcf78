"""A coordinator's topic in memory: real batches, and a high watermark that moves only when it is let."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbroker.coordinator import Appended, KeyValue, Runtime
from kbroker.coordinator.store import Slice
from protocol.errors import ErrorCode, KafkaError
from protocol.records import Record
from protocol.records.batch import BatchHeader, assign, unpack_header
from protocol.records.content import build_batch, parse_records
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch


class Read(NamedTuple):
    """Batches that are there already."""

    offset: int
    data: memoryview

    def run(self) -> None:
        """There is nothing to wait for."""

    def batches(self) -> memoryview:
        return self.data


def at_once(job: Slice, owner: Runtime[Any]) -> None:
    """Run a job while its owner waits."""
    job.run()
    owner.finished(job, None, 0)


class MemoryStore:
    """Any number of partitions. hold: appends stay uncommitted. refuse: what an append is refused with."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytearray]] = {}
        self.marks: dict[int, int] = {}
        self.hold = False
        self.refuse: ErrorCode | None = None
        self.wall_ms: Callable[[], int] = lambda: 0

    def end(self, partition: int) -> int:
        batches = self.batches.get(partition)
        return BatchHeader(*unpack_header(batches[-1], 0)).last_offset + 1 if batches else 0

    def append(self, partition: int, records: Sequence[KeyValue], producer_id: int, producer_epoch: int) -> Appended:
        if self.refuse is not None:
            raise KafkaError(self.refuse, f"told to refuse {len(records)} records")
        batch = build_batch(
            [Record(at, 0, key, value) for at, (key, value) in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        return self._add(partition, batch)

    def append_error(self, partition: int) -> ErrorCode:
        return self.refuse or ErrorCode.NONE

    def append_marker(self, partition: int, producer_id: int, *, commit: bool) -> int:
        marker = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0)
        batch = build_marker_batch(marker, producer_id=producer_id, producer_epoch=0, timestamp=0)
        return self._add(partition, batch).first_offset

    def _add(self, partition: int, batch: bytearray) -> Appended:
        first = self.end(partition)
        assign(batch, 0, first, len(batch) - 12, 0)
        self.batches.setdefault(partition, []).append(batch)
        end = self.end(partition)
        if not self.hold:
            self.marks[partition] = end
        return Appended(first, end, self.high_watermark(partition))

    def failed(self, partition: int, error: OSError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def read(self, partition: int, offset: int) -> Read | None:
        wanted = [each for each in self.batches.get(partition, []) if unpack_header(each, 0)[0] >= offset]
        return Read(offset, memoryview(b"".join(wanted))) if wanted else None

    def high_watermark(self, partition: int) -> int:
        return self.marks.get(partition, 0)

    def commit(self, partition: int) -> int:
        """Let the high watermark catch up; returns it."""
        self.marks[partition] = self.end(partition)
        return self.marks[partition]

    def cut(self, partition: int) -> None:
        """What is not committed is lost with the leader."""
        mark = self.high_watermark(partition)
        batches = self.batches.get(partition, [])
        self.batches[partition] = [each for each in batches if unpack_header(each, 0)[0] < mark]

    def records(self, partition: int) -> list[tuple[Record, int]]:
        """Every record that is no marker, with its batch's producer id."""
        found = []
        for each in self.batches.get(partition, []):
            header = BatchHeader(*unpack_header(each, 0))
            if not header.is_control:
                found += [(record, header.producer_id) for record in parse_records(memoryview(each), 0, header)]
        return found
