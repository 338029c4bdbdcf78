"""What a fetch of an old client found in the log, made readable for it: a job for the pool.

Made by `api/fetch.py` with the regions that a new client would be sent, and asked for what came of it once it has run.
It reads in chunks and stops at an allowance, so that a fetch holds about a megabyte, however much the client allows:
the rest it gets with its next fetches. At least one batch is converted, whatever its size. It touches its regions'
files and its own values only; what goes wrong is a piece's `error`, not raised.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kbroker.config.limits import CONVERTED_BYTES_PER_FETCH, CONVERTED_BYTES_PER_PARTITION
from kbroker.log.scan import header_at
from protocol.errors import KafkaError
from protocol.records.batch import HEADER_SIZE, last_offset_of, size_of
from protocol.records.convert import down_convert

if TYPE_CHECKING:
    from kbroker.ports import Region
    from protocol.records import Readable

CHUNK_BYTES = 256 << 10
_KEPT_BYTES = 4 << 20


class Piece:
    """One partition's region. from_offset: what the client asked for.

    Once run: records are messages, in order, size_bytes together. next_offset: behind what was read, where that was
    nothing that an old client may see; -1 otherwise. error: what stopped it before there were any.
    """

    __slots__ = ("error", "from_offset", "next_offset", "records", "region", "size_bytes")

    def __init__(self, region: Region, from_offset: int) -> None:
        self.region = region
        self.from_offset = from_offset
        self.records: list[Readable] = []
        self.size_bytes = 0
        self.next_offset = -1
        self.error: KafkaError | OSError | None = None

    def convert(self, magic: int, allowance: int) -> None:
        """Read and convert, until `allowance` bytes have come together or the region ends."""
        try:
            self._convert(magic, allowance)
        except (KafkaError, OSError) as error:
            if not self.records:  # else the client comes to it by and by
                self.error = error

    def _convert(self, magic: int, allowance: int) -> None:
        file, position, end = self.region.file, self.region.position, self.region.position + self.region.size
        step = CHUNK_BYTES
        while position < end and self.size_bytes < allowance:
            data = memoryview(file.read(position, min(step, end - position)))
            parts, used = down_convert(data, magic, from_offset=self.from_offset)
            if not used:
                size = _first_size(data)
                if size <= len(data) or size > end - position:
                    return  # the region ends within it
                step = size
                continue
            self.records += parts
            self.size_bytes += sum(map(len, parts))
            if not self.records:
                self.next_offset = _end_offset(data[:used])
            position += used
        if self.records:
            self.next_offset = -1


def _first_size(data: memoryview) -> int:
    """Bytes of the batch that `data` begins with; 0 if it does not even hold its header."""
    header = header_at(data, 0)
    return size_of(header) if header is not None else 0


def _end_offset(data: memoryview) -> int:
    """The offset behind the last of some whole batches."""
    position, offset = 0, -1
    while len(data) - position >= HEADER_SIZE:
        header = header_at(data, position)
        if header is None:
            break
        offset = last_offset_of(header) + 1
        position += size_of(header)
    return offset


class DownConvertJob:
    """The pieces of one fetch, for a client that knows messages of format `magic` and none newer."""

    __slots__ = ("_magic", "pieces")

    def __init__(self, magic: int, pieces: list[Piece]) -> None:
        self._magic = magic
        self.pieces = pieces

    def run(self) -> None:
        """Convert them all."""
        _keep_pages()
        allowance = max(CONVERTED_BYTES_PER_FETCH // len(self.pieces), CONVERTED_BYTES_PER_PARTITION)
        for piece in self.pieces:
            piece.convert(self._magic, allowance)


@cache
def _keep_pages() -> None:
    """Let the memory of one fetch be there for the next one.

    glibc gives a heap's free end back to the system at every chance, and a page that is new costs as much as what is
    converted into it. Once a block has come and gone that was mapped by itself, it keeps twice as much (mallopt(3),
    M_MMAP_THRESHOLD): this one, which is never written to. Elsewhere it does nothing.
    """
    bytes(_KEPT_BYTES)
