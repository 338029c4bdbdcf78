"""DescribeLogDirs: directories, what is in them, and what is wrong with them."""

from __future__ import annotations

import errno

from protocol.errors import ErrorCode
from protocol.messages.logdirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.requests import produce
from tests.world import World


def told(world: World, *wanted: tuple[str, list[int]], every: bool = False) -> dict[str, dict[tuple[str, int], int]]:
    """Sizes by directory and partition."""
    topics = None if every else [DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in wanted]
    response = world.client().ask(DescribeLogDirsRequest(topics=topics), 4)
    assert response.error_code == ErrorCode.NONE
    return {
        each.log_dir: {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in each.topics
            for partition in topic.partitions
        }
        for each in response.results
    }


def test_every_directory_is_told_with_the_partitions_asked_for() -> None:
    world = World(("/a", "/b"))
    world.create("t", 2)
    world.create("u", 2)
    world.client().ask(produce(b"one"), 9)
    found = told(world, ("t", [0, 7]), ("none", [0]))
    assert sorted(found) == ["/a", "/b"]
    assert [(key, size > 0) for partitions in found.values() for key, size in partitions.items()] == [(("t", 0), True)]
    assert sum(len(partitions) for partitions in told(world, every=True).values()) == 4
    assert told(world) == {"/a": {}, "/b": {}}


def test_a_directory_that_cannot_be_looked_at_does_not_hide_the_others() -> None:
    world = World(("/a", "/b"))
    world.create("t", 2)
    world.disk.fail("volume", "/b", errno.EIO)
    results = world.client().ask(DescribeLogDirsRequest(topics=None), 4).results
    assert [(each.log_dir, each.error_code, len(each.topics)) for each in results] == [
        ("/a", ErrorCode.NONE, 1),
        ("/b", ErrorCode.KAFKA_STORAGE_ERROR, 0),
    ]
    assert len(told(world, every=True)["/b"]) == 1  # to be asked about has not taken it offline
