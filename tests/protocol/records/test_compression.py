"""Codecs: what goes in comes out, and nothing that claims to be compressed makes more than its limit."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
import zlib
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import codec as kafka_python

from protocol.errors import ErrorCode
from protocol.records import Readable, RecordError, compression
from protocol.records.compression import Codec, codec_named, codec_names, codec_of

if sys.version_info < (3, 14):
    from backports import zstd

    sys.modules["compression.zstd"] = zstd  # its like in later Pythons


class Lz4ByCramjam(compression._Lz4):
    FASTEST = ""


class Lz4OfV0ByCramjam(compression._Lz4OfV0):
    FASTEST = ""


class ZstdByPython(compression._Zstd):
    FASTEST = ""


LZ4_OF_V0 = codec_of(3, magic=0)
CODECS = [*map(codec_named, codec_names()), LZ4_OF_V0, Lz4ByCramjam(), Lz4OfV0ByCramjam(), ZstdByPython()]
COMPRESSING = CODECS[1:]
LIMIT = 1 << 20
TEXT = b"".join(b'{"id":%d,"name":"user%d"}' % (n, n * n) for n in range(3000))

codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: type(c).__name__)
compressing = pytest.mark.parametrize("codec", COMPRESSING, ids=lambda c: type(c).__name__)

lz4_codec = pytest.mark.parametrize(
    "codec", [codec_of(3), LZ4_OF_V0, Lz4ByCramjam(), Lz4OfV0ByCramjam()], ids=lambda c: type(c).__name__
)
zstd_codec = pytest.mark.parametrize("codec", [codec_of(4), ZstdByPython()], ids=lambda c: type(c).__name__)


@codec
@pytest.mark.parametrize("data", [b"", b"a", TEXT, random.Random(7).randbytes(70_000)], ids=len)
def test_what_goes_in_comes_out(codec: Codec, data: bytes) -> None:
    packed = codec.compress(data)
    for same in (packed, bytearray(packed), memoryview(packed)):
        assert bytes(codec.decompress(same, len(data))) == data


@codec
def test_views_of_writable_buffers_are_compressed_in_place(codec: Codec) -> None:
    view = memoryview(bytearray(b"##" + TEXT))[2:]
    assert bytes(codec.decompress(codec.compress(view), LIMIT)) == TEXT


@settings(max_examples=60)
@given(st.binary(max_size=2000), st.sampled_from(CODECS))
def test_any_bytes_survive(data: bytes, codec: Codec) -> None:
    assert bytes(codec.decompress(codec.compress(data), len(data))) == data


@compressing
def test_every_level_makes_data_that_comes_out_again(codec: Codec) -> None:
    levels = codec.levels if len(codec.levels) < 50 else [-131072, -5, 1, 3, 10, 22]
    for level in levels:
        assert bytes(codec.decompress(codec.compress(TEXT, level), LIMIT)) == TEXT


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (codec_named("gzip"), (1, 9)),
        (codec_named("lz4"), (9, 12)),
        (Lz4ByCramjam(), (9, 12)),
        (codec_named("zstd"), (-20, 19)),
        (ZstdByPython(), (-20, 19)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_higher_level_makes_less(codec: Codec, levels: tuple[int, int]) -> None:
    low, high = (len(codec.compress(TEXT, level)) for level in levels)
    assert high < low


@codec
def test_one_byte_past_the_limit_is_too_large(codec: Codec) -> None:
    with pytest.raises(RecordError) as caught:
        codec.decompress(codec.compress(TEXT), len(TEXT) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@compressing
def test_every_truncation_is_corrupt(codec: Codec) -> None:
    packed = bytes(codec.compress(TEXT[:300]))
    empty_stream = {16} if codec.name == "snappy" else set()  # xerial's header is whole without any block
    for cut in {*range(len(packed))} - empty_stream:
        with pytest.raises(RecordError) as caught:
            codec.decompress(packed[:cut], LIMIT)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE, cut


@compressing
def test_no_bytes_are_no_compressed_data(codec: Codec) -> None:
    with pytest.raises(RecordError) as caught:
        codec.decompress(b"", LIMIT)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def outcome(codec: Codec, data: Readable) -> ErrorCode:
    """NONE if it decompressed within a limit of 1,000 bytes."""
    try:
        return ErrorCode.NONE if len(codec.decompress(data, 1000)) <= 1000 else ErrorCode.UNKNOWN_SERVER_ERROR
    except RecordError as error:
        return error.code


ALLOWED = (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@settings(max_examples=500)
@given(st.sampled_from(COMPRESSING), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_data_is_decompressed_or_refused_within_the_limit(codec: Codec, damage: list[tuple[int, int]]) -> None:
    packed = bytearray(codec.compress(TEXT[:500]))
    for at, value in damage:
        packed[at % len(packed)] = value
    assert outcome(codec, packed) in ALLOWED


@settings(max_examples=500)
@given(st.sampled_from(COMPRESSING), st.binary(max_size=100))
def test_any_bytes_are_decompressed_or_refused(codec: Codec, data: bytes) -> None:
    starts = {"gzip": b"\x1f\x8b\x08\x00", "lz4": b"\x04\x22\x4d\x18\x60\x40", "zstd": b"\x28\xb5\x2f\xfd"}
    for bad in (data, starts.get(codec.name, b"\x82SNAPPY\x00") + data):
        assert outcome(codec, bad) in ALLOWED


def bomb(codec: Codec) -> Readable:
    """64 MB of nothing, as small as the codec can make it."""
    return codec.compress(bytes(64 << 20))


@compressing
def test_a_bomb_is_refused_before_it_goes_off(codec: Codec) -> None:
    packed = bomb(codec)
    codec.decompress(codec.compress(b"x"), LIMIT)  # its library is imported
    tracemalloc.start()
    with pytest.raises(RecordError) as caught:
        codec.decompress(packed, LIMIT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak < 4 * LIMIT


def test_a_size_that_a_frame_only_claims_is_not_allocated() -> None:
    raw_snappy = b"\xff\xff\xff\x7f" + b"\x00a"  # says 256 MB
    zstd = b"\x28\xb5\x2f\xfd\xa0" + (200 << 20).to_bytes(4, "little") + b"\x01\x00\x00"  # says 200 MB in one segment
    lz4_frame = LZ4_OF_V0.compress(b"")[:4] + b"\x68\x70" + (200 << 20).to_bytes(8, "little") + b"\x00"
    for name, data in (("snappy", raw_snappy), ("zstd", zstd)):
        codec_named(name).decompress(codec_named(name).compress(b"x"), LIMIT)
        tracemalloc.start()
        with pytest.raises(RecordError):
            codec_named(name).decompress(data, 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
        tracemalloc.stop()
    with pytest.raises(RecordError):
        LZ4_OF_V0.decompress(lz4_frame, 1 << 30)


def test_snappy_reads_raw_and_framed_and_writes_framed() -> None:
    snappy = codec_named("snappy")
    framed = bytes(snappy.compress(TEXT))
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert [snappy.decompress(x, LIMIT) for x in (framed, raw, framed + framed)] == [TEXT, TEXT, TEXT * 2]


def test_gzip_members_are_joined_and_what_follows_them_ignored() -> None:
    gzip = codec_named("gzip")
    member = bytes(gzip.compress(b"ab"))
    assert gzip.decompress(member + member + b"\0\0", 4) == b"abab"


@zstd_codec
def test_zstd_frames_are_joined(codec: Codec) -> None:
    frame = bytes(codec.compress(b"ab"))
    assert bytes(codec.decompress(frame + frame, 4)) == b"abab"


ZSTD = b"\x28\xb5\x2f\xfd"  # then 0x20: one segment, its size in one byte; and one last block as it is, of two bytes


@zstd_codec
@pytest.mark.parametrize(
    "frame",
    [
        ZSTD + b"\x20\x00",
        ZSTD + b"\x20\x00\x11\x00\x00ab",
        ZSTD + b"\x20\x01\x11\x00\x00ab",
        ZSTD + b"\x20\x03\x11\x00\x00ab",
        ZSTD + b"\x20\x02\x11\x00\x00ab?",
    ],
    ids=["says it is empty, and is cut", "says it is empty", "says less", "says more", "has more behind it"],
)
def test_a_zstd_frame_that_is_not_what_it_says_is_corrupt(frame: bytes, codec: Codec) -> None:
    assert outcome(codec, frame) is ErrorCode.CORRUPT_MESSAGE
    assert bytes(codec.decompress(ZSTD + b"\x20\x02\x11\x00\x00ab", 2)) == b"ab"


@zstd_codec
def test_a_zstd_frame_that_says_no_size_is_read_however_much_it_makes(codec: Codec) -> None:
    data = TEXT * 20
    frame = pytest.importorskip("zstandard").ZstdCompressor(write_content_size=False).compress(data)
    assert len(data) > 32 * len(frame)
    assert bytes(codec.decompress(frame, len(data))) == data


@lz4_codec
def test_lz4_blocks_that_depend_on_one_another_are_refused_as_no_java_consumer_reads_them(codec: Codec) -> None:
    frame = pytest.importorskip("lz4.frame").compress(TEXT, block_linked=True)
    assert outcome(codec, frame) is ErrorCode.CORRUPT_MESSAGE


def test_lz4_of_v0_has_the_old_clients_checksum() -> None:
    pytest.importorskip("lz4")  # of kafka-python
    old = bytes(LZ4_OF_V0.compress(TEXT))
    with pytest.raises(RecordError):
        codec_of(3).decompress(old, LIMIT)
    with pytest.raises(RecordError):
        Lz4ByCramjam().decompress(old, LIMIT)
    assert bytes(Lz4OfV0ByCramjam().decompress(old, LIMIT)) == TEXT
    assert kafka_python.lz4_decode_old_kafka(old) == TEXT


def test_lz4_of_v0_reads_old_and_right_checksums_and_content_sizes() -> None:
    frame = pytest.importorskip("lz4.frame")
    for data in (
        kafka_python.lz4_encode_old_kafka(TEXT),
        codec_of(3).compress(TEXT),
        frame.compress(TEXT, store_size=True, block_linked=False),
        frame.compress(TEXT, content_checksum=True, block_checksum=True, block_linked=False),
    ):
        assert LZ4_OF_V0.decompress(data, LIMIT) == TEXT
        assert bytes(Lz4OfV0ByCramjam().decompress(data, LIMIT)) == TEXT


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_reads_ours_and_we_read_its(name: str) -> None:
    codec = codec_named(name)
    assert getattr(kafka_python, f"{name}_decode")(bytes(codec.compress(TEXT))) == TEXT
    assert bytes(codec.decompress(getattr(kafka_python, f"{name}_encode")(TEXT), LIMIT)) == TEXT


def test_unknown_ids_are_an_unsupported_compression_type() -> None:
    with pytest.raises(RecordError) as caught:
        codec_of(5)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_names_are_those_of_compression_type() -> None:
    assert codec_names() == ["none", "gzip", "snappy", "lz4", "zstd"]


class Deflate:
    """A codec somebody else might bring."""

    name = "deflate"
    codec_id = 5
    levels = range(10)
    default_level = 6

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        return zlib.compress(data)

    def decompress(self, data: Readable, limit: int) -> bytes:
        return zlib.decompress(data)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that is as it was before, afterwards."""
    monkeypatch.setattr(compression, "_BY_ID", dict(compression._BY_ID))
    monkeypatch.setattr(compression, "_BY_NAME", dict(compression._BY_NAME))
    monkeypatch.setattr(compression, "_LOOKED", [])


