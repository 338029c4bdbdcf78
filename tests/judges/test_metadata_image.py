"""Apache's classes agree with images of random histories, with snapshots both ways, and with how records are shown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import NoApacheError, jars
from kbroker.cli._decoders import decode_metadata_record
from kbroker.quorum.snapshots import SnapshotHead, image_values, snapshot_batches
from protocol.message import Message
from protocol.messages.metadata_records import (
    RegisterBrokerRecord,
    RegisterControllerRecord,
    decode_record,
    encode_record,
)
from protocol.messages.quorum import KRaftVersionFeature, QuorumListener, QuorumVoter, VotersRecord
from protocol.records import Record
from protocol.records.content import parse_set
from protocol.records.control_records import parse_quorum_record
from tests.judges.java import NEWEST
from tests.quorum.histories import History

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

HISTORIES, BATCHES = 60, 60
_SOURCE = Path(__file__).parent / "metadata" / "MetadataJudge.java"
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Asks the judge: what, and the rest by name; its answer."""
    try:
        lib = jars(NEWEST)
    except NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's jars are missing: {reason}")
        pytest.skip(f"no jars of Apache's here: {reason}")
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{lib}/*", str(_SOURCE)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def asked(what: str, **rest: Any) -> Any:
            stdin.write(json.dumps({"what": what, **rest}) + "\n")
            stdin.flush()
            answer = json.loads(stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer

        yield asked
        stdin.close()


def comparable(values: Sequence[bytes]) -> list[tuple[str, int, bytes]]:
    """Records of a snapshot in an order of their own: that of Apache's maps is by chance, within records, too."""
    found = []
    for record, version in map(decode_record, values):
        record = copy(record)
        if isinstance(record, RegisterBrokerRecord):
            record.log_dirs = sorted(record.log_dirs)
        if isinstance(record, RegisterBrokerRecord | RegisterControllerRecord):
            record.end_points = sorted(record.end_points, key=lambda each: each.name)
            record.features = sorted(record.features, key=lambda each: each.name)
        found.append((type(record).__name__, version, record.encode(version)))
    return sorted(found)


def hexes(values: Sequence[bytes]) -> list[str]:
    return [value.hex() for value in values]


@pytest.mark.parametrize(("level", "elr"), [(33, True), (33, False), (30, True), (29, True), (23, False), (21, False)])
def test_histories_make_the_image_that_apaches_brokers_make(ask: Ask, level: int, elr: bool) -> None:
    seen: set[str] = set()
    for seed in range(HISTORIES // 6):
        history = History(seed, level, elr=elr)
        batches = [history.encoded(history.first), *(history.encoded(history.batch()) for _ in range(BATCHES))]
        answer = ask("image", batches=[hexes(batch) for batch in batches if batch])
        theirs = comparable([bytes.fromhex(value) for value in answer["records"]])
        assert comparable(list(image_values(history.image))) == theirs, seed
        seen |= {type(decode_record(value)[0]).__name__ for batch in batches for value in batch}
    assert len(seen) >= 20  # of the 27 types


@pytest.fixture
def values() -> list[bytes]:
    """Records of a snapshot of some size."""
    history = History(5)
    for _ in range(400):
        history.batch()
    return list(image_values(history.image))


VOTERS = VotersRecord(
    version=0,
    voters=[
        QuorumVoter(
            voter_id=3000,
            voter_directory_id=b"d" * 16,
            endpoints=[QuorumListener(name="CONTROLLER", host="there", port=9093)],
            k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )
    ],
)


@pytest.mark.parametrize("voters", [None, VOTERS])
def test_apache_reads_the_snapshots_that_are_written_here(
    ask: Ask, values: list[bytes], voters: VotersRecord | None
) -> None:
    head = SnapshotHead(epoch=7, last_timestamp=99, kraft_version=voters is not None, voters=voters)
    data = b"".join(snapshot_batches(head, values * 20, 1_700_000_000_000))
    answer = ask("read", offset=1234, epoch=7, bytes=data.hex())
    named = ["SNAPSHOT_HEADER", *(["KRAFT_VERSION", "KRAFT_VOTERS"] if voters else []), "SNAPSHOT_FOOTER"]
    assert (answer["timestamp"], answer["controls"]) == (99, named)
    assert answer["records"] == hexes(values * 20)


@pytest.mark.parametrize("voters", [None, VOTERS])
def test_apaches_snapshots_are_read_here(ask: Ask, values: list[bytes], voters: VotersRecord | None) -> None:
    encoded = None if voters is None else voters.encode(0).hex()
    answer = ask("write", offset=1234, epoch=7, timestamp=99, records=hexes(values), voters=encoded)
    batches = parse_set(bytes.fromhex(answer["bytes"]))
    read = [record.value for header, records in batches if not header.is_control for record in records]
    assert read == values
    head = SnapshotHead(epoch=7, last_timestamp=99, kraft_version=voters is not None, voters=voters)
    ours = parse_set(b"".join(snapshot_batches(head, values, 0)))
    assert _control(batches) == _control(ours)
    assert [header.partition_leader_epoch for header, _ in batches] == [7] * len(batches)


def _control(batches: Sequence[tuple[Any, Sequence[Record]]]) -> list[tuple[int, Message | None]]:
    return [
        (record.offset, parse_quorum_record(record))
        for header, records in batches
        if header.is_control
        for record in records
    ]


def test_records_are_shown_as_apaches_tool_shows_them(ask: Ask) -> None:
    history = History(8)
    values = history.encoded([record for _ in range(300) for record in history.step()])
    for value, theirs in zip(values, ask("json", records=hexes(values))["shown"], strict=True):
        key, shown = decode_metadata_record(Record(0, 0, None, value))
        assert key is None
        assert json.loads(shown or "") == theirs
    assert values[0] == encode_record(*decode_record(values[0]))
