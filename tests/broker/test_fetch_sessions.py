"""Fetch sessions (KIP-227): what an incremental answer leaves out, and who gets a session."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.fetch_sessions import LARGEST_EPOCH, FetchSession, FetchSessions
from protocol.errors import ErrorCode
from protocol.flat import flattened
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.requests import fetch, fetched, produce
from tests.world import Client, World

MINUTES_MS = 60_000


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", partitions=3)
    return world


def begin(client: Client, **asked: object) -> int:
    """Start a session over partitions 0 to 2. Returns: its id."""
    answer = client.ask(fetch(indices=(0, 1, 2), session=(0, 0), **asked), 12)  # type: ignore[arg-type]
    assert answer.session_id > 0
    assert list(fetched(answer)) == [0, 1, 2]
    session: int = answer.session_id
    return session


def go_on(client: Client, session: int, epoch: int, **asked: object) -> dict[int, object]:
    """The partitions that an incremental answer names."""
    answer = client.ask(fetch(session=(session, epoch), **({"indices": ()} | asked)), 12)  # type: ignore[arg-type]
    assert (answer.error_code, answer.session_id) == (0, session)
    return fetched(answer)


def test_a_fetch_of_epoch_minus_1_gets_no_session(client: Client) -> None:
    assert client.ask(fetch(session=(0, -1)), 12).session_id == 0


def test_a_fetch_of_nothing_takes_no_slot(world: World, client: Client) -> None:
    assert client.ask(fetch(indices=(), session=(0, 0)), 12).session_id == 0
    assert len(world.broker.fetch_sessions) == 0


def test_quiet_partitions_are_left_out(client: Client) -> None:
    session = begin(client)
    assert go_on(client, session, 1) == {}


def test_a_partition_with_records_is_named(client: Client) -> None:
    session = begin(client)
    client.ask(produce(b"v", index=1), 9)
    assert list(go_on(client, session, 1)) == [1]


def test_records_come_again_until_the_client_moves_on(client: Client) -> None:
    session = begin(client)
    client.ask(produce(b"v", index=1), 9)
    go_on(client, session, 1)
    assert list(go_on(client, session, 2)) == [1]
    assert go_on(client, session, 3, indices=(1,), offset=1) == {}


def test_a_new_high_watermark_is_news_without_records(world: World, client: Client) -> None:
    session = begin(client, max_bytes=1)
    world.partition("t", 2).log.high_watermark = 0  # type: ignore[union-attr]
    client.ask(produce(b"v", index=0), 9)
    client.ask(produce(b"v", index=2), 9)
    parts = fetched(client.ask(fetch(session=(session, 1), indices=(), max_bytes=1), 12))
    assert {index: part.high_watermark for index, part in parts.items()} == {0: 1, 2: 1}


def test_an_error_is_news_every_time_and_so_is_its_end(world: World, client: Client) -> None:
    session = begin(client)
    partition = world.partition("t", 1)
    log, partition.log = partition.log, None  # its log directory is offline
    assert list(go_on(client, session, 1)) == [1]
    assert list(go_on(client, session, 2)) == [1]
    partition.log = log
    assert list(go_on(client, session, 3)) == [1]
    assert go_on(client, session, 4) == {}


def test_partitions_are_added_and_forgotten(client: Client) -> None:
    session = client.ask(fetch(indices=(0,), session=(0, 0)), 12).session_id
    assert list(go_on(client, session, 1, indices=(2,))) == [2]
    for index in range(3):
        client.ask(produce(b"v", index=index), 9)
    assert list(go_on(client, session, 2, forget=(0,))) == [2]


def test_a_partition_with_records_goes_to_the_end_of_the_line(client: Client) -> None:
    for index in range(3):
        client.ask(produce(b"v" * 1000, index=index), 9)
    session = client.ask(fetch(indices=(0, 1, 2), session=(0, 0), max_bytes=1000), 12).session_id
    parts = [go_on(client, session, epoch, max_bytes=1000) for epoch in (1, 2)]
    assert [[index for index, part in each.items() if part.records] for each in parts] == [[1], [2]]  # type: ignore


def test_a_session_that_is_not_known_is_told_so(client: Client) -> None:
    assert client.ask(fetch(session=(12345, 1)), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 7])
def test_an_epoch_out_of_turn_is_refused(client: Client, epoch: int) -> None:
    session = begin(client)
    answer = client.ask(fetch(session=(session, epoch), indices=()), 12)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_of_names_does_not_go_on_with_ids(world: World, client: Client) -> None:
    session = begin(client)
    answer = client.ask(fetch(session=(session, 1), indices=(), topic_id=world.topic_id("t")), 13)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_closed_session_is_gone(client: Client) -> None:
    session = begin(client)
    assert client.ask(fetch(session=(session, -1), indices=()), 12).session_id == 0
    assert client.ask(fetch(session=(session, 1)), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_is_closed(world: World, client: Client) -> None:
    session = begin(client)
    answer = client.ask(fetch(session=(session, 1), indices=(), forget=(0, 1, 2)), 12)
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
    assert len(world.broker.fetch_sessions) == 0


def test_an_error_of_the_session_says_nothing_of_partitions(client: Client) -> None:
    assert client.ask(fetch(session=(12345, 1)), 12).responses == []


def test_a_new_session_takes_the_place_of_the_clients_old_one(client: Client, world: World) -> None:
    session = begin(client)
    answer = client.ask(fetch(session=(session, 0)), 12)
    assert answer.session_id not in (0, session)
    assert len(world.broker.fetch_sessions) == 1


def test_a_parked_session_fetch_names_only_what_has_news(world: World, client: Client) -> None:
    session = begin(client)
    number = client.send(fetch(session=(session, 1), indices=(), max_wait_ms=1000), 12)
    world.client().ask(produce(b"v", index=2), 9)
    assert list(fetched(client.look()[number])) == [2]


def test_a_parked_session_fetch_is_empty_at_its_deadline(world: World, client: Client) -> None:
    session = begin(client)
    number = client.send(fetch(session=(session, 1), indices=(), max_wait_ms=1000), 12)
    world.advance(1101)
    assert client.look()[number].responses == []


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a few partitions are done as those of thousands."""
    monkeypatch.setattr("kbroker.core.LARGE_REQUEST_BYTES", 1)
    for module in ("api.fetch", "api.fetch_reader", "broker.fetch_sessions"):
        monkeypatch.setattr(f"kbroker.{module}.MANY_PARTITIONS", 1)


