"""Transactions: commits a second, the time of EndTxn and the broker's processor time a commit, beside Apache 4.3.0.

One producer made of `protocol` and a socket, which does nothing but begin, write and commit; then 50 of them in turn on
connections of their own, all asked before any is answered. Their batches are made before the clock runs: what it takes
to make one of 100 records in Python is more than what a broker does with it. Both brokers run at once and get their
rounds in turn.
Budgets: 4 times Apache's commits a second, 0.2 times its p99 of EndTxn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from compat_tests.apache import Server
from compat_tests.brokers import broker_of
from compat_tests.raw import Connection
from protocol.apis import BY_KEY
from protocol.message import Message
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch

BROKERS = "kbroker", "apache-4.3.0"
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}
LEAST_FASTER, MOST_P99 = 4.0, 0.2
MANY = 50
BUSY = frozenset({51, 14, 15, 16, 19, 3})  # a transaction that is not complete, a coordinator that is not ready


class Round(NamedTuple):
    """What one round came to. cpu_ms: of the broker, a commit."""

    commits_a_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Producer:
    """One transactional producer on a connection of its own."""

    def __init__(self, port: int, name: str) -> None:
        self.connection = Connection(port)
        self.name = name
        self.until(FindCoordinatorRequest(key=name, key_type=1), 3, lambda found: found.error_code)
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = self.until(asked, 4, lambda found: found.error_code)
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def send(self, request: Message, version: int) -> None:
        self.connection.send(request, version)

    def receive(self, request: Message, version: int) -> Any:
        return self.connection.receive(BY_KEY[request.api or 0].response, version)

    def until(self, request: Message, version: int, code_of: Any) -> Any:
        """Ask until it is not refused for now."""
        while True:
            self.send(request, version)
            answer = self.receive(request, version)
            code = code_of(answer)
            if not code:
                return answer
            assert code in BUSY, answer

    def batch(self, records: int) -> bytes:
        """The batch of the next transaction but those already made."""
        batch = build_batch(
            [Record(at, 1000, None, b"x" * 100) for at in range(records)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += records
        return bytes(batch)

    def begin_and_write(self, batch: bytes) -> None:
        """A transaction with a batch in partition 0."""
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        first = "results_by_topic_v3_and_below"
        self.until(add, 3, lambda found: getattr(found, first)[0].results_by_partition[0].partition_error_code)
        data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
        write = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=5000, topic_data=data)
        self.until(write, 11, lambda found: found.responses[0].partition_responses[0].error_code)

    def end(self) -> EndTxnRequest:
        return EndTxnRequest(transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=True)


def measure(broker: Server, producers: list[Producer], records: int, commits: int) -> Round:
    """So many commits by each producer: all write, all ask for the end, all are answered."""
    taken: list[float] = []
    batches = [[each.batch(records) for each in producers] for _ in range(commits)]
    begun, cpu = perf_counter(), cpu_s(broker)
    for made in batches:
        for each, batch in zip(producers, made, strict=True):
            each.begin_and_write(batch)
        asked = perf_counter()
        for each in producers:
            each.send(each.end(), 4)
        for each in producers:
            answer = each.receive(each.end(), 4)
            assert not answer.error_code, answer
            taken.append(perf_counter() - asked)
    taken.sort()
    total = len(taken)
    return Round(
        total / (perf_counter() - begun),
        taken[total // 2] * 1000,
        taken[int(total * 0.99)] * 1000,
        (cpu_s(broker) - cpu) / total * 1000,
    )


def cpu_s(broker: Server) -> float:
    """Processor time of the broker's process so far."""
    assert broker._process is not None, broker
    fields = Path(f"/proc/{broker._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the rows; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=500, help="in a round of one producer")
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        brokers = [broker_of(choice, Path(folder, choice), SETTINGS).start() for choice in BROKERS]
        try:
            missed = compare(brokers, arguments.rounds, arguments.commits)
        finally:
            for broker in brokers:
                broker.stop()
    return int(missed)


def compare(brokers: list[Server], rounds: int, commits: int) -> bool:
    """Every row on both; whether a budget is missed."""
    wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    everybody: list[list[Producer]] = []
    for broker in brokers:
        with Connection(broker.port) as connection:
            connection.send(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 4)
        everybody.append([Producer(broker.port, f"bench-{number}") for number in range(MANY)])
    missed = False
    for title, who, records, each in (
        ("one producer, 1 record", 1, 1, commits),
        ("one producer, 100 records", 1, 100, commits),
        (f"{MANY} producers at once", MANY, 1, max(1, commits // MANY)),
    ):
        for broker, producers in zip(brokers, everybody, strict=True):
            measure(broker, producers[:who], records, each)  # warm
        found: list[list[Round]] = [[] for _ in brokers]
        for _ in range(rounds):
            for at, broker in enumerate(brokers):
                found[at].append(measure(broker, everybody[at][:who], records, each))
        ours, theirs = (Round(*map(statistics.median, zip(*each, strict=True))) for each in found)
        faster, p99, cpu = (
            ours.commits_a_second / theirs.commits_a_second,
            ours.p99_ms / theirs.p99_ms,
            ours.cpu_ms / theirs.cpu_ms,
        )
        missed |= who == 1 and (faster < LEAST_FASTER or p99 > MOST_P99)
        print(f"{title}: {faster:.2f}x the commits, p99 of EndTxn {p99:.2f}x, processor time {cpu:.2f}x")
        for choice, each_round in zip(BROKERS, (ours, theirs), strict=True):
            rate, p50, p99_ms, cpu_ms = each_round
            print(f"  ({choice}: {rate:.0f}/s, EndTxn p50 {p50:.2f} ms, p99 {p99_ms:.2f} ms, {cpu_ms:.2f} ms of CPU)")
    return missed


if __name__ == "__main__":
    sys.exit(main())
