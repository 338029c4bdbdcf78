"""Who had transactional ids made, by address, so that no client fills the memory of a broker with them.

Asked by coordinator.py before a new one is made. Each is kept until it has been unused for
`transactional.id.expiration.ms`. An id is its first asker's address's; of those read from the log it is unknown whose
they are, and they count as one address's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kbroker.config.limits import TRANSACTIONAL_IDS


class Creators:
    """Those of one shard's ids. by_host: how many each has; an address without any is not in it."""

    __slots__ = ("_host_of", "by_host")

    def __init__(self) -> None:
        self._host_of: dict[str, str] = {}
        self.by_host: Counter[str] = Counter()

    def add(self, name: str, host: str) -> None:
        """An id has been made for a client of this address."""
        self.remove(name)
        self._host_of[name] = host
        self.by_host[host] += 1

    def remove(self, name: str) -> None:
        """An id is gone; nothing happens if no address has it."""
        host = self._host_of.pop(name, None)
        if host is not None:
            self.by_host[host] -= 1
            if not self.by_host[host]:
                del self.by_host[host]

    def clear(self) -> None:
        """All are gone."""
        self._host_of.clear()
        self.by_host.clear()


def has_room(held: int, creators: Sequence[Creators], host: str) -> bool:
    """Whether a client of this address may have one more: where there are too many, it has fewer than the average.

    held: ids in all. creators: of all of them.
    """
    if held < TRANSACTIONAL_IDS:
        return True
    known = sum(each.by_host.total() for each in creators)
    hosts = len({host for each in creators for host in each.by_host}) + (held > known)
    return hosts * sum(each.by_host[host] for each in creators) < held
