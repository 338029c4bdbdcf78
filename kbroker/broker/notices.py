"""Notices of one kind, by which brokers tell each other of changes: the children of one node, watched.

Used by what keeps an image of settings (`config_changes.py`) and of access rules (`acl_authorizer.py`). A notice says
what has changed; what is there now is read when the notice is handled, so that several at once, or one that came twice,
do no harm. Notices are thrown away PURGE_AFTER_MS after this broker first saw them, as Apache brokers do; a broker that
was away longer reads everything when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kbroker.config.limits import WRITTEN_AT_ONCE
from kbroker.metadata.steps import Procedure, SessionLostError, Steps
from kbroker.ports import Children, Delete, Get, NodeChanged, Outcome

if TYPE_CHECKING:
    from kbroker.timing import Scheduler

PURGE_AFTER_MS = 15 * 60 * 1000

Heed: TypeAlias = Callable[[Sequence[Outcome]], Procedure[None]]
"""Reads what some notices are about."""


class Notices:
    """What this broker has seen of the notices under a path."""

    def __init__(self, path: str, steps: Steps, scheduler: Scheduler, handle_changes: Heed) -> None:
        self._path = path
        self._steps = steps
        self._handle_changes = handle_changes
        self._seen_at_ms: dict[str, int] = {}  # by name, in order
        self._purge_at = scheduler.alarm(self._purge)
        self._is_reading = False
        self._is_stale = False  # changed again while it was being read

    def begin(self, now_ms: int, folders: Sequence[str] = ()) -> Procedure[Sequence[Outcome]]:
        """A session begins: watch, and take what is there for known; everything is to be read after this.

        folders: whose children are listed in the same step, behind the watch. Returns: those listings.
        """
        children, *listed = yield [Children(self._path, watch=True), *map(Children, folders)]
        self._seen_at_ms = {name: self._seen_at_ms.get(name, now_ms) for name in children.names}
        self._purge_in_time()
        return listed

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        if change.path != self._path:
            return False
        self._is_stale = True
        if not self._is_reading:
            self._is_reading = True
            self._steps.start(self._reading(now_ms), lambda _: self._end(), self._failed)
        return True

    def _end(self) -> None:
        self._is_reading = False

    def _failed(self, error: Exception) -> None:
        self._is_reading = False
        _only_lost(error)

    def _reading(self, now_ms: int) -> Procedure[None]:
        while self._is_stale:
            self._is_stale = False
            (children,) = yield [Children(self._path, watch=True)]
            fresh = [name for name in children.names if name not in self._seen_at_ms]
            self._is_stale |= len(fresh) > WRITTEN_AT_ONCE
            del fresh[WRITTEN_AT_ONCE:]  # the others follow: each may be about much
            answers = yield [Get(f"{self._path}/{name}") for name in fresh]
            for name in fresh:
                self._seen_at_ms[name] = now_ms
            self._purge_in_time()
            yield from self._handle_changes([answer for answer in answers if answer.fault is None])

    def _purge(self, now_ms: int) -> None:
        """Throw old notices away."""
        old = [name for name, seen_ms in self._seen_at_ms.items() if now_ms >= seen_ms + PURGE_AFTER_MS]
        if old:
            for name in old:
                del self._seen_at_ms[name]
            self._steps.start(self._deleting(old), failed=_only_lost)
        self._purge_in_time()

    def _deleting(self, names: Sequence[str]) -> Procedure[None]:
        yield [Delete(f"{self._path}/{name}") for name in names]

    def _purge_in_time(self) -> None:
        first_ms = next(iter(self._seen_at_ms.values()), None)
        if first_ms is not None:
            self._purge_at.set(first_ms + PURGE_AFTER_MS)


def _only_lost(error: Exception) -> None:
    if not isinstance(error, SessionLostError):
        raise error
