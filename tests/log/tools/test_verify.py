"""verify: a sound directory has nothing to report, and each kind of damage is named with its file and place."""

from __future__ import annotations

import errno
from struct import pack

import pytest

from kbroker.log.checkpoints import format_partition_metadata
from kbroker.log.tools.verify import Finding, Progress, verify
from kbroker.sim.disk import SimDisk
from protocol.records.batch import write_crc
from tests.log.directories import fill
from tests.log.flips import disk_of, image

FILES = image()
SEGMENTS = "/a/segments-0/00000000000000000000"
SECOND = "/a/segments-0/00000000000000000039"
TRANSACTIONS = "/a/transactions-0/00000000000000000000"


def findings(files: dict[str, bytes | None]) -> list[str]:
    """What verify says of the directory with these files replaced, or (None) removed; notes left out."""
    changed = {path: content for path, content in {**FILES, **files}.items() if content is not None}
    return [
        str(item) for item in verify(disk_of(changed), ["/a"]) if isinstance(item, Finding) and item.level != "note"
    ]


def notes(files: dict[str, bytes | None]) -> list[str]:
    changed = {path: content for path, content in {**FILES, **files}.items() if content is not None}
    return [
        str(item) for item in verify(disk_of(changed), ["/a"]) if isinstance(item, Finding) and item.level == "note"
    ]


def patched(path: str, at: int, content: bytes) -> dict[str, bytes | None]:
    """A file with some of its bytes replaced. at: from the end if negative."""
    data = bytearray(FILES[path])
    at = at if at >= 0 else len(data) + at
    data[at : at + len(content)] = content
    return {path: bytes(data)}


def test_a_sound_directory_has_nothing_to_report() -> None:
    disk = SimDisk()
    fill(disk, "/a")
    assert [item for item in verify(disk, ["/a"]) if isinstance(item, Finding)] == []


def test_nothing_is_ever_changed() -> None:
    disk = disk_of(FILES)
    disk.trace = []
    list(verify(disk, ["/a"]))
    assert {call for call, _ in disk.trace} <= {"open", "read", "size", "list", "stat", "close"}


def test_progress_ends_at_the_total() -> None:
    told = [item for item in verify(disk_of(FILES), ["/a"]) if isinstance(item, Progress)]
    assert told[0].bytes_done == 0
    assert 0 < told[-1].bytes_done <= told[-1].bytes_total


def test_a_partition_folder_may_be_given_alone() -> None:
    hurt = patched(SEGMENTS + ".log", 70, b"?")
    disk = disk_of({path: content for path, content in {**FILES, **hurt}.items() if content is not None})
    found = [str(item) for item in verify(disk, ["/a/segments-0"]) if isinstance(item, Finding)]
    assert found == [f"{SEGMENTS}.log: position 0: the checksum does not hold"]


def test_directories_that_disagree_are_named() -> None:
    other = {path.replace("/a/", "/b/"): content for path, content in FILES.items()}
    other["/b/meta.properties"] = b"broker.id=2\ncluster.id=some-cluster\nversion=0\n"
    found = [str(item) for item in verify(disk_of({**FILES, **other}), ["/a", "/b"]) if isinstance(item, Finding)]
    assert "/b/meta.properties: broker id 2 differs from 1 of /a/meta.properties" in found


def test_a_path_that_is_not_there_raises() -> None:
    with pytest.raises(FileNotFoundError):
        list(verify(disk_of(FILES), ["/nowhere"]))


LOG = FILES[SEGMENTS + ".log"]
BATCH = 12 + int.from_bytes(LOG[8:12], "big")


