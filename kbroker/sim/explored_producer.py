"""A model for the explorer (explorer.py): one idempotent producer, its log's memory of it, retries, and crashes.

The producer sends batches of one record with sequences 0, 1, ..., keeps a few in flight, and may begin a new epoch, as
after InitProducerId. The network delivers any batch that was ever sent, at any time and as often as it likes. The
broker takes snapshots, crashes, and then knows what its snapshot and the log behind it tell. Left out: producers that
expire.

What must hold: no sequence of an epoch is twice in the log, the sequences of an epoch follow each other, epochs never
go back, and a duplicate is answered with the offset that the batch really has.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

from kbroker.log.producer_state import Origin, Producers
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records.batch import HeaderTuple

PRODUCER_ID, NOW_MS, NEVER_MS = 1, 1_000, 1 << 60
Batch: TypeAlias = tuple[int, int]
"""(epoch, sequence)."""


class Send(NamedTuple):
    """The producer's next batch arrives for the first time, or a batch that was sent arrives once more."""

    epoch: int
    sequence: int


Event: TypeAlias = Send | Literal["new epoch", "snapshot", "crash"]


class ProducerWorld:
    """producers: the memory. log: batches by offset. sent: how many, by epoch. answer: to the last batch, its offset.

    snapshot: of the memory, and the log's end then. Never changed once made.
    """

    __slots__ = ("answer", "log", "producers", "sent", "snapshot")

    def __init__(self, producers: Producers) -> None:
        self.producers = producers
        self.log: tuple[Batch, ...] = ()
        self.sent: tuple[int, ...] = (0,)
        self.answer: int | None = None
        self.snapshot: tuple[bytes, int] = (producers.snapshot(), 0)


class ProducerModel:
    """epochs, batches: how many there are at most, batches in the log of all epochs. in_flight: sent, not in the log.

    make: the memory, in tests one with a fault.
    """

    def __init__(self, *, epochs: int = 2, batches: int = 7, in_flight: int = 2, make: type[Producers] = Producers):
        self._epochs = epochs
        self._batches = batches
        self._in_flight = in_flight
        self._make = make

    def begins(self) -> list[ProducerWorld]:
        """An empty log."""
        return [ProducerWorld(self._make())]

    def events(self, state: ProducerWorld) -> Iterator[Event]:
        """Any batch that was sent, the next one, an epoch, a snapshot, a crash."""
        epoch = len(state.sent) - 1
        for each, sent in enumerate(state.sent):
            for sequence in range(sent):
                yield Send(each, sequence)
        in_log = sum(1 for each, _ in state.log if each == epoch)
        if state.sent[-1] - in_log < self._in_flight:
            yield Send(epoch, state.sent[-1])
        if epoch + 1 < self._epochs:
            yield "new epoch"
        if state.snapshot[1] < len(state.log):
            yield "snapshot"
        yield "crash"

    def after(self, state: ProducerWorld, event: Event) -> ProducerWorld | None:
        """See Model."""
        world = copy.copy(state)
        world.answer = None
        if isinstance(event, Send):
            if not self._deliver(world, event):
                return None
        elif event == "new epoch":
            world.sent = (*world.sent, 0)
        elif event == "snapshot":
            world.snapshot = (state.producers.snapshot(), len(state.log))
        else:
            world.producers = self._recovered(state)
        return world

    def _deliver(self, world: ProducerWorld, batch: Send) -> bool:
        """Whether something changed."""
        header = _header(batch)
        is_new = batch.epoch == len(world.sent) - 1 and batch.sequence == world.sent[-1]
        if is_new:
            world.sent = (*world.sent[:-1], world.sent[-1] + 1)
        try:
            duplicate = world.producers.check(header, Origin.CLIENT)
        except KafkaError:
            return is_new
        if duplicate is not None:
            world.answer = duplicate.last_offset
            return True
        if len(world.log) == self._batches:
            return is_new
        world.producers = copy.deepcopy(world.producers)
        world.producers.update(header, len(world.log), NOW_MS)
        world.answer = len(world.log)
        world.log = (*world.log, (batch.epoch, batch.sequence))
        world.producers.end_offset = len(world.log)
        return True

    def _recovered(self, state: ProducerWorld) -> Producers:
        """What the broker knows after a crash: the snapshot, and the log behind it."""
        content, end_offset = state.snapshot
        found = self._make()
        found.load(content, end_offset, NOW_MS, NEVER_MS)
        for offset in range(end_offset, len(state.log)):
            epoch, sequence = state.log[offset]
            found.update(_header(Send(epoch, sequence)), offset, NOW_MS)
        found.end_offset = len(state.log)
        return found

    def key(self, state: ProducerWorld) -> Hashable:
        """The answer is of the past."""
        return state.log, state.sent, _memory(state.producers), state.snapshot

    def objection(self, before: ProducerWorld, event: Event, after: ProducerWorld) -> str | None:
        """See the top of this file."""
        log = after.log
        if len(set(log)) < len(log):
            return f"{log[-1]} is twice in the log"
        for (epoch, sequence), (next_epoch, next_sequence) in pairwise(log):
            if next_epoch < epoch:
                return f"epoch {next_epoch} comes after epoch {epoch}"
            if next_sequence != (sequence + 1 if next_epoch == epoch else 0):
                return f"sequence {next_sequence} of epoch {next_epoch} comes after {sequence} of {epoch}"
        if isinstance(event, Send) and after.answer is not None and log[after.answer] != tuple(event):
            return f"{event} is answered with offset {after.answer}, where {log[after.answer]} lies"
        return None


def _header(batch: Send) -> HeaderTuple:
    return (0, 50, 0, 2, 0, 0, 0, NOW_MS, NOW_MS, PRODUCER_ID, batch.epoch, batch.sequence, 1)


def _memory(producers: Producers) -> Hashable:
    entry = producers.get(PRODUCER_ID)
    return None if entry is None else (entry.epoch, tuple(entry.batches))
