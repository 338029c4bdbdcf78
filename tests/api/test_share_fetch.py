"""ShareFetch and ShareAcknowledge: what is acquired, what becomes of it, and what is refused."""

from __future__ import annotations

import pytest

from kbroker.config.limits import COLD_PATIENCE_MS
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest
from tests.api.test_transactions import NAME, Producer
from tests.requests import produce
from tests.share.ask import GROUP, Member, acquired, initialize, values
from tests.world import World

ACCEPT, RELEASE, REJECT, RENEW = [1], [2], [3], [4]


@pytest.fixture
def world() -> World:
    world = World(
        group_share_min_record_lock_duration_ms="1000",
        group_share_record_lock_duration_ms="5000",
        share_coordinator_state_topic_num_partitions="2",
    )
    world.create("t")
    initialize(world)
    return world


def put(world: World, *records: bytes) -> None:
    for record in records:
        world.client().ask(produce(record), 9)


def test_a_member_gets_records_that_it_has_acquired(world: World) -> None:
    put(world, b"a", b"b")
    answer = Member(world).fetch()
    assert (acquired(answer), values(answer)) == ([(0, 1, 1)], [b"a", b"b"])
    assert answer.acquisition_lock_timeout_ms == 5_000


def test_each_record_goes_to_one_member(world: World) -> None:
    put(world, b"a", b"b")
    first, second = Member(world, member_id="m"), Member(world, member_id="n")
    first.mode, first.max_records = 1, 1
    assert first.acquire() == [(0, 0, 1)]
    assert second.acquire() == [(1, 1, 1)]


def test_a_fetch_waits_for_records(world: World) -> None:
    member = Member(world)
    assert member.acquire() == []
    number = member.start(wait_ms=5_000)
    world.advance(100)
    assert number not in member.client.look()
    put(world, b"a")
    assert acquired(member.client.look()[number]) == [(0, 0, 1)]


def test_a_fetch_is_answered_when_its_time_is_up(world: World) -> None:
    member = Member(world)
    member.acquire()
    number = member.start(wait_ms=500)
    world.advance(600)
    assert acquired(member.client.look()[number]) == []


@pytest.fixture
def cold(world: World) -> Member:
    """Of a broker that has started, and whose disk does nothing: the next records are in a segment not read yet."""
    world.create("cold", segment_bytes="700", index_interval_bytes="1")
    initialize(world, "cold")
    for at in range(10):
        world.client().ask(produce(b"%d" % at * 120, topic="cold"), 9)
    world.settle()
    world.restart()
    world.advance(500)
    log = world.partition("cold").log
    assert log is not None
    member = Member(world, ["cold"])
    member.mode, member.max_records = 1, log.segments[1].base_offset
    assert member.acquire() == [(0, log.segments[1].base_offset - 1, 1)]
    world.disk_is_busy = True
    return member


@pytest.mark.parametrize("wait_ms", [0, 500])
@pytest.mark.parametrize("min_bytes", [0, 1, 300])
def test_a_segment_that_is_being_made_ready_is_no_end(world: World, cold: Member, wait_ms: int, min_bytes: int) -> None:
    number = cold.start(wait_ms=wait_ms, min_bytes=min_bytes)
    world.advance(wait_ms + 100)
    before = number in cold.client.look()
    world.disk_is_busy = False
    world.settle()
    assert (before, bool(acquired(cold.client.look()[number]))) == (False, True)


def test_a_disk_that_brings_nothing_in_the_end_is_said_to_be_at_fault(world: World, cold: Member) -> None:
    number = cold.start(wait_ms=0)
    world.advance(3 * COLD_PATIENCE_MS + 100)
    assert cold.client.look()[number].responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_records_that_are_given_back_go_to_who_waits(world: World) -> None:
    put(world, b"a")
    first, second = Member(world, member_id="m"), Member(world, member_id="n")
    assert first.acquire() == [(0, 0, 1)]
    second.acquire()
    number = second.start(wait_ms=4_000)
    assert first.says((0, 0, RELEASE)) == 0
    assert acquired(second.client.look()[number]) == [(0, 0, 2)]


def test_records_whose_lock_expires_go_to_who_waits(world: World) -> None:
    put(world, b"a")
    first, second = Member(world, member_id="m"), Member(world, member_id="n")
    assert first.acquire() == [(0, 0, 1)]
    second.acquire()
    number = second.start(wait_ms=20_000)
    world.advance(5_100)
    assert acquired(second.client.look()[number]) == [(0, 0, 2)]
    assert first.says((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE


def test_an_accepted_record_is_not_delivered_again_after_a_restart(world: World) -> None:
    put(world, b"a", b"b", b"c")
    member = Member(world)
    assert member.acquire() == [(0, 2, 1)]
    assert member.says((1, 1, ACCEPT)) == 0
    world.restart()
    world.advance(500)
    assert values(Member(world).fetch()) == [b"a", b"c"]


def test_acknowledgements_come_with_a_fetch(world: World) -> None:
    put(world, b"a", b"b")
    member = Member(world)
    member.mode, member.max_records = 1, 1
    assert member.acquire() == [(0, 0, 1)]
    assert member.acquire([(0, 0, ACCEPT)]) == [(1, 1, 1)]
    world.restart()
    world.advance(500)
    assert values(Member(world).fetch()) == [b"b"]


def test_what_cannot_be_acknowledged_says_so_beside_what_is_fetched(world: World) -> None:
    put(world, b"a")
    member = Member(world)
    member.acquire()
    answer = member.fetch([(0, 7, ACCEPT)])
    part = answer.responses[0].partitions[0]
    assert (part.error_code, part.acknowledge_error_code) == (0, ErrorCode.INVALID_REQUEST)


def test_a_lock_is_renewed(world: World) -> None:
    put(world, b"a")
    member = Member(world)
    member.acquire()
    world.advance(3_000)
    answer = member.fetch([(0, 0, RENEW)], is_renew_ack=True, max_bytes=0, min_bytes=0, max_records=0, wait_ms=0)
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0
    world.advance(3_000)
    assert member.says((0, 0, ACCEPT)) == 0


def test_a_renewal_fetches_nothing(world: World) -> None:
    member = Member(world)
    member.acquire()
    answer = member.fetch([(0, 0, RENEW)], is_renew_ack=True)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "batches",
    [
        [(5, 4, ACCEPT)],  # backward
        [(4, 5, ACCEPT), (0, 1, ACCEPT)],
        [(0, 4, ACCEPT), (2, 5, ACCEPT)],  # overlapping
        [(0, 1, [])],
        [(0, 4, [1, 1])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 0, RENEW)],
    ],
)
def test_batches_that_make_no_sense_are_refused(world: World, batches: list[tuple[int, int, list[int]]]) -> None:
    put(world, *[b"x"] * 6)
    member = Member(world)
    assert member.acquire() == [(0, 5, 1)]
    assert member.says(*batches) == ErrorCode.INVALID_REQUEST
    assert member.says((0, 5, ACCEPT)) == 0


