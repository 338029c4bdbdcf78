"""Replicas: roles by LeaderAndIsr, the high watermark that follows, and directories that fail."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from kbroker.log.isolation import HIGH_WATERMARK, LOG_END, FetchIsolation
from kbroker.log.producer_state import Origin
from kbroker.replica.facts import RoleChanged
from kbroker.replica.partition import LeaderState, Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from tests.requests import batch, produce
from tests.world import World

ME, OTHER = 1, 2
ID = bytes(range(16))
LEADER_EPOCH_AT = 12


def state(epoch: int, *, leader: int = ME, isr: tuple[int, ...] = (ME,)) -> LeaderState:
    return LeaderState(1, leader, epoch, isr, 0, (ME, OTHER))


@pytest.fixture
def world() -> World:
    return World(directories=("/a", "/b"))


def become(
    world: World, new: LeaderState, *, topic: str = "p", topic_id: bytes = ID, is_new: bool = False
) -> Partition:
    world.replicas.become(topic, 0, topic_id, new, is_new=is_new)
    return world.partition(topic)


def append(world: World, partition: Partition, *values: bytes, acks: int = 1) -> int:
    records = memoryview(bytearray(batch(*values)))
    return world.replicas.append(partition, records, acks, Origin.CLIENT, world.clock.wall_ms()).first_offset


def of_epoch_0(records: bytes) -> memoryview:
    """A batch as its leader stamps it."""
    stamped = bytearray(records)
    stamped[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = bytes(4)
    return memoryview(stamped)


def refusal(world: World, partition: Partition) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        append(world, partition, b"v")
    return error.value.code


# ---- roles


def test_a_new_replica_gets_a_log_and_leads(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    assert (partition.is_leader, append(world, partition, b"a"), append(world, partition, b"b")) == (True, 0, 1)


def test_a_follower_takes_no_appends_and_answers_no_followers(world: World) -> None:
    partition = become(world, state(0, leader=OTHER), is_new=True)
    assert refusal(world, partition) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError, match=f"is led by {OTHER}"):
        partition.read(0, 100, LOG_END, whole_first_batch=True)


def test_a_follower_that_flushes_first_is_no_further_behind_its_leader_than_its_disk() -> None:
    world = World(log_flush_interval_messages="1")
    partition = become(world, state(0, leader=OTHER), is_new=True)
    world.disk_is_busy = True
    world.replicas.append_as_follower(partition, of_epoch_0(batch(b"a", b"b")), world.clock.wall_ms())
    world.replicas.follow_bounds(partition, high_watermark=2, log_start_offset=0)  # told once, and not again
    assert partition.log is not None
    before = partition.log.high_watermark
    world.disk_is_busy = False
    world.settle()
    assert (before, partition.log.high_watermark) == (0, 2)


def test_what_a_follower_takes_for_committed_stays_as_it_is_when_it_flushes_under_a_new_leader() -> None:
    """Neither is it less, nor does the former leader's word go for the new one's records."""
    world = World(log_flush_interval_messages="1")
    partition = become(world, state(0, leader=OTHER), is_new=True)
    world.replicas.append_as_follower(partition, of_epoch_0(batch(b"a", b"b")), world.clock.wall_ms())
    world.settle()
    world.replicas.follow_bounds(partition, high_watermark=9, log_start_offset=0)
    become(world, state(1, leader=OTHER))  # which has not said yet what is committed
    following = bytearray(of_epoch_0(batch(b"c")))
    following[7] = 2  # its base offset
    world.replicas.append_as_follower(partition, memoryview(following), world.clock.wall_ms())
    world.settle()
    assert partition.log is not None
    assert (partition.log.high_watermark, partition.log.awaits_flush, partition.log.log_end_offset) == (2, False, 3)


def test_a_new_epoch_begins_at_the_end_of_the_log(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    append(world, partition, b"a", b"b")
    become(world, state(3))
    assert (partition.end_of_epoch(0), partition.end_of_epoch(2), partition.end_of_epoch(3)) == ((0, 2), (0, 2), (3, 2))


def test_the_same_epoch_again_begins_nothing(world: World) -> None:
    partition = become(world, state(3), is_new=True)
    append(world, partition, b"a")
    become(world, state(3))
    assert partition.end_of_epoch(3) == (3, 1)


class Unwalked(dict[tuple[str, int], Partition]):
    """A broker may have 10,000 partitions: nobody looks at all of them for one."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all partitions are gone through")

    items = values = keys = __iter__  # type: ignore[assignment]


