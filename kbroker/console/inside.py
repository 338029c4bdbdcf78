"""The console's end of the socket to the broker that has started it: one question at a time, from any thread."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from kbroker.console.cluster import ConsoleError

ANSWER_S = 10.0
ANSWER_BYTES = 64 << 20


class Inside:
    """What the broker tells of itself."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._watched = talk.dup()  # asked by another thread, which waits for nothing
        self._watched.settimeout(0)
        self._file = talk.makefile("rb")
        self._lock = threading.Lock()
        self._number = 0

    def options(self) -> dict[str, Any]:
        """What the console is to be: the first line. Raises: OSError, ValueError."""
        found: dict[str, Any] = json.loads(self._file.readline(ANSWER_BYTES))
        self._talk.settimeout(ANSWER_S)
        return found

    def ask(self, what: str, **given: Any) -> Any:
        """The answer to a question of `looks.py`. Raises: ConsoleError."""
        with self._lock:
            self._number += 1
            question = {"id": self._number, "ask": what, "with": given}
            try:
                self._talk.sendall(json.dumps(question).encode() + b"\n")
                while True:
                    answer = json.loads(self._file.readline(ANSWER_BYTES))
                    if answer.get("id") == self._number:  # else of one that was not waited for any longer
                        break
            except (OSError, ValueError):
                raise ConsoleError("the broker does not answer", 503) from None
        if "error" in answer:
            raise ConsoleError(str(answer["error"]))
        return answer["answer"]

    def samples(self) -> list[dict[str, float]]:
        """What the curves are made of: counters by name, and when they stood there, `at_s`. Raises: ConsoleError."""
        found: list[dict[str, float]] = self.ask("samples")
        return found

    def ended(self) -> bool:
        """Whether the broker has hung up."""
        try:
            return self._watched.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
