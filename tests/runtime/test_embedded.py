"""The embedded store's own promises: one owner, durable, nothing half done."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.ports import (
    Create,
    Exists,
    Get,
    NodeChanged,
    Operation,
    Outcome,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.embedded import Done, EmbeddedStore
from kbroker.runtime.tree_file import Change
from tests.runtime.disks import full_disk, killed


def ask(path: Path, *operations: Operation) -> tuple[EmbeddedStore, tuple[Outcome, ...]]:
    events: list[StoreEvent] = []
    store = EmbeddedStore(str(path), events.append)
    store.submit(operations, "x")
    answer = events[-1]
    assert isinstance(answer, StoreAnswer)
    return store, answer.outcomes


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    store, _ = ask(tmp_path / "m.db", Create("/a", b"kept"), Create("/e", ephemeral=True))
    store.abandon()  # as a kill: the session is never ended
    _, (kept, ephemeral) = ask(tmp_path / "m.db", Get("/a"), Get("/e"))
    assert (kept.data, ephemeral.fault) == (b"kept", StoreFault.NO_NODE)


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    store, _ = ask(tmp_path / "m.db", Create("/a"))
    with pytest.raises(OSError, match=r"m\.db: is in use by another process"):
        EmbeddedStore(str(tmp_path / "m.db"), lambda event: None)
    store.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(OSError, match="not a database"):
        EmbeddedStore(str(tmp_path / "m.db"), lambda event: None)


def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    ask(tmp_path / "m.db")[0].close()
    with sqlite3.connect(tmp_path / "m.db") as file:
        file.execute("UPDATE counter SET value = 3 WHERE name = 'layout'")
    file.close()
    with pytest.raises(OSError, match=r"newer version .* \(layout 3, not 2\)"):
        EmbeddedStore(str(tmp_path / "m.db"), lambda event: None)


def test_a_full_disk_ends_the_session_until_there_is_room(tmp_path: Path) -> None:
    events: list[StoreEvent] = []
    jobs: list[Callable[[], None]] = []
    store = EmbeddedStore(str(tmp_path / "m.db"), events.append, jobs.append)
    store.submit([Create("/e", ephemeral=True)], 1)
    pages = store._file._file.execute("PRAGMA page_count").fetchone()[0]
    store._file._file.execute(f"PRAGMA max_page_count = {pages}")
    events.clear()
    store.submit([Create("/big", bytes(1 << 20))], 2)
    store.submit([Get("/e")], 3)
    assert [type(event) for event in events] == [StoreAnswer, SessionExpired, StoreAnswer]
    jobs.pop()()  # still no room
    assert len(events) == 3
    store._file._file.execute("PRAGMA max_page_count = 1000000")
    jobs.pop()()
    assert isinstance(events[3], SessionStarted)
    store.close()
    _, (ephemeral, big) = ask(tmp_path / "m.db", Get("/e"), Get("/big"))
    assert (ephemeral.fault, len(big.data)) == (StoreFault.NO_NODE, 1 << 20)


def test_a_start_on_a_full_disk_takes_nothing_from_the_file_of_a_killed_one(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path / "m.db"), lambda event: None)
    path = killed(tmp_path / "m.db", tmp_path / "left.db")
    store.close()
    with full_disk(), pytest.raises(OSError, match=r"left\.db"):
        EmbeddedStore(str(path), lambda event: None)
    gc.collect()  # SQLite's file, if somebody has left that to it
    store, (found,) = ask(path, Get("/"))
    store.close()
    assert found.fault is None


def test_a_thousand_nodes_of_one_submit_come_back(tmp_path: Path) -> None:
    creates = [Create("/a"), *(Create(f"/a/{number}") for number in range(1000))]
    ask(tmp_path / "m.db", *creates)[0].close()
    _, outcomes = ask(tmp_path / "m.db", *(Get(f"/a/{number}") for number in range(1000)))
    assert {outcome.fault for outcome in outcomes} == {None}


class Thread:
    """Where the store waits for its disk: jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Done]] = []

    def run(self, job: Callable[[], None], done: Done) -> None:
        self.jobs.append((job, done))

    def turn(self) -> None:
        """Run one job, and bring it back."""
        job, done = self.jobs.pop(0)
        try:
            job()
        except OSError as error:
            done(error)
        else:
            done(None)


