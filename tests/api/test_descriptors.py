"""What clients see while the broker can open no more files: an error now, and everything again a moment later."""

from __future__ import annotations

import errno

from protocol.errors import ErrorCode
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
