"""Plays of transactions: the steps of `play.py`, and those of producers, readers and coordinators of transactions.

    NAME takes ID [timeout=MS]                 InitProducerId
    NAME adds TOPIC-P ...                      AddPartitionsToTxn; a client named `new...` leaves it to its writes
    NAME writes TOPIC-P VALUE ...              one batch, without asking whether the partition was added
    NAME commits OFFSET of TOPIC-P for GROUP   AddOffsetsToTxn and TxnOffsetCommit
    NAME commits | NAME aborts                 EndTxn
    NAME goes on with TOPIC-P for GROUP        OffsetFetch, of stable offsets only
    NAME reads TOPIC-P                         what is committed, from where it has read to before
    kill coordinator of ID                     the broker that leads its partition of __transaction_state
    crash coordinator of ID in N calls         the same, at its n-th change to the disk from now
    transactions                               what coordinators know

Requests are sent again until they are answered, as clients do. After every step the last stable offset of each
partition is where its first open transaction begins, and nothing is read that was not committed (`Ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script
from kbroker.sim.committed import CommittedReader
from kbroker.sim.consumers import EARLIEST
from kbroker.sim.ledger import Ledger, stable_end
from kbroker.sim.play import VERSIONS, Stage, perform_on, where_of
from kbroker.sim.transactors import GONE, OF_CLIENTS, OF_NEW_CLIENTS, OFFSETS, WAIT, Impatient, Mapper
from protocol.errors import ErrorCode
from protocol.records.content import parse_set

if TYPE_CHECKING:
    from kbroker.sim.checks import Moment, Where
    from kbroker.sim.ledger import Deed
    from kbroker.sim.machine import Machine
    from protocol.message import Message
    from protocol.messages.fetch import PartitionData

STABLE_SINCE = 7  # OffsetFetch


class Refused(Exception):  # noqa: N818 - what happened, not an error
    """A request was refused for good."""


class ProducerActor(Mapper):
    """A transactional producer that does as it is told."""

    tries = 120  # longer than a failover takes

    def __init__(self, name: str, stage: TransactionStage) -> None:
        super().__init__(name, stage.world, stage.net, stage.machines, stage.checks)
        self.fixed_versions = dict(VERSIONS)
        self.raises = name.startswith("new")
        self.ledger = stage.ledger
        self.producer_id = self.epoch = -1
        self.made = self.committed = 0
        self.sequences = {}
        self._coordinators = {}
        self._deed: Deed | None = None
        self._next: Callable[[], Generator[Any, Any, None]] | None = None
        self.start_over()

    def play(self, script: Callable[[], Generator[Any, Any, None]]) -> None:
        """Begin a step."""
        self._next = script
        self.start()

    def live(self) -> Script:
        """The step that was given."""
        assert self._next is not None
        try:
            yield from self.shake_hands()
            for api, (low, high) in (OF_NEW_CLIENTS if self.raises else OF_CLIENTS).items():
                self.versions[api] = min(max(self.versions[api], low), high)
            yield from self._next()
        except Refused:
            pass  # and said so
        except Impatient:
            self.note("gives up")

    def init_producer_id(self, name: str, timeout_ms: int) -> Script:
        """Get a producer id and epoch."""
        self.transactional_id, self.timeout_ms, self._deed = name, timeout_ms, None
        yield from self._take_id()

    def add(self, places: list[Where]) -> Script:
        """Add partitions to the transaction."""
        yield from self._add(places)
        self.note("added them")

    def write(self, where: Where, values: list[bytes]) -> Script:
        """Write a batch."""
        yield from self._write(self._open_deed(), where, values)
        self.note(f"wrote {len(values)} to {where[0]}-{where[1]}")

    def commit_offset(self, where: Where, offset: int, group: str) -> Script:
        """Commit an offset in the transaction."""
        self.source, self.group = where, group
        yield from self._commit_offset(offset)
        self.note(f"committed {offset} of {where[0]}-{where[1]} for {group}")

    def end(self, *, commit: bool) -> Script:
        """Commit or abort."""
        deed, self._deed = self._open_deed(), None
        yield from self._end(deed, commit=commit)

    def go_on(self, where: Where, group: str) -> Script:
        """Look up where a group has got to."""
        self.source, self.group = where, group
        answer = yield from self._until(self._offsets_request, self._offsets_code, (0, group))
        assert self.versions[OFFSETS] >= STABLE_SINCE
        offset = answer.groups[0].topics[0].partitions[0].committed_offset
        self.note(f"goes on at {offset} of {where[0]}-{where[1]}" if offset >= 0 else "begins at the beginning")

    def _open_deed(self) -> Deed:
        if self._deed is None:
            self._deed = self._begin()
        return self._deed

    def _handle_changes(self, code: ErrorCode, answer: Message) -> None:
        api = type(answer).__name__.removesuffix("Response")
        self.note(f"is told {code.name} by {api}")
        if code in GONE or code not in WAIT:
            raise Refused


class ReaderActor(CommittedReader):
    """A reader of what is committed that does as it is told."""

    sessions = False
    max_wait_ms = 0

    def __init__(self, name: str, stage: TransactionStage) -> None:
        super().__init__(name, stage.world, stage.net, stage.machines, stage.checks)
        self.fixed_versions = dict(VERSIONS)
        self.ledger = stage.ledger
        self.start_over()
        self._where: Where = "", 0
        self._values: list[str] = []

    def play(self, where: Where) -> None:
        """Begin to read a partition as far as it is stable."""
        self._where = where
        self.start()

    def live(self) -> Script:
        """Read, and tell what was there."""
        where, self._values = self._where, []
        yield from self.shake_hands()
        known = dict(self.positions)
        self.positions = {where: known[where]} if where in known else {}
        while True:
            try:
                if where not in self.positions:
                    yield from self.look_up([where], EARLIEST)
                elif not (yield from self.fetch()) and self.positions[where] >= self.stable.get(where, 1 << 62):
                    break
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
            yield from self.pause(300)
        values = " ".join(self._values) or "nothing"
        self.note(f"reads {values}; {where[0]}-{where[1]} is stable to {self.stable[where]} of {self.behind[where]}")
        self.positions = known | self.positions

    def _read(self, where: Where, part: PartitionData, data: memoryview, moment: Moment) -> bool:
        before = set(self.seen)
        got = super()._read(where, part, data, moment)
        values = [bytes(record.value or b"") for _, batch in parse_set(data) for record in batch]
        self._values += [value.decode() for value in values if value in self.seen - before]
        return got


class TransactionStage(Stage):
    """The world of one play."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.world)
        self._producers: dict[str, ProducerActor] = {}
        self._readers: dict[str, ReaderActor] = {}

    def do(self, words: list[str]) -> list[str]:
        """See Stage."""
        match words:
            case ["kill", "coordinator", "of", name]:
                self._coordinator(name).kill()
            case ["crash", "coordinator", "of", name, "in", calls, "calls"]:
                self._coordinator(name).kill_in_calls(int(calls))
            case ["transactions"]:
                return self._transactions()
            case [name, "reads", place]:
                reader = self._readers.setdefault(name, ReaderActor(name, self))
                reader.play(where_of(place))
                self.wait_for(reader)
            case [name, verb, *rest] if (script := self._script(name, verb, rest)) is not None:
                producer = self._producers[name]
                producer.play(script)
                self.wait_for(producer)
            case _:
                return super().do(words)
        self._check_last_stable_offsets()
        return []

    def _script(self, name: str, verb: str, words: list[str]) -> Callable[[], Script] | None:
        """What a producer is told to do, if it is."""
        producer = self._producers.get(name) or ProducerActor(name, self)
        script: Callable[[], Script]
        match [verb, *words]:
            case ["takes", known_as, *timeout]:
                timeout_ms = int(timeout[0].removeprefix("timeout=")) if timeout else 60_000
                script = lambda: producer.init_producer_id(known_as, timeout_ms)  # noqa: E731
            case ["adds", *places]:
                script = lambda: producer.add([where_of(place) for place in places])  # noqa: E731
            case ["writes", place, *values]:
                script = lambda: producer.write(where_of(place), [value.encode() for value in values])  # noqa: E731
            case ["commits", offset, "of", place, "for", group]:
                script = lambda: producer.commit_offset(where_of(place), int(offset), group)  # noqa: E731
            case ["goes", "on", "with", place, "for", group]:
                script = lambda: producer.go_on(where_of(place), group)  # noqa: E731
            case ["commits" | "aborts"]:
                script = lambda: producer.end(commit=verb == "commits")  # noqa: E731
            case _:
                return None
        self._producers[name] = producer
        return script

    def _coordinator(self, name: str) -> Machine:
        for machine in self.machines:
            if machine.up:
                runtime = machine.broker.transaction_runtime
                if runtime.partition_of(name) in runtime.shards:
                    return machine
        raise ValueError(f"{name} has no coordinator")

    def _transactions(self) -> list[str]:
        said = []
        for machine in self.machines:
            for shard in machine.broker.transaction_runtime.shards.values() if machine.up else ():
                for known in shard.transactions.values():
                    places = "".join(f" {topic}-{index}" for topic, index in sorted(known.partitions))
                    holder = f"{known.producer_id}/{known.producer_epoch}"
                    said.append(f"{known.name}: {known.state.value} {holder}{places} ({machine})")
        return said or ["none"]

    def _check_last_stable_offsets(self) -> None:
        """The last stable offset is what the batches say, wherever a partition is led."""
        for machine in self.machines:
            for where, partition in machine.broker.replicas.partitions.items() if machine.up else ():
                log = partition.log
                if partition.is_leader and log is not None and log.last_stable_offset != stable_end(log):
                    text = f"{where} on {machine} is stable to {log.last_stable_offset}, not to {stable_end(log)}"
                    raise self.world.broken(text)


def perform(text: str) -> str:
    """Play a play; the text with what really happened. Raises: Broken, ValueError."""
    return perform_on(TransactionStage(), text)
