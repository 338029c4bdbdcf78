"""Compaction: of each key the last record stays, and the segments of a log shrink.

`choice` says which log, from where to where; `compaction` reads and writes files, on the pool, in bounded pieces;
`cleaner` decides what runs, and puts what was written in place. What stays of a batch is decided in
`protocol.records.cleaning`.

Source: Kafka documentation, "Log Compaction"; KIP-58 (min lag), KIP-354 (max lag), KIP-534 (tombstones and markers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.log.cleaner.compaction import Compaction, Plan
    from kbroker.ports import Disk


def in_this_process(disk: Disk, plan: Plan) -> Compaction:
    """The compaction of one log, whose pieces run where they are called; its loops are loaded when first needed."""
    from kbroker.log.cleaner.compaction import Compaction

    return Compaction(disk, plan)
