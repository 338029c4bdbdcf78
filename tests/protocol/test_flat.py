"""Messages as tuples: the same bytes in and out as messages as instances, in every version and for every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.flat import flattened, message_of
from protocol.message import DecodeError, EncodeError, Message
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.protocol import toys
from tests.protocol.slicing import in_one_go
from tests.protocol.values import messages

SERVED_FLAT = (ProduceRequest, ProduceResponse, FetchRequest, FetchResponse)
PAIRS = [
    (cls, version)
    for cls in (*toys.ALL, *SERVED_FLAT)
    for version in range(cls.versions[0], min(cls.versions[1], 20) + 1)
]
each_pair = pytest.mark.parametrize(("cls", "version"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
quick = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def written(cls: type[Message], values: tuple[Any, ...], version: int) -> bytes | str:
    try:
        return b"".join(cls.write_flat(values, version))
    except EncodeError as error:
        return str(error)


def encoded(message: Message, version: int) -> bytes | str:
    try:
        return message.encode(version)
    except EncodeError as error:
        return str(error)


def outcome(cls: type[Message], data: bytes, version: int, *, flat: bool) -> str:
    """What comes of reading: the values, or the reason that there are none."""
    try:
        return repr(comparable(cls.read_flat(data, version) if flat else flattened(cls.decode(data, version))))
    except DecodeError as error:
        return str(error)


def comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@each_pair
@quick
@given(data=st.data())
def test_a_tuple_is_written_and_read_as_its_message_is(cls: type[Message], version: int, data: st.DataObject) -> None:
    message = message_of(cls, flattened(data.draw(messages(cls, version))))
    values, whole = flattened(message), message.encode(version)
    assert written(cls, values, version) == whole
    read = cls.read_flat(b"ab" + whole, version, 2)
    assert read == flattened(cls.decode(whole, version))
    assert in_one_go(cls.read_flat_slices(whole, version, 0, 10_000))[0] == read
    assert b"".join(in_one_go(cls.write_flat_slices(read, version))[0]) == whole
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    assert outcome(cls, cut, version, flat=True) == outcome(cls, cut, version, flat=False)
    if whole:
        changed = bytearray(whole)
        changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        assert outcome(cls, bytes(changed), version, flat=True) == outcome(cls, bytes(changed), version, flat=False)


@each_pair
@quick
@given(data=st.data())
def test_what_a_version_cannot_say_is_refused_alike(cls: type[Message], version: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(cls.versions[0], min(cls.versions[1], 20)))
    message = message_of(cls, flattened(data.draw(messages(cls, other))))
    assert written(cls, flattened(message), version) == encoded(message, version)


def test_a_large_tuple_is_read_and_written_in_many_slices_and_not_beyond_what_is_taken() -> None:
    topics = [("t", bytes(16), [(index, -1, 0, -1, -1, 1, bytes(16), 2**63 - 1) for index in range(1279)])]
    values = (None, -1, (-1, -1), 1, 1, 1, 0, 0, -1, topics, [], "")
    data = b"".join(FetchRequest.write_flat(values, 12))
    read, turns = in_one_go(FetchRequest.read_flat_slices(data, 12, 0, 1280))
    assert (read, turns) == (values, 10)
    assert in_one_go(FetchRequest.write_flat_slices(values, 12)) == ([data], 10)
    with pytest.raises(DecodeError, match="more elements than are taken"):
        in_one_go(FetchRequest.read_flat_slices(data, 12, 0, 1279))


STATE = (
    b"\x01\x0d" + (7).to_bytes(4, "big") + (9).to_bytes(8, "big") + b"\0"
)  # tag 1 of FetchRequest, as a follower has it
CLUSTER, UNKNOWN = b"\0\x02\x02c", b"\x4d\x01x"  # tag 0, and one that nobody knows


@pytest.mark.parametrize(
    "tags",
    [
        b"\0",
        b"\x01" + STATE,
        b"\x01" + CLUSTER,
        b"\x01" + UNKNOWN,
        b"\x02" + CLUSTER + STATE,
        b"\x02" + STATE + UNKNOWN,
        b"\x01\x01\x10" + STATE[2:-1] + b"\x01\x4d\x01x",  # with a tag of its own
        b"\x01\x01\x0d" + b"\xff" * 12 + b"\0",  # all default
        b"\x01\x01\x0e" + STATE[2:] + b"\0",  # too long
        b"\x01\x01\x0c" + STATE[2:-1],  # too short
        b"\x81\0" + STATE,
        b"\x01" + STATE[:-1],
        b"\x01\x01",
        b"\x01",
    ],
)
def test_tags_are_read_alike_whether_one_is_alone_or_not(tags: bytes) -> None:
    data = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]).encode(17)[:-1] + tags
    assert outcome(FetchRequest, data, 17, flat=True) == outcome(FetchRequest, data, 17, flat=False)


@pytest.mark.parametrize("cluster_id", [None, "c"])
@pytest.mark.parametrize("state", [(-1, -1), (7, 9), (7, -1)])
def test_tags_are_written_alike_whether_one_is_alone_or_not(cluster_id: str | None, state: tuple[int, int]) -> None:
    values = (cluster_id, -1, state, 1, 1, 1, 0, 0, -1, [], [], "")
    assert written(FetchRequest, values, 17) == message_of(FetchRequest, values).encode(17)


def test_a_tag_that_nobody_knows_is_passed_over() -> None:
    request = ProduceRequest(acks=1, timeout_ms=2, topic_data=[])
    request.unknown_tags = {77: b"later"}
    assert ProduceRequest.read_flat(request.encode(9), 9) == (None, 1, 2, [])


def test_a_leader_is_written_where_there_is_one() -> None:
    part = PartitionProduceResponse(index=1, error_code=6, base_offset=-1)
    part.current_leader = LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[part])])
    data = b"".join(ProduceResponse.write_flat(flattened(response), 10))
    assert ProduceResponse.decode(data, 10) == response


def test_a_string_that_is_no_utf8_is_read_with_a_replacement() -> None:
    data = ProduceRequest(transactional_id="a\N{LATIN SMALL LETTER E WITH ACUTE}", acks=1, timeout_ms=2, topic_data=[])
    broken = data.encode(9).replace("\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"\xff\xff")
    assert ProduceRequest.read_flat(broken, 9) == flattened(ProduceRequest.decode(broken, 9))
