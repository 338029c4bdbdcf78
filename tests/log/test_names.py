"""Names of folders and files, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.names import (
    MAX_OFFSET,
    FolderState,
    PartitionFolder,
    SegmentFile,
    TopicPartition,
    folder_name,
    folder_name_in_state,
    is_known_file,
    is_topic_name,
    parse_folder_name,
    parse_segment_file_name,
    segment_file_name,
    topic_name_fault,
)

UNIQUE = "0123456789abcdef0123456789abcdef"
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(is_topic_name)
partitions = st.integers(0, 2**31 - 1)


@given(topics, partitions)
def test_folder_of_a_partition_in_use_reads_back(topic: str, partition: int) -> None:
    if topic.endswith(("-delete", "-future", "-stray")):
        return
    folder = parse_folder_name(folder_name((topic, partition)))
    assert folder == PartitionFolder(TopicPartition(topic, partition), "live", "")


@given(topics, partitions, st.sampled_from(["delete", "stray"]))
def test_renamed_folder_fits_and_keeps_the_partition(topic: str, partition: int, state: FolderState) -> None:
    name = folder_name_in_state((topic, partition), state, UNIQUE)
    folder = parse_folder_name(name)
    assert len(name) <= 255
    assert folder is not None
    assert (folder.topic_partition.partition, folder.state, folder.unique) == (partition, state, UNIQUE)
    assert topic.startswith(folder.topic_partition.topic)


def test_longest_topic_is_cut_to_fit_255() -> None:
    name = folder_name_in_state(("t" * 249, 7), "delete", UNIQUE)
    assert len(name) == 255
    assert name.endswith(f"-7.{UNIQUE}-delete")


def test_future_folder_keeps_the_whole_topic() -> None:
    assert folder_name_in_state(("t" * 249, 7), "future", UNIQUE) == "t" * 249 + f"-7.{UNIQUE}-future"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "lost+found",
        "topic",
        "-0",
        "topic-",
        "topic-x",
        "topic-01",
        "topic--1x",
        "topic-2147483648",
        "topic-99999999999",
        "tøpic-0",
        "topic-0-delete",
        "topic-0.abc",
        "topic-0.-delete",
        "a b-0",
        "topic-٣",
    ],
)
def test_foreign_folder_is_told_apart(name: str) -> None:
    assert parse_folder_name(name) is None


def test_topic_with_dashes_and_dots_keeps_them() -> None:
    assert parse_folder_name("a-1.b-2-3") == PartitionFolder(TopicPartition("a-1.b-2", 3), "live", "")


@pytest.mark.parametrize(
    ("name", "fault"),
    [("", "the empty string"), ("x" * 250, "longer than"), ("..", "'..' is not allowed"), ("a/b", "'a/b' contains")],
)
def test_bad_topic_name_is_explained(name: str, fault: str) -> None:
    assert fault in (topic_name_fault(name) or "")


def test_good_topic_name_has_no_fault() -> None:
    assert topic_name_fault("x" * 249) is None


@given(
    st.integers(0, MAX_OFFSET),
    st.sampled_from(["log", "index", "timeindex", "txnindex", "snapshot"]),
    st.sampled_from(["live", "deleted", "swap", "cleaned"]),
)
def test_segment_file_name_reads_back(base_offset: int, part: str, state: str) -> None:
    file = SegmentFile(base_offset, part, state)  # type: ignore[arg-type]
    assert parse_segment_file_name(segment_file_name(*file)) == file


@pytest.mark.parametrize(
    "name",
    [
        "partition.metadata",
        "0.log",
        "00000000000000000000.tmp",
        "000000000000000000000.log",
        "00000000000000000000.log.old",
        "99999999999999999999.log",
        "00000000000000000000-0000000000.checkpoint",
        "0000000000000000000٣.log",
        "-0000000000000000000.log",
        "0000000000000000_000.log",
        ".log",
    ],
)
def test_other_file_is_no_segment(name: str) -> None:
    assert parse_segment_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "ours"), [("metadata.db.old", True), ("metadata.db.old-12", True), ("notes.old", False)]
)
def test_metadata_that_a_rebuild_set_aside_is_no_foreign_file(name: str, ours: bool) -> None:
    assert is_known_file(name) is ours


def test_the_folders_of_a_topic_share_one_string() -> None:
    found = [parse_folder_name(name) for name in ("some.topic-0", "some.topic-1")]
    first, second = [folder.topic_partition.topic for folder in found if folder is not None]
    assert first is second
