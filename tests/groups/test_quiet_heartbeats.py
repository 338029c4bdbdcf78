"""Heartbeats of share and streams groups that say nothing new: a look at the group would not have found anything else.

Those of consumer groups are checked in their model (test_consumer_group_model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator import Caller
from kbroker.coordinator.effects import Again
from kbroker.groups.group import GroupType
from kbroker.groups.share import ShareGroups
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from protocol.messages.streams_groups import Endpoint
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
)
from tests.groups.streams.theatre import Actor, Stage, subtopology, topology
from tests.groups.world import again_of, plain
from tests.world import World

GROUP = "work"
SOON_MS = 100

Step: TypeAlias = "Callable[[], object]"


class Sharers:
    """A world with members of a share group, and the topics that they read."""

    def __init__(self) -> None:
        self.world = World(offsets_topic_num_partitions="1", share_coordinator_state_topic_num_partitions="1")
        self.world.create("t", partitions=2)
        self.client = self.world.client()
        self.ask(FindCoordinatorRequest(key=GROUP), 3)
        self.epochs: dict[str, int] = {}
        self.partitions = count(3)
        self.quiet = 0
        self.again: dict[str, Again] = {}

    def ask(self, request: Any, version: int) -> Any:
        number = self.client.send(request, version)
        self.world.advance(SOON_MS)
        return self.client.look()[number]

    @property
    def rules(self) -> ShareGroups:
        shard: Any = self.world.broker.group_runtime.find(GROUP)
        rules = shard.kind(GroupType.SHARE)
        assert isinstance(rules, ShareGroups)
        return rules

    def beat(self, member: str, epoch: int, topics: list[str] | None = None) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=member, member_epoch=epoch, subscribed_topic_names=topics
        )
        self.check_short_way(request)
        answer = self.ask(request, 1)
        if answer.error_code == ErrorCode.NONE and epoch != -1:
            self.epochs[member] = answer.member_epoch
        else:
            self.epochs.pop(member, None)

    def check_short_way(self, request: ShareGroupHeartbeatRequest) -> None:
        """A heartbeat that is answered without a look at all that it might say gets the answer of one that is not."""
        rules, caller = self.rules, Caller("call", 1, "test", "/127.0.0.1")
        shard, now_ms = rules.shard, self.world.clock.now_ms()
        again = self.again.pop(said := repr(request), None)
        is_short = rules._is_quiet(request, caller)
        assert is_short or again is None or not again.holds(now_ms)
        if not is_short:
            return
        self.quiet += 1
        short, long, written = shard.operation(now_ms), shard.operation(now_ms), shard.written_end
        rules._lives_on(short, request, caller)
        rules._beat(long, request, caller)
        assert (plain(short.effects), written) == (plain(long.effects), shard.written_end)
        self.again[said] = again_of(short.effects)

    def steps(self) -> Iterator[tuple[str, Step]]:
        for member in ("a", "b"):
            yield f"{member} joins", lambda member=member: self.beat(member, 0, ["t"])  # type: ignore[misc]
            yield f"{member} reads more", lambda member=member: self.speak(member, ["t", "u"])  # type: ignore[misc]
            yield f"{member} leaves", lambda member=member: self.beat(member, -1)  # type: ignore[misc]
        yield "u is there", lambda: "u" in self.world.plane.cache.topics or self.world.create("u")
        yield "u is gone", lambda: self.ask(DeleteTopicsRequest(topic_names=["u"], timeout_ms=1_000), 4)
        yield "t grows", self.grow
        yield "time passes", lambda: self.world.advance(6_000)

    def speak(self, member: str, topics: list[str] | None = None) -> None:
        if member in self.epochs:
            self.beat(member, self.epochs[member], topics)

    def grow(self) -> None:
        more = CreatePartitionsTopic(name="t", count=next(self.partitions), assignments=None)
        self.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1_000, validate_only=False), 3)


@settings(max_examples=25)
@given(st.data())
def test_a_quiet_heartbeat_of_a_share_group_is_answered_as_any_other(data: st.DataObject) -> None:
    sharers = Sharers()
    steps = dict(sharers.steps())
    sharers.beat("a", 0, ["t"])
    for _ in range(8):
        steps[data.draw(st.sampled_from(sorted(steps)))]()
        for _ in range(data.draw(st.integers(0, 3))):
            for member in list(sharers.epochs):
                sharers.speak(member)


def test_members_of_a_share_group_that_has_settled_are_not_looked_at() -> None:
    sharers = Sharers()
    sharers.beat("a", 0, ["t"])
    for _ in range(6):
        sharers.speak("a")
    assert sharers.quiet >= 3


class Streamers:
    """A stage with members of a streams group."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.partitions = count(3)
        self.stage.topic("lines", 2)
        self.shape = topology(subtopology(keeps="counts"))
        self.members = {
            "a": Actor(self.stage, "a"),
            "b": Actor(self.stage, "b", port=1),
            "c": Actor(self.stage, "c", instance="i"),
        }

    def steps(self) -> Iterator[tuple[str, Step]]:
        stage = self.stage
        for name, member in self.members.items():
            yield f"{name} joins", lambda member=member: member.join(self.shape)  # type: ignore[misc]
            yield f"{name} says what it has", member.settle
            yield f"{name} has restored", lambda member=member: member.beat(offsets={("0", 0): 7})  # type: ignore[misc]
            yield f"{name} leaves", member.leave
        yield "c goes for a while", lambda: self.members["c"].leave(for_a_while=True)
        yield "a asks all to end", lambda: self.members["a"].beat(shutdown=True)
        yield "counts is there", lambda: stage.topic("counts", next(self.partitions))
        yield "lines grows", lambda: stage.topic("lines", next(self.partitions))
        yield "lines is gone", lambda: stage.topic("lines", 0)
        yield (
            "a standby is wanted",
            lambda: stage.world.group_configs.update({"word-count": {"streams.num.standby.replicas": "1"}}),
        )
        yield (
            "tags are wanted",
            lambda: stage.world.group_configs.update({"word-count": {"streams.rack.aware.assignment.tags": "zone"}}),
        )
        yield "time passes", lambda: stage.world.wait(20_000)


