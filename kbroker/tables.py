"""Tables that were large once: Python's keep the size that they had with most in them.

Called where many entries may go at once, with topics for example. A table of 5,000 partitions is some 400 KB, and a
broker has a dozen of them (docs/decisions/0021-memory-back.md).
"""

from __future__ import annotations

from sys import getsizeof
from typing import Any

LEAST_BYTES = 16 << 10
SPARSE_BYTES = 1_000
"""For an entry, on average: ten times what one takes in a table that has just grown."""


def shrink(*tables: dict[Any, Any] | set[Any]) -> None:
    """Make these as small as what is in them, where that is by far less than they have room for.

    To ask is cheap, so it may be done each time an entry is removed: a table is copied when nine in ten are gone. Not
    while code goes through one.
    """
    for table in tables:
        size_bytes = getsizeof(table)
        if size_bytes > LEAST_BYTES and size_bytes > SPARSE_BYTES * len(table):
            kept = table.copy()
            table.clear()
            table.update(kept)
