"""Simulated members of consumer groups (KIP-848) and streams groups (KIP-1071), whose coordinator assigns.

They send heartbeats, let go of what they are told to, begin with what they are given where the group stands, read and
commit in the epoch that they were told last. One that is told that it is fenced lets go of all it has, and joins again.
After an answer that was lost a member says all of itself once more.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script, Sleep
from kbroker.sim.members import COMMIT, WAIT, Member, Refused
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)

if TYPE_CHECKING:
    from kbroker.sim.checks import Where
    from kbroker.sim.machine import Machine

CONSUMER_HEARTBEAT, STREAMS_HEARTBEAT = 68, 88
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
EPOCHS_SINCE = 9  # OffsetCommit
BEAT_MS, REBALANCE_MS = 1_000, 10_000
FENCED = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)  # lets go of all, joins again
NOT_YET = WAIT | {
    ErrorCode.UNSUPPORTED_VERSION,  # a broker that has not heard that the feature is finalized
    ErrorCode.UNRELEASED_INSTANCE_ID,  # the process before has not been missed yet
    ErrorCode.UNKNOWN_SERVER_ERROR,  # a heartbeat whose records could not be written
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.BROKER_NOT_AVAILABLE,
}


class EpochMember(Member):
    """A member that goes by epochs; subclasses say it in their API's words. `generation` is its epoch.

    api: of its heartbeats. beats: how many were answered.
    """

    api: int
    beats = 0

    def live(self) -> Script:
        """Join, work, and again."""
        self.start_over()
        self.member_id, self.generation = "", JOINS
        self.assigned: list[Where] | None = None
        self._coordinator: Machine | None = None
        self._dealt = None
        self._placed = True
        self._beaten_ms = 0
        self._says_all = True
        self._committed: dict[Where, int] = {}
        self._processes = 0
        yield from self._until_served()
        self.instance = self.name if self.static else None
        yield from self.know(self.topics)
        while True:
            try:
                yield from self._find()
                yield from self._work()
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
                yield from self.pause(500)
            except Refused as refused:
                self.note(f"is refused: {refused.code.name}")
                self._handle_changes(refused.code)
                yield from self.pause(200)

    @property
    def forgets_that_it_leads(self) -> bool:
        """See Member: none of these leads."""
        return False

    def _until_served(self) -> Generator[Any, Any, None]:
        """Connections tell once what a broker serves, and the feature may not be finalized yet."""
        yield from self.shake_hands()
        while not self.serves(self.api):
            self.hang_up()
            yield from self.pause(500)
            self._home = None
            try:
                yield from self.connect()
            except Lost:
                continue
        self.versions[COMMIT] = max(self.versions[COMMIT], EPOCHS_SINCE)

    def _handle_changes(self, code: ErrorCode) -> None:
        if code in FENCED:
            self._let_go_of_all()
        elif code is ErrorCode.STALE_MEMBER_EPOCH:
            self._beaten_ms = 0  # the next heartbeat tells the newer one
        elif code not in NOT_YET:
            raise self.world.broken(f"{self}: {code.name}")

    def _let_go_of_all(self) -> None:
        self.start_over()
        self.generation, self.assigned, self._says_all = JOINS, None, True
        self._committed = {}

    # ---- heartbeats

    def _work(self) -> Generator[Any, Any, None]:
        """Beat, read, commit, until something is refused or lost."""
        begun_ms = committed_ms = self.world.now_ms
        while True:
            now_ms = self.world.now_ms
            if self._says_all or now_ms - self._beaten_ms >= BEAT_MS:
                self._beaten_ms = now_ms
                yield from self._beat()
            if now_ms - committed_ms >= self.commit_ms:
                committed_ms = now_ms
                yield from self._commit()
            if not self.positions:
                yield Sleep(BEAT_MS)
            elif not (yield from self.fetch()):
                yield Sleep(100)
            if self.restless and now_ms - begun_ms > 5_000 and self.rng.random() < 0.05:
                yield from self._go_away()
                return

    def _beat(self) -> Generator[Any, Any, None]:
        if not self.member_id:
            self._processes += 1
            self.member_id = f"{self.name}-{self._processes}"
        losses, says_all = self.checks.losses, self._says_all
        self._says_all = True  # unless it is answered
        told = yield from self._exchange(self.generation, says_all=says_all)
        self._says_all = False
        self.beats += 1
        if told is not None:
            who = self.instance or self.member_id
            self.checks.groups.assigned(self.group, self.generation, who, told, losses)
            yield from self._may_have(told)
        new = [where for where in self.assigned or () if where not in self.positions]
        if new:
            yield from self._begin_with(new)

    def _exchange(self, epoch: int, *, says_all: bool) -> Generator[Any, Any, list[Where] | None]:
        """A heartbeat; takes the epoch that it is told. Returns: what it may have; None if that has not changed."""
        raise NotImplementedError

    def _may_have(self, told: list[Where]) -> Generator[Any, Any, None]:
        """Let go of what is not in there, and begin with what is new."""
        gone = self.positions.keys() - set(told)
        if gone:
            try:
                yield from self._commit()
            except Refused as refused:
                self.note(f"cannot commit what it lets go of: {refused.code.name}")
            for where in gone:
                self.positions.pop(where, None)
                self._committed.pop(where, None)
        if set(told) != set(self.assigned or ()):
            self.note(f"may have {len(told)} partitions in epoch {self.generation} of {self.group}")
            self._says_all = True  # what it has now, and at once
        self.assigned = told

    def _begin_with(self, new: list[Where]) -> Generator[Any, Any, None]:
        kept, committed = dict(self.positions), self._committed
        placed, everything = dict(self.placed), self.assigned
        self.assigned = new
        try:
            yield from self._positions()  # forgets what it had
        finally:
            self.assigned = everything
            kept |= self.positions
            self.positions, self.placed = kept, placed | self.placed
            self._committed = committed | self._committed

    def _go_away(self) -> Generator[Any, Any, None]:
        if self.rng.random() < 0.5 and self.generation > JOINS:
            epoch = LEAVES if self.instance is None or self.rng.random() < 0.5 else LEAVES_FOR_A_WHILE
            yield from self._exchange(epoch, says_all=False)
            self.note("leaves")
        else:
            self.note("vanishes")
        self.hang_up()
        self._let_go_of_all()
        self.member_id = ""
        yield from self.pause(5_000)


class ConsumerMember(EpochMember):
    """Of a consumer group."""

    api = CONSUMER_HEARTBEAT
    assignor: str | None = None

    def _exchange(self, epoch: int, *, says_all: bool) -> Generator[Any, Any, list[Where] | None]:
        catalogue = self.checks.catalogue
        ids = {catalogue.topic_id(topic.name): topic.name for topic in self.topics}
        joins = epoch == JOINS
        answer: ConsumerGroupHeartbeatResponse = yield from self.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.instance,
                rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
                subscribed_topic_names=[topic.name for topic in self.topics] if says_all else None,
                server_assignor=self.assignor if says_all else None,
                topic_partitions=[] if joins else self._owned(ids) if says_all else None,
            ),
            to=self._coordinator,
        )
        self._check(answer.error_code)
        if epoch < JOINS:
            return None
        self.generation = answer.member_epoch
        if answer.assignment is None:
            return None
        return [
            (ids[topic.topic_id], index) for topic in answer.assignment.topic_partitions for index in topic.partitions
        ]

    def _owned(self, ids: dict[bytes, str]) -> list[TopicPartitions]:
        owned: dict[str, list[int]] = {}
        for name, index in self.assigned or ():
            owned.setdefault(name, []).append(index)
        return [
            TopicPartitions(topic_id=topic_id, partitions=owned[name])
            for topic_id, name in ids.items()
            if name in owned
        ]


class StreamsMember(EpochMember):
    """Of a streams group: each topic is a subtopology of its own, without state, so a task is a partition."""

    api = STREAMS_HEARTBEAT

    def _exchange(self, epoch: int, *, says_all: bool) -> Generator[Any, Any, list[Where] | None]:
        joins = epoch == JOINS
        answer: StreamsGroupHeartbeatResponse = yield from self.ask(
            StreamsGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=epoch,
                endpoint_information_epoch=0,
                instance_id=self.instance,
                rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
                topology=self._topology() if joins else None,
                process_id=self.name if says_all else None,
                active_tasks=self._tasks() if says_all else None,
                standby_tasks=[] if says_all else None,
                warmup_tasks=[] if says_all else None,
                client_tags=[] if joins else None,
            ),
            to=self._coordinator,
        )
        self._check(answer.error_code)
        if epoch < JOINS:
            return None
        self.generation = answer.member_epoch
        if answer.active_tasks is None:
            return None
        return [(tasks.subtopology_id, index) for tasks in answer.active_tasks for index in tasks.partitions]

    def _topology(self) -> Topology:
        return Topology(
            epoch=1,
            subtopologies=[
                Subtopology(
                    subtopology_id=topic.name,
                    source_topics=[topic.name],
                    source_topic_regex=[],
                    state_changelog_topics=[],
                    repartition_sink_topics=[],
                    repartition_source_topics=[],
                    copartition_groups=[],
                )
                for topic in self.topics
            ],
        )

    def _tasks(self) -> list[TaskIds]:
        owned: dict[str, list[int]] = {}
        for name, index in self.assigned or () if self.generation != JOINS else ():
            owned.setdefault(name, []).append(index)
        return [TaskIds(subtopology_id=name, partitions=parts) for name, parts in owned.items()]
