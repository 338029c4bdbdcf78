"""The one rule for operations of which nobody knows whether they were done: each kind, done and not done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from kbroker.metadata.steps import Procedure, SessionLostError, Steps
from kbroker.ports import (
    Check,
    Children,
    Create,
    Delete,
    Get,
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
from kbroker.sim.store import Ensemble

BAD_VERSION, NODE_EXISTS, NO_NODE = StoreFault.BAD_VERSION, StoreFault.NODE_EXISTS, StoreFault.NO_NODE


class Bench:
    """Steps on a store whose messages arrive one by one. `others` do things at once, in a session of their own."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.ensemble = Ensemble(lambda _, job: self.jobs.append(job), lambda: 0)
        self.events: list[StoreEvent] = []
        self.store = self.ensemble.connect(self.post)
        self.steps = Steps(self.store)
        self.arrive()
        self.results: list[object] = []

    def post(self, event: StoreEvent) -> None:
        if isinstance(event, StoreAnswer):
            self.steps.resume(event)
        elif isinstance(event, SessionStarted):
            self.steps.session = event.session
        else:
            self.events.append(event)

    def arrive(self, count: int = 1000) -> None:
        """So many messages arrive."""
        for _ in range(count):
            if self.jobs:
                self.jobs.popleft()()

    def run(self, *operations: Operation) -> None:
        self.steps.start(step(operations), self.results.append, self.results.append)

    def others(self, *operations: Operation) -> list[Outcome]:
        return [self.ensemble.tree.apply(operation, 99) for operation in operations]

    def outcome(self) -> Outcome:
        """Of a step of one operation, once everything has arrived."""
        self.arrive()
        (outcomes,) = self.results
        assert isinstance(outcomes, Sequence)
        (outcome,) = outcomes
        assert isinstance(outcome, Outcome)
        return outcome

    def data(self, path: str) -> bytes:
        return self.ensemble.tree.nodes[path].data


def step(operations: Sequence[Operation]) -> Procedure[object]:
    return (yield operations)


def done_and_lost(*operations: Operation, before: Sequence[Operation] = (), between: Sequence[Operation] = ()) -> Bench:
    """A step that the store has done and whose answer was lost. between: what others did before it was asked again."""
    bench = Bench()
    bench.others(*before)
    bench.run(*operations)
    bench.arrive(1)
    bench.store.lose_connection()
    bench.others(*between)
    return bench


A, MINE, THEIRS = "/a", b"mine", b"theirs"


# -- done, and the answer lost


def test_a_node_that_was_made_counts_as_made() -> None:
    outcome = done_and_lost(Create(A, MINE)).outcome()
    assert outcome.fault is None
    assert outcome.stat is not None
    assert outcome.stat.version == 0


def test_an_ephemeral_node_that_was_made_is_ours() -> None:
    bench = done_and_lost(Create(A, MINE, ephemeral=True))
    outcome = bench.outcome()
    assert outcome.fault is None
    assert outcome.stat is not None
    assert outcome.stat.session == bench.store.session


def test_data_that_was_set_counts_as_set_and_is_set_once() -> None:
    outcome = done_and_lost(SetData(A, MINE, 0), before=[Create(A)]).outcome()
    assert outcome.fault is None
    assert outcome.stat is not None
    assert outcome.stat.version == 1


def test_a_node_that_was_deleted_counts_as_deleted() -> None:
    outcome = done_and_lost(Delete(A, 0), before=[Create(A)]).outcome()
    assert outcome == Outcome(None, A)


def test_a_transaction_that_was_done_counts_as_done_with_all_its_parts() -> None:
    before = [Create(A), Create("/fence"), Create("/gone")]
    bench = done_and_lost(
        Multi((Check("/fence", 0), SetData(A, MINE, 0), Create("/b", MINE), Delete("/gone", 0))), before=before
    )
    outcome = bench.outcome()
    assert outcome.fault is None
    assert [part.path for part in outcome.parts] == ["/fence", A, "/b", "/gone"]
    assert [part.stat and part.stat.version for part in outcome.parts] == [None, 1, 0, None]


def test_a_transaction_that_was_done_counts_even_if_its_fence_has_fallen_since() -> None:
    before = [Create(A), Create("/fence")]
    bench = done_and_lost(
        Multi((Check("/fence", 0), SetData(A, MINE, 0))), before=before, between=[SetData("/fence", b"1", 0)]
    )
    assert bench.outcome().fault is None


def test_a_read_that_was_lost_is_read_again() -> None:
    bench = done_and_lost(Get(A, watch=True), before=[Create(A, b"old")], between=[SetData(A, b"new")])
    assert bench.outcome().data == b"new"


def test_a_watch_that_was_lost_is_set_again() -> None:
    bench = done_and_lost(Children("/", watch=True))
    bench.outcome()
    bench.others(Create(A))
    bench.ensemble.spread()
    bench.arrive()
    assert bench.events == [NodeChanged("/", "children")]


# -- not done


