"""Log directories of a member of a quorum's cluster: formatted once, and looked at before each start."""

from __future__ import annotations

import random

import pytest

from kbroker.log.checkpoints import format_clean_shutdown, replace_file
from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.folder import make_dirs
from kbroker.log.formatting import format_directories, previous_broker_epoch, take_formatted
from kbroker.log.log_loader import whose
from kbroker.log.metaproperties import MetaProperties, format_meta_properties
from kbroker.log.names import CLEAN_SHUTDOWN
from kbroker.sim.disk import SimDisk

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


class Chance:
    def __init__(self) -> None:
        self._rng = random.Random(1)

    def below(self, limit: int) -> int:
        return self._rng.randrange(limit)

    def token(self, size: int) -> bytes:
        return self._rng.randbytes(size)


CHANCE = Chance()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(1, lambda: 0)


def formatted(disk: SimDisk, *paths: str, node_id: int = 7, ignore_formatted: bool = False) -> list[str]:
    return format_directories(disk, CHANCE, paths, CLUSTER, node_id, ignore_formatted=ignore_formatted)


def test_each_directory_says_whose_it_is_and_which(disk: SimDisk) -> None:
    formatted(disk, "/a", "/b/c")
    metas, _ = whose(disk, ["/a", "/b/c"])
    assert [each[:3] for each in metas.values()] == [(1, CLUSTER, 7)] * 2
    assert len({each.directory_id for each in metas.values()}) == 2


def test_a_directory_is_formatted_once(disk: SimDisk) -> None:
    formatted(disk, "/a")
    with pytest.raises(DirectoryRefusedError, match=r"Log directory /a is already formatted\. Use --ignore-formatted"):
        formatted(disk, "/a", "/b")
    assert disk.stat("/b") is None
    assert formatted(disk, "/a", "/b", ignore_formatted=True)[0].startswith("Formatting data directory /b")
    assert formatted(disk, "/a", "/b", ignore_formatted=True) == ["All of the log directories are already formatted."]


def test_another_nodes_directory_is_not_taken(disk: SimDisk) -> None:
    formatted(disk, "/a")
    with pytest.raises(DirectoryRefusedError, match="broker id 7 differs from 8"):
        formatted(disk, "/a", "/b", node_id=8, ignore_formatted=True)
    with pytest.raises(DirectoryRefusedError, match="broker id 7 differs from 8"):
        take_formatted(disk, Chance(), ["/a"], 8, "/a")


def test_a_member_starts_on_what_is_formatted(disk: SimDisk) -> None:
    formatted(disk, "/a", "/b")
    found = take_formatted(disk, Chance(), ["/a", "/b"], 7, "/a")
    assert found.cluster_id == CLUSTER
    assert found.directory_ids == {path: meta.directory_id for path, meta in whose(disk, ["/a", "/b"])[0].items()}


def test_an_unformatted_directory_is_refused_in_a_line(disk: SimDisk) -> None:
    with pytest.raises(DirectoryRefusedError, match=r"^/a/meta.properties: there is none with a cluster.id: kbroker "):
        take_formatted(disk, Chance(), ["/a"], 7, "/a")
    assert disk.stat("/a") is None


def test_a_directory_that_was_added_is_formatted_at_the_start(disk: SimDisk) -> None:
    formatted(disk, "/a")
    found = take_formatted(disk, Chance(), ["/a", "/b"], 7, "/a")
    assert whose(disk, ["/b"])[0]["/b"] == MetaProperties(1, CLUSTER, 7, found.directory_ids["/b"])


def test_a_directory_of_an_older_kafka_gets_an_id(disk: SimDisk) -> None:
    make_dirs(disk, "/a")
    replace_file(disk, "/a", "meta.properties", format_meta_properties(MetaProperties(1, CLUSTER, 7)).encode())
    found = take_formatted(disk, Chance(), ["/a"], 7, "/a")
    assert whose(disk, ["/a"])[0]["/a"].directory_id == found.directory_ids["/a"]


def test_the_directory_of_a_broker_that_is_no_member_is_refused(disk: SimDisk) -> None:
    make_dirs(disk, "/a")
    replace_file(disk, "/a", "meta.properties", format_meta_properties(MetaProperties(0, CLUSTER, 7)).encode())
    with pytest.raises(DirectoryRefusedError, match="has version 0: it is that of a broker without process"):
        take_formatted(disk, Chance(), ["/a"], 7, "/a")


@pytest.mark.parametrize(("epochs", "previous"), [((5, 5), 5), ((5, 6), -1), ((5, None), -1)])
def test_the_epoch_of_the_life_before_counts_if_every_directory_was_stopped_cleanly_in_it(
    disk: SimDisk, epochs: tuple[int | None, ...], previous: int
) -> None:
    for path, epoch in zip(("/a", "/b"), epochs, strict=True):
        make_dirs(disk, path)
        if epoch is not None:
            replace_file(disk, path, CLEAN_SHUTDOWN, format_clean_shutdown(epoch).encode())
    assert previous_broker_epoch(disk, ["/a", "/b"]) == previous
