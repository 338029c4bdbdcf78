"""What clients see while the broker can open no more files: an error now, and everything again a moment later."""

from __future__ import annotations

import errno

from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.log.names import PARTITION_METADATA
from protocol.errors import ErrorCode
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.requests import produce, produced
from tests.world import World


def test_an_append_that_cannot_roll_is_refused_and_the_next_one_taken() -> None:
    world = World()
    world.create("t", segment_bytes="100")
    client = world.client()
    assert produced(client.ask(produce(b"one"), 9)).error_code == 0
    world.disk.fail("open", ".log", errno.EMFILE)
    assert produced(client.ask(produce(b"two"), 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produced(client.ask(produce(b"three"), 9)).base_offset == 1


def test_a_flush_that_found_no_descriptor_is_made_a_second_later() -> None:
    world = World()
    world.create("t", flush_messages="1")
    client = world.client()
    world.disk.fail("open", ".timeindex", errno.EMFILE)
    number = client.send(produce(b"one"), 9)
    assert number not in client.look()
    world.advance(1_000)
    assert produced(client.look()[number]).error_code == 0


def test_a_partition_is_led_once_there_is_a_descriptor_for_its_log() -> None:
    """The controller is not told that its replica is lost, for then nobody led it until the next start."""
    world = World()
    client = world.client()
    world.disk.fail("open", ".log", errno.EMFILE)
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in ("t", "u")
    ]
    number = client.send(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
    assert number not in client.look()
    world.advance(DESCRIPTOR_RETRY_MS)
    assert [each.error_code for each in client.look()[number].topics] == [0, 0]
    assert produced(client.ask(produce(b"one"), 9)).base_offset == 0


def test_a_start_that_finds_no_descriptor_to_lead_a_partition_lets_clients_in_nevertheless() -> None:
    world = World()
    world.create("t")
    world.stop()
    world.disk.restart(power_loss=False)
    world.disk.fail("open", PARTITION_METADATA, errno.EMFILE)
    world.start()
    leads = [(world.plane.ready, world.replicas.find("t", 0).is_leader)]
    world.advance(DESCRIPTOR_RETRY_MS)
    assert [*leads, (world.plane.ready, world.replicas.find("t", 0).is_leader)] == [(True, False), (True, True)]
