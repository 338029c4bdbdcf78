"""Metadata that is gone, damaged or another broker's: refused in one line, found missing, and rebuilt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.metadata.store import config_path, encode_config
from kbroker.metadata.tree import NO_SESSION
from kbroker.ports import Create
from kbroker.runtime.check_metadata import check
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.rebuild import Rebuilt, rebuild
from kbroker.runtime.store_file import StoreMissingError, find_store
from kbroker.runtime.tree_file import DamagedError, TreeFile, whole_nodes
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.e2e.world import World
from tests.log.directories import fill, open_directory
from tests.log.test_odd_files import dangling_link, fifo
from tests.log.test_odd_files import folder as folder_there
from tests.processes import BrokerProcess

MADE = 10  # topics that `fill` makes, of a partition each
META = "version=1\nnode.id=1\ncluster.id=some-cluster\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log directory with one of everything in it, and no metadata."""
    fill(SystemDisk(), str(tmp_path / "data"))
    return tmp_path / "data"


def refusal(*folders: Path) -> str:
    """Why a broker would not start on these; empty if it would."""
    try:
        find_store(SystemDisk(), [str(folder) for folder in folders])
    except StoreMissingError as error:
        return str(error)
    return ""


def rebuilt(*folders: Path) -> Rebuilt:
    return rebuild(SystemDisk(), SystemClock(), SystemRandom(), [str(folder) for folder in folders])


def faults(*folders: Path) -> list[str]:
    return list(check(SystemDisk(), [str(folder) for folder in folders]))


# ---- finding it


def test_new_directories_get_it_in_the_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    paths = [f"{tmp_path}/{name}" for name in ("a", "b", "missing")]
    assert find_store(SystemDisk(), paths) == f"{tmp_path}/a/metadata.db"


def test_it_is_found_wherever_it_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "metadata.db").write_bytes(b"something")
    assert find_store(SystemDisk(), [f"{tmp_path}/a", f"{tmp_path}/b"]) == f"{tmp_path}/b/metadata.db"


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.db").write_bytes(b"something")
    assert refusal(tmp_path / "a", tmp_path / "b") == (
        f"{tmp_path}/a and {tmp_path}/b both have a metadata.db: move away the one that is not in use"
    )


def unmounted(path: Path) -> None:
    path.symlink_to(path.parent / "not mounted")


