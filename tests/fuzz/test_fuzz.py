"""A bounded campaign at every run, memory under false counts, and the bytes that once broke something."""

from __future__ import annotations

import struct
from random import Random

import pytest

from protocol.message import Message
from protocol.primitives import uvarint
from protocol.schema import is_flexible
from tests.fuzz.campaign import ALLOWED_BYTES_PER_BYTE, memory_ratio, run, warm
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import Target, all_targets, message_target, record_target
from tests.judges.batches import KINDS
from tests.judges.java import require
from tests.judges.pairs import all_messages

_FILLING = 5_000  # bytes: most of what they may hold is for them, little the allowance of each target


@pytest.mark.slow
def test_damaged_frames_are_values_or_refusals_that_name_the_field() -> None:
    report = run(all_targets(), cases=5_000, seed=1)
    assert report.findings == []


@pytest.mark.java
@pytest.mark.timeout(600)
def test_damaged_record_sets_of_apaches_making_are_records_or_refusals() -> None:
    targets = [record_target(magic, codec_id, require("3.9.1")) for magic, codec_id in KINDS]
    assert run(targets, cases=5_000, seed=1).findings == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", all_messages().values(), ids=all_messages())
def test_a_false_count_takes_no_more_memory_than_the_bytes_behind_it(cls: type[Message]) -> None:
    version = cls.versions[1]
    target = message_target(cls, version, examples=2)
    warm(target)
    count = uvarint(_FILLING // 2) if is_flexible(cls, version) else struct.pack(">i", _FILLING // 2)
    ratios = [
        memory_ratio(target, seed[:position] + count + b"\x01" * _FILLING)
        for seed in target.seeds
        for position in range(min(len(seed), 40) + 1)
    ]
    assert max(ratios) <= ALLOWED_BYTES_PER_BYTE


def test_the_same_seed_damages_in_the_same_way() -> None:
    def damage() -> list[bytes]:
        rng = Random(7)
        return [mutate(rng, b"frame", [b"other"]) for _ in range(50)]

    assert damage() == damage()


def test_a_decoder_that_breaks_is_a_finding() -> None:
    def check(data: bytes) -> bool:
        if data not in (b"", b"good"):
            raise IndexError("out of range")
        return True

    report = run([Target("breaker", check, check, [b"good"])], cases=5, seed=1)
    assert "breaker: IndexError: out of range" in report.findings[0]


def test_a_decoder_that_hoards_is_a_finding() -> None:
    def hoard(data: bytes) -> bool:
        return len(bytearray(10_000_000)) > 0

    report = run([Target("hoarder", hoard, hoard, [b"good"])], cases=1, seed=1)
    assert "bytes of memory" in report.findings[0]
