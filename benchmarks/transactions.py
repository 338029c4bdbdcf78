"""Transactions: commits a second, how long a commit takes and the broker's processor time, beside Apache 4.4.0.

Two kinds of client, each with 1 and with 100 records a transaction:

- **librdkafka**, one producer as applications have it (confluent-kafka of the compat suite's client environment):
  commits a second, and the time of commit_transaction(). The budgets are judged on these rows, for they were set by
  what such a producer measured: 4 times Apache's commits a second, 0.2 times its p99. The floor beside them is the same
  producer at librdkafka's own mock broker, written in C, in its process, keeping nothing: what a client comes to whose
  broker takes next to no time.
- **bare socket**, a producer made of `protocol` and a socket that does nothing but begin, write and commit, which shows
  the broker with little of a client around it: the time of EndTxn. Then 50 of them in turn on connections of their own,
  all asked before any is answered. Batches are made before the clock runs: what it takes to make one of 100 records in
  Python is more than what a broker does with it.

The two differ by more than their own time: Apache answers EndTxn before its markers are written, and says
CONCURRENT_TRANSACTIONS to the next AddPartitionsToTxn until they are. The bare socket asks again at once, librdkafka
after a pause of 20 ms.

Both brokers run at once and get their rounds in turn; the table, in Markdown, has the medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from compat_tests.apache import NEWEST, Server
from compat_tests.brokers import broker_of
from compat_tests.clients import CLIENTS
from compat_tests.raw import Connection
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

BROKERS = "kbroker", f"apache-{NEWEST}"
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}
LEAST_FASTER, MOST_P99 = 4.0, 0.2
MANY = 50
LIBRDKAFKA = Path(__file__).parent / "harness" / "librdkafka_transactions.py"
BUSY = frozenset({51, 14, 15, 16, 19, 3})  # a transaction that is not complete, a coordinator that is not ready


class Round(NamedTuple):
    """What one round came to. p50_ms, p99_ms: of EndTxn or of commit_transaction(). cpu_ms: of the broker, a commit."""

    commits_a_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Load(Protocol):
    """What runs on one broker: so many commits by each of its producers, measured."""

    def __call__(self, commits: int) -> Round: ...


class Librdkafka:
    """One producer of librdkafka in a process of its own, with the broker it works on; None: its own mock broker."""

    def __init__(self, broker: Server | None, records: int) -> None:
        python, _ = next(each for each in CLIENTS if each.name == "confluent-kafka").command()
        address = broker.address if broker else "mock"
        command = [python, str(LIBRDKAFKA), address, f"librdkafka-{records}", str(records)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._broker = broker

    def __call__(self, commits: int) -> Round:
        """See Load."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu = cpu_s(self._broker) if self._broker else 0.0
        self._process.stdin.write(f"{commits}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return round_of(answer["commits"], answer["seconds"], cpu_s(self._broker) - cpu if self._broker else 0.0)

    def __enter__(self) -> Librdkafka:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)  # its input ends, and so does it


class Producer:
    """One transactional producer on a connection of its own."""

    def __init__(self, port: int, name: str) -> None:
        self.connection = Connection(port)
        self.name = name
        self.until(FindCoordinatorRequest(key=name, key_type=1), 3, lambda found: found.error_code)
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = self.until(asked, 4, lambda found: found.error_code)
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def until(self, request: Message, version: int, code_of: Any) -> Any:
        """Ask until it is not refused for now."""
        while True:
            answer = self.connection.ask(request, version)
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
            each.connection.send(each.end(), 4)
        for each in producers:
            answer = each.connection.receive()
            assert not answer.error_code, answer
            taken.append(perf_counter() - asked)
    return round_of(taken, perf_counter() - begun, cpu_s(broker) - cpu)


def round_of(taken: list[float], seconds: float, cpu: float) -> Round:
    """A round of commits that took so long each."""
    taken.sort()
    total = len(taken)
    p50, p99 = taken[total // 2], taken[int(total * 0.99)]
    return Round(total / seconds, p50 * 1000, p99 * 1000, cpu / total * 1000)


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
    print(HEAD)
    missed = False
    for records in (1, 100):
        with ExitStack() as stack:
            loads: list[Load] = [stack.enter_context(Librdkafka(broker, records)) for broker in (*brokers, None)]
            missed |= row(f"librdkafka, {_records(records)}", loads, rounds, commits, is_judged=True)
    for who, records in ((1, 1), (1, 100), (MANY, 1)):
        loads = [
            partial(measure, broker, producers[:who], records)
            for broker, producers in zip(brokers, everybody, strict=True)
        ]
        title = f"bare socket, {_records(records)}" + (f", {who} producers" if who > 1 else "")
        row(title, loads, rounds, max(1, commits // who), is_judged=False)
    return missed


COLUMNS = (
    "kbroker, Apache",
    "commits a second",
    "",
    "floor",
    "p50, ms",
    "p99, ms",
    "",
    "CPU a commit, ms",
    "",
    "budgets",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|"


def row(title: str, loads: list[Load], rounds: int, commits: int, *, is_judged: bool) -> bool:
    """One row of the table, loads: kbroker's, Apache's, the floor's if any; whether it misses a budget."""
    for load in loads:
        load(commits)  # warm
    found: list[list[Round]] = [[] for _ in loads]
    for _ in range(rounds):
        for load, each in zip(loads, found, strict=True):
            each.append(load(commits))
    ours, theirs, *floor = (Round(*map(statistics.median, zip(*each, strict=True))) for each in found)
    faster, p99 = ours.commits_a_second / theirs.commits_a_second, ours.p99_ms / theirs.p99_ms
    misses = is_judged and (faster < LEAST_FASTER or p99 > MOST_P99)
    cells = [
        title,
        f"{ours.commits_a_second:.0f}, {theirs.commits_a_second:.0f}",
        f"{faster:.2f}x",
        ", ".join(f"{each.commits_a_second:.0f}" for each in floor),
        f"{ours.p50_ms:.2f}, {theirs.p50_ms:.2f}",
        f"{ours.p99_ms:.2f}, {theirs.p99_ms:.2f}",
        f"{p99:.2f}x",
        f"{ours.cpu_ms:.2f}, {theirs.cpu_ms:.2f}",
        f"{ours.cpu_ms / theirs.cpu_ms:.2f}x",
        "" if not is_judged else "MISSED" if misses else "hold",
    ]
    print("|", " | ".join(cells), "|", flush=True)
    return misses


def _records(count: int) -> str:
    return f"{count} record{'s' if count > 1 else ''}"


if __name__ == "__main__":
    sys.exit(main())
