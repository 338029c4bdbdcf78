"""Compressed data that is small and opens to ten gigabytes, and what memory it takes to refuse it: test_bombs.py.

`python -m tests.protocol.records.bombs NAME` prints the bomb's size, and the process's resident memory before, and at
its peak while, everything that opens records has refused it, in bytes. A process of its own, so that nobody else's
memory counts.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from protocol.errors import ErrorCode
from protocol.records import RecordError, legacy
from protocol.records.batch import ATTRIBUTES_AT, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, check, write_crc
from protocol.records.compression import codec_named, codec_of
from protocol.records.content import check_records
from protocol.records.convert import down_convert, open_set

TEN_GB = 10 << 30
REFUSED = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)


def gzip_bomb() -> bytes:
    """One member: a piece of deflated zeros, again and again; its checksum is never reached."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    size = 16 << 20
    piece = deflater.compress(bytes(size)) + deflater.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + piece * (TEN_GB // size)


def gzip_members() -> bytes:
    """Many members, each within every limit."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    size = 16 << 20
    return (deflater.compress(bytes(size)) + deflater.flush()) * (TEN_GB // size)


def _xerial(*blocks: bytes) -> bytes:
    head = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    return head + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def _raw_snappy(size: int) -> bytes:
    from cramjam import snappy

    return bytes(snappy.compress_raw(bytes(size)))


def snappy_bomb() -> bytes:
    """Many blocks in xerial's framing; no more than a request may have: snappy makes 22 bytes of one."""
    return _xerial(*[_raw_snappy(1 << 20)] * 1000)


def snappy_block() -> bytes:
    """One raw block that opens to a gigabyte."""
    return _raw_snappy(1 << 30)


def snappy_claim() -> bytes:
    """A kilobyte that says it is four gigabytes, in xerial's framing."""
    return _xerial(b"\xff\xff\xff\xff\x0f" + bytes(1000))


def _lz4(flags: int, content_size: bytes, blocks: bytes) -> bytes:
    return b"\x04\x22\x4d\x18" + (header := bytes([flags, 0x70]) + content_size) + _xxh32(header) + blocks


def _xxh32(header: bytes) -> bytes:
    from protocol.records.compression import _xxh32_short

    return bytes([_xxh32_short(header) >> 8 & 0xFF])


def lz4_bomb() -> bytes:
    """One frame with a block of zeros, again and again."""
    from lz4 import block

    size = 4 << 20
    zeros = block.compress(bytes(size), store_size=False)
    return _lz4(0x60, b"", (len(zeros).to_bytes(4, "little") + zeros) * (TEN_GB // size) + bytes(4))


def lz4_claim() -> bytes:
    """A kilobyte that says it is ten gigabytes."""
    return _lz4(0x68, TEN_GB.to_bytes(8, "little"), (1000).to_bytes(4, "little") + bytes(1000))


def zstd_bomb() -> bytes:
    """One frame of blocks that repeat a byte: four bytes for 128 KB."""
    size = 128 << 10
    block = (size << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (TEN_GB // size)


def zstd_claim() -> bytes:
    """A kilobyte of such blocks, which says it is ten gigabytes in one piece."""
    size = 128 << 10
    block = (size << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\xe0" + TEN_GB.to_bytes(8, "little") + block * 250


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": gzip_bomb,
    "gzip of many members": gzip_members,
    "snappy": snappy_bomb,
    "snappy in one block": snappy_block,
    "snappy's claim": snappy_claim,
    "lz4": lz4_bomb,
    "lz4's claim": lz4_claim,
    "zstd": zstd_bomb,
    "zstd's claim": zstd_claim,
}


def batch_with(codec_id: int, content: bytes) -> bytearray:
    """A v2 batch whose records are these bytes."""
    out = bytearray(HEADER_SIZE) + content
    HEADER.pack_into(out, 0, 0, len(out) - LENGTH_OVERHEAD, -1, 2, 0, codec_id, 0, 0, 0, -1, -1, -1, 1)
    write_crc(out, 0, len(out))
    assert out[ATTRIBUTES_AT + 1] == codec_id
    return out


def wrapper_with(magic: int, codec_id: int, content: bytes) -> bytearray:
    """A wrapper of an old format whose value are these bytes."""
    body = bytes([magic, codec_id]) + bytes(8 * magic) + b"\xff\xff\xff\xff" + len(content).to_bytes(4, "big") + content
    message = zlib.crc32(body).to_bytes(4, "big") + body
    return bytearray(bytes(8) + len(message).to_bytes(4, "big") + message)


def openers(codec_id: int, content: bytes) -> list[Callable[[], object]]:
    """All that opens compressed records: an append, an append of old messages, a fetch of an old client."""
    batch = memoryview(batch_with(codec_id, content))
    ways: list[Callable[[], object]] = [lambda: check_records(batch, 0, check(batch, 0, len(batch)))]
    if codec_id <= legacy.LAST_CODEC_ID:  # zstd is not opened for old clients
        ways.append(lambda: down_convert(batch, 1, from_offset=0))
        for magic in (0, 1):
            wrapper = memoryview(wrapper_with(magic, codec_id, content))
            ways.append(lambda wrapper=wrapper: open_set(wrapper))  # type: ignore[misc]
        ways.append(lambda: down_convert(wrapper, 0, from_offset=0))
    return ways


def resident(what: str) -> int:
    """Bytes of memory. what: VmRSS for now, VmHWM for the most since `forget_peak`."""
    found = re.search(rf"{what}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, what
    return int(found[1]) * 1024


def forget_peak() -> None:
    """From now on VmHWM is of what comes: not of making the data."""
    Path("/proc/self/clear_refs").write_text("5")


def _outcome(way: Callable[[], object]) -> ErrorCode:
    try:
        way()
    except RecordError as error:
        return error.code
    return ErrorCode.NONE


def main(name: str) -> None:
    """Open it in every way; each must refuse it."""
    codec = codec_named(name.split()[0].removesuffix("'s"))
    content = BOMBS[name]()
    ways = openers(codec.codec_id, content)
    small = codec_of(codec.codec_id, 2)
    small.decompress(small.compress(b"x"), 10)  # its library is loaded
    forget_peak()
    before = resident("VmRSS")
    for way in ways:
        assert _outcome(way) in REFUSED, (name, _outcome(way))
    print(len(content), before, resident("VmHWM"))


if __name__ == "__main__":
    main(sys.argv[1])
