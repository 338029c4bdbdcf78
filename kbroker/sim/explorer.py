"""Every order of a few events, not only random ones: an explorer of a pure state machine's states.

A model says where it begins, which events each state allows and what a state is after one; `explore` goes through all
of them, breadth first, until no event leads to a state that is not known, or a bound is met. Each step is looked at by
the model's own invariants. The first that does not hold ends it, with the shortest sequence of events that leads there.

    explored = explore(Reconciliation(members=2, tasks=2))
    assert explored.closed

Models are small worlds around the code that a broker runs: `explored_*.py` beside this file. What they leave out a
simulation with seeds has (swarm.py). The idea is that of Stateright and of TLA+'s model checker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

from protocol.namedtuple import NamedTuple

S = TypeVar("S")
E = TypeVar("E", bound=Hashable)

MOST_STATES = 1_000_000


class Model(Protocol[S, E]):
    """What is explored."""

    def begins(self) -> Iterable[S]:
        """The states to begin with."""

    def events(self, state: S) -> Iterable[E]:
        """What can happen in a state."""

    def after(self, state: S, event: E) -> S | None:
        """The state that follows; None if nothing changes. Never changes `state` itself."""

    def key(self, state: S) -> Hashable:
        """What tells states apart: those with equal keys have the same future."""

    def objection(self, before: S, event: E, after: S) -> str | None:
        """What is wrong with a step, or the state that it leads to; None if nothing is."""


class Explored(NamedTuple):
    """How far it went. closed: every event of every state was followed. depth: of the state farthest away."""

    states: int
    transitions: int
    depth: int
    closed: bool


class ObjectionError(AssertionError):
    """An invariant does not hold. path: the events that lead there, as few as there can be."""

    def __init__(self, why: str, path: list[object]) -> None:
        steps = "".join(f"\n  {number}. {event}" for number, event in enumerate(path, 1))
        super().__init__(f"{why}, after:{steps}")
        self.why = why
        self.path = path


def explore(model: Model[S, E], most_states: int = MOST_STATES) -> Explored:
    """Go through the states of a model. Raises: ObjectionError."""
    came_by: dict[Hashable, tuple[Hashable, E] | None] = {}
    waiting: deque[tuple[S, Hashable, int]] = deque()
    for state in model.begins():
        key = model.key(state)
        if key not in came_by:
            came_by[key] = None
            waiting.append((state, key, 0))
    transitions = depth = 0
    closed = True
    while waiting:
        state, key, depth = waiting.popleft()
        for event in model.events(state):
            after = model.after(state, event)
            if after is None:
                continue
            transitions += 1
            why = model.objection(state, event, after)
            if why is not None:
                raise ObjectionError(why, [*_path(came_by, key), event])
            new = model.key(after)
            if new not in came_by:
                if len(came_by) >= most_states:
                    closed = False
                    continue
                came_by[new] = key, event
                waiting.append((after, new, depth + 1))
    return Explored(len(came_by), transitions, depth, closed)


def _path(came_by: dict[Hashable, tuple[Hashable, E] | None], key: Hashable) -> list[E]:
    events: list[E] = []
    while (step := came_by[key]) is not None:
        key, event = step
        events.append(event)
    return events[::-1]