def a_file(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("other", [unmounted, a_file])
@pytest.mark.parametrize("is_used", [False, True])
def test_where_a_directory_cannot_be_read_it_may_be_there(
    tmp_path: Path, other: Callable[[Path], None], is_used: bool
) -> None:
    (tmp_path / "a").mkdir()
    if is_used:
        (tmp_path / "a" / "meta.properties").write_text("version=0\n")
    other(tmp_path / "b")
    said = f"{tmp_path}/b: cannot be read, and no other log directory has a metadata.db"
    assert refusal(tmp_path / "a", tmp_path / "b") == (said if is_used else "")


@pytest.mark.parametrize("content", [None, b""])
def test_partitions_without_it_are_refused_with_the_way_back(folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "metadata.db").write_bytes(content)
    said = f"holds {MADE} partitions, and no log directory has a metadata.db, which says whose they are"
    assert refusal(folder) == f"{folder}: {said}; put it back, or kbroker metadata rebuild {folder} rebuilds it"


@pytest.mark.parametrize("content", [None, b""])
def test_its_log_alone_is_no_world_without_topics(folder: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / "metadata.db").write_bytes(content)
    (folder / "metadata.db-wal").write_bytes(b"not moved yet")
    path = find_store(SystemDisk(), [str(folder)])
    assert path == f"{folder}/metadata.db"
    said = "is damaged: it is empty or gone, and its log, the -wal file, is not"
    with pytest.raises(DamagedError, match=said):
        TreeFile(path)
    assert [line for line in faults(folder) if said in line] == faults(folder)
    assert (folder / "metadata.db-wal").read_bytes() == b"not moved yet"
    rebuilt(folder)
    assert (folder / "metadata.db.old-wal").read_bytes() == b"not moved yet"
    assert faults(folder) == []


@pytest.mark.parametrize("name", ["a", "b"])
def test_one_that_was_emptied_is_no_new_world_even_where_there_are_no_partitions(tmp_path: Path, name: str) -> None:
    """It had users, rules and settings."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
    (tmp_path / name / "metadata.db").write_bytes(b"")
    path = find_store(SystemDisk(), [str(each) for each in folders])
    said = f"{tmp_path}/{name}/metadata.db: is damaged: it is empty"
    with pytest.raises(DamagedError, match=f"^{said}$"):
        TreeFile(path)
    assert faults(*folders) == [said]
    rebuilt(*folders)
    assert faults(*folders) == []


@pytest.mark.parametrize("kind", [folder_there, dangling_link, fifo])
@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal"])
def test_what_is_no_file_in_its_place_is_named_and_left_there(
    folder: Path, name: str, kind: Callable[[Path], None]
) -> None:
    rebuilt(folder)
    (folder / name).unlink(missing_ok=True)
    kind(folder / name)
    for opens in (TreeFile, whole_nodes):
        with pytest.raises(OSError, match=f"^{folder}/{name}: is no file$"):
            opens(f"{folder}/metadata.db")
    open_directory(SystemDisk(), str(folder)).close(broker_epoch=8)  # what is in the store's place, its opener judges
    assert os.path.lexists(folder / name)


@pytest.mark.parametrize(
    ("meta", "log", "signs"),
    [
        (META, False, "meta.properties version 1"),
        (None, True, "__cluster_metadata-0"),
        (META, True, "meta.properties version 1, __cluster_metadata-0"),
    ],
)
def test_a_directory_of_apache_in_kraft_mode_is_recognised(
    tmp_path: Path, meta: str | None, log: bool, signs: str
) -> None:
    if meta is not None:
        (tmp_path / "meta.properties").write_text(meta)
    if log:
        (tmp_path / "__cluster_metadata-0").mkdir()
    way = f"kbroker metadata rebuild {tmp_path} takes it over"
    assert refusal(tmp_path) == f"{tmp_path}: is of Apache Kafka in KRaft mode ({signs}); {way}"


# ---- making it anew


def test_topics_ids_and_partitions_come_back(folder: Path) -> None:
    made = rebuilt(folder)
    assert (made.path, made.topics, made.partitions, made.kept) == (f"{folder}/metadata.db", MADE, MADE, "")
    assert faults(folder) == []


def test_a_topic_without_an_id_gets_one(folder: Path) -> None:
    (folder / "empty-0" / "partition.metadata").unlink()
    rebuilt(folder)
    assert (folder / "empty-0" / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")
    assert faults(folder) == []


def test_a_partition_between_others_that_is_gone_is_told(folder: Path) -> None:
    (folder / "empty-0").rename(folder / "empty-2")
    made = rebuilt(folder)
    assert "empty: there is no folder of partition 0, 1: the next start makes it, empty" in made.lines
    assert faults(folder) == [f"{folder}/metadata.db: partition {index} of empty has no folder" for index in (0, 1)]


def test_a_partition_of_another_topic_of_that_name_is_left_out(folder: Path) -> None:
    (folder / "codec-none-0").rename(folder / "empty-1")
    other = (folder / "empty-1" / "partition.metadata").read_text().replace("AQ", "BQ")
    (folder / "empty-1" / "partition.metadata").write_text(other)
    made = rebuilt(folder)
    assert f"{folder}/empty-1: has another topic id than the rest of empty: left out" in made.lines


def test_settings_survive_a_rebuild_that_fails(folder: Path) -> None:
    rebuilt(folder)
    file, settings = TreeFile(f"{folder}/metadata.db"), encode_config({"retention.ms": "1000"})
    for node, data in (("/config", b""), ("/config/topics", b""), (config_path("topics", "empty"), settings)):
        file.tree.apply(Create(node, data), NO_SESSION)
    file.save(1)
    file.close()
    (folder / "metadata.db.new").mkdir()  # in the way, like a disk that is full
    with pytest.raises(OSError, match=r"metadata\.db\.new"):
        rebuilt(folder)
    (folder / "metadata.db.new").rmdir()
    rebuilt(folder)
    assert whole_nodes(f"{folder}/metadata.db")[config_path("topics", "empty")] == settings


def test_a_directory_in_use_is_left_alone(folder: Path) -> None:
    manager = open_directory(SystemDisk(), str(folder))
    with pytest.raises(Exception, match="is in use by another broker"):
        rebuilt(folder)
    manager.close()
    assert not (folder / "metadata.db").exists()


def test_a_directory_of_kraft_is_taken_over(folder: Path) -> None:
    (folder / "meta.properties").write_text(META)
    (folder / "__cluster_metadata-0").mkdir()
    rebuilt(folder)
    assert (refusal(folder), faults(folder)) == ("", [])


# ---- checking it


def test_folders_and_topics_that_do_not_match_are_named(folder: Path) -> None:
    rebuilt(folder)
    (folder / "empty-0").rename(folder / "other-0")
    assert faults(folder) == [
        f"{folder}/other-0: no topic in {folder}/metadata.db has this partition",
        f"{folder}/metadata.db: partition 0 of empty has no folder",
    ]


def test_a_folder_of_another_topic_of_that_name_is_named(folder: Path) -> None:
    rebuilt(folder)
    text = (folder / "empty-0" / "partition.metadata").read_text()
    (folder / "empty-0" / "partition.metadata").write_text(text.replace("AQ", "BQ"))
    assert faults(folder) == [f"{folder}/empty-0: is of another topic of that name"]


def test_damage_is_named_with_the_files_own_path(folder: Path) -> None:
    rebuilt(folder)
    (folder / "metadata.db").write_bytes(b"no database at all" * 100)
    assert faults(folder) == [f"{folder}/metadata.db: is damaged: file is not a database"]


def test_checking_changes_nothing(folder: Path) -> None:
    rebuilt(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    faults(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def run(*words: str) -> tuple[int, str, str]:
    """`kbroker ...`: exit code, what it prints, what it complains of."""
    done = subprocess.run([sys.executable, "-m", "kbroker.cli", *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_commands_say_what_they_found_and_did(folder: Path) -> None:
    missing = run("metadata", "check", str(folder))
    made = run("metadata", "rebuild", str(folder))
    found = run("metadata", "check", str(folder))
    again = run("metadata", "rebuild", str(folder))
    assert (missing[0], "rebuilds it" in missing[1]) == (1, True)
    assert made[:2] == (0, f"{folder}/metadata.db: rebuilt with {MADE} topics, {MADE} partitions\n")
    assert found == (0, f"{folder}: nothing wrong\n", "")
    assert again[1].endswith(f"{MADE} partitions; the old one is metadata.db.old now\n")
    assert run("metadata", "check", f"{folder}/nowhere")[0] == 2


# ---- a broker


@pytest.mark.slow
def test_a_broker_without_its_metadata_refuses_to_start_and_after_the_rebuild_has_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(tmp_path) as broker:
        here = World(broker.port)
        topic = here.filled()
        member = here.member()
    (data / "metadata.db").unlink()
    refused = BrokerProcess(tmp_path)
    assert refused.wait() == 1
    assert f"kbroker metadata rebuild {data} rebuilds it" in broker.log
    assert run("metadata", "rebuild", str(data))[0] == 0
    with BrokerProcess(tmp_path) as broker:
        again = World(broker.port)
        assert again.produce(topic, b"more").base_offset == 3
        assert again.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]), 12).topics[0].topic_id == (
            topic.id
        )
        again.until(
            FindCoordinatorRequest(coordinator_keys=[member.group]),
            4,
            lambda found: not found.coordinators[0].error_code,
        )
    assert "Traceback" not in broker.log


@pytest.mark.slow
def test_partitions_that_are_gone_or_nobodys_are_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(tmp_path) as broker:
        topic = World(broker.port).filled()
    (data / f"{topic.name}-0").rename(data / "nobodys-0")
    with BrokerProcess(tmp_path) as broker:
        World(broker.port).until(ApiVersionsRequest(), 0, lambda answer: not answer.error_code)
    assert f"{data}/{topic.name}-0: was missing, though its topic exists: created again, empty" in broker.log
    assert f"{data}: partitions of no topic that there is, left alone (1): nobodys-0" in broker.log


@pytest.mark.slow
def test_of_partitions_that_have_a_topic_nothing_is_told_after_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).await_start()
    World(broker.port).filled()
    broker.process.kill()
    broker.wait()
    with BrokerProcess(tmp_path) as again:
        World(again.port).filled()
    assert "WARNING" not in again.log
