"""What only grows: nothing. A broker that has done everything a hundred times holds no more than after ten times.

Every container that can be reached from the core is measured, whoever owns it, so that a list that nobody empties is
found without knowing of it. docs/growth.md has what may grow with a cluster, and until when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import DeleteTopicsRequest
from tests.requests import fetch, list_offsets, produce
from tests.world import World

CONTAINERS = (dict, list, set, deque)
LEFT_OUT = ("kbroker.sim.", "tests.", "kbroker.config.")  # what stands in for the world, and settings


def sizes(root: object) -> dict[str, int]:
    """How much is in each container that can be reached, by the way to it; what is in containers counts with them."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([("core", root)])
    while waiting:
        path, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, CONTAINERS):
            found[path] = found.get(path, 0) + len(each)
            values = [*each.keys(), *each.values()] if isinstance(each, dict) else list(each)
            waiting += [(f"{path}[]", value) for value in values]
        elif isinstance(each, tuple):
            waiting += [(path, value) for value in each]
        elif type(each).__module__.startswith("kbroker.") and not type(each).__module__.startswith(LEFT_OUT):
            waiting += [(f"{path}.{name}", value) for name, value in attributes(each)]
    return found


def attributes(each: object) -> Iterator[tuple[str, Any]]:
    names = {name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())}
    for name in names | set(getattr(each, "__dict__", ())):
        value = getattr(each, name, None)
        if value is not None:
            yield name, value


def a_day(world: World) -> None:
    """A topic's life, and what clients do with it; all of it over at the end."""
    world.create("t", partitions=2)
    client = world.client()
    client.ask(produce(b"v"), 9)
    client.ask(produce(b"v", index=9), 9)
    answer = client.ask(fetch(0, indices=(0, 1), session=(0, 0)), 11)
    client.ask(fetch(0, indices=(), session=(answer.session_id, -1)), 11)
    client.send(fetch(1, max_wait_ms=500), 11)
    world.advance(600)
    client.send(list_offsets(0), 5)
    client.send(FindCoordinatorRequest(key="g", key_type=0), 2)
    world.advance(1000)
    a_member(world)
    client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    client.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    world.advance(120_000)
    client.hang_up()
    world.core.effects.take_writes()  # as whoever writes to the connections does


def a_member(world: World) -> None:
    client = world.client()
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    number = client.send(join, 3)
    world.advance(4000)
    told = client.look()[number]
    client.send(HeartbeatRequest(group_id="g", generation_id=told.generation_id, member_id=told.member_id), 3)
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    commit = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=told.generation_id, member_id=told.member_id, topics=topics
    )
    client.send(commit, 6)
    client.send(LeaveGroupRequest(group_id="g", member_id=told.member_id), 2)
    world.advance(1000)
    client.hang_up()


@pytest.fixture
def world() -> World:
    return World(offsets_topic_num_partitions="1", offsets_topic_replication_factor="1")


def test_a_broker_holds_no_more_after_many_days_than_after_a_few(world: World) -> None:
    for _ in range(4):
        a_day(world)
    before = sizes(world.core)
    for _ in range(8):
        a_day(world)
    after = sizes(world.core)
    assert {path: size for path, size in after.items() if size >= before.get(path, 0) + 8} == {}


def test_a_list_that_nobody_empties_is_found(world: World) -> None:
    before = sizes(world.core)
    world.broker.plane.controller.role_changes = [0] * 8  # type: ignore[attr-defined]  # as there once was
    after = sizes(world.core)
    assert {path for path, size in after.items() if size != before.get(path, 0)} == {
        "core._broker.plane.controller.role_changes"
    }
