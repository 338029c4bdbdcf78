"""Flipping single bits of a log directory at rest, and what must come of each: detected, repaired or harmless.

Used by test_flips (some) and by scripts/fuzz (many). For every flip:

1. `verify-log` says what is wrong, or what is served after a start is exactly what was written.
2. A start after a clean stop, and after a crash, either works or is refused in one line; reading on never ends in
   anything but an error that names its place.
3. After a crash before anything was flushed every batch that is served is one that was written: what was hurt is cut
   away with what follows it. Its offset and leader epoch are held by their neighbours only, since no checksum covers
   them. (After a clean stop nothing is scanned: what verify-log would find, a reader's own check of the checksum finds,
   as with Apache's broker.)
4. An old client, for whom records are converted, is sent only records that were written, or an error.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import NamedTuple

from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.down_convert import DownConvertJob, Piece
from kbroker.log.errors import CorruptFileError
from kbroker.log.log import Log
from kbroker.log.names import CLEAN_SHUTDOWN, RECOVERY_POINTS
from kbroker.log.scan import header_at
from kbroker.log.tools.verify import Finding, verify
from kbroker.log.tools.walk import batches
from kbroker.sim.disk import SimDisk
from protocol.errors import KafkaError
from protocol.records import legacy
from protocol.records.batch import BASE_OFFSET, LENGTH, LENGTH_OVERHEAD, last_offset_of
from tests.log.directories import fill, open_directory

PATH = "/a"
Image = dict[str, bytes]
Known = tuple[bytes | None, bytes | None, int]
Served = dict[str, "State"]


class State(NamedTuple):
    """What can be seen of a partition: batches, aborted transactions, leader epochs, producers' last sequences.

    epochs: where each one ends, and of which one each batch is; where the first begins is nobody's to see, since the
    first batches of a compacted log may be gone.
    """

    batches: list[bytes]
    aborted: list[object]
    epochs: list[tuple[int, int]]
    producers: bytes


class Flip(NamedTuple):
    """One bit of one file."""

    path: str
    bit: int

    @property
    def kind(self) -> str:
        """What kind of file it is."""
        name = self.path.rpartition("/")[2]
        return "." + name.rpartition(".")[2] if name[:1].isdigit() else name


class BrokenPromiseError(AssertionError):
    """A flip after which one of the promises does not hold."""


def image() -> Image:
    """The files of a directory that was stopped cleanly."""
    disk = SimDisk()
    fill(disk, PATH, compacted=True)
    return {path: content_of(disk, path) for path in disk.paths()}


def content_of(disk: SimDisk, path: str) -> bytes:
    """All of a file."""
    file = disk.open(path, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def disk_of(files: Image) -> SimDisk:
    """A disk with these files."""
    disk = SimDisk()
    for path, content in files.items():
        folder = path.rpartition("/")[0]
        for end in [at for at, character in enumerate(path) if character == "/"][1:]:
            if disk.stat(path[:end]) is None:
                disk.make_dir(path[:end])
        file = disk.open(path, "create")
        file.write([content], 0)
        file.sync()
        file.close()
        disk.sync_dir(folder)
    disk.sync_dir("/")
    disk.sync_dir(PATH)
    return disk


def random_flip(files: Image, rng: random.Random) -> Flip:
    """A bit somewhere: every kind of file as likely as any other, so that the small ones get their share."""
    by_kind: dict[str, list[str]] = {}
    for path, content in files.items():
        if content:
            by_kind.setdefault(Flip(path, 0).kind, []).append(path)
    path = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    return Flip(path, rng.randrange(8 * len(files[path])))


class Campaign:
    """Flips on one directory; what became of them is counted in `outcomes` by kind of file."""

    def __init__(self) -> None:
        self.files = image()
        self.written = self._written()
        self.stored: dict[str, set[bytes]] = {}
        self.records: dict[str, set[Known]] = {}
        self._note_stored()
        self.outcomes: dict[str, Counter[str]] = {}

    def _written(self) -> Served:
        """Every batch of every partition, by topic."""
        manager = open_directory(disk_of(self.files), PATH)
        return {partition.topic: state_of(log) for partition, log in manager.logs()}

    def _note_stored(self) -> None:
        """Every batch, and every record, in the files, those before the log's start too, by topic."""
        disk = disk_of(self.files)
        for path, content in self.files.items():
            if not path.endswith(".log"):
                continue
            topic = path.split("/")[-2].rpartition("-")[0]
            for batch in batches(disk.open(path, "read"), 0, len(content)):
                self.stored.setdefault(topic, set()).add(_checksummed(bytes(batch.data)))
                self.records.setdefault(topic, set()).update(
                    (each.key, each.value, each.timestamp) for each in batch.records()
                )

    def check(self, flip: Flip) -> str:
        """What became of a flip. Raises BrokenPromiseError."""
        files = dict(self.files)
        content = bytearray(files[flip.path])
        content[flip.bit // 8] ^= 1 << flip.bit % 8
        files[flip.path] = bytes(content)
        detected = self._verify(flip, files)
        clean = self._start(flip, files)
        gone = CLEAN_SHUTDOWN if flip.path.endswith(RECOVERY_POINTS) else (CLEAN_SHUTDOWN, RECOVERY_POINTS)
        crashed = {path: content for path, content in files.items() if not path.endswith(gone)}
        self._check_recovered(flip, self._start(flip, crashed))
        if not detected and clean is not None and clean != self.written:
            raise BrokenPromiseError(f"{flip}: verify-log finds nothing, and something else is served")
        outcome = "detected" if detected else "harmless"
        if clean is None:
            outcome += ", refused"
        elif clean == self.written:
            outcome += ", served right"
        self.outcomes.setdefault(flip.kind, Counter())[outcome] += 1
        return outcome

    def _verify(self, flip: Flip, files: Image) -> bool:
        found = [item for item in verify(disk_of(files), [PATH]) if isinstance(item, Finding)]
        for item in found:
            if "\n" in str(item):
                raise BrokenPromiseError(f"{flip}: a finding of several lines: {item}")
        return any(item.level != "note" for item in found)

    def _start(self, flip: Flip, files: Image) -> Served | None:
        """What is served after a start; None if it was refused."""
        try:
            manager = open_directory(disk_of(files), PATH)
        except DirectoryRefusedError as refused:
            if "\n" in str(refused) or PATH not in str(refused):
                raise BrokenPromiseError(f"{flip}: refused with {refused}") from None
            return None
        for partition, log in manager.logs():
            self._check_converted(flip, partition.topic, log)
        return {partition.topic: self._read(flip, log) for partition, log in manager.logs()}

    def _check_converted(self, flip: Flip, topic: str, log: Log) -> None:
        """What clients of 0.8 and 0.10 are sent of each segment that can be read."""
        for segment in log.segments:
            try:
                region = log.read(max(segment.base_offset, log.log_start_offset), 1 << 30, log.log_end_offset).region
            except (CorruptFileError, KafkaError):
                continue
            for magic in (0, 1) if region is not None else ():
                assert region is not None
                piece = Piece(region, segment.base_offset)
                DownConvertJob(magic, [piece]).run()
                if "\n" in str(piece.error):
                    raise BrokenPromiseError(f"{flip}: {piece.error}")
                for each in _records_in(piece):
                    known = self.records.get(topic, set())
                    if each not in known and not (magic == 0 and each[:2] in {one[:2] for one in known}):
                        raise BrokenPromiseError(f"{flip}: {topic}: an old client is sent {each}, which nobody wrote")

    def _read(self, flip: Flip, log: Log) -> State:
        try:
            return state_of(log)
        except (CorruptFileError, KafkaError) as error:
            if "\n" in str(error):
                raise BrokenPromiseError(f"{flip}: {error}") from None
            return State([], [], [], b"")

    def _check_recovered(self, flip: Flip, served: Served | None) -> None:
        """After a crash: only batches that were written, each whole and where it was."""
        for topic, state in (served or {}).items():
            strange = [batch for batch in state.batches if _checksummed(batch) not in self.stored[topic]]
            if strange:
                found = header_at(strange[0], 0)
                raise BrokenPromiseError(f"{flip}: {topic} serves after recovery what was never written: {found!r}")


def _checksummed(batch: bytes) -> bytes:
    """What of a batch, or an old message, its checksum covers, and the checksum."""
    return batch[17:] if batch[legacy.MAGIC_AT] > 1 else batch[legacy.CRC_AT :]


def _records_in(piece: Piece) -> list[Known]:
    """Key, value and timestamp of what an old client is sent."""
    data = b"".join(map(bytes, piece.records))
    return [
        (each.key, each.value, each.timestamp)
        for message in legacy.scan(data)
        for each in legacy.parse_message(data, message)
    ]


def state_of(log: Log) -> State:
    """All that a consumer, a follower and a producer can see."""
    log.producers.end_offset = log.log_end_offset
    aborted: list[object] = []
    found = read_all(log, aborted)
    ends = [log.epochs.end_offset_for(epoch, log.log_end_offset) for epoch, _ in log.epochs.entries()]
    headers = [header for batch in found if (header := header_at(batch, 0)) is not None]
    of_batches = [(header[BASE_OFFSET], log.epochs.epoch_at(header[BASE_OFFSET])) for header in headers]
    return State(found, aborted, [*ends, *of_batches], log.producers.snapshot())


def read_all(log: Log, aborted: list[object]) -> list[bytes]:
    """Every batch from the log's start to its end, as a consumer reads them; stops where nothing more comes."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        fetched = log.read(offset, 1 << 30, log.log_end_offset, with_aborted=True)
        data = b"" if fetched.region is None else fetched.region.read()
        aborted.append(fetched.aborted)
        before = offset
        at = 0
        while (header := header_at(data, at)) is not None:
            end = at + LENGTH_OVERHEAD + header[LENGTH]
            if end > len(data):
                break
            found.append(data[at:end])
            offset = max(offset, last_offset_of(header) + 1)
            at = end
        if offset == before:
            break
    return found


def run(count: int, seed: int) -> Campaign:
    """So many flips. Raises BrokenPromiseError at the first that breaks a promise."""
    rng = random.Random(seed)
    campaign = Campaign()
    for _ in range(count):
        campaign.check(random_flip(campaign.files, rng))
    return campaign


def main() -> None:
    """python -m tests.log.flips [--cases N] [--seed S]: called by `scripts/fuzz flips`."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz flips", description="Flip single bits of a log directory.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    campaign = run(arguments.cases, arguments.seed)
    for kind, outcomes in sorted(campaign.outcomes.items()):
        print(f"{kind}: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.most_common())}")


if __name__ == "__main__":
    main()
