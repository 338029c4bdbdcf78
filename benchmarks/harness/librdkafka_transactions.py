"""One transactional producer of librdkafka, for `benchmarks/transactions.py`: run by its client's own interpreter.

Arguments: host:port (or "mock": the broker in C that librdkafka has for its own tests, in a thread of its process), a
transactional id, records a transaction. Each line on stdin is a number of transactions to commit; each is answered by a
line of JSON: the seconds that all of it took, and those of each commit_transaction().
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Producer

TOPIC, VALUE = "t", b"x" * 100
PATIENCE_S = 30


def main() -> None:
    """Commit as often as is asked for, until stdin ends."""
    address, name, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    where = {"test.mock.num.brokers": 1} if address == "mock" else {"bootstrap.servers": address}
    producer = Producer({**where, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    for line in sys.stdin:
        begun = time.perf_counter()
        taken = [commit_one(producer, records) for _ in range(int(line))]
        print(json.dumps({"seconds": time.perf_counter() - begun, "commits": taken}), flush=True)


def commit_one(producer: Producer, records: int) -> float:
    """One transaction; the seconds that its commit took."""
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(TOPIC, VALUE)
    asked = time.perf_counter()
    producer.commit_transaction(PATIENCE_S)
    return time.perf_counter() - asked


if __name__ == "__main__":
    main()
