"""Plays of share groups: stories on one broker as plain text, each step followed by what it caused.

config KEY=VALUE ...            of the broker, before anything else
topic NAME [KEY=VALUE ...]      of one partition; the group `work` begins with the first record of `t`
set KEY=VALUE ...               settings of the group
write VALUE ...                 to t, each a record
NAME fetches [N] [TYPE FIRST-LAST ...]   N records at most; with acknowledgements of records fetched before
NAME waits                      fetches, and has its answer when there are records: see `NAME hears`
NAME hears
NAME says TYPE FIRST-LAST ...   accept, release, reject, renew
NAME vanishes                   its connection goes
letters TOPIC                   the records of a dead letter queue
wait MS | restart               the broker stops and starts
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from protocol.errors import ErrorCode
from protocol.records.content import parse_set
from tests.requests import fetch, produce
from tests.share.ask import GROUP, Member, acquired, initialize
from tests.world import World

TYPES = {"accept": 1, "release": 2, "reject": 3, "renew": 4}
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "5000",
}
WAIT_MS = 30_000


class Stage:
    """Carries out the steps of a play."""

    def __init__(self) -> None:
        self.settings = dict(SETTINGS)
        self.members: dict[str, Member] = {}
        self.waiting: dict[str, int] = {}

    @cached_property
    def world(self) -> World:
        """The broker, from the first step on that needs it."""
        return World(**{key.replace(".", "_"): value for key, value in self.settings.items()})

    def step(self, line: str) -> list[str]:
        """See Steps."""
        first, *words = line.split()
        steps = {
            "config": self.config,
            "topic": self.topic,
            "set": self.set,
            "write": self.write,
            "letters": self.letters,
            "wait": self.wait,
            "restart": self.restart,
        }
        if first in steps:
            return steps[first](*words)
        what, *rest = words
        member = self.members.get(first)
        if member is None:
            member = self.members[first] = Member(self.world, member_id=first)
        of_members = {
            "fetches": self.fetches,
            "waits": self.waits,
            "hears": self.hears,
            "says": self.says,
            "vanishes": self.vanishes,
        }
        if what not in of_members:
            raise ValueError(line)
        return of_members[what](first, member, *rest)

    # --- the broker

    def config(self, *words: str) -> list[str]:
        self.settings |= dict(word.split("=") for word in words)
        return []

    def topic(self, name: str, *words: str) -> list[str]:
        self.world.create(name, **{key.replace(".", "_"): value for key, value in (each.split("=") for each in words)})
        if name == "t":
            initialize(self.world)
        return []

    def set(self, *words: str) -> list[str]:
        self.world.plane.configs.groups[GROUP] = dict(word.split("=") for word in words)
        return []

    def write(self, *words: str) -> list[str]:
        client = self.world.client()
        for word in words:
            client.ask(produce(word.encode()), 9)
        return []

    def letters(self, topic: str) -> list[str]:
        answer = self.world.client().ask(fetch(topic=topic), 12)
        data = bytes(answer.responses[0].partitions[0].records or b"")
        records = [record for _, batch in parse_set(data) for record in batch]
        return [_letter(dict(record.headers), record.value) for record in records]

    def wait(self, ms: str) -> list[str]:
        self.world.advance(int(ms))
        return []

    def restart(self) -> list[str]:
        self.world.restart()
        self.world.advance(500)
        self.members.clear()
        return []

    # --- members

    def fetches(self, name: str, member: Member, *words: str) -> list[str]:
        most = words[0] if words and words[0].isdecimal() else ""
        member.max_records, member.mode = (int(most), 1) if most else (500, 0)
        answer = member.fetch(_batches(words[1:] if most else words))
        return self._told(name, answer)

    def waits(self, name: str, member: Member) -> list[str]:
        self.waiting[name] = member.start(wait_ms=WAIT_MS)
        return []

    def hears(self, name: str, member: Member) -> list[str]:
        answer = member.client.look().get(self.waiting[name])
        return [f"{name} still waits"] if answer is None else self._told(name, answer)

    def says(self, name: str, member: Member, *words: str) -> list[str]:
        renews = "renew" in words
        answer = member.acknowledge(*_batches(words), **({"is_renew_ack": True} if renews else {}))
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        return [f"{name} is told {ErrorCode.of(code).name}"]

    def vanishes(self, name: str, member: Member) -> list[str]:
        member.client.hang_up()
        del self.members[name]
        self.world.advance(100)
        return []

    def _told(self, name: str, answer: Any) -> list[str]:
        if answer.error_code:
            return [f"{name} is told {ErrorCode.of(answer.error_code).name}"]
        part = next((each for topic in answer.responses for each in topic.partitions), None)
        said = []
        if part is not None and part.acknowledge_error_code:
            said.append(f"{name} is told {ErrorCode.of(part.acknowledge_error_code).name} of its acknowledgements")
        found = [
            f"{name} has {first}-{last}, delivery {count}" if last > first else f"{name} has {first}, delivery {count}"
            for first, last, count in acquired(answer)
        ]
        return [*said, *(found or [f"{name} has nothing"])]


def _batches(words: tuple[str, ...]) -> list[tuple[int, int, list[int]]]:
    pairs = zip(words[::2], words[1::2], strict=True)
    bounds = [(TYPES[kind], *map(int, where.split("-"))) for kind, where in pairs]
    return [(first, (*rest, first)[0], [kind]) for kind, first, *rest in bounds]


def _letter(headers: dict[bytes, bytes], value: bytes | None) -> str:
    said = {name.removeprefix(b"__dlq.errors.").decode(): text.decode() for name, text in headers.items()}
    content = "no value" if value is None else f"value {value.decode()}"
    return f"offset {said['offset']}, delivered {said['delivery.count']} times, {content}: {said['message']}"
