"""Replicated topics on machines that are members of a quorum's cluster: worlds of `replicated.py`, without ZooKeeper.

Three to five whole brokers on a model of a quorum (`quorum.py`, `topic_controllers.py`), whose controllers change, are
deposed without knowing it, die and take snapshots. Some have two log directories, of which one fails, and may be
replaced by an empty one. Idempotent producers have up to five batches of a partition under way. What must hold is what
holds on ZooKeeper; and in the end every broker has applied all that was committed, is unfenced, and does what the
quorum says of its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from kbroker.broker.assembly import Surroundings, assemble, load_logs
from kbroker.broker.control_plane import Quorum
from kbroker.broker.facts import FactQueue
from kbroker.broker.quorum_plane import Join
from kbroker.config import BrokerLayers, Given
from kbroker.config.quorum import quorum_settings
from kbroker.log.checkpoints import read_text
from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.errors import CorruptFileError
from kbroker.log.formatting import format_directories, previous_broker_epoch, take_formatted
from kbroker.log.metaproperties import parse_meta_properties
from kbroker.log.names import META_PROPERTIES
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.quorum.metadata_log import log_config, open_metadata_log
from kbroker.sim.clock import SimRandom
from kbroker.sim.compose import LISTENER, LOG_DIR, OTHER_LOG_DIR, PLAINTEXT, PORT
from kbroker.sim.quorum import PORT as CONTROLLER_PORT
from kbroker.sim.quorum_faults import QUORUM_FAULTS, QuorumFaults
from kbroker.sim.replicated import FAULTS, FLUSHED_FAULTS, ReplicatedSwarm
from kbroker.sim.topic_controllers import UNASSIGNED, TopicControllers
from kbroker.timing import Scheduler

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.sim.machine import Compose, Machine
    from kbroker.sim.producers import Producer
    from kbroker.sim.topic_controllers import TopicState

INDEX_BYTES = 4096
OF_THE_STORE = ("session", "store cut", "lost answers", "zombie")


def member_of(quorum: TopicControllers, static: Mapping[str, str]) -> Compose:
    """A way to compose a member of a quorum's cluster. static: of its server.properties."""
    servers = ",".join(f"{each.name}:{CONTROLLER_PORT}" for each in quorum.nodes)
    settings = {
        "process.roles": "broker",
        "controller.quorum.bootstrap.servers": servers,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://:{PORT}",
        "log.dirs": LOG_DIR,
        **static,
    }

    def compose(machine: Machine) -> Broker:
        given = {**settings, "node.id": str(machine.broker_id)}
        configs = Configs(BrokerLayers(static={key: Given(text, "a file") for key, text in given.items()}))
        wanted = quorum_settings(configs.broker)
        assert wanted is not None
        facts = FactQueue()
        random = SimRandom(machine.rng.randrange(1 << 62))
        parts = Surroundings(machine.disk, machine.clock, random, Scheduler(machine.world.now_ms))
        own_id, disk, paths = machine.broker_id, machine.disk, configs.broker.log_dirs
        format_directories(disk, random, paths, quorum.cluster_id, own_id, ignore_formatted=True)
        formatted = take_formatted(disk, random, paths, own_id, LOG_DIR)
        previous = previous_broker_epoch(disk, paths)
        logs = load_logs(facts, configs, paths, parts, broker_id=own_id, cluster_id=formatted.cluster_id)
        config = log_config(configs.broker)._replace(segment_index_bytes=INDEX_BYTES)
        try:
            metadata_log = open_metadata_log(disk, LOG_DIR, config, random, machine.clock.wall_ms())
        except CorruptFileError as error:
            raise DirectoryRefusedError(str(error)) from None
        broker = assemble(
            facts,
            configs,
            logs,
            parts,
            Quorum(wanted, metadata_log, formatted.directory_ids, random.token(16), previous),
            machine.make_peers,
            broker_id=own_id,
            cluster_id=formatted.cluster_id,
            endpoints=(Endpoint(LISTENER, PLAINTEXT, machine.name, PORT),),
            strict=True,
        )
        machine.post(Join())
        return broker

    return compose


