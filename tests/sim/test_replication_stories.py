"""Stories of replication that need a look inside, each told step by step on two or three simulated machines.

Those that a cluster's user knows by name are plays: `plays/cluster_*.play`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from kbroker.broker.facts import Leave
from kbroker.controller.events import Reassign
from kbroker.log.log import Log
from kbroker.log.producer_state import Origin
from kbroker.metadata.store import LeaderIsr, decode_state, state_path
from kbroker.replica import Partition
from kbroker.sim.admins import TopicCreator
from kbroker.sim.compose import one_of_several
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.replicated import ReplicatedChecks, values_in
from kbroker.sim.store import Ensemble
from kbroker.sim.topics import Topic
from kbroker.sim.world import Broken, World
from protocol.records import Record, legacy
from protocol.records.batch import MAGIC
from tests.requests import batch

if TYPE_CHECKING:
    from kbroker.sim.checks import Where

T = TypeVar("T")

LAG_MS = 2_000
PATIENCE_MS = 60_000
WITHOUT_EPOCHS = {"message.format.version": "0.10.2"}


class Story:
    """Machines 1 to `count`; the topic t is on all of them, or on as many as `replicas`, while a test begins.

    Records are given to whom a machine takes for leader.
    """

    def __init__(
        self,
        count: int = 3,
        partitions: int = 1,
        replicas: int = 0,
        topic: Mapping[str, str] = MappingProxyType({}),
        **settings: str,
    ) -> None:
        replicas = replicas or count
        self.world = World("story")
        self.net = Net(self.world, (1, 1))
        self.checks = ReplicatedChecks(self.world)
        self.ensemble = Ensemble(lambda ms, job: self.world.after(ms, job) and None, lambda: 1)
        static = {"replica.lag.time.max.ms": str(LAG_MS), "replica.fetch.wait.max.ms": "500"}
        static |= {name.replace("_", "."): value for name, value in settings.items()}
        compose = one_of_several(static, self.ensemble)
        self.machines = [Machine(self.world, self.net, number, compose) for number in range(1, count + 1)]
        for machine in self.machines:
            self.checks.watch(machine)
            machine.start()
        self.world.watchers.append(self.checks.check)
        founder = TopicCreator("founder", self.world, self.net, self.machines, self.checks)
        founder.topics = [
            Topic("t", partitions, {"segment.index.bytes": "4096", "retention.ms": "-1", **topic}, replicas=replicas)
        ]
        founder.start(0)
        self.until(lambda: sum(len(each.broker.replicas.partitions) for each in self.machines) == partitions * replicas)
        self.until(lambda: len(self.state().isr) == replicas)
        self.wait(1_000)

    def wait(self, ms: int) -> None:
        self.world.run_until(self.world.now_ms + ms)

    def until(self, holds: Callable[[], object]) -> None:
        """Let the world go on, an event at a time, up to the moment in which something holds."""
        end_ms = self.world.now_ms + PATIENCE_MS
        while not holds():
            assert self.world.step(end_ms), "it never holds"

    def state(self, index: int = 0) -> LeaderIsr:
        node = self.ensemble.tree.nodes[state_path("t", index)]
        return decode_state(node.data, node.stat())

    def leader(self, index: int = 0) -> Machine:
        return self.machines[self.state(index).leader - 1]

    def followers(self, index: int = 0) -> list[Machine]:
        return [each for each in self.machines if each is not self.leader(index)]

    def controllers(self) -> list[Machine]:
        return [each for each in self.machines if each.up and each.broker.plane.controller.is_active]

    def reassign(self, *targets: int) -> None:
        """Let the replicas of t-0 be these."""
        (controller,) = self.controllers()
        told: list[object] = []
        event = Reassign({("t", 0): targets}, told.append)
        controller._run(lambda: controller.broker.plane.controller.put(event))
        self.until(lambda: told)
        assert told == [{("t", 0): None}]

    def set(self, **settings: str) -> None:
        """Change settings of the topic, and let everybody hear of it."""
        (controller,) = self.controllers()
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        change = {("topics", "t"): lambda old: {**old, **changed}}
        controller._run(lambda: controller.broker.plane.admin.change_configs(change, validate_only=False))
        self.wait(1_000)

    def part(self, one: Machine, other: Machine) -> None:
        """Neither hears the other from now on."""
        self.net.block(one.name, other.name)
        self.net.block(other.name, one.name)

    def partition(self, machine: Machine, index: int = 0) -> Partition:
        return machine.broker.replicas.partitions["t", index]

    def log(self, machine: Machine, index: int = 0) -> Log:
        log = self.partition(machine, index).log
        assert log is not None, machine
        return log

    def bounds(self, machine: Machine, index: int = 0) -> tuple[int, int]:
        """High watermark and log end."""
        log = self.log(machine, index)
        return log.high_watermark, log.log_end_offset

    def append(self, machine: Machine, *values: bytes, index: int = 0) -> None:
        """One batch, with acks=all, to a machine that believes that it leads."""
        records = memoryview(bytearray(batch(*values)))
        replicas, partition = machine.broker.replicas, self.partition(machine, index)
        origin = Origin.CLIENT
        if self.log(machine, index).config.message_format != MAGIC:
            made = legacy.build_set([Record(at, 0, None, value) for at, value in enumerate(values)], 1)
            records, origin = memoryview(bytearray(made)), Origin.PREPARED
        machine._run(lambda: replicas.append(partition, records, -1, origin, machine.clock.wall_ms()))

    def leads(self, machine: Machine, index: int = 0) -> bool:
        held = machine.broker.replicas.partitions.get(("t", index)) if machine.up else None
        return held is not None and held.is_leader

    def values(self, machine: Machine, index: int = 0) -> list[bytes]:
        return [value for _, value in sorted(values_in(self.log(machine, index)).items())]


class Told(Producer):
    """Idempotent; asks nobody who leads, but takes a story's word for it."""

    def __init__(self, story: Story) -> None:
        super().__init__("producer", story.world, story.net, story.machines, story.checks)
        self.topics = [Topic("t", 1)]
        self.idempotent, self.acks, self.pace_ms, self.tries = True, -1, 100, 200
        self.leader = story.leader()
        self.start(0)
        story.wait(2_000)

    def by_leader(
        self, things: Iterable[T], where: Callable[[T], Where]
    ) -> Generator[Any, Any, tuple[dict[Machine, list[T]], list[T]]]:
        yield from ()
        return {self.leader: list(things)}, []


