"""Record batches against their budgets: what an append costs before and with a look at every record.

Times are the best of several samples in one run: the walker and the header check are far shorter than the machine's
noise, which only ever adds. The CRC's own time is measured beside and taken off, since the budget leaves it out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from protocol.records import Record, walker_kind
from protocol.records._checksum import crc32c
from protocol.records._walker import pack, parse, walk
from protocol.records.batch import ATTRIBUTES_AT, HEADER_SIZE, assign, check, scan
from protocol.records.compression import codec_named, codec_names
from protocol.records.content import build_batch, check_records

SAMPLES = 25
SECONDS_A_SAMPLE = 0.01
RECORD_BYTES = 100
CHECK_LIMIT_NS = 1000  # header and CRC of a batch, without the CRC's own time
WALK_LIMIT_NS = 40  # a record, compiled


def best_ns(call: Callable[[], Any], units: int = 1) -> float:
    """Nanoseconds a unit, in the best sample."""
    start = perf_counter()
    call()
    loops = max(1, int(SECONDS_A_SAMPLE / max(perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(SAMPLES):
        start = perf_counter()
        for _ in range(loops):
            call()
        best = min(best, (perf_counter() - start) / loops)
    return best / units * 1e9


def records_of(count: int) -> list[Record]:
    """Records of about RECORD_BYTES each on the wire, whose values compress as JSON does."""
    filler = b'{"user":%d,"page":"/shop/items/%d","ok":true}'
    records = []
    for index in range(count):
        value = filler % (index * 7919 % 100003, index * 104729 % 1009)
        records.append(Record(index, 1_700_000_000_000 + index, b"key-%04d" % index, value.ljust(RECORD_BYTES - 17)))
    return records


def report(name: str, value: float, unit: str, limit: float | None = None) -> bool:
    """Print one row; False if it misses its budget."""
    verdict = "" if limit is None else f"   budget {limit:,.0f}: {'holds' if value <= limit else 'MISSED'}"
    print(f"    {name:52}{value:12,.1f} {unit}{verdict}")
    return limit is None or value <= limit


def headers() -> bool:
    """Reading, checking and stamping batches without a look at their records."""
    print("a v2 batch, records unseen; one batch of ten 100-byte records unless said")
    data = build_batch(records_of(10))
    view = memoryview(data)
    size = len(data)
    covered = view[ATTRIBUTES_AT:]
    crc = best_ns(lambda: crc32c(covered))
    whole = best_ns(lambda: check(view, 0, size))
    report("its CRC alone", crc, "ns")
    report("header and CRC checked", whole, "ns")
    held = report("header and CRC checked, less the CRC alone", whole - crc, "ns", CHECK_LIMIT_NS)
    report("base offset and leader epoch written", best_ns(lambda: assign(view, 0, 77, size - 12, 3)), "ns")
    many = memoryview(bytes(data) * 100)
    report("found by scan, 100 in a buffer", best_ns(lambda: sum(1 for _ in scan(many)), 100), "ns a batch")
    return held


def walking() -> bool:
    """The loops over single records."""
    print(f"records of about {RECORD_BYTES} bytes; the walker is {walker_kind()}")
    held = True
    for count in (1, 10, 100, 10_000):
        body = memoryview(pack(records_of(count), 0, 1_700_000_000_000))
        time = best_ns(lambda b=body, n=count: walk(b, 0, len(b), n, 1_700_000_000_000), count)  # type: ignore[misc]
        limit = WALK_LIMIT_NS if count >= 100 and walker_kind() == "compiled" else None
        held &= report(f"walked, {count:,} in a batch", time, "ns a record", limit)
    records = records_of(1000)
    body = memoryview(pack(records, 0, 0))
    report("parsed into values", best_ns(lambda: parse(body, 0, len(body), 1000, 0, 0, None), 1000), "ns a record")
    report("packed into bytes", best_ns(lambda: pack(records, 0, 0), 1000), "ns a record")
    return held


def codecs() -> None:
    """Each codec on a batch of 1,000 records, with the records checked."""
    records = records_of(1000)
    body = pack(records, 0, 0)
    for name in codec_names()[1:]:
        codec = codec_named(name)
        data = memoryview(build_batch(records, codec_id=codec.codec_id))
        header = check(data, 0, len(data))
        ratio = len(body) / (len(data) - HEADER_SIZE)
        print(f"{name}: {len(body):,} bytes of 1,000 records, {ratio:.1f} : 1")
        report("compressed", best_ns(lambda c=codec: c.compress(body)) / 1000, "us")  # type: ignore[misc]
        time = best_ns(lambda d=data, h=header: check_records(d, 0, h)) / 1000  # type: ignore[misc]
        report("decompressed and checked", time, "us")


def main() -> int:
    held = headers() & walking()
    codecs()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
