"""The broker's end of its console: a process of its own, which asks over one socket what only the broker knows.

Made by `kbroker start` where `console.listener` is set. The console listens on a socket that the broker has bound, so
that a port which is taken is told at the start. The process begins with the first browser that comes: who opens no page
pays for none. Samples for curves of an hour are taken by the broker, so that they are there then. Questions and
answers are lines of JSON (`looks.py`); they are read and written on the broker's loop as its clients' bytes are, and
never waited for. A console that ends before its broker is started again after a while.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.console import SAMPLED_S
from kbroker.runtime.compaction_beside import command

if TYPE_CHECKING:
    from kbroker.console.looks import Looks
    from kbroker.runtime.loop import Loop

log = logging.getLogger("kbroker.console")

AGAIN_S, MOST_AGAIN_S = 1.0, 60.0  # twice as long each time, until it has asked something
QUESTION_BYTES = 1 << 20
RECEIVE_BYTES = 64 << 10
TALK_FD, LISTEN_FD = 3, 4  # of the console's process


class Beside:
    """The console's process while the broker runs. listening: bound and listening; closed with this."""

    def __init__(self, loop: Loop, looks: Looks, listening: socket.socket, options: Mapping[str, Any]) -> None:
        self._loop = loop
        self._looks = looks
        self._listening = listening
        self._options = options
        self._talk: socket.socket | None = None
        self._pid = 0
        self._heard, self._unsent = b"", b""
        self._is_closed = False
        self._again_s = AGAIN_S
        self._again = loop.timer(self._start)
        self._sample = loop.timer(self._take_sample)
        self._take_sample()
        loop.add_reader(listening.fileno(), self._begin)

    def _take_sample(self) -> None:
        self._looks.sample()
        self._sample.set(SAMPLED_S)

    def _begin(self) -> None:
        """A browser has come: the process accepts it."""
        self._loop.remove_reader(self._listening.fileno())
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._pid = _spawned(theirs, self._listening)
        except OSError as error:
            ours.close()
            log.error("the console cannot be started: %s", error.strerror)
            self._start_later()
            return
        ours.setblocking(False)
        self._talk, self._heard, self._unsent = ours, b"", json.dumps(self._options).encode() + b"\n"
        self._loop.add_reader(ours.fileno(), self._read)
        self._write()

    def _read(self) -> None:
        assert self._talk is not None, self._pid
        try:
            data = self._talk.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._heard += data
        if not data or len(self._heard) > QUESTION_BYTES:
            self._ended()
            return
        *lines, self._heard = self._heard.split(b"\n")
        if lines:
            self._again_s = AGAIN_S
        for line in lines:
            question = json.loads(line)
            answer = {"id": question.get("id"), **self._looks.reply_to(question)}
            self._unsent += json.dumps(answer).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        talk = self._talk
        if talk is None:
            return
        try:
            self._unsent = self._unsent[talk.send(self._unsent) :] if self._unsent else b""
        except BlockingIOError:
            pass
        except OSError:
            return  # it is read that it has ended
        if self._unsent:
            self._loop.add_writer(talk.fileno(), self._write)
        else:
            self._loop.remove_writer(talk.fileno())

    def _ended(self) -> None:
        """The console has ended, or says what it may not."""
        how = self._release(signal.SIGKILL)
        if not self._is_closed:
            log.error("the console has ended (%s): it is started again in %d s", how, self._again_s)
            self._start_later()

    def _start_later(self) -> None:
        self._again.set(self._again_s)
        self._again_s = min(2 * self._again_s, MOST_AGAIN_S)

    def _release(self, number: int) -> str:
        """End the process; how it ended."""
        talk, self._talk = self._talk, None
        if talk is None:
            return ""
        self._loop.remove_reader(talk.fileno())
        self._loop.remove_writer(talk.fileno())
        talk.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def close(self) -> None:
        """The broker stops: so does its console."""
        self._is_closed = True
        self._again.cancel()
        self._sample.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._release(signal.SIGKILL)
        self._listening.close()


def _spawned(theirs: socket.socket, listening: socket.socket) -> int:
    """A process whose third and fourth descriptors these are. Raises: OSError."""
    program, *words = command("kbroker.console.process")
    high = [os.dup(each.fileno()) for each in (theirs, listening)]  # apart from the numbers that they get
    try:
        while min(high) <= LISTEN_FD:
            high.append(os.dup(high.pop(0)))
        ways = [(os.POSIX_SPAWN_DUP2, high[0], TALK_FD), (os.POSIX_SPAWN_DUP2, high[1], LISTEN_FD)]
        return os.posix_spawn(program, [program, *words], os.environ, file_actions=ways)
    finally:
        for each in high:
            os.close(each)


def installed() -> bool:
    """Whether the extra is there, found without loading it into the broker."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jinja2"))
