"""Client quotas at work: what each request uses of its client's, and how long a client over one is throttled.

Made by `core.py` when the first quota is set, and asked by it before each answer is encoded. It looks at requests and
answers; it decides nothing about connections: the core mutes them. Which quota a client has, and how much of it is
used, is kept in `broker/client_quotas.py`.

A throttled answer says how long its client is to wait (`throttle_time_ms`), and leaves at once (KIP-219); that holds
for every version, as in Kafka from 2.0 on. A consumer's throttled fetch brings nothing: its records would be the bytes
that are too many. They do not count then, and it gets them when it asks again. No fetch brings more than all windows
of its quota do, or none could ever be answered.

Requests of brokers (`EXEMPT`, and fetches of followers) are never throttled, nor are followers' bytes counted.

Unlike Kafka: what a fetch's answer has around its records counts as 64 bytes a partition; the time of sending does not
count. What a share group's member fetches counts, and comes though it is throttled: its records are locked for it by
then. Kafka keeps them back, and they wait for the end of their locks.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.authorization import with_items
from kbroker.api.routes import SERVED
from kbroker.broker.client_quotas import NANOSECONDS_TO_PERCENT
from kbroker.channel import Request
from protocol.flat import place
from protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from protocol.messages.share_groups import ShareFetchableTopicResponse, ShareFetchResponse, SharePartitionData

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from kbroker.api.call import Answer, Call, Result
    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.broker.client_quotas import ClientQuotaManager, ClientQuotas, Metered
    from kbroker.broker.rates import Rate
    from kbroker.timing import Steps
    from protocol.flat import Flat

    Charge: TypeAlias = Callable[[Request, Answer | None, int], int]

PRODUCE, FETCH, SHARE_FETCH = 0, 1, 78
EXEMPT = frozenset((4, 5, 6, 7, 27, 56, 67))
"""What brokers ask, LeaderAndIsr to AllocateProducerIds."""
MUTATING = (19, 20, 37)  # CreateTopics, DeleteTopics, CreatePartitions
OF_A_FOLLOWER = -1  # instead of the size of its fetch, which does not count
AROUND_RECORDS = 64
REPLICA_STATE_SINCE = 15  # KIP-903

REPLICA_ID, REPLICA_STATE = place(FetchRequest, "replica_id"), place(FetchRequest, "replica_state")
ERROR_CODE, SESSION_ID = place(FetchResponse, "error_code"), place(FetchResponse, "session_id")
IN_FETCH = (
    place(FetchResponse, "responses"),
    place(FetchableTopicResponse, "partitions"),
    place(PartitionData, "records"),
)
IN_SHARE_FETCH = (
    place(ShareFetchResponse, "responses"),
    place(ShareFetchableTopicResponse, "partitions"),
    place(SharePartitionData, "records"),
)


class MeteredRequest(Request):
    """A request of a broker with quotas of time. used_ns: on the broker's thread, but for what it is doing now."""

    __slots__ = ("used_ns",)
    used_ns: int

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.used_ns = 0


