"""Fetch sessions: the broker remembers what a client fetches, so that each exchange names only what changed (KIP-227).

Called by `fetch.py`, once when a fetch begins (`open_session`) and once for its response (`FetchSession.news`).
Owns the sessions of all clients and the rule of who loses theirs when there are too many. It reads no log.

A session costs memory for as long as its client is quiet, so there are at most `max.incremental.fetch.session.cache.
slots`; a newcomer takes the place of a session that has not been used for two minutes, or gets none, which is
no error: it goes on with full requests. A session that loses its last partition is closed. There is also a limit on
their partitions together: beyond it the session of the most partitions goes, and its client starts over; from a quarter
of it on, so do large ones whose connection goes.

Unlike Kafka: sessions in use are not pushed out by those of more partitions; a partition whose topic was deleted is
UNKNOWN_TOPIC_ID in a session of ids, whether or not its name is another topic's now; and partitions that had records in
the full response that begins a session already stand at the end of the order in the next one. A full fetch of no
partition gets no session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kbroker.config.limits import MANY_PARTITIONS, PARTITIONS_IN_FETCH_SESSIONS, PARTITIONS_PER_FETCH
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import place
from protocol.message import ZERO_UUID
from protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData

if TYPE_CHECKING:
    from kbroker.ports import Random
    from protocol.flat import Flat

NO_SESSION, FINAL_EPOCH, INITIAL_EPOCH = 0, -1, 0
LARGEST_EPOCH = 2**31 - 1
EVICT_AFTER_MS = 120_000  # Kafka's; a session used more recently keeps its slot
TOPIC_IDS_SINCE = 13
MUCH = 16  # this part of all that may be remembered: from here on large sessions end with their connections
WANTED_BYTES = 320  # of memory that a partition in a session takes

SESSION_ID, SESSION_EPOCH = place(FetchRequest, "session_id"), place(FetchRequest, "session_epoch")
TOPICS, FORGOTTEN_TOPICS = place(FetchRequest, "topics"), place(FetchRequest, "forgotten_topics_data")
INDEX = place(FetchPartition, "partition")
ERROR_CODE, HIGH_WATERMARK = place(PartitionData, "error_code"), place(PartitionData, "high_watermark")
LOG_START_OFFSET = place(PartitionData, "log_start_offset")
DIVERGING_EPOCH = place(PartitionData, "diverging_epoch")
PREFERRED_READ_REPLICA = place(PartitionData, "preferred_read_replica")

TopicName = Callable[[bytes], str | None]


class Wanted:
    """What a fetch wants of one partition; in a session, also what its client was last told of it.

    topic: None while no topic of this id is known.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: bytes, partition: Flat) -> None:
        """partition: of a FetchPartition."""
        self.topic, self.topic_id = topic, topic_id
        self.told_high_watermark = self.told_log_start = -1
        self.update(partition)

    def update(self, partition: Flat) -> None:
        """Take what a request of the session says again."""
        self.index, self.current_leader_epoch, self.fetch_offset, last_epoch, start, most, _directory, _end = partition
        self.last_fetched_epoch, self.log_start_offset, self.max_bytes = last_epoch, start, most

    def has_news(self, part: Flat, size: int) -> bool:
        """Whether the client has to be told; remembers what it is told. part: of the answer (`api/fetch_reader.py`)."""
        code, high_watermark, log_start = part[ERROR_CODE], part[HIGH_WATERMARK], part[LOG_START_OFFSET]
        (diverging_epoch, _end), preferred_read_replica = part[DIVERGING_EPOCH], part[PREFERRED_READ_REPLICA]
        is_new = (
            size > 0
            or code != 0
            or high_watermark != self.told_high_watermark
            or log_start != self.told_log_start
            or diverging_epoch >= 0
            or preferred_read_replica >= 0
        )
        # After an error the client has to hear the next good news, whatever it knew before; so has a follower that is
        # told to cut its log, which takes nothing else from this answer.
        self.told_high_watermark = -1 if code or diverging_epoch >= 0 else high_watermark
        self.told_log_start = log_start
        return is_new


Key = tuple[object, int]  # topic id, or name before version 13, and partition
Part: TypeAlias = "tuple[Wanted, Flat, int]"
"""What a fetch wants of a partition, what it is answered, and the bytes of records in that."""