@pytest.mark.parametrize(
    ("files", "finding"),
    [
        (patched(SEGMENTS + ".log", 70, b"?"), ".log: position 0: the checksum does not hold"),
        (patched(SEGMENTS + ".log", 0, pack(">q", 1 << 40)), ".log: position 0: offset 1099511627778 belongs to"),
        (patched(SEGMENTS + ".log", BATCH, pack(">q", 0)), f".log: position {BATCH}: offset 0 where 3 is the least"),
        (patched(SEGMENTS + ".log", BATCH + 12, pack(">i", 9)), ": leader epoch 0 follows 9"),
        ({SEGMENTS + ".log": LOG + b"torn"}, f".log: position {len(LOG)}: 4 bytes at the end are no batch: 4 bytes"),
        (
            {SEGMENTS + ".log": LOG + bytes(99)},
            f".log: position {len(LOG)}: 99 bytes at the end are no batch: 99 bytes of z",
        ),
        ({SEGMENTS + ".log": LOG[:-1]}, "at the end are no batch: a batch of"),
        ({SEGMENTS + ".log": None}, ".index: belongs to a segment whose .log is missing"),
        ({SEGMENTS + ".index": None}, ".index: is missing: the next start rebuilds it"),
        ({SEGMENTS + ".timeindex": None}, ".timeindex: is missing"),
        ({SEGMENTS + ".index": FILES[SEGMENTS + ".index"] + b"x"}, "1 bytes that are no whole entry"),
        ({SEGMENTS + ".index": FILES[SEGMENTS + ".index"] + bytes(16)}, ": 2 entries of zeros"),
        (patched(SEGMENTS + ".index", 12, pack(">I", 1)), "position 1 follows"),
        (patched(SEGMENTS + ".index", 8, pack(">I", 0)), "offset 0 follows"),
        (patched(SEGMENTS + ".index", -4, pack(">I", 99999)), "lies behind the log's last batch"),
        (patched(SEGMENTS + ".index", 0, pack(">I", 1)), "entry 0: offset 1 lies"),
        (patched(SEGMENTS + ".timeindex", 0, pack(">q", 5)), "entry 0: timestamp 5, the batch of offset"),
        (patched(SEGMENTS + ".timeindex", -12, pack(">q", 5)), "timestamp 5 follows"),
        (patched(SEGMENTS + ".timeindex", -4, pack(">I", 900)), "offset 900 lies behind the log's last batch"),
        (patched(TRANSACTIONS + ".txnindex", 2, pack(">q", 99)), ".txnindex: entry of producer 99 and offset"),
        (patched(TRANSACTIONS + ".txnindex", 10, pack(">q", 1)), "begins at 1, the log has"),
        (patched(TRANSACTIONS + ".txnindex", 26, pack(">q", 1)), "stable up to 1, the log has"),
        (
            {TRANSACTIONS + ".txnindex": FILES[TRANSACTIONS + ".txnindex"][34:]},
            "nothing says that the transaction up to",
        ),
        (
            {TRANSACTIONS + ".txnindex": FILES[TRANSACTIONS + ".txnindex"] + b"xy"},
            "ends with 2 bytes that are no entry",
        ),
        (patched(TRANSACTIONS + ".txnindex", 0, b"\1"), ".txnindex: position 0: has version 256"),
        (patched(SECOND + ".snapshot", 20, b"?"), ".snapshot: checksum"),
        (patched(SECOND + ".snapshot", 0, b"\0\7"), ".snapshot: has version 7"),
        ({"/a/segments-0/00000000000000000099.snapshot": FILES[SECOND + ".snapshot"]}, "lies behind the log's end, 72"),
        ({"/a/segments-0/leader-epoch-checkpoint": b"0\n1\n0 0\n"}, "was written in epoch 1, the file says 0"),
        ({"/a/segments-0/leader-epoch-checkpoint": b"0\n1\n0 99\n"}, "epoch 0: 99 lies behind the log's end, 72"),
        ({"/a/segments-0/leader-epoch-checkpoint": b"0\n2\n0 0\n"}, "leader-epoch-checkpoint: line 2: promises 2"),
        ({"/a/segments-0/partition.metadata": b"version: 0\n"}, "partition.metadata: line 2: expected topic_id"),
        (
            {"/a/segments-0/partition.metadata": format_partition_metadata(bytes(range(16))).encode()},
            "/a/segments-0/partition.metadata: is not what the last clean stop wrote",
        ),
        ({"/a/meta.properties": None}, "meta.properties: is missing: nothing says whose directory this is"),
        ({"/a/meta.properties": b"version=9\n"}, "meta.properties: version: has version 9"),
        ({"/a/recovery-point-offset-checkpoint": b"1\n0\n"}, "checkpoint: line 1: has version 1"),
        ({"/a/recovery-point-offset-checkpoint": b"0\n0\n"}, "segments-0 is missing, after a clean stop"),
        (
            {"/a/recovery-point-offset-checkpoint": b"0\n1\nsegments 0 5\n"},
            "segments-0: 5, but after a clean stop it is 72",
        ),
        (
            {"/a/replication-offset-checkpoint": b"0\n1\nsegments 0 99\n"},
            "segments-0: 99 lies behind the log's end, 72",
        ),
        (
            {"/a/replication-offset-checkpoint": b"0\n1\nsegments 0 9\n"},
            "segments-0: 9 lies before the log's start, 13",
        ),
        ({"/a/replication-offset-checkpoint": b"\xff"}, "replication-offset-checkpoint: position 0: is not text"),
        ({"/a/.kafka_cleanshutdown": b"x"}, ".kafka_cleanshutdown: holds neither nothing nor a broker epoch"),
    ],
)
def test_damage_is_named_with_its_file_and_place(files: dict[str, bytes | None], finding: str) -> None:
    found = findings(files)
    assert any(finding in line for line in found), found
    assert all(line.startswith("/a/") and "\n" not in line for line in found)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"/a/.kafka_cleanshutdown": None}, "/a: was not stopped cleanly, or is in use"),
        ({"/a/notes.txt": b"1"}, "/a/notes.txt: is a foreign file"),
        ({"/a/lost+found/x": b"1"}, "/a/lost+found: is a foreign folder"),
        ({"/a/segments-0/x": b"1"}, "/a/segments-0/x: is a foreign file"),
        ({SEGMENTS + ".log.deleted": b"1"}, "is on its way out, or in"),
        ({"/a/t-0.abc-delete/x": b"1"}, "is marked for deletion"),
        ({"/a/meta.properties.tmp": b"1"}, "is left over from a replacement"),
    ],
)
def test_what_is_harmless_is_a_note(files: dict[str, bytes | None], text: str) -> None:
    assert any(text in line for line in notes(files))
    assert findings(files) == []