def told(client: Client, number: int) -> Any:
    """The answer under a number: the session's id; of each topic its name, and of its partitions index and code."""
    client._world.advance(0)
    answer = client.look()[number]
    return answer.session_id, [
        (topic.topic, [(part.partition_index, part.error_code) for part in topic.partitions])
        for topic in answer.responses
    ]


@pytest.mark.usefixtures("in_slices")
def test_a_session_of_many_partitions_goes_on_as_others_do(world: World) -> None:
    client = world.client()
    first = [FetchTopic(topic="t", partitions=wanted(0, 1)), FetchTopic(topic="made-up", partitions=wanted(0, 1))]
    session, named = told(client, client.send(fetch_of(first), 12))
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert named == [("t", [(0, 0), (1, 0)]), ("made-up", [(0, unknown), (1, unknown)])]
    more = [FetchTopic(topic="t", partitions=wanted(1, 2))]
    assert told(client, client.send(fetch_of(more, session, 1), 12)) == (
        session,
        [("made-up", [(0, unknown), (1, unknown)]), ("t", [(2, 0)])],
    )


@pytest.mark.usefixtures("in_slices")
def test_of_a_partition_that_many_name_twice_the_last_word_counts(world: World) -> None:
    client = world.client()
    topics = [FetchTopic(topic="t", partitions=wanted(0, 0, 1))]
    assert told(client, client.send(fetch_of(topics), 12))[1] == [("t", [(0, 0), (1, 0)])]


@pytest.mark.usefixtures("in_slices")
def test_what_a_second_fetch_names_again_stays_in_the_session_when_the_first_is_answered(world: World) -> None:
    """A client may send one before it has the answer to the one before."""
    client = world.client()
    session, _ = told(client, client.send(fetch_of([FetchTopic(topic="t", partitions=wanted(0, 1))]), 12))
    parked = fetch_of([], session, 1)
    parked.max_wait_ms = 1000
    for request in (parked, fetch_of([FetchTopic(topic="t", partitions=wanted(0, 1))], session, 2)):
        client.send(request, 12)
        world.advance(0)
    world.client().ask(produce(b"a"), 9)
    last = told(client, client.send(fetch_of([], session, 3), 12))
    told(client, client.send(fetch_of([], session, -1), 12))
    assert (last, world.broker.fetch_sessions.partitions) == ((session, [("t", [(0, 0)])]), 0)


def wanted(*indices: int) -> list[FetchPartition]:
    return [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in indices]


def fetch_of(topics: list[FetchTopic], session: int = 0, epoch: int = 0) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=1, session_id=session, session_epoch=epoch, topics=topics)


def test_with_all_slots_taken_a_newcomer_goes_on_without_a_session() -> None:
    world = World(max_incremental_fetch_session_cache_slots="1")
    world.create("t", partitions=3)
    begin(world.client())
    answer = world.client().ask(fetch(session=(0, 0)), 12)
    assert (answer.error_code, answer.session_id, list(fetched(answer))) == (0, 0, [0])


def test_a_session_that_is_quiet_for_two_minutes_gives_its_slot_up() -> None:
    world = World(max_incremental_fetch_session_cache_slots="1")
    world.create("t", partitions=3)
    quiet = world.client()
    session = begin(quiet)
    world.advance(2 * MINUTES_MS)
    assert begin(world.client()) != session
    assert quiet.ask(fetch(session=(session, 1)), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_session_that_was_not_used_for_longest_goes_first() -> None:
    world = World(max_incremental_fetch_session_cache_slots="2")
    world.create("t", partitions=3)
    busy, quiet = world.client(), world.client()
    sessions = [begin(busy), begin(quiet)]
    world.advance(MINUTES_MS)
    go_on(busy, sessions[0], 1)
    world.advance(MINUTES_MS)
    begin(world.client())
    assert go_on(busy, sessions[0], 2) == {}


class Drawn:
    """Chance that always falls on one end. at: of the range, 0 or -1."""

    def __init__(self, at: int) -> None:
        self._at = at

    def below(self, bound: int) -> int:
        return range(bound)[self._at]


def session_of(sessions: FetchSessions, session: tuple[int, int]) -> FetchSession:
    """The session in which a fetch of partition 0 is answered."""
    found, _ = sessions.open_session(flattened(fetch(session=session)), 12, 0, lambda _: None)
    assert found is not None
    return found


@pytest.mark.parametrize(("at", "session_id"), [(0, 1), (-1, 2**31 - 1)])
def test_a_session_id_is_a_positive_int32(at: int, session_id: int) -> None:
    assert session_of(FetchSessions(1, Drawn(at)), (0, 0)).id == session_id  # type: ignore[arg-type]


def test_the_epoch_after_the_largest_is_1() -> None:
    sessions = FetchSessions(1, Drawn(0))  # type: ignore[arg-type]
    session_of(sessions, (0, 0)).epoch = LARGEST_EPOCH
    assert session_of(sessions, (1, LARGEST_EPOCH)) is session_of(sessions, (1, 1))