def test_a_topic_is_stopped_and_set_without_a_look_at_the_others(world: World) -> None:
    world.replicas.partitions = Unwalked()
    for topic, index in (("p", 0), ("p", 1), ("q", 0)):
        world.replicas.become(topic, index, ID, state(0), is_new=True)
    assert [partition.index for partition in world.replicas.of_topic("p")] == [0, 1]
    world.replicas.reconfigure("p")
    for index, left in ((0, [1]), (1, [])):
        world.replicas.stop("p", index, delete=True)
        assert [partition.index for partition in world.replicas.of_topic("p")] == left
    assert len(world.replicas.of_topic("q")) == len(world.replicas.partitions) == 1


def test_logs_with_the_same_settings_share_them(world: World) -> None:
    for topic in ("p", "q"):
        world.replicas.become(topic, 0, ID, state(0), is_new=True)
    first, second = (world.partition(topic).log for topic in ("p", "q"))
    assert first is not None
    assert second is not None
    assert first.config is second.config
    kept = second.config.retention_ms
    world.plane.configs.set_topic("p", {"retention.ms": "5"})
    world.replicas.reconfigure("p")
    assert (first.config.retention_ms, second.config.retention_ms) == (5, kept)


def test_an_older_epoch_is_a_zombies(world: World) -> None:
    become(world, state(3), is_new=True)
    with pytest.raises(KafkaError) as error:
        become(world, state(2))
    assert error.value.code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_another_topic_id_is_another_topic(world: World) -> None:
    become(world, state(0), is_new=True)
    with pytest.raises(KafkaError) as error:
        become(world, state(1), topic_id=bytes(reversed(ID)))
    assert error.value.code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_every_change_of_role_touches_the_partition(world: World) -> None:
    world.replicas.touched.clear()
    partition = become(world, state(0), is_new=True)
    become(world, state(1, leader=OTHER))
    assert world.replicas.touched == [partition, partition]


def roles(world: World) -> list[tuple[int, bool]]:
    """Leader epoch, and whether this broker leads in it, of every change of role that was told."""
    return [(fact.leader_epoch, fact.is_leader) for fact in world.broker.facts if isinstance(fact, RoleChanged)]


def test_every_change_of_role_is_told(world: World) -> None:
    become(world, state(0), is_new=True)
    become(world, state(1, leader=OTHER))
    become(world, state(2))
    world.replicas.stop("p", 0, delete=False)
    assert roles(world) == [(0, True), (1, False), (2, True), (2, False)]


def test_a_failed_directory_ends_the_leading_of_its_partitions_once(world: World) -> None:
    become(world, state(4), is_new=True)
    world.broker.facts.clear()
    for _ in range(2):
        world.replicas.went_offline([("p", 0)])
    assert roles(world) == [(4, False)]


