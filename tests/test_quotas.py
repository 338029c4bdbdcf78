"""Clients over their quotas: what they are answered, and that nothing is read from them until their time is over."""

from __future__ import annotations

import pytest

from kbroker.sim.clock import SimClock
from protocol.message import Message
from protocol.messages.control import ControlledShutdownRequest
from protocol.messages.metadata import MetadataRequest
from tests.quotas import alter, altered
from tests.requests import VERSIONS, fetch, produce, produced
from tests.share.ask import Member, acquired, initialize
from tests.world import Client, World

RATE = 1000
PRODUCE, FETCH, VERSIONS_IN, METADATA = 9, 12, 3, 9


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def limit(world: World, parts: dict[str, str | None] | None = None, **quotas: float | None) -> None:
    answer = world.client("admin").ask(alter(altered(parts or {"client-id": "test"}, **quotas)), 1)
    assert [entry.error_code for entry in answer.entries] == [0]


def throttled(client: Client, request: Message, version: int) -> int:
    """For how long, as the client is told; then it is not read from."""
    throttle_ms: int = client.ask(request, version).throttle_time_ms
    assert client.channel.full == (throttle_ms > 0)
    return throttle_ms


def test_a_producer_is_answered_and_then_not_read_from(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 9 * RATE), PRODUCE) == 0
    throttle_ms = throttled(client, produce(b"v" * 11 * RATE), PRODUCE)
    assert 10_000 < throttle_ms < 10_500
    world.advance(throttle_ms - 1)
    assert client.channel.full
    world.advance(1)
    assert not client.channel.full
    assert not client.channel.pending


def test_records_of_a_throttled_producer_are_in_the_log(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert produced(client.ask(produce(b"v" * 50 * RATE), PRODUCE)).error_code == 0
    log = world.partition("t").log
    assert log is not None
    assert log.log_end_offset == 1


@pytest.mark.parametrize("acks", [0, -1])
def test_a_producer_is_throttled_whatever_it_waits_for(world: World, client: Client, acks: int) -> None:
    limit(world, producer_byte_rate=RATE)
    client.send(produce(b"v" * 20 * RATE, acks=acks), PRODUCE)
    assert client.channel.full
    world.advance(60_000)
    assert not client.channel.full


@pytest.mark.parametrize("version", [0, 1, 3, 9, 13])
def test_producers_of_every_version_are_throttled(world: World, client: Client, version: int) -> None:
    limit(world, producer_byte_rate=RATE)
    request = produce(b"v" * 20 * RATE, topic_id=world.topic_id("t"))
    answer = client.ask(request, version) if version > 2 else client.ask(produce(b"v" * 20 * RATE), version)
    assert client.channel.full
    assert (answer.throttle_time_ms > 0) == (version > 0)


def test_a_consumers_answer_is_empty_and_what_it_left_comes_later(world: World, client: Client) -> None:
    for _ in range(3):
        client.ask(produce(b"v" * 4 * RATE), PRODUCE)
    limit(world, consumer_byte_rate=RATE)
    assert len(records(client.ask(fetch(max_bytes=9 * RATE), FETCH))) > 0
    answer = client.ask(fetch(), FETCH)
    assert (answer.responses, answer.throttle_time_ms > 0) == ([], True)
    world.advance(11_000)
    assert len(records(client.ask(fetch(max_bytes=9 * RATE), FETCH))) > 0


def records(answer: Message) -> bytes:
    return b"".join(bytes(part.records or b"") for topic in answer.responses for part in topic.partitions)  # type: ignore[attr-defined]


def test_a_fetch_brings_no_more_than_ten_windows_of_the_quota(world: World, client: Client) -> None:
    for _ in range(30):
        client.ask(produce(b"v" * RATE), PRODUCE)
    limit(world, consumer_byte_rate=RATE)
    answer = client.ask(fetch(), FETCH)
    world.advance(answer.throttle_time_ms)
    if not answer.responses:
        answer = client.ask(fetch(), FETCH)
    assert 0 < len(records(answer)) <= 10 * RATE


def test_a_session_that_begins_with_a_throttled_fetch_is_none(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 20 * RATE), PRODUCE)
    limit(world, consumer_byte_rate=RATE)
    answer = client.ask(fetch(session=(0, 0)), FETCH)
    assert (answer.throttle_time_ms > 0, answer.session_id, answer.error_code) == (True, 0, 0)
    assert len(world.broker.fetch_sessions) == 0


