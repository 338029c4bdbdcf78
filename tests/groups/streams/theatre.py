"""Members of streams groups on a stage: a world with one coordinator, and what they say and hear."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.coordinator import Caller
from kbroker.groups.group import GroupType
from kbroker.groups.streams.group import StreamsGroup
from kbroker.groups.streams.membership import StreamsGroups
from kbroker.groups.streams.tasks import NOTHING, Tasks, from_ids, to_ids
from kbroker.groups.streams.topology import InternalTopic
from kbroker.metadata.cache import MetadataDelta, TopicImage
from protocol.errors import ErrorCode
from protocol.messages.control import UpdateMetadataPartitionState
from protocol.messages.streams_groups import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from tests.groups.world import World, config_of

GROUP = "word-count"
QUICK = {"group_streams_initial_rebalance_delay_ms": "0", "group_streams_assignment_interval_ms": "0"}


def subtopology(name: str = "0", *, reads: str = "lines", keeps: str | None = None) -> Subtopology:
    changelogs = [] if keeps is None else [TopicInfo(name=keeps, partitions=0, replication_factor=0, topic_configs=[])]
    return Subtopology(
        subtopology_id=name,
        source_topics=[reads],
        source_topic_regex=[],
        state_changelog_topics=changelogs,
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )


def topology(*parts: Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch=epoch, subtopologies=list(parts) or [subtopology()])


class Stage:
    """A world, its topics, and who creates internal ones. forbidden: topics that the sender may not create."""

    def __init__(self, **settings: str) -> None:
        self.world = World(config_of(**(QUICK | settings)))
        self.forbidden: set[str] = set()
        self.failed: list[str] = []
        self.quiet = 0  # heartbeats that say nothing new, and hear nothing

    def refused(self, names: Collection[str]) -> list[str]:
        return sorted(self.forbidden & set(names))

    def failures(self, names: Collection[str]) -> list[str]:
        return self.failed

    def topic(self, name: str, partitions: int) -> None:
        """A topic is there, with so many partitions."""
        image = self.world.image.topics[name] = TopicImage(name)
        image.topic_id = name.encode().ljust(16, b"\0")
        for at in range(partitions):
            image.partitions[at] = UpdateMetadataPartitionState(
                partition_index=at,
                controller_epoch=1,
                leader=1,
                leader_epoch=1,
                isr=[1],
                zk_version=1,
                replicas=[1],
            )
        self.world.image.memo.clear()
        self.world.runtime.new_metadata_image(MetadataDelta([name]), self.world.now_ms)

    @property
    def group(self) -> StreamsGroup:
        found = self.world.shard.groups[GROUP]
        assert isinstance(found, StreamsGroup)
        return found

    @property
    def rules(self) -> StreamsGroups:
        rules = self.world.shard.kind(GroupType.STREAMS)
        assert isinstance(rules, StreamsGroups)
        return rules

    def send(
        self, request: StreamsGroupHeartbeatRequest, version: int = 1
    ) -> tuple[StreamsGroupHeartbeatResponse, dict[str, InternalTopic]]:
        """The answer to a heartbeat, and the topics that it wants created."""
        caller = self.world.call(version)
        self.check_short_way(request, caller)
        effects, missing = self.world.groups.streams_heartbeat(request, caller, self.world.now_ms, self)
        answer = self.world.ask(effects, caller)
        assert isinstance(answer, StreamsGroupHeartbeatResponse), answer
        return answer, dict(missing)

    def check_short_way(self, request: StreamsGroupHeartbeatRequest, caller: Caller) -> None:
        """A heartbeat that is answered without a look at all that it might say gets the answer of one that is not."""
        shard, rules = self.world.shard, self.rules
        if shard.loading or self.world.has_uncommitted or not rules._is_quiet(request, caller):
            return
        self.quiet += 1
        short, long, written = shard.operation(self.world.now_ms), shard.operation(self.world.now_ms), shard.written_end
        rules._lives_on(short, request, caller)
        assert rules._heartbeat(long, request, caller, self) == {}
        assert (short.effects, written) == (long.effects, shard.written_end)


class Actor:
    """A member as a client: it remembers its epoch and tasks, and says what it has when that is another."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        process: str | None = None,
        *,
        instance: str | None = None,
        port: int | None = None,
    ) -> None:
        self.stage = stage
        self.name = name
        self.process = process or f"process-{name}"
        self.instance = instance
        self.endpoint = None if port is None else Endpoint(host=name, port=port)
        self.epoch = 0
        self.endpoint_epoch = -1
        self.tasks = NOTHING
        self.heard: StreamsGroupHeartbeatResponse | None = None
        self.missing: dict[str, InternalTopic] = {}

    def join(self, given: Topology | None = None, tags: dict[str, str] | None = None) -> StreamsGroupHeartbeatResponse:
        self.epoch, self.tasks = 0, NOTHING
        request = self._request(NOTHING)
        request.topology = given or topology()
        request.rebalance_timeout_ms, request.process_id = 10_000, self.process
        request.user_endpoint = self.endpoint
        request.client_tags = [KeyValue(key=key, value=value) for key, value in (tags or {}).items()]
        return self._hear(request)

    def beat(
        self, *, says: Tasks | None = None, shutdown: bool = False, offsets: dict[tuple[str, int], int] | None = None
    ) -> StreamsGroupHeartbeatResponse:
        request = self._request(says)
        request.shutdown_application = shutdown
        if offsets is not None:
            request.task_offsets = [
                TaskOffset(subtopology_id=part, partition=at, offset=offset) for (part, at), offset in offsets.items()
            ]
        return self._hear(request)

    def settle(self) -> StreamsGroupHeartbeatResponse:
        """A heartbeat that says what the member has."""
        return self.beat(says=self.tasks)

    def leave(self, *, for_a_while: bool = False) -> StreamsGroupHeartbeatResponse:
        request = self._request(None)
        request.member_epoch = -2 if for_a_while else -1
        return self.stage.send(request)[0]

    def _request(self, says: Tasks | None) -> StreamsGroupHeartbeatRequest:
        ids = (None, None, None) if says is None else [to_ids(tasks, TaskIds) for tasks in says]
        return StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            endpoint_information_epoch=self.endpoint_epoch,
            instance_id=self.instance,
            active_tasks=ids[0],
            standby_tasks=ids[1],
            warmup_tasks=ids[2],
        )

    def _hear(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
        answer, self.missing = self.stage.send(request)
        self.heard = answer
        if answer.error_code is ErrorCode.NONE or not answer.error_code:
            self.epoch, self.endpoint_epoch = answer.member_epoch, answer.endpoint_information_epoch
            if answer.active_tasks is not None:
                roles = answer.active_tasks, answer.standby_tasks or [], answer.warmup_tasks or []
                self.tasks = Tasks(*map(from_ids, roles))
        return answer

    @property
    def active(self) -> list[int]:
        """Partitions of its active tasks."""
        return sorted(at for _, at in self.tasks.active)


def statuses(answer: StreamsGroupHeartbeatResponse) -> list[tuple[int, str]]:
    return [(each.status_code, each.status_detail) for each in answer.status or ()]