def test_a_session_counts(world: World) -> None:
    member = Member(world)
    member.acquire()
    assert member.acknowledge(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=1).error_code == 0
    other = Member(world, member_id="other")
    other.epoch = 1
    assert other.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_does_not_begin_with_acknowledgements(world: World) -> None:
    assert Member(world).fetch([(0, 0, ACCEPT)]).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("group", "member"), [(None, "m"), ("g", None), ("g", ""), ("g", "m" * 37)])
def test_a_member_has_a_name(world: World, group: str | None, member: str | None) -> None:
    asked = Member(world)
    assert asked.fetch(group_id=group, member_id=member).error_code == ErrorCode.INVALID_REQUEST


def test_there_are_so_many_sessions_and_no_more() -> None:
    world = World(group_share_max_share_sessions="200", group_share_max_size="200")
    world.create("t")
    initialize(world)
    members = [Member(world, member_id=str(number)) for number in range(201)]
    codes = [member.fetch().error_code for member in members]
    assert codes == [0] * 200 + [ErrorCode.SHARE_SESSION_LIMIT_REACHED]
    members[0].client.hang_up()
    members[200].epoch = 0
    assert members[200].fetch().error_code == 0


def test_what_a_member_has_acquired_is_given_back_when_its_connection_goes(world: World) -> None:
    put(world, b"a")
    first, second = Member(world, member_id="m"), Member(world, member_id="n")
    first.acquire()
    second.acquire()
    first.client.hang_up()
    assert second.acquire() == [(0, 0, 2)]


def test_what_a_member_has_acquired_is_given_back_when_its_session_ends(world: World) -> None:
    put(world, b"a")
    first, second = Member(world, member_id="m"), Member(world, member_id="n")
    first.acquire()
    second.acquire()
    assert first.acknowledge(epoch=-1).error_code == 0
    assert second.acquire() == [(0, 0, 2)]


def test_a_group_that_was_never_begun_gets_nothing(world: World) -> None:
    answer = Member(world, group="unknown").fetch(wait_ms=400)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_where_the_group_begins_is_kept_before_anything_is_delivered(world: World) -> None:
    world.create("u")
    initialize(world, "u", start_offset=-1)
    world.client().ask(produce(b"old", topic="u"), 9)
    member = Member(world, topics=["u"])
    assert member.acquire() == []  # share.auto.offset.reset=latest
    world.client().ask(produce(b"new", topic="u"), 9)
    assert member.acquire() == [(1, 1, 1)]
    world.restart()  # nothing was acknowledged
    world.advance(500)
    assert values(Member(world, topics=["u"]).fetch()) == [b"new"]


def test_an_unknown_topic_is_told(world: World) -> None:
    member = Member(world)
    request = member.request()
    request.topics[0].topic_id = b"x" * 16
    number = member.client.send(request, 2)
    world.advance(100)
    assert member.client.look()[number].responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_is_served(world: World, version: int) -> None:
    put(world, b"a")
    member = Member(world)
    number = member.client.send(member.request(), version)
    world.advance(300)
    assert values(member.client.look()[number]) == [b"a"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_group_that_reads_what_is_committed_waits_for_the_end_of_a_transaction(world: World, commit: bool) -> None:
    world.plane.configs.groups[GROUP] = {"share.isolation.level": "read_committed"}
    put(world, b"a")
    producer = begun(world)
    producer.write(b"b")
    producer.write(b"c")
    put(world, b"d")
    member = Member(world)
    assert values(member.fetch()) == [b"a"]
    number = member.start(wait_ms=4_000)
    world.advance(100)
    assert number not in member.client.look()
    assert producer.end(commit=commit) is ErrorCode.NONE
    world.advance(500)
    rest = [*values(member.client.look()[number]), *values(member.fetch())]
    assert rest == ([b"b", b"c", b"d"] if commit else [b"d"])


def test_a_group_that_reads_all_reads_what_is_not_committed(world: World) -> None:
    producer = begun(world)
    producer.write(b"a")
    assert values(Member(world).fetch()) == [b"a"]


def begun(world: World) -> Producer:
    """A producer with a transaction on the partition."""
    world.client().ask(FindCoordinatorRequest(key=NAME, key_type=1), 3)
    world.advance(500)
    producer = Producer(world)
    assert producer.init() is ErrorCode.NONE
    assert producer.add(0) == [ErrorCode.NONE]
    return producer
