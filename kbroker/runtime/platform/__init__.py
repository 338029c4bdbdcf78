"""What the operating systems do each in its own way: every such call of kbroker is in this package, and nowhere else.

`linux.py` has Linux' ways, `portable.py` those of POSIX for everything else, macOS first, and `readiness.py` what the
loop waits with there. Which is taken is decided here, once, name by name, by what this Python and its C library have: a
Python that was built for an old C library lacks single calls of Linux, too. What is imported from here is the function
itself: on Linux nothing is called in between, and none of `portable.py` is loaded.

KBROKER_PORTABLE=1 in the environment takes the portable ways on Linux as well, all but kqueue, so that they can be
tested there. tests/runtime/test_platform.py looks through the tree for names that only Linux has.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

PORTABLE = "KBROKER_PORTABLE"  # in the environment


class Readiness(Protocol):
    """What tells the loop which descriptors are ready, as select.epoll does. events: READABLE, WRITABLE or both.

    An error or a hang-up is told as one of those that were asked for, or with further bits: then it counts as both.
    A descriptor that is closed is forgotten; who registers it again may do so without more ado.
    """

    def register(self, fd: int, events: int, /) -> None:
        """Tell of these from now on, of each as long as it holds."""

    def modify(self, fd: int, events: int, /) -> None:
        """Tell of these instead."""

    def unregister(self, fd: int, /) -> None:
        """Tell nothing more."""

    def poll(self, timeout_s: float | None, most: int, /) -> list[tuple[int, int]]:
        """Wait until something is ready: (fd, events). None: without end. most: the others have their turn then."""

    def close(self) -> None:
        """Give it back."""


__all__ = [
    "MEMORY_FOLDER",
    "MSG_MORE",
    "PROTOCOLS_OVER_TCP",
    "READABLE",
    "SENDS_FILES",
    "WRITABLE",
    "Bell",
    "Poll",
    "Tether",
    "end_with_parent",
    "give_back_memory",
    "give_way",
    "is_resident",
    "lasting_path",
    "lock_file",
    "mounts",
    "open_descriptors",
    "pid_namespace",
    "preadv",
    "pwritev",
    "read_resident",
    "resident_bytes",
    "secret_file",
    "send_file",
    "start_tethered",
    "sync_file",
    "unlock_file",
    "usable_processors",
    "waking_pipe",
]
"""What this package offers; portable.py says what each of them is."""

if TYPE_CHECKING:
    from kbroker.runtime.platform.portable import (
        MEMORY_FOLDER,
        MSG_MORE,
        PROTOCOLS_OVER_TCP,
        READABLE,
        SENDS_FILES,
        WRITABLE,
        Bell,
        Tether,
        end_with_parent,
        give_back_memory,
        give_way,
        is_resident,
        lasting_path,
        lock_file,
        mounts,
        open_descriptors,
        pid_namespace,
        preadv,
        pwritev,
        read_resident,
        resident_bytes,
        secret_file,
        send_file,
        start_tethered,
        sync_file,
        unlock_file,
        usable_processors,
        waking_pipe,
    )

    Poll: type[Readiness]
else:
    if sys.platform == "linux" and not os.environ.get(PORTABLE):
        from kbroker.runtime.platform import linux as _chosen
    else:
        from kbroker.runtime.platform import portable as _chosen
    for _name in __all__:
        if not hasattr(_chosen, _name):
            from kbroker.runtime.platform import portable
        globals()[_name] = getattr(_chosen if hasattr(_chosen, _name) else portable, _name)