def test_a_session_tells_after_a_throttled_fetch_what_was_withheld(world: World, client: Client) -> None:
    world.create("u", partitions=2)
    for index in (0, 1):
        client.ask(produce(b"v", topic="u", index=index), PRODUCE)
    limit(world, consumer_byte_rate=RATE)
    session = client.ask(fetch(1, topic="u", indices=(0, 1), session=(0, 0)), FETCH).session_id
    assert session
    other = world.client()
    for index, size in ((0, 20 * RATE), (1, 1)):
        other.ask(produce(b"v" * size, topic="u", index=index), PRODUCE)
    answer = client.ask(fetch(topic="u", indices=(), session=(session, 1)), FETCH)
    assert (answer.throttle_time_ms > 0, answer.session_id, answer.responses) == (True, session, [])
    world.advance(answer.throttle_time_ms)
    limit(world, consumer_byte_rate=None)
    answer = client.ask(fetch(topic="u", indices=(), session=(session, 2)), FETCH)
    assert sorted(part.partition_index for part in answer.responses[0].partitions) == [0, 1]


def test_a_followers_bytes_do_not_count(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 20 * RATE), PRODUCE)
    limit(world, consumer_byte_rate=1)
    request = fetch()
    request.replica_id = 2
    assert throttled(client, request, FETCH) == 0


def test_what_a_share_groups_member_fetches_counts_and_comes_all_the_same() -> None:
    world = World(share_coordinator_state_topic_num_partitions="1")
    world.create("t")
    initialize(world)
    member = Member(world)
    member.acquire()
    for _ in range(3):
        world.client().ask(produce(b"v" * 9 * RATE), PRODUCE)
    limit(world, {"client-id": "m"}, consumer_byte_rate=RATE)
    first, answer = member.fetch(), member.fetch()
    assert (acquired(first), first.throttle_time_ms) == ([(0, 0, 1)], 0)  # no more than all windows bring
    assert (acquired(answer), answer.throttle_time_ms > 7_000) == ([(1, 1, 1)], True)
    assert member.client.channel.full
    world.advance(answer.throttle_time_ms)
    assert not member.client.channel.full


def test_requests_that_came_along_wait_for_the_end_of_it(world: World, client: Client) -> None:
    """They were sent before the client knew, and are begun behind its time: a fetch that waits, and what is behind."""
    limit(world, consumer_byte_rate=RATE)
    client.start(fetch(max_wait_ms=500), FETCH)
    later = client.start(MetadataRequest(topics=None), METADATA)
    other = world.client("other")
    other.send(produce(b"v" * 20 * RATE), PRODUCE)
    assert client.channel.full
    assert later not in client.look()
    world.advance(60_000)
    assert later in client.look()


def test_a_connection_that_goes_while_it_is_muted_leaves_nothing(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 20 * RATE), PRODUCE) > 0
    client.hang_up()
    world.advance(60_000)
    assert not world.core._parked_by


def test_others_are_served_meanwhile(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 20 * RATE), PRODUCE) > 0
    assert throttled(world.client("other"), produce(b"v" * 20 * RATE), PRODUCE) == 0


def test_a_quota_that_changes_counts_at_once_on_connections_that_are_there(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=100 * RATE)
    assert throttled(client, produce(b"v" * 90 * RATE), PRODUCE) == 0
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v"), PRODUCE) > 0


def test_a_connection_whose_client_id_changes_is_of_another_quota(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 9 * RATE), PRODUCE) == 0
    client._client_id = "other"
    assert throttled(client, produce(b"v" * 90 * RATE), PRODUCE) == 0
    client._client_id = "test"
    assert throttled(client, produce(b"v" * 9 * RATE), PRODUCE) > 0


def test_one_client_s_connections_share_its_quota(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 9 * RATE), PRODUCE) == 0
    assert throttled(world.client(), produce(b"v" * 9 * RATE), PRODUCE) > 0


