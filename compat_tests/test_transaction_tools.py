"""Apache's Java producers and kafka-transactions.sh in transactions, with transaction.version 0 and 2."""

from __future__ import annotations

import pytest

from compat_tests.apache import NEWEST, RELEASES
from compat_tests.raw import Connection, lower
from compat_tests.test_apache_tools import TOOLS, run
from kbroker.testing import broker as broker_for_tests
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.transactions import DescribeTransactionsRequest

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("release", RELEASES)
def test_java_producer_commits_and_its_transactions_are_listed(release: str, level: int) -> None:
    """kafka-producer-perf-test in transactions; then kafka-transactions"""
    with broker_for_tests() as broker, Connection(broker.port) as raw:
        lower(broker.port, "transaction.version", level)
        wanted = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
        raw.send(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 4)
        load = ["--topic", "t", "--num-records", "2000", "--record-size", "100", "--throughput", "2000"]
        transactions = ["--transactional-id", "perf", "--transaction-duration-ms", "50"]
        props = ["--producer-props", f"bootstrap.servers={broker.bootstrap}"]
        assert "2000 records sent" in run(release, f"{TOOLS}.ProducerPerformance", *load, *transactions, *props)
        listed = run(release, f"{TOOLS}.TransactionsCommand", "--bootstrap-server", broker.bootstrap, "list")
        with Connection(broker.port) as other:
            (found,) = other.ask(DescribeTransactionsRequest(transactional_ids=["perf"]), 0).transaction_states
    assert "perf" in listed
    assert found.transaction_state == "CompleteCommit"
    assert (found.producer_epoch > 2) == (level == 2 and release == NEWEST)
