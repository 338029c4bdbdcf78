"""Fetch: records from given offsets on, as file regions; wait for min_bytes, but not longer than max_wait_ms.

Served: Fetch 0-18 (0-3 in `fetch_old.py`), with incremental sessions (`fetch_sessions.py`), topic ids from 13 on, and
both isolation levels. An answer holds at most max_bytes, the request's or the broker's `fetch.max.bytes`, except that
the first batch of the first partition with data always comes whole, so that a consumer gets on; and records of at
most 1,000 partitions, since each may hold a file open. An error of any partition, or a divergence of epochs, is
answered at once. A segment that the disk has to bring first (`log/index_warmup.py`) is waited for, whatever max_wait_ms
is: a part of an answer is empty if there is nothing, or no room. A follower does not wait for one partition where
others have records.

Followers, which name a replica, read to the end of the log (`fetch_follower.py`), with Fetch 4 and newer.

Consumers are answered by any replica, up to the high watermark that it knows, from Fetch 11 on; their leader may send
them to one of their own rack (`fetch_nearest.py`).

Unlike Kafka: a replica in Fetch 0-3 is taken for a consumer. A min_bytes that a segment's end cuts in two is waited for
all the same. A partition that is not there is answered at once; Kafka waits for the others first, if there are any. A
size below 0 is taken for 0, and an isolation level that does not exist for read uncommitted; Kafka fails at both.
"""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, cast

