"""The metadata store of a broker that is alone: the tree of nodes in memory, every change durable in SQLite.

Made by the composition root when no ZooKeeper is configured. A file `metadata.db` in the first log directory, whose
layout `tree_file.py` describes. One `submit` is one SQLite transaction, however many operations it has: one fsync.

When a change cannot be written (a full disk), nobody knows what will survive: the session ends, as ZooKeeper's would,
and a new one starts once what memory holds is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kbroker.ports import (
    Operation,
    Outcome,
    Post,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreFault,
)
from kbroker.runtime.tree_file import TreeFile

log = logging.getLogger("kbroker.store")


class EmbeddedStore:
    """A `kbroker.ports.MetadataStore` in a file; what happens is posted before `submit` returns."""

    def __init__(self, path: str, post: Post, later: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Open the file, made if missing, end the sessions of earlier lives, and start one.

        later: runs a job after a while, to try again what could not be written; without it, that is not tried again.
        Raises: OSError if the file cannot be opened, is taken by another process, or is not ours.
        """
        self._post = post
        self._later = later
        self._file = TreeFile(path)
        self._tree = self._file.tree
        self._session = self._file.session + 1
        self._is_up = True
        self._file.save(self._session)
        post(SessionStarted(self._session))

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Do these, make them durable, and post what they fired and the answer."""
        if not self._is_up:
            self._post(StoreAnswer(token, _lost(operations)))
            return
        outcomes = tuple(self._tree.apply(operation, self._session) for operation in operations)
        try:
            if self._tree.touched:
                self._file.save(self._session)
        except OSError as error:
            log.error("metadata cannot be written, the broker leaves its cluster until it can: %s", error)
            self._post(StoreAnswer(token, _lost(operations)))
            self._end_session()
            return
        for fired in self._tree.take_fired():
            self._post(fired.event)
        self._post(StoreAnswer(token, outcomes))

    def names_under(self, path: str) -> set[str]:
        """Names of a node's children, for whoever opened the store; none if there is no such node."""
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
        """What memory holds is written before anybody hears of it; if it cannot be yet, later."""
        try:
            self._file.save(self._session)
        except OSError:
            assert self._later is not None
            self._later(self._start_session)
            return
        log.info("metadata can be written again")
        self._is_up = True
        self._post(SessionStarted(self._session))

    def close(self) -> None:
        """End the session, and close the file."""
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
        self._file.abandon()


def _lost(operations: Sequence[Operation]) -> tuple[Outcome, ...]:
    return tuple(Outcome(StoreFault.SESSION_EXPIRED, "") for _ in operations)
