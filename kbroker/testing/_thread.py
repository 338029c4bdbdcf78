"""A node on a thread of its own, with a loop of its own: started, asked, paused, ended from the test's thread.

All that touches the node runs on its thread; the test's hands work over by `call` and waits for the outcome.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from kbroker.config import Given
from kbroker.runtime.loop import Loop
from kbroker.runtime.node import Host, Node, StartupError
from kbroker.usage import UsageError

log = logging.getLogger("kbroker.testing")

START_S = 30.0
CALL_S = 30.0

Result = TypeVar("Result")


class NodeThread:
    """One life of a broker. failed: exceptions that escaped on its loop, each a bug of the broker's."""

    def __init__(self, static: dict[str, Given], host: Host, name: str) -> None:
        self.failed: list[Exception] = []
        self._static = static
        self._host = host
        self._name = name
        self._thread = threading.Thread(target=self._run, name=f"kbroker-{name}", daemon=True)
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._node: Node | None = None  # once it is open
        self._started: Future[Node] = Future()
        self._asked: set[Future[Any]] = set()  # calls whose outcome a thread waits for
        self._gate = threading.Event()  # closed while the broker is paused
        self._gate.set()
        self._ending = ""
        self._why_ended = "was stopped"

    def start(self) -> Node:
        """Until it serves. Raises: ConfigError, StartupError, OSError, and then its thread has ended."""
        self._thread.start()
        try:
            return self._started.result(START_S)
        except BaseException as error:  # an interrupt, too: no other code knows of the thread yet
            is_late = isinstance(error, TimeoutError) and not self._started.done()
            self._end("kill")
            if is_late:
                raise StartupError(f"{self._name} does not serve after {START_S:g} s") from None
            raise

    def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the node's thread, between two events; its result, or what it raises."""
        outcome: Future[Result] = Future()

        def run() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(work())
                except BaseException as error:
                    outcome.set_exception(error)

        self._asked.add(outcome)
        try:
            self._post(run)
            return outcome.result(CALL_S)
        except TimeoutError:
            raise UsageError(f"{self._name} does not answer; is it paused? Call resume() first") from None
        finally:
            self._asked.discard(outcome)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, and is not about to by itself."""
        return self._loop is not None and not (self._node is not None and self._node.fatal)

    @property
    def is_paused(self) -> bool:
        """Whether it does nothing at the moment."""
        return not self._gate.is_set()

    def pause(self) -> None:
        """Let it do nothing until `resume`: connections stay, no client is answered. Returns once it has stopped."""
        stands = threading.Event()

        def stand() -> None:
            stands.set()
            self._gate.wait()

        if self._gate.is_set():
            self._gate.clear()
            self._post(stand)
            stands.wait(CALL_S)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._gate.set()

    def stop(self) -> None:
        """A clean stop; returns when it has ended."""
        self._end("stop")

    def kill(self) -> None:
        """The end of a killed process; returns when it has ended."""
        self._end("kill")

    def _end(self, how: str) -> None:
        self._ending = how
        self._gate.set()
        with suppress(UsageError):
            self._post(lambda: None)
        self._thread.join()

    def _post(self, work: Callable[[], object]) -> None:
        with self._lock:
            if self._loop is None:
                raise UsageError(f"{self._name} {self._why_ended}: call start() first")
            self._loop.call_from_thread(work)

    # -- on the thread

    def _run(self) -> None:
        try:
            loop = Loop()
        except OSError as error:
            self._started.set_exception(error)
            return
        loop.failed = self._note_failure
        try:
            node = Node(self._static, loop, self._host)
            node.open()
            self._node = node
        except BaseException as error:
            loop.close()
            self._started.set_exception(error)
            return
        self._loop = loop
        try:
            self._live(loop, node)
        finally:
            with self._lock:
                self._loop = None
                loop.close()
            for outcome in list(self._asked):
                with suppress(Exception):
                    outcome.set_exception(UsageError(f"{self._name} {self._why_ended}: call start() first"))

    def _live(self, loop: Loop, node: Node) -> None:
        loop.run_until(lambda: node.ready or node.fatal or self._ending)
        if node.ready:
            node.serve()
            self._started.set_result(node)
            loop.run_until(lambda: self._ending or node.fatal)
        if node.fatal:
            self._why_ended = f"ended by itself ({node.fatal})"
        if self._ending == "kill":
            node.kill()
        else:
            node.stop()
        if not self._started.done():
            self._started.set_exception(StartupError(node.fatal or f"{self._name} was ended while it started"))

    def _note_failure(self, error: Exception) -> None:
        self.failed.append(error)
        log.error("%s failed", self._name, exc_info=error)
