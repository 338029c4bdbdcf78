"""What only a broker knows, told to its console: questions by name, answers that JSON can carry.

It runs in the broker, on its thread, between other events: every answer is bounded, changes nothing but faults, and
leaves decoding to the console's own process. Frames travel in hex, as they came and went.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kbroker.api.routes import SERVED
from kbroker.console import CLIENT_ID, MOST_SAMPLES
from kbroker.faults.file import fault_of
from kbroker.log.index import OffsetIndex, TimeIndex
from kbroker.log.index_warmup import NotReadyError
from kbroker.log.isolation import HIGH_WATERMARK
from kbroker.log.names import segment_file_name
from kbroker.usage import UsageError
from protocol.errors import KafkaError
from protocol.records.batch import BASE_OFFSET, COUNT, LEADER_EPOCH, PRODUCER_ID, last_offset_of, size_of

if TYPE_CHECKING:
    from kbroker.channel import Channel
    from kbroker.console.notes import Note, Notes
    from kbroker.faults.history import Seen
    from kbroker.faults.script import Faults
    from kbroker.log.log import Log
    from kbroker.log.segment import Segment
    from kbroker.runtime.node import Node

MOST_REQUESTS = 200
MOST_CONNECTIONS = 500
MOST_WAITING = 500
MOST_SEGMENTS = 400
MOST_ENTRIES = 400  # of an index
MOST_BATCHES = 200
ANSWER_BYTES = 600  # of an answer in a list, in which errors are looked for
HEAD_BYTES = 64 << 10  # of a segment, in which batches are looked at
MOST_EVENTS, MOST_FRAME_BYTES = 2000, 1 << 20  # of groups' requests
SAMPLE = ("at_s", "requests", "bytes in", "bytes out", "connections made")


class Looks:
    """Answers questions about one broker. faults: those that its console arms."""

    def __init__(self, node: Node, notes: Notes, faults: Faults) -> None:
        self._node = node
        self._notes = notes
        self._faults = faults
        self._samples: deque[tuple[int, ...]] = deque(maxlen=MOST_SAMPLES)
        self._questions: Mapping[str, Callable[..., Any]] = {
            "samples": self.samples,
            "connections": self.connections,
            "requests": self.requests,
            "request": self.request,
            "frames": self.frames,
            "waits": self.waits,
            "partition": self.partition,
            "entries": self.entries,
            "stretch": self.stretch,
            "faults": self.faults,
            "arm": self.arm,
            "disarm": self.disarm,
        }

    def reply_to(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one: `answer`, or `error` in one line."""
        ask = self._questions.get(str(question.get("ask")))
        if ask is None:
            return {"error": f"no such question: {question.get('ask')}"}
        try:
            return {"answer": ask(**question.get("with", {}))}
        except (UsageError, LookupError, OSError, ValueError, TypeError) as error:
            return {"error": str(error) or type(error).__name__}

    # -- what is counted

    def sample(self) -> None:
        """Count what the curves are made of."""
        server, broker = self._node.server, self._node.broker
        counted = sum(broker.counters.requests), server.bytes_in, server.bytes_out, server.accepted
        self._samples.append((broker.clock.now_ms(), *counted))

    def samples(self) -> list[dict[str, float]]:
        """What was counted in the last hour, oldest first. at_s: by the broker's clock."""
        return [dict(zip(SAMPLE, (each[0] / 1000, *each[1:]), strict=True)) for each in self._samples]

    # -- requests

    def connections(self) -> dict[str, Any]:
        """Connections that have asked something, with what they asked last."""
        last: dict[Channel | None, Note] = {}
        counts: dict[Channel | None, int] = {}
        for note in self._notes.notes:
            last[note.channel] = note
            counts[note.channel] = counts.get(note.channel, 0) + 1
        rows = [
            {
                "connection": number,
                **self._peer(channel),
                "client": last[channel].client_id if channel in last else "",
                "requests": counts.get(channel, 0),
                "last": _name_of(last[channel].api) if channel in last else "",
                "last_ms": last[channel].at_ms if channel in last else None,
                "waiting": len(channel.pending),
                "muted": channel.muted is not None,
            }
            for channel, number in list(self._notes.connected().items())[-MOST_CONNECTIONS:]
        ]
        return {"connections": rows, "now_ms": self._node.broker.clock.wall_ms()}

    def _peer(self, channel: Channel) -> dict[str, Any]:
        session = channel.session
        return {
            "peer": f"{session.peer_host}:{session.peer_port}",
            "listener": session.listener,
            "user": str(session.principal),
        }

    def requests(self, connection: int = 0, api: str = "", client: str = "", own: bool = False) -> dict[str, Any]:
        """The last requests, newest first, with the beginnings of their answers.

        connection: 0 for all. own: the console's, too.
        """
        found: list[dict[str, Any]] = []
        key = next((key for key, each in SERVED.items() if each.name.casefold() == api.casefold()), None)
        for note in reversed(self._notes.notes):
            if (
                (connection in (0, note.connection))
                and (not api or note.api == key)
                and (not client or client in note.client_id)
                and (own or connection or note.client_id != CLIENT_ID)
            ):
                found.append({**self._told(note), "answer": _head_of(note)})
                if len(found) >= MOST_REQUESTS:
                    break
        met = [] if connection and not client else self._met(api, client)
        return {"requests": sorted([*found, *met], key=lambda each: -each["at_ms"])[:MOST_REQUESTS]}

    def _met(self, api: str, client: str) -> list[dict[str, Any]]:
        """Requests that a fault has met: some of them the core has never seen."""
        return [
            _seen(each)
            for each in reversed(tuple(self._faults.history))
            if each.fault and (not api or each.api.casefold() == api.casefold()) and client in each.client_id
        ][:MOST_REQUESTS]

    def _told(self, note: Note) -> dict[str, Any]:
        first = note.stages[0].at_ns
        last = note.stages[-1]
        waited = [each for each in note.stages if each.what in ("waits", "held")]
        return {
            "number": note.number,
            "connection": note.connection,
            "api": _name_of(note.api),
            "key": note.api,
            "version": note.version,
            "correlation_id": note.correlation_id,
            "client": note.client_id,
            "at_ms": note.at_ms,
            "size": note.size,
            "answer_size": note.answer_size,
            "state": last.what if note.is_answered else "waits",
            "ms": (last.at_ns - first) / 1e6 if note.is_answered else (self._notes.now_ns() - first) / 1e6,
            "waited_for": waited[-1].why if waited else next((each.why for each in note.stages if each.why), ""),
            "fault": note.fault,
        }

    def request(self, number: int) -> dict[str, Any]:
        """One request with its bytes and what happened to it when."""
        note = next((each for each in self._notes.notes if each.number == number), None)
        if note is None:
            raise LookupError(f"request {number} is not remembered any more: the last {len(self._notes.notes)} are")
        first = note.stages[0].at_ns
        return {
            **self._told(note),
            **({} if note.channel is None else self._peer(note.channel)),
            "frame": None if note.frame is None else note.frame.hex(),
            "answer": None
            if note.answer is None
            else [each.hex() if isinstance(each, bytes) else each for each in note.answer],
            "stages": [{"ms": (each.at_ns - first) / 1e6, "what": each.what, "why": each.why} for each in note.stages],
        }

    def frames(self, apis: list[int]) -> dict[str, Any]:
        """The last requests of some APIs with their bytes, oldest first: what a group's diagram is drawn of."""
        found: list[Note] = []
        left = MOST_FRAME_BYTES
        for note in reversed(self._notes.notes):
            if note.api in apis and note.frame is not None:
                left -= len(note.frame) + note.answer_size
                if left < 0 or len(found) >= MOST_EVENTS:
                    break
                found.append(note)
        return {
            "frames": [
                {
                    **self._told(note),
                    "frame": (note.frame or b"").hex(),
                    "answer": [each.hex() if isinstance(each, bytes) else each for each in note.answer or ()],
                }
                for note in reversed(found)
            ]
        }

    def waits(self) -> dict[str, Any]:
        """Requests that have no answer yet: for how long, and for what they wait."""
        now_ms = self._node.broker.clock.now_ms()
        rows = []
        for request, why in self._notes.waiting():
            if request.client_id == CLIENT_ID:
                continue
            parked = request.parked
            rows.append(
                {
                    "api": request.route.name,
                    "version": request.version,
                    "client": request.client_id or "",
                    "peer": f"{request.session.peer_host}:{request.session.peer_port}",
                    "connection": self._notes.connection_of(request.channel),
                    "ms": now_ms - request.now_ms,
                    "left_ms": None if parked is None else parked.deadline_ms - now_ms,
                    "why": why,
                }
            )
            if len(rows) >= MOST_WAITING:
                break
        return {"waits": rows}

    # -- a partition on disk

    def _log(self, topic: str, partition: int) -> tuple[Any, Log]:
        found = self._node.broker.replicas.partitions.get((topic, partition))
        if found is None or found.log is None:
            raise LookupError(f"broker {self._node.node_id} has no replica of {topic}-{partition}")
        return found, found.log

    def partition(self, topic: str, partition: int) -> dict[str, Any]:
        """A replica as it lies on disk: segments, epochs, high watermark, followers."""
        part, log = self._log(topic, partition)
        epochs = log.epochs.entries()[-200:]
        return {
            "topic": topic,
            "partition": partition,
            "broker": self._node.node_id,
            "folder": log.folder.path,
            "is_leader": part.is_leader,
            "leader": part.leader_id,
            "leader_epoch": part.leader_epoch,
            "in_sync": list(part.isr),
            "replicas": list(part.replicas),
            "log_start_offset": log.log_start_offset,
            "log_end_offset": log.log_end_offset,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "recovery_point": log.recovery_point,
            "cleaned_to": log.cleaned_to,
            "bytes": log.size,
            "segments": [
                self._segment(log, at) for at in range(max(len(log.segments) - MOST_SEGMENTS, 0), len(log.segments))
            ],
            "segments_in_all": len(log.segments),
            "epochs": [{"epoch": epoch, "from": offset} for epoch, offset in epochs],
            "followers": [
                {"broker": each.broker_id, "end_offset": each.log_end_offset, "in_sync": each.broker_id in part.isr}
                for each in part.followers.values()
            ],
        }

    def _segment(self, log: Log, at: int) -> dict[str, Any]:
        segment = log.segments[at]
        is_open = segment.knows_times  # else files would be opened for it
        following = log.segments[at + 1].base_offset if at + 1 < len(log.segments) else log.log_end_offset
        return {
            "base_offset": segment.base_offset,
            "end_offset": following,
            "bytes": segment.size,
            "active": segment is log.active,
            "index_entries": segment.offsets.count if is_open else segment.index_bytes[0] // OffsetIndex.entry_size,
            "time_entries": segment.times.count if is_open else segment.index_bytes[1] // TimeIndex.entry_size,
            "aborted": segment.aborted is not None,
            "max_timestamp": segment.max_timestamp if is_open else None,
        }

    def entries(self, topic: str, partition: int, base_offset: int, offset: int = -1) -> dict[str, Any]:
        """The entries of a segment's indices, and the batches that lie behind one of them.

        offset: where batches are looked at; -1 for the segment's beginning. Of many entries some are told, evenly.
        """
        _, log = self._log(topic, partition)
        segment = next((each for each in log.segments if each.base_offset == base_offset), None)
        if segment is None:
            raise LookupError(f"{topic}-{partition} has no segment that begins with offset {base_offset}")
        offsets, times = segment.offsets, segment.times
        at, position = offsets.lookup(max(offset, base_offset)) if offset >= 0 else (base_offset, 0)
        return {
            "base_offset": base_offset,
            "bytes": segment.size,
            "offsets": [
                dict(zip(("offset", "position"), offsets.entry(slot), strict=True)) for slot in _some(offsets.count)
            ],
            "offset_entries": offsets.count,
            "times": [
                dict(zip(("timestamp", "offset"), times.entry(slot), strict=True)) for slot in _some(times.count)
            ],
            "time_entries": times.count,
            "looked_up": {"wanted": offset, "offset": at, "position": position},
            "batches": _batches(segment, position),
        }

    def stretch(self, topic: str, partition: int, offset: int, most_bytes: int) -> dict[str, Any] | None:
        """Where on disk the bytes are that a consumer's fetch from this offset on would get; None if there are none."""
        part, log = self._log(topic, partition)
        if not part.is_leader:
            return None
        try:
            region = log.read(offset, most_bytes, log.readable_end(HIGH_WATERMARK), wait=False).region
        except (KafkaError, NotReadyError):  # a fetch says why, or waits
            return None
        if region is None:
            return None
        at = max(bisect_right(log.segments, offset, key=attrgetter("base_offset")) - 1, 0)
        segment = next(each for each in log.segments[at:] if each.file is region.file)
        path = f"{log.folder.path}/{segment_file_name(segment.base_offset, 'log')}"
        return {"path": path, "position": region.position, "size": region.size}

    # -- faults

    def faults(self) -> dict[str, Any]:
        """Faults that are armed, and what they have met."""
        return {
            "armed": [
                {"number": number, "text": repr(each), "hits": each.hits, "over": each.is_over}
                for number, each in enumerate(self._faults)
            ],
            "met": self._met("", ""),
        }

    def arm(self, fault: dict[str, Any]) -> dict[str, Any]:
        """Arm one, written as an entry of a file of faults."""
        armed = fault_of(fault)
        self._faults.add(armed)
        return {"armed": repr(armed)}

    def disarm(self) -> dict[str, Any]:
        """Take all away, and let go of what they hold."""
        self._faults.clear()
        return {"armed": 0}


