"""What long requests do in one step, between which others have their turn: of admins, and of those who ask for much."""

from __future__ import annotations

import pytest

from kbroker.config.limits import WRITTEN_AT_ONCE
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from protocol.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from protocol.messages.logdirs import DescribeLogDirsRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.test_core_slices import FEW_LINES, StepCount
from tests.world import World

MANY = 8 * WRITTEN_AT_ONCE


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def steps(world: World, monkeypatch: pytest.MonkeyPatch) -> StepCount:
    return StepCount(world, monkeypatch)


def new_topics(*names: str, validate_only: bool = False) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=validate_only)


def kept_for_7_ms(topics: list[str]) -> AlterConfigsRequest:
    resources = [
        AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[AlterableConfig(name="retention.ms", value="7")]
        )
        for topic in topics
    ]
    return AlterConfigsRequest(resources=resources, validate_only=False)


def codes(world: World, request: Message, version: int, part: str) -> list[int]:
    client = world.client()
    number = client.send(request, version)
    world.advance(0)
    return [each.error_code for each in getattr(client.look()[number], part)]


def test_many_topics_are_not_made_in_one_step(world: World, steps: StepCount) -> None:
    steps.most_lines(new_topics("first"), 5)  # compiles
    names = [f"t-{number}" for number in range(MANY)]
    most = steps.most_lines(new_topics(*names), 5)
    assert (most < 8 * FEW_LINES, names[-1] in world.plane.cache.topics) == (True, True)


def test_names_of_one_request_are_compared_however_far_they_are_apart(world: World) -> None:
    between = [f"t-{number}" for number in range(WRITTEN_AT_ONCE)]
    request = new_topics("a.b", *between, "a_b", validate_only=True)
    assert codes(world, request, 5, "topics") == [0] * (1 + len(between)) + [ErrorCode.INVALID_TOPIC_EXCEPTION]
    request = new_topics("a.b", *between, "a_b")
    assert codes(world, request, 5, "topics") == [0] * (1 + len(between)) + [ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_settings_of_many_topics_are_not_changed_in_one_step(world: World, steps: StepCount) -> None:
    names = [f"t-{number}" for number in range(MANY)]
    assert codes(world, new_topics(*names), 5, "topics") == [0] * MANY
    most = steps.most_lines(kept_for_7_ms(names), 1)
    world.advance(0)
    found = {world.broker.plane.configs.topic_config(name).retention_ms for name in names}
    assert (most < 4 * FEW_LINES, found) == (True, {7})


def test_notices_of_another_brokers_changes_are_not_all_read_in_one_step(world: World) -> None:
    names = [f"t-{number}" for number in range(3 * WRITTEN_AT_ONCE)]
    assert codes(world, new_topics(*names), 5, "topics") == [0] * len(names)
    world.plane.notices._notices._seen_at_ms.clear()
    assert codes(world, kept_for_7_ms(names), 1, "responses") == [0] * len(names)
    assert len(world.plane.notices._notices._seen_at_ms) == len(names)


def test_sizes_of_many_logs_are_not_told_in_one_step(world: World, steps: StepCount) -> None:
    world.create("wide", partitions=300)
    steps.most_lines(DescribeLogDirsRequest(topics=None), 2)
    assert steps.most_lines(DescribeLogDirsRequest(topics=None), 2) < FEW_LINES / 4


def test_many_groups_are_not_deleted_in_one_step(world: World, steps: StepCount) -> None:
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)
    names = [f"group-{number}" for number in range(MANY)]
    steps.most_lines(DeleteGroupsRequest(groups_names=names), 2)
    assert steps.most_lines(DeleteGroupsRequest(groups_names=names), 2) < FEW_LINES / 2
    unknown = [ErrorCode.GROUP_ID_NOT_FOUND] * MANY
    assert codes(world, DeleteGroupsRequest(groups_names=[*names, names[0]]), 2, "results") == unknown