@settings(max_examples=60)
@given(st.data())
def test_a_quiet_heartbeat_of_a_streams_group_is_answered_as_any_other(data: st.DataObject) -> None:
    """The stage compares."""
    streamers = Streamers()
    steps = dict(streamers.steps())
    streamers.stage.topic("counts", 2)
    streamers.members["a"].join(streamers.shape)
    for _ in range(10):
        steps[data.draw(st.sampled_from(sorted(steps)))]()
        for is_plain in data.draw(st.lists(st.booleans(), max_size=3)):
            for member in streamers.members.values():
                member.beat() if is_plain else member.settle()


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_member_of_a_streams_group_that_has_settled_is_not_looked_at(name: str) -> None:
    streamers = Streamers()
    streamers.stage.topic("counts", 2)
    streamers.members[name].join(streamers.shape)
    for _ in range(4):
        streamers.members[name].beat()
    assert streamers.stage.quiet >= 3


@pytest.mark.parametrize(
    "said",
    [
        {"member_epoch": 1},
        {"endpoint_information_epoch": 7},
        {"instance_id": "i"},
        {"rack_id": "r"},
        {"rebalance_timeout_ms": 20_000},
        {"topology": topology()},
        {"active_tasks": []},
        {"standby_tasks": []},
        {"warmup_tasks": []},
        {"process_id": "p"},
        {"user_endpoint": Endpoint(host="h", port=1)},
        {"client_tags": []},
        {"task_offsets": []},
        {"task_end_offsets": []},
        {"shutdown_application": True},
    ],
    ids=lambda said: next(iter(said)),
)
def test_a_member_of_a_streams_group_that_says_something_is_looked_at(said: dict[str, Any]) -> None:
    streamers = Streamers()
    stage, member = streamers.stage, streamers.members["a"]
    stage.topic("counts", 2)
    member.join(streamers.shape)
    member.beat()
    rules, caller, request = stage.rules, stage.world.call(1), member._request(None)
    assert rules._is_quiet(request, caller)
    for name, value in said.items():
        setattr(request, name, value)
    assert not rules._is_quiet(request, caller)
