"""The codec beside kafka-python and kio, in one run, against its budgets.

Every row is one message; every round times all subjects one after the other, so that a slow moment of the machine
hits all of them. Printed: the median over the rounds in microseconds, the spread (first to third quartile), the
budget, and whether it holds. Subjects get the same bytes, or values that encode to the same bytes: asserted before
anything is timed. Times are the process's own CPU time. The garbage collector stays on, as it does in a broker.
"""

from __future__ import annotations

import gc
import io
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import protocol.messages

ROUNDS = 41
SECONDS_A_SAMPLE = 0.004

Subject = Callable[[], Any]


class Row(NamedTuple):
    """One message, one direction: what is timed, by whose name, and what ours may cost."""

    name: str
    subjects: dict[str, Subject]
    units: int = 1  # what the time is divided by
    unit: str = "message"
    limit_us: float | None = None  # a unit
    limit_ratio: float | None = None  # of kafka-python's time


def sample_us(subject: Subject, loops: int) -> float:
    """Microseconds a call, over `loops` calls."""
    start = process_time()
    for _ in range(loops):
        subject()
    return (process_time() - start) / loops * 1e6


def measure(row: Row) -> dict[str, list[float]]:
    """Samples in microseconds a unit, by subject; rounds go over all subjects in turn."""
    loops = {}
    for name, subject in row.subjects.items():
        subject()
        loops[name] = max(1, int(SECONDS_A_SAMPLE / (sample_us(subject, 3) / 1e6)))
    samples: dict[str, list[float]] = {name: [] for name in row.subjects}
    for _ in range(ROUNDS):
        for name, subject in row.subjects.items():
            samples[name].append(sample_us(subject, loops[name]) / row.units)
    return samples


def report(row: Row) -> bool:
    """Print a row; whether its budgets hold."""
    samples = measure(row)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print(f"{row.name}, us a {row.unit}")
    for name, values in samples.items():
        low, _, high = statistics.quantiles(values, n=4)
        ratio = f"{medians[name] / medians['kbroker']:6.2f}x" if name != "kbroker" else ""
        print(f"    {name:14}{medians[name]:10.3f}   {low:9.3f} - {high:9.3f}   {ratio}")
    limits = []
    if row.limit_us is not None:
        limits.append((f"{row.limit_us} us", row.limit_us))
    if row.limit_ratio is not None:
        limits.append((f"{row.limit_ratio:g} x kafka-python", row.limit_ratio * medians["kafka-python"]))
    for text, limit in limits:
        holds = medians["kbroker"] <= limit
        print(f"    budget {text}: {'holds' if holds else 'MISSED'}, at {medians['kbroker'] / limit:.2f} of it")
    return all(medians["kbroker"] <= limit for _, limit in limits)


def metadata() -> list[Row]:
    """A Metadata v12 response of about 10 KB: 3 brokers, 22 topics of 10 partitions."""
    from kafka.protocol.metadata import MetadataResponse as Peer
    from kio.schema.metadata.v12.response import MetadataResponse as Kio
    from kio.serial import entity_reader, entity_writer

    from protocol.messages import metadata as m

    ours = m.MetadataResponse(
        brokers=[m.MetadataResponseBroker(node_id=n, host=f"broker-{n}.example.org", port=9092) for n in range(3)],
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[
            m.MetadataResponseTopic(
                error_code=0,
                name=f"orders-by-region-{t}",
                topic_id=bytes([t + 1] * 16),
                partitions=[
                    m.MetadataResponsePartition(
                        error_code=0,
                        partition_index=p,
                        leader_id=p % 3,
                        leader_epoch=7,
                        replica_nodes=[p % 3, (p + 1) % 3, (p + 2) % 3],
                        isr_nodes=[p % 3, (p + 1) % 3, (p + 2) % 3],
                    )
                    for p in range(10)
                ],
            )
            for t in range(22)
        ],
    )
    data = ours.encode(12)
    theirs = Peer.decode(data, version=12)
    theirs._header = None  # its decoder leaves the slot empty, its encoder looks at it
    read, write = entity_reader(Kio), entity_writer(Kio)
    kio, _ = read(data, 0)
    assert m.MetadataResponse.decode(data, 12) == ours
    assert theirs.encode(version=12) == data == written(write, kio)
    title = f"Metadata v12 response, {len(data)} bytes"
    decoding = {
        "kbroker": lambda: m.MetadataResponse.decode(data, 12),
        "kafka-python": lambda: Peer.decode(data, version=12),
        "kio": lambda: read(data, 0),
    }
    encoding = {
        "kbroker": lambda: ours.encode(12),
        "kafka-python": lambda: theirs.encode(version=12),
        "kio": lambda: written(write, kio),
    }
    return [
        Row(f"{title}: decode", decoding, limit_ratio=1),
        Row(f"{title}: encode", encoding, limit_ratio=2),
    ]


