"""The port `Peers` of a broker that may be alone: its lines are loaded, and made, with the first request to another.

What a broker without others never needs is not there at its start (docs/decisions/0030).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kbroker.ports import Endpoint, FlatRequest
    from kbroker.runtime.peers import SocketPeers
    from protocol.message import Message


class LatePeers:
    """Says what it is told to the lines that `make` makes."""

    def __init__(self, make: Callable[[], SocketPeers]) -> None:
        self._make = make
        self._made: SocketPeers | None = None
        self._cluster_id: str | None = None
        self._unreachable: Collection[int] = ()

    def join(self, cluster_id: str) -> None:
        """As `Peers` has it."""
        self._cluster_id = cluster_id
        if self._made is not None:
            self._made.join(cluster_id)

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message | FlatRequest,
        version: int,
        token: object,
        timeout_ms: int,
    ) -> None:
        """The first request; those after it go to the lines themselves, for followers send many."""
        assert self._cluster_id is not None, purpose
        made = self._made = self._make()
        made.join(self._cluster_id)
        made.cut(self._unreachable)
        self.send = made.send  # type: ignore[method-assign]
        made.send(broker_id, endpoint, purpose, request, version, token, timeout_ms)

    def drop(self, broker_id: int, purpose: str) -> None:
        """As `Peers` has it."""
        if self._made is not None:
            self._made.drop(broker_id, purpose)

    def cut(self, broker_ids: Collection[int]) -> None:
        """As `SocketPeers` has it."""
        self._unreachable = broker_ids
        if self._made is not None:
            self._made.cut(broker_ids)

    def close(self) -> None:
        """As `Peers` has it."""
        if self._made is not None:
            self._made.close()
