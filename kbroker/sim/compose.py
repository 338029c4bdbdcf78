"""How a simulated machine composes its broker: the parts of the real one, on simulated ports.

Called by `Machine.start` at every boot, as `runtime/node.py` is on a real machine. A broker of its own (`alone`) keeps
its metadata in an ensemble that only it uses, and that forgets its earlier session when it starts, as the embedded
store does. `one_of_several` share an ensemble, as ZooKeeper: the earlier session of each lives until its timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.broker.address_authorizer import AddressAuthorizer
from kbroker.broker.assembly import Surroundings, assemble, load_logs
from kbroker.broker.facts import FactQueue
from kbroker.config import ONE_BROKER, BrokerLayers, Given
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.sim.clock import SimRandom
from kbroker.sim.store import Ensemble
from kbroker.timing import Scheduler

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.sim.machine import Compose, Machine

LOG_DIR, OTHER_LOG_DIR = "/data/kbroker", "/data/other"
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"
LISTENER, PORT, PLAINTEXT = "PLAINTEXT", 9092, 0


def alone(static: Mapping[str, str], ensemble: Ensemble) -> Compose:
    """A way to compose a broker without others. static: its server.properties. ensemble: where its metadata is."""
    join = one_of_several(static, ensemble)

    def compose(machine: Machine) -> Broker:
        for session in list(ensemble.sessions):
            ensemble.end_session(session)
        broker = join(machine)
        if broker.auth_helper.authorizer is None:
            broker.auth_helper.authorizer = AddressAuthorizer(
                broker.plane, lambda host: [host], broker.give, broker.tell, alone=True, control_listener=""
            )
        return broker

    return compose


def one_of_several(static: Mapping[str, str], ensemble: Ensemble) -> Compose:
    """A way to compose one of the brokers that share an ensemble."""
    given = {key: Given(value, "server.properties") for key, value in {"log.dirs": LOG_DIR, **static}.items()}

    def compose(machine: Machine) -> Broker:
        configs = Configs(BrokerLayers(static=given, alone=ONE_BROKER))
        facts = FactQueue()
        parts = Surroundings(
            machine.disk, machine.clock, SimRandom(machine.rng.randrange(1 << 62)), Scheduler(machine.world.now_ms)
        )
        own_id = machine.broker_id
        logs = load_logs(facts, configs, configs.broker.log_dirs, parts, broker_id=own_id, cluster_id=CLUSTER_ID)
        store = machine.store = ensemble.connect(machine.post)
        return assemble(
            facts,
            configs,
            logs,
            parts,
            store,
            machine.make_peers,
            broker_id=own_id,
            cluster_id=CLUSTER_ID,
            endpoints=(Endpoint(LISTENER, PLAINTEXT, machine.name, PORT),),
            strict=True,
        )

    return compose
