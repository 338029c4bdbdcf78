"""Procedures of several steps on the metadata store, written as generators.

A procedure yields the operations of its next step and gets their outcomes back; `Steps` sends them and resumes it when
the answer comes. So what needs five round trips reads from top to bottom, and nothing waits. Used by the controller,
which runs one procedure at a time, and by admin requests, each a procedure of its own.

    def rename(old, new):
        (found,) = yield [Get(old)]
        created, deleted = yield [Create(new, found.data), Delete(old)]
        return created.stat
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from kbroker.ports import MetadataStore, Operation, Outcome, StoreAnswer, StoreFault

T = TypeVar("T")
Procedure: TypeAlias = Generator[Sequence[Operation], Sequence[Outcome], T]


class SessionLostError(Exception):
    """Raised in a procedure whose session ended under it: nobody knows what its last step did."""


class Steps:
    """The procedures under way on one store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._running = 0

    @property
    def busy(self) -> bool:
        """Whether a procedure waits for an answer."""
        return self._running > 0

    def run(
        self,
        procedure: Procedure[T],
        done: Callable[[T], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Start a procedure. done: gets what it returns. failed: gets what it raises; without it, errors go up."""
        self._resume(_Running(procedure, done, failed), None)

    def answer(self, answer: StoreAnswer) -> None:
        """The outcomes of a step are there."""
        assert isinstance(answer.token, _Running), answer
        self._running -= 1
        self._resume(answer.token, answer.outcomes)

    def _resume(self, running: _Running, outcomes: tuple[Outcome, ...] | None) -> None:
        try:
            operations: Sequence[Operation] = ()
            while not operations:  # a step without operations is answered here
                if outcomes is None:
                    operations = next(running.procedure)
                elif any(outcome.fault is StoreFault.SESSION_EXPIRED for outcome in outcomes):
                    operations = running.procedure.throw(SessionLostError())
                else:
                    operations = running.procedure.send(outcomes)
                outcomes = ()
        except StopIteration as stop:
            if running.done is not None:
                running.done(stop.value)
        except Exception as error:
            if running.failed is None:
                raise
            running.failed(error)
        else:
            self._running += 1
            self._store.submit(operations, running)


class _Running:
    """A procedure between two steps; the token of its step."""

    __slots__ = ("done", "failed", "procedure")

    def __init__(
        self,
        procedure: Procedure[Any],
        done: Callable[[Any], None] | None,
        failed: Callable[[Exception], None] | None,
    ) -> None:
        self.procedure = procedure
        self.done = done
        self.failed = failed
