"""The codecs of record batches, by number and by name, each with a hard limit on what it may blow up to.

Called by `content` and `legacy`, and by all that read `compression.type`. A codec's library is imported when the codec
is first used: a broker that only passes compressed batches on never loads one. Callable from any thread; the C
libraries let other threads run meanwhile. Nothing here knows what a record is.

lz4 and zstandard are the fastest for their codecs, and have no wheels for the newest Pythons; where one is not there,
cramjam and Python's own compression.zstd (3.14) do its work. A Python without the GIL would get it back from either,
so they are not asked there.

    id  name    what the bytes are
     0  none    themselves
     1  gzip    RFC 1952, one or more members
     2  snappy  raw, or xerial's framing (snappy-java, what Kafka writes): magic, two versions, then size + raw block
     3  lz4     LZ4 frame; in v0 message sets with a header checksum that old clients computed over too much
     4  zstd    RFC 8878, one or more frames

Ids 5 to 7 are free for others: `register` them, or name them in the entry point group `kbroker.codecs`. Installed
packages are looked through when a codec is asked for that is not there, and never before: it takes a start some ms.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from mmap import ACCESS_COPY, mmap
from struct import Struct
from typing import Any, Protocol

from protocol.errors import ErrorCode
from protocol.records._errors import RecordError
from protocol.records._record import Readable

ENTRY_POINTS = "kbroker.codecs"
LARGEST_ID = 7  # three bits of a batch's attributes
MAPPED_BYTES = 4 << 20  # from here on room is of pages that were never touched
PIECE_BYTES = 1 << 20  # decompressed, or put together, before other threads have their turn
FULL = "failed to write whole buffer"  # cramjam, where it is given less room than it needs
LIMIT_BYTES = 128 << 20  # default of what a batch may decompress to; unpacked, socket.request.max.bytes lets in less


class Codec(Protocol):
    """One way to compress the records of a batch.

    name: as in compression.type. codec_id: 0 to 7. levels: what compress takes; default_level: what None means there.
    """

    name: str
    codec_id: int
    levels: range
    default_level: int

    def compress(self, data: Readable, level: int | None = None) -> Readable:
        """Compress `data` whole."""

    def decompress(self, data: Readable, limit: int) -> Readable:
        """Decompress `data` whole, into at most `limit` bytes and never holding much more than that.

        Raises: RecordError, MESSAGE_TOO_LARGE beyond the limit, CORRUPT_MESSAGE for bytes that are cut or no such data.
        """


def codec_of(codec_id: int, magic: int = 2) -> Codec:
    """The codec of this number, as the batches or messages of this format use it.

    Raises: RecordError, UNSUPPORTED_COMPRESSION_TYPE if there is none.
    """
    if codec_id == 3 and magic == 0:
        return _LZ4_OF_V0
    codec = _BY_ID.get(codec_id)
    if codec is None:
        faults = _look_for_plugins()
        codec = _BY_ID.get(codec_id)
    if codec is None:
        raise RecordError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0, "; ".join([f"no codec has id {codec_id}", *faults])
        )
    return codec


def codec_named(name: str) -> Codec:
    """The codec of this name. Raises: KeyError."""
    if name not in _BY_NAME:
        _look_for_plugins()
    return _BY_NAME[name]


def is_codec(name: str) -> bool:
    """Whether there is a codec of this name."""
    if name not in _BY_NAME:
        _look_for_plugins()
    return name in _BY_NAME


def codec_names() -> list[str]:
    """Every codec's name, in the order of their numbers."""
    return [_BY_ID[codec_id].name for codec_id in sorted(_BY_ID)]


def register(codec: Codec) -> None:
    """Add a codec, or put it in place of the one with its id. Raises: ValueError for an id or name it cannot take."""
    if not 0 < codec.codec_id <= LARGEST_ID:
        raise ValueError(f"codec {codec.name!r} has id {codec.codec_id}, not 1 to {LARGEST_ID}")
    holder = _BY_NAME.get(codec.name)
    if holder is not None and holder.codec_id != codec.codec_id:
        raise ValueError(f"codec {codec.name!r} already has id {holder.codec_id}")
    replaced = _BY_ID.get(codec.codec_id)
    if replaced is not None:
        del _BY_NAME[replaced.name]
    _BY_ID[codec.codec_id] = _BY_NAME[codec.name] = codec


