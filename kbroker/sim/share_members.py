"""Simulated members of a share group (KIP-932), and what is held against the brokers.

A member takes records that it is given, and accepts, releases or rejects them, or says nothing, so that their lock
ends. `Shared` knows what came of each record of a group:

- a record whose acceptance was answered is not in an answer to a fetch that was sent later;
- no record is delivered more often than the limit;
- in the end each record was accepted or rejected, or was delivered as often as may be.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from kbroker.sim.members import FIND, Refused
from kbroker.sim.modern_members import FENCED, JOINS, LEAVES, NOT_YET
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    AcquiredRecords,
    ForgottenShareTopic,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from kbroker.sim.checks import Where
    from kbroker.sim.machine import Machine
    from kbroker.sim.topics import Topic
    from kbroker.sim.world import World

SHARE_HEARTBEAT, SHARE_FETCH = 76, 78
BEAT_MS = 1_000
ACCEPT, RELEASE, REJECT = 1, 2, 3
SAYS = (*[ACCEPT] * 12, *[RELEASE] * 2, REJECT, None, None)
"""What becomes of a batch of records, by chance; None: nothing is said."""
SESSION_GONE = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
ASK_AGAIN = NOT_YET | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ErrorCode.INVALID_RECORD_STATE,  # of an acknowledgement that came too late
    ErrorCode.GROUP_ID_NOT_FOUND,
}


class Shared:
    """What came of the records of a share group, as its members know. limit: of deliveries."""

    def __init__(self, world: World, limit: int) -> None:
        self.world = world
        self.limit = limit
        self.accepted: dict[tuple[Where, int], int] = {}  # when that was answered
        self.deliveries: dict[tuple[Where, int], int] = {}  # the highest count that was told
        self._may_be_over: set[tuple[Where, int]] = set()  # rejected, or accepted without an answer

    def delivered(self, where: Where, records: AcquiredRecords, asked_ms: int) -> None:
        """A member was given some records."""
        if not 1 <= records.delivery_count <= self.limit:
            raise self.world.broken(f"{where}: {records} is delivered too often")
        for offset in range(records.first_offset, records.last_offset + 1):
            key = where, offset
            if self.accepted.get(key, asked_ms) < asked_ms:
                raise self.world.broken(f"{offset} of {where} was accepted, and is delivered again")
            self.deliveries[key] = max(self.deliveries.get(key, 0), records.delivery_count)

    def said(self, where: Where, batch: AcknowledgementBatch, *, is_answered: bool) -> None:
        """An acknowledgement was answered without an error, or it is not known what came of it."""
        (kind,) = batch.acknowledge_types
        for offset in range(batch.first_offset, batch.last_offset + 1):
            if kind == ACCEPT and is_answered:
                self.accepted.setdefault((where, offset), self.world.now_ms)
            elif kind != RELEASE:
                self._may_be_over.add((where, offset))

    def missing(self, where: Where, end: int) -> list[int]:
        """Offsets below `end` of which nothing came."""
        return [
            offset
            for offset in range(end)
            if (key := (where, offset)) not in self.accepted
            and key not in self._may_be_over
            and self.deliveries.get(key, 0) < self.limit
        ]


class ShareMember(Router):
    """Works off topics, as long as it lives.

    shared: one for all members of its group. may_begin: whether its group is set up. restless: see Member.
    hurries: it accepts all there is.
    """

    group = "work"
    topics: Sequence[Topic] = ()
    shared: Shared
    may_begin: Callable[[], bool]
    restless = False
    hurries = False
    max_records = 50

    def live(self) -> Script:
        """Join, work, and again."""
        self._processes = 0
        self._begin()
        yield from self.shake_hands()
        while not self.serves(SHARE_HEARTBEAT):
            self.hang_up()
            yield from self.pause(500)
            self._home = None
            yield from self.shake_hands_again()
        yield from self.know(self.topics)
        while not self.may_begin():
            yield from self.pause(500)
        while True:
            try:
                yield from self._find()
                yield from self._work()
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
                self._sessions.clear()
                yield from self.pause(500)
            except Refused as refused:
                self.note(f"is refused: {refused.code.name}")
                if refused.code in FENCED:
                    self._begin()
                elif refused.code not in ASK_AGAIN | SESSION_GONE:
                    raise self.world.broken(f"{self}: {refused.code.name}") from None
                yield from self.pause(200)

    def shake_hands_again(self) -> Generator[Any, Any, None]:
        """Ask once more what is served."""
        try:
            yield from self.connect()
        except Lost:
            return

    def _begin(self) -> None:
        """A new process, or one that was fenced."""
        self._processes += 1
        self.member_id = f"{self.name}-{self._processes}"
        self.epoch, self._says_all = JOINS, True
        self.assigned: list[Where] = []
        self._coordinator: Machine | None = None
        self._sessions: dict[Machine, tuple[int, frozenset[Where]]] = {}  # the next epoch, and what is in it
        self._beaten_ms = -BEAT_MS

    def _check(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise Refused(ErrorCode.of(code))

    def _find(self) -> Generator[Any, Any, None]:
        self.versions[FIND] = max(self.versions[FIND], 4)
        answer: FindCoordinatorResponse = yield from self.ask(FindCoordinatorRequest(coordinator_keys=[self.group]))
        (found,) = answer.coordinators
        self._check(found.error_code)
        self._coordinator = self.machine(found.node_id)

    def _work(self) -> Generator[Any, Any, None]:
        begun_ms = self.world.now_ms
        while True:
            if self.world.now_ms - self._beaten_ms >= BEAT_MS:
                self._beaten_ms = self.world.now_ms
                yield from self._beat(self.epoch)
            led, _ = yield from self.by_leader(self.assigned, lambda where: where)
            for leader, places in led.items():
                yield from self._fetch(leader, places)
            yield from self.pause(100 if led else BEAT_MS)
            if self.restless and self.world.now_ms - begun_ms > 5_000 and self.rng.random() < 0.05:
                if self.rng.random() < 0.5:
                    yield from self._beat(LEAVES)
                    self.note("leaves")
                else:
                    self.note("vanishes")
                self.hang_up()
                self._begin()
                yield from self.pause(5_000)
                return

    def _beat(self, epoch: int) -> Generator[Any, Any, None]:
        names = [topic.name for topic in self.topics] if self._says_all else None
        self._says_all = True  # unless it is answered
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, subscribed_topic_names=names
        )
        answer: ShareGroupHeartbeatResponse = yield from self.ask(request, to=self._coordinator)
        self._check(answer.error_code)
        self._says_all = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None and epoch != LEAVES:
            self.assigned = [
                (self._name(topic.topic_id), index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            ]
            self.note(f"works on {len(self.assigned)} partitions in epoch {self.epoch} of {self.group}")

    def _name(self, topic_id: bytes) -> str:
        (name,) = (each.name for each in self.topics if self.checks.catalogue.topic_id(each.name) == topic_id)
        return name

    # ---- records

    def _fetch(self, leader: Machine, places: list[Where]) -> Generator[Any, Any, None]:
        """Take some records of a leader's partitions, and say what becomes of them."""
        nothing: frozenset[Where] = frozenset()
        epoch, before = self._sessions.get(leader, (0, nothing))
        wanted = frozenset(places)
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=200,
            min_bytes=1,
            max_records=self.max_records,
            batch_size=self.max_records,
            topics=[
                ShareFetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareFetchPartition(partition_index=each, acknowledgement_batches=[]) for each in parts
                    ],
                )
                for topic_id, parts in self._by_id(wanted - before)
            ],
            forgotten_topics_data=[
                ForgottenShareTopic(topic_id=topic_id, partitions=parts)
                for topic_id, parts in self._by_id(before - wanted)
            ],
        )
        asked_ms = self.world.now_ms
        try:
            answer: ShareFetchResponse = yield from self.ask(request, to=leader)
        except Lost:
            self._lost_session(leader, places)
            raise
        if answer.error_code:
            self._lost_session(leader, places)
            self._check(answer.error_code)
        self._sessions[leader] = epoch + 1, wanted
        says: dict[Where, list[AcknowledgementBatch]] = {}
        for topic in answer.responses:
            for part in topic.partitions:
                where = self._name(topic.topic_id), part.partition_index
                if part.error_code:
                    self._may_be_told(where, part.error_code)
                for records in part.acquired_records:
                    self.shared.delivered(where, records, asked_ms)
                    kind = ACCEPT if self.hurries else self.rng.choice(SAYS)
                    if kind is not None:
                        batch = AcknowledgementBatch(
                            first_offset=records.first_offset, last_offset=records.last_offset, acknowledge_types=[kind]
                        )
                        says.setdefault(where, []).append(batch)
        if says:
            yield from self.pause(0 if self.hurries else self.rng.choice((0, 0, 50, 2_000)))
            yield from self._say(leader, says)

    def _say(self, leader: Machine, says: dict[Where, list[AcknowledgementBatch]]) -> Generator[Any, Any, None]:
        epoch, places = self._sessions[leader]
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=[
                ShareAcknowledgeTopic(
                    topic_id=self.checks.catalogue.topic_id(name),
                    partitions=[ShareAcknowledgePartition(partition_index=index, acknowledgement_batches=batches)],
                )
                for (name, index), batches in says.items()
            ],
        )
        codes: dict[Where, int] = {}
        try:
            answer: ShareAcknowledgeResponse = yield from self.ask(request, to=leader)
            codes = dict.fromkeys(says, answer.error_code) if answer.error_code else codes
            for topic in answer.responses:
                for part in topic.partitions:
                    codes[self._name(topic.topic_id), part.partition_index] = part.error_code
        except Lost:
            self._lost_session(leader, says)
            raise
        finally:
            for where, batches in says.items():
                for batch in batches:
                    self.shared.said(where, batch, is_answered=codes.get(where) == ErrorCode.NONE)
        for where, code in codes.items():
            if code:
                self._may_be_told(where, code)
        if answer.error_code:
            self._lost_session(leader, says)
        else:
            self._sessions[leader] = epoch + 1, places

    def _may_be_told(self, where: Where, code: int) -> None:
        self.note(f"{where[0]}-{where[1]}: {ErrorCode.of(code).name}")
        if ErrorCode.of(code) not in ASK_AGAIN | SESSION_GONE:
            raise self.world.broken(f"{self}: {where} answers {ErrorCode.of(code).name}")
        self.misled(where)

    def _lost_session(self, leader: Machine, places: Sequence[Where] | dict[Where, Any]) -> None:
        """What a leader knows of this member is not known any more."""
        self._sessions.pop(leader, None)
        for where in places:
            self.misled(where)

    def _by_id(self, places: frozenset[Where]) -> list[tuple[bytes, list[int]]]:
        found: dict[str, list[int]] = {}
        for name, index in sorted(places):
            found.setdefault(name, []).append(index)
        return [(self.checks.catalogue.topic_id(name), parts) for name, parts in found.items()]
