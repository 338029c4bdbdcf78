"""Simulated consumers: they read topics from the beginning on, with and without fetch sessions.

What they read is held against what was written (`Checks.fetched`). A consumer whose position the broker does not know
any more asks where the log begins; without a reason for that (retention, DeleteRecords, a power cut) it is a breach.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.checks import whole_batches
from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from kbroker.sim.producers import RETRIABLE
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.records import Record, legacy
from protocol.records.batch import MAGIC, MAGIC_AT, scan
from protocol.records.content import parse_set

if TYPE_CHECKING:
    from kbroker.sim.checks import Moment, Where
    from kbroker.sim.machine import Machine
    from kbroker.sim.topics import Topic

FETCH, LIST_OFFSETS = 1, 2
TOPIC_IDS_SINCE = 13
SESSIONS_SINCE = 7
ZSTD_SINCE = 10  # KIP-110
EARLIEST = -2
SHORT_WAIT_MS = 300
SESSION_LOST = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
ASK_AGAIN = RETRIABLE | {
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.LEADER_NOT_AVAILABLE,  # the same, before ListOffsets 5
}


class FetchSession:
    """What a reader and one machine have agreed on (KIP-227).

    ids: of the topics that the session knows. told: positions as the session has them.
    """

    __slots__ = ("epoch", "id", "ids", "told")

    def __init__(self) -> None:
        self.ids: dict[str, bytes] = {}
        self.end()

    def end(self) -> None:
        """Begin a new one with the next request."""
        self.id = self.epoch = 0
        self.told: dict[Where, int] = {}


class Reader(Router):
    """Fetches partitions; what subclasses that choose them share.

    max_wait_ms: how long the broker may hold a fetch back. sessions: whether to use fetch sessions.
    """

    max_wait_ms = 2_000
    min_bytes = 1
    max_bytes = 1 << 20
    partition_bytes = 1 << 16
    sessions = True
    isolation = 0
    topics: Sequence[Topic] = ()

    def start_over(self) -> None:
        """Forget everything: a new process."""
        self.positions: dict[Where, int] = {}
        self.placed: dict[Where, Moment] = {}  # when the position was looked up
        self.behind: dict[Where, int] = {}  # high watermark last seen
        self.too_old = False  # zstd is not for clients before it: a newer one reads on
        self._fetch_sessions: dict[Machine, FetchSession] = {}
        self._turn = 0

    def fetch(self) -> Generator[Any, Any, bool]:
        """One exchange, with each machine in turn; whether there were records. Raises: Lost.

        With one after the other, not all at once as clients do: so none is waited for long.
        """
        if self.too_old:
            self.versions[FETCH] = max(self.versions[FETCH], ZSTD_SINCE)
        led, _ = yield from self.by_leader(self.positions, lambda where: where)
        if not led:
            return False
        leader = list(led)[self._turn % len(led)]
        max_wait_ms = self.max_wait_ms if len(led) == 1 else min(self.max_wait_ms, SHORT_WAIT_MS)
        positions = {where: self.positions[where] for where in led[leader]}
        session = self._fetch_sessions.setdefault(leader, FetchSession())
        request = self._fetch_request(session, positions, max_wait_ms)
        moment = self.checks.moment
        names = {self.checks.catalogue.topic_id(topic): topic for topic, _ in self.positions}
        try:
            answer: FetchResponse = yield from self.ask(request, max_wait_ms + 20_000, leader)
        except Lost:
            session.end()
            self._turn += 1
            for where in positions:
                self.misled(where)
            raise
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            self.note(f"fetch: {code.name}")
            if code in SESSION_LOST or code is ErrorCode.KAFKA_STORAGE_ERROR:
                session.end()
                return False
            raise self.world.broken(f"{self}: fetch answers {code.name}")
        if self.sessions and self.versions[FETCH] >= SESSIONS_SINCE:
            session.id = answer.session_id
            session.epoch = session.epoch % 0x7FFFFFFF + 1 if answer.session_id else 0
        got = False
        lost: list[Where] = []
        for topic in answer.responses:
            for part in topic.partitions:
                where = (topic.topic or names.get(topic.topic_id, "?"), part.partition_index)
                got |= self._handle_partition(session, leader, where, part, moment, lost)
        if not got:
            self._turn += 1
        if lost:
            yield from self.look_up(lost, EARLIEST)
        return got

    def _handle_partition(
        self,
        session: FetchSession,
        leader: Machine,
        where: Where,
        part: PartitionData,
        moment: Moment,
        lost: list[Where],
    ) -> bool:
        """One partition's part of an answer."""
        position = self.positions.get(where)
        if position is None:
            raise self.world.broken(f"{self} gets {where}, which it did not ask for")
        code = ErrorCode.of(part.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            promise = self.checks.promise(where)
            self.note(f"{where[0]}-{where[1]}: {position} is out of range")
            knows = self._must_know(where, moment) and not self.checks.may_be_outdated(leader, where)
            if knows and position >= promise.may_start:
                raise self.world.broken(f"{self}: {promise} does not know {position}")
            lost.append(where)
            return False
        if code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE and self.versions[FETCH] < ZSTD_SINCE:
            self.too_old = True
            return False
        if code is not ErrorCode.NONE:
            self.note(f"{where[0]}-{where[1]}: {code.name}")
            if code not in ASK_AGAIN:
                raise self.world.broken(f"{self}: {where} answers {code.name}")
            session.end()
            self.misled(where)
            return False
        self.behind[where] = part.high_watermark
        return self._read(where, part, whole_batches(memoryview(part.records or b"")), moment)  # type: ignore[arg-type]

    def _read(self, where: Where, part: PartitionData, data: memoryview, moment: Moment) -> bool:
        """Records that are there; whether there were any ahead of the position."""
        position = self.positions[where]
        ahead = [record for record in self._records(data) if record.offset >= position]
        if not ahead:
            self._step_over(where, data)
            return False
        self.checks.fetched(where, position, part.high_watermark, ahead, moment)
        self.positions[where] = ahead[-1].offset + 1
        self.note(f"read {where[0]}-{where[1]} {position} to {ahead[-1].offset}")
        self.got(where, ahead)
        return True

    def _step_over(self, where: Where, data: memoryview) -> None:
        """Go on behind batches of which compaction has left nothing but the header, as all clients do."""
        if len(data) > MAGIC_AT and data[MAGIC_AT] == MAGIC:
            *_, (_, last) = scan(data)
            self.positions[where] = max(self.positions[where], last[0] + last[6] + 1)

    def got(self, where: Where, records: Sequence[Record]) -> None:
        """For who wants to know what was read."""

    def _records(self, data: memoryview) -> list[Record]:
        """The records of an answer, in the format that its version has."""
        if len(data) > MAGIC_AT and data[MAGIC_AT] < MAGIC:
            return legacy.parse_set(data)
        return [record for header, batch in parse_set(data) if not header.is_control for record in batch]

    def _must_know(self, where: Where, moment: Moment) -> bool:
        """Whether the broker that was asked at a moment must know where this reader stands."""
        checks = self.checks
        placed = self.placed[where]
        return (
            checks.is_since(moment, where)
            and placed[0] >= checks.promise(where).lost_at
            and not checks.catalogue.was_deleted(where[0])
        )

    def look_up(self, places: Iterable[Where], timestamp: int) -> Generator[Any, Any, None]:
        """Set positions to where the log begins, or ends. Raises: Lost."""
        led, _ = yield from self.by_leader(places, lambda where: where)
        for leader, group in led.items():
            yield from self._look_up_at(leader, group, timestamp)

    def _look_up_at(self, leader: Machine, places: Iterable[Where], timestamp: int) -> Generator[Any, Any, None]:
        moment = self.checks.moment
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for topic, index in places:
            asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
            by_topic.setdefault(topic, []).append(asked)
        topics = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        try:
            answer: ListOffsetsResponse = yield from self.ask(
                ListOffsetsRequest(replica_id=-1, topics=topics), to=leader
            )
        except Lost:
            for where in places:
                self.misled(where)
            raise
        for found in answer.topics:
            for part in found.partitions:
                where = found.name, part.partition_index
                if part.error_code == ErrorCode.NONE:
                    self.positions[where] = part.offset if self.versions[LIST_OFFSETS] else part.old_style_offsets[0]
                    self.placed[where] = moment
                elif ErrorCode.of(part.error_code) not in ASK_AGAIN:
                    raise self.world.broken(f"{self}: ListOffsets answers {ErrorCode.of(part.error_code).name}")
                else:
                    self.misled(where)

    def places(self) -> list[Where]:
        """The partitions of its topics, as far as clients were told."""
        count = self.checks.catalogue.count
        return [(topic.name, index) for topic in self.topics for index in range(count(topic))]

    @property
    def caught_up(self) -> bool:
        """Whether it has read everything it knows of."""
        return all(position >= self.behind.get(where, FAR) for where, position in self.positions.items())

    def _fetch_request(self, session: FetchSession, positions: dict[Where, int], max_wait_ms: int) -> FetchRequest:
        version = self.versions[FETCH]
        in_session = self.sessions and version >= SESSIONS_SINCE
        ids = {name: self.checks.catalogue.topic_id(name) for name, _ in positions}
        if ids != session.ids or session.told.keys() - positions.keys():
            session.ids = ids
            session.end()
        wanted = positions
        if in_session and session.id:
            wanted = {where: at for where, at in wanted.items() if session.told.get(where) != at}
        if in_session:
            session.told.update(wanted)
        by_topic: dict[str, list[FetchPartition]] = {}
        for (topic, index), position in wanted.items():
            part = FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=self.partition_bytes)
            by_topic.setdefault(topic, []).append(part)
        by_id = version >= TOPIC_IDS_SINCE
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation,
            session_id=session.id if in_session else 0,
            session_epoch=session.epoch if in_session else -1,
            topics=[
                FetchTopic(
                    topic="" if by_id else name,
                    topic_id=ids[name] if by_id else ZERO_UUID,
                    partitions=parts,
                )
                for name, parts in by_topic.items()
            ],
        )


FAR = 1 << 62


class Consumer(Reader):
    """Reads all partitions of some topics, without a group."""

    pace_ms = 100

    def live(self) -> Script:
        """Look up where the logs begin, then read on and on."""
        self.start_over()
        yield from self.shake_hands()
        yield from self.know(self.topics)
        while True:
            places = self.places()
            for gone in self.positions.keys() - set(places):
                del self.positions[gone]
            try:
                missing = [where for where in places if where not in self.positions]
                if missing:
                    yield from self.look_up(missing, EARLIEST)
                if self.positions and (yield from self.fetch()):
                    continue
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
                yield from self.pause(500)
            yield from self.pause(self.pace_ms)
