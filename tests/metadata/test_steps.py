"""Procedures of several steps: resumed with outcomes, ended by sessions, each by itself."""

from __future__ import annotations

import pytest

from kbroker.metadata.steps import Procedure, SessionLostError, Steps
from kbroker.ports import Create, Get, Operation, StoreAnswer, StoreEvent
from kbroker.sim.store import Ensemble


class Bench:
    """Steps over a simulated store whose events wait to be handed over."""

    def __init__(self) -> None:
        self.events: list[StoreEvent] = []
        self.store = Ensemble().connect(self.events.append)
        self.steps = Steps(self.store)
        self.results: list[object] = []

    def run(self, procedure: Procedure[object]) -> None:
        self.steps.run(procedure, self.results.append, self.results.append)

    def turn(self) -> int:
        """Hand over what is there. Returns: how many answers."""
        events, self.events[:] = list(self.events), []
        answers = [event for event in events if isinstance(event, StoreAnswer)]
        for answer in answers:
            self.steps.answer(answer)
        return len(answers)


def copy(source: str, target: str) -> Procedure[object]:
    (found,) = yield [Get(source)]
    (made,) = yield [Create(target, found.data)]
    return made.fault or target


def nothing() -> Procedure[object]:
    no_operations: list[Operation] = []
    outcomes = yield no_operations
    return outcomes


def test_a_procedure_takes_a_turn_for_each_step() -> None:
    bench = Bench()
    bench.store.submit([Create("/a", b"x")], "mine")
    bench.events.clear()
    bench.run(copy("/a", "/b"))
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, [], True)
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, ["/b"], False)


def test_procedures_run_side_by_side() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.run(copy("/a", "/c"))
    bench.turn()
    bench.turn()
    assert bench.results == ["/b", "/c"]


def test_a_step_without_operations_takes_no_turn() -> None:
    bench = Bench()
    bench.run(nothing())
    assert bench.results == [()]


def test_a_lost_session_ends_a_procedure() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.turn()
    bench.events.clear()
    bench.store.cut()
    bench.run(copy("/a", "/c"))
    bench.store.expire()
    bench.store.heal()
    bench.turn()
    assert [type(result) for result in bench.results] == [SessionLostError]


def test_a_procedure_may_clean_up_after_a_lost_session() -> None:
    def careful() -> Procedure[object]:
        try:
            yield [Get("/a")]
        except SessionLostError:
            return "cleaned up"

    bench = Bench()
    bench.store.cut()
    bench.run(careful())
    bench.store.expire()
    bench.store.heal()
    bench.turn()
    assert bench.results == ["cleaned up"]


def test_an_error_goes_up_where_nobody_takes_it() -> None:
    def wrong() -> Procedure[object]:
        yield [Get("/a")]
        raise RuntimeError("wrong")

    bench = Bench()
    bench.steps.run(wrong())
    with pytest.raises(RuntimeError):
        bench.turn()