class FetchSession:
    """One client's partitions, in the order in which they are served next."""

    __slots__ = ("epoch", "id", "is_full", "is_new", "last_used_ms", "partitions", "used_by", "uses_ids")

    def __init__(self, session_id: int, partitions: dict[Key, Wanted], now_ms: int, *, uses_ids: bool) -> None:
        self.id = session_id
        self.used_by: object = None  # if it is large, the connection that used it last
        self.epoch = 1  # of the next request
        self.partitions = partitions
        self.last_used_ms = now_ms
        self.uses_ids = uses_ids
        self.is_full = True  # the first response names every partition
        self.is_new = True  # until its client goes on with it

    def news(self, answers: Iterable[Part], *, is_last: bool = True) -> Sequence[Part]:
        """The answers worth sending. Partitions that had records go to the end of the order: no one starves.

        is_last: whether the response has no more of them.
        """
        told = []
        is_full, self.is_full = self.is_full, self.is_full and not is_last
        for answer in answers:
            wanted, part, size = answer
            if wanted.has_news(part, size) or is_full:
                told.append(answer)
            if size:
                key = self._key(wanted)
                if self.partitions.get(key) is wanted:  # no later request has named it again
                    self.partitions[key] = self.partitions.pop(key)
        return told

    def _key(self, wanted: Wanted) -> Key:
        return (wanted.topic_id if self.uses_ids else wanted.topic, wanted.index)

    def change(
        self, topics: list[Flat], forgotten: list[Flat], topic_name: TopicName, named: dict[Key, Wanted] | None = None
    ) -> None:
        """Add, change and drop partitions as the request says; find names for ids that had none.

        topics, forgotten: of FetchTopic, and of ForgottenTopic. named: what is in `topics`, if it has been looked at.
        """
        if named is not None:
            topics = []
            self._update(named)
        for topic, topic_id, partitions in topics:
            name = topic_name(topic_id) if self.uses_ids else topic
            for partition in partitions:
                key = (topic_id if self.uses_ids else name, partition[INDEX])
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = Wanted(name, topic_id, partition)
                else:
                    known.update(partition)
        for topic, topic_id, indices in forgotten:
            for index in indices:
                self.partitions.pop((topic_id if self.uses_ids else topic, index), None)
        if self.uses_ids:
            for wanted in self.partitions.values():
                wanted.topic = topic_name(wanted.topic_id)

    def _update(self, named: dict[Key, Wanted]) -> None:
        """Add and change partitions; what clients were told of them stays known."""
        for key, wanted in named.items():
            known = self.partitions.get(key)
            if known is not None:
                wanted.told_high_watermark, wanted.told_log_start = known.told_high_watermark, known.told_log_start
        self.partitions |= named


