"""What every `MetadataStore` does: embedded, shared and simulated; by kazoo on a dev-cluster's metadata server, and on
a real ZooKeeper where there is one.

A store under test is a `Bench`: `ask` submits operations and returns their outcomes once the answer is there, `fired`
lists the watches that went off since it was last asked. A real ensemble joins by another factory in `BENCHES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.secured import PASSWORD, USER, SecuredZooKeeper
from kbroker.ports import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    MetadataStore,
    Multi,
    NodeChanged,
    Operation,
    Outcome,
    SessionStarted,
    SetData,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.embedded import EmbeddedStore
from kbroker.runtime.shared_store import SharedStore
from kbroker.runtime.zookeeper import ZooKeeperStore
from kbroker.runtime.zookeeper_security import Security
from kbroker.sim.store import Ensemble
from tests.runtime.metadata_servers import RunningServer

NO_NODE, NODE_EXISTS, BAD_VERSION = StoreFault.NO_NODE, StoreFault.NODE_EXISTS, StoreFault.BAD_VERSION


PATIENCE_S = 20  # for a store that answers from another thread


class Bench:
    """A store, and another life of the same broker's store by `reopen`."""

    def __init__(self, opener: Callable[[Callable[[StoreEvent], None]], MetadataStore]) -> None:
        self._opener = opener
        self._posted = threading.Condition()
        self.events: list[StoreEvent] = []
        self.store = opener(self._post)
        self.session = self._started()

    def _post(self, event: StoreEvent) -> None:
        with self._posted:
            self.events.append(event)
            self._posted.notify()

    def until(self, is_it: Callable[[StoreEvent], bool]) -> StoreEvent:
        """The first event like this, taken out; what came before it stays."""
        with self._posted:
            assert self._posted.wait_for(lambda: any(map(is_it, self.events)), PATIENCE_S), self.events
            at = next(at for at, event in enumerate(self.events) if is_it(event))
            return self.events.pop(at)

    def _started(self) -> int:
        event = self.until(lambda event: isinstance(event, SessionStarted))
        assert isinstance(event, SessionStarted)
        return event.session

    def ask(self, *operations: Operation) -> tuple[Outcome, ...]:
        token = object()
        self.store.submit(operations, token)
        answer = self.until(lambda event: isinstance(event, StoreAnswer) and event.token is token)
        assert isinstance(answer, StoreAnswer)
        return answer.outcomes

    def do(self, operation: Operation) -> Outcome:
        return self.ask(operation)[0]

    def fired(self) -> list[StoreEvent]:
        self.do(Exists("/"))  # whatever went off before comes before this answer
        fired, self.events[:] = list(self.events), []
        return fired

    def reopen(self) -> None:
        self.store.close()
        self.events.clear()
        self.store = self._opener(self._post)
        self.session = self._started()


def embedded(tmp_path: Path) -> Bench:
    return Bench(lambda post: EmbeddedStore(str(tmp_path / "metadata.db"), post))


def simulated(tmp_path: Path) -> Bench:
    return Bench(Ensemble().connect)


def shared(tmp_path: Path) -> Bench:
    return Bench(SharedStore().connect)


def shared_in_a_file(tmp_path: Path) -> Bench:
    return Bench(SharedStore(str(tmp_path / "metadata.db")).connect)


BENCHES = {
    "embedded": embedded,
    "simulated": simulated,
    "shared": shared,
    "shared in a file": shared_in_a_file,
}
ZOOKEEPER = "ZooKeeper"
SECURED = "ZooKeeper by TLS, with a login and access lists"
OF_A_DEV_CLUSTER = "metadata server of a dev-cluster"


