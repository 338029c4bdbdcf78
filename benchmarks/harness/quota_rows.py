"""A row with quotas on: what it costs to count what clients use, beside the same broker without quotas.

One connection produces and one fetches, in turns: one without quotas, the next with quotas that no client reaches. The
load is that of `produce-1k` and `fetch`; small batches are of one record of 100 bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness.brokers import HOST, Broker
from benchmarks.harness.rows import BATCH_BYTES, GB, KEEP_TO_READ, Fresh, Measured, Metric, Row, cpu_per_gb
from benchmarks.harness.wire import (
    Connection,
    Consumer,
    Producer,
    batch,
    create_topics,
    produce_frame,
)
from protocol.messages.quotas import AlterClientQuotasEntry, AlterClientQuotasRequest, EntityData, OpData

TOPIC, SMALL = "bench-quotas", "bench-quotas-small"
WARM, COUNTED = 4, 24  # turns of a round; every other one has quotas
SMALL_COUNT = 8_000
UNREACHED = 1e12  # bytes a second


class Quotas(Row):
    """Produce and fetch, in turns without quotas and with them."""

    key = "quotas"
    title = "quotas on: produce 1 KB and single records, fetch"
    metrics = (
        cpu_per_gb(1.0)._replace(title="produce, CPU per GB"),
        Metric("produce_more", "produce, with quotas to without", "x", most=1.03),
        Metric("small_more", "single records, with quotas to without", "x", most=1.03),
        Metric("fetch_more", "fetch, with quotas to without", "x", most=1.03),
    )
    uses_fresh = True
    records = BATCH_BYTES // 1010

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        with fresh(kind, {}) as broker:
            broker.launch_ready()
            with Connection(HOST, broker.port) as admin:
                create_topics(admin, [TOPIC, SMALL], configs=KEEP_TO_READ)
                return self._measure(broker, admin)

    def _measure(self, broker: Broker, admin: Connection) -> Measured:
        data, one = batch(self.records, 1000), batch(1, 100)
        count = self.scale.bytes_1k // 2 // WARM // len(data)
        turns: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        with Connection(HOST, broker.port) as producing, Connection(HOST, broker.port) as fetching:
            producer = Producer(producing, produce_frame(TOPIC, [data]))
            small = Producer(producing, produce_frame(SMALL, [one]))
            consumer = Consumer(
                fetching, TOPIC, batch_bytes=len(data), batch_records=self.records, partition_bytes=1 << 20
            )
            for turn in range(WARM + COUNTED):
                is_on = bool(turn % 2)
                limit(admin, is_on=is_on)
                marks = [broker.cpu_s()]
                producer.run(count)
                marks.append(broker.cpu_s())
                small.run(SMALL_COUNT)
                marks.append(broker.cpu_s())
                consumer.run(consumer.offset + count * self.records)
                marks.append(broker.cpu_s())
                if turn >= WARM:
                    turns[is_on].append((marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]))
        produce, small, fetch = in_turn(turns[True], turns[False])
        cpu = statistics.median(each[0] for each in turns[True]) / (count * len(data)) * GB
        return {"cpu": cpu, "produce_more": produce, "small_more": small, "fetch_more": fetch}


def in_turn(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Sequence[float]:
    """The medians of some figures in terms of others: each turn beside the one next to it, as the machine was then."""
    return [
        statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        for mine, theirs in zip(zip(*some, strict=True), zip(*others, strict=True), strict=True)
    ]


def limit(connection: Connection, *, is_on: bool) -> None:
    """Give all clients a quota of bytes, or take it back."""
    entity = EntityData(entity_type="client-id", entity_name=None)
    quotas = [
        OpData(key=key, value=UNREACHED, remove=not is_on) for key in ("producer_byte_rate", "consumer_byte_rate")
    ]
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasEntry(entity=[entity], ops=quotas)], validate_only=False
    )
    answer = connection.ask(request, 1)
    assert [each.error_code for each in answer.entries] == [0], answer


ROWS: tuple[type[Row], ...] = (Quotas,)
