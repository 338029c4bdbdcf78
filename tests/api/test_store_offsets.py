"""OffsetCommit 0 and OffsetFetch 0: offsets in the metadata store."""

from __future__ import annotations

import pytest

from kbroker.metadata.tree import NO_SESSION
from kbroker.ports import Get, SetData
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.world import Client, World

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", partitions=2)
    world.create("u")
    return world


def commit(client: Client, offsets: dict[tuple[str, int], int], group: str = "g", metadata: str = "") -> list[int]:
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
        for (topic, index), offset in offsets.items()
    ]
    answer = client.ask(OffsetCommitRequest(group_id=group, topics=topics), 0)
    return [part.error_code for topic in answer.topics for part in topic.partitions]


def fetch(client: Client, *places: tuple[str, int], group: str = "g") -> list[tuple[int, str, int]]:
    topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[index]) for topic, index in places]
    answer = client.ask(OffsetFetchRequest(group_id=group, topics=topics), 0)
    return [
        (part.committed_offset, part.metadata, part.error_code) for topic in answer.topics for part in topic.partitions
    ]


def test_what_was_committed_is_fetched(client: Client) -> None:
    assert commit(client, {("t", 0): 7, ("t", 1): 8, ("u", 0): 9}) == [0, 0, 0]
    assert fetch(client, ("u", 0), ("t", 1), ("t", 0)) == [(9, "", 0), (8, "", 0), (7, "", 0)]


def test_a_later_commit_counts_and_a_restart_forgets_nothing(world: World, client: Client) -> None:
    commit(client, {("t", 0): 7})
    commit(client, {("t", 0): 3, ("u", 0): 1})
    world.restart()
    assert fetch(world.client(), ("t", 0), ("u", 0)) == [(3, "", 0), (1, "", 0)]


def test_groups_do_not_share(client: Client) -> None:
    commit(client, {("t", 0): 7})
    assert fetch(client, ("t", 0), group="other") == [(-1, "", UNKNOWN)]


def test_a_partition_without_an_offset_is_told_as_unknown(client: Client) -> None:
    commit(client, {("t", 0): 7})
    assert fetch(client, ("t", 1), ("nothing", 0)) == [(-1, "", UNKNOWN), (-1, "", UNKNOWN)]


def test_offsets_of_unknown_partitions_are_refused_and_the_others_kept(client: Client) -> None:
    assert commit(client, {("t", 5): 1, ("t", 0): 2, ("nothing", 0): 3}) == [UNKNOWN, 0, UNKNOWN]
    assert fetch(client, ("t", 0)) == [(2, "", 0)]


@pytest.mark.parametrize("group", ["", "a/b", ".", "..", "a\0b"])
def test_a_group_that_can_have_no_node_is_refused(client: Client, group: str) -> None:
    assert commit(client, {("t", 0): 7}, group=group) == [ErrorCode.INVALID_GROUP_ID]
    assert fetch(client, ("t", 0), group=group) == [(-1, "", UNKNOWN)]


@pytest.mark.parametrize(("length", "code"), [(4096, 0), (4097, ErrorCode.OFFSET_METADATA_TOO_LARGE)])
def test_metadata_is_bounded_and_not_kept(client: Client, length: int, code: int) -> None:
    assert commit(client, {("t", 0): 7}, metadata="m" * length) == [code]


def test_the_node_is_where_other_tools_of_the_time_look(world: World, client: Client) -> None:
    commit(client, {("t", 1): 42})
    assert world.ensemble.tree.apply(Get("/consumers/g/offsets/t/1"), NO_SESSION).data == b"42"


def test_a_node_that_holds_no_number_is_no_offset(world: World, client: Client) -> None:
    commit(client, {("t", 0): 7})
    world.ensemble.tree.apply(SetData("/consumers/g/offsets/t/0", b"seven"), NO_SESSION)
    assert fetch(client, ("t", 0)) == [(-1, "", UNKNOWN)]


def test_nothing_asked_is_nothing_answered(client: Client) -> None:
    assert (commit(client, {}), fetch(client)) == ([], [])


def test_a_session_that_ends_meanwhile_fails_the_commit(world: World, client: Client) -> None:
    topic = OffsetCommitRequestTopic(
        name="t",
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")],
    )
    number = client.start(OffsetCommitRequest(group_id="g", topics=[topic]), 0)
    for session in list(world.ensemble.sessions):
        world.ensemble.end_session(session)
    world.settle()
    assert client.look()[number].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
