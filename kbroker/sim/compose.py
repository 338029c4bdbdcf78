"""How a simulated machine composes its broker: the parts of the real one, on simulated ports.

Called by `Machine.start` at every boot, as `runtime/node.py` is on a real machine. A broker of its own (`alone`) keeps
its metadata in an ensemble that only it uses, and that forgets its earlier session when it starts, as the embedded
store does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.broker.broker import Broker
from kbroker.broker.control_plane import ControlPlane
from kbroker.config import ONE_BROKER, BrokerLayers, Given
from kbroker.core import Core
from kbroker.log.background import ManagerConfig
from kbroker.log.config import LogConfig
from kbroker.log.manager import LogManager, open_logs
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.replica import ReplicaManager
from kbroker.sim.clock import SimRandom
from kbroker.sim.store import Ensemble

if TYPE_CHECKING:
    from kbroker.sim.machine import Compose, Machine

LOG_DIR, OTHER_LOG_DIR = "/data/kbroker", "/data/other"
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
LISTENER, PORT, PLAINTEXT = "PLAINTEXT", 9092, 0


def alone(static: Mapping[str, str], ensemble: Ensemble) -> Compose:
    """A way to compose a broker without others. static: its server.properties. ensemble: where its metadata is."""
    given = {key: Given(value, "server.properties") for key, value in {"log.dirs": LOG_DIR, **static}.items()}

    def compose(machine: Machine) -> Core:
        configs = Configs(BrokerLayers(static=given, alone=ONE_BROKER))
        random = SimRandom(machine.chance.randrange(1 << 62))
        logs = _open_logs(machine, configs, random)
        replicas = ReplicaManager(machine.broker_id, logs, machine.clock, configs)
        for session in list(ensemble.sessions):
            ensemble.end_session(session)
        store = machine.store = ensemble.connect(machine.post)
        endpoints = (Endpoint(LISTENER, PLAINTEXT, machine.name, PORT),)
        plane = ControlPlane(machine.broker_id, configs, replicas, store, machine.clock, random, endpoints, CLUSTER_ID)
        return Core(Broker(plane, logs, replicas, machine.clock, random, strict=True), machine.world.now_ms)

    return compose


def _open_logs(machine: Machine, configs: Configs, random: SimRandom) -> LogManager:
    return open_logs(
        machine.disk,
        random,
        configs.broker.log_dirs,
        config_of=lambda name: LogConfig.of(configs.topic_config(name), configs.broker),
        cluster_id=CLUSTER_ID,
        node_id=machine.broker_id,
        config=ManagerConfig.of(configs.broker),
        now_ms=machine.world.now_ms,
        wall_ms=machine.clock.wall_ms(),
    )
