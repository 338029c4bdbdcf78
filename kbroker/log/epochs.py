"""The leader epoch cache: which epoch starts at which offset, how replicas find out where their logs part ways.

Owns the entries in memory and what `leader-epoch-checkpoint` is to say; the log decides when that is written. The file
may lag behind: entries beyond the end of the log are cut at load, and missing ones come back from the batches that
recovery walks over, as long as the file is durable before the recovery point moves past them.

Source: KIP-101, KIP-279; Kafka documentation, implementation, "Log".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from protocol.namedtuple import NamedTuple

UNKNOWN_EPOCH = -1
UNKNOWN_OFFSET = -1


class EpochEnd(NamedTuple):
    """The largest epoch known not above one asked for, and the offset just behind it; (-1, -1) if unknown."""

    epoch: int
    end_offset: int

    def is_before(self, epoch: int, offset: int) -> bool:
        """Whether a log that ends at `offset`, its last record of `epoch`, has what this one has not (KIP-595)."""
        return self.epoch < epoch or self.end_offset < offset


class LeaderEpochs:
    """The epochs of one log, ascending in epoch and strictly ascending in start offset.

    version: grows with every change, so that a writer on the pool can tell whether it wrote the last word. stored:
    CRC-32C of what the file says, -1 if there is none.
    """

    __slots__ = ("_epochs", "_starts", "latest", "stored", "version")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = UNKNOWN_EPOCH
        self.version = 0
        self.stored = -1
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.version = 0

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` starts at `start_offset`, unless it is known to start there or before; tells if noted.

        Entries that contradict it, by epoch or by offset, go: what a leader stamped wins over what was remembered.
        """
        assert epoch >= 0, epoch
        assert start_offset >= 0, start_offset
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self._changed()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch`, or the largest known epoch below it, ends. Source: KIP-279, OffsetsForLeaderEpoch."""
        epochs, starts = self._epochs, self._starts
        if epoch == UNKNOWN_EPOCH or not epochs or epoch > epochs[-1]:
            return EpochEnd(UNKNOWN_EPOCH, UNKNOWN_OFFSET)
        if epoch == epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(epochs, epoch)
        if above == 0:  # older than anything kept: all we can say is where what we have begins
            return EpochEnd(epoch, starts[0])
        return EpochEnd(epochs[above - 1], starts[above])

    def epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was written, -1 if it lies before all entries."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else UNKNOWN_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at or after the end of the log."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before the start of the log; the one that covers it now starts there."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = start_offset
        self._changed()

    def clear(self) -> None:
        """Forget everything."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def _changed(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else UNKNOWN_EPOCH
        self.version += 1