@pytest.fixture(scope="session")
def metadata_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One for all tests; each has a folder of its own in it, by chroot."""
    with RunningServer(tmp_path_factory.mktemp("metadata-server")) as server:
        yield server


@pytest.fixture(
    params=[*BENCHES, OF_A_DEV_CLUSTER, *(pytest.param(each, marks=pytest.mark.java) for each in (ZOOKEEPER, SECURED))]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param in (ZOOKEEPER, OF_A_DEV_CLUSTER):
        server = request.getfixturevalue("zookeeper" if request.param == ZOOKEEPER else "metadata_server")
        made = Bench(lambda post: ZooKeeperStore(f"{server.address}/{tmp_path.name}", post))
    elif request.param == SECURED:
        secured: SecuredZooKeeper = request.getfixturevalue("secured_zookeeper")
        security = Security(secured.certificates.context(), (USER, PASSWORD), secures=True)
        made = Bench(lambda post: ZooKeeperStore(f"{secured.secure}/{tmp_path.name}", post, security=security))
    else:
        made = BENCHES[request.param](tmp_path)
    yield made
    made.store.close()


def test_a_node_reads_as_it_was_made(bench: Bench) -> None:
    bench.do(Create("/a", b"hello"))
    assert bench.do(Get("/a")).data == b"hello"


def test_a_new_node_has_version_0(bench: Bench) -> None:
    stat = bench.do(Create("/a", b"")).stat
    assert stat is not None
    assert (stat.version, stat.session) == (0, 0)


def test_a_node_needs_its_parent(bench: Bench) -> None:
    assert bench.do(Create("/a/b")).fault is NO_NODE


def test_a_node_is_made_once(bench: Bench) -> None:
    bench.do(Create("/a"))
    assert bench.do(Create("/a")).fault is NODE_EXISTS


def test_transaction_numbers_rise(bench: Bench) -> None:
    stats = [bench.do(Create(path)).stat for path in ("/a", "/b")]
    assert stats[0] is not None
    assert stats[1] is not None
    assert stats[0].czxid < stats[1].czxid


def test_setting_data_raises_the_version_and_keeps_the_birth(bench: Bench) -> None:
    made = bench.do(Create("/a")).stat
    now = bench.do(SetData("/a", b"x", version=0)).stat
    assert made is not None
    assert now is not None
    assert (now.version, now.czxid) == (1, made.czxid)
    assert now.mzxid > made.mzxid


def test_setting_data_of_another_version_is_refused(bench: Bench) -> None:
    bench.ask(Create("/a", b"1"), SetData("/a", b"2"))
    assert bench.do(SetData("/a", b"3", version=0)).fault is BAD_VERSION
    assert bench.do(Get("/a")).data == b"2"


def test_any_version_will_do_for_minus_one(bench: Bench) -> None:
    bench.ask(Create("/a", b"1"), SetData("/a", b"2"))
    assert bench.do(SetData("/a", b"3", version=-1)).fault is None


def test_setting_a_missing_node_is_refused(bench: Bench) -> None:
    assert bench.do(SetData("/a", b"")).fault is NO_NODE


def test_a_deleted_node_is_gone(bench: Bench) -> None:
    bench.ask(Create("/a"), Delete("/a"))
    assert bench.do(Get("/a")).fault is NO_NODE


def test_a_node_with_children_stays(bench: Bench) -> None:
    bench.ask(Create("/a"), Create("/a/b"))
    assert bench.do(Delete("/a")).fault is StoreFault.NOT_EMPTY


def test_deleting_another_version_is_refused(bench: Bench) -> None:
    bench.do(Create("/a"))
    assert bench.do(Delete("/a", version=1)).fault is BAD_VERSION


def test_children_are_listed_by_name_in_order(bench: Bench) -> None:
    bench.ask(Create("/a"), Create("/a/z"), Create("/a/b"), Create("/a/b/c"))
    assert bench.do(Children("/a")).names == ("b", "z")


def test_children_of_a_missing_node_are_a_fault(bench: Bench) -> None:
    assert bench.do(Children("/a")).fault is NO_NODE


def test_exists_finds_nothing_without_fault(bench: Bench) -> None:
    outcome = bench.do(Exists("/a"))
    assert (outcome.fault, outcome.stat) == (None, None)


def test_sequential_nodes_count_up(bench: Bench) -> None:
    bench.do(Create("/a"))
    paths = [bench.do(Create("/a/n_", sequential=True)).path for _ in range(2)]
    assert paths == ["/a/n_0000000000", "/a/n_0000000001"]


def test_sequence_numbers_do_not_come_again(bench: Bench) -> None:
    bench.do(Create("/a"))
    first = bench.do(Create("/a/n_", sequential=True)).path
    bench.do(Delete(first))
    assert bench.do(Create("/a/n_", sequential=True)).path > first


def test_an_ephemeral_node_names_its_session(bench: Bench) -> None:
    stat = bench.do(Create("/a", ephemeral=True)).stat
    assert stat is not None
    assert stat.session == bench.session


def test_an_ephemeral_node_has_no_children(bench: Bench) -> None:
    bench.do(Create("/a", ephemeral=True))
    assert bench.do(Create("/a/b")).fault is StoreFault.NO_CHILDREN_FOR_EPHEMERALS


def test_ephemeral_nodes_end_with_the_session_and_others_stay(bench: Bench) -> None:
    bench.ask(Create("/gone", ephemeral=True), Create("/stays", b"x"), SetData("/stays", b"y"))
    bench.reopen()
    gone, stays = bench.ask(Get("/gone"), Get("/stays"))
    assert gone.fault is NO_NODE
    assert (stays.data, stays.stat and stays.stat.version) == (b"y", 1)


def test_transaction_and_sequence_numbers_go_on_after_reopening(bench: Bench) -> None:
    bench.do(Create("/a"))
    before = bench.do(Create("/a/n_", sequential=True))
    bench.reopen()
    after = bench.do(Create("/a/n_", sequential=True))
    assert before.stat is not None
    assert after.stat is not None
    assert after.path == "/a/n_0000000001"
    assert after.stat.czxid > before.stat.czxid


def test_a_transaction_does_everything(bench: Bench) -> None:
    done = bench.do(Multi((Create("/a", b"1"), Create("/a/b"), SetData("/a", b"2"))))
    assert (done.fault, len(done.parts)) == (None, 3)
    assert bench.do(Get("/a")).data == b"2"


def test_a_transaction_tells_the_stat_and_the_name_of_what_it_made(bench: Bench) -> None:
    done = bench.do(Multi((Create("/m", b"1"), Create("/m/child", ephemeral=True), Create("/m/n", sequential=True))))
    child, numbered = bench.ask(Get("/m/child"), Get("/m/n0000000001"))
    assert [(part.path, part.stat) for part in done.parts[1:]] == [(each.path, each.stat) for each in (child, numbered)]


def test_a_transaction_may_be_of_hundreds_of_writes(bench: Bench) -> None:
    writes = [write for at in range(150) for write in (Create(f"/{at}"), Create(f"/{at}/state", b"x" * 100))]
    done = bench.do(Multi(tuple(writes)))
    assert (done.fault, [part.path for part in done.parts]) == (None, [write.path for write in writes])
    failed = bench.do(Multi((*(SetData(f"/{at}/state", b"y", 0) for at in range(150)), Delete("/149"))))
    assert [part.fault for part in failed.parts] == [StoreFault.ROLLED_BACK] * 150 + [StoreFault.NOT_EMPTY]
    found = bench.do(Get("/0/state"))
    assert (found.data, found.stat and found.stat.version) == (b"x" * 100, 0)


def test_a_transaction_that_fails_does_nothing(bench: Bench) -> None:
    bench.ask(Create("/old", b"1"), Create("/p"), Create("/p/c"))
    failed = bench.do(Multi((SetData("/old", b"2"), Delete("/p/c"), Create("/new"), Check("/old", 0))))
    assert [part.fault for part in failed.parts][-1] is BAD_VERSION
    old, new, children = bench.ask(Get("/old"), Exists("/new"), Children("/p"))
    assert (old.data, old.stat and old.stat.version, new.stat, children.names) == (b"1", 0, None, ("c",))


def test_a_failed_transaction_says_which_part_failed(bench: Bench) -> None:
    failed = bench.do(Multi((Create("/a"), Create("/a"), Create("/b"))))
    assert [part.fault for part in failed.parts] == [StoreFault.ROLLED_BACK, NODE_EXISTS, StoreFault.ROLLED_BACK]
    assert failed.fault is NODE_EXISTS


def test_a_fence_lets_the_current_version_through(bench: Bench) -> None:
    bench.ask(Create("/epoch", b"1"), SetData("/epoch", b"2"))
    assert bench.do(Multi((Check("/epoch", 1), Create("/a")))).fault is None
    assert bench.do(Multi((Check("/epoch", 0), Create("/b")))).fault is BAD_VERSION


def test_operations_of_one_submit_fail_one_by_one(bench: Bench) -> None:
    outcomes = bench.ask(Create("/a"), Create("/x/y"), Create("/b"))
    assert [outcome.fault for outcome in outcomes] == [None, NO_NODE, None]


def test_a_watch_on_data_fires_once(bench: Bench) -> None:
    bench.ask(Create("/a"), Get("/a", watch=True), SetData("/a", b"1"), SetData("/a", b"2"))
    assert bench.fired() == [NodeChanged("/a", "set")]


def test_a_watch_on_data_hears_of_the_deletion(bench: Bench) -> None:
    bench.ask(Create("/a"), Get("/a", watch=True), Delete("/a"))
    assert bench.fired() == [NodeChanged("/a", "deleted")]


def test_a_watch_on_children_fires_for_new_and_lost_ones_only(bench: Bench) -> None:
    bench.ask(Create("/a"), Children("/a", watch=True), SetData("/a", b"x"))
    assert bench.fired() == []
    bench.ask(Create("/a/b"), Create("/a/c"))
    assert bench.fired() == [NodeChanged("/a", "children")]
    bench.ask(Children("/a", watch=True), Delete("/a/b"))
    assert bench.fired() == [NodeChanged("/a", "children")]


def test_a_watch_on_a_missing_node_hears_of_its_birth(bench: Bench) -> None:
    bench.ask(Exists("/a", watch=True), Create("/a"))
    assert bench.fired() == [NodeChanged("/a", "made")]


def test_a_watch_that_finds_no_node_by_get_is_not_set(bench: Bench) -> None:
    bench.ask(Get("/a", watch=True), Create("/a"))
    assert bench.fired() == []


def test_a_watch_fires_before_an_answer_that_has_seen_the_change(bench: Bench) -> None:
    bench.ask(Create("/a"), Get("/a", watch=True))
    bench.store.submit([SetData("/a", b"x")], "set")
    bench.store.submit([Get("/a")], "read")
    kinds = [event.token if isinstance(event, StoreAnswer) else "fired" for event in bench.fired()]
    assert kinds.index("fired") < kinds.index("read")


def test_a_failed_transaction_fires_nothing(bench: Bench) -> None:
    bench.ask(Create("/a"), Get("/a", watch=True), Multi((SetData("/a", b"x"), Check("/none", 0))))
    assert bench.fired() == []
