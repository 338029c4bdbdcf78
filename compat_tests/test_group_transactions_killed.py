"""Members of a group that consume, transform and produce in transactions, while the broker is killed (-9).

Each client copies numbers from topic to topic with its own consumer, its own producer and the offsets in the
transaction, as its documentation says; every fifth transaction is aborted. It goes on by itself after each kill. In the
end all numbers have been committed once, in order, and nothing of the aborted transactions is read.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import CLIENTS, FRANZ_GO, REFERENCE, Client, ClientError, Driver, running
from compat_tests.raw import lower
from compat_tests.waiting import eventually

SECTION = "9 Transactions"
NAME, GROUP, SOURCE, TOPIC, LAST = "copier", "copiers", "numbers", "copies", "the last"
AT_ONCE = 400  # numbers between two kills: some forty transactions
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
KINDS = [*(each for each in CLIENTS if each.name in ("Java", "confluent-kafka")), FRANZ_GO]


def committed(reference: Driver, group: str, topic: str, partition: int = 0) -> int:
    """How far a group has got in a partition. The broker is up, and may still be loading what it is asked for."""
    found: list[int] = []

    def asked() -> bool:
        try:
            found.append(reference.committed(group, topic, partition) or 0)
        except ClientError:
            return False
        return True

    eventually(asked)
    return found[-1]


def write(reference: Driver, topic: str, values: list[str]) -> None:
    """Write to partition 0, each value once: nobody kills the broker meanwhile."""
    reference.produce(topic, [{"value": value, "partition": 0} for value in values], idempotent=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("kind", [pytest.param(each, id=str(each)) for each in KINDS])
def test_every_record_is_copied_once_while_the_broker_is_killed(
    kind: Client, level: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Copy as a member of a group while the broker is killed, transaction.version {level}"""
    random = Random(2)
    numbers = 0
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, kind, REFERENCE) as (driver, reference),
    ):
        lower(broker.port, "transaction.version", level)
        for topic in (SOURCE, TOPIC):
            reference.create_topic(topic)
        copying = driver.start("copy", name=NAME, group=GROUP, source=SOURCE, topic=TOPIC, last=LAST)
        for _ in range(request.config.getoption("--kills")):
            write(reference, SOURCE, [str(number) for number in range(numbers, numbers + AT_ONCE)])
            numbers += AT_ONCE
            enough = numbers - random.randrange(1, AT_ONCE)  # in the middle of the rest
            eventually(lambda enough=enough: committed(reference, GROUP, SOURCE) >= enough, within_s=60)
            broker.kill()
            broker.start()
        write(reference, SOURCE, [LAST])
        commits = copying()
        expected = [*map(str, range(numbers)), LAST]
        seen = reference.read_committed(TOPIC, len(expected) + 1, wait_ms=5_000)
    assert commits > 0
    assert seen == expected
