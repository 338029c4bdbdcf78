"""The file of metadata: nothing that changed at rest is taken for what was written."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.ports import Create, Delete, SetData
from kbroker.runtime.tree_file import DamagedError, TreeFile
from kbroker.runtime.wal import has_lost_transactions
from tests.runtime.disks import full_disk, killed

NO_SESSION = 0


def change(file: TreeFile, *operations: Create | SetData | Delete) -> None:
    for operation in operations:
        assert file.tree.apply(operation, NO_SESSION).fault is None
    file.save(1)


def filled(path: Path, topics: int = 40) -> TreeFile:
    """A file with some nodes, each in a transaction of its own; open."""
    file = TreeFile(str(path))
    file.save(1)
    change(file, Create("/brokers"), Create("/brokers/topics"))
    for number in range(topics):
        change(file, Create(f"/brokers/topics/topic-{number}", b'{"partitions":{"0":[1]}}' * 5))
    change(file, SetData("/brokers/topics/topic-3", b"other"), Delete("/brokers/topics/topic-4"))
    return file


def nodes(path: Path) -> dict[str, bytes]:
    file = TreeFile(str(path))
    found = {name: node.data for name, node in file.tree.nodes.items()}
    file.abandon()
    return found


def refusal(path: Path, *allowed: dict[str, bytes]) -> str:
    """Why the file is not opened; empty if it is, and then it holds one of what it may hold."""
    try:
        found = nodes(path)
    except OSError as error:
        return str(error)
    assert found in allowed
    return ""


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_changed_bit_is_refused_in_one_line_or_harmless(tmp_path: Path) -> None:
    whole, copy = tmp_path / "whole.db", tmp_path / "metadata.db"
    filled(whole).close()
    expected, rng = nodes(whole), random.Random(7)
    refused = 0
    for _ in range(200):
        shutil.copy(whole, copy)
        bit = rng.randrange(8 * copy.stat().st_size)
        flip(copy, bit)
        said = refusal(copy, expected)
        assert said == "" or (said.startswith(f"{copy}: ") and "\n" not in said), bit
        refused += bool(said)
        for left in tmp_path.glob("metadata.db*"):
            left.unlink()
    assert refused > 50


def test_a_changed_bit_in_the_log_loses_nothing_but_the_last_transaction(tmp_path: Path) -> None:
    whole, copy = tmp_path / "whole.db", tmp_path / "metadata.db"
    file = filled(whole)
    before = {name: node.data for name, node in file.tree.nodes.items()}
    change(file, SetData("/brokers/topics/topic-7", b"last"))
    after = {name: node.data for name, node in file.tree.nodes.items()}
    rng = random.Random(7)
    refused = 0
    for _ in range(60):
        killed(whole, copy)
        log = tmp_path / "metadata.db-wal"
        flip(log, rng.randrange(8 * log.stat().st_size))
        refused += bool(refusal(copy, before, after))
        for left in tmp_path.glob("metadata.db*"):
            left.unlink()
    file.close()
    assert refused > 30


def test_what_a_kill_left_is_opened(tmp_path: Path) -> None:
    file = filled(tmp_path / "whole.db")
    copy = killed(tmp_path / "whole.db", tmp_path / "metadata.db")
    assert nodes(copy) == {name: node.data for name, node in file.tree.nodes.items()}
    file.close()


def test_a_log_that_a_power_cut_tore_is_opened_without_its_end(tmp_path: Path) -> None:
    file = filled(tmp_path / "whole.db")
    before = {name: node.data for name, node in file.tree.nodes.items()}
    size = (tmp_path / "whole.db-wal").stat().st_size
    change(file, Create("/torn", bytes(10_000)))
    for end in (size, size + 1, size + 5000):
        copy = killed(tmp_path / "whole.db", tmp_path / "metadata.db")
        with open(f"{copy}-wal", "r+b") as log:
            log.truncate(end)
        assert nodes(copy) == before
        copy.unlink()
    file.close()


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 2_000)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def without_a_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + bytes(4096))


def log_with_a_changed_bit(path: Path) -> None:
    flip(Path(f"{path}-wal"), 8 * 1_000)


def emptied_log(path: Path) -> None:
    emptied(Path(f"{path}-wal"))


def removed_log(path: Path) -> None:
    removed(Path(f"{path}-wal"))


def log_of_zeros(path: Path) -> None:
    log = Path(f"{path}-wal")
    log.write_bytes(bytes(log.stat().st_size))


def log_with_a_changed_header(path: Path) -> None:
    flip(Path(f"{path}-wal"), 8 * 10)


def journal_of_another_file(path: Path) -> None:
    """Which SQLite would write back."""
    other = path.parent.parent / "other.db"
    filled(other, topics=5).close()
    with sqlite3.connect(other) as file:
        file.execute("PRAGMA journal_mode = DELETE")
        file.execute("PRAGMA cache_size = 1")  # so that pages are written, and the journal before them
        file.execute("UPDATE node SET data = zeroblob(100000)")
        shutil.copy(f"{other}-journal", f"{path}-journal")


DAMAGES = [emptied, garbage, cut, without_a_page, journal_of_another_file]
OF_THE_LOG = [removed, log_with_a_changed_bit, emptied_log, removed_log, log_of_zeros, log_with_a_changed_header]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_refusal_leaves_a_file_that_was_closed_as_it_was(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "metadata.db"
    filled(path, topics=100).close()
    damage(path)
    before = content_of(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(DamagedError, match=rf"^{path}: is damaged: "):
            TreeFile(str(path))
        assert content_of(tmp_path / "store") == before


@pytest.mark.parametrize("damage", DAMAGES + OF_THE_LOG)
def test_a_refusal_leaves_a_file_and_its_log_as_they_were(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    filled(tmp_path / "one.db", topics=100).close()
    open_file = TreeFile(str(tmp_path / "one.db"))
    open_file.save(2)
    change(open_file, SetData("/brokers/topics/topic-3", b"again"))
    change(open_file, SetData("/brokers/topics/topic-3", b"and again"))
    (tmp_path / "store").mkdir()
    path = killed(tmp_path / "one.db", tmp_path / "store" / "metadata.db")
    open_file.abandon()
    damage(path)
    before = content_of(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(DamagedError, match=rf"^{path}: is damaged: "):
            TreeFile(str(path))
        assert content_of(tmp_path / "store") == before


def test_a_transaction_that_another_hand_began_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    filled(tmp_path / "one.db").close()
    before = nodes(tmp_path / "one.db")
    with sqlite3.connect(tmp_path / "one.db") as file:
        file.execute("PRAGMA journal_mode = DELETE")
        file.execute("PRAGMA cache_size = 1")
        file.execute("UPDATE node SET data = zeroblob(100000)")
        for suffix in ("", "-journal"):
            shutil.copy(tmp_path / f"one.db{suffix}", f"{path}{suffix}")
    file.close()
    assert nodes(path) == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "metadata.db"
    filled(path).close()
    Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.mkfifo(f"{path}{suffix}")
    with pytest.raises(OSError, match=rf"^{path}{suffix}: is no file"):
        TreeFile(str(path))


def test_a_link_to_nowhere_is_no_new_file(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.symlink_to(tmp_path / "not mounted" / "metadata.db")
    with pytest.raises(OSError, match=rf"^{path}: is no file"):
        TreeFile(str(path))
    assert path.is_symlink()


@pytest.mark.parametrize("log", ["as it was", "gone"])
def test_a_link_has_its_log_beside_what_it_leads_to(tmp_path: Path, log: str) -> None:
    path = tmp_path / "metadata.db"
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere" / "tree")
    file = TreeFile(str(tmp_path / "one.db"))
    file.save(1)
    killed(tmp_path / "one.db", tmp_path / "elsewhere" / "tree")
    file.close()
    if log == "gone":
        (tmp_path / "elsewhere" / "tree-wal").unlink()
    assert ("is gone or empty" in refusal(path, {"/": b""})) == (log == "gone")


def test_a_file_that_cannot_be_filled_is_not_made(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match=r"metadata\.db"):
        TreeFile(str(tmp_path / "metadata.db"))
    assert list(tmp_path.iterdir()) == []


def test_the_log_gives_back_what_it_took_and_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.runtime.tree_file._SAVES_IN_LOG", 20)
    file = filled(tmp_path / "metadata.db")
    change(file, Create("/large", bytes(1_000_000)))
    sizes = []
    for number in range(50):
        change(file, SetData("/brokers/topics/topic-3", b"%d" % number))
        sizes.append((tmp_path / "metadata.db-wal").stat().st_size)
    file.close()
    assert (max(sizes) > 1_000_000, min(sizes) > 0, sizes[-1] < 500_000) == (True, True, True)


def test_a_log_that_was_just_restarted_has_lost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.runtime.tree_file._SAVES_IN_LOG", 20)
    file = filled(tmp_path / "whole.db", topics=16)
    before = log = (tmp_path / "whole.db-wal").read_bytes()
    while log[:32] == before[:32]:
        before = log
        change(file, SetData("/brokers/topics/topic-3", b"again"))
        log = (tmp_path / "whole.db-wal").read_bytes()
    file.close()
    assert not has_lost_transactions(log[:32] + before[32:])  # a kill before its first frame


def test_a_newer_layout_with_a_log_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "metadata.db"
    filled(tmp_path / "one.db").close()
    with sqlite3.connect(tmp_path / "one.db") as file:
        file.execute("UPDATE counter SET value = 3 WHERE name = 'layout'")
        file.commit()
        killed(tmp_path / "one.db", path)
    before = content_of(tmp_path / "store")
    with pytest.raises(OSError, match=rf"^{path}: written by a newer version"):
        TreeFile(str(path))
    assert content_of(tmp_path / "store") == before


def test_a_store_of_something_else_is_refused_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE song (name TEXT)")
    file.close()
    before = content_of(tmp_path)
    with pytest.raises(DamagedError, match="it is of something else, with song in it"):
        TreeFile(str(path))
    assert content_of(tmp_path) == before


def test_a_log_that_is_gone_is_missed(tmp_path: Path) -> None:
    file = filled(tmp_path / "whole.db")
    shutil.copy(tmp_path / "whole.db", tmp_path / "metadata.db")
    file.close()
    with pytest.raises(DamagedError, match="its log, the -wal file, is gone"):
        TreeFile(str(tmp_path / "metadata.db"))


def test_a_log_that_is_gone_is_missed_long_after_the_start_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.runtime.tree_file._SAVES_IN_LOG", 20)
    file = filled(tmp_path / "whole.db")
    change(file, SetData("/brokers/topics/topic-3", b"last"))
    shutil.copy(tmp_path / "whole.db", tmp_path / "metadata.db")
    file.close()
    with pytest.raises(DamagedError, match="is gone"):
        TreeFile(str(tmp_path / "metadata.db"))


@pytest.mark.parametrize("end", [TreeFile.close, TreeFile.abandon])
def test_a_file_given_back_unchanged_after_a_kill_is_opened(tmp_path: Path, end: Callable[[TreeFile], None]) -> None:
    file = TreeFile(str(tmp_path / "whole.db"))
    change(file, Create("/stays", b"x"))
    copy = killed(tmp_path / "whole.db", tmp_path / "metadata.db")
    file.close()
    end(TreeFile(str(copy)))
    assert nodes(copy)["/stays"] == b"x"


def test_a_file_abandoned_right_after_its_log_was_moved_is_opened(tmp_path: Path) -> None:
    file = TreeFile(str(tmp_path / "metadata.db"))
    change(file, Create("/stays", b"x"))  # the first save moves it
    file.abandon()
    assert nodes(tmp_path / "metadata.db")["/stays"] == b"x"


def test_a_file_given_back_while_the_disk_was_full_is_opened(tmp_path: Path) -> None:
    file = TreeFile(str(tmp_path / "m.db"))
    file.save(1)  # which moves the log
    with full_disk():
        with pytest.raises(OSError, match="m\\.db"):
            change(file, Create("/a"))
        file.close()
    assert nodes(tmp_path / "m.db") == {"/": b""}


def test_a_file_that_somebody_looked_at_after_a_kill_is_opened(tmp_path: Path) -> None:
    file = filled(tmp_path / "whole.db")
    copy = killed(tmp_path / "whole.db", tmp_path / "metadata.db")
    file.close()
    with sqlite3.connect(copy) as looked_at:
        assert looked_at.execute("SELECT COUNT(*) FROM node").fetchone()[0] > 40
    looked_at.close()  # it takes the log away
    assert not Path(f"{copy}-wal").exists()
    assert len(nodes(copy)) > 40


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM node WHERE path = '/brokers/topics/topic-9'", "are not those that were written"),
        ("DELETE FROM node WHERE path = '/brokers/topics'", "the node above /brokers/topics/topic-"),
        ("UPDATE node SET data = x'00' WHERE path = '/brokers'", "the checksum of /brokers does not match"),
        ("UPDATE node SET version = version + 1 WHERE path = '/brokers'", "the checksum of /brokers does not match"),
        ("UPDATE node SET data = 'text' WHERE path = '/brokers'", "a row of '/brokers' makes no sense"),
        ("UPDATE counter SET value = value + 1 WHERE name = 'zxid'", "are not those that were written"),
        ("DELETE FROM counter WHERE name = 'session'", "a counter is gone"),
        ("DELETE FROM counter WHERE name = 'total'", "are not those that were written"),
    ],
)
def test_what_was_changed_by_another_hand_is_refused(tmp_path: Path, statement: str, fault: str) -> None:
    path = tmp_path / "metadata.db"
    filled(path).close()
    with sqlite3.connect(path) as file:
        file.execute(statement)
    file.close()
    with pytest.raises(DamagedError, match=fault):
        TreeFile(str(path))


def test_a_file_without_checksums_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    filled(path).close()
    before = nodes(path)
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE node DROP COLUMN checksum")
        file.execute("DELETE FROM counter WHERE name NOT IN ('zxid', 'session')")
        file.execute("INSERT INTO counter VALUES ('layout', 1)")
    file.close()
    again = TreeFile(str(path))
    change(again, Create("/more"))
    again.close()
    assert nodes(path) == {**before, "/more": b""}
