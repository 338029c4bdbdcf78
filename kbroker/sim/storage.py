"""Worlds that compact, convert and have old clients in them on purpose: `scripts/sim storage`.

As a world of the swarm, but for its topics: compacted ones, compacted and recompressed ones, and some that keep message
formats v0 and v1. Half of the clients speak as clients did before there were v2 batches. Every record has one of a few
keys. In a compacted topic a record may be gone, if a later one of its key is there; that holds after every start, too.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from kbroker.log.names import TopicPartition
from kbroker.sim.checks import Checks, Held, Promise
from kbroker.sim.consumers import FETCH, Consumer
from kbroker.sim.formats import pieces
from kbroker.sim.producers import PRODUCE, ZSTD, Producer
from kbroker.sim.swarm import Outcome, Swarm, settings_of
from kbroker.sim.topics import Topic

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from kbroker.log.log import Log
    from kbroker.sim.world import World
    from protocol.records import Record

KEYS = 5
SMALL = {
    "retention.ms": "-1",
    "segment.index.bytes": "4096",
    "segment.bytes": "2000",
    "segment.ms": "20000",
    "file.delete.delay.ms": "1000",
}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
OLDEST, OLDER = "0.9.0", "0.10.2"


def key_of(value: bytes) -> bytes:
    """The key of the record with this value."""
    return b"key-%d" % (zlib.crc32(value) % KEYS)


class KeyedProducer(Producer):
    """Writes records with keys."""

    def key_of(self, value: bytes) -> bytes | None:
        """See Producer."""
        return key_of(value)


class StorageChecks(Checks):
    """Knows which topics are compacted, and reads messages of all formats."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.compacted: set[str] = set()
        self.converted = 0  # old messages seen in logs

    def may_skip(self, promise: Promise, expected: int, offset: int) -> bool:
        """See Checks."""
        is_compacted = promise.where[0] in self.compacted and expected < offset
        return is_compacted or super().may_skip(promise, expected, offset)

    def compare(self, held: Held, log: Log) -> None:
        """See Checks; and of each key the last known record is there, or a later one."""
        super().compare(held, log)
        promise = held.promise
        if promise.where[0] not in self.compacted:
            return
        there = {record.offset: record for record in _records(log)}
        last = {key_of(bytes(record.value or b"")): offset for offset, record in sorted(there.items())}
        for offset, value in promise.known.items():
            if offset >= log.log_start_offset and offset not in there and last.get(key_of(value), -1) < offset:
                raise self.world.broken(f"{held}: {value!r} at {offset} is gone, and nothing of its key came later")

    def _compare_batches(self, promise: Promise, start: int, data: memoryview, expected: int) -> int:
        for piece in pieces(data):
            records, last_offset = piece.records(), piece.last_offset
            base_offset = records[0].offset if piece.is_old else piece.offset
            follows = base_offset == expected or expected == start <= last_offset
            if not follows and not self.may_skip(promise, expected, base_offset):
                raise self.world.broken(f"{promise}: {expected} should follow, there is {base_offset}")
            expected = last_offset + 1
            self.converted += piece.is_old
            for record in () if promise.is_internal else records:
                if record.offset >= start:
                    self._place(promise, record.offset, bytes(record.value or b""))
        return expected


def _records(log: Log) -> Iterator[Record]:
    """All that a log holds."""
    for segment in log.segments:
        for piece in pieces(memoryview(segment.file.read(0, segment.size))):
            yield from piece.records()


class Storage(Swarm):
    """One such world."""

    def _make_checks(self) -> Checks:
        return StorageChecks(self.world)

    def _make_topics(self, rng: random.Random) -> list[Topic]:
        codec = rng.choice(("gzip", "snappy", "lz4", "zstd", "uncompressed"))
        old_and_compacted = COMPACTED if rng.random() < 0.5 else SMALL
        topics = [
            Topic("kept", 2, COMPACTED),
            Topic("packed", 1, {**COMPACTED, "compression.type": codec}),
            Topic("older", 2, {**old_and_compacted, "message.format.version": OLDER}),
            Topic("oldest", 1, {**old_and_compacted, "message.format.version": OLDEST}),
        ]
        assert isinstance(self.checks, StorageChecks)
        self.checks.compacted = {topic.name for topic in topics if topic.is_compacted}
        return topics

    def _make_settings(self, rng: random.Random) -> dict[str, str]:
        own = {
            "inter.broker.protocol.version": "2.8",
            "log.cleaner.backoff.ms": "1000",
            "log.cleaner.dedupe.buffer.size": "1048577",
        }
        return {**settings_of(rng), **own}

    def _producer(self, number: int, rng: random.Random) -> Producer:
        producer = super()._producer(number, rng)
        producer.most_records = 3  # old messages are longer, and a segment may be set to 1,000 bytes
        if any("message.format.version" in topic.configs for topic in producer.topics):
            producer.idempotent = False  # those have no place for ids, nor for zstd
            producer.codec_id = rng.choice((0, 1, 2, 3))
        if not producer.idempotent and rng.random() < 0.5:
            producer.fixed_versions[PRODUCE] = rng.choice((0, 1, 2))
            producer.codec_id %= ZSTD
        return producer

    def _new_producer(self, name: str) -> Producer:
        return KeyedProducer(name, self.world, self.net, self.machines, self.checks)

    def _consumer(self, number: int, rng: random.Random) -> Consumer:
        consumer = super()._consumer(number, rng)
        if rng.random() < 0.5:
            consumer.fixed_versions[FETCH] = rng.choice((0, 1, 2, 3))
        return consumer

    @property
    def cleaned(self) -> dict[TopicPartition, int]:
        """How far the partitions that clients write to are compacted, as the brokers that run say."""
        return {
            partition: log.cleaned_to
            for machine in self.machines
            if machine.up
            for partition, log in machine.broker.logs.logs()
            if log.cleaned_to and not partition.topic.startswith("__")
        }


def simulate_storage(seed: int, machines: int | None = None) -> Outcome:
    """Run the world of a seed to its end. Raises: Broken, or whatever the broker itself raised."""
    return Storage(seed, machines=machines).run()