def load_plugins() -> tuple[list[str], list[str]]:
    """Register what installed packages offer under `kbroker.codecs` (a Codec, or a class of one).

    Returns: the codecs' names, and a line for each that cannot be had; one package's fault is not another's.
    """
    from importlib.metadata import entry_points

    names, faults = [], []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            offered = entry.load()
            codec: Codec = offered() if isinstance(offered, type) else offered
            register(codec)
        except Exception as error:  # whatever a stranger's module may raise
            faults.append(f"codec {entry.name!r} ({entry.value}) cannot be loaded: {error}")
        else:
            names.append(codec.name)
    return names, faults


def _look_for_plugins() -> list[str]:
    """Load them, unless they are loaded; what went wrong then."""
    if not _LOOKED:
        _LOOKED.append(load_plugins()[1])
    return _LOOKED[0]


_LOOKED: list[list[str]] = []  # once that is done: what went wrong


@cache
def _fastest(name: str) -> Any:
    """lz4.frame or zstandard; None where it is not to be had, or would bring the GIL back. name: "" for none."""
    if not name or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


@cache
def _library(name: str, codec: str) -> Any:
    """One that there is no other way than. Raises: RecordError UNSUPPORTED_COMPRESSION_TYPE, which says what to do."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        what = "Python 3.14 or the package zstandard" if package == "compression" else f"the package {package}"
        why = f"codec {codec} needs {what}: pip install {'zstandard' if package == 'compression' else package}"
        raise RecordError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0, why) from None


class _None:
    name = "none"
    codec_id = 0
    levels = range(1)
    default_level = 0

    def compress(self, data: Readable, level: int | None = None) -> Readable:
        return data

    def decompress(self, data: Readable, limit: int) -> Readable:
        if len(data) > limit:
            raise _too_large(limit)
        return data


class _Gzip:
    name = "gzip"
    codec_id = 1
    MAGIC = b"\x1f\x8b"
    levels = range(-1, 10)  # -1: what zlib thinks best, 6
    default_level = -1

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        compressor = zlib.compressobj(self.default_level if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()

    def decompress(self, data: Readable, limit: int) -> Readable:
        view = memoryview(data)
        parts = _Gathered()
        at, left = self._member(view, 0, parts, limit, limit)
        while view[at : at + 2] == self.MAGIC:  # what follows the last member is ignored, as Java does
            at, left = self._member(view, at, parts, left, limit)
        return parts.whole()

    def _member(self, view: memoryview, at: int, parts: _Gathered, left: int, limit: int) -> tuple[int, int]:
        """Inflate the member that begins at `at`; where it ends, and what may come behind it."""
        inflater = zlib.decompressobj(31)
        while not inflater.eof:
            piece: Readable = inflater.unconsumed_tail
            if not piece:
                piece = view[at : at + PIECE_BYTES]
                at += len(piece)
            try:
                part = inflater.decompress(piece, min(left + 1, PIECE_BYTES))
            except zlib.error as error:
                raise _corrupt(str(error)) from None
            if not (part or len(piece) or inflater.eof):
                raise _corrupt("gzip data ends early")
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
        return at - len(inflater.unused_data), left


class _Snappy:
    name = "snappy"
    codec_id = 2
    levels = range(1)
    default_level = 0

    MAGIC = b"\x82SNAPPY\x00"
    HEADER = MAGIC + b"\x00\x00\x00\x01" * 2  # version, oldest version that can read it
    BLOCK_BYTES = 32 << 10  # what snappy-java compresses at a time
    HIGHEST_RATIO = 22  # a 3-byte copy makes 64 bytes; nothing in the format makes more of less
    SIZE = Struct(">i")
    MAGIC_AS_SIZE = SIZE.unpack(MAGIC[:4])[0]

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        snappy = _library("cramjam", self.name).snappy
        view = memoryview(data)
        out = [self.HEADER]
        for start in range(0, len(view), self.BLOCK_BYTES):
            block = bytes(snappy.compress_raw(view[start : start + self.BLOCK_BYTES]))
            out += self.SIZE.pack(len(block)), block
        return b"".join(out)

    def decompress(self, data: Readable, limit: int) -> Readable:
        view = memoryview(data)
        blocks = self._blocks(view) if view[:8] == self.MAGIC else iter([view])
        parts = _Gathered()
        left = limit
        for block in blocks:
            part = self._raw(block, left, limit)
            left -= len(part)
            parts.append(part)
        return parts.whole()

    def _blocks(self, view: memoryview) -> Iterator[memoryview]:
        """The raw blocks of xerial's framing; a header in mid-stream is where two streams were joined."""
        position = 0
        while position < len(view):
            if len(view) - position < 4:
                raise _corrupt("snappy data ends inside a block's size")
            (size,) = self.SIZE.unpack_from(view, position)
            if size == self.MAGIC_AS_SIZE:
                if len(view) - position < len(self.HEADER):
                    raise _corrupt("snappy data ends inside its header")
                position += len(self.HEADER)
                continue
            position += 4
            if not 0 <= size <= len(view) - position:
                raise _corrupt("a snappy block's size is negative or more than there is")
            yield view[position : position + size]
            position += size

    def _raw(self, block: memoryview, left: int, limit: int) -> Readable:
        cramjam = _library("cramjam", self.name)
        snappy = cramjam.snappy
        try:
            size = snappy.decompress_raw_len(block)  # read from the block's first bytes: only a claim
            if size > left:
                raise _too_large(limit)
            if size > len(block) * self.HIGHEST_RATIO:
                raise _corrupt("a snappy block claims more bytes than it can make")
            if size < MAPPED_BYTES:
                return bytes(snappy.decompress_raw(block))
            room = _room(size)  # a copy of a large block would cost as much again
            if snappy.decompress_raw_into(block, room) != size:
                raise _corrupt("a snappy block makes less than it claims")
            return room
        except cramjam.DecompressionError as error:
            raise _corrupt(str(error)) from None