def produce() -> list[Row]:
    """A Produce v9 request: 10 topics of 10 partitions, one batch of 1 KB each; memory of a connection's buffer."""
    from kafka.protocol.producer import ProduceRequest as Peer
    from kio.schema.produce.v9.request import ProduceRequest as Kio
    from kio.serial import entity_reader

    from protocol.messages import produce as m

    batch = bytes(1024)
    request = m.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            m.TopicProduceData(
                name=f"orders-by-region-{t}",
                partition_data=[m.PartitionProduceData(index=p, records=batch) for p in range(10)],
            )
            for t in range(10)
        ],
    )
    data = request.encode(9)
    view = memoryview(bytearray(data))
    read = entity_reader(Kio)
    assert m.ProduceRequest.decode(view, 9) == request
    assert len(Peer.decode(view, version=9).topic_data) == len(request.topic_data)
    subjects = {
        "kbroker": lambda: m.ProduceRequest.decode(view, 9),
        "kafka-python": lambda: Peer.decode(view, version=9),
        "kio": lambda: read(view, 0),
    }
    return [Row("Produce v9 request, 100 partitions: decode", subjects, 100, "partition", limit_us=1.2)]


class Region:
    """Stands for a range of a file: has a length and nothing else."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def fetch() -> list[Row]:
    """A Fetch v12 response: 10 topics of 10 partitions; records as file regions, as bytes for the peers."""
    from kafka.protocol.consumer import FetchResponse as Peer
    from kio.schema.fetch.v12.response import FetchResponse as Kio
    from kio.serial import entity_reader, entity_writer

    from protocol.messages import fetch as m

    def response(records: Any) -> m.FetchResponse:
        return m.FetchResponse(
            responses=[
                m.FetchableTopicResponse(
                    topic=f"orders-by-region-{t}",
                    partitions=[
                        m.PartitionData(
                            partition_index=p,
                            error_code=0,
                            high_watermark=123456,
                            last_stable_offset=123456,
                            log_start_offset=0,
                            aborted_transactions=None,
                            records=records,
                        )
                        for p in range(10)
                    ],
                )
                for t in range(10)
            ]
        )

    ours = response(Region(1024))
    data = response(bytes(1024)).encode(12)
    theirs = Peer.decode(data, version=12)
    theirs._header = None  # its decoder leaves the slot empty, its encoder looks at it
    read, write = entity_reader(Kio), entity_writer(Kio)
    kio, _ = read(data, 0)
    assert theirs.encode(version=12) == data == written(write, kio)
    encoding = {
        "kbroker": lambda: ours.encode_parts(12),
        "kafka-python": lambda: theirs.encode(version=12),
        "kio": lambda: written(write, kio),
    }
    decoding = {
        "kbroker": lambda: m.FetchResponse.decode(data, 12),
        "kafka-python": lambda: Peer.decode(data, version=12),
        "kio": lambda: read(data, 0),
    }
    making = {"kbroker": lambda: response(b"")}
    return [
        Row("Fetch v12 response, 100 partitions: encode", encoding, 100, "partition", limit_us=1.5),
        Row("Fetch v12 response, 100 partitions: decode", decoding, 100, "partition"),
        Row("Fetch v12 response, 100 partitions: make the value", making, 100, "partition"),
    ]


def leader_and_isr() -> list[Row]:
    """A LeaderAndIsr v7 request: 100 topics of 10 partitions, 3 replicas each."""
    from kio.schema.leader_and_isr.v7.request import LeaderAndIsrRequest as Kio
    from kio.serial import entity_reader, entity_writer

    from protocol.messages import control as m

    ours = m.LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=3,
        broker_epoch=77,
        type=0,
        topic_states=[
            m.LeaderAndIsrTopicState(
                topic_name=f"orders-by-region-{t}",
                topic_id=bytes([t + 1] * 16),
                partition_states=[
                    m.LeaderAndIsrPartitionState(
                        partition_index=p,
                        controller_epoch=3,
                        leader=p % 3,
                        leader_epoch=7,
                        isr=[0, 1, 2],
                        partition_epoch=5,
                        replicas=[0, 1, 2],
                        adding_replicas=[],
                        removing_replicas=[],
                        is_new=False,
                        leader_recovery_state=0,
                    )
                    for p in range(10)
                ],
            )
            for t in range(100)
        ],
        live_leaders=[m.LeaderAndIsrLiveLeader(broker_id=n, host_name=f"broker-{n}", port=9092) for n in range(3)],
    )
    data = ours.encode(7)
    read, write = entity_reader(Kio), entity_writer(Kio)
    kio, _ = read(data, 0)
    assert written(write, kio) == data
    encoding = {"kbroker": lambda: ours.encode(7), "kio": lambda: written(write, kio)}
    decoding = {"kbroker": lambda: m.LeaderAndIsrRequest.decode(data, 7), "kio": lambda: read(data, 0)}
    return [
        Row("LeaderAndIsr v7 request, 1,000 partitions: encode", encoding, 1000, "partition", limit_us=4),
        Row("LeaderAndIsr v7 request, 1,000 partitions: decode", decoding, 1000, "partition"),
    ]


def written(write: Callable[[Any, Any], None], value: Any) -> bytes:
    """What kio writes, as bytes."""
    buffer = io.BytesIO()
    write(buffer, value)
    return buffer.getvalue()


IMPORT = """
import sys, time; start = time.perf_counter()
for name in sys.argv[1:]:
    __import__("protocol.messages." + name)
