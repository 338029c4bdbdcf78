"""What is no file in the place of a file of ours, on a real disk: a start says so, and goes on where it can."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.tools.verify import Finding, verify
from kbroker.runtime.files import SystemDisk
from protocol.errors import KafkaError
from tests.log.directories import SMALL, TOPIC_ID, fill, open_directory
from tests.log.worlds import NOW, all_offsets


def folder(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere" / "at all")


def endless_link(path: Path) -> None:
    path.symlink_to(path)


def a_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


KINDS = [folder, fifo, dangling_link, endless_link, a_socket]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with one of everything, stopped cleanly."""
    folder = tmp_path_factory.mktemp("filled") / "a"
    fill(SystemDisk(), str(folder))
    return folder


@pytest.fixture(scope="module")
def expected(filled: Path) -> list[int]:
    """The offsets of its log, as a start with nothing odd serves them."""
    return start(filled)[0]


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, with the same times."""
    return shutil.copytree(filled, tmp_path / "a", symlinks=True)


def start(home: Path) -> tuple[list[int], list[str]]:
    """The offsets of a log, and what the start had to say."""
    lines: list[str] = []
    manager = open_directory(SystemDisk(), str(home), tell=lambda fact: lines.append(getattr(fact, "text", "")))
    try:
        log = manager.get("segments", 0)
        assert log is not None
        return all_offsets(log), lines
    finally:
        manager.close(broker_epoch=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "cleaner-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "log-start-offset-checkpoint.tmp",
        "recovery-point-offset-checkpoint.pending",
        ".kafka_cleanshutdown",
        "segments-0/00000000000000000000.index",
        "segments-0/00000000000000000000.timeindex",
        "segments-0/00000000000000000000.txnindex",
        "segments-0/00000000000000000000.snapshot",
        "segments-0/00000000000000000072.snapshot",
        "segments-0/00000000000000000000.log.deleted",
        "segments-0/leader-epoch-checkpoint",
        "segments-0/leader-epoch-checkpoint.tmp",
        "segments-0/partition.metadata",
        "segments-0/partition.metadata.pending",
        "segments-0/replaces-other-copy",
        "segments-0/replaces-other-copy.tmp",
    ],
)
def test_what_is_no_file_is_set_aside(expected: list[int], home: Path, name: str, kind: Callable[[Path], None]) -> None:
    path = home / name
    path.unlink(missing_ok=True)
    kind(path)
    offsets, lines = start(home)
    said = f"{path}: is none of this broker's: set aside as {path.name}.foreign"
    assert (set(expected) <= set(offsets), said in lines) == (True, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["notes", "segments-0/notes", "other-0"])
def test_odd_things_of_other_names_are_left_alone(home: Path, name: str, kind: Callable[[Path], None]) -> None:
    kind(home / name)
    start(home)
    assert os.path.lexists(home / name)


@pytest.mark.parametrize("kind", [fifo, dangling_link, endless_link, a_socket])
def test_a_partition_whose_folder_may_come_back_is_not_begun_empty(home: Path, kind: Callable[[Path], None]) -> None:
    shutil.rmtree(home / "segments-0")
    kind(home / "segments-0")
    manager = open_directory(SystemDisk(), str(home))
    with pytest.raises(KafkaError, match=rf"KAFKA_STORAGE_ERROR.*{home}/segments-0: is no folder"):
        manager.get_or_create("segments", 0, TOPIC_ID, SMALL, is_new=False, wall_ms=NOW)
    assert os.path.lexists(home / "segments-0")
    log = manager.get_or_create("segments", 0, TOPIC_ID, SMALL, is_new=True, wall_ms=NOW)
    assert (log.log_end_offset, os.path.lexists(home / "segments-0.foreign")) == (0, True)
    manager.close(broker_epoch=8)


@pytest.mark.parametrize("kind", KINDS)
def test_who_a_directory_belongs_to_is_not_guessed(home: Path, kind: Callable[[Path], None]) -> None:
    (home / "meta.properties").unlink()
    kind(home / "meta.properties")
    with pytest.raises(DirectoryRefusedError, match=r"meta\.properties"):
        start(home)


@pytest.mark.parametrize("kind", [folder, a_socket, endless_link])
def test_a_lock_that_is_no_file_is_named(home: Path, kind: Callable[[Path], None]) -> None:
    (home / ".lock").unlink()
    kind(home / ".lock")
    with pytest.raises(DirectoryRefusedError, match=r"/\.lock: "):
        start(home)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "cleaner-offset-checkpoint",
        ".lock",
        "metadata.db",
        "segments-0/00000000000000000000.log",
        "segments-0/00000000000000000000.index",
        "segments-0/leader-epoch-checkpoint",
    ],
)
def test_verification_names_them(home: Path, name: str, kind: Callable[[Path], None]) -> None:
    path = home / name
    path.unlink(missing_ok=True)
    kind(path)
    assert str(path) in {each.path for each in faults(home)}


def test_verification_sees_that_a_partition_s_folder_leads_nowhere(home: Path) -> None:
    (home / "other-0").symlink_to(home / "nowhere")
    assert [each.path for each in faults(home)] == [f"{home}/other-0"]


def faults(home: Path) -> list[Finding]:
    return [each for each in verify(SystemDisk(), [str(home)]) if isinstance(each, Finding) and each.level == "fault"]
