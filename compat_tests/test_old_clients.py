"""Clients from before v2 batches beside new ones, on one topic: each reads what the other wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from compat_tests.brokers import Place
from compat_tests.clients import Driver
from compat_tests.environments import NoClientError, unavailable
from compat_tests.old_clients import OLD_CLIENTS, OldClient, OldDriver

SECTION = "9 Clients from before v2 batches"
CODECS = ("none", "gzip", "snappy", "lz4")
COUNT = 40
VALUE = "compressible " * 10
T0 = 1_700_000_000_000

Start = Callable[[OldClient], OldDriver]


def each_of(clients: Sequence[OldClient]) -> pytest.MarkDecorator:
    """A cell for each; those that speak first for their message format are in scripts/test as well."""
    return pytest.mark.parametrize(
        "release", [pytest.param(one, id=str(one), marks=[pytest.mark.quick] * one.quick) for one in clients]
    )


each_client = each_of(OLD_CLIENTS)
each_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture(scope="module")
def _old_drivers() -> Iterator[dict[tuple[OldClient, str], OldDriver]]:
    drivers: dict[tuple[OldClient, str], OldDriver] = {}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture
def old(broker: Place, _old_drivers: dict[tuple[OldClient, str], OldDriver], tmp_path: Path) -> Start:
    """The running driver of an old client; a test is skipped if it cannot be had, and fails under CI=true."""

    def start(client: OldClient) -> OldDriver:
        key = (client, broker.address)
        if key not in _old_drivers:
            try:
                _old_drivers[key] = OldDriver(client, broker.address, tmp_path)
            except NoClientError as reason:
                unavailable(str(reason))
        return _old_drivers[key]

    return start


@each_codec
@each_client
def test_new_clients_read_what_old_ones_write(
    old: Start, reference: Driver, topic: str, release: OldClient, codec: str
) -> None:
    """Written by the old, codec {codec}, read by the new"""
    release.needs(codec)
    reference.create_topic(topic)
    assert old(release).produce(topic, codec, COUNT, VALUE) == list(range(COUNT))
    records = reference.read(topic, 0, 0, COUNT)
    assert [(record["offset"], record["key"], record["value"]) for record in records] == [
        (at, f"k{at}", f"{VALUE}{at}") for at in range(COUNT)
    ]
    assert all((record["timestamp"] > T0) == release.has_timestamps for record in records)


@each_codec
@each_client
def test_old_clients_read_what_new_ones_write(
    old: Start, reference: Driver, topic: str, release: OldClient, codec: str
) -> None:
    """Written by the new, codec {codec}, read by the old"""
    release.needs(codec)
    reference.create_topic(topic)
    sent = [
        {"key": f"k{at}", "value": f"{VALUE}{at}", "timestamp": T0 + at, "headers": [["h", "1"]]} for at in range(COUNT)
    ]
    reference.produce(topic, sent, codec=codec)
    records = old(release).read(topic, 3, COUNT - 3)
    assert [(record.offset, record.key, record.value) for record in records] == [
        (at, f"k{at}", f"{VALUE}{at}") for at in range(3, COUNT)
    ]
    if release.has_timestamps:
        assert [record.timestamp for record in records] == [T0 + at for at in range(3, COUNT)]


@each_codec
@each_client
def test_old_clients_read_what_the_oldest_writes(
    old: Start, reference: Driver, topic: str, release: OldClient, codec: str
) -> None:
    """Written by Java 0.8.2.2, codec {codec}, read by the old"""
    release.needs(codec)
    reference.create_topic(topic)
    old(OLD_CLIENTS[0]).produce(topic, codec, COUNT, VALUE)
    assert [record.value for record in old(release).read(topic, 0, COUNT)] == [f"{VALUE}{at}" for at in range(COUNT)]


@each_of([*OLD_CLIENTS[:3], *OLD_CLIENTS[6:]])  # later ones are sent it as it is
def test_zstd_is_refused_to_those_who_do_not_know_it(
    old: Start, reference: Driver, topic: str, release: OldClient
) -> None:
    """What lies before zstd is read"""
    reference.create_topic(topic)
    reference.produce(topic, [{"key": "k0", "value": "before"}])
    reference.produce(topic, [{"key": "k1", "value": "zstd " * 200}], codec="zstd")
    assert [record.value for record in old(release).read(topic, 0, 1)] == ["before"]


@each_of(OLD_CLIENTS[:6])
def test_offsets_of_old_groups_are_kept(old: Start, reference: Driver, topic: str, release: OldClient) -> None:
    """Offsets of a group"""
    reference.create_topic(topic)
    reference.produce(topic, [{"value": "v"}])
    driver = old(release)
    assert driver.ask("committed", f"group-of-{topic}", topic) == "none"
    assert driver.ask("commit", f"group-of-{topic}", topic, "7") == "ok"
    assert driver.ask("committed", f"group-of-{topic}", topic) == "7"


@each_of(OLD_CLIENTS[:1])
def test_the_oldest_lists_offsets(old: Start, reference: Driver, topic: str, release: OldClient) -> None:
    """First and next offset, by lists"""
    reference.create_topic(topic)
    reference.produce(topic, [{"value": "v"}] * 3)
    driver = old(release)
    assert (driver.ask("offsets", topic, "-1", "5"), driver.ask("offsets", topic, "-2", "5")) == ("3,0", "0")


@each_of(OLD_CLIENTS[:1])
def test_a_message_beyond_the_oldest_fetch_is_not_taken_for_an_end(
    old: Start, reference: Driver, topic: str, release: OldClient
) -> None:
    """A first message larger than the fetch is hinted at"""
    reference.create_topic(topic)
    reference.produce(topic, [{"key": "k", "value": "x" * 5000}])
    with pytest.raises(pytest.fail.Exception, match="MessageSizeTooLarge"):
        old(release).ask("read", topic, "0", "1", "100")