print(time.perf_counter() - start)
"""


def report_import(limit_ms: float = 60) -> bool:
    """Print the time a fresh interpreter takes to import every message, byte code cached; whether the budget holds."""
    names = [module.name for module in pkgutil.iter_modules(protocol.messages.__path__)]
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", IMPORT, *names]
        environment = os.environ | {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        runs = [
            float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout) * 1e3
            for _ in range(16)
        ][1:]
    middle = statistics.median(runs)
    low, _, high = statistics.quantiles(runs, n=4)
    print(f"import of all {len(names)} files of messages in a fresh interpreter, ms")
    print(f"    {'kbroker':14}{middle:10.1f}   {low:9.1f} - {high:9.1f}")
    print(
        f"    budget {limit_ms:g} ms: {'holds' if middle <= limit_ms else 'MISSED'}, at {middle / limit_ms:.2f} of it"
    )
    return middle <= limit_ms


def main(arguments: list[str]) -> int:
    """Print all rows, or those whose name holds the first argument; exit code 1 if a budget is missed."""
    wanted = arguments[0].lower() if arguments else ""
    good, shown = (report_import(), 1) if wanted in "import" else (True, 0)
    gc.collect()
    gc.freeze()  # what the peers' schemas left behind is not ours to collect
    for rows in (metadata, produce, fetch, leader_and_isr):
        for row in rows():
            if wanted in row.name.lower():
                good &= report(row)
                shown += 1
    if not shown:
        print(f"no row's name holds {wanted!r}")
        return 2
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
