"""What became of what writers were told is safe: the judge of stories in which brokers die and networks part.

Fed by the tests with what the stock clients say, on both sides. Writers (drivers/writer.py) are idempotent: of what is
acknowledged nothing may be missing, elsewhere, twice, or before what was sent earlier. What was sent and never
acknowledged may be there or not, but if it is, once and in order, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from compat_tests.clients import Driver


class Acknowledged(NamedTuple):
    """A record and where it is, as its writer was told. number: counts what this writer sent, from 0.

    offset: None where the client itself does not know. A batch whose answer was lost is in the log if one that was sent
    behind it is acknowledged, and then librdkafka reports it as delivered, somewhere.
    """

    writer: str
    number: int
    partition: int
    offset: int | None


class Read(NamedTuple):
    """A record as a consumer found it."""

    offset: int
    writer: str
    number: int
    value: str = ""


def everything(driver: Driver, topic: str, partitions: int) -> dict[int, list[Read]]:
    """All records of a topic that is written by writers, by partition, as a client reads them."""
    found = {}
    for index in range(partitions):
        _, end = driver.bounds(topic, index)
        records = driver.read(topic, index, 0, end)
        assert len(records) == end, f"{topic}-{index} has {end} records, and {len(records)} can be read"
        found[index] = [_read(each["offset"], each["value"]) for each in records]
    return found


def checksums(acknowledged: Sequence[Acknowledged], size: int) -> dict[int, str]:
    """Of each partition to which nothing but this was written, by one writer, in values of `size` characters."""
    values: dict[int, list[str]] = {}
    for each in sorted(acknowledged, key=lambda each: each.number):
        values.setdefault(each.partition, []).append(f"{each.writer} {each.number} ".ljust(size, "."))
    return {index: checksum(values[index]) for index in sorted(values)}


def checksum(values: Iterable[str]) -> str:
    """Of values in this order."""
    return sha256("\n".join(values).encode()).hexdigest()


def complaints(acknowledged: Iterable[Acknowledged], read: Mapping[int, Sequence[Read]]) -> list[str]:
    """A line for each record that is not as promised. read: what there is, by partition, in the order read."""
    return [*_missing_or_elsewhere(acknowledged, read), *_twice_or_late(read)]


def _missing_or_elsewhere(acknowledged: Iterable[Acknowledged], read: Mapping[int, Sequence[Read]]) -> list[str]:
    places = {(each.writer, each.number): (partition, each.offset) for partition in read for each in read[partition]}
    found = []
    for each in acknowledged:
        promised, place = (each.partition, each.offset), places.get((each.writer, each.number))
        if place is None:
            found.append(f"{each.writer} {each.number}, acknowledged at {promised}, is lost")
        elif place != promised and (each.offset is not None or place[0] != each.partition):
            found.append(f"{each.writer} {each.number}, acknowledged at {promised}, is at {place}")
    return found


def _twice_or_late(read: Mapping[int, Sequence[Read]]) -> list[str]:
    found = []
    for partition, records in read.items():
        last: dict[str, int] = {}
        for each in records:
            before = last.get(each.writer, -1)
            if each.number <= before:
                found.append(f"{each.writer} {each.number} is behind its {before}, at {(partition, each.offset)}")
            last[each.writer] = max(before, each.number)
    return found


def _read(offset: int, value: str) -> Read:
    writer, number, _ = value.split(" ", 2)
    return Read(offset, writer, int(number), value)