class _Lz4:
    name = "lz4"
    codec_id = 3
    levels = range(1, 18)
    default_level = 9  # in Kafka this number means the fast compressor, every other one the high compressor

    HIGHEST_RATIO = 256  # a length byte stands for at most 255 bytes
    FLAGS, FLAGS_MASK = 0x60, 0xE3  # version 1, independent blocks, no dictionary: no Java consumer reads another frame
    FASTEST = "lz4.frame"
    LEAST_OF_HIGH = 3  # levels of the high compressor begin here
    SIZE = Struct("<I")  # of a block; the highest bit says that it is not compressed
    STORED = 1 << 31
    HAS_BLOCK_SUMS, HAS_SIZE, HAS_SUM = 0x10, 0x08, 0x04  # among the flags

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        level = 0 if level is None or level == self.default_level else max(level, self.LEAST_OF_HIGH)
        frame = _fastest(self.FASTEST)
        if frame is None:
            compressor = _library("cramjam", self.name).lz4.Compressor(
                level, content_checksum=False, block_linked=False
            )
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        compressed: bytes = frame.compress(
            data,
            compression_level=level,
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,  # Kafka's reader knows no other
            store_size=False,
        )
        return compressed

    def decompress(self, data: Readable, limit: int) -> Readable:
        return self._inflate([data], limit)

    def _inflate(self, pieces: list[Readable], limit: int) -> Readable:
        if len(pieces[0]) > 4 and pieces[0][4] & self.FLAGS_MASK != self.FLAGS:
            raise _corrupt(f"lz4 frame flags {pieces[0][4]:#04x}: blocks depend on one another, or need a dictionary")
        frame = _fastest(self.FASTEST)
        if frame is None:
            return self._inflate_frame(memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)), limit)
        inflater = frame.LZ4FrameDecompressor()
        left = min(limit, sum(map(len, pieces)) * self.HIGHEST_RATIO)
        parts = _Gathered()
        for piece in pieces:
            while not inflater.eof:
                try:  # it allocates what it may return
                    part = inflater.decompress(piece, min(left + 1, PIECE_BYTES))
                except (RuntimeError, EOFError) as error:
                    raise _corrupt(str(error)) from None
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise _too_large(limit)
                if inflater.needs_input:
                    break
                piece = b""  # it has kept the rest
        if not inflater.eof:  # what follows the frame is ignored, as Kafka does
            raise _corrupt("lz4 data ends early")
        return parts.whole()

    def _inflate_frame(self, view: memoryview, limit: int) -> Readable:
        """By cramjam, into as much room as the frame's blocks may take; it would read what follows the frame, too."""
        cramjam = _library("cramjam", self.name)
        size, most = self._measured(view)
        room = _room(min(limit, most))
        try:
            return room[: cramjam.lz4.decompress_into(view[:size], room)]
        except cramjam.DecompressionError as error:
            if str(error) == FULL and len(room) == limit:
                raise _too_large(limit) from None
            raise _corrupt(str(error)) from None

    def _measured(self, view: memoryview) -> tuple[int, int]:
        """A frame's bytes, and how many it may make, by its header and its blocks' sizes."""
        early = _corrupt("lz4 data ends early")
        if len(view) < 7:
            raise early
        flags, most_of_block = view[4], 1 << (8 + 2 * (view[5] >> 4 & 7))
        at, most = 15 if flags & self.HAS_SIZE else 7, 0
        beside = 4 if flags & self.HAS_BLOCK_SUMS else 0
        while at + 4 <= len(view):
            (size,) = self.SIZE.unpack_from(view, at)
            at += 4
            if not size:
                at += 4 if flags & self.HAS_SUM else 0
                if at > len(view):
                    break
                return at, min(most, at * self.HIGHEST_RATIO)
            at += (size & ~self.STORED) + beside
            most += most_of_block
        raise early