def _head_of(note: Note) -> str:
    """The beginning of an answer, in hex."""
    data = b"".join(each for each in note.answer or () if isinstance(each, bytes))
    return data[:ANSWER_BYTES].hex()


def _name_of(api: int) -> str:
    served = SERVED.get(api) if api in SERVED else None
    return served.name if served is not None else f"API {api}"


def _seen(each: Seen) -> dict[str, Any]:
    return {
        "number": None,
        "connection": None,
        "api": each.api,
        "key": -1,
        "version": each.version,
        "correlation_id": None,
        "client": each.client_id,
        "at_ms": each.at_ms,
        "size": each.size,
        "answer_size": 0,
        "state": ", ".join(sorted({error.name for error in each.errors}))
        or ("answered" if each.answered else "not answered"),
        "ms": None,
        "waited_for": " ".join([*sorted(each.topics), *sorted(each.groups)]),
        "fault": each.fault,
    }


def _some(count: int) -> list[int]:
    """Slots, evenly, the first and the last among them."""
    if count <= MOST_ENTRIES:
        return list(range(count))
    return sorted({at * (count - 1) // (MOST_ENTRIES - 1) for at in range(MOST_ENTRIES)})


def _batches(segment: Segment, position: int) -> list[dict[str, Any]]:
    """Headers of the batches from a position on, as far as a few pages of the file reach."""
    from kbroker.log.scan import headers

    found = []
    for at, header in headers(segment.file, position, min(segment.size, position + HEAD_BYTES)):
        found.append(
            {
                "position": at,
                "base_offset": header[BASE_OFFSET],
                "last_offset": last_offset_of(header),
                "bytes": size_of(header),
                "records": header[COUNT],
                "leader_epoch": header[LEADER_EPOCH],
                "producer_id": header[PRODUCER_ID],
            }
        )
        if len(found) >= MOST_BATCHES:
            break
    return found