def test_a_record_is_committed_once_all_in_sync_have_it() -> None:
    story = Story()
    story.append(story.leader(), b"one")
    at_once = story.bounds(story.leader())
    story.wait(1_000)
    assert at_once == (0, 1)
    assert [story.bounds(each) for each in story.machines] == [(1, 1)] * 3


def test_the_judge_holds_against_no_zombie_that_it_missed_sequences() -> None:
    """What its successor took it never had: as in Kafka, a producer that comes back to it is out of order."""
    story = Story()
    producer, zombie = Told(story), story.leader()
    assert zombie.store is not None
    zombie.store.cut()
    story.until(lambda: story.leader() is not zombie and story.leads(story.leader()))
    producer.leader = story.leader()
    story.wait(10_000)
    before = producer.producer_id
    producer.leader = zombie
    story.until(lambda: producer.producer_id != before)
    assert (before, story.leads(zombie)) == (0, True)


def test_the_judge_sees_that_a_leader_forgot_sequences() -> None:
    story = Story()
    producer = Told(story)
    producer.sequences["t", 0] += 1
    with pytest.raises(Broken, match="forgot sequence"):
        story.wait(1_000)


def test_with_too_few_in_sync_nothing_is_committed() -> None:
    story = Story(min_insync_replicas="2")
    leader = story.leader()
    for each in story.followers():
        each.kill()
    records = memoryview(bytearray(batch(b"one")))
    partition = story.partition(leader)
    leader._run(lambda: leader.broker.replicas.append(partition, records, 1, Origin.CLIENT, leader.clock.wall_ms()))
    story.wait(PATIENCE_MS)
    assert story.bounds(leader) == (0, 1)


@pytest.mark.parametrize("disk_ms", [5_000])
def test_while_one_log_is_cut_on_a_slow_disk_no_other_partition_waits(disk_ms: int) -> None:
    story = Story(2, partitions=2)
    old = story.machines[0]
    new = story.machines[1]
    index = 0 if story.state(0).leader == old.broker_id else 1
    story.net.block(old.name, new.name)
    story.append(old, b"lost", index=index)
    old.kill()
    story.net.unblock(old.name, new.name)
    story.until(lambda: story.leads(new, 0) and story.leads(new, 1))
    story.append(new, b"kept", index=index)
    old.start()
    old.job_ms = (disk_ms, disk_ms)
    story.until(lambda: old.up and ("t", index) in old.broker.replicas.partitions)
    story.until(lambda: story.bounds(old, index)[1] == 0)  # cut, and not durably yet
    began_ms = story.world.now_ms
    story.append(new, b"other", index=1 - index)
    story.until(lambda: story.bounds(old, 1 - index)[1] == 1)
    other_ms = story.world.now_ms - began_ms
    story.until(lambda: story.bounds(old, index)[1] == 1)
    assert other_ms < 100
    assert story.world.now_ms - began_ms >= disk_ms