@pytest.mark.usefixtures("registry")
def test_a_registered_codec_is_found_by_id_and_name() -> None:
    compression.register(Deflate())
    assert codec_of(5) is codec_named("deflate")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("name", "codec_id"), [("deflate", 8), ("deflate", 0), ("gzip", 5)])
def test_impossible_registrations_are_refused(name: str, codec_id: int) -> None:
    mine: Any = Deflate()
    mine.name, mine.codec_id = name, codec_id
    with pytest.raises(ValueError, match=name):
        compression.register(mine)


@pytest.mark.usefixtures("registry")
def test_a_codec_can_be_replaced_by_a_faster_one() -> None:
    faster: Any = Deflate()
    faster.name, faster.codec_id = "gzip", 1
    compression.register(faster)
    assert codec_of(1) is codec_named("gzip") is faster


@pytest.mark.usefixtures("registry")
def test_plugins_are_found_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    entry = metadata.EntryPoint("deflate", f"{__name__}:Deflate", compression.ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] if group == "kbroker.codecs" else [])
    assert compression.load_plugins() == (["deflate"], [])
    assert codec_of(5).name == "deflate"


@pytest.mark.usefixtures("registry")
def test_plugins_are_looked_for_when_a_codec_is_missing_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    asked: list[str] = []

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return [metadata.EntryPoint("deflate", f"{__name__}:Deflate", group)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert (codec_of(1).name, asked) == ("gzip", [])
    assert (codec_named("deflate").codec_id, compression.is_codec("brotli")) == (5, False)
    with pytest.raises(RecordError, match="no codec has id 6"):
        codec_of(6)
    assert asked == ["kbroker.codecs"]


@pytest.mark.usefixtures("registry")
def test_a_package_that_fails_is_named_and_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    group = compression.ENTRY_POINTS
    entries = [
        metadata.EntryPoint("absent", "no_such_module:Codec", group),
        metadata.EntryPoint("deflate", f"{__name__}:Deflate", group),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    with pytest.raises(RecordError, match=r"no codec has id 7; codec 'absent' .no_such_module:Codec. cannot be loaded"):
        codec_of(7)
    assert compression.is_codec("deflate")


def test_no_codec_library_is_loaded_before_it_is_used() -> None:
    script = "import sys, protocol.records.compression; print({'lz4', 'cramjam', 'zstandard'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


LARGE = random.Random(7).randbytes(300_000) + bytes(6 << 20) + TEXT * 20


@compressing
def test_large_data_comes_out_whole(codec: Codec) -> None:
    packed = codec.compress(LARGE)
    assert bytes(codec.decompress(packed, len(LARGE))) == LARGE


@compressing
def test_large_data_that_is_cut_or_beyond_the_limit_by_a_byte_is_refused(codec: Codec) -> None:
    packed = codec.compress(LARGE)
    with pytest.raises(RecordError):
        codec.decompress(packed, len(LARGE) - 1)
    with pytest.raises(RecordError):
        codec.decompress(memoryview(packed)[:-9], len(LARGE))


def test_large_members_of_gzip_are_one() -> None:
    gzip = codec_named("gzip")
    packed = bytes(gzip.compress(LARGE)) + bytes(gzip.compress(b"")) + bytes(gzip.compress(LARGE)) + b"\x1fno member"
    assert bytes(gzip.decompress(packed, 2 * len(LARGE))) == LARGE * 2


@pytest.mark.parametrize(("name", "times"), [("gzip", 1.2), ("snappy", 1.2), ("lz4", 1.2), ("zstd", 0.2)])
def test_what_becomes_large_is_neither_cleared_nor_copied_in_one_go(name: str, times: float) -> None:
    codec, size = codec_named(name), 16 << 20
    packed = codec.compress(bytes(size))
    tracemalloc.start()
    try:
        codec.decompress(packed, size)
        assert tracemalloc.get_traced_memory()[1] < times * size  # each of these holds the interpreter's lock
    finally:
        tracemalloc.stop()
