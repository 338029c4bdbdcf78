"""Fetches of followers: they read to the end of the log, and what they ask for is what they have."""

from __future__ import annotations

import pytest

from kbroker.core import AT_REST, EXPIRED
from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, PartitionData, ReplicaState
from protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.requests import fetch, fetched, produce, produced
from tests.world import Client, World

ME, FOLLOWER, STRANGER = 1, 2, 9
NEWEST = 17


@pytest.fixture
def world() -> World:
    """t-0 is led in epoch 5, with one follower in sync."""
    world = World()
    world.create("t")
    lead(world, (ME, FOLLOWER))
    return world


def lead(world: World, isr: tuple[int, ...], epoch: int = 5) -> None:
    world.replicas.become(
        "t", 0, world.topic_id("t"), LeaderState(1, ME, epoch, isr, epoch, (ME, FOLLOWER)), is_new=False
    )


def of_follower(world: World, offset: int, version: int, replica_id: int = FOLLOWER, **more: object) -> FetchRequest:
    request = fetch(offset, topic="t" if version < 13 else "", topic_id=world.topic_id("t"), **more)  # type: ignore[arg-type]
    request.replica_id = replica_id if version < 15 else -1
    if version >= 15:
        request.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=7)
    return request


def ask(world: World, offset: int, version: int = NEWEST, **more: object) -> PartitionData:
    part: PartitionData = fetched(world.client().ask(of_follower(world, offset, version, **more), version))[0]  # type: ignore[arg-type]
    return part


@pytest.mark.parametrize("version", range(4, 19))
def test_a_follower_gets_what_consumers_do_not_see_yet(world: World, client: Client, version: int) -> None:
    client.ask(produce(b"a"), 9)
    part = ask(world, 0, version)
    assert (part.error_code, part.high_watermark, len(part.records or b"") > 0) == (0, 0, True)


@pytest.mark.parametrize("version", [12, 15])
def test_what_it_asks_for_next_says_what_it_has(world: World, client: Client, version: int) -> None:
    client.ask(produce(b"a"), 9)
    ask(world, 1, version)
    assert fetched(client.ask(fetch(0), 12))[0].high_watermark == 1


def test_acks_of_all_is_answered_when_the_follower_has_it(world: World) -> None:
    client = world.client()
    number = client.send(produce(b"a", acks=-1), 9)
    before = dict(client.look())
    ask(world, 1)
    assert (before, produced(client.look()[number]).error_code) == ({}, 0)


def test_acks_of_all_says_so_if_too_few_are_in_sync_by_the_time_that_all_have_it(world: World) -> None:
    client, partition = world.client(), world.partition("t")
    number = client.send(produce(b"a", acks=-1), 9)
    world.replicas.follower_fetched(partition, FOLLOWER, 1, 0, 7, world.clock.now_ms())  # and before anybody looks
    lead(world, (ME,))
    partition.min_insync_replicas = 2
    world.core.step(EXPIRED, world.clock.now_ms())
    world.core.step(AT_REST, world.clock.now_ms())
    answer = produced(client.look()[number])
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)


def test_a_fetch_of_a_follower_that_waits_is_answered_by_an_append(world: World, client: Client) -> None:
    follower = world.client()
    number = follower.send(of_follower(world, 0, NEWEST, max_wait_ms=500), NEWEST)
    client.ask(produce(b"a"), 9)
    assert fetched(follower.look()[number])[0].records


def test_a_fetch_of_a_follower_waits_through_a_high_watermark_and_no_longer_than_its_epoch(
    world: World, client: Client
) -> None:
    client.ask(produce(b"a"), 9)
    follower = world.client()
    number = follower.send(
        of_follower(world, 1, NEWEST, max_wait_ms=500, current_leader_epoch=5, last_fetched_epoch=5), NEWEST
    )
    committed, before = fetched(client.ask(fetch(0), 12))[0].high_watermark, dict(follower.look())
    lead(world, (ME, FOLLOWER), epoch=6)
    world.core.step(EXPIRED, world.clock.now_ms())
    code = fetched(follower.look()[number])[0].error_code
    assert (committed, before, code) == (1, {}, ErrorCode.FENCED_LEADER_EPOCH)