def test_without_a_quota_nothing_is_counted_any_more(world: World, client: Client) -> None:
    plain = dict(world.core.__dict__)
    limit(world, producer_byte_rate=RATE)
    assert world.core.__dict__.keys() > plain.keys()
    limit(world, producer_byte_rate=None)
    assert world.core.__dict__.keys() == plain.keys()
    assert throttled(client, produce(b"v" * 90 * RATE), PRODUCE) == 0


class WorkingClock(SimClock):
    """Time goes on while the broker works: a little with each look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.step_ns = 0
        self._ns = 0

    def now_ns(self) -> int:
        """See Clock."""
        self._ns += self.step_ns
        return self._ns


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> tuple[World, WorkingClock]:
    monkeypatch.setattr("tests.world.SimClock", WorkingClock)
    world = World()
    world.create("t")
    clock = world.clock
    assert isinstance(clock, WorkingClock)
    return world, clock


@pytest.mark.parametrize(
    ("request_", "version"),
    [(VERSIONS, VERSIONS_IN), (produce(b"v"), PRODUCE), (fetch(), FETCH), (MetadataRequest(topics=None), 9)],
)
def test_who_takes_too_much_of_the_brokers_time_waits_for_a_window_at_most(
    working: tuple[World, WorkingClock], request_: Message, version: int
) -> None:
    world, clock = working
    limit(world, request_percentage=1)
    client = world.client()
    clock.step_ns = 60_000_000
    waits = []
    for _ in range(3):
        waits.append(throttled(client, request_, version))
        world.advance(waits[-1])
    assert waits == [0, waits[1], 1000]


def test_what_brokers_ask_takes_no_time_of_a_quota(working: tuple[World, WorkingClock]) -> None:
    world, clock = working
    limit(world, request_percentage=1)
    client = world.client()
    clock.step_ns = 10_000_000_000
    assert not client.channel.full
    client.ask(ControlledShutdownRequest(broker_id=7, broker_epoch=-1), 2)
    assert not client.channel.full


def test_metrics_tell_who_was_throttled_and_for_how_long(world: World, client: Client) -> None:
    limit(world, producer_byte_rate=RATE)
    throttle_ms = throttled(client, produce(b"v" * 20 * RATE), PRODUCE)
    told = {family.name: list(family.samples) for family in world.core.figures()}
    (waited,), (count,) = (
        told["kafka_server_produce_throttle_time_ms_total"],
        told["kafka_server_produce_throttles_total"],
    )
    assert (waited.value, count.value, dict(waited.labels)) == (throttle_ms, 1, {"user": "", "client_id": "test"})
    (rate,) = told["kafka_server_produce_byte_rate"]
    assert 2000 < rate.value < 2020


def test_a_quota_that_changes_counts_for_sessions_that_knew_the_one_before(world: World, client: Client) -> None:
    """Also for one that had none, while others had: it is kept in the session."""
    limit(world, {"client-id": "other"}, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v" * 20 * RATE), PRODUCE) == 0
    limit(world, producer_byte_rate=1e12)
    assert throttled(client, produce(b"v" * 20 * RATE), PRODUCE) == 0
    limit(world, producer_byte_rate=RATE)
    assert throttled(client, produce(b"v"), PRODUCE) > 0
    world.advance(60_000)
    limit(world, {"client-id": "test"}, producer_byte_rate=None)
    assert throttled(client, produce(b"v" * 50 * RATE), PRODUCE) == 0


def test_a_fetch_of_a_session_that_knew_no_limit_is_bounded_by_a_new_one(world: World, client: Client) -> None:
    for _ in range(30):
        client.ask(produce(b"v" * RATE), PRODUCE)
    limit(world, consumer_byte_rate=1e12)
    assert len(records(client.ask(fetch(max_bytes=2 * RATE), FETCH))) > 0
    limit(world, consumer_byte_rate=RATE)
    world.advance(11_000)
    answer = client.ask(fetch(), FETCH)  # what is around the records may be too many bytes
    world.advance(answer.throttle_time_ms)
    assert 0 < len(records(answer) or records(client.ask(fetch(), FETCH))) <= 10 * RATE
