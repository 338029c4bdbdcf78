"""Consume, transform and produce, while the broker is killed: every input is counted once, nothing aborted is seen.

The inputs are numbers. A transaction writes the next few and commits how far it has got; every fifth is aborted. When a
client gives up, a new one takes its transactional id, which ends what the old one left open, and goes on from what is
committed. At random moments the broker is killed (-9) and started again.
"""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import CLIENTS, REFERENCE, Client, ClientError, Driver, running
from compat_tests.raw import lower

SECTION = "9 Transactions"
NAME, GROUP, TOPIC, SOURCE = "counter", "counters", "counted", "numbers"
AT_ONCE = 5
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
WITH_TRANSACTIONS = [each for each in CLIENTS if "transactions" not in each.lacks]


class Counter:
    """A client that counts, and its successors."""

    def __init__(self, driver: Driver) -> None:
        self.failures = 0
        self._driver = driver
        self._holder = self._take()

    def _take(self) -> str:
        """Take the id as a new process would: what the holder before has left open is ended by that."""
        while True:
            holder = f"{NAME}-{self.failures}"
            try:
                transaction = {"group": f"{GROUP}-nothing", "source": SOURCE, "offset": 0, "commit": False}
                self._driver.transact(holder, TOPIC, ["never"], name=NAME, **transaction)  # type: ignore[arg-type]
                return holder
            except ClientError:
                self.failures += 1

    def count(self, first: int, *, commit: bool) -> None:
        """One transaction; whatever became of it."""
        values = [str(number) for number in range(first, first + AT_ONCE)]
        after = first + AT_ONCE
        try:
            self._driver.transact(
                self._holder, TOPIC, values, name=NAME, group=GROUP, source=SOURCE, offset=after, commit=commit
            )
        except ClientError:
            self.replace()

    def leave_open(self, first: int) -> None:
        """Begin a transaction, and walk away from it: `replace` comes next."""
        values, after = [str(number) for number in range(first, first + AT_ONCE)], first + AT_ONCE
        where = {"group": GROUP, "source": SOURCE, "offset": after}
        self._driver.transact(self._holder, TOPIC, values, name=NAME, outcome=False, **where)  # type: ignore[arg-type]

    def replace(self) -> None:
        """Another process takes over."""
        self.failures += 1
        self._holder = self._take()


def committed(reference: Driver) -> int:
    """How far the counting has got."""
    while True:
        try:
            return reference.committed(GROUP, SOURCE, 0) or 0
        except ClientError:
            continue


def kill(broker: KbrokerProcess) -> None:
    broker.kill()
    broker.start()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, id=str(each), marks=[pytest.mark.quick] * (each is REFERENCE)) for each in WITH_TRANSACTIONS],
)
def test_every_input_is_counted_once_while_the_broker_is_killed(
    kind: Client, level: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Consume, transform and produce while the broker is killed, transaction.version {level}"""
    random = Random(1)
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, kind, REFERENCE) as (driver, reference),
    ):
        lower(broker.port, "transaction.version", level)
        for topic in (TOPIC, SOURCE):
            reference.create_topic(topic)
        counter = Counter(driver)
        for turn in range(request.config.getoption("--kills")):
            killing = threading.Timer(random.random() * 0.1, kill, [broker])
            killing.start()
            counter.count(committed(reference), commit=turn % 5 != 4)
            killing.join()
            counter.count(committed(reference), commit=True)
        counted = committed(reference)
        seen = reference.read_committed(TOPIC, counted + 1, wait_ms=5_000)
    assert counted > 0
    assert seen == [str(number) for number in range(counted)]
