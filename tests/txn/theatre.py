"""Plays: stories of transactions as plain text, each step followed by what it caused.

A line at the left margin is a step, a line with four blanks in front is something it caused; `#` begins a comment.
`REWRITE_PLAYS=1 pytest tests/test_plays.py` writes what really happened into the files, to be looked at in the diff.

    config KEY=VALUE ...                before anything else
    finalized FEATURE=LEVEL ...         before anything else
    NAME init ID [timeout=MS] [version=N] [again | as=ID/EPOCH]   again: it says the id and epoch it has (KIP-360)
    NAME add TOPIC-PARTITION ... [as=ID/EPOCH]
    NAME commit [version=N] [as=ID/EPOCH] | NAME abort ... | NAME verify TOPIC-PARTITION
    marked ID [late]                    every partition has its marker; late: said of the outcome before the last one
    describe ID | list
    ids from N                          producer ids; none: there are none for now
    epoch ID N                          as if so many producers had held the id before
    wait MS | sleep MS | hold appends | commit appends | refuse appends CODE | accept appends | resign | restart
                                        sleep: the machine does, and the clock for deadlines with it
    elect                               another broker leads, that has all of the log, committed or not
    return                              this broker leads again, after `resign`

A producer remembers its id and epoch from the answers, as real ones do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kbroker.config import BrokerConfig, BrokerLayers, Given, resolve_broker
from kbroker.coordinator import Caller, CoordinatorEvent, Effect, Reply, Runtime
from kbroker.metadata.features import Features
from kbroker.timing import Scheduler
from kbroker.txn import Producer
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.records import TransactionRecord
from kbroker.txn.shard import TransactionShard, WriteMarkers
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsRequest,
)
from tests.coordinator.memory import MemoryStore, at_once

START_MS = 1_000_000
NOBODY = Producer(-1, -1)


def config_of(**static: str) -> BrokerConfig:
    return resolve_broker(
        BrokerLayers(static={key.replace("_", "."): Given(text, "test") for key, text in static.items()})
    )


class World:
    """A broker that leads the only partition of __transaction_state.

    markers: wanted, by transactional id. wanted: all that ever were, in order.
    """

    def __init__(self, config: BrokerConfig, features: Features) -> None:
        self.config = config
        self.features = features
        self.now_ms = START_MS
        self.slept_ms = 0  # as long as the machine slept since the process began
        self.epoch = 0
        self.store = MemoryStore()
        self.store.wall_ms = lambda: self.now_ms + self.slept_ms
        self.replies: dict[object, Any] = {}
        self.lines: list[str] = []
        self.markers: dict[str, WriteMarkers] = {}
        self.wanted: list[WriteMarkers] = []
        self.next_id: int | None = 0
        self.start()

    def start(self) -> None:
        def make(partition: int, epoch: int) -> TransactionShard:
            return TransactionShard(partition, epoch, self.store, lambda: self.config, self.new_id, self.features)

        self.scheduler = Scheduler(self.now_ms)
        self.runtime: Runtime[TransactionShard] = Runtime(
            "__transaction_state", self.store, make, self._reply, self._log_event, self.scheduler, self._forward
        )
        self.runtime.resize(1)
        self.runtime.give = at_once
        self.transactions = TransactionCoordinator(self.runtime)
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        self.runtime.elected(0, self.epoch, self.now_ms)
        while any(shard.loading for shard in self.runtime.shards.values()):
            self.scheduler.ring_wanted(self.now_ms)

    @property
    def shard(self) -> TransactionShard:
        return self.runtime.shards[0]

    def new_id(self) -> int:
        if self.next_id is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no ids")
        self.next_id += 1
        return self.next_id - 1

    def run(self, effects: list[Effect]) -> None:
        self.runtime.carry_out(effects, self.now_ms)

    def marked(self, name: str, *, late: bool) -> None:
        wanted = self.wanted[-2] if late else self.markers.pop(name)
        where = wanted.partition, wanted.coordinator_epoch
        self.run(self.transactions.marked(*where, wanted.transaction, self.now_ms))

    def _reply(self, reply: Reply) -> None:
        assert reply.call not in self.replies, reply
        self.replies[reply.call] = reply.response

    def _log_event(self, event: CoordinatorEvent) -> None:
        self.lines.append(f"- {event.name} {event.what}")

    def _forward(self, markers: WriteMarkers, _now_ms: int) -> None:
        transaction = markers.transaction
        self.markers[transaction.name] = markers
        self.wanted.append(markers)
        places = ", ".join(f"{topic}-{index}" for topic, index in sorted(transaction.partitions))
        what = "commit" if transaction.is_commit else "abort"
        self.lines.append(f"- {what} {transaction.producer_id}/{transaction.producer_epoch} in {places}")

    def wait(self, delay_ms: int) -> None:
        until_ms = self.now_ms + delay_ms
        while (next_ms := self.scheduler.next_ms) is not None and next_ms <= until_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.scheduler.ring(self.now_ms)
        self.now_ms = until_ms


@dataclass
class Client:
    name: str
    transactional_id: str = ""
    producer: Producer = NOBODY


class Stage:
    """Runs the steps of one play."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.finalized: dict[str, int] = {}
        self.clients: dict[str, Client] = {}
        self.waiting: dict[int, tuple[Client, str]] = {}
        self.calls = 0

    @cached_property
    def world(self) -> World:
        """Made by the first step that is neither `config` nor `finalized`."""
        settings = config_of(**{key.replace(".", "_"): value for key, value in self.config.items()})
        return World(settings, Features(self.finalized))

    def step(self, line: str) -> list[str]:
        first, *rest = line.split()
        if first in ("config", "finalized"):
            assert "world" not in vars(self), f"{first} comes first"
            given = dict(word.split("=", 1) for word in rest)
            if first == "config":
                self.config |= given
            else:
                self.finalized |= {name: int(level) for name, level in given.items()}
            return []
        if hasattr(self, f"do_{first}"):
            out = getattr(self, f"do_{first}")(*rest) or []
        else:
            verb, *words = rest
            out = getattr(self, f"client_{verb}")(self.clients.setdefault(first, Client(first)), words) or []
        lines, self.world.lines = self.world.lines, []
        answers = [
            self.answer(*self.waiting.pop(call), self.world.replies[call])
            for call in list(self.waiting)
            if call in self.world.replies
        ]
        return out + lines + answers

    def caller(self, client: Client, verb: str, version: int = 4) -> Caller:
        self.calls += 1
        self.waiting[self.calls] = client, verb
        return Caller(self.calls, version)

    # --- producers

    def client_init(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=") for word in words if "=" in word)
        client.transactional_id = words[0]
        asker = client.producer if "again" in words else None
        if "as" in given:
            asker = Producer(*map(int, given["as"].split("/")))
        caller = self.caller(client, "init", int(given.get("version", "4")))
        timeout_ms, world = int(given.get("timeout", "60000")), self.world
        world.run(world.transactions.init(words[0], asker, timeout_ms, caller, world.now_ms))

    def client_add(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=") for word in words if "=" in word)
        partitions = [(word.rsplit("-", 1)[0], int(word.rsplit("-", 1)[1])) for word in words if "=" not in word]
        caller, world = self.caller(client, "add", 3), self.world
        name = client.transactional_id
        asker = Producer(*map(int, given["as"].split("/"))) if "as" in given else client.producer
        world.run(world.transactions.add_partitions(name, asker, partitions, caller, world.now_ms))

    def client_commit(self, client: Client, words: list[str]) -> None:
        self.end(client, "commit", words)

    def client_abort(self, client: Client, words: list[str]) -> None:
        self.end(client, "abort", words)

    def end(self, client: Client, verb: str, words: list[str]) -> None:
        given = dict(word.split("=") for word in words)
        caller, world = self.caller(client, verb, int(given.get("version", "3"))), self.world
        name, commit = client.transactional_id, verb == "commit"
        asker = Producer(*map(int, given["as"].split("/"))) if "as" in given else client.producer
        world.run(world.transactions.end(name, asker, caller, world.now_ms, commit=commit))

    def client_verify(self, client: Client, words: list[str]) -> list[str]:
        topic, index = words[0].rsplit("-", 1)
        code = self.world.transactions.verify(client.transactional_id, client.producer, (topic, int(index)))
        return [f"{client.name} verify: {code.name if code else 'ok'}"]

    # --- everybody else

    def do_marked(self, name: str, late: str = "") -> None:
        self.world.marked(name, late=bool(late))

    def do_describe(self, name: str) -> list[str]:
        known = self.world.transactions.describe(name)
        if known.error_code:
            return [ErrorCode(known.error_code).name]
        places = [f"{topic.topic}-{index}" for topic in known.topics for index in topic.partitions]
        return [" ".join([known.transaction_state, f"{known.producer_id}/{known.producer_epoch}", *places])]

    def do_list(self) -> list[str]:
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        listed = self.world.transactions.list_transactions(request, self.world.now_ms)
        return [f"{each.transactional_id} {each.transaction_state}" for each in listed.transaction_states] or [
            "nothing"
        ]

    def do_ids(self, _from: str, number: str = "") -> None:
        self.world.next_id = int(number) if number else None

    def do_epoch(self, name: str, epoch: str) -> None:
        known = self.world.shard.transactions[name]
        self.world.shard.write([TransactionRecord(name, known._replace(producer_epoch=int(epoch)))], None)

    def do_wait(self, delay_ms: str) -> None:
        self.world.wait(int(delay_ms))

    def do_hold(self, _appends: str) -> None:
        self.world.store.hold = True

    def do_commit(self, _appends: str) -> None:
        self.world.store.hold = False
        self.world.runtime.advanced(0, self.world.store.commit(0), self.world.now_ms)

    def do_refuse(self, _appends: str, code: str) -> None:
        self.world.store.refuse = ErrorCode[code]

    def do_accept(self, _appends: str) -> None:
        self.world.store.refuse = None

    def do_resign(self) -> None:
        self.world.runtime.resigned(0, self.world.now_ms)

    def do_sleep(self, duration_ms: str) -> None:
        self.world.slept_ms += int(duration_ms)

    def do_return(self) -> None:
        self.world.lead()

    def do_restart(self) -> None:
        world = self.world
        world.now_ms, world.slept_ms = world.now_ms + world.slept_ms, 0
        world.store.cut(0)
        self.do_elect()

    def do_elect(self) -> None:
        self.world.markers.clear()
        self.world.start()
        self.waiting.clear()

    # --- answers

    def answer(self, client: Client, verb: str, response: object) -> str:
        said = f"{client.name} {verb}: "
        if isinstance(response, AddPartitionsToTxnResponse):
            codes = {
                part.partition_error_code
                for each in response.results_by_topic_v3_and_below
                for part in each.results_by_partition
            }
            return said + ", ".join(ErrorCode(code).name if code else "ok" for code in sorted(codes))
        assert isinstance(response, InitProducerIdResponse | EndTxnResponse), response
        if response.error_code:
            return said + ErrorCode(response.error_code).name
        if isinstance(response, InitProducerIdResponse):
            client.producer = Producer(response.producer_id, response.producer_epoch)
            return said + f"{response.producer_id}/{response.producer_epoch}"
        if response.producer_id < 0:
            return said + "ok"
        client.producer = Producer(response.producer_id, response.producer_epoch)
        return said + f"goes on as {response.producer_id}/{response.producer_epoch}"
