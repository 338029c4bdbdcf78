"""Generated readers and writers: round trips, truncation, mutation and random bytes, each beside the patient codec."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.codec import reader_source, writer_source
from protocol.explain import PATIENCE, read_slowly, write_slowly
from protocol.message import DecodeError, EncodeError, Message
from protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from protocol.messages.groups import FindCoordinatorRequest
from tests.protocol import toys
from tests.protocol.slicing import in_one_go
from tests.protocol.values import messages

PAIRS = [(cls, version) for cls in toys.ALL for version in range(cls.versions[0], cls.versions[1] + 1)]
each_pair = pytest.mark.parametrize(("cls", "version"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
quick = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def some_everything(**changed: Any) -> toys.Everything:
    given = {
        "flag": True, "tiny": -1, "small": 2, "port": 65535, "number": 4, "count": 2**32 - 1, "large": -6, "ratio": 0.5,
        "id": b"i" * 16, "text": "text", "text_or_none": None, "content": b"content", "flags": [True, False],
        "numbers": [1, 2, 3], "numbers_or_none": None, "ids": [b"j" * 16], "names": ["a", ""], "names_or_none": None,
        "contents": [b"", b"c"], "inner": toys.Inner(number=1, items=[toys.Item(number=2)], flag=False),
        "inner_or_none": None, "items": [toys.Item(number=3), toys.Item(number=4)],
    }  # fmt: skip
    return toys.Everything(**(given | changed))


def agree(cls: type[Message], version: int, data: bytes) -> None:
    """Both readers give the same value, or both a DecodeError (the fast one asks the slow one for its reason)."""
    try:
        value, end = cls.decode_from(data, version)
    except DecodeError:
        return
    slow, slow_end = read_slowly(cls, version, data)
    assert (repr(value), end) == (repr(slow), slow_end) or (value, end) == (slow, slow_end)


@each_pair
@quick
@given(data=st.data())
def test_what_is_written_is_read_back_by_both_codecs(cls: type[Message], version: int, data: st.DataObject) -> None:
    value = data.draw(messages(cls, version))
    encoded = value.encode(version)
    assert b"".join(write_slowly(value, version)) == encoded
    assert read_slowly(cls, version, encoded) == (value, len(encoded))
    framed = b"head" + encoded + b"tail"
    expected = (value, 4 + len(encoded))
    for buffer in (framed, bytearray(framed), memoryview(framed)):
        assert cls.decode_from(buffer, version, 4) == expected


@each_pair
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_truncation_is_refused(cls: type[Message], version: int, data: st.DataObject) -> None:
    encoded = data.draw(messages(cls, version)).encode(version)
    step = max(1, len(encoded) // 100)
    for size in range(0, len(encoded), step):
        with pytest.raises(DecodeError):
            cls.decode(encoded[:size], version)


@each_pair
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_random_bytes_give_a_value_or_one_error(cls: type[Message], version: int, data: bytes) -> None:
    agree(cls, version, data)


@each_pair
@quick
@given(data=st.data())
def test_mutated_frames_give_a_value_or_one_error(cls: type[Message], version: int, data: st.DataObject) -> None:
    encoded = bytearray(data.draw(messages(cls, version)).encode(version))
    for _ in range(data.draw(st.integers(1, 4))):
        if encoded:
            at = data.draw(st.integers(0, len(encoded) - 1))
            encoded[at] = data.draw(st.sampled_from([0, 1, 2, 126, 127, 128, 254, 255]))
    agree(cls, version, bytes(encoded))


def test_error_names_the_path_and_the_reason() -> None:
    encoded = toys.Tagged(inside=[toys.TaggedItem(name="a"), toys.TaggedItem(name="bcdef")]).encode(0)
    with pytest.raises(DecodeError, match=r"^inside\[1\]\.name: needs 5 bytes at position 13, and 3 are left$"):
        toys.Tagged.decode(encoded[:-2], 0)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("length", [4, 200])
def test_what_is_no_utf8_is_read_as_replacement_characters(version: int, length: int) -> None:
    value = some_everything(text="x" * length)
    encoded = value.encode(version).replace(b"x" * 4, b"\xff\xed\xa0\x80", 1)
    agree(toys.Everything, version, encoded)
    assert toys.Everything.decode(encoded, version).text == "\ufffd\ufffd" + "x" * (length - 4)


def test_a_message_that_is_malformed_behind_a_bad_string_says_where() -> None:
    encoded = toys.Tagged(inside=[toys.TaggedItem(name="a"), toys.TaggedItem(name="bcdef")]).encode(0)
    with pytest.raises(DecodeError, match=r"^inside\[1\]\.name: needs 5 bytes at position 13, and 3 are left$"):
        toys.Tagged.decode(encoded[:-2].replace(b"a", b"\xff"), 0)


@pytest.mark.parametrize("version", [2, 3])
def test_null_is_refused_where_a_value_is_needed(version: int) -> None:
    encoded = toys.Carrier(name="n", note=None, content=b"", loads=[], last=None, end=0).encode(version - 2)
    null = b"\xff\xff" if version == 2 else b"\0"
    with pytest.raises(DecodeError, match=r"^name: null where a value is needed$"):
        toys.Carrier.decode(null + encoded[len(null) :], version - 2)


def test_string_longer_than_kafka_allows_is_refused_in_both_directions() -> None:
    fits = toys.Tagged(text="x" * 32767, inside=[])
    assert toys.Tagged.decode(fits.encode(1), 1) == fits
    with pytest.raises(EncodeError, match=r"^text: too long: 32768$"):
        toys.Tagged(text="x" * 32768, inside=[]).encode(1)
    with pytest.raises(DecodeError, match=r"^name: string of 32768 bytes"):
        toys.Carrier.decode(b"\x81\x80\x02" + b"x" * 32768, 1)


@pytest.mark.parametrize(
    "data", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\0\0\xff\xff", b"\xff\xff\x03"], ids=bytes.hex
)
@pytest.mark.parametrize("cls", [toys.OfNumbers, toys.OfIds, toys.OfNames, toys.OfPairs])
def test_false_count_allocates_nothing(cls: type[Message], data: bytes) -> None:
    version = int(data[0] == 255)
    with pytest.raises(DecodeError):
        cls.decode(data + bytes(100), version)  # compiles
    tracemalloc.start()
    with pytest.raises(DecodeError, match=r"^values: "):
        cls.decode(data + bytes(100), version)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_reason_is_not_searched_for_without_end() -> None:
    count = PATIENCE + 10
    data = count.to_bytes(4, "big") + bytes(2 * count - 1) + b"\1"
    with pytest.raises(DecodeError, match=r"^values\[\d+\]: good up to here, malformed somewhere behind"):
        toys.OfNames.decode(data, 0)


def test_bytes_after_the_message_are_left_alone() -> None:
    assert toys.Empty.decode_from(b"rest", 0) == (toys.Empty(), 0)


def test_default_of_a_missing_field_is_what_decoding_yields() -> None:
    old = toys.Versioned.decode(toys.Versioned().encode(0), 0)
    assert (old.late, old.late_list, old.late_struct, old.dropped) == ("x", [], toys.Pair(), -1)


def test_decoded_default_lists_are_not_shared() -> None:
    encoded = toys.Versioned().encode(0)
    toys.Versioned.decode(encoded, 0).late_list.append(1)
    assert toys.Versioned.decode(encoded, 0).late_list == []


# what cannot be written


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tiny": 128}, "tiny: 128 is not int8"),
        ({"number": 1.5}, "number: 1.5 is not int32"),
        ({"number": None}, "number: None where version 3 needs a value"),
        ({"id": b"short"}, "id: 5 bytes where an id has 16"),
        ({"id": "0123456789abcdef"}, "id: '0123456789abcdef' is not uuid"),
        ({"ids": [bytes(16), bytes(15)]}, r"ids\[1\]: 15 bytes where an id has 16"),
        ({"ids": [bytes(17)] * 40}, r"ids\[0\]: 17 bytes where an id has 16"),
        ({"text": None}, "text: None where version 3 needs a value"),
        ({"text": b"bytes"}, "text: b'bytes' is not string"),
        ({"text": "\ud800"}, "text: .* is not string: .*surrogates not allowed"),
        ({"content": "text"}, "content: 'text' is not bytes"),
        ({"numbers": 5}, "numbers: int where a list belongs"),
        ({"numbers": [1, 2**31]}, r"numbers\[1\]: 2147483648 is not int32"),
        ({"numbers": [2**31] * 50}, r"numbers\[0\]: 2147483648 is not int32"),
        ({"names": ["a", None]}, r"names\[1\]: None where version 3 needs a value"),
        ({"inner": None}, "inner: None where version 3 needs a value"),
        ({"inner": 5}, "inner: int where Inner belongs"),
        ({"items": [toys.Item(number=1), 7]}, r"items\[1\]: int where Item belongs"),
        ({"unknown_tags": {1: "text"}}, r"unknown_tags: 1: 'text' is not a tag and its bytes"),
        ({"unknown_tags": {-1: b""}}, r"unknown_tags: -1: b'' is not a tag and its bytes"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_path(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=f"^{message}"):
        some_everything(**changed).encode(3)


@pytest.mark.parametrize(
    ("changed", "version", "message"),
    [
        ({"late": "y"}, 0, "late: is 'y', and version 0 cannot say so"),
        ({"late_list": [1]}, 0, r"late_list: is \[1\], and version 0 cannot say so"),
        ({"early": 6}, 2, "early: is 6, and version 2 cannot say so"),
        ({"late_struct": toys.Pair(left=1)}, 2, "late_struct: is Pair.*, and version 2 cannot say so"),
        ({"narrow": None}, 2, "narrow: None where version 2 needs a value"),
        ({"narrow_list": None}, 3, "narrow_list: None where version 3 needs a value"),
        ({"unknown_tags": {1: b""}}, 1, "unknown_tags: version 1 has no tagged fields"),
    ],
)
def test_value_that_a_version_cannot_carry_is_refused(changed: dict[str, Any], version: int, message: str) -> None:
    with pytest.raises(EncodeError, match=f"^{message}"):
        toys.Versioned(**changed).encode(version)


def test_ignorable_field_is_dropped_silently() -> None:
    assert toys.Versioned(dropped=5).encode(3) == toys.Versioned().encode(3)


@pytest.mark.parametrize("version", [-1, 6])
def test_unknown_version_is_an_error_in_both_directions(version: int) -> None:
    with pytest.raises(DecodeError, match="has versions 0 to 5"):
        toys.Everything.decode(b"", version)
    with pytest.raises(EncodeError, match="has versions 0 to 5"):
        some_everything().encode(version)


# tagged fields


def test_tagged_fields_are_written_only_when_not_default() -> None:
    assert toys.Tagged(inside=[]).encode(1) == b"\0\0\0\0" + b"\1" + b"\0"


def test_tags_known_and_unknown_are_written_in_order() -> None:
    value = toys.Tagged(inside=[], flag=False, text="t", unknown_tags={8: b"eight", 1000: b"", 7: b"\7"})
    assert value.encode(1) == b"\0\0\0\0\1" + b"\5" + b"\1\1\0" + b"\4\2\2t" + b"\7\1\7" + b"\x08\5eight" + b"\xe8\7\0"


def test_tag_that_is_known_cannot_be_given_as_unknown() -> None:
    with pytest.raises(EncodeError, match=r"^unknown_tags: tag 4 is text, not unknown"):
        toys.Tagged(inside=[], unknown_tags={4: b""}).encode(1)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (b"\1\6\1\1", "ids: tag 6 does not belong to version 1"),
        (b"\1\1\2\1\1", "flag: tag 1 says 2 bytes, its value takes 1"),
        (b"\1\4\1\2t", "text: tag 4 says 1 bytes, its value takes 2"),
        (b"\1\x08\5abc", "tags: tag 8 of 5 bytes, and 3 are left"),
        (b"\xff\xff\xff\xff\x0f", "tags: 4294967295 of them: at most 10000 are taken"),
        (b"\1\xff", "tags: ends inside a varint"),
        (b"\xff\xff\xff\xff\x1f", "tags: varint of more than 32 bits"),
    ],
)
def test_broken_tags_are_refused(tags: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=f"^{message}"):
        toys.Tagged.decode(b"\0\0\0\0\1" + tags, 1)


def test_last_of_repeated_tags_counts() -> None:
    data = b"\0\0\0\0\1" + b"\4" + b"\x08\1a" + b"\4\2\2t" + b"\x08\1b" + b"\4\2\2u"
    assert toys.Tagged.decode(data, 1) == toys.Tagged(inside=[], text="u", unknown_tags={8: b"b"})


def test_tagged_struct_equal_to_its_default_is_not_written() -> None:
    value = toys.Tagged(inside=[], pair=toys.Pair(left=-1, right=-1))
    assert value.encode(1) == toys.Tagged(inside=[]).encode(1)


# records


def carrier(records: Any, last: Any = None) -> toys.Carrier:
    return toys.Carrier(
        name="n", note=None, content=b"", loads=[toys.Load(number=1, records=records)], last=last, end=9
    )


@pytest.mark.parametrize("version", [0, 1])
def test_records_are_read_as_views_on_the_frame(version: int) -> None:
    frame = bytearray(carrier(b"old records").encode(version))
    records = toys.Carrier.decode(frame, version).loads[0].records
    at = bytes(frame).index(b"old")
    frame[at : at + 3] = b"new"
    assert bytes(records) == b"new records"


@pytest.mark.parametrize("version", [0, 1])
def test_records_are_passed_on_without_a_copy(version: int) -> None:
    first, second = memoryview(b"a" * 300), memoryview(b"b" * 300)
    parts = carrier([first, second], last=first).encode_parts(version)
    assert [part is first or part is second for part in parts] == [False, True, True, False, True, False]


@pytest.mark.parametrize("version", [0, 1])
def test_records_in_pieces_are_written_as_one(version: int) -> None:
    assert carrier([b"ab", memoryview(b"cd")]).encode(version) == carrier(b"abcd").encode(version)


@pytest.mark.parametrize("version", [0, 1])
def test_empty_records_make_no_part_of_their_own(version: int) -> None:
    assert len(carrier(b"", last=[]).encode_parts(version)) == 1


def test_regions_are_counted_but_not_read() -> None:
    region = range(1000)  # anything with a length
    parts = carrier(region).encode_parts(1)
    assert parts[1] is region
    with pytest.raises(EncodeError, match="not in memory"):
        carrier(region).encode(1)


@pytest.mark.parametrize("records", [None, 5, "text", [5]])
def test_records_that_are_no_buffers_are_refused(records: Any) -> None:
    with pytest.raises(EncodeError, match=r"^(loads\[0\]\.records|message): "):
        carrier(records).encode(1)


# the generated text


def test_neighbouring_fixed_fields_are_read_and_written_in_one_call() -> None:
    assert "unpack_tbhHiIqd16sB(b, pos)" in reader_source(toys.Everything, 3)
    assert "pack_tbhHiIqd16sB(" in writer_source(toys.Everything, 3)


# ---- in slices


@pytest.mark.parametrize(("cls", "version"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_message_is_the_same_in_slices(cls: type[Message], version: int, data: st.DataObject) -> None:
    value = data.draw(messages(cls, version))
    encoded = value.encode(version)
    assert in_one_go(cls.decode_slices(encoded, version, 0, 10_000))[0] == value
    assert b"".join(in_one_go(value.encode_slices(version))[0]) == encoded


def many_strings(count: int) -> bytes:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=["k"] * count).encode(4)


def test_a_large_message_is_read_and_written_in_many_slices() -> None:
    request, reads = in_one_go(FindCoordinatorRequest.decode_slices(many_strings(1280), 4, 0, 1280))
    assert (reads, in_one_go(request.encode_slices(4))[1]) == (10, 10)


def test_a_large_message_is_not_left_in_pieces_until_it_is_written() -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["k"] * 1280)
    steps = request.encode_slices(4)
    left = [len(steps.gi_yieldfrom.gi_frame.f_locals["out"]) for _ in steps]  # type: ignore[union-attr]
    assert left == [0] * 10


def test_one_element_more_than_is_taken_is_refused() -> None:
    with pytest.raises(DecodeError, match="more elements than are taken"):
        in_one_go(FindCoordinatorRequest.decode_slices(many_strings(1281), 4, 0, 1280))


def test_numbers_count_as_elements_in_slices() -> None:
    request = StopReplicaRequest(
        controller_id=1,
        controller_epoch=1,
        topics=[StopReplicaTopicV1(name="t", partition_indexes=list(range(1000)))],
    ).encode(2)
    with pytest.raises(DecodeError, match="more elements than are taken"):
        in_one_go(StopReplicaRequest.decode_slices(request, 2, 0, 1000))
    assert in_one_go(StopReplicaRequest.decode_slices(request, 2, 0, 1010))[0].topics[0].partition_indexes[-1] == 999


def test_a_cut_message_is_refused_in_slices() -> None:
    with pytest.raises(DecodeError, match="ends early"):
        in_one_go(FindCoordinatorRequest.decode_slices(many_strings(1280)[:-300], 4, 0, 1280))


def test_the_patient_codec_is_loaded_when_something_is_wrong() -> None:
    script = """
import sys
from protocol.message import DecodeError
from protocol.messages.groups import HeartbeatRequest

data = HeartbeatRequest(group_id="g", generation_id=1, member_id="m").encode(4)
HeartbeatRequest.decode(data, 4)
print("protocol.explain" in sys.modules)
try:
    HeartbeatRequest.decode(data[:3], 4)
except DecodeError as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert said == "False\ngeneration_id: needs 4 bytes at position 2, and 1 are left\n"