def test_a_stopped_replica_leads_no_more_and_keeps_its_files(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    append(world, partition, b"a")
    world.replicas.stop("p", 0, delete=False)
    assert not partition.is_leader
    assert ("p", 0) not in world.replicas.partitions
    assert append(world, become(world, state(1)), b"b") == 1


def test_a_deleted_replica_starts_anew(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    append(world, partition, b"a")
    world.replicas.stop("p", 0, delete=True)
    world.settle()
    again = become(world, state(0), topic_id=bytes(reversed(ID)), is_new=True)
    assert again is not partition
    assert append(world, again, b"b") == 0


# ---- the high watermark


@pytest.mark.parametrize("before", [0, -1])
def test_nothing_can_be_deleted_from_an_empty_partition(world: World, before: int) -> None:
    assert become(world, state(0), is_new=True).delete_records(before) == 0


def test_alone_in_sync_the_high_watermark_is_the_end(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    append(world, partition, b"a", b"b")
    assert partition.readable_end(HIGH_WATERMARK) == 2


def test_a_partition_is_read_to_the_end_by_those_who_may(world: World) -> None:
    partition = become(world, state(0, isr=(ME, OTHER)), is_new=True)
    append(world, partition, b"a")
    regions = [partition.read(0, 1000, each, whole_first_batch=True).region for each in FetchIsolation]
    assert [region is not None for region in regions] == [True, False, False]


def test_with_others_in_sync_it_waits_for_them(world: World) -> None:
    partition = become(world, state(0, isr=(ME, OTHER)), is_new=True)
    append(world, partition, b"a")
    assert partition.readable_end(HIGH_WATERMARK) == 0
    become(world, state(0))  # the other one has fallen out of sync
    assert partition.readable_end(HIGH_WATERMARK) == 1


def test_a_new_epoch_alone_commits_nothing(world: World) -> None:
    partition = become(world, state(0, isr=(ME, OTHER)), is_new=True)
    append(world, partition, b"a")
    become(world, state(1, isr=(ME, OTHER)))
    assert partition.readable_end(HIGH_WATERMARK) == 0


def test_acks_all_is_refused_below_min_insync_replicas(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    partition.min_insync_replicas = 2
    assert append(world, partition, b"v", acks=1) == 0
    with pytest.raises(KafkaError) as error:
        append(world, partition, b"v", acks=-1)
    assert error.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


# ---- epochs of clients


@pytest.mark.parametrize(
    ("current", "code"),
    [(-1, None), (5, None), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_clients_epoch_is_checked(world: World, current: int, code: ErrorCode | None) -> None:
    partition = become(world, state(5), is_new=True)
    try:
        partition.check_epoch(current)
        said = None
    except KafkaError as error:
        said = error.code
    assert said == code


# ---- disks that fail


def test_a_failed_directory_takes_its_partitions_offline_and_no_others(world: World) -> None:
    one = become(world, state(0), topic="one", is_new=True)
    two = become(world, state(0), topic="two", is_new=True)  # placed on the emptier directory
    assert one.log is not None
    world.disk.fail("write", ".log", 5)
    assert refusal(world, one) == ErrorCode.KAFKA_STORAGE_ERROR
    world.settle()
    assert (one.log is None, append(world, two, b"v")) == (True, 0)


def test_a_partition_without_a_log_refuses_as_storage_error(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    world.replicas.went_offline([("p", 0)])
    assert refusal(world, partition) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.replicas.touched[-1] is partition


def test_settings_that_change_reach_the_log(world: World) -> None:
    partition = become(world, state(0), is_new=True)
    world.plane.configs.set_topic("p", {"max.message.bytes": "100", "min.insync.replicas": "2"})
    world.replicas.reconfigure("p")
    assert partition.log is not None
    assert (partition.log.config.max_message_bytes, partition.min_insync_replicas) == (100, 2)


def test_a_deleted_topics_folder_that_a_power_cut_brought_back_is_not_the_new_topics() -> None:
    world = World(directories=("/a",))
    world.create("t")
    world.client().ask(produce(b"of the deleted topic"), 9)
    world.client().send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    world.advance(100)
    world.create("t")
    world.stop()
    undo_deletion(world)
    world.start()
    log = world.partition("t").log
    assert log is not None
    assert log.log_end_offset == 0


def undo_deletion(world: World) -> None:
    """As a power cut does before the folder's new name is durable."""
    world.disk.restart(power_loss=False)
    (deleted,) = [entry.name for entry in world.disk.list("/a") if entry.name.endswith("-delete")]
    world.disk.rename("/a/t-0", "/lost")
    world.disk.rename(f"/a/{deleted}", "/a/t-0")


def test_a_topic_is_made_again_only_when_no_power_cut_can_bring_the_old_folder_back() -> None:
    world = World(directories=("/a",))
    world.create("t")
    world.client().send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    world.advance(100)
    world.disk.fail("sync_dir", "/a", errno.EIO)
    wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    world.client().send(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 5)
    world.advance(100)
    assert world.partition("t").log is None


def test_a_dynamic_setting_of_the_broker_reaches_the_logs_it_is_about() -> None:
    world = World()
    world.create("t")
    wanted = IncrementalAlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1000")
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name="", configs=[wanted])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    assert world.client().ask(request, 1).responses[0].error_code == ErrorCode.NONE
    log = world.partition("t").log
    assert log is not None
    assert log.config.producer_id_expiration_ms == 1000
