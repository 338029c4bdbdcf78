"""Speed and ratio of each codec on batches of JSON records of 1 KB: `scripts/bench codecs` prints a table."""

from __future__ import annotations

import json
import time
from random import Random

from protocol.records.compression import Codec, codec_named, codec_names

BATCH_BYTES = (16 << 10, 128 << 10, 1 << 20)
SECONDS, TURNS = 0.1, 5


def records(size: int) -> bytes:
    """JSON records of about 1 KB, as applications log them, of this size together."""
    rng, out = Random(7), bytearray()
    while len(out) < size:
        fields = {
            "id": rng.randrange(1 << 40),
            "user": f"user{rng.randrange(5000)}",
            "at": f"2026-11-{rng.randrange(1, 31):02}T{rng.randrange(24):02}:{rng.randrange(60):02}:00Z",
            "path": "/".join(rng.choice(("orders", "items", "carts", "users", "search")) for _ in range(4)),
            "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
            "tags": [rng.choice(("new", "paid", "open", "late", "gift")) for _ in range(20)],
            "trace": rng.randbytes(150).hex(),
        }
        text = json.dumps(fields).encode()
        out += text + b" " * max(0, 1000 - len(text))
    return bytes(out[:size])


def speed(work: Codec, data: bytes, packed: bytes | None) -> float:
    """Megabytes of records a processor second, of compressing `data`, or of decompressing `packed` to it."""
    return len(data) / min(_once(work, data, packed) for _ in range(TURNS)) / 1e6


def _once(work: Codec, data: bytes, packed: bytes | None) -> float:
    """Processor seconds of one batch. Time by the clock would be that of the machine's other work as well."""
    rounds, start = 0, time.process_time()
    while (took := time.process_time() - start) < SECONDS:
        if packed is None:
            work.compress(data)
        else:
            work.decompress(packed, len(data))
        rounds += 1
    return took / rounds


def main() -> None:
    """Print the table."""
    print("| codec | batch | ratio | compress MB/s | decompress MB/s |\n|---|---|---|---|---|")
    for name in codec_names()[1:]:
        for size in BATCH_BYTES:
            codec, data = codec_named(name), records(size)
            packed = bytes(codec.compress(data))
            up, down = speed(codec, data, None), speed(codec, data, packed)
            print(f"| {name} | {size >> 10} KB | {len(data) / len(packed):.2f} | {up:,.0f} | {down:,.0f} |")


if __name__ == "__main__":
    main()
