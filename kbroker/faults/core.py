"""A core that obeys faults, and remembers what was asked: the plain one with a hand on requests and answers.

Used instead of `kbroker.core.Core` where faults are wanted, and nowhere else: a broker without them does not have this
code on its way. Requests of clients named OWN_CLIENT are neither met nor remembered: they are the test's own questions.

A request is met in `_handle`, before its handler; its answer in `_answer`, as a message, and in `_put`, as bytes. What
has to wait stands in line on its connection like any request that waits, and has an alarm.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.routes import SERVED
from kbroker.channel import Channel, Request, emit
from kbroker.core import IS_ANSWER, Closed, Core, Effects, throttle
from kbroker.faults.contents import errors, groups, join, partitions, split, transactional_ids
from kbroker.faults.history import Seen
from kbroker.faults.script import Asked, Fault, Faults
from kbroker.ports import Region
from protocol.errors import KafkaError
from protocol.flat import flattened, message_of
from protocol.message import Message
from protocol.messages.fetch import FetchRequest, FetchTopic

if TYPE_CHECKING:
    from kbroker.api.call import Answer
    from kbroker.broker.broker import Broker
    from protocol.flat import Flat

OWN_CLIENT = "kbroker.testing"
API_VERSIONS = 18


class Met:
    """A request that a fault has met, until its answer is out. refusal: of the partitions that are to fail."""

    __slots__ = ("fault", "refusal", "seen")

    def __init__(self, fault: Fault, seen: Seen) -> None:
        self.fault = fault
        self.seen = seen
        self.refusal: Message | None = None


class ScriptedCore(Core):
    """One broker's every decision, some of them wrong on demand."""

    def __init__(self, broker: Broker, now_ms: int, faults: Faults) -> None:
        super().__init__(broker, now_ms)
        self.faults = faults
        self.call_soon: Callable[[Callable[[], None]], None] | None = None  # for faults released from another thread
        self._met: dict[Request, Met] = {}
        self._seen: dict[Request, Seen] = {}
        self._held_frames: dict[Channel, deque[memoryview]] = {}  # behind a request that waits to be looked at
        self._held: dict[Fault, list[Callable[[], None]]] = {}

    # -- in

    def receive(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """As the plain core's; what waits keeps its bytes, for the buffer belongs to the next request."""
        own = memoryview(bytearray(frame))
        waiting = self._held_frames.get(channel)
        if waiting is not None:
            waiting.append(own)
        else:
            super().receive(channel, own, now_ms)

    def step(self, event: object, now_ms: int) -> Effects:
        """As the plain core's; a connection that is gone takes along what waited on it."""
        if isinstance(event, Closed):
            self._held_frames.pop(event.channel, None)
            for kept in (self._met, self._seen):
                for request in [each for each in kept if each.channel is event.channel]:
                    del kept[request]
        return super().step(event, now_ms)

    def _handle(self, request: Request, body: Answer) -> None:
        if request.client_id == OWN_CLIENT:
            super()._handle(request, body)
        else:
            self._look(request, message_of(request.route.request, body) if isinstance(body, tuple) else body)

    def _go_on(self, request: Request, body: Message) -> None:
        """What the plain core does with a request, given as its route wants it."""
        super()._handle(request, body if request.route.flat is None else flattened(body))

    def _look(self, request: Request, body: Message) -> None:
        if request.version > self.faults.last_version(SERVED[request.route.api]):
            self._refuse_unknown(request.channel, request.route.api, request.version, request.correlation_id)
            return
        asked = self._asked_of(request, body)
        seen = self._remember(request, body, asked)
        fault = self.faults.find(asked)
        if fault is None:
            self._go_on(request, body)
            return
        seen.fault = fault.does
        met = self._met[request] = Met(fault, seen)
        self._meet(request, body, met)

    def _asked_of(self, request: Request, body: Message) -> Asked:
        named = set(partitions(body, self.broker.plane.cache.topic_name))
        if isinstance(body, FetchRequest):
            named |= {(topic, index) for topic, index, _ in self._in_session(body)}
        return Asked(
            request.route.name, request.version, request.client_id or "", named, groups(body), transactional_ids(body)
        )

    def _in_session(self, body: FetchRequest) -> list[tuple[str, int, Any]]:
        """What a fetch wants that it does not name."""
        session = self.broker.fetch_sessions._sessions.get(body.session_id)
        wanted = session.partitions.values() if session is not None and body.session_epoch > 0 else ()
        return [(each.topic, each.index, each) for each in wanted if each.topic is not None]

    def _remember(self, request: Request, body: Message, asked: Asked) -> Seen:
        seen = Seen(
            request.route.name,
            request.version,
            request.client_id or "",
            body,
            sum(len(topic) for topic, _ in asked.partitions) + 256 + _records_in(body),
            self.broker.clock.wall_ms(),
            {topic for topic, _ in asked.partitions},
            asked.groups | asked.transactional_ids,
        )
        self.faults.history.add(seen)
        self._seen[request] = seen
        return seen

    # -- before it is handled

    def _meet(self, request: Request, body: Message, met: Met) -> None:
        fault = met.fault
        if fault.after:
            self._refuse_after(request, body, met)
            self._go_on(request, body)
        elif fault.action == "fail":
            self._fail(request, body, met)
        elif fault.action == "disconnect":
            self._hang_up(request.channel, f"{fault!r}")
        elif fault.action == "drop":
            request.channel.pending.append(request)
        else:
            go_on = partial(self._look_now, request, body, met)
            self._held_frames[request.channel] = deque()
            self._wait(fault, go_on)

    def _look_now(self, request: Request, body: Message, met: Met) -> None:
        """The wait is over: handle it, and what has come behind it."""
        channel = request.channel
        frames = self._held_frames.pop(channel, None)
        if channel.closing or frames is None:
            return
        del self._met[request]
        self._go_on(request, body)
        self._follow(self._now_ms)
        while frames and channel not in self._held_frames and not channel.closing:
            super().receive(channel, frames.popleft(), self._now_ms)
        if frames and channel in self._held_frames:
            self._held_frames[channel].extendleft(reversed(frames))
        self._writes[channel] = None

    def _wait(self, fault: Fault, go_on: Callable[[], None]) -> None:
        if fault.action == "delay":
            self._later(fault.ms, go_on)
            return
        held = self._held.setdefault(fault, [])
        if not held:
            fault.on_release.append(partial(self._release_soon, fault))
        held.append(go_on)
        if fault.is_released:  # since it was met, by a thread that may have found nobody to tell
            self._later(0, partial(self._release, fault))

    def _release_soon(self, fault: Fault) -> None:
        if self.call_soon is not None:
            self.call_soon(partial(self._release, fault))

    def _release(self, fault: Fault) -> None:
        for go_on in self._held.pop(fault, ()):
            go_on()

    def _fail(self, request: Request, body: Message, met: Met) -> None:
        """Refuse all of it, or a part, and handle the rest."""
        refused, rest = self._parts(body, met.fault)
        if rest is None:
            self._refuse_all(request, body, met.fault)
            return
        met.refusal = self._refusal_of(request, refused, met.fault)
        if isinstance(rest, FetchRequest):
            rest.max_wait_ms = 0
        self._go_on(request, rest)

    def _refuse_after(self, request: Request, body: Message, met: Met) -> None:
        if met.fault.action == "fail":
            met.refusal = self._refusal_of(request, self._parts(body, met.fault)[0], met.fault)

    def _parts(self, body: Message, fault: Fault) -> tuple[Message, Message | None]:
        """What the fault is on, and the rest of a request; None: it is on all of it."""
        topic_name = self.broker.plane.cache.topic_name
        if fault.topic is None:
            return body, None
        if isinstance(body, FetchRequest):  # the session must see all of it; the refusal takes the place of records
            return self._fetch_of(body, fault), body
        inside, outside = split(body, lambda each: fault.concerns(*each), topic_name)
        return inside, outside if any(partitions(outside, topic_name)) else None

    def _fetch_of(self, body: FetchRequest, fault: Fault) -> FetchRequest:
        topic_name = self.broker.plane.cache.topic_name
        refused, _ = split(body, lambda each: fault.concerns(*each), topic_name) if body.topics else (body, body)
        topics = list(refused.topics)  # type: ignore[attr-defined]
        named = set(partitions(refused, topic_name))
        for topic, index, wanted in self._in_session(body):
            if fault.concerns(topic, index) and (topic, index) not in named:
                topics.append(_fetch_topic(topic, wanted))
        return FetchRequest(max_wait_ms=0, min_bytes=0, session_id=body.session_id, topics=topics)

    def _refuse_all(self, request: Request, body: Message, fault: Fault) -> None:
        def refuse(_: Message, __: object) -> object:
            raise KafkaError(fault.error, f"{fault!r}")

        route = request.route
        request.route = copy.copy(route)
        request.route.handle = refuse  # type: ignore[assignment]
        self._go_on(request, body)
        request.route = route

    def _refusal_of(self, request: Request, body: Message, fault: Fault) -> Message | None:
        given = body if request.route.flat is None else flattened(body)
        refused = self._refusal(request, given, KafkaError(fault.error, f"{fault!r}"))
        return self._named(request, refused) if isinstance(refused, IS_ANSWER) else None

    def _named(self, request: Request, answer: Answer) -> Message:
        flat = request.route.flat
        return message_of(flat, cast("Flat", answer)) if flat is not None else cast(Message, answer)

    # -- out

    def _answer(self, request: Request, answer: Answer) -> None:
        response = self._named(request, answer)
        if request.route.api == API_VERSIONS:
            response = self._as_release(response)
        met = self._met.get(request)
        if met is not None:
            response = self._changed(met, response)
        seen = self._seen.get(request)
        if seen is not None:
            seen.answered = True
            seen.errors = tuple(errors(response))
        super()._answer(request, response if request.route.flat is None else flattened(response))

    def _changed(self, met: Met, response: Message) -> Message:
        fault = met.fault
        if fault.action == "fail" and met.refusal is not None:
            if fault.topic is None:
                return met.refusal
            join(response, met.refusal, self.broker.plane.cache.topic_name)
        elif fault.action == "throttle":
            throttle(response, fault.ms)
        elif fault.action == "corrupt" and not _corrupt(response, fault, self.broker.plane.cache.topic_name):
            fault.give_back()
            met.seen.fault = ""
        return response

    def _as_release(self, response: Any) -> Message:
        kept = []
        for each in response.api_keys:
            served = SERVED.get(each.api_key)
            last = self.faults.last_version(served) if served is not None else each.max_version
            if last >= each.min_version:
                each.max_version = min(each.max_version, last)
                kept.append(each)
        response.api_keys = kept
        return response  # type: ignore[no-any-return]

    def _put(self, request: Request, buffers: list[Any]) -> None:
        self._seen.pop(request, None)
        met = self._met.pop(request, None)
        if met is None or not met.fault.after or request.channel.closing:
            super()._put(request, buffers)
            return
        fault = met.fault
        if fault.action == "disconnect":
            self._hang_up(request.channel, f"{fault!r}")
        elif fault.action in ("drop", "delay", "hold", "in_pieces"):
            if not request.late:
                request.channel.pending.append(request)
            request.late = True
            if fault.action == "in_pieces":
                data = b"".join(piece.read() if isinstance(piece, Region) else piece for piece in buffers)
                self._next_piece(request, fault, memoryview(data))
            elif fault.action != "drop":
                self._wait(fault, partial(self._put_late, request, buffers))
        else:
            super()._put(request, buffers)

    def _put_late(self, request: Request, buffers: list[Any]) -> None:
        super()._put(request, buffers)

    def _next_piece(self, request: Request, fault: Fault, left: memoryview) -> None:
        channel = request.channel
        if channel.closing:
            return
        if channel.pending[0] is request:
            emit(channel, [bytes(left[: fault.size])])
            self._writes[channel] = None
            left = left[fault.size :]
        if left:
            self._later(fault.ms, partial(self._next_piece, request, fault, left))
        else:
            super()._put(request, [])

    def _later(self, ms: int, job: Callable[[], None]) -> None:
        self._scheduler.alarm(lambda now_ms: job()).set(self.broker.clock.now_ms() + ms)


def _fetch_topic(topic: str, wanted: Any) -> FetchTopic:
    """A topic of a fetch, made from what a session remembers."""
    from protocol.messages.fetch import FetchPartition

    part = FetchPartition(
        partition=wanted.index, fetch_offset=wanted.fetch_offset, partition_max_bytes=wanted.max_bytes
    )
    return FetchTopic(topic=topic, topic_id=wanted.topic_id, partitions=[part])


def _records_in(body: Any) -> int:
    """Bytes of records in a Produce."""
    return sum(len(part.records or b"") for topic in getattr(body, "topic_data", ()) for part in topic.partition_data)


def _corrupt(response: Any, fault: Fault, topic_name: Callable[[bytes], str | None]) -> bool:
    """Turn the last bit of the first records that the fault is on; whether there were any."""
    for topic in response.responses:
        name = topic.topic or topic_name(topic.topic_id) or ""
        for part in topic.partitions:
            pieces = part.records if isinstance(part.records, list) else [part.records or b""]
            data = bytearray(b"".join(each.read() if isinstance(each, Region) else each for each in pieces))
            if data and fault.concerns(name, part.partition_index):
                data[-1] ^= 1
                part.records = bytes(data)
                return True
    return False
