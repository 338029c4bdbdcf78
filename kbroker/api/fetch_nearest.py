"""A consumer's fetch that says where the consumer is: its leader may send it to a replica of its own rack (KIP-392).

Made by `fetch.py` where `replica.selector.class` is set and the request names a rack (`client.rack`), from Fetch 11 on.
A partition that is to be read elsewhere is answered at once, with that broker's id and without records. Any replica
answers consumers of these versions, up to the high watermark that it knows (`replica/partition.py`), whatever the
setting says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.fetch_reader import EMPTY, NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, Reader
from kbroker.replica.nearest import LEADER, nearest_replica
from protocol.errors import KafkaError
from protocol.flat import place
from protocol.messages.fetch import FetchRequest

RACK_ID = place(FetchRequest, "rack_id")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.call import Call
    from kbroker.broker.fetch_sessions import FetchSession, Part, Wanted
    from protocol.flat import Flat


class NearestReader(Reader):
    """One fetch of a consumer that has a rack."""

    __slots__ = ("_rack",)

    def __init__(self, request: Flat, call: Call, session: FetchSession | None, wanted: Sequence[Wanted]) -> None:
        super().__init__(request, call, session, wanted)
        self._rack = request[RACK_ID]

    def may_answer(self) -> bool:
        """Also when a partition is to be read elsewhere."""
        return any(self._nearest(wanted) != LEADER for wanted in self._wanted) or super().may_answer()

    def _read(self, wanted: Wanted, answers: list[Part]) -> None:
        nearest = self._nearest(wanted)
        if nearest == LEADER:
            super()._read(wanted, answers)
            return
        log = self._find(wanted).led()
        high, stable, start = log.high_watermark, log.last_stable_offset, log.log_start_offset
        index, aborted = wanted.index, self._none_aborted
        part = (index, 0, high, stable, start, NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, aborted, nearest, EMPTY)
        self._finds_some = True
        answers.append((wanted, part, 0))

    def _nearest(self, wanted: Wanted) -> int:
        try:
            return nearest_replica(self._find(wanted), wanted.fetch_offset, self._rack, self._rack_of)
        except KafkaError:  # reading says so
            return LEADER

    def _rack_of(self, broker_id: int) -> str | None:
        """The rack of a broker that the consumer can reach."""
        cache = self._call.broker.plane.cache
        if cache.node(broker_id, self._call.session.listener) is None:
            return None
        return cache.brokers[broker_id].rack