def test_what_did_not_arrive_is_done_now() -> None:
    bench = Bench()
    bench.run(Create(A, MINE))
    bench.store.lose_connection()
    assert bench.outcome().fault is None
    assert bench.data(A) == MINE


def test_of_a_step_what_was_done_is_told_from_what_was_not() -> None:
    bench = Bench()
    bench.run(Create("/a", MINE), Create("/b", MINE), Create("/a/c", MINE), Get("/b"))
    bench.store.lose_connection(done=1)
    bench.arrive()
    (outcomes,) = bench.results
    assert isinstance(outcomes, Sequence)
    assert [outcome.fault for outcome in outcomes] == [None, None, None, None]
    assert bench.ensemble.tree.zxid > 3  # the first was done once more, in vain


def test_another_brokers_node_is_not_taken_for_ours() -> None:
    bench = Bench()
    bench.run(Create(A, MINE))
    bench.store.lose_connection()
    bench.others(Create(A, THEIRS))
    assert bench.outcome().fault is NODE_EXISTS


def test_another_sessions_node_is_not_taken_for_ours_whatever_its_data() -> None:
    bench = Bench()
    bench.run(Create(A, MINE, ephemeral=True))
    bench.store.lose_connection()
    bench.others(Create(A, MINE, ephemeral=True))
    assert bench.outcome().fault is NODE_EXISTS


def test_a_node_that_stays_is_not_taken_for_an_ephemeral_one() -> None:
    bench = Bench()
    bench.run(Create(A, MINE))
    bench.store.lose_connection()
    bench.others(Create(A, MINE, ephemeral=True))
    assert bench.outcome().fault is NODE_EXISTS


def test_data_that_another_has_set_is_not_taken_for_ours() -> None:
    bench = Bench()
    bench.others(Create(A))
    bench.run(SetData(A, MINE, 0))
    bench.store.lose_connection()
    bench.others(SetData(A, THEIRS, 0))
    assert bench.outcome().fault is BAD_VERSION


def test_the_same_data_of_a_later_version_is_not_taken_for_ours() -> None:
    bench = Bench()
    bench.others(Create(A))
    bench.run(SetData(A, MINE, 0))
    bench.store.lose_connection()
    bench.others(SetData(A, THEIRS, 0), SetData(A, MINE, 1))
    assert bench.outcome().fault is BAD_VERSION


def test_a_node_that_another_has_made_anew_is_not_taken_for_deleted() -> None:
    bench = Bench()
    bench.others(Create(A), SetData(A, b"x"))
    bench.run(Delete(A, 0))
    bench.store.lose_connection()
    assert bench.outcome().fault is BAD_VERSION


def test_a_transaction_of_which_a_part_is_not_there_was_not_done() -> None:
    bench = Bench()
    bench.others(Create(A), Create("/fence"))
    bench.run(Multi((Check("/fence", 0), SetData(A, MINE, 0), Create("/b", MINE))))
    bench.store.lose_connection()
    bench.others(SetData("/fence", b"1"), Create("/b", MINE))
    outcome = bench.outcome()
    assert outcome.parts[0].fault is BAD_VERSION
    assert bench.data(A) == b""


def test_a_deletion_behind_a_fence_that_has_fallen_counts_as_not_done() -> None:
    before = [Create(A), Create("/fence")]
    bench = done_and_lost(Multi((Check("/fence", 0), Delete(A))), before=before, between=[SetData("/fence", b"1", 0)])
    assert bench.outcome().parts[0].fault is BAD_VERSION


def test_a_deletion_behind_a_fence_that_stands_counts_as_done() -> None:
    bench = done_and_lost(Multi((Check("/fence", 0), Delete(A))), before=[Create(A), Create("/fence")])
    assert bench.outcome().fault is None


def test_a_fault_that_a_first_try_cannot_cause_is_told_as_it_is() -> None:
    bench = Bench()
    bench.others(Create(A), Create("/a/b"))
    bench.run(Delete(A))
    bench.store.lose_connection()
    assert bench.outcome().fault is StoreFault.NOT_EMPTY


# -- again and again


@pytest.mark.parametrize("messages", range(6))
def test_the_connection_may_be_lost_again_while_it_is_found_out(messages: int) -> None:
    bench = done_and_lost(SetData(A, MINE, 0), before=[Create(A)])
    bench.arrive(messages)
    bench.store.lose_connection()
    assert bench.outcome().fault is None
    assert bench.ensemble.tree.nodes[A].version == 1


def test_a_session_that_ends_meanwhile_ends_the_procedure() -> None:
    bench = done_and_lost(Create(A, MINE))
    bench.store.expire()
    bench.arrive()
    assert [type(result) for result in bench.results] == [SessionLostError]
    assert not bench.steps.busy


def test_a_procedure_in_doubt_is_busy() -> None:
    bench = done_and_lost(Create(A, MINE))
    bench.arrive(2)
    assert bench.steps.busy
    bench.arrive()
    assert not bench.steps.busy