class QuorumSwarm(ReplicatedSwarm):
    """A world of replicated topics on a quorum."""

    has_old_topics = False

    def __init__(
        self,
        seed: int,
        kept_lines: int | None = 400,
        kinds: Sequence[str] | None = None,
        *,
        machines: int | None = None,
        quorum_kinds: Sequence[str] | None = None,
    ) -> None:
        """kinds: of faults of machines and the network; quorum_kinds: of the quorum; None lets the seed choose."""
        self._quorum_kinds = quorum_kinds
        self._has_two_disks = False
        super().__init__(seed, kept_lines, kinds, machines=machines)
        addresses: dict[str, str] = {}
        for machine in self.machines:  # controllers are told addresses, and no names
            machine.host_of = lambda client: addresses.setdefault(client, f"10.0.0.{len(addresses) + 1}")
        self._replaces = self.world.rng("replaced disks")
        self.faults.on_mended = self._maybe_replace

    def _make_compose(self, settings: Mapping[str, str]) -> Compose:
        rng = self.world.rng("quorum of machines")
        self.quorum = TopicControllers(self.world, self.net, controllers=rng.choice((1, 3, 3, 5)))
        kinds = self._quorum_kinds
        if kinds is None:
            kinds = [kind for kind in QUORUM_FAULTS if rng.random() < 0.4]
        self.quorum_faults = QuorumFaults(self.world, self.quorum, kinds)
        more = {
            "metadata.log.max.record.bytes.between.snapshots": rng.choice(("5000", "1000000")),
            "metadata.max.retention.bytes": rng.choice(("20000", "1000000")),
            "metadata.log.segment.bytes": rng.choice(("4000", "1000000")),
        }
        self._has_two_disks = self.world.rng("disks").random() < 0.5
        if self._has_two_disks:
            more |= {"log.dirs": f"{LOG_DIR},{OTHER_LOG_DIR}", "metadata.log.dir": LOG_DIR}
        return member_of(self.quorum, {**settings, **more})

    def _kinds_of_faults(self, *, is_flushed: bool) -> Sequence[str]:
        kinds = [kind for kind in (FLUSHED_FAULTS if is_flushed else FAULTS) if kind not in OF_THE_STORE]
        return kinds if is_flushed or not self._has_two_disks else [*kinds, "dead disk"]

    def _producer(self, number: int) -> Producer:
        producer = super()._producer(number)
        producer.ahead = self.world.rng(f"ahead {number}").choice((1, 3, 5)) if producer.idempotent else 1
        return producer

    def _maybe_replace(self, machine: Machine, path: str) -> None:
        """Put an empty disk in the place of a dead one, where the machine is the last in sync of nothing on it."""
        text = read_text(machine.disk, path, META_PROPERTIES)
        if path != OTHER_LOG_DIR or text is None or self._replaces.random() < 0.3:
            return
        is_used = machine.up and any(each.path == path and each.online for each in machine.broker.logs.directories)
        if is_used:
            return
        directory_id = parse_meta_properties(text).directory_id
        known = cast("TopicState", self.quorum.state_at(self.quorum.committed[-1].end_offset))
        for partition in known.partitions.values():
            is_there = partition.directories.get(machine.broker_id) in (directory_id, UNASSIGNED)
            if is_there and machine.broker_id in partition.isr:
                return
        self.world.note(f"{machine}: an empty disk is {path}")
        machine.disk.clear(path)

    def _heal(self) -> None:
        super()._heal()
        self.quorum_faults.heal()

    def _check_whole(self) -> None:
        """All brokers are there, everything is led, and all do what the quorum says."""
        world, state = self.world, self.quorum.state
        last = self.quorum.committed[-1].end_offset - 1
        for machine in self.machines:
            if not machine.up or not machine.broker.plane.ready:
                raise world.broken(f"{machine} is not back")
            plane = machine.broker.quorum_plane
            if plane.life.is_fenced or state.brokers[machine.broker_id].fenced:
                raise world.broken(f"{machine} is fenced")
            if plane.observer.published_offset < last - 1:
                raise world.broken(f"{machine} was told up to {plane.observer.published_offset}, there is {last}")
        for (topic_id, index), partition in state.partitions.items():
            name = state.names[topic_id]
            if partition.leader not in partition.isr or len(partition.isr) < len(partition.replicas):
                raise world.broken(f"{name}-{index} is not led, or not all are in sync: {partition}")
            for machine in self.machines:
                told = machine.broker.plane.cache.partition(name, index)
                if told is None or (told.leader, told.leader_epoch) != (partition.leader, partition.leader_epoch):
                    raise world.broken(f"{machine} was told of {name}-{index}: {told}, and it is {partition}")
                if machine.broker_id not in partition.replicas:
                    continue
                held = machine.broker.replicas.partitions.get((name, index))
                if held is None or (held.leader_id, held.leader_epoch) != (partition.leader, partition.leader_epoch):
                    raise world.broken(f"{machine} does not do what it was told of {name}-{index}: {partition}")