def test_in_a_directory_in_use_unfinished_things_are_no_faults() -> None:
    last = "/a/codec-none-0/00000000000000000000.index"
    unfinished: dict[str, bytes | None] = {
        "/a/.kafka_cleanshutdown": None,
        last: FILES[last] + bytes(800),
        "/a/codec-none-0/leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "/a/recovery-point-offset-checkpoint": b"0\n0\n",
    }
    assert findings(unfinished) == []


def test_what_a_broker_appends_meanwhile_is_not_looked_at() -> None:
    path = SECOND + ".log"
    files = {**FILES}
    del files["/a/.kafka_cleanshutdown"]
    disk = disk_of(files)

    def append(call: str, where: str) -> None:
        if (call, where) == ("read", path):
            disk.slow = None
            disk.open(path, "write").write([LOG[:BATCH]], len(files[path]))

    disk.slow = append
    found = [item for item in verify(disk, ["/a"]) if isinstance(item, Finding) and item.level != "note"]
    assert disk.slow is None
    assert found == []


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("open", "/a/meta.properties"),
        ("open", SEGMENTS + ".log"),
        ("read", SEGMENTS + ".log"),
        ("open", SEGMENTS + ".index"),
        ("read", SECOND + ".snapshot"),
        ("open", "/a/segments-0/leader-epoch-checkpoint"),
        ("open", "/a/segments-0/partition.metadata"),
        ("open", "/a/recovery-point-offset-checkpoint"),
        ("list", "/a/segments-0"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_looked_at(call: str, path: str) -> None:
    disk = disk_of(FILES)
    disk.fail(call, path, errno.EACCES, times=100)
    found = [item for item in verify(disk, ["/a"]) if isinstance(item, Finding)]
    assert path in {item.path for item in found if item.level == "unreadable"}


def test_shallow_looks_at_no_record() -> None:
    head, body = LOG[:BATCH], bytearray(LOG[:BATCH])
    body[61] ^= 1  # the first record's size
    write_crc(body, 0, BATCH)
    files: dict[str, bytes] = {**FILES, SEGMENTS + ".log": bytes(body) + LOG[len(head) :]}
    counts = [
        sum(isinstance(item, Finding) for item in verify(disk_of(files), ["/a"], deep=deep)) for deep in (False, True)
    ]
    assert counts == [0, 1]
