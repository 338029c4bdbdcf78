"""What ends a command from outside: SIGTERM and SIGHUP end it as Ctrl-C does, so that what has to be done last is done.

Python ends at these two at once by itself: a member of a group would not leave it, and records that were read from
standard input would not be sent.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class EndedError(BaseException):
    """A signal ends the command. number: which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A block that SIGTERM and SIGHUP end by an exception. One that is ignored, as by nohup, stays so.

    Raises: EndedError.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise EndedError(number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
