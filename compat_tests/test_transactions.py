"""Transactions: what is committed is read, once; what is aborted, or a former holder of the id writes, is not."""

from __future__ import annotations

import uuid

import pytest

from compat_tests.clients import ClientError, Driver

SECTION = "9 Transactions"


@pytest.fixture
def name() -> str:
    """A transactional id, and a group, that nobody used before."""
    return f"x-{uuid.uuid4().hex[:12]}"


def make(reference: Driver, topic: str) -> str:
    """The topic, and one to commit offsets of."""
    reference.create_topic(topic)
    reference.create_topic(f"{topic}-source")
    return f"{topic}-source"


def test_committed_transactions_are_read_and_aborted_ones_are_not(
    client: Driver, reference: Driver, topic: str, name: str
) -> None:
    """Write transactions, of which every third is aborted"""
    client.client.needs("transactions")
    source = make(reference, topic)
    for number in range(9):
        values = [f"{number}-{at}" for at in range(3)]
        commit = number % 3 != 2
        client.transact(name, topic, values, group=name, source=source, offset=10 + number, commit=commit)
    expected = [f"{number}-{at}" for number in range(9) if number % 3 != 2 for at in range(3)]
    assert reference.read_committed(topic, len(expected) + 1, wait_ms=3000) == expected
    assert reference.committed(name, source, 0) == 17


def test_reader_of_what_is_committed_waits_for_the_end_of_a_transaction(
    client: Driver, reference: Driver, topic: str, name: str
) -> None:
    """Read with isolation level read_committed"""
    client.client.needs("transactions")
    source = make(reference, topic)
    reference.transact(name, topic, ["a"], group=name, source=source, offset=1)
    reference.transact(name, topic, ["b"], group=name, source=source, offset=2, commit=False)
    reference.transact(name + "-open", topic, ["c"], group=name, source=source, offset=3, outcome=False)
    assert client.read_committed(topic, 2, wait_ms=4000) == ["a"]


def test_former_holder_of_an_id_is_fenced(client: Driver, reference: Driver, topic: str, name: str) -> None:
    """Be fenced by the next holder of the transactional id"""
    client.client.needs("transactions")
    source = make(reference, topic)
    client.transact(name, topic, ["mine"], group=name, source=source, offset=1)
    reference.transact(f"{name}-next", topic, ["theirs"], group=name, source=source, offset=2, name=name)
    with pytest.raises(ClientError):
        client.transact(name, topic, ["late"], group=name, source=source, offset=9)
    assert reference.read_committed(topic, 3, wait_ms=2000) == ["mine", "theirs"]
    assert reference.committed(name, source, 0) == 2
