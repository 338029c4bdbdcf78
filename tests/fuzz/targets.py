"""What is fuzzed: each decoder with real frames to start from, and what must hold of its answer.

Called by `campaign.py` and the tests beside it. Messages are read by the compiled and by the patient reader, headers
and record sets by the functions that a broker calls; frames are cut in two ways and must come out the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from protocol.explain import read_slowly
from protocol.frames import FrameDecoder, FrameError
from protocol.headers import (
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
    skip_tags,
)
from protocol.message import DecodeError, Message
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from protocol.records import RecordError, batch, content, legacy
from protocol.records.batch import COUNT
from tests.judges.batches import CODECS, KINDS, build, described, some_sets
from tests.judges.java import Judge
from tests.judges.pairs import all_pairs
from tests.judges.verdicts import for_examples

_DECOMPRESSED = 1 << 16  # what a batch may become here; the limit is the caller's


class Target(NamedTuple):
    """A decoder under fuzz. check: True for a value, False for an error that names its field."""

    name: str
    check: Callable[[bytes], bool]
    decode: Callable[[bytes], object]  # the decoder alone, to measure; may raise what check takes for a refusal
    seeds: list[bytes]
    allowed_bytes: int = 64 * 1024  # of memory, whatever comes in
    repair: Callable[[Random, bytearray], None] = lambda rng, data: None  # checksums, so that the damage is reached


def message_target(cls: type[Message], version: int, examples: int = 3) -> Target:
    """The reader of one message in one version."""
    seeds: list[bytes] = []
    for_examples(cls, version, examples, True, lambda value: seeds.append(value.encode(version)))

    def check(data: bytes) -> bool:
        return check_message(cls, version, data)

    return Target(f"{cls.__name__} v{version}", check, lambda data: cls.decode_from(data, version), seeds)


def check_message(cls: type[Message], version: int, data: bytes) -> bool:
    """A value that ends inside the frame, that the patient reader reads too, and that can be written; or False."""
    try:
        value, end = cls.decode_from(data, version)
    except DecodeError as error:
        refusal = error
    else:
        check_value(value, end, version, data)
        return True
    assert refusal.path, f"names no field: {refusal}"
    return False


def check_value(value: Message, end: int, version: int, data: bytes) -> None:
    """What must hold of a value that was read from `data` up to `end`."""
    cls = type(value)
    assert end <= len(data), f"read to {end} of {len(data)}"
    again, slow_end = read_slowly(cls, version, data)
    assert end == slow_end, f"ends at {end}, the patient reader at {slow_end}"
    written = value.encode(version)
    assert written == again.encode(version), "not what the patient reader reads"
    assert cls.decode(written, version).encode(version) == written, "does not survive being written"


def all_targets(examples: int = 3) -> list[Target]:
    """Every decoder; the few that are no message's come often enough to weigh a tenth."""
    messages = [message_target(cls, version, examples) for cls, version in all_pairs()]
    others = [*header_targets(), frame_target(), *(record_target(magic, codec) for magic, codec in KINDS)]
    return messages + others * max(1, len(messages) // 10 // len(others))


def header_targets() -> list[Target]:
    """What stands in front of requests and answers."""

    def check_request(data: bytes) -> bool:
        try:
            key, _, _, client, end = parse_request_header(data)
            behind = skip_tags(data, end)
        except DecodeError as error:
            return _names_a_field(error)
        assert -(2**15) <= key < 2**15
        assert end <= len(data)
        assert end <= behind <= len(data)
        assert client is None or "\N{REPLACEMENT CHARACTER}" in client or len(client.encode()) == end - 10
        return True

    def check_answer(data: bytes) -> bool:
        try:
            _, end = parse_response_header(HeartbeatResponse, 4, data)
        except DecodeError as error:
            return _names_a_field(error)
        assert end <= len(data)
        return True

    requests = [
        encode_request_header(HeartbeatRequest, version, 7, client)
        for version in (0, 4)
        for client in (None, "", "client", "x" * 300)
    ]
    requests.append(requests[-2][:-1] + bytes.fromhex("02 05 01 ff 8001 00"))  # with tagged fields
    answers = [encode_response_header(HeartbeatResponse, 4, 7), bytes.fromhex("00000007 01 05 02 ffff")]
    return [
        Target("request header", check_request, parse_request_header, requests),
        Target("answer header", check_answer, lambda data: skip_tags(data, 4), answers),
    ]


def frame_target() -> Target:
    """A stream of frames, received whole and byte by byte."""

    def frames(data: bytes, step: int) -> list[bytes] | None:
        decoder = FrameDecoder(1000)
        try:
            return [
                bytes(frame)
                for start in range(0, len(data), step)
                for frame in decoder.feed(memoryview(data)[start : start + step])
            ]
        except FrameError:
            return None

    def check(data: bytes) -> bool:
        whole, bytewise = frames(data, max(1, len(data))), frames(data, 1)
        assert whole == bytewise, "the cuts make a difference"
        return whole is not None

    seeds = [b"\0\0\0\0", b"\0\0\0\3abc" * 3, b"\0\0\3\xe8" + bytes(1000) + b"\0\0\0\1x", b"\0\0\0\7abc"]
    return Target("frames", check, lambda data: frames(data, max(1, len(data))), seeds)


def record_target(magic: int, codec_id: int, apache: Judge | None = None) -> Target:
    """Record sets of one format and codec: checked and parsed. apache: who makes the good ones, instead of us."""
    parse = content.parse_set if magic == 2 else legacy.parse_set
    limit = _DECOMPRESSED

    def check(data: bytes) -> bool:
        try:
            found = parse(data, limit)
        except RecordError:
            return False
        if magic == 2:
            check_batches(data, limit)
        else:
            assert len(legacy.parse_set(data, limit)) == len(found)
        return True

    sets = some_sets(magic, codec_id, 8)
    seeds = [build(one) for one in sets]
    if apache is not None:
        seeds = [made for made in apache.build(list(map(described, sets))) if isinstance(made, bytes)]
        assert len(seeds) == len(sets)
    repair = repair_batch if magic == 2 else repair_message
    name, allowed = f"records v{magic} {CODECS[codec_id]}", 64 * 1024 + (limit * 64 if codec_id else 0)
    return Target(name, check, lambda data: parse(data, limit), seeds, allowed, repair)


def check_batches(data: bytes, limit: int) -> None:
    """What can be parsed is found well-formed too, and the facts about it are those of its records."""
    view = memoryview(data)
    for position, header in batch.scan(view):
        facts = content.Facts(*content.check_records(view, position, header, limit))
        records = content.parse_records(view, position, header, limit)
        assert len(records) == header[COUNT]
        keyless = [index for index, record in enumerate(records) if record.key is None]
        assert facts.first_without_key == (keyless[0] if keyless else -1)


def repair_batch(rng: Random, data: bytearray) -> None:
    """Mostly, make length, magic and checksum of a v2 batch those of its bytes."""
    if len(data) >= batch.HEADER_SIZE and rng.random() < 0.9:
        data[batch.MAGIC_AT] = 2
        data[batch.LENGTH_AT : batch.LENGTH_AT + 4] = (len(data) - batch.LENGTH_OVERHEAD).to_bytes(4, "big")
        batch.write_crc(data, 0, len(data))


def repair_message(rng: Random, data: bytearray) -> None:
    """Mostly, make size and checksum of the first v0 or v1 message those of all bytes."""
    if len(data) >= 26 and rng.random() < 0.9:
        data[8:12] = (len(data) - batch.LENGTH_OVERHEAD).to_bytes(4, "big")
        data[legacy.CRC_AT : legacy.MAGIC_AT] = zlib.crc32(data[legacy.MAGIC_AT :]).to_bytes(4, "big")


def _names_a_field(error: DecodeError) -> bool:
    assert error.path, f"names no field: {error}"
    return False
