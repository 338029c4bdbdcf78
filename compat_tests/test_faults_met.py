"""What stock clients do when the broker errs: each row of the table in docs/testing.md, played to each client.

The table is the expectation. Its first column is the fault as a test writes it behind `faults.`, its second what the
client is asked, the others what it then does, as it can be seen: what the client says, and what the log has.

The broker is the fixture of the plugin that the guide is about: one for all rows, emptied after each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests.clients import CLIENTS, LIBRDKAFKA, Client, ClientError, Driver, running
from compat_tests.waiting import eventually
from kbroker.testing import Broker

DOCS = Path(__file__).parents[1] / "docs" / "testing.md"
HEAD = "| fault, on a broker's `faults` | asked for |"
TOPIC, GROUP, VALUE = "orders", "billing", "a book"


class Row(NamedTuple):
    """One fault. does: by client's name."""

    fault: str
    asked: str
    does: dict[str, str]


def table() -> list[Row]:
    """The rows of the table."""
    lines = DOCS.read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(HEAD))
    names = [cell.strip() for cell in lines[start].split("|")[3:-1]]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        fault, asked, *outcomes = (cell.strip() for cell in line.split("|")[1:-1])
        rows.append(Row(fault.strip("`"), asked, dict(zip(names, outcomes, strict=True))))
    return rows


def produced(b: Broker, driver: Driver, *, idempotent: bool = False) -> str:
    try:
        driver.produce(TOPIC, [{"value": VALUE}], idempotent=idempotent)
        told = "acknowledged"
    except ClientError as error:
        told = f"error {error.code}" if error.code is not None else "error"
    times = len(b.records(TOPIC))
    return f"{told}, {('not', 'once', 'twice')[times] if times < 3 else times} in the log"


def read(b: Broker, driver: Driver) -> str:
    b.produce(TOPIC, VALUE.encode())
    try:
        found = driver.read(TOPIC, 0, 0, 1)
    except ClientError as error:
        return f"error {error.code}"
    return "reads it" if [each["value"] for each in found] == [VALUE] else "reads damaged bytes" if found else "nothing"


def committed(b: Broker, driver: Driver) -> str:
    b.produce(TOPIC, VALUE.encode())
    try:
        driver.join("member", GROUP, [TOPIC])
        found = driver.poll("member", 1)
        driver.commit("member")
    except ClientError as error:
        return f"error {error.code}"
    return f"reads it, commits, lag {b.lag(GROUP)}" if len(found) == 1 else "nothing"


ASKED: dict[str, Callable[[Broker, Driver], str]] = {
    "produce": produced,
    "produce, idempotent": lambda b, driver: produced(b, driver, idempotent=True),
    "read": read,
    "read in a group": committed,
}
MET_BY = {
    f"{each.name} {each.release}": each
    for each in CLIENTS
    if (each.name, each.release) in (("kafka-python", "3.0.12"), ("aiokafka", "0.14.0"), ("confluent-kafka", "2.16.0"))
}


@pytest.mark.parametrize("stock", MET_BY.values(), ids=str)
@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.fault} {row.asked}")
def test_a_fault_is_met_as_the_guide_says(row: Row, stock: Client, kafka_broker: Broker, tmp_path: Path) -> None:
    kafka_broker.create_topic(TOPIC)
    driver = Driver(stock, kafka_broker.bootstrap, tmp_path)
    try:
        eval(f"faults.{row.fault}", {"faults": kafka_broker.faults})
        assert ASKED[row.asked](kafka_broker, driver) == row.does[str(stock)]
    finally:
        driver.close()


def test_the_writer_of_stories_writes_once_what_is_refused_between_others(kafka_broker: Broker, tmp_path: Path) -> None:
    """With several requests under way librdkafka would raise its epoch, and send again what was in doubt elsewhere."""
    kafka_broker.create_topic(TOPIC, partitions=2)
    with running(kafka_broker.bootstrap, tmp_path, LIBRDKAFKA) as (driver,):
        driver.start_writing(TOPIC, 2, 2, 20)
        eventually(lambda: min(driver.written()) > 20)
        for fault in (
            kafka_broker.faults.on("Produce", topic=TOPIC, partition=1).delay(ms=200).once(),
            kafka_broker.faults.on("Produce", topic=TOPIC, partition=1).fail("NOT_LEADER_OR_FOLLOWER").once(),
            kafka_broker.faults.on("Produce", topic=TOPIC, partition=0)
            .fail("NOT_LEADER_OR_FOLLOWER", after=True)
            .times(4),
        ):
            eventually(lambda fault=fault: fault.is_over)  # type: ignore[misc]
        before = driver.written()
        eventually(lambda: all(now > then + 20 for now, then in zip(driver.written(), before, strict=True)))
        driver.stop_writing()
    values = [each.value for each in kafka_broker.records(TOPIC)]
    assert len(values) == len(set(values))


def test_the_guide_names_at_least_twenty_faults_and_all_three_clients() -> None:
    assert (len(table()) >= 20, {name for row in table() for name in row.does}) == (True, set(MET_BY))
