"""What a replicated topic may lose, and from which offset on: what Kafka does not promise, and nothing else.

Part of `replicated.py`, which asks here before it calls a loss a breach. A replica is short from the moment on in which
its log gets shorter for a reason that Kafka accepts, until it is as long as it was:

- a log without leader epochs, of an old message format, is cut to the high watermark that its broker knows when another
  leads (KIP-101);
- power is cut before the records were on the disk, where no setting asked for them to be flushed first.

If a replica that is short comes to lead, without what was committed, that is lost: from the end of its log on nothing
is promised of the partition any more, not even that its logs agree, and below all is promised as before. A leader that
lacks anything for another reason is a breach, at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.log.log import Log
    from kbroker.sim.checks import Where
    from kbroker.sim.machine import Machine


class AllowedLoss:
    """The losses of one world. lost_from: by partition, where what is excused begins."""

    def __init__(self) -> None:
        self.lost_from: dict[Where, int] = {}
        self._committed: dict[Where, int] = {}  # the largest high watermark of any leader
        self._ends: dict[tuple[Machine, Where], int] = {}  # of logs, as last seen
        self._flushed_first: set[Where] = set()  # no client is told of a record there that is not on the disk
        self._without_epochs: set[Where] = set()
        self._short: dict[tuple[Machine, Where], int] = {}  # how long those logs were that are short

    def came_up(self, machine: Machine, logs: Mapping[Where, Log]) -> None:
        """A broker starts with these logs: what it had is there, or was not to be flushed and went with the power."""
        for (holder, where), before in list(self._ends.items()):
            if holder is not machine:
                continue
            key, end = (machine, where), logs[where].log_end_offset if where in logs else 0
            if end < before and where not in self._flushed_first:
                self._was_cut(key, before)
            self._ends[key] = end

    def went_offline(self, machine: Machine, where: Where) -> None:
        """The disk failed under a log, in the middle of a cut perhaps: it cannot be checked before the next start."""
        key = (machine, where)
        if where in self._without_epochs:
            self._was_cut(key, self._ends.get(key, 0))

    def check(self, machine: Machine, where: Where, log: Log, *, leads: bool) -> bool:
        """After an event of a machine; whether it leads a partition and lacks what was committed, with no excuse.

        leads: in the newest epoch. A leader that does not know yet that it is none any more may lack what came later.
        """
        key, end = (machine, where), log.log_end_offset
        before = self._ends.get(key, 0)
        if end < before and not log.config.has_epochs and end == log.high_watermark:
            self._was_cut(key, before)
        elif end >= self._short.get(key, end + 1):
            del self._short[key]
        self._ends[key] = end
        if log.config.flush_messages == 1:
            self._flushed_first.add(where)
        if not log.config.has_epochs:
            self._without_epochs.add(where)
        return leads and self._led(key, log)

    def _was_cut(self, key: tuple[Machine, Where], before: int) -> None:
        self._short[key] = max(before, self._short.get(key, 0))

    def _led(self, key: tuple[Machine, Where], log: Log) -> bool:
        where, end = key[1], log.log_end_offset
        if end >= self._committed.get(where, 0):
            self._committed[where] = max(log.high_watermark, self._committed.get(where, 0))
            return False
        if key not in self._short:
            return True
        self.lost_from[where] = min(end, self.lost_from.get(where, end))
        self._committed[where] = end
        return False
