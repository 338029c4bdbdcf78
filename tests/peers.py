"""Other brokers, where a test has none."""

from __future__ import annotations

from kbroker.ports import Endpoint
from protocol.message import Message


class Nobody:
    """`Peers` of a broker that is alone: nothing is ever sent."""

    def join(self, cluster_id: str) -> None:
        """Fine."""

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message,
        version: int,
        token: object,
        timeout_ms: int,
    ) -> None:
        """There is nobody."""
        raise AssertionError(f"{request!r} to broker {broker_id}")

    def drop(self, broker_id: int, purpose: str) -> None:
        """There is no line."""

    def close(self) -> None:
        """Nor any other."""