class _Lz4OfV0(_Lz4):
    """LZ4 frames whose header checksum covers the frame's magic too: a mistake of the first clients, kept for v0.

    Source: KAFKA-3160. Reading ignores the checksum, as Kafka does for v0.
    """

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        right = super().compress(data, level)
        return right[:6] + bytes([_xxh32_short(right[:6]) >> 8 & 0xFF]) + right[7:]

    def decompress(self, data: Readable, limit: int) -> Readable:
        if len(data) < 7:
            raise _corrupt("lz4 data ends inside its header")
        flags = data[4]
        end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)  # behind content size and dictionary id
        header = bytes(data[4:end])
        mended = bytes(data[:end]) + bytes([_xxh32_short(header) >> 8 & 0xFF])
        return self._inflate([mended, memoryview(data)[end + 1 :]], limit)


class _Zstd:
    name = "zstd"
    codec_id = 4
    levels = range(-131072, 23)
    default_level = 3

    FASTEST = "zstandard"
    GUESS = 16  # how often what was sent what comes out may be, before it is asked again with more room
    MOST_WINDOW_BYTES = 8 << 20  # of the levels up to 19; a context keeps it for the next batch

    def __init__(self) -> None:
        # A context costs 8 us to make and serves one thread at a time: it is out of the list while in use.
        self._compressors: list[Callable[[Readable], bytes]] = []
        self._decompressors: list[Any] = []

    def compress(self, data: Readable, level: int | None = None) -> bytes:
        if level is not None and level != self.default_level:
            return self._compressor(level)(data)
        compress = self._compressors.pop() if self._compressors else self._compressor(self.default_level)
        compressed = compress(data)
        self._compressors.append(compress)
        return compressed

    def _compressor(self, level: int) -> Callable[[Readable], bytes]:
        library = _fastest(self.FASTEST)
        if library is not None:
            made: Callable[[Readable], bytes] = library.ZstdCompressor(level=level).compress
            return made
        compressor = _library("compression.zstd", self.name).ZstdCompressor(level=level)
        return lambda data: compressor.compress(data, compressor.FLUSH_FRAME)

    def decompress(self, data: Readable, limit: int) -> Readable:
        first = min(limit, self.GUESS * len(data) + 4096)
        whole = self._frame(data, first)
        return self._frames(data, limit, first) if whole is None else whole

    def _frame(self, data: Readable, most: int) -> bytes | None:
        """What nearly every batch is, one whole frame, opened in a context that was made before; None if it is not.

        Also None for a frame that says it is empty, which zstandard believes without looking further, or that it is
        larger than `most`, which would be allocated.
        """
        library = _fastest(self.FASTEST)
        if library is None:
            return self._frame_by_python(data, most)
        contexts = self._decompressors
        decompressor = contexts.pop() if contexts else library.ZstdDecompressor(max_window_size=self.MOST_WINDOW_BYTES)
        try:
            claim = library.frame_content_size(data)  # -1: not said
            if not claim or claim > most:
                return None
            whole: bytes = decompressor.decompress(data, max_output_size=most, allow_extra_data=False)
            return whole
        except library.ZstdError:
            return None
        finally:
            contexts.append(decompressor)

    def _frame_by_python(self, data: Readable, most: int) -> bytes | None:
        """The same by compression.zstd, whose contexts serve one frame."""
        zstd = _library("compression.zstd", self.name)
        largest = {zstd.DecompressionParameter.window_log_max: self.MOST_WINDOW_BYTES.bit_length() - 1}
        decompressor = zstd.ZstdDecompressor(options=largest)
        try:
            whole: bytes = decompressor.decompress(data, most)
        except zstd.ZstdError:
            return None
        return whole if decompressor.eof and not decompressor.unused_data else None

    def _frames(self, data: Readable, limit: int, size: int) -> memoryview:
        """All frames, or what is wrong with them, into a buffer that grows: their sizes are only claims."""
        cramjam = _library("cramjam", self.name)  # for zstandard's reader a cut frame is a finished one
        while True:
            room = _room(size)
            try:
                return room[: cramjam.zstd.decompress_into(data, room)]
            except cramjam.DecompressionError as error:
                if str(error) != FULL:
                    raise _corrupt(str(error)) from None
            if size == limit:
                raise _too_large(limit)
            size = min(limit, 8 * size)


