"""What a broker saw, in some lines, for the output of a test that failed: topics, last records, groups, requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from kbroker.faults import Faults
from kbroker.testing._disk import DiskFaults
from kbroker.testing._helpers import Helpers, Record
from kbroker.usage import UsageError

MOST_TOPICS = 20
MOST_RECORDS = 5
MOST_REQUESTS = 20
MOST_CHARACTERS = 80  # of a value


class Reported(Protocol):
    """A broker as a report looks at it; its repr says how it is."""

    node_id: int
    faults: Faults
    disk: DiskFaults

    @property
    def is_running(self) -> bool:
        """Whether it can be asked, unless it is paused."""

    @property
    def is_paused(self) -> bool:
        """Whether it answers no client for the time being."""


def report(kafka: Helpers, brokers: Sequence[Reported]) -> str:
    """The lines. kafka: whom to ask. brokers: all of its, running or not."""
    return "\n".join(_lines(kafka, brokers))


def _lines(kafka: Helpers, brokers: Sequence[Reported]) -> Iterator[str]:
    for each in brokers:
        yield repr(each)
    if any(each.is_running and not each.is_paused for each in brokers):
        try:
            yield from _topics(kafka)
            yield from _groups(kafka)
        except UsageError as error:
            yield f"topics and groups: {error}"
    for each in brokers:
        yield from _faults(each)
    for each in brokers:
        seen = list(each.faults.history)
        yield f"the last {min(len(seen), MOST_REQUESTS)} of {len(seen)} requests to broker {each.node_id}:"
        yield from (f"  {one!r}" for one in seen[-MOST_REQUESTS:])


def _topics(kafka: Helpers) -> Iterator[str]:
    topics = kafka.topics()
    yield f"{len(topics)} topics"
    for name in sorted(topics)[:MOST_TOPICS]:
        try:
            records = kafka.records(name)
        except UsageError as error:
            yield f"  {name}: {error}"
            continue
        yield f"  {name}: {topics[name]} partitions, {len(records)} records"
        yield from (f"    {_record(each)}" for each in records[-MOST_RECORDS:])


def _record(record: Record) -> str:
    return f"{record.partition}@{record.offset} {_short(record.key)}: {_short(record.value)}"


def _short(value: bytes | None) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(value or b'')} bytes)"


def _groups(kafka: Helpers) -> Iterator[str]:
    groups = kafka.groups()
    yield f"{len(groups)} groups"
    for name, group in sorted(groups.items()):
        committed = ", ".join(
            f"{topic}-{index} at {offset}" for (topic, index), offset in sorted(group.committed.items())
        )
        yield f"  {name}: {group.state}, {len(group.members)} members, {committed or 'nothing committed'}"


def _faults(each: Reported) -> Iterator[str]:
    if list(each.faults):
        yield f"faults of broker {each.node_id}:"
        yield from (f"  {line}" for line in repr(each.faults).splitlines())
    if repr(each.disk) != "well":
        yield f"the disk of broker {each.node_id} is {each.disk!r}"
