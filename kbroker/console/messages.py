"""Records: read from either end, from an offset or a time, filtered, followed; and sent.

A search reads batches as they lie in the log and looks for the bytes that a hit must have before it reads any record:
a gigabyte takes a second or two. It ends when it has found enough, at the ends that the partitions had when it began,
or when its time is up; then it says where it was, and can go on from there. A console reads the log of its own broker
from the disk (`on_disk.py`), any other one by Fetch.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from kbroker.console.cluster import Cluster, ConsoleError, Place, Topic, asked, by_topic, check
from kbroker.console.groups import ago_ms, time_of
from kbroker.console.inside import Inside
from kbroker.console.offsets import ends, offsets_at
from kbroker.console.on_disk import Pieces, stretch_at
from kbroker.console.values import FORMS, MOST_BYTES, Values
from kbroker.pipeline.hashing import murmur2
from kbroker.runtime.blocking import BlockingConnection
from kbroker.runtime.platform import give_way
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.namedtuple import NamedTuple
from protocol.records import Record, RecordError
from protocol.records.batch import ATTRIBUTES, BASE_OFFSET, CODEC_MASK, CONTROL, last_offset_of, scan, size_of
from protocol.records.content import batch_body, build_batch, parse_records

MOST_RECORDS = 500
SECONDS = 10.0  # that a search may take without being told
MOST_SECONDS = 30.0
FETCH_BYTES = 16 << 20  # of one answer
PARTITION_BYTES = 4 << 20
UNFILTERED_BYTES = 128 << 10  # of a partition, where each record is a hit
FIRST_WINDOW = (
    2_000  # offsets of a partition in which a search from the end begins; each next one is eight times as wide
)
WINDOW_GROWS = 8
BY_NAME = 12  # the last version of Fetch, and of Produce, that names topics
BATCH_LIMIT = 64 << 20  # bytes that a compressed batch may become
TAIL_MS = 1000
TAIL_RECORDS = 200
ALL_IN_SYNC = -1
LEADER_S = 5.0
_MOVES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
START = {
    "newest": "newest first",
    "oldest": "oldest first",
    "offset": "from an offset",
    "time": "from a time",
    "ago": "from some time ago",
}
_PLAIN = re.compile(r"[A-Za-z0-9 .,:_+-]+", re.ASCII)  # JSON writes it as it is, or in escapes
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"]([^'\"]*)['\"]\]")


STARVED_S, STARVED_SHARE = 0.5, 0.2  # of a processor, from then on
FILTERS = ("key", "value", "header", "path")


class Filter(NamedTuple):
    """What records are wanted. must: of each of these, every hit has one somewhere in it, which is looked for first."""

    must: tuple[tuple[bytes, ...], ...]
    accepts: Callable[[Record], bool] | None

    @property
    def is_on(self) -> bool:
        """Whether anything is left out."""
        return self.accepts is not None


def filter_of(values: Values, key: str, value: str, header: str, path: str, equals: str) -> Filter:
    """What is asked for in a form. Raises: ConsoleError.

    key: exactly. value: a part of it. header: name, or name=value. path, equals: `$.order.id` and what is there, a
    number as it is written; without equals, that there is something.
    """
    must: list[tuple[bytes, ...]] = []
    tests: list[Callable[[Record], bool]] = []
    if key:
        wanted = key.encode()
        must.append((wanted,))
        tests.append(lambda record: record.key == wanted)
    if value:
        part = value.encode()
        must.append((part,))
        tests.append(lambda record: record.value is not None and part in record.value)
    if header:
        name, equals_sign, text = header.partition("=")
        header_name, header_value = name.strip().encode(), text.encode()
        must += [(header_name,), *([(header_value,)] if equals_sign and text else [])]
        tests.append(
            lambda record: any(
                each == header_name and (not equals_sign or (value_of or b"") == header_value)
                for each, value_of in record.headers
            )
        )
    if path:
        steps = steps_of(path)
        written = _as_written(equals) if not values.registry else ()
        must += [written] if written else []
        tests.append(lambda record: _is_at(values, record.value, steps, equals, written))
    elif equals:
        raise ConsoleError("a value to compare with wants a JSON path, as $.order.id")
    if not tests:
        return Filter((), None)
    return Filter(tuple(must), lambda record: all(test(record) for test in tests))


def steps_of(path: str) -> list[str | int]:
    """The steps of a JSON path: `$.order.items[0]['a name']`. Raises: ConsoleError."""
    text = path.strip().removeprefix("$")
    text = text if text[:1] in (".", "[") else f".{text}"
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ConsoleError(f"{path} is no path: write it as $.order.items[0].name")
        steps.append(int(found[2]) if found[2] is not None else found[1] if found[1] is not None else found[3])
        at = found.end()
    return steps


def _as_written(equals: str) -> tuple[bytes, ...]:
    """What JSON has somewhere that has this text or number: itself, or escapes. Nothing: that cannot be said."""
    return (equals.encode(), b"\\u") if _PLAIN.fullmatch(equals) else ()


def _is_at(
    values: Values, data: bytes | None, steps: Sequence[str | int], equals: str, written: tuple[bytes, ...]
) -> bool:
    if written and not any(each in (data or b"") for each in written):
        return False
    try:
        found = values.value(data)
        for step in steps:
            found = found[step]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return False
    if not equals:
        return True
    return found == equals if isinstance(found, str) else json.dumps(found) == equals


_of_thread = threading.local()


class StarvedError(Exception):
    """A search on a thread that gives way gets next to nothing of a busy machine."""


def gives_way() -> None:
    """From now on searches of this thread have a processor only while no other program wants one."""
    give_way()
    _of_thread.gives_way = True


class Hit(NamedTuple):
    """A record that was found."""

    topic: str
    partition: int
    record: Record


class Search:
    """Records of some partitions, in the order of their offsets. at: where it is, by place; it may go on from there.

    inside: the broker that has started the console, if one has. read_bytes, read_batches: so far. is_late: its time was
    up.
    """

    def __init__(self, cluster: Cluster, wanted: Filter, until_s: float, inside: Inside | None = None) -> None:
        self._cluster = cluster
        self._inside = inside if wanted.is_on else None
        self._filter = wanted
        self._until_s = until_s
        self._gives_way = getattr(_of_thread, "gives_way", False)
        self._began_s, self._used_s = time.monotonic(), time.thread_time()
        self.at: dict[Place, int] = {}
        self.read_bytes = self.read_batches = 0
        self.is_late = False

    def read(self, at: dict[Place, int], stops: dict[Place, int], most: int) -> list[Hit]:
        """Read from `at` up to `stops`; at most so many hits of each leader."""
        self.at.update(at)
        found: list[Hit] = []
        open_places = [place for place, offset in at.items() if offset < stops.get(place, 0)]
        for leader, places in self._cluster.leaders(open_places).items():
            with self._cluster.connection(leader) as (connection, where):
                found += self._of_leader(connection, where, places, stops, most)
        return found

    def _of_leader(
        self, connection: BlockingConnection, where: str, places: list[Place], stops: dict[Place, int], most: int
    ) -> list[Hit]:
        found: list[Hit] = []
        left = list(places)
        size = PARTITION_BYTES if self._filter.is_on and self._inside is None else UNFILTERED_BYTES
        while left and len(found) < most and not self._is_over():
            answer = asked(connection, _fetch({place: self.at[place] for place in left}, 0, size), where, BY_NAME)
            check(answer.error_code)
            moved = False
            for topic in answer.responses:
                for part in topic.partitions:
                    place = (topic.topic, part.partition_index)
                    check(0 if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE else part.error_code)
                    before = self.at[place]
                    if part.error_code:  # retention was faster
                        self.at[place] = max(before, part.log_start_offset)
                    elif part.records:
                        found += self._look(place, bytes(part.records), stops[place])[0]
                        if self._inside is not None and len(found) < most:
                            found += self._of_files(self._inside, place, stops[place], most - len(found))
                    elif part.high_watermark <= before:
                        self.at[place] = stops[place]
                    moved = moved or self.at[place] > before
            left = [place for place in left if self.at[place] < stops[place]]
            if not moved and left:
                self.at[left[0]] = stops[left[0]]  # nothing comes, and no reason is given: no second try helps
                left = left[1:]
            left = left[1:] + left[:1]  # each partition is the first one once: it alone is sure to bring something
        return found

    def _is_over(self) -> bool:
        """Whether its time is up. Raises: StarvedError."""
        now_s = time.monotonic()
        took_s = now_s - self._began_s
        if self._gives_way and took_s > STARVED_S and time.thread_time() - self._used_s < STARVED_SHARE * took_s:
            raise StarvedError
        self.is_late = self.is_late or now_s >= self._until_s
        return self.is_late

    def _of_files(self, inside: Inside, place: Place, stop: int, most: int) -> list[Hit]:
        """The hits from where it is, as far as the files of its own broker have them."""
        found: list[Hit] = []
        while self.at[place] < stop and len(found) < most and not self._is_over():
            begin = self.at[place]
            stretch = stretch_at(inside, place, begin)
            if stretch is None:
                break
            with suppress(OSError, ConsoleError), open(stretch.path, "rb", buffering=0) as file:
                pieces, used = Pieces(file, stretch), 0
                while pieces.more(used) and (self.at[place] > begin or pieces.begins_at(begin)):
                    hits, used = self._look(place, pieces.data, stop, pieces.size)
                    found += hits
                    if self.at[place] >= stop or len(found) >= most or self._is_over():
                        break
            if self.at[place] == begin:
                break  # by Fetch, which says why if it cannot be read either
        return found

    def _look(self, place: Place, data: bytes | bytearray, stop: int, size: int | None = None) -> tuple[list[Hit], int]:
        """The hits among whole batches, and where in the data these end; moves on. size: of the data, if not all."""
        hits: list[Hit] = []
        size = len(data) if size is None else size
        end = 0
        view = memoryview(data)
        must = self._filter.must
        begin = self.at[place]
        try:
            for position, header in scan(view, 0, size):
                self.read_batches += 1
                end = position + size_of(header)
                if header[BASE_OFFSET] >= stop:
                    self.at[place] = stop
                    break
                self.at[place] = last_offset_of(header) + 1
                if header[ATTRIBUTES] & CONTROL:
                    continue
                if must and not _may_have(must, data, view, position, header):
                    continue
                accepts = self._filter.accepts
                hits += [
                    Hit(*place, record)
                    for record in parse_records(view, position, header, BATCH_LIMIT)
                    if begin <= record.offset < stop and (accepts is None or accepts(record))
                ]
        except RecordError as error:
            if self.at[place] == begin:
                raise ConsoleError(f"{place[0]}-{place[1]} from offset {begin}: {error.message}") from None
        self.read_bytes += end
        return hits, end


def _may_have(
    must: Sequence[Sequence[bytes]], data: bytes | bytearray, view: memoryview, position: int, header: Any
) -> bool:
    if header[ATTRIBUTES] & CODEC_MASK:
        body, start, stop = batch_body(view, position, header, BATCH_LIMIT)
        data = bytes(memoryview(body)[start:stop])
        return all(any(each in data for each in group) for group in must)
    stop = position + size_of(header)
    return all(any(data.find(each, position, stop) >= 0 for each in group) for group in must)


def _fetch(at: dict[Place, int], wait_ms: int, size: int = PARTITION_BYTES) -> FetchRequest:
    topics = [
        FetchTopic(
            topic=topic,
            partitions=[
                FetchPartition(partition=number, fetch_offset=at[topic, number], partition_max_bytes=size)
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(at).items()
    ]
    # by_topic sorts; a partition that is to come first is asked for first
    if len(topics) == 1:
        order = {number: place for place, (_, number) in enumerate(at)}
        topics[0].partitions.sort(key=lambda each: order[each.partition])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)


# ---- pages


def messages(
    cluster: Cluster,
    values: Values,
    topic: str,
    partitions: str = "",
    start: str = "newest",
    at: str = "",
    key: str = "",
    value: str = "",
    header: str = "",
    path: str = "",
    equals: str = "",
    form: str = "auto",
    limit: int = 50,
    seconds: float = SECONDS,
    resume: str = "",
    inside: Inside | None = None,
) -> dict[str, Any]:
    """Records of a topic.

    partitions: with commas, all without. start: newest, oldest, offset, time, ago; at: which one. key: exactly that.
    value: a part of it. header: name, or name=value. path, equals: a JSON path, and what is there. form: auto, text,
    json, registry, hex. seconds: how long it may look. resume: where to go on, as `next` of an answer says.
    """
    if form not in FORMS:
        raise ConsoleError(f"form={form}: allowed: {', '.join(FORMS)}")
    if start not in START:
        raise ConsoleError(f"start={start}: allowed: {', '.join(START)}")
    limit = min(max(limit, 1), MOST_RECORDS)
    began_s = time.monotonic()
    wanted = filter_of(values, key, value, header, path, equals)
    places = _places(cluster, topic, partitions)
    search = Search(cluster, wanted, began_s + min(max(seconds, 0.1), MOST_SECONDS), inside)
    starts, stops = ends(cluster, places)
    unread = [number for topic, number in places if (topic, number) not in starts or (topic, number) not in stops]
    places = [place for place in places if place in starts and place in stops]
    if start == "newest":
        hits, bottoms = _newest(search, starts, stops, limit, _positions(topic, resume))
        following = {place: offset for place, offset in bottoms.items() if offset > starts[place]}
    else:
        first = _positions(topic, resume) or _first(cluster, start, at, places, starts, stops)
        hits = search.read(first, stops, limit)
        following = _after(search.at, hits, limit, stops)
        hits = sorted(hits, key=lambda each: (each.record.timestamp, each.record.offset))[:limit]
    return {
        "topic": topic,
        "records": [shown(values, each, form) for each in hits],
        "filtered": wanted.is_on,
        "next": _spelled(following),
        "complete": not following and not search.is_late and not unread,
        "late": search.is_late,
        "unread": unread,
        "read_bytes": search.read_bytes,
        "read_batches": search.read_batches,
        "ms": round((time.monotonic() - began_s) * 1000),
        "ends": {str(number): offset for (_, number), offset in stops.items()},
    }


def _after(at: dict[Place, int], hits: list[Hit], limit: int, stops: dict[Place, int]) -> dict[Place, int]:
    """Where each partition goes on once only `limit` of these hits are shown."""
    kept = sorted(hits, key=lambda each: (each.record.timestamp, each.record.offset))
    following = dict(at)
    for each in kept[limit:]:
        place = each.topic, each.partition
        following[place] = min(following[place], each.record.offset)
    return {place: offset for place, offset in following.items() if offset < stops.get(place, 0)}


def _newest(
    search: Search, starts: dict[Place, int], stops: dict[Place, int], limit: int, resume: dict[Place, int]
) -> tuple[list[Hit], dict[Place, int]]:
    """The last hits, found in windows that grow towards the start; and where the windows of each partition begin.

    resume: where those of the page before began.
    """
    tops = {place: min(resume.get(place, stop if not resume else starts[place]), stop) for place, stop in stops.items()}
    hits: list[Hit] = []
    width = FIRST_WINDOW if search._filter.is_on else limit
    while tops and len(hits) < limit and not search.is_late:
        bottoms = {place: max(top - width, starts[place]) for place, top in tops.items()}
        found = search.read(bottoms, tops, 1 << 30)
        if search.is_late:  # a window that was not read to its end has a gap: it is read again by the next page
            unread = {place for place, top in tops.items() if search.at.get(place, top) < top and top > starts[place]}
            hits += [each for each in found if (each.topic, each.partition) not in unread]
            tops = {place: top if place in unread else bottoms[place] for place, top in tops.items()}
            break
        hits += found
        tops = bottoms
        if all(top <= starts[place] for place, top in tops.items()):
            break
        width *= WINDOW_GROWS
    hits.sort(key=lambda each: (-each.record.timestamp, -each.record.offset))
    for each in hits[limit:]:
        place = each.topic, each.partition
        tops[place] = max(tops[place], each.record.offset + 1)
    return hits[:limit], tops


def _first(
    cluster: Cluster,
    start: str,
    at: str,
    places: Sequence[Place],
    starts: dict[Place, int],
    stops: dict[Place, int],
) -> dict[Place, int]:
    if start == "oldest":
        return {place: starts[place] for place in places}
    if start == "offset":
        try:
            offset = int(at)
        except ValueError:
            raise ConsoleError(f"at={at}: write an offset, a whole number") from None
        return {place: min(max(offset, starts[place]), stops[place]) for place in places}
    at_ms = time_of(at) if start == "time" else int(time.time() * 1000) - ago_ms(at)
    found = offsets_at(cluster, dict.fromkeys(places, max(at_ms, 0)))
    return {place: found[place] if found.get(place, -1) >= 0 else stops[place] for place in places}


def tail(
    cluster: Cluster, values: Values, topic: str, resume: str = "", form: str = "auto", key: str = "", value: str = ""
) -> dict[str, Any]:
    """What has come to a topic since; it waits a second for something. resume: as `next` of an answer says; empty: from
    now on. key: exactly that. value: a part of it."""
    places = _places(cluster, topic, "")
    at = _positions(topic, resume)
    if not at:
        at = dict(ends(cluster, places)[1].items())
        return {"topic": topic, "records": [], "next": _spelled(at)}
    wanted = filter_of(values, key, value, "", "", "")
    hits: list[Hit] = []
    for leader, mine in cluster.leaders(at).items():
        with cluster.connection(leader) as (connection, where):
            answer = asked(connection, _fetch({place: at[place] for place in mine}, TAIL_MS), where, BY_NAME)
        search = Search(cluster, wanted, 0)
        search.at = at
        for each in answer.responses:
            for part in each.partitions:
                place = each.topic, part.partition_index
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    at[place] = max(part.log_start_offset, 0)
                elif part.records and not part.error_code:
                    hits += search._look(place, bytes(part.records), 1 << 62)[0]
    hits.sort(key=lambda each: (-each.record.timestamp, -each.record.offset))
    return {
        "topic": topic,
        "records": [shown(values, each, form) for each in hits[:TAIL_RECORDS]],
        "next": _spelled(at),
    }


def message(
    cluster: Cluster, values: Values, topic: str, partition: int, offset: int, form: str = "auto"
) -> dict[str, Any]:
    """One record, whole: at most a megabyte of it is shown."""
    place = (topic, partition)
    cluster.topic(topic)
    search = Search(cluster, Filter((), None), time.monotonic() + SECONDS)
    found = search.read({place: offset}, {place: offset + 1}, 1)
    if not found:
        raise ConsoleError(f"there is no record at offset {offset} of {topic}-{partition}", 404)
    return {**shown(values, found[0], form, MOST_BYTES), "raw": _raw(found[0].record)}


def _raw(record: Record) -> dict[str, Any]:
    """What a form is filled with to send it again; None: it is no text."""

    def text(data: bytes | None) -> str | None:
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return None

    return {
        "key": text(record.key),
        "value": text(record.value),
        "key_hex": None if record.key is None else record.key.hex(),
        "value_hex": None if record.value is None else record.value.hex(),
        "headers": "\n".join(
            f"{name.decode(errors='replace')}: {(value or b'').decode(errors='replace')}"
            for name, value in record.headers
        ),
    }


def shown(values: Values, hit: Hit, form: str, most: int | None = None) -> dict[str, Any]:
    """A record for templates and scripts."""
    record = hit.record
    limits = {} if most is None else {"most": most}
    return {
        "topic": hit.topic,
        "partition": hit.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": values.shown(record.key, "auto" if form == "json" else form, **limits).as_json(),
        "value": values.shown(record.value, form, **limits).as_json(),
        "headers": [
            {"name": name.decode(errors="replace"), "value": values.shown(value, "auto", 512).as_json()}
            for name, value in record.headers[:100]
        ],
    }


def _places(cluster: Cluster, topic: str, partitions: str) -> list[Place]:
    known = cluster.topic(topic)
    try:
        numbers = {int(each) for each in partitions.split(",") if each.strip()}
    except ValueError:
        raise ConsoleError(f"partitions={partitions}: write numbers with commas, as 0,2") from None
    there = {each.number for each in known.partitions}
    if numbers - there:
        raise ConsoleError(f"topic {topic} has no partition {min(numbers - there)}", 404)
    return [(topic, number) for number in sorted(numbers or there)]


def _spelled(at: dict[Place, int]) -> str:
    """Positions as they travel: 0:123,1:456."""
    return ",".join(f"{number}:{offset}" for (_, number), offset in sorted(at.items()))


def _positions(topic: str, text: str) -> dict[Place, int]:
    try:
        pairs = [each.split(":") for each in text.split(",") if each]
        return {(topic, int(number)): max(int(offset), 0) for number, offset in pairs}
    except ValueError:
        raise ConsoleError(f"resume={text}: allowed: what an answer's `next` says") from None


# ---- to send


def produce(
    cluster: Cluster,
    topic: str,
    value: str = "",
    key: str = "",
    headers: str = "",
    partition: str = "",
    encoding: str = "text",
    no_key: bool = False,
    tombstone: bool = False,
) -> dict[str, Any]:
    """Send one record, and wait until all in sync have it.

    headers: a line for each, `name: value`. partition: empty for the one that Java's clients choose by the key.
    encoding: of key and value: text, json (checked), hex. no_key: null instead of an empty one. tombstone: null instead
    of a value.
    """
    found = cluster.topic(topic)
    key_bytes = None if no_key or not key else _encoded(key, "text" if encoding == "json" else encoding, "key")
    value_bytes = None if tombstone else _encoded(value, encoding, "value")
    record = Record(0, int(time.time() * 1000), key_bytes, value_bytes, tuple(_headers(headers)))
    number = _partition(partition, key_bytes, len(found.partitions))
    data = PartitionProduceData(index=number, records=bytes(build_batch([record], base_offset=0)))
    request = ProduceRequest(
        acks=ALL_IN_SYNC, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    began_s, pause = time.monotonic(), threading.Event()
    while True:
        answer = cluster.ask(request, _leader(found, number), BY_NAME).responses[0].partition_responses[0]
        if answer.error_code not in _MOVES or time.monotonic() - began_s > LEADER_S:
            break
        pause.wait(0.1)  # nothing was written; a topic that has just been made may have no leader yet
        found = cluster.topic(topic)
    reasons = [each.batch_index_error_message for each in answer.record_errors if each.batch_index_error_message]
    check(answer.error_code, answer.error_message or (reasons[0] if reasons else None))
    return {
        "topic": topic,
        "partition": number,
        "offset": answer.base_offset,
        "ms": round((time.monotonic() - began_s) * 1000, 1),
    }


def _leader(topic: Topic, number: int) -> int:
    leader = next((each.leader for each in topic.partitions if each.number == number), None)
    if leader is None:
        raise ConsoleError(f"topic {topic.name} has no partition {number}", 404)
    if leader < 0:
        raise ConsoleError(f"{topic.name}-{number} has no leader: it cannot be written now", 503)
    return leader


def _partition(text: str, key: bytes | None, count: int) -> int:
    if text.strip():
        try:
            return int(text)
        except ValueError:
            raise ConsoleError(f"partition={text}: write a number, or leave it empty") from None
    if key is not None:
        return (murmur2(key) & 0x7FFFFFFF) % count
    return time.monotonic_ns() // 1000 % count


def _encoded(text: str, encoding: str, what: str) -> bytes:
    if encoding == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise ConsoleError(f"the {what} is not hex: write two digits for each byte") from None
    if encoding == "json":
        try:
            json.loads(text)
        except ValueError as error:
            raise ConsoleError(f"the {what} is no JSON: {error}") from None
    elif encoding != "text":
        raise ConsoleError(f"encoding={encoding}: allowed: text, json, hex")
    return text.replace("\r\n", "\n").encode()


def _headers(text: str) -> Iterator[tuple[bytes, bytes]]:
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise ConsoleError(f"{line}: write a header as name: value, one a line")
        yield name.strip().encode(), value.strip().encode()
