"""How a simulated machine composes its broker: the parts of the real one, on simulated ports.

Called by `Machine.start` at every boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.api.broker import Broker
from kbroker.api.fetch_sessions import FetchSessions
from kbroker.config import ONE_BROKER, BrokerLayers, Given, resolve_broker, resolve_topic
from kbroker.core import Core
from kbroker.log.background import Job, ManagerConfig
from kbroker.log.config import LogConfig
from kbroker.log.manager import LogManager, open_logs
from kbroker.replica import ReplicaManager
from kbroker.replica.partition import LeaderState
from kbroker.sim.clock import SimRandom

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig, TopicConfig
    from kbroker.sim.machine import Compose, Machine
    from kbroker.sim.topics import Topic

LOG_DIR = "/data/kbroker"
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"


class BareBroker(Broker):
    """A broker without a control plane: its topics are there, and it leads them."""

    def __init__(self, config: BrokerConfig, machine: Machine, logs: LogManager, replicas: ReplicaManager) -> None:
        random = SimRandom(machine.chance.randrange(1 << 62))
        super().__init__(config, machine.clock, random, replicas, FetchSessions(1000, random), strict=True)
        self.logs = logs
        self._due_ms = machine.world.now_ms

    def expire(self, now_ms: int) -> None:
        """Background work of the logs."""
        if now_ms >= self._due_ms:
            self._due_ms = self.logs.due(now_ms, self.clock.wall_ms())
            self._heed_logs()

    def next_deadline_ms(self) -> int | None:
        """When the logs want to be looked after."""
        return self._due_ms

    def take_jobs(self) -> list[Job]:
        """Work for the disk."""
        return self.logs.take_jobs()

    def job_done(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job has ended."""
        self.replicas.went_offline(self.logs.finished(job, error, now_ms))
        self._heed_logs()

    def disk_failed(self, error: OSError) -> None:
        """An OSError reached the core."""
        if isinstance(error.filename, str):
            self.replicas.went_offline(self.logs.disk_failed(error.filename, error))
        self._heed_logs()

    def _heed_logs(self) -> None:
        lost, self.logs.lost = self.logs.lost, []
        self.replicas.went_offline(lost)
        self.logs.notices.clear()

    def close(self) -> None:
        """Nothing to say goodbye to."""


def bare(static: Mapping[str, str], topics: list[Topic]) -> Compose:
    """A way to compose a broker without a control plane."""

    def compose(machine: Machine) -> Core:
        given = {key: Given(value, "the seed") for key, value in static.items()}
        config = resolve_broker(BrokerLayers(static=given, alone=ONE_BROKER))
        by_name = {topic.name: topic for topic in topics}

        def topic_config(name: str) -> TopicConfig:
            return resolve_topic(by_name[name].configs, config)

        now_ms = machine.world.now_ms
        logs = open_logs(
            machine.disk,
            SimRandom(machine.chance.randrange(1 << 62)),
            [LOG_DIR],
            config_of=lambda name: LogConfig.of(topic_config(name), producer_id_expiration_ms=86_400_000),
            cluster_id=CLUSTER_ID,
            node_id=machine.broker_id,
            config=ManagerConfig(),
            now_ms=now_ms,
            wall_ms=machine.clock.wall_ms(),
        )
        logs.notices.clear()
        replicas = ReplicaManager(machine.broker_id, logs, machine.clock, topic_config)
        me = machine.broker_id
        for topic in topics:
            for index in range(topic.partitions):
                state = LeaderState(1, me, machine.boots, (me,), machine.boots, (me,))
                replicas.become(topic.name, index, topic.id, state, is_new=machine.boots == 1)
        return Core(BareBroker(config, machine, logs, replicas), now_ms)

    return compose
