"""kill -9 under load: what was acknowledged is there afterwards, and the broker always starts again.

Three producers run at once over all kills (`--kills`): acks 1, acks all, and acks all with idempotence, five requests
ahead of their answers, each sending again what was not acknowledged. Small segments make the kills hit rolled
segments, indexes and producer snapshots too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from compat_tests.apache import Server
from compat_tests.brokers import broker_of
from compat_tests.raw import Producer, read_all
from compat_tests.waiting import eventually

SECTION = "6 Under kill -9 and with many connections"
MODES = {"acks 1": (1, False), "acks all": (-1, False), "acks all, idempotent": (-1, True)}
pytestmark = [pytest.mark.quick, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Aftermath:
    """What is known after the last kill: by mode, what was acknowledged and what was read."""

    kills: int
    acknowledged: dict[str, list[bytes]]
    read: dict[str, list[bytes | None]]
    failures: dict[str, str | None]


@pytest.fixture(scope="module")
def aftermath(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """Kill and restart the broker under load so many times; each restart must answer, or this fails."""
    folder = tmp_path_factory.mktemp("killed")
    broker = broker_of(request.config.getoption("--broker"), folder, {"log.segment.bytes": str(1 << 20)}).start()
    producers = {
        mode: Producer(broker.port, mode.replace(" ", "-").replace(",", ""), acks=acks, idempotent=again, seed=seed)
        for seed, (mode, (acks, again)) in enumerate(MODES.items())
    }
    try:
        yield _kill_often(broker, producers, request.config.getoption("--kills"))
    finally:
        broker.stop()


def _kill_often(broker: Server, producers: dict[str, Producer], kills: int) -> Aftermath:
    random = Random(1)
    for producer in producers.values():
        producer.start()
    for _ in range(kills):
        _wait_for_acknowledgements(producers, random.randint(1, 3000))
        broker.kill()
        broker.start()
    _wait_for_acknowledgements(producers, 100)
    for producer in producers.values():
        producer.stop()
    return Aftermath(
        kills,
        {mode: producer.acknowledged for mode, producer in producers.items()},
        {mode: read_all(broker.port, mode.replace(" ", "-").replace(",", "")) for mode in producers},
        {mode: producer.failure for mode, producer in producers.items()},
    )


def _wait_for_acknowledgements(producers: dict[str, Producer], more: int) -> None:
    """Return once every producer got some, and one of them `more`."""
    before = {mode: len(producer.acknowledged) for mode, producer in producers.items()}

    def enough() -> bool:
        counts = [len(producer.acknowledged) - before[mode] for mode, producer in producers.items()]
        assert not any(producer.failure for producer in producers.values()), [p.failure for p in producers.values()]
        return min(counts) > 0 and max(counts) >= more

    eventually(enough, within_s=60)


@pytest.mark.parametrize("mode", MODES)
def test_no_acknowledged_record_is_lost(aftermath: Aftermath, mode: str) -> None:
    """No acknowledged record is lost, {mode}"""
    assert aftermath.failures[mode] is None
    lost = set(aftermath.acknowledged[mode]) - set(aftermath.read[mode])
    assert not lost, f"{len(lost)} of {len(aftermath.acknowledged[mode])}"


def test_idempotent_records_are_there_once_and_in_order(aftermath: Aftermath) -> None:
    """Idempotent records are there once and in order"""
    numbers = [int((value or b"").split()[0]) for value in aftermath.read["acks all, idempotent"]]
    assert numbers == list(range(len(numbers)))