class FetchSessions:
    """The sessions of all clients of a broker. slots: how many there may be."""

    def __init__(self, slots: int, random: Random) -> None:
        self._slots = slots
        self._random = random
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.partitions = 0  # of all of them

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """Memory that they take, about."""
        return self.partitions * WANTED_BYTES

    def is_large(self, session_id: int) -> bool:
        """Whether there is such a session, and a fetch in it takes long."""
        session = self._sessions.get(session_id)
        return session is not None and len(session.partitions) > MANY_PARTITIONS

    def partitions_of(self, session_id: int) -> list[tuple[str, bytes, int]]:
        """What a session has: topic (empty in one of ids), its id, partition; nothing where there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            return []
        uses_ids = session.uses_ids
        return [
            ("" if uses_ids else wanted.topic or "", wanted.topic_id, wanted.index)
            for wanted in session.partitions.values()
        ]

    def disconnected(self, connection: object) -> None:
        """A connection has gone. Its large sessions go with it where all remember much; the others are kept."""
        if self.partitions > PARTITIONS_IN_FETCH_SESSIONS // MUCH:
            for session in [each for each in self._sessions.values() if each.used_by is connection]:
                self._forget(session)

    def open_session(
        self,
        request: Flat,
        version: int,
        now_ms: int,
        topic_name: TopicName,
        named: dict[Key, Wanted] | None = None,
    ) -> tuple[FetchSession | None, Sequence[Wanted]]:
        """The session of a fetch, None without one, and everything the fetch wants.

        request: of FetchRequest. named: what it names, if that has been looked at (`named_in_slices`).
        Raises: KafkaError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR,
        INVALID_REQUEST.
        """
        uses_ids = version >= TOPIC_IDS_SINCE
        session_id, session_epoch, topics = request[SESSION_ID], request[SESSION_EPOCH], request[TOPICS]
        if session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
            session = self._continue(session_id, session_epoch, now_ms, uses_ids=uses_ids)
            before = len(session.partitions)
            session.change(topics, request[FORGOTTEN_TOPICS], topic_name, named)
            self.partitions += len(session.partitions) - before
            if not session.partitions:
                del self._sessions[session.id]
                return None, ()
            if len(session.partitions) > PARTITIONS_PER_FETCH:
                self._forget(session)
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            wanted = list(session.partitions.values())
            return session if self._keep_within_limit(session) else None, wanted
        if session_id in self._sessions:
            self._forget(self._sessions[session_id])
        partitions = named or (_all_of(topics, topic_name) if uses_ids else _all_named(topics))
        if len(partitions) > PARTITIONS_PER_FETCH:
            text = f"{len(partitions)} partitions: at most {PARTITIONS_PER_FETCH} are fetched at once"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        wanted = list(partitions.values())
        if session_epoch == FINAL_EPOCH or not wanted or not self._make_room(now_ms):
            return None, wanted
        session = FetchSession(self._new_id(), partitions, now_ms, uses_ids=uses_ids)
        self._sessions[session.id] = session
        self.partitions += len(partitions)
        return session if self._keep_within_limit(session) else None, wanted

    def withhold(self, session_id: int) -> int:
        """What was read in a session does not reach its client, which is throttled; the session that it is told of.

        One that has just been made goes again; another's next answer tells of all its partitions.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return NO_SESSION
        if session.is_new:
            self._forget(session)
            return NO_SESSION
        session.is_full = True
        return session_id

    def _keep_within_limit(self, newest: FetchSession) -> bool:
        """Forget the largest sessions while all together remember too much; whether this one is still there."""
        while self.partitions > PARTITIONS_IN_FETCH_SESSIONS:
            self._forget(max(self._sessions.values(), key=lambda session: len(session.partitions)))
        return newest.id in self._sessions

    def _forget(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partitions -= len(session.partitions)

    def _continue(self, session_id: int, epoch: int, now_ms: int, *, uses_ids: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == LARGEST_EPOCH else session.epoch + 1
        session.last_used_ms, session.is_new = now_ms, False
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms < EVICT_AFTER_MS:
            return False
        self._forget(oldest)
        return True

    def _new_id(self) -> int:
        """At random: a client that lost its session to a restart must not continue a stranger's."""
        while True:
            session_id = 1 + self._random.below(2**31 - 1)
            if session_id not in self._sessions:
                return session_id


def named_in_slices(request: Flat, version: int, topic_name: TopicName) -> Generator[None, None, dict[Key, Wanted]]:
    """What a large request names, some partitions at a time; the last word counts on one that it names twice."""
    partitions: dict[Key, Wanted] = {}
    count = 0
    for topic, topic_id, named in request[TOPICS]:
        uses_ids = version >= TOPIC_IDS_SINCE
        name, its_id = (topic_name(topic_id), topic_id) if uses_ids else (topic, ZERO_UUID)
        for partition in named:
            partitions[its_id if uses_ids else topic, partition[INDEX]] = Wanted(name, its_id, partition)
            count += 1
            if not count % MANY_PARTITIONS:
                yield
    return partitions


def _all_of(topics: list[Flat], topic_name: TopicName) -> dict[Key, Wanted]:
    """Everything that a request of topic ids names; the last word counts on a partition that it names twice."""
    partitions: dict[Key, Wanted] = {}
    for _, topic_id, named in topics:
        name = topic_name(topic_id)
        for partition in named:
            partitions[topic_id, partition[INDEX]] = Wanted(name, topic_id, partition)
    return partitions


def _all_named(topics: list[Flat]) -> dict[Key, Wanted]:
    """The same, of a request of names."""
    return {
        (name, partition[INDEX]): Wanted(name, ZERO_UUID, partition) for name, _, named in topics for partition in named
    }