class Metering:
    """charges: what to do with an answer, by API."""

    def __init__(self, broker: Broker, quotas: ClientQuotas) -> None:
        self._broker = broker
        self._produce, self._fetch, self._request = quotas.produce, quotas.fetch, quotas.request
        self._now_ns = broker.clock.now_ns
        kinds = (
            ((PRODUCE,), self._produce, self._charge_produce),
            ((FETCH,), self._fetch, self._charge_fetch),
            ((SHARE_FETCH,), self._fetch, self._charge_share_fetch),
            (MUTATING, quotas.controller_mutation, self._charge_mutations),
        )
        self._of_bytes: dict[int, Charge] = {
            api: charge for apis, manager, charge in kinds if manager.is_on for api in apis
        }
        self.charges = self._of_bytes
        if self._request.is_on:
            self.charges = {api: self._charge_time for api in SERVED if api not in EXEMPT}
        self._began_ns = 0
        self._running: MeteredRequest | None = None  # handled now
        self._owes: Metered[Rate] | None = None  # it has been answered, and uses more

    def request(self, *parts: Any) -> MeteredRequest:
        """In place of `Request`, while time counts."""
        made = self._running = MeteredRequest(*parts)
        return made

    def limited(self, route: Route) -> Route:
        """A route, as it is to be used while there are quotas: no fetch brings more than all windows of one allow."""
        if route.api not in (FETCH, SHARE_FETCH) or FETCH not in self.charges:
            return route
        made, max_bytes = copy(route), place(route.request, "max_bytes")

        def handle(request: Flat, call: Call) -> Result:
            if route.api == FETCH:
                replica_id = request[REPLICA_ID] if call.version < REPLICA_STATE_SINCE else request[REPLICA_STATE][0]
                if replica_id >= 0:
                    cast("Request", call).frame_bytes = OF_A_FOLLOWER
                    return route.handle(request, call)
            client_id, meter = call.session.fetched
            if client_id != call.client_id or meter.most < request[max_bytes]:  # what all windows of its quota bring
                most = self._meter_of(call, self._fetch, "fetched")[0].most
                if most < request[max_bytes]:
                    request = cast("Flat", with_items(request, max_bytes, most))
            return route.handle(request, call)

        made.handle = handle
        return made

    def _charge_produce(self, request: Request, answer: Answer | None, now_ms: int) -> int:
        """Each of these counts what a request has used that is about to be answered; for how long it is throttled.

        answer: None where there is none (acks=0).
        """
        meter, metered = self._meter_of(request, self._produce, "produced")
        throttle_ms = meter.record(request.frame_bytes, now_ms)
        return 0 if metered is None or not throttle_ms else metered.noted(throttle_ms)

    def _charge_fetch(self, request: Request, answer: Answer | None, now_ms: int) -> int:
        if request.frame_bytes == OF_A_FOLLOWER:
            return 0
        size = self.bytes_fetched(answer)
        meter, metered = self._meter_of(request, self._fetch, "fetched")
        throttle_ms = meter.record(size, now_ms)
        if metered is None or not throttle_ms:
            return 0
        meter.add(-size, now_ms)  # it leaves without its records
        return metered.noted(throttle_ms)

    @staticmethod
    def _meter_of(call: Call, manager: ClientQuotaManager[Rate], kind: str) -> tuple[Rate, Metered[Rate] | None]:
        """The meter of a client, kept in its session from now on, and whose it is, if it has a quota.

        kind: the session's field.
        """
        metered = manager.of[call.session.principal.name, call.client_id]
        meter = manager.unlimited if metered is None else metered.meter
        setattr(call.session, kind, (call.client_id, meter))
        return meter, metered

    @staticmethod
    def bytes_fetched(answer: Any) -> int:
        """How large a fetch's answer is, about."""
        return _size(answer, *IN_FETCH)

    def _charge_share_fetch(self, request: Request, answer: Answer | None, now_ms: int) -> int:
        metered = self._fetch.of[request.session.principal.name, request.client_id]
        if metered is None:
            return 0
        throttle_ms: int = metered.meter.record(_size(cast("Flat", answer), *IN_SHARE_FETCH), now_ms)
        if throttle_ms:
            metered.noted(throttle_ms)
        return throttle_ms

    def _charge_mutations(self, request: Request, answer: Answer | None, now_ms: int) -> int:
        mutations = request.mutations
        return 0 if mutations is None else mutations.noted(now_ms)

    def _charge_time(self, request: Request, answer: Answer | None, now_ms: int) -> int:
        """What it has used of its other quota, and of the broker's time; the longer wait counts."""
        charge = self._of_bytes.get(request.route.api)
        throttle_ms = 0 if charge is None else charge(request, answer, now_ms)
        metered = self._request.of[request.session.principal.name, request.client_id]
        if metered is None or answer is None or not isinstance(request, MeteredRequest):
            return throttle_ms
        if request.frame_bytes == OF_A_FOLLOWER:
            return throttle_ms
        used_ns = request.used_ns
        if self._running is request:
            now_ns = self._now_ns()
            used_ns, self._began_ns, self._owes = used_ns + now_ns - self._began_ns, now_ns, metered
        own_ms = min(metered.meter.record(used_ns * NANOSECONDS_TO_PERCENT, now_ms), self._request.windows.size_ms)
        if not own_ms:
            return throttle_ms
        if request.route.api == FETCH and not throttle_ms:
            self._withhold(request, answer, now_ms)
        return max(throttle_ms, metered.noted(own_ms))

    def _withhold(self, request: Request, answer: Answer, now_ms: int) -> None:
        """A fetch leaves without its records: they do not count."""
        metered = self._fetch.of[request.session.principal.name, request.client_id] if self._fetch.is_on else None
        if metered is not None:
            metered.meter.add(-self.bytes_fetched(answer), now_ms)

    def throttled(self, request: Request, answer: Answer, throttle_ms: int) -> Answer:
        """The answer of a client that is over its quota."""
        if request.route.api == FETCH:
            fetched = cast("Flat", answer)
            session_id = self._broker.fetch_sessions.withhold(fetched[SESSION_ID])
            return throttle_ms, fetched[ERROR_CODE], session_id, [], []
        flat = request.route.flat
        at = "throttle_time_ms" if flat is None else place(flat, "throttle_time_ms")
        if isinstance(at, str) and not hasattr(answer, at):
            return answer
        return cast("Answer", with_items(answer, at, throttle_ms))  # a copy: it may be kept for others

    # -- time on the broker's thread

    def begin_request(self, request: Request | None = None) -> None:
        """A request is handled from now on. request: None for the one that is about to be read."""
        self._began_ns, self._owes = self._now_ns(), None
        self._running = request if isinstance(request, MeteredRequest) else None

    def end(self, now_ms: int) -> None:
        """It is handled as far as it could be: what it took since it was answered counts without a wait for it."""
        used_ns, request, owes = self._now_ns() - self._began_ns, self._running, self._owes
        if owes is not None:
            owes.meter.add(used_ns * NANOSECONDS_TO_PERCENT, now_ms)
        elif request is not None:
            request.used_ns += used_ns
        self._running = self._owes = None

    def timed(self, request: Request, steps: Steps, now_ms: Callable[[], int]) -> Steps:
        """The same steps; the time that they take is the request's."""
        while True:
            self.begin_request(request)
            try:
                next(steps)
            except StopIteration:
                return
            finally:
                self.end(now_ms())
            yield


def _size(answer: Flat, responses: int, partitions: int, records_at: int) -> int:
    """Of the answer of a fetch, about: where its topics are in its tuple, their partitions in theirs, their records."""
    size = 0
    for topic in answer[responses]:
        for part in topic[partitions]:
            records = part[records_at]
            if records:
                size += sum(map(len, records)) if records.__class__ is list else len(records)
        size += AROUND_RECORDS * len(topic[partitions])
    return size