def test_who_is_no_replica_is_told_to_wait_for_the_controller(world: World) -> None:
    assert ask(world, 0, replica_id=STRANGER, current_leader_epoch=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_who_is_no_replica_and_knows_no_epoch_is_told_to_look_elsewhere(world: World) -> None:
    assert ask(world, 0, replica_id=STRANGER).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "expected"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_follower_of_another_epoch_acknowledges_nothing(
    world: World, client: Client, epoch: int, expected: ErrorCode
) -> None:
    client.ask(produce(b"a"), 9)
    assert ask(world, 1, current_leader_epoch=epoch).error_code == expected
    assert fetched(client.ask(fetch(0), 12))[0].high_watermark == 0


def test_a_follower_whose_log_diverges_acknowledges_nothing(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    lead(world, (ME, FOLLOWER), epoch=8)
    client.ask(produce(b"b"), 9)
    part = ask(world, 2, last_fetched_epoch=6)
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (5, 1)
    assert fetched(client.ask(fetch(0), 12))[0].high_watermark == 0


def test_an_offset_behind_the_leaders_end_acknowledges_nothing(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    assert ask(world, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.partition("t").followers[FOLLOWER].log_end_offset == -1


def test_the_life_of_the_follower_is_known(world: World) -> None:
    ask(world, 0)
    assert world.partition("t").followers[FOLLOWER].broker_epoch == 7


@pytest.mark.parametrize(("replica_id", "expected"), [(-1, 0), (FOLLOWER, 1)])
def test_a_follower_is_told_of_the_end_of_the_log(world: World, client: Client, replica_id: int, expected: int) -> None:
    client.ask(produce(b"a"), 9)
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    answer = client.ask(ListOffsetsRequest(replica_id=replica_id, isolation_level=0, topics=[asked]), 7)
    assert answer.topics[0].partitions[0].offset == expected


# ---- DeleteRecords


def delete_first_record(client: Client, timeout_ms: int) -> int:
    asked = [DeleteRecordsPartition(partition_index=0, offset=1)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=timeout_ms)
    return client.send(request, 2)


@pytest.mark.parametrize("offset", [1, 2])
def test_records_are_deleted_once_the_follower_has_said_so(world: World, client: Client, offset: int) -> None:
    world.replicas.rules.is_alive = lambda broker_id: True
    client.ask(produce(b"a"), 9)
    client.ask(produce(b"b"), 9)
    ask(world, offset)
    number = delete_first_record(client, 30_000)
    world.advance(1_000)
    assert number not in client.look()
    request = of_follower(world, offset, NEWEST)
    request.topics[0].partitions[0].log_start_offset = 1
    world.client().ask(request, NEWEST)
    world.advance(0)
    (result,) = client.look()[number].topics[0].partitions
    assert (result.low_watermark, result.error_code) == (1, ErrorCode.NONE)


@pytest.mark.parametrize(("is_alive", "code"), [(True, ErrorCode.REQUEST_TIMED_OUT), (False, ErrorCode.NONE)])
def test_a_follower_that_says_nothing_is_waited_for_while_it_lives(
    world: World, client: Client, is_alive: bool, code: ErrorCode
) -> None:
    world.replicas.rules.is_alive = lambda broker_id: is_alive
    client.ask(produce(b"a"), 9)
    ask(world, 1)
    number = delete_first_record(client, 500)
    world.advance(1_000)
    assert client.look()[number].topics[0].partitions[0].error_code == code


# ---- in a session


class Session:
    """A follower's session, begun with a fetch of t-0 from an offset."""

    def __init__(self, world: World, offset: int) -> None:
        self._world, self._client = world, world.client()
        self._id = self._epoch = 0
        self.fetch(offset)

    def fetch(self, offset: int | None = None) -> list[PartitionData]:
        """The next fetch, which names the partition if there is an offset; what it is told."""
        known: dict[str, int] = {"current_leader_epoch": 5, "last_fetched_epoch": 5}
        request = of_follower(self._world, offset or 0, NEWEST, max_wait_ms=0, **known)
        request.session_id, request.session_epoch = self._id, self._epoch
        if offset is None:
            request.topics = []
        response = self._client.ask(request, NEWEST)
        self._id, self._epoch = response.session_id, self._epoch + 1
        return [part for topic in response.responses for part in topic.partitions]


def test_who_has_all_is_told_news_only(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    session = Session(world, 0)
    moved = [part.high_watermark for part in session.fetch(1)]
    nothing = session.fetch()
    world.partition("t").delete_records(1)
    cut = [part.log_start_offset for part in session.fetch()]
    assert (moved, nothing, cut) == ([1], [], [1])


def test_who_has_to_cut_its_log_is_told_the_high_watermark_again(world: World, client: Client) -> None:
    """It takes no notice of the one that comes with where to cut."""
    client.ask(produce(b"a"), 9)
    ask(world, 1)
    session = Session(world, 2)  # of a log longer than the leader's
    assert [part.high_watermark for part in session.fetch(1)] == [1]


def test_who_has_all_stays_caught_up_by_fetches_that_do_not_name_it(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    session = Session(world, 1)
    world.clock.advance(60_000)
    session.fetch()
    client.ask(produce(b"b"), 9)
    assert world.partition("t").maybe_shrink_isr(world.clock.now_ms()) is False


def test_who_has_all_and_is_not_in_sync_is_proposed(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    session = Session(world, 1)
    lead(world, (ME,))
    world.replicas.rules.is_alive = lambda broker_id: True
    session.fetch()
    proposal = world.partition("t").proposal
    assert proposal is not None
    assert proposal.isr == (ME, FOLLOWER)