@pytest.fixture
def thread() -> Thread:
    return Thread()


@pytest.fixture
def events() -> list[StoreEvent]:
    return []


@pytest.fixture
def store(tmp_path: Path, thread: Thread, events: list[StoreEvent]) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(str(tmp_path / "m.db"), events.append, lambda again: None, thread.run)
    events.clear()
    yield store
    store.close()


def answered(events: list[StoreEvent]) -> list[object]:
    return [event.token for event in events if isinstance(event, StoreAnswer)]


def test_nothing_is_said_before_it_is_durable(store: EmbeddedStore, thread: Thread, events: list[StoreEvent]) -> None:
    store.submit([Exists("/a", watch=True)], 1)
    store.submit([Create("/a")], 2)
    before = list(events)
    thread.turn()
    assert (answered(before), [type(event) for event in events[1:]]) == ([1], [NodeChanged, StoreAnswer])


def test_a_read_behind_a_write_is_answered_behind_it(
    store: EmbeddedStore, thread: Thread, events: list[StoreEvent]
) -> None:
    store.submit([Create("/a", b"new")], 1)
    store.submit([Get("/a")], 2)
    before = answered(events)
    thread.turn()
    assert (before, answered(events), len(thread.jobs)) == ([], [1, 2], 0)


def test_what_comes_during_a_write_goes_into_the_next_one_together(
    store: EmbeddedStore, thread: Thread, events: list[StoreEvent]
) -> None:
    for name in range(5):
        store.submit([Create(f"/{name}")], name)
    thread.turn()
    first = answered(events)
    thread.turn()
    assert (first, answered(events), thread.jobs) == ([0], [0, 1, 2, 3, 4], [])


def test_a_write_that_fails_loses_what_waits_behind_it_too(
    store: EmbeddedStore, thread: Thread, events: list[StoreEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(change: Change) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(store._file, "write", full)
    store.submit([Create("/a")], 1)
    store.submit([Get("/a")], 2)
    thread.turn()
    lost = [each.outcomes[0].fault for each in events if isinstance(each, StoreAnswer)]
    assert (answered(events), lost) == ([1, 2], [StoreFault.SESSION_EXPIRED] * 2)
    assert isinstance(events[-1], SessionExpired)
    monkeypatch.undo()


def test_who_waits_for_a_write_hears_of_an_end_that_nobody_foresaw(
    store: EmbeddedStore, thread: Thread, events: list[StoreEvent]
) -> None:
    store.submit([Create("/a")], 1)
    store.submit([Get("/a")], 2)
    _, done = thread.jobs.pop()
    with pytest.raises(MemoryError):  # for whoever reports bugs
        done(MemoryError())
    assert (answered(events), isinstance(events[-1], SessionExpired)) == ([1, 2], True)


def test_a_close_writes_what_no_thread_has_begun(tmp_path: Path, thread: Thread, events: list[StoreEvent]) -> None:
    store = EmbeddedStore(str(tmp_path / "m.db"), events.append, None, thread.run)
    store.submit([Create("/a", b"kept")], 1)
    store.close()
    thread.turn()  # too late: it was called off
    _, (kept,) = ask(tmp_path / "m.db", Get("/a"))
    assert (kept.data, answered(events)) == (b"kept", [])


def test_a_killed_store_has_no_word_for_what_was_not_written(
    tmp_path: Path, thread: Thread, events: list[StoreEvent]
) -> None:
    store = EmbeddedStore(str(tmp_path / "m.db"), events.append, None, thread.run)
    store.submit([Create("/a")], 1)
    thread.turn()
    store.submit([Create("/b")], 2)
    store.abandon()
    thread.turn()
    _, found = ask(tmp_path / "m.db", Get("/a"), Get("/b"))
    assert ([each.fault for each in found], answered(events)) == ([None, StoreFault.NO_NODE], [1])
