"""The small text files: what Apache Kafka writes reads back, and every fault is one line that names its place."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.checkpoints import (
    CleanShutdown,
    EpochStart,
    PartitionMetadata,
    format_clean_shutdown,
    format_leader_epochs,
    format_offsets,
    format_partition_metadata,
    format_uuid,
    parse_clean_shutdown,
    parse_leader_epochs,
    parse_offsets,
    parse_partition_metadata,
    parse_uuid,
    read_text,
    replace_file,
)
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.names import MAX_OFFSET, TopicPartition
from kbroker.sim.disk import PowerLoss, SimDisk
from tests.log.worlds import new_disk

TOPIC_ID = bytes(range(16))
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True)
uuids = st.binary(min_size=16, max_size=16).filter(any)
parsers = [parse_offsets, parse_leader_epochs, parse_partition_metadata]


@given(st.dictionaries(st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, MAX_OFFSET)))
def test_offsets_read_back(offsets: dict[tuple[str, int], int]) -> None:
    assert parse_offsets(format_offsets(offsets)) == offsets


def test_offsets_are_written_as_kafka_writes_them() -> None:
    assert format_offsets({("a", 0): 5, ("b.c", 12): 0}) == "0\n2\na 0 5\nb.c 12 0\n"


def test_offsets_of_a_file_never_written_are_empty() -> None:
    assert parse_offsets("") == {}
    assert parse_offsets("0\n") == {}


def test_blanks_between_and_behind_are_taken_as_kafka_takes_them() -> None:
    assert parse_offsets("0\r\n1\r\nt  0\t7 \r\n") == {TopicPartition("t", 0): 7}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x\n0\n", "line 1: expected a number, found 'x'"),
        ("-1\n0\n", "line 1: has version -1"),
        ("0\nmany\n", "line 2: expected a number"),
        ("0\n2\na 0 5\n", "line 2: promises 2 entries and holds 1"),
        ("0\n1\na 0 5\nb 0 5\n", "line 2: promises 1 entries and holds 2"),
        ("0\n1\na 0\n", "line 3: expected topic, partition and offset, found 'a 0'"),
        ("0\n1\na 0 -5\n", "line 3: expected topic"),
        ("0\n1\na 0 ٣\n", "line 3: expected topic"),
        ("0\n1\na 0 9223372036854775808\n", "line 3: a number is out of range"),
        ("0\n1\na 4294967296 1\n", "line 3: a number is out of range"),
        ("0\n2\na 0 5\na 0 6\n", "1 partitions appear more than once"),
        ("0\n1\n" + "a" * 1000 + "\n", "line 3: expected topic, partition and offset, found 'aaaaa"),
    ],
)
def test_broken_offsets_name_their_line(text: str, fault: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse_offsets(text)
    assert str(caught.value).startswith(fault)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("parse", [parse_offsets, parse_leader_epochs])
def test_newer_version_is_told_from_corruption(parse: object) -> None:
    with pytest.raises(NewerFormatError, match="version 1, this program knows version 0"):
        parse("1\n0\n")  # type: ignore[operator]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, MAX_OFFSET)),
        unique_by=(lambda e: e[0], lambda e: e[1]),
    )
)
def test_leader_epochs_read_back(entries: list[tuple[int, int]]) -> None:
    epochs = list(zip(sorted(e[0] for e in entries), sorted(e[1] for e in entries), strict=True))
    assert parse_leader_epochs(format_leader_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0\n2\n3 0\n3 9\n", "line 4: epoch 3 from offset 9 follows epoch 3 from offset 0"),
        ("0\n2\n3 9\n4 9\n", "line 4: epoch 4 from offset 9 follows"),
        ("0\n1\n3\n", "line 3: expected an epoch and its start offset"),
        ("0\n1\n-3 0\n", "line 3: expected an epoch"),
        ("0\n1\n2147483648 0\n", "line 3: a number is out of range"),
    ],
)
def test_broken_leader_epochs_name_their_line(text: str, fault: str) -> None:
    with pytest.raises(CorruptFileError, match=fault):
        parse_leader_epochs(text)


def test_leader_epochs_are_values() -> None:
    assert parse_leader_epochs("0\n1\n2 40\n") == [EpochStart(epoch=2, start_offset=40)]


@given(uuids)
def test_uuid_reads_back_with_and_without_padding(value: bytes) -> None:
    text = format_uuid(value)
    assert len(text) == 22
    assert parse_uuid(text) == parse_uuid(text + "==") == value


@pytest.mark.parametrize("text", ["", "abc", "A" * 21, "A" * 23, "+" * 22, "A" * 25, "é" * 22])
def test_other_text_is_no_uuid(text: str) -> None:
    assert parse_uuid(text) is None


@given(uuids)
def test_partition_metadata_reads_back(topic_id: bytes) -> None:
    assert parse_partition_metadata(format_partition_metadata(topic_id)) == PartitionMetadata(0, topic_id)


def test_newer_partition_metadata_is_taken_as_kafka_takes_it() -> None:
    text = f"version: 1\ntopic_id: {format_uuid(TOPIC_ID)}\nmore: things\n"
    assert parse_partition_metadata(text) == PartitionMetadata(1, TOPIC_ID)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: expected version, found the end of the file"),
        ("version: 0\n", "line 2: expected topic_id, found the end of the file"),
        ("version: x\ntopic_id: AAAA\n", "line 1: expected a version, found 'x'"),
        ("topic_id: 0\nversion: 0\n", "line 1: expected version, found 'topic_id: 0'"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", "line 2: expected a topic id"),
        ("version: 0\ntopic_id: nonsense\n", "line 2: expected a topic id"),
    ],
)
def test_broken_partition_metadata_names_its_line(text: str, fault: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parse_partition_metadata(text)
    assert str(caught.value).startswith(fault)


@given(st.text())
def test_any_text_is_a_value_or_a_named_fault(text: str) -> None:
    faults = []
    for parse in parsers:
        try:
            parse(text)
        except CorruptFileError as error:
            faults.append(str(error))
    assert not any("\n" in fault for fault in faults)


def test_marker_is_written_as_kafka_writes_it() -> None:
    assert format_clean_shutdown(12) == '{"version":0,"brokerEpoch":12}'


def test_marker_keeps_checksums() -> None:
    text = format_clean_shutdown(-1, {"meta.properties": 7})
    assert parse_clean_shutdown(text) == CleanShutdown(-1, {"meta.properties": 7}, {})


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"brokerEpoch":null}', '{"brokerEpoch":true}', "[" * 100_000])
def test_marker_that_says_nothing_is_still_a_marker(text: str) -> None:
    assert parse_clean_shutdown(text) == CleanShutdown(None, {}, {})


# ---- on the disk


def test_a_crash_while_a_file_is_replaced_leaves_the_old_or_the_new() -> None:
    seen = set()
    for seed in range(3):
        for call in range(1, 8):
            disk = new_disk(seed * 100 + call)
            replace_file(disk, "/logs", "f", b"old")
            disk.calls, disk.crash_at = 0, call
            with suppress(PowerLoss):
                replace_file(disk, "/logs", "f", b"new and longer")
            disk.restart()
            seen.add(read_text(disk, "/logs", "f"))
    assert seen == {"old", "new and longer"}


def test_a_file_that_is_not_there_reads_as_none() -> None:
    assert read_text(SimDisk(), "/logs", "f") is None


def test_a_file_that_is_no_text_names_its_place() -> None:
    disk = new_disk()
    replace_file(disk, "/logs", "f", b"ab\xff")
    with pytest.raises(CorruptFileError, match=r"/logs/f: position 2: is not text"):
        read_text(disk, "/logs", "f")


def test_a_failed_replacement_leaves_the_old_file() -> None:
    disk = new_disk()
    replace_file(disk, "/logs", "f", b"old")
    disk.fail("sync", "f.tmp", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        replace_file(disk, "/logs", "f", b"new")
    assert read_text(disk, "/logs", "f") == "old"


@pytest.mark.parametrize("size", [0, 4095, 4096, 4097, 10_000])
def test_a_text_of_any_length_is_read_whole(size: int) -> None:
    disk, text = new_disk(1), "".join(str(each % 10) for each in range(size))
    replace_file(disk, "/logs", "f", text.encode())
    assert read_text(disk, "/logs", "f") == text
