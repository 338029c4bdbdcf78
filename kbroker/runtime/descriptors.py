"""How many files and sockets the process may have open, and who may have how many of them.

Used by `main.py` once, before anything is opened. A log directory whose files cannot be opened goes offline with all
that is in it, so clients must not be able to use up the descriptors, however many connect; and what an operating system
allows a process at first (`ulimit -n`, often 1,024) is less than it would allow.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from kbroker.config.limits import MOST_FETCH_REGIONS, MOST_LOG_FILES
from protocol.namedtuple import NamedTuple

OPEN_MAX = 10_240  # of macOS, which names no limit and takes no more than this; the JVM asks for it there, too


class Shares(NamedTuple):
    """log_files: descriptors of segments and indices. sockets: connections of clients.

    fetch_regions: of one answer, each of which may hold the file of a segment that the logs have let go.
    """

    log_files: int
    sockets: int
    fetch_regions: int

    @classmethod
    def of(cls, limit: int) -> Shares:
        """What there is of so many descriptors: up to half for the logs, a quarter for what is under way."""
        log_files = min(MOST_LOG_FILES, limit // 2)
        return cls(log_files, limit - log_files - limit // 4, min(MOST_FETCH_REGIONS, limit // 8))


def raise_limit() -> int:
    """Ask for as many descriptors as the process may have, as the JVM does for Apache's broker. Returns: how many."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (most, OPEN_MAX):
        if limit == most or (wanted == OPEN_MAX and limit >= OPEN_MAX):
            break
        with suppress(OSError, ValueError):  # not allowed here: it goes with what there is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            limit = wanted
            break
    return limit if limit != resource.RLIM_INFINITY else 1 << 20