class _Gathered:
    """What has come out so far. Small pieces are put together at once: freed, they stay in the heap of their thread."""

    __slots__ = ("_parts", "_size", "_small")

    def __init__(self) -> None:
        self._parts: list[Readable] = []
        self._small: list[Readable] = []
        self._size = 0  # of the small ones

    def append(self, part: Readable) -> None:
        """Add a piece."""
        self._small.append(part)
        self._size += len(part)
        if self._size >= MAPPED_BYTES:
            self._parts.append(_joined(self._small))
            self._small, self._size = [], 0

    def whole(self) -> Readable:
        """All in one, once."""
        parts, self._parts = [*self._parts, *self._small], []
        self._small = []
        return _joined(parts)


def _joined(parts: list[Readable]) -> Readable:
    """All in one; each goes once it is there."""
    if len(parts) == 1:
        return parts[0]
    size = sum(map(len, parts))
    if size < MAPPED_BYTES:
        return b"".join(parts)
    room = _room(size)
    while parts:
        part = parts.pop()
        room[size - len(part) : size] = part
        size -= len(part)
    return room


def _room(size: int) -> memoryview:
    """So many bytes to write to. Large ones are pages that the system clears when they are written to.

    To clear 128 MB here takes 100 ms, in which no other thread can run.
    """
    if size < MAPPED_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap(-1, size, access=ACCESS_COPY))


def _xxh32_short(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is all that a frame header has."""
    assert len(data) < 16, len(data)
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    value = prime5 + len(data)
    words = len(data) & ~3
    for at in range(0, words, 4):
        value = value + int.from_bytes(data[at : at + 4], "little") * prime3 & mask
        value = (value << 17 | value >> 15) * prime4 & mask
    for byte in data[words:]:
        value = value + byte * prime5 & mask
        value = (value << 11 | value >> 21) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16


def _too_large(limit: int) -> RecordError:
    return RecordError(ErrorCode.MESSAGE_TOO_LARGE, 0, f"decompresses to more than {limit} bytes")


def _corrupt(reason: str) -> RecordError:
    return RecordError(ErrorCode.CORRUPT_MESSAGE, 0, reason)


_LZ4_OF_V0 = _Lz4OfV0()
_CODECS: list[Codec] = [_None(), _Gzip(), _Snappy(), _Lz4(), _Zstd()]
_BY_ID: dict[int, Codec] = {codec.codec_id: codec for codec in _CODECS}
_BY_NAME: dict[str, Codec] = {codec.name: codec for codec in _CODECS}
