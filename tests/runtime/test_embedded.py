"""The embedded store's own promises: one owner, durable, nothing half done."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.ports import (
    Create,
    Get,
    Operation,
    Outcome,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.embedded import EmbeddedStore


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
    with pytest.raises(OSError, match="locked"):
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


def test_a_thousand_nodes_of_one_submit_come_back(tmp_path: Path) -> None:
    creates = [Create("/a"), *(Create(f"/a/{number}") for number in range(1000))]
    ask(tmp_path / "m.db", *creates)[0].close()
    _, outcomes = ask(tmp_path / "m.db", *(Get(f"/a/{number}") for number in range(1000)))
    assert {outcome.fault for outcome in outcomes} == {None}