def test_nobody_leads_before_the_cut_of_its_own_log_is_durable() -> None:
    """A follower in sync has what only a dead leader had, is cut back by the next one, and is to lead right then."""
    story = Story()
    old = story.leader()
    second, third = (story.machines[each - 1] for each in story.partition(old).replicas[1:])
    story.net.block(second.name, old.name)
    story.wait(600)  # the fetch that is there already is answered
    story.append(old, b"lost")
    story.until(lambda: story.bounds(third) == (0, 1))
    old.kill()
    third.job_ms = (30_000, 30_000)
    story.until(lambda: story.log(third).cuts_under_way)
    assert story.leader() is second
    second.kill()
    led_while_cut: list[bool] = []
    story.world.watchers.append(
        lambda: led_while_cut.append(story.leads(third) and story.log(third).cuts_under_way > 0)
    )
    story.until(lambda: story.state().leader == third.broker_id)
    assert story.log(third).cuts_under_way
    story.until(lambda: story.leads(third))
    assert not any(led_while_cut)


def test_a_dead_leader_is_said_to_be_so_once_and_then_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Its followers try it ten times a second."""
    story = Story(2)
    leader, (follower,) = story.leader(), story.followers()
    assert follower.store is not None
    leader.kill()
    follower.store.cut()  # so that nobody else leads
    caplog.clear()
    caplog.set_level("INFO")
    story.wait(150_000)
    said = [each.getMessage() for each in caplog.records if f"broker {leader.broker_id}" in each.getMessage()]
    fetches = [each for each in said if "to broker" in each]
    assert (len(fetches), "times before" in fetches[-1], [each for each in said if "begins again" in each]) == (
        3,
        True,
        [],
    )


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_reassignment_takes_its_time_and_the_replicas_in_sync_do_not(role: str) -> None:
    """50 batches of 1 kB at 5 kB/s, and meanwhile acks=all is answered by those in sync."""
    story = Story(
        4,
        replicas=3,
        topic={f"{role}.replication.throttled.replicas": "*"},
        replica_fetch_max_bytes="1000",
        **{f"{role}_replication_throttled_rate": "5000"},
    )
    leader, before = story.leader(), story.state()
    (fresh,) = [each for each in story.machines if each.broker_id not in before.isr]
    for at in range(50):
        story.append(leader, b"%02d" % at * 500)
    story.until(lambda: story.bounds(leader)[0] == 50)
    story.wait(15_000)  # what those in sync got counts as well, until it is forgotten
    begin_ms = story.world.now_ms
    story.reassign(*before.isr, fresh.broker_id)
    story.wait(4_000)
    story.append(leader, b"meanwhile")
    story.wait(500)
    assert story.bounds(leader)[0] == 51
    story.until(lambda: fresh.broker_id in story.state().isr)
    took_ms = story.world.now_ms - begin_ms
    assert 8_000 < took_ms < 14_000
    story.wait(1_000)
    assert story.values(fresh) == story.values(leader)


def test_logs_of_an_old_format_know_no_epochs_and_agree_after_each_has_led() -> None:
    """One that led takes its epoch for that of the records it fetches, if it remembers it, and cuts them for ever."""
    story = Story(2, topic=WITHOUT_EPOCHS, inter_broker_protocol_version="2.8")
    first, (second,) = story.leader(), story.followers()
    story.append(first, b"a")
    story.wait(1_000)
    assert first.store is not None
    first.store.cut()  # it lives on, and follows
    story.until(lambda: story.leads(second))
    first.store.heal()
    story.until(lambda: len(story.state().isr) == 2)
    for value in (b"b", b"c"):
        story.append(second, value)
        story.wait(1_000)
    assert [story.bounds(each) for each in (first, second)] == [(3, 3)] * 2
    assert [story.values(each) for each in (first, second)] == [[b"a", b"b", b"c"]] * 2


def test_a_topic_that_goes_back_to_an_old_format_is_replicated_to_who_lacks_what_was_written_before() -> None:
    """The records of before tell their epoch, and the leader has none any more."""
    story = Story(3, replicas=2, inter_broker_protocol_version="2.8")
    replicas = [story.machines[each - 1] for each in story.partition(story.leader()).replicas]
    story.append(story.leader(), b"one")
    story.wait(1_000)
    story.set(message_format_version="0.10.2")
    story.append(story.leader(), b"two")
    story.until(lambda: [story.bounds(each) for each in replicas] == [(2, 2)] * 2)
    story.set(message_format_version="2.8")
    leader = story.leader()
    (follower,) = [each for each in replicas if each is not leader]
    follower.kill()
    story.until(lambda: story.state().isr == (leader.broker_id,))
    story.append(leader, b"three")
    story.set(message_format_version="0.10.2")
    epoch = story.state().leader_epoch
    leader.kill()
    leader.start()
    story.until(lambda: story.state().leader_epoch > epoch and story.leads(leader))
    follower.start()
    story.until(lambda: len(story.state().isr) == 2)
    assert [story.values(each) for each in replicas] == [[b"one", b"two", b"three"]] * 2


@pytest.mark.parametrize("topic", [{}, {"message.format.version": "0.9.0"}, WITHOUT_EPOCHS], ids=["v2", "v0", "v1"])
def test_a_leader_killed_and_a_follower_without_power_lose_nothing(topic: dict[str, str]) -> None:
    """The follower may come back empty, whatever its high watermark was, and gets it all from the other."""
    story = Story(2, topic=topic, inter_broker_protocol_version="2.8")
    leader, (follower,) = story.leader(), story.followers()
    story.append(leader, b"one")
    story.wait(10_000)  # checkpoints are written
    leader.kill()
    follower.kill(power_loss=True)
    for each in story.machines:
        each.start()
    story.until(lambda: all(("t", 0) in each.broker.replicas.partitions for each in story.machines))
    before = story.log(follower).log_end_offset
    story.until(lambda: [story.bounds(each) for each in story.machines] == [(1, 1)] * 2)
    assert before == 0
    assert [story.values(each) for each in story.machines] == [[b"one"]] * 2


@pytest.mark.parametrize("flushes", [False, True], ids=["page cache", "flushed first"])
@pytest.mark.parametrize("topic", [{}, WITHOUT_EPOCHS], ids=["epochs", "no epochs"])
def test_the_only_replica_in_sync_keeps_without_power_what_was_flushed(topic: dict[str, str], flushes: bool) -> None:
    """Who died before it has the record, and may not lead: the other was in sync to the last."""
    settings = {"flush.messages": "1"} if flushes else {}
    story = Story(2, topic={**topic, **settings}, inter_broker_protocol_version="2.8")
    leader, (follower,) = story.leader(), story.followers()
    story.append(leader, b"one")
    story.until(lambda: story.bounds(follower) == (1, 1))
    story.wait(10_000)
    leader.kill()
    story.until(lambda: story.state().isr == (follower.broker_id,))
    follower.kill(power_loss=True)
    leader.start()
    follower.start()
    story.until(lambda: len(story.state().isr) == 2)
    assert [story.values(each) for each in story.machines] == [[b"one"] if flushes else []] * 2
    assert story.checks.allowed_loss.lost_from == ({} if flushes else {("t", 0): 0})


def test_the_judge_sees_that_a_leader_lacks_what_was_committed() -> None:
    story = Story(2)
    leader, (follower,) = story.leader(), story.followers()
    story.append(leader, b"one")
    story.until(lambda: story.bounds(leader) == (1, 1))
    story.log(follower).truncate_to(0, 0)
    leader.kill()
    with pytest.raises(Broken, match="lacks what was committed"):
        story.until(lambda: story.leads(follower))


@pytest.mark.parametrize("asks", [False, True], ids=["the controller", "another broker"])
def test_a_broker_that_is_about_to_stop_hands_its_leaders_over(asks: bool) -> None:
    story = Story(2, partitions=2)
    old = next(each for each in story.machines if (each not in story.controllers()) is asks)
    (index,) = [index for index in range(2) if story.leader(index) is old]
    old.post(Leave())
    story.until(lambda: story.leader(index) is not old)
    story.until(lambda: old.broker.leaving.is_over)


def test_a_broker_whose_leaders_nobody_can_take_asks_again_and_stops_in_the_end() -> None:
    backoff_ms, tries = 1_000, 3
    settings = {"controlled_shutdown_retry_backoff_ms": f"{backoff_ms}", "controlled_shutdown_max_retries": f"{tries}"}
    story = Story(2, partitions=2, **settings)
    (leader,) = story.controllers()
    (index,) = [index for index in range(2) if story.leader(index) is leader]
    story.part(*story.machines)
    story.append(leader, b"one", index=index)
    story.until(lambda: story.state(index).isr == (leader.broker_id,))
    began_ms = story.world.now_ms
    leader.post(Leave())
    story.until(lambda: not leader.broker.leaving.is_over)
    story.until(lambda: leader.broker.leaving.is_over)
    assert (tries - 1) * backoff_ms <= story.world.now_ms - began_ms < tries * backoff_ms
    assert story.leader(index) is leader


def test_the_last_broker_alive_stays_ready_while_it_becomes_controller() -> None:
    story = Story(2)
    (controller,) = story.controllers()
    (other,) = [each for each in story.machines if each is not controller]
    ready: set[bool] = set()
    story.world.watchers.append(lambda: ready.add(other.broker.plane.ready))
    controller.kill()
    story.until(lambda: story.controllers() == [other] and story.leader() is other)
    story.wait(1_000)
    assert ready == {True}
