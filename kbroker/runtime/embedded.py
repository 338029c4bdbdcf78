"""The metadata store of a broker that is alone: the tree of nodes in memory, every change durable in SQLite.

Made by the composition root when no ZooKeeper is configured. A file `metadata.db` in the first log directory, whose
layout `tree_file.py` describes. Operations are done in memory at once; what they fired and their answers are posted
when the change is durable, in the order of the operations, reads behind writes included. Given a thread, writing leaves
the loop, and all that was submitted while one transaction is being written goes into the next: one fsync for all.

When a change cannot be written (a full disk), it is unknown what will survive: the session ends, as ZooKeeper's would,
and a new one starts once what memory holds is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from kbroker.ports import (
    Operation,
    Outcome,
    Post,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.tree_file import Change, TreeFile
from protocol.namedtuple import NamedTuple

log = logging.getLogger("kbroker.store")

Done: TypeAlias = Callable[[BaseException | None], None]
Run: TypeAlias = Callable[[Callable[[], None], Done], None]
"""Runs a job on a thread, then tells its end on the thread of the store."""


class _Said(NamedTuple):
    """What a submit has to say, once it is durable."""

    token: object
    outcomes: tuple[Outcome, ...]
    events: Sequence[StoreEvent]


class EmbeddedStore:
    """A `kbroker.ports.MetadataStore` in a file; without `run`, what happens is posted before `submit` returns."""

    def __init__(
        self,
        path: str,
        post: Post,
        later: Callable[[Callable[[], None]], object] | None = None,
        run: Run | None = None,
    ) -> None:
        """Open the file, made if missing, end the sessions of earlier lives, and start one.

        later: runs a job after a while, to try again what could not be written; without it, that is not tried again.
        run: where to wait for the disk; without it, here. Raises: OSError if the file cannot be opened, is taken by
        another process, or is not ours.
        """
        self._post = post
        self._later = later
        self._run = run or _run_here
        self._file = TreeFile(path)
        self._tree = self._file.tree
        self._session = self._file.session + 1
        self._is_up = True
        self._waiting: list[_Said] = []  # in order; what is being written is not among them
        self._writing: Change | None = None
        try:
            self._file.save(self._session)
        except BaseException:
            self._file.close()  # left to SQLite it would miss its log
            raise
        post(SessionStarted(self._session))

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Do these, make them durable, and post what they fired and the answer."""
        if not self._is_up:
            self._post(_lost(token, len(operations)))
            return
        outcomes = tuple(self._tree.apply(operation, self._session) for operation in operations)
        self._waiting.append(_Said(token, outcomes, [fired.event for fired in self._tree.take_fired()]))
        self._write_waiting()

    def _write_waiting(self) -> None:
        """Write what is to be written; say what is durable."""
        if self._writing is not None or not self._waiting:
            return
        said, self._waiting = self._waiting, []
        if self._tree.touched:
            self._write(partial(self._written, said))
        else:
            self._say(said)

    def _write(self, done: Done) -> None:
        change = self._writing = self._file.prepare(self._session)

        def written(error: BaseException | None) -> None:
            if self._writing is not change:
                return  # the store was closed meanwhile
            self._writing = None
            self._file.finish(change)
            done(error)
            if error is not None and not isinstance(error, OSError):
                raise error  # to the loop, which reports it: a bug

        self._run(partial(self._file.write, change), written)

    def _written(self, said: Sequence[_Said], error: BaseException | None) -> None:
        if error is None:
            self._say(said)
            self._write_waiting()
            return
        log.error("metadata cannot be written, the broker leaves its cluster until it can: %s", error)
        lost, self._waiting = [*said, *self._waiting], []
        for each in lost:
            self._post(_lost(each.token, len(each.outcomes)))
        self._end_session()

    def _say(self, said: Sequence[_Said]) -> None:
        for token, outcomes, events in said:
            for event in events:
                self._post(event)
            self._post(StoreAnswer(token, outcomes))

    def names_under(self, path: str) -> set[str]:
        """Names of a node's children, for the opener of the store; none if there is no such node."""
        node = self._tree.nodes.get(path)
        return set() if node is None else set(node.children)

    def _end_session(self) -> None:
        self._is_up = False
        self._tree.end_session(self._session)
        self._tree.take_fired()
        self._session += 1
        self._post(SessionExpired())
        if self._later is not None:
            self._later(self._start_session)

    def _start_session(self) -> None:
        """What memory holds is written before a session is told; if it cannot be yet, later."""
        if self._writing is None:
            self._write(self._started)

    def _started(self, error: BaseException | None) -> None:
        if error is not None:
            assert self._later is not None
            self._later(self._start_session)
            return
        log.info("metadata can be written again")
        self._is_up = True
        self._post(SessionStarted(self._session))

    def close(self) -> None:
        """End the session, wait for what is being written, and close the file."""
        self._call_off()
        self._tree.end_session(self._session)
        try:
            self._file.save(self._session)
        except OSError as error:
            log.error("metadata cannot be written: %s", error)
        self._file.close()

    def abandon(self) -> None:
        """Close the file, and leave the session to the next opening, as a process does that is killed."""
        self._is_up = False
        self._post = lambda _: None
        self._call_off()
        self._file.abandon()

    def _call_off(self) -> None:
        """What is being written is waited for; what has not been begun never is; no caller is told."""
        change, self._writing = self._writing, None
        self._waiting = []
        if change is not None:
            self._file.finish(change)


def _run_here(job: Callable[[], None], done: Done) -> None:
    try:
        job()
    except OSError as error:
        done(error)
    else:
        done(None)


def _lost(token: object, count: int) -> StoreAnswer:
    return StoreAnswer(token, tuple(Outcome(StoreFault.SESSION_EXPIRED, "") for _ in range(count)))
