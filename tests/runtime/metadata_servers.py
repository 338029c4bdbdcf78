"""A metadata server on a thread of its own, for tests that come to it by socket."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.runtime.loop import Loop
from kbroker.runtime.metadata_server.server import MetadataServer

PATIENCE_S = 30.0


class RunningServer:
    """Started by `with`; stopped, and started again on the same port and file, as a test likes."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "metadata.db")
        self.port = 0
        self.failed: list[OSError] = []
        self._loop: Loop | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._ending = False
        loop = self._loop = Loop()
        self.server = MetadataServer(loop, self._path, port=self.port, failed=self.failed.append)
        self.port = self.server.port
        self._thread = threading.Thread(target=loop.run_until, args=(lambda: self._ending,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._ending = True
        loop.call_from_thread(lambda: None)
        self._thread.join(PATIENCE_S)
        self.server.close()
        loop.close()

    def await_turns(self) -> None:
        """Until what was sent so far is done, and what follows it."""
        for _ in range(3):  # the first may come before what was sent, the second before what follows it
            with self.paused():
                pass

    def paused(self) -> Pause:
        """Nothing is listened to within `with`."""
        assert self._loop is not None
        return Pause(self._loop)


class Pause:
    """The loop stands still from `__enter__` to `__exit__`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stands, self._gate = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self._loop.call_from_thread(self._stand)
        assert self._stands.wait(PATIENCE_S)

    def __exit__(self, *_: object) -> None:
        self._gate.set()

    def _stand(self) -> None:
        self._stands.set()
        self._gate.wait(PATIENCE_S)
