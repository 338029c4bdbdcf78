"""The parts of a broker, as handlers and the core reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.api.call import Reply, Session
    from kbroker.api.fetch_sessions import FetchSessions
    from kbroker.api.plane import ControlPlane
    from kbroker.config import BrokerConfig
    from kbroker.ports import Clock, Random
    from kbroker.replica import ReplicaManager


class Broker:
    """One broker's parts. strict: a failure nobody foresaw is raised, not answered; simulations and tests want that."""

    plane: ControlPlane  # set by whoever puts the broker together

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
        replicas: ReplicaManager,
        fetch_sessions: FetchSessions,
        *,
        strict: bool = False,
    ) -> None:
        self.config = config
        self.clock = clock
        self.random = random
        self.replicas = replicas
        self.fetch_sessions = fetch_sessions
        self.strict = strict
        self.replies: list[Reply] = []

    def step(self, now_ms: int) -> bool:
        return False

    def expire(self, now_ms: int) -> None:
        pass

    def handle(self, event: object, now_ms: int) -> None:
        pass

    def next_deadline_ms(self) -> int | None:
        return None

    def disconnected(self, session: Session) -> None:
        pass

    def disk_failed(self, error: OSError) -> None:
        pass
