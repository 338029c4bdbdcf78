"""How many producers all logs of a broker remember, and which of them are forgotten when they are too many.

Owned by `manager.py`; each log's `Producers` reports each new producer. Reads nothing, and knows no client:
a client that may write to a partition can make only that partition forget its idle producers
(docs/decisions/0023-producer-ids.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.limits import PRODUCERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kbroker.log.producer_state import Producers

FREED = 32  # this part of all that may be remembered is free afterwards, so that room is not made again at once
GIVEN = 4  # and this part of its own a log gives, if it is its turn


class ProducerLimits:
    """The account of one broker. count: of producers in all logs, those that wait to be verified too; or more."""

    __slots__ = ("_all", "_most", "count")

    def __init__(self, of_all_logs: Callable[[], Iterable[Producers]]) -> None:
        self._all = of_all_logs
        self._most = PRODUCERS
        self.count = 0

    def one_more(self) -> None:
        """A log is about to remember one more. What logs forget is found out when there seem to be too many."""
        self.count += 1
        if self.count > self._most:
            self.make_room(1)

    def make_room(self, coming: int = 0) -> None:
        """Count again; if there are too many, the logs with most forget those that were idle for longest, some each."""
        self.count = coming + sum(map(_held, self._all()))
        before = self.count + 1
        while PRODUCERS < self.count < before:
            before = self.count
            self._have_some_forgotten()
        self._most = max(PRODUCERS, self.count + PRODUCERS // FREED)  # in transactions, they cannot be forgotten

    def _have_some_forgotten(self) -> None:
        for producers in sorted(self._all(), key=_held, reverse=True):
            self.count -= producers.held
            producers.forget_oldest(-(-producers.held // GIVEN))
            self.count += producers.held
            if self.count <= PRODUCERS - PRODUCERS // FREED:
                break


def _held(producers: Producers) -> int:
    return producers.held
