"""What a broker refuses is told by every command in Kafka's words: it is never taken for nothing, nor put in those of
a client library."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kbroker.testing import Broker, broker
from tests.cli.asking import Ask

ERRORS = (
    "CLUSTER_AUTHORIZATION_FAILED",
    "UNKNOWN_SERVER_ERROR",
)  # the latter is -1, where clients keep their own errors
ASKED = [
    ("topics --describe", "DescribeConfigs"),
    ("topics --create --topic x", "CreateTopics"),
    ("topics --alter --topic t --partitions 3", "CreatePartitions"),
    ("topics --delete --topic t", "DeleteTopics"),
    ("topics --offsets --topic t", "ListOffsets"),
    ("configs --describe --topic t", "DescribeConfigs"),
    ("configs --describe --broker 1", "DescribeConfigs"),
    ("configs --describe --broker-defaults", "DescribeConfigs"),
    ("configs --alter --topic t --add-config retention.ms=1", "IncrementalAlterConfigs"),
    ("cluster --describe", "DescribeCluster"),
    ("cluster --log-dirs", "DescribeLogDirs"),
    ("groups --list", "ListGroups"),
    ("groups --describe --group g", "DescribeGroups"),
    ("groups --describe --group g", "OffsetFetch"),
    ("groups --delete --group g", "DeleteGroups"),
    ("groups --delete-offsets --group g --topic t", "OffsetDelete"),
    ("groups --reset-offsets --group g --topic t --to-earliest --execute", "OffsetCommit"),
    ("reassign --list", "ListPartitionReassignments"),
    ("elect-leaders --election-type preferred --all-topic-partitions", "ElectLeaders"),
    ("transactions list", "ListTransactions"),
    ("transactions describe-producers --topic t --partition 0", "DescribeProducers"),
    ("acls --list", "DescribeAcls"),
    ("users --list", "DescribeUserScramCredentials"),
    ("quotas --describe", "DescribeClientQuotas"),
    ("features upgrade --feature group.version=1", "UpdateFeatures"),
    ("produce -t t", "Produce"),
    ("consume -t t -o beginning -e", "Fetch"),
    ("consume -t t -o beginning -e", "ListOffsets"),
    ("consume -t t -G g -o beginning -e", "JoinGroup"),
]


@pytest.fixture(scope="module")
def refusing() -> Iterator[Broker]:
    with broker() as b:
        b.create_topic("t")
        b.produce("t", b"v")
        member = Consumer({"bootstrap.servers": b.bootstrap, "group.id": "g"})
        member.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        member.close()
        yield b


@pytest.fixture
def bootstrap(refusing: Broker) -> Iterator[str]:
    yield refusing.bootstrap
    refusing.faults.clear()


def told(ask: Ask, words: str) -> str:
    """The one line of a command that cannot be done."""
    code, out, err = ask(*words.split(), stdin=b"x\n")
    assert (code, out, err.count("\n"), err[:9]) == (2, "", 1, "kbroker: "), (code, out, err)
    return err


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("words", "api"), ASKED)
def test_a_refusal_has_kafkas_name_for_it(ask: Ask, refusing: Broker, words: str, api: str, error: str) -> None:
    refusing.faults.on(api).fail(error)
    line = told(ask, words)
    assert f"{error}: " in line
    assert re.search(r"[a-z]Error\b|\[Error|None\b|Unknown broker error", line) is None


@pytest.mark.parametrize("words", ["produce -t t", "perf produce -t t --num-records 1 --record-size 1"])
def test_a_producer_that_cannot_go_on_says_why(bootstrap: str, refusing: Broker, words: str) -> None:
    """In a process: the library would write to standard error by itself."""
    refusing.faults.on("InitProducerId").fail(ERRORS[0])
    command = [sys.executable, "-m", "kbroker", *words.split(), "-b", bootstrap, "-X", "enable.idempotence=true"]
    done = subprocess.run(command, input="x\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert f"{ERRORS[0]}: " in done.stderr
