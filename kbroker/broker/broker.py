"""The parts of one broker, put together: what handlers ask, and what the core turns on behalf of time and the world.

Built by whoever composes a broker (`runtime/node.py`, `sim/world.py`, tests). It decides nothing; it passes time,
events and what one part found out to the parts that have to know: a replica that became leader to the coordinator, a
failed directory to the replicas, jobs for the disk to whoever runs them.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING

from kbroker.broker.facts import Reply
from kbroker.broker.fetch_sessions import FetchSessions
from kbroker.broker.internal_topics import CONSUMER_OFFSETS
from kbroker.config.limits import MOST_FETCH_REGIONS
from kbroker.coordinator import Happened, Runtime, TopicStore
from kbroker.coordinator import Reply as CoordinatorReply
from kbroker.groups import GroupCoordinator, group_shards
from kbroker.metadata.cache import TopicKey

if TYPE_CHECKING:
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.session import Session
    from kbroker.config import BrokerConfig
    from kbroker.log.background import Job
    from kbroker.log.manager import LogManager
    from kbroker.ports import Clock, Random
    from kbroker.replica import ReplicaManager

log = logging.getLogger("kbroker.broker")
groups_log = logging.getLogger("kbroker.groups")


class DiskDone:
    """A job for the disk has ended. error: None if it went well."""

    __slots__ = ("error", "job")

    def __init__(self, job: Job, error: OSError | None) -> None:
        self.job = job
        self.error = error


class Broker:
    """One broker's parts.

    strict: a failure that nobody foresaw is raised instead of answered; simulations and tests want that. jobs: work for
    the disk, to be taken, run anywhere, and brought back as a DiskDone event. fetch_regions: of how many partitions the
    records go into one answer; each may hold a file open until it has left.
    """

    def __init__(
        self,
        plane: ControlPlane,
        logs: LogManager,
        replicas: ReplicaManager,
        clock: Clock,
        random: Random,
        *,
        strict: bool = False,
        fetch_regions: int = MOST_FETCH_REGIONS,
    ) -> None:
        now_ms = clock.now_ms()
        config = plane.configs.broker
        self.plane = plane
        self.logs = logs
        self.replicas = replicas
        self.clock = clock
        self.random = random
        self.strict = strict
        self.fetch_regions = fetch_regions
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, random)
        self._replies: list[Reply] = []
        store = TopicStore(CONSUMER_OFFSETS, replicas, clock, config.offsets_topic_compression_codec)
        self.groups = GroupCoordinator(
            Runtime(
                CONSUMER_OFFSETS,
                config.offsets_topic_num_partitions,
                store,
                group_shards(config, random, store),
                self._answer,
                _group_happened,
                now_ms,
            )
        )
        self._coordinators = {CONSUMER_OFFSETS: self.groups.runtime}
        self.jobs: list[Job] = []
        self.deadline_moved = True  # since the core last asked for `next_deadline_ms`

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now: some change while the broker runs."""
        return self.plane.configs.broker

    # -- what the core asks

    def take_touched(self) -> list[Hashable]:
        """Everything that moved since the last time: keys of the purgatory."""
        replicas, plane = self.replicas, self.plane
        touched: list[Hashable] = []
        if replicas.touched:
            moved, replicas.touched = replicas.touched, []
            for partition in moved:
                if partition.is_internal and (coordinator := self._coordinators.get(partition.topic)) is not None:
                    coordinator.moved(partition, self.clock.now_ms())
                    self.deadline_moved = True
            touched = moved  # type: ignore[assignment]  # nobody else holds it
        if plane.touched:
            touched += plane.touched
            self._count_shards(plane.touched)
            plane.touched = []
        return touched

    def _count_shards(self, touched: list[Hashable]) -> None:
        """The topic decides how groups are spread, whatever offsets.topic.num.partitions says today."""
        for name, coordinator in self._coordinators.items():
            topic = self.plane.cache.topics.get(name)
            if topic is not None and TopicKey(name) in touched:
                coordinator.resize(len(topic.partitions))

    def _answer(self, reply: CoordinatorReply) -> None:
        self._replies.append(Reply(reply.call, reply.response))

    def take_replies(self) -> list[Reply]:
        """Answers that were to come later."""
        replies, self._replies = self._replies, []
        if self.plane.replies:
            replies += self.plane.replies
            self.plane.replies = []
        return replies

    def step(self, now_ms: int) -> bool:
        """Let the control plane go on, pass on what it and the logs found out; whether there may be more to do."""
        plane = self.plane
        went_on = plane.step(now_ms)
        if plane.deleted:
            deleted, plane.deleted = plane.deleted, []
            self.groups.runtime.carry_out(self.groups.partitions_deleted(deleted, now_ms), now_ms)
        if self.logs.notices:
            self._heed_logs()
            went_on = True
        return went_on

    def expire(self, now_ms: int) -> None:
        """Time has moved on."""
        self.plane.expire(now_ms)
        for coordinator in self._coordinators.values():
            coordinator.expire(now_ms)
        if now_ms >= self.logs.due_ms:
            self.logs.due(now_ms, self.clock.wall_ms())

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When to call `expire` next."""
        deadline_ms = self.logs.due_ms
        coordinators = self._coordinators.values()
        for other_ms in (self.plane.next_deadline_ms(now_ms), *(each.next_deadline_ms() for each in coordinators)):
            if other_ms is not None and other_ms < deadline_ms:
                deadline_ms = other_ms
        return deadline_ms

    def handle(self, event: object, now_ms: int) -> None:
        """Something asynchronous has ended or been noticed."""
        if isinstance(event, DiskDone):
            self.replicas.went_offline(self.logs.finished(event.job, event.error, now_ms))
            if self.logs.durable:
                durable, self.logs.durable = self.logs.durable, []
                self.replicas.became_durable(durable)
        else:
            self.plane.handle(event, now_ms)

    def take_jobs(self) -> list[Job]:
        """Work for the disk."""
        return self.logs.take_jobs()

    def disconnected(self, session: Session) -> None:
        """A client has gone. Its group memberships and fetch sessions outlive its connection."""

    def disk_failed(self, error: OSError) -> None:
        """An OSError reached the core: if it names a file in a log directory, that one goes offline."""
        if isinstance(error.filename, str):
            self.replicas.went_offline(self.logs.disk_failed(error.filename, error))

    def _heed_logs(self) -> None:
        """What the log manager noticed by itself."""
        self.replicas.heed_lost()
        notices, self.logs.notices = self.logs.notices, []
        for notice in notices:
            log.warning("%s", notice)
        if not self.logs.has_online_directory:
            self.plane.fatal = "no log directory is left"


def _group_happened(happened: Happened) -> None:
    level = logging.DEBUG if happened.is_detail else logging.INFO
    groups_log.log(level, "group %s: %s", happened.name, happened.what)
