"""Runs a fuzz campaign: so many damaged frames, spread evenly over all decoders, and what broke.

Called by scripts/fuzz (`python -m tests.fuzz.campaign --cases N --seed S`) and by the tests. Everything follows from
the seed. A finding prints its target and its bytes: put them into `test_findings.py` before mending the decoder.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from protocol.frames import FrameError
from protocol.message import DecodeError
from protocol.records import RecordError
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import Target, all_targets

# What a decoder may hold at its peak, beyond what its target allows whatever comes in. A struct of the least size on
# the wire, a byte or two, is an object with a slot for each field of all versions; a refused frame is read twice.
ALLOWED_BYTES_PER_BYTE = 160
ALLOWED_SECONDS = 0.5  # of the processor, for frames of a few kilobytes: a hang, not a slow day, is what it finds
_MEASURED = 16  # one case in so many has its memory measured


@dataclass
class Report:
    """How a campaign went."""

    cases: int = 0
    values: int = 0
    worst_ratio: float = 0.0  # bytes at the peak beyond the fixed allowance, for each byte in
    worst_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cases} cases: {self.values} values, {self.cases - self.values - len(self.findings)} refusals, "
            f"{len(self.findings)} findings; slowest {self.worst_seconds * 1000:.1f} ms, "
            f"hungriest {self.worst_ratio:.0f} bytes for a byte in"
        )


def run(targets: list[Target], cases: int, seed: int) -> Report:
    """Damage and decode `cases` times, each target in turn."""
    rng, report = Random(seed), Report()
    others = [seed for target in targets for seed in target.seeds]
    for target in targets:
        warm(target)
    for number in range(cases):
        target = targets[number % len(targets)]
        damaged = bytearray(mutate(rng, rng.choice(target.seeds), others if rng.random() < 0.1 else target.seeds))
        target.repair(rng, damaged)
        data = bytes(damaged)
        report.cases += 1
        try:
            report.values += one_case(target, data, number % _MEASURED == 0, report)
        except Exception as error:
            report.findings.append(f"{target.name}: {type(error).__name__}: {error}\n    {data.hex()}")
            if len(report.findings) >= 20:
                break
    return report


def warm(target: Target) -> None:
    """Have the decoder compiled, for good frames and for bad ones, before anything is measured."""
    for data in (*target.seeds, b""):
        target.check(data)


def one_case(target: Target, data: bytes, measured: bool, report: Report) -> bool:
    """Whether the bytes were a value. Raises whatever is wrong with the decoder."""
    if measured:
        ratio = memory_ratio(target, data)
        report.worst_ratio = max(report.worst_ratio, ratio)
        assert ratio <= ALLOWED_BYTES_PER_BYTE, f"{ratio:.0f} bytes of memory for each of {len(data)} bytes"
    begun = time.process_time()
    taken = target.check(data)
    spent = time.process_time() - begun
    report.worst_seconds = max(report.worst_seconds, spent)
    assert spent <= ALLOWED_SECONDS, f"took {spent:.2f} s"
    return taken


def memory_ratio(target: Target, data: bytes) -> float:
    """Bytes that decoding holds at its peak beyond the fixed allowance, for each byte of `data`.

    The second time: the first may compile a reader, as the first string that is no UTF-8 does in each version.
    """
    decode_whatever(target, data)
    tracemalloc.start()
    try:
        decode_whatever(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return max(0, peak - target.allowed_bytes) / max(1, len(data))


def decode_whatever(target: Target, data: bytes) -> None:
    """Decode, whether it is a value or not."""
    with suppress(DecodeError, FrameError, RecordError):
        target.decode(data)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Feed damaged frames to every decoder.")
    parser.add_argument("--cases", type=int, default=20_000, help="how many frames (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what everything follows from (default %(default)s)")
    parser.add_argument("--target", default="", help="only decoders whose name contains this, as in 'FetchRequest v12'")
    asked = parser.parse_args()
    targets = [one for one in all_targets() if asked.target in one.name]
    if not targets:
        parser.error(f"no decoder's name contains {asked.target!r}")
    report = run(targets, asked.cases, asked.seed)
    print(*report.findings, report, sep="\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("broken off")
