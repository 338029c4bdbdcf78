"""A simulated consumer of committed records (isolation.level=read_committed): it passes over what was aborted.

As consumers of Kafka do it: the answer to a fetch lists the aborted transactions that begin below its end, and a
transaction is passed over from the first of its batches to its abort marker. All that is read and passed over is held
against the `Ledger`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.sim.consumers import FETCH, Consumer
from protocol.records.content import parse_set
from protocol.records.control_records import ControlType, parse_marker

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from kbroker.sim.checks import Moment, Where
    from kbroker.sim.ledger import Ledger
    from protocol.messages.fetch import PartitionData

ISOLATION_SINCE = 4


class CommittedReader(Consumer):
    """Reads what is committed of some topics, from the beginning on. seen: the values."""

    isolation = 1
    ledger: Ledger

    def start_over(self) -> None:
        """See Reader.start_over."""
        super().start_over()
        self.seen: set[bytes] = set()
        self.stable: dict[Where, int] = {}  # last stable offset last seen

    def shake_hands(self) -> Generator[Any, Any, None]:
        """See Client.shake_hands: older fetches know nothing of transactions."""
        yield from super().shake_hands()
        self.versions[FETCH] = max(self.versions[FETCH], ISOLATION_SINCE)

    def _read(self, where: Where, part: PartitionData, data: memoryview, moment: Moment) -> bool:
        position = self.positions[where]
        aborted = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
        passing: set[int] = set()  # producers whose transaction is passed over
        self.stable[where] = part.last_stable_offset
        for header, batch in parse_set(data):
            while aborted and aborted[0][0] <= header.last_offset:
                passing.add(aborted.pop(0)[1])
            if header.last_offset >= part.last_stable_offset:
                raise self.world.broken(f"{self}: {where} is stable to {part.last_stable_offset}, and gives {header}")
            if header.is_control:
                if parse_marker(batch[0]).control_type is ControlType.ABORT:
                    passing.discard(header.producer_id)
            else:
                records = [record for record in batch if record.offset >= position]
                self.checks.fetched(where, position, part.high_watermark, records, moment)
                is_passed = header.is_transactional and header.producer_id in passing
                for record in records:
                    value = bytes(record.value or b"")
                    if is_passed:
                        self.ledger.skipped(self, where, record.offset, value)
                    else:
                        self.ledger.read(self, where, record.offset, value)
                        self.seen.add(value)
            if header.last_offset >= position:
                if header.base_offset > position:
                    raise self.world.broken(f"{self}: {where} at {position} gives {header}")
                self.positions[where] = position = header.last_offset + 1
        return bool(data)