from kbroker.api.authorization import Asking, Known, Right, Special, with_permission
from kbroker.api.call import LATER
from kbroker.api.fetch_reader import Reader, failed_part, reads_nothing
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Reply
from kbroker.broker.fetch_sessions import named_in_slices
from kbroker.config.limits import (
    COLD_PATIENCE_MS,
    ELEMENTS_PER_REQUEST,
    LONG_POLL_SHARE,
    LONG_POLL_STEP_MS,
    MANY_PARTITIONS,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import place
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kbroker.api.authorization import Left
    from kbroker.api.call import Answer, Call, InSlices, Result, Signal, Waiting
    from kbroker.api.fetch_follower import FollowerReader
    from kbroker.broker.fetch_sessions import FetchSession, Key, Wanted
    from protocol.flat import Flat

REPLICA_ID, REPLICA_STATE = place(FetchRequest, "replica_id"), place(FetchRequest, "replica_state")
MAX_WAIT_MS, SESSION_ID = place(FetchRequest, "max_wait_ms"), place(FetchRequest, "session_id")
TOPICS, RACK_ID = place(FetchRequest, "topics"), place(FetchRequest, "rack_id")
INDEX = place(FetchPartition, "partition")
BATCHES_SINCE = 4
REPLICA_STATE_SINCE = 15  # KIP-903
FOLLOWERS_NEED = (Operation.CLUSTER_ACTION,)
FOLLOWING = Operation.CLUSTER_ACTION, ResourceType.CLUSTER


def fetch(request: Flat, call: Call) -> Result:
    """Answer with what is there if that is enough, else wait for more. request: the fields of FetchRequest."""
    session_id = request[SESSION_ID]
    if (session_id and call.broker.fetch_sessions.is_large(session_id)) or call.is_large:
        return _in_slices(request, call)
    return _fetch(request, call)


def _in_slices(request: Flat, call: Call) -> InSlices:
    """A fetch that names many partitions, or of a session that remembers many."""
    yield
    named = (yield from named_in_slices(request, call.version, call.broker.plane.cache.topic_name)) or None
    result = _fetch(request, call, named)
    if isinstance(result, GeneratorType):
        result = yield from result
    return cast("Answer | Waiting | Signal", result)


def _fetch(request: Flat, call: Call, named: dict[Key, Wanted] | None = None) -> Result:
    """named: what the request names, if that has been looked at."""
    broker = call.broker
    replica_id, (replica, _), max_wait_ms = request[REPLICA_ID], request[REPLICA_STATE], request[MAX_WAIT_MS]
    is_follower = (replica_id if call.version < REPLICA_STATE_SINCE else replica) >= 0 and call.version >= BATCHES_SINCE
    if is_follower and call.may_read is None and not broker.auth_helper.allows(call.session, *FOLLOWING):
        return with_permission(request, call, FOLLOWERS_NEED, fetch, _refuse)
    topic_name = broker.plane.cache.topic_name
    try:
        session, wanted = broker.fetch_sessions.open_session(request, call.version, call.now_ms, topic_name, named)
    except KafkaError as error:
        call.has_errors = True
        return 0, error.code, 0, [], []
    if call.version < BATCHES_SINCE:
        from kbroker.api.fetch_old import OldReader  # as the other kinds: many brokers meet none of them

        reader: Reader = OldReader(request, call, wanted)
    elif is_follower:
        reader = _follower(request, call, session, wanted)
    elif request[RACK_ID] and broker.config.replica_selector_class:
        from kbroker.api.fetch_nearest import NearestReader

        reader = NearestReader(request, call, session, wanted)
    else:
        reader = Reader(request, call, session, wanted)
    if len(wanted) > MANY_PARTITIONS:
        if session is not None:
            session.used_by = call.session
        return _many(reader, call.now_ms, max_wait_ms)
    if max_wait_ms <= 0 or not wanted:
        now: Answer | Signal | None = reader.response()
        return now or ColdFetch(reader, call.now_ms)
    return reader.first_response() or DelayedFetch(reader, _deadline_ms(call.now_ms, max_wait_ms))


def _many(reader: Reader, now_ms: int, max_wait_ms: int) -> InSlices:
    """The same, for a fetch of many partitions."""
    yield
    if max_wait_ms > 0 and not reader.may_answer():
        return DelayedFetch(reader, _deadline_ms(now_ms, max_wait_ms))
    return (yield from _read_in_slices(reader, now_ms))


def _read_in_slices(reader: Reader, now_ms: int) -> InSlices:
    """What there is, once the disk has brought it."""
    response = yield from reader.response_in_slices()
    return response or ColdFetch(reader, now_ms)


def _follower(request: Flat, call: Call, session: FetchSession | None, wanted: Sequence[Wanted]) -> FollowerReader:
    """The reader of a replica's fetch, which has been noted as far as it says how far the replica is."""
    from kbroker.api.fetch_follower import FollowerReader

    says_state = call.version >= REPLICA_STATE_SINCE
    replica_id, broker_epoch = request[REPLICA_STATE] if says_state else (request[REPLICA_ID], -1)
    reader = FollowerReader(request, call, session, wanted, replica_id=replica_id, broker_epoch=broker_epoch)
    reader.arrive()
    return reader


def _deadline_ms(now_ms: int, max_wait_ms: int) -> int:
    """Until when a fetch waits: no less than max_wait_ms, and a little more, so that many of them end together.

    What a quiet broker does is wake up: once for each of its consumers' waits that ends, once for each that begins. So
    waits end on multiples of a step, at most a fifth of the wait late, and consumers that were answered together
    come back together. A client that asked to wait is not answered before: some measure it.
    """
    at_least_ms = now_ms + 1 + max_wait_ms  # a part of this millisecond is over
    return at_least_ms + -at_least_ms % max(min(max_wait_ms // LONG_POLL_SHARE, LONG_POLL_STEP_MS), 1)


class DelayedFetch:
    """A fetch for which there is too little yet."""

    __slots__ = ("_reader", "deadline_ms", "keys")

    def __init__(self, reader: Reader, deadline_ms: int) -> None:
        self._reader = reader
        self.deadline_ms = deadline_ms
        self.keys: Sequence[Hashable] = reader.partitions()

    def answer(self, now_ms: int) -> Flat | Signal | InSlices | None:
        """The response once there is enough, or something to report."""
        if len(self.keys) <= MANY_PARTITIONS:
            return self._reader.response_if_enough()
        if self._reader.waits_for_disk() or not self._reader.may_answer():
            return None
        return _read_in_slices(self._reader, now_ms)

    def expired(self, now_ms: int) -> Flat | Signal | InSlices:
        """The response at the deadline: whatever there is; LATER if the disk has yet to bring it."""
        reader = self._reader
        if len(self.keys) > MANY_PARTITIONS:
            return _read_in_slices(reader, now_ms)
        response: Flat | Signal | None = reader.response()
        if response is None:
            reader.call.broker.tell(Reply(reader.call.ticket, ColdFetch(reader, now_ms)))
            return LATER
        return response


class ColdFetch(DelayedFetch):
    """A fetch that waits for nothing but the disk."""

    __slots__ = ()

    def __init__(self, reader: Reader, now_ms: int) -> None:
        super().__init__(reader, now_ms + COLD_PATIENCE_MS)

    def answer(self, now_ms: int) -> Flat | Signal | InSlices | None:
        """The response once the disk has brought what it reads."""
        if self._reader.waits_for_disk():
            return None
        if len(self.keys) > MANY_PARTITIONS:
            return _read_in_slices(self._reader, now_ms)
        response: Flat | Signal | None = self._reader.response()
        return response

    def expired(self, now_ms: int) -> Flat | Signal | InSlices:
        """The response without it, which says so."""
        self._reader.give_up()
        return super().expired(now_ms)


def _refuse(request: Flat, code: ErrorCode, text: str, version: int) -> Flat:
    """An error of the exchange as a whole; before sessions (v7), of each partition."""
    answers = [
        (topic, topic_id, [failed_part(partition[INDEX], code) for partition in partitions])
        for topic, topic_id, partitions in request[TOPICS]
    ]
    return 0, code, 0, answers, []


def _ask_to_follow(request: Flat, asking: Asking) -> Left:
    yield from ()
    call = asking.call
    replica_id, (replica, _) = request[REPLICA_ID], request[REPLICA_STATE]
    is_follower = (replica_id if call.version < REPLICA_STATE_SINCE else replica) >= 0 and call.version >= BATCHES_SINCE
    if is_follower:
        call.may_read = None if asking.allows(*FOLLOWING) else reads_nothing
    return request


def _asks_itself(request: Flat, call: Call) -> bool:
    """Whether it is a consumer's: the reader asks for each topic that is read, which the session may remember."""
    # not by `Asking`, which knows the call: that would be garbage for the collector
    call.may_read = partial(call.broker.auth_helper.allows, call.session, Operation.READ, ResourceType.TOPIC)
    return bool(request[REPLICA_ID] < 0 and request[REPLICA_STATE][0] < 0)


NEEDS = (Special((Right(Operation.READ, ResourceType.TOPIC), Right(*FOLLOWING)), _ask_to_follow),)
ROUTES = (
    Route(
        1,
        FetchRequest,
        0,
        18,
        fetch,
        _refuse,
        NEEDS,
        flat=FetchResponse,
        elements=ELEMENTS_PER_REQUEST,
        known=Known(_asks_itself),
    ),
)
