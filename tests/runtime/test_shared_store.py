"""Several brokers of one process on one metadata store: who hears what, what goes with whom, what a file keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    SetData,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.shared_store import SharedStore


class Client:
    """A broker's end of a store."""

    def __init__(self, store: SharedStore) -> None:
        self.events: list[StoreEvent] = []
        self.store = store.connect(self.events.append)
        self.events.clear()

    def do(self, operation: Operation) -> Outcome:
        self.store.submit([operation], "token")
        answer = next(each for each in self.events if isinstance(each, StoreAnswer))
        self.events.remove(answer)
        return answer.outcomes[0]


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "metadata.db") if request.param == "file" else None


@pytest.fixture
def store(path: str | None) -> Iterator[SharedStore]:
    store = SharedStore(path)
    yield store
    store.close()


def test_what_one_makes_the_other_reads(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    one.do(Create("/a", b"x"))
    assert other.do(Get("/a")).data == b"x"


def test_a_watch_of_one_fires_for_a_change_of_the_other(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    one.do(Exists("/a", watch=True))
    other.do(Create("/a"))
    assert (one.events, other.events) == ([NodeChanged("/a", "made")], [])


def test_only_the_ephemeral_nodes_of_the_one_who_left_go(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    one.do(Create("/one", ephemeral=True))
    other.do(Create("/other", ephemeral=True))
    one.store.close()
    assert (other.do(Get("/one")).fault, other.do(Get("/other")).fault) == (StoreFault.NO_NODE, None)


def test_a_broker_that_was_killed_stays_registered_until_its_session_is_ended(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    one.do(Create("/one", ephemeral=True))
    one.store.abandon()
    before = other.do(Exists("/one", watch=True)).stat
    store.end_abandoned()
    assert (before is not None, other.events) == (True, [NodeChanged("/one", "deleted")])


def test_a_killed_broker_hears_nothing_more(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    one.do(Exists("/a", watch=True))
    one.store.abandon()
    other.do(Create("/a"))
    assert one.events == []


def test_a_session_that_expires_is_followed_by_another(store: SharedStore) -> None:
    one, other = Client(store), Client(store)
    before = one.store.session
    one.do(Create("/one", ephemeral=True))
    store.expire(before)
    assert one.events == [SessionExpired(), SessionStarted(one.store.session)]
    assert (one.store.session > before, other.do(Get("/one")).fault) == (True, StoreFault.NO_NODE)


def test_a_file_keeps_what_stays_and_ends_all_sessions(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    first = SharedStore(path)
    one, other = Client(first), Client(first)
    one.do(Create("/stays", b"x"))
    one.do(Create("/one", ephemeral=True))
    other.do(Create("/other", ephemeral=True))
    first._file.close()  # type: ignore[union-attr]  # as a kill of the process
    second = SharedStore(path)
    late = Client(second)
    found = [late.do(Get(path)).fault for path in ("/stays", "/one", "/other")]
    second.close()
    assert found == [None, StoreFault.NO_NODE, StoreFault.NO_NODE]


def test_session_numbers_do_not_come_again_after_a_reopening(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    first = SharedStore(path)
    one = Client(first)
    one.do(Create("/a"))
    one.store.close()
    first.close()
    second = SharedStore(path)
    later = Client(second).store.session
    second.close()
    assert later > one.store.session


def test_a_change_that_cannot_be_written_ends_the_session_with_its_outcome_unknown(tmp_path: Path) -> None:
    store = SharedStore(str(tmp_path / "metadata.db"))
    one = Client(store)
    before = one.store.session
    file = store._file._file  # type: ignore[union-attr]
    pages = file.execute("PRAGMA page_count").fetchone()[0]
    file.execute(f"PRAGMA max_page_count = {pages}")
    assert one.do(Create("/big", b"x" * 100_000)).fault is StoreFault.SESSION_EXPIRED
    file.execute("PRAGMA max_page_count = 1000000")
    assert one.events == [SessionExpired(), SessionStarted(before + 1)]
    assert one.do(Create("/small")).fault is None
    store.close()


def test_of_many_threads_each_change_is_one_step(store: SharedStore) -> None:
    first = Client(store)
    first.do(Create("/count", b"0"))

    def add() -> None:
        client, left = Client(store), 50
        while left:
            node = client.do(Get("/count"))
            assert node.stat is not None
            left -= client.do(SetData("/count", b"%d" % (int(node.data) + 1), node.stat.version)).fault is None

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.do(Get("/count")).data == b"200"
