"""The transaction index of a segment (.txnindex): what read_committed consumers are told to skip.

Owns the `.txnindex` file, which exists only where a transaction was aborted. Called by the segment. One entry for each
transaction whose abort marker lies in the segment, in the order of the markers:

    0  2  version, 0
    2  8  producer_id
   10  8  first_offset        of the transaction
   18  8  last_offset         of the marker
   26  8  last_stable_offset  right after the marker: no entry behind this one matters to reads below it

Source: KIP-98; Kafka documentation, implementation, "Log".
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.folder import Folder
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c

if TYPE_CHECKING:
    from kbroker.ports import File

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_NEXT_VERSIONS = 15  # no broker will ever come so far; of random bytes one in 4,000 is a version up to this


class AbortedTransaction(NamedTuple):
    """A transaction whose records are in the log and must not be handed out."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_aborted(content: bytes) -> list[AbortedTransaction]:
    """The entries of a `.txnindex` file; a torn last one is left out.

    Raises NewerFormatError, CorruptFileError (naming the position).
    """
    entries = []
    for position in range(0, len(content) - _ENTRY.size + 1, _ENTRY.size):
        version, *fields = _ENTRY.unpack_from(content, position)
        entry = AbortedTransaction(*fields)
        makes_sense = 0 <= entry.first_offset <= entry.last_offset
        if _VERSION < version <= _NEXT_VERSIONS and not makes_sense:  # else it is noise, or has a changed bit
            raise NewerFormatError(f"has version {version}, this program knows 0", where=f"position {position}")
        if version != _VERSION:
            raise CorruptFileError(f"has version {version}", where=f"position {position}")
        if not makes_sense:
            raise CorruptFileError(f"no aborted transaction: {entry}", where=f"position {position}")
        entries.append(entry)
    return entries


def format_aborted(entries: Sequence[AbortedTransaction]) -> bytes:
    """The content of a `.txnindex` file."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


class AbortedIndex:
    """The `.txnindex` of one segment, read on first use and kept."""

    __slots__ = ("_base_offset", "_checksum", "_entries", "_file", "_folder")

    def __init__(self, folder: Folder, base_offset: int) -> None:
        self._folder = folder
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] | None = None
        self._checksum: int | None = None  # of the entries in the file, None if it was not read yet
        self._file: File | None = None  # open for what is about to be added

    def entries(self) -> list[AbortedTransaction]:
        """All of them, in the order of their markers. Raises CorruptFileError."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def checksum(self) -> int:
        """CRC-32C of all of them, 0 if there is none; of a file that does not make sense: raises as `entries`."""
        if self._checksum is None:
            self._read()
        assert self._checksum is not None
        return self._checksum

    def _read(self) -> list[AbortedTransaction]:
        try:
            file = self._folder.open(self._base_offset, "txnindex", "read")
        except FileNotFoundError:
            self._checksum = 0
            return []
        try:
            content = file.read(0, file.size())
            entries = parse_aborted(content)
            self._checksum = crc32c(memoryview(content)[: len(entries) * _ENTRY.size])
            return entries
        except CorruptFileError as error:
            raise error.at(self._folder.file_path(self._base_offset, "txnindex")) from None
        finally:
            file.close()

    def open(self) -> None:
        """Have at hand what `append` needs: before the marker is written, for after that there is no way back."""
        self.entries()
        if self._file is None:
            self._file = self._folder.open(self._base_offset, "txnindex", "create")

    def append(self, entry: AbortedTransaction) -> None:
        """Add the transaction that a marker just appended has aborted. Who has called `open` calls `close` as well."""
        was_open = self._file is not None
        self.open()
        entries, file = self.entries(), self._file
        assert not entries or entry.last_offset > entries[-1].last_offset, (entry, entries[-1])
        assert file is not None, entry
        try:
            content = _ENTRY.pack(_VERSION, *entry)
            file.write([content], len(entries) * _ENTRY.size)
            entries.append(entry)
            self._checksum = crc32c(content, self.checksum())
        finally:
            if not was_open:
                self.close()

    def close(self) -> None:
        """Give the descriptor back; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def collect(self, start_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add those that overlap [start_offset, end_offset) to `found`; whether no later segment can have more."""
        for entry in self.entries():
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False

    def keep_below(self, offset: int) -> None:
        """Forget the transactions whose marker is at or after `offset`."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) == len(entries):
            return
        self._resize(kept)

    def clear(self) -> None:
        """Forget all of them, whatever the file holds."""
        self._resize([])

    def _resize(self, kept: list[AbortedTransaction]) -> None:
        file = self._folder.open(self._base_offset, "txnindex", "create")
        try:
            file.resize(len(kept) * _ENTRY.size)
        finally:
            file.close()
        self._entries, self._checksum = kept, crc32c(format_aborted(kept))
