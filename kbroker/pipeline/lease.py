"""One job at a time writes an archive or a mirror's state: it says so in the folder, and again while it lives.

Called by archive and mirror. The highest number is the owner:

    _jobs/N.json    host, process, began, beats: how often it has said that it lives, over: whether it has ended

A job that finds another one at work ends with a line. One that was killed is known by its process if it ran on this
machine, and elsewhere by its beats: none for LEASE_S, by the clock of the one that waits. An owner that stood still for
so long finds the folder taken: `check` says so, and what it would commit by is taken too (manifests.fence).
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage import Storage
from kbroker.runtime.platform import pid_namespace

FOLDER = "_jobs"
BEAT_S, LEASE_S = 5.0, 30.0
"""How often an owner says that it lives, and after how long without a word it is taken for dead."""
_TRIES = 100
_HELD: set[str] = set()
"""The leases that this process has."""


class Lease:
    """What makes a job the only one; as a context it ends with the job. It is had from `acquire` on."""

    def __init__(self, store: Storage) -> None:
        self._store, self._token = store, uuid.uuid4().hex
        self._name, self._beats, self._said_s = "", 0, 0.0
        self._lost, self._beat_s = False, BEAT_S
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.follows_a_dead_one = False
        self._began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._name:
            self._over.set()
            self._thread.join()
            with suppress(Exception):  # where the job has failed, this need not work either: it is known by its process
                self._say()
        _HELD.discard(self._token)

    def acquire(self) -> None:
        """Become the owner. Raises PipelineError if another job is."""
        for _ in range(_TRIES):
            names = self._names()
            self.follows_a_dead_one = bool(names) and self._has_died(names[-1])
            name = f"{int(names[-1].partition('.')[0]) + 1 if names else 0:010}.json"
            _HELD.add(self._token)
            if self._store.create_json(f"{FOLDER}/{name}", self._state()):
                now = self._names()
                if now[-1] == name:
                    for each in now[:-1]:
                        self._store.delete(f"{FOLDER}/{each}")
                    self._name, self._said_s = name, time.monotonic()
                    self._thread.start()
                    return
                self._store.delete(f"{FOLDER}/{name}")  # it was another's number before, and was removed
        raise PipelineError(f"{self._store.root}: other jobs begin and end there all the time: start this one again")

    def check(self) -> None:
        """Raises PipelineError if another job has become the owner."""
        if not self._lost and time.monotonic() - self._said_s > LEASE_S / 2:
            self._say()
        if self._lost:
            raise PipelineError(taken(self._store))

    def _names(self) -> list[str]:
        return [name for name in self._store.names(FOLDER) if not name.startswith(".")]

    def _state(self) -> dict[str, Any]:
        return {
            "host": platform.node(),
            "process": os.getpid(),
            "namespace": pid_namespace(),
            "began": self._began,
            "lease": self._token,
            "beats": self._beats,
            "over": self._over.is_set(),
        }

    def _live(self) -> None:
        while not self._over.wait(self._beat_s):
            with suppress(Exception):  # the store is away: `check` tells, if it stays so
                self._say()

    def _say(self) -> None:
        """That the owner lives, or that its job is over."""
        with self._lock:
            if self._names()[-1:] != [self._name]:
                self._lost = True
                return
            self._beats += 1
            self._store.write_json(f"{FOLDER}/{self._name}", self._state())
            self._said_s = time.monotonic()

    def _has_died(self, name: str) -> bool:
        """Whether the owner of this name ended without a word; False if it ended in good order. Raises PipelineError if
        it lives."""
        first: dict[str, Any] | None = None
        until_s = time.monotonic() + LEASE_S
        while True:
            try:
                now = self._store.read_json_if_there(f"{FOLDER}/{name}")
            except PipelineError:  # it is being written at this moment
                now = {"over": False}
            if now is None or now["over"]:
                return False
            if "beats" in now:
                first = first or now
                if now["beats"] != first["beats"] or now["lease"] in _HELD:
                    raise PipelineError(
                        f"{self._store.root} is being written by another job: process {now['process']} on "
                        f"{now['host']}, since {now['began']}: let it end, or stop it, then start this one again"
                    )
                if _is_dead(now):
                    return True
            if time.monotonic() > until_s:
                return True
            threading.Event().wait(self._beat_s / 5)


def taken(store: Storage) -> str:
    """What a user is told whose job is not the owner any more."""
    return f"{store.root} was taken over by another job, for this one had stood still: one of them is enough"


def _is_dead(owner: dict[str, Any]) -> bool:
    """Whether its process is known to be gone: one of this machine, and of this container."""
    mine = owner["host"] == platform.node() and owner["namespace"] == pid_namespace()
    if not mine or os.name != "posix":
        return False
    if owner["process"] == os.getpid():
        return owner["lease"] not in _HELD
    try:
        os.kill(owner["process"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
