"""Whether SQLite's write-ahead log has lost transactions that were durable.

Asked by `tree_file.py` before it opens a file that was not closed. SQLite takes the first frame that does not read for
the end of the log, as after a power cut in the middle of a write, and drops what follows without a word. But what
follows a whole later transaction was durable before that one was begun: then a bit has changed, and the file must not
be opened. So it is with the header, which is durable before any frame is written: a log of zeros, say.

    header  0  4  magic, whose last bit is the byte order of the checksums    frame   0  4  page number
            4 12  version, page size, checkpoints so far                              4  4  pages in all, if it commits
           16  8  salt                                                                8  8  salt
           24  8  checksum                                                           16  8  checksum, of all up to here
                                                                                     24     the page

Source: "The WAL File Format", sqlite.org.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from protocol.namedtuple import NamedTuple

_HEADER = Struct(">IIII8sII")
_FRAME = Struct(">II8sII")
_MAGIC = 0x377F0682
_MASK = 0xFFFFFFFF


class _Frame(NamedTuple):
    """commits: whether a transaction ends with it. salt: of its generation. is_whole: all up to here reads well."""

    commits: bool
    salt: bytes
    is_whole: bool


def has_lost_transactions(content: bytes) -> bool:
    """Whether there is a whole transaction behind a frame that does not read. content: of the -wal file."""
    if len(content) <= _HEADER.size:
        return False
    magic, _, page_size, _, salt, *sums = _HEADER.unpack_from(content)
    if magic | 1 != _MAGIC | 1 or _add(content[:24], (0, 0), magic) != tuple(sums):
        return True
    frames = list(_frames(content, magic, page_size, salt, (sums[0], sums[1])))
    torn = next((at for at, frame in enumerate(frames) if not frame.is_whole), len(frames))
    behind = [frame.commits for frame in frames[torn:] if frame.salt == salt]  # else of before the log was restarted
    return True in behind[:-1]  # the transaction that is torn ends, and another one has begun


def _frames(content: bytes, magic: int, page_size: int, salt: bytes, sums: tuple[int, int]) -> Iterator[_Frame]:
    """Every frame that is there in full. sums: of the header."""
    is_whole = True
    for start in range(_HEADER.size, len(content) - _FRAME.size - page_size + 1, _FRAME.size + page_size):
        _, commits, its_salt, first, second = _FRAME.unpack_from(content, start)
        if is_whole:
            page = start + _FRAME.size
            sums = _add(content[start : start + 8] + content[page : page + page_size], sums, magic)
            is_whole = its_salt == salt and sums == (first, second)
        yield _Frame(bool(commits), its_salt, is_whole)


def _add(data: bytes, sums: tuple[int, int], magic: int) -> tuple[int, int]:
    """SQLite's checksum, carried on. data: in multiples of eight bytes."""
    first, second = sums
    for even, odd in Struct(">II" if magic & 1 else "<II").iter_unpack(data):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
