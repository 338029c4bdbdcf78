"""A metadata store that several brokers of one process share, each from its own thread.

Made by `kbroker.testing` for a cluster. The tree is in memory, and in a file if one is named, where every change is
durable before it is answered. A lock makes each `submit` one step; each client gives a `post` that may be called
from any thread and does no more than pass the event on.

A broker that was killed leaves its session behind; `end_abandoned` ends those, as ZooKeeper does when it has heard
nothing for zookeeper.session.timeout.ms. `expire` ends the session of one that lives. When a change cannot be written
to the file, its outcome is not known: the session that submitted it is over, and a new one follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from kbroker.metadata.tree import Tree
from kbroker.ports import Delete, Operation, Outcome, Post, SessionExpired, SessionStarted, StoreAnswer, StoreFault
from kbroker.runtime.tree_file import TreeFile

log = logging.getLogger("kbroker.store")


class SharedStore:
    """The tree, and who is connected to it. lock: held by the code that touches either."""

    def __init__(self, path: str | None = None) -> None:
        """path: of the file; None: memory alone. Raises: OSError."""
        self.lock = threading.RLock()
        self._file = TreeFile(path) if path is not None else None
        self._tree = self._file.tree if self._file is not None else Tree()
        self._last_session = self._file.session if self._file is not None else 0
        self._sessions: dict[int, SharedSession | None] = {}  # None: whose it was has abandoned it

    def connect(self, post: Post) -> SharedSession:
        """A store for one broker; its session has started when this returns."""
        with self.lock:
            return SharedSession(self, post)

    def read(self, path: str) -> bytes | None:
        """A node's data, for a caller without a session; None if there is no such node."""
        with self.lock:
            node = self._tree.nodes.get(path)
            return None if node is None else node.data

    def remove(self, path: str) -> None:
        """Delete a node, for a caller without a session; nothing happens if there is none."""
        with self.lock:
            self.submit([Delete(path)], 0)

    def expire(self, session: int) -> None:
        """End a session as ZooKeeper would; its broker is told, and has a new one."""
        with self.lock:
            client = self._sessions.get(session)
            self.end(session)
            if client is not None:
                client.start_again()

    def end_abandoned(self) -> None:
        """End the sessions that brokers have left behind."""
        with self.lock:
            for session in [number for number, client in self._sessions.items() if client is None]:
                self.end(session)

    def close(self) -> None:
        """Give the file back. Every session was ended before."""
        with self.lock:
            self.end_abandoned()
            if self._file is not None:
                self._file.close()

    # -- for its sessions, which hold the lock

    def enter(self, client: SharedSession) -> int:
        """A session for a client."""
        self._last_session += 1
        self._sessions[self._last_session] = client
        return self._last_session

    def submit(self, operations: Sequence[Operation], session: int) -> tuple[Outcome, ...] | None:
        """Do these and tell the watchers; the outcomes, None if it is not known whether they survive."""
        outcomes = tuple(self._tree.apply(operation, session) for operation in operations)
        try:
            self._save()
        except OSError as error:
            log.error("metadata cannot be written, session %d is over: %s", session, error)
            self._spread()
            return None
        self._spread()
        return outcomes

    def abandon(self, session: int) -> None:
        """The session's broker is gone without a word."""
        self._sessions[session] = None

    def end(self, session: int) -> None:
        """A session is over: its ephemeral nodes and watches go; nothing happens if it was over before."""
        if session not in self._sessions:
            return
        del self._sessions[session]
        self._tree.end_session(session)
        try:
            self._save()
        except OSError as error:  # the next opening ends it
            log.error("metadata cannot be written: %s", error)
        self._spread()

    def _save(self) -> None:
        if self._file is None:
            self._tree.touched.clear()
        elif self._tree.touched:
            self._file.save(self._last_session)

    def _spread(self) -> None:
        for session, event in self._tree.take_fired():
            client = self._sessions.get(session)
            if client is not None:
                client.post(event)


class SharedSession:
    """One broker's connection: a `kbroker.ports.MetadataStore`. session: the one it has now."""

    def __init__(self, store: SharedStore, post: Post) -> None:
        self.post = post
        self._store = store
        self.session = store.enter(self)
        post(SessionStarted(self.session))

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Do these and post what they fired, to all sessions, and the answer."""
        with self._store.lock:
            outcomes = self._store.submit(operations, self.session)
            if outcomes is not None:
                self.post(StoreAnswer(token, outcomes))
                return
            self.post(StoreAnswer(token, tuple(Outcome(StoreFault.SESSION_EXPIRED, "") for _ in operations)))
            self._store.end(self.session)
            self.start_again()

    def start_again(self) -> None:
        """The session is over: say so, and have another."""
        self.post(SessionExpired())
        self.session = self._store.enter(self)
        self.post(SessionStarted(self.session))

    def close(self) -> None:
        """End the session."""
        with self._store.lock:
            self._store.end(self.session)

    def abandon(self) -> None:
        """Leave the session behind; nothing is posted any more."""
        with self._store.lock:
            self._store.abandon(self.session)
