"""Scripted faults on the real broker, as a client on a socket meets them; and the history of what was asked."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.faults import ScriptedCore, Seen
from kbroker.testing import Broker, UsageError, broker
from protocol.apis import BY_NAME
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.groups import FindCoordinatorRequest, HeartbeatRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import RecordError
from protocol.records.content import parse_set
from tests.processes import Client, within
from tests.requests import batch, fetch, fetched, produce, produced

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker(log_retention_hours=-1) as b:  # the records here are of 1970
        yield b


@pytest.fixture
def b(running: Broker) -> Iterator[Broker]:
    running.create_topic("orders", partitions=2)
    running.create_topic("bills")
    yield running
    running.reset()


@pytest.fixture
def client(b: Broker) -> Iterator[Client]:
    made = Client(b.port)
    made.wait(5)
    yield made
    made.close()


def values(b: Broker, topic: str = "orders") -> list[bytes | None]:
    return [each.value for each in b.records(topic)]


def is_silent(client: Client, seconds: float = 0.05) -> bool:
    client.socket.settimeout(seconds)
    try:
        client.socket.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        client.socket.settimeout(5)
    return False


def to(topic: str, value: bytes = b"x", index: int = 0) -> ProduceRequest:
    return produce(value, topic=topic, index=index)


def to_both(value: bytes = b"x") -> ProduceRequest:
    """To orders-0, orders-1 and bills-0."""
    parts = [PartitionProduceData(index=index, records=batch(value)) for index in (0, 1)]
    bill = [PartitionProduceData(index=0, records=batch(value))]
    data = [
        TopicProduceData(name="orders", partition_data=parts),
        TopicProduceData(name="bills", partition_data=bill),
    ]
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=data)


def codes(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, part.index): part.error_code for topic in answer.responses for part in topic.partition_responses
    }


# -- fail


def test_a_request_that_fails_has_no_effect(b: Broker, client: Client) -> None:
    b.faults.on("Produce").fail("NOT_LEADER_OR_FOLLOWER")
    assert (produced(client.ask(to("orders"), 8)).error_code, values(b)) == (NOT_LEADER, [])


def test_a_request_that_fails_after_its_effect_has_it(b: Broker, client: Client) -> None:
    b.faults.on("Produce").fail(ErrorCode.REQUEST_TIMED_OUT, after=True)
    assert produced(client.ask(to("orders"), 8)).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert values(b) == [b"x"]


def test_so_many_times_and_no_more(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders").fail(NOT_LEADER).times(2)
    assert [produced(client.ask(to("orders"), 8)).error_code for _ in range(4)] == [NOT_LEADER, NOT_LEADER, 0, 0]


def test_only_the_nth_request(b: Broker, client: Client) -> None:
    b.faults.on("Produce").fail(NOT_LEADER).nth(3)
    assert [produced(client.ask(to("orders"), 8)).error_code for _ in range(4)] == [0, 0, NOT_LEADER, 0]


def test_of_a_topic_alone_the_others_are_served(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders").fail(NOT_LEADER)
    answer = codes(client.ask(to_both(), 8))
    assert answer == {("orders", 0): NOT_LEADER, ("orders", 1): NOT_LEADER, ("bills", 0): 0}
    assert (values(b), values(b, "bills")) == ([], [b"x"])


def test_of_a_partition_alone_the_others_are_served(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders", partition=1).fail(NOT_LEADER)
    answer = codes(client.ask(to_both(), 8))
    assert answer == {("orders", 0): 0, ("orders", 1): NOT_LEADER, ("bills", 0): 0}
    assert [each.partition for each in b.records("orders")] == [0]


def test_of_a_partition_alone_after_the_effect(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders", partition=1).fail(NOT_LEADER, after=True)
    answer = codes(client.ask(to_both(), 8))
    assert answer == {("orders", 0): 0, ("orders", 1): NOT_LEADER, ("bills", 0): 0}
    assert [each.partition for each in b.records("orders")] == [0, 1]


def test_a_request_about_something_else_is_not_met(b: Broker, client: Client) -> None:
    fault = b.faults.on("Produce", topic="orders", partition=1).fail(NOT_LEADER)
    assert produced(client.ask(to("orders"), 8)).error_code == 0
    assert fault.hits == 0


def test_a_fetch_is_refused_at_once_however_long_it_would_wait(b: Broker, client: Client) -> None:
    b.faults.on("Fetch", topic="orders").fail("OFFSET_OUT_OF_RANGE")
    answer = client.ask(fetch(topic="orders", max_wait_ms=60_000), 11)
    assert fetched(answer)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_of_a_session_is_met_by_what_the_session_remembers(b: Broker, client: Client) -> None:
    first = client.ask(fetch(topic="orders", indices=(0, 1), session=(0, 0)), 11)
    b.faults.on("Fetch", topic="orders", partition=1).fail(NOT_LEADER).once()
    wait = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=first.session_id, session_epoch=1, topics=[])
    met = {index: part.error_code for index, part in fetched(client.ask(wait, 11)).items()}
    wait.session_epoch = 2
    assert (met, fetched(client.ask(wait, 11))) == ({1: NOT_LEADER}, {})


def test_a_fetch_by_topic_id_is_met_by_its_name(b: Broker, client: Client) -> None:
    listed = client.ask(MetadataRequest(topics=None), 12)
    topic_id = next(each.topic_id for each in listed.topics if each.name == "orders")
    b.faults.on("Fetch", topic="orders").fail(NOT_LEADER)
    assert fetched(client.ask(fetch(topic_id=topic_id, topic=""), 13))[0].error_code == NOT_LEADER


def test_a_group_is_met_by_its_name(b: Broker, client: Client) -> None:
    b.faults.on("FindCoordinator", group="billing").fail("COORDINATOR_NOT_AVAILABLE")
    assert client.ask(FindCoordinatorRequest(key="billing"), 2).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_heartbeat_of_another_group_is_not_met(b: Broker, client: Client) -> None:
    fault = b.faults.on("Heartbeat", group="billing").fail("REBALANCE_IN_PROGRESS")
    client.ask(HeartbeatRequest(group_id="other", generation_id=1, member_id="m"), 3)
    before = fault.hits
    client.ask(HeartbeatRequest(group_id="billing", generation_id=1, member_id="m"), 3)
    assert (before, fault.hits) == (0, 1)


def test_a_client_is_met_by_its_name(b: Broker) -> None:
    b.faults.on("Metadata", client_id="bad").disconnect()
    good, bad = Client(b.port, "good"), Client(b.port, "bad")
    assert good.ask(MetadataRequest(topics=[]), 8)
    with pytest.raises(ConnectionError):
        bad.ask(MetadataRequest(topics=[]), 8)


# -- time


def test_a_delayed_request_takes_effect_only_then(b: Broker, client: Client) -> None:
    b.faults.on("Produce").delay(seconds=60)
    client.send(to("orders"), 8)
    before = is_silent(client), values(b)
    b.advance(seconds=61)
    assert (before, bool(client.receive()), values(b)) == ((True, []), True, [b"x"])


def test_a_delayed_answer_comes_after_the_effect(b: Broker, client: Client) -> None:
    b.faults.on("Produce").delay(ms=60_000, after=True)
    client.send(to("orders"), 8)
    before = is_silent(client), values(b)
    b.advance(seconds=61)
    assert (before, bool(client.receive())) == ((True, [b"x"]), True)


@pytest.mark.parametrize("after", [False, True])
def test_what_is_behind_a_delayed_request_keeps_its_turn(b: Broker, client: Client, after: bool) -> None:
    b.faults.on("Produce").delay(seconds=60, after=after).once()
    for value in (b"1", b"2", b"3"):
        client.send(to("orders", value), 8)
    assert is_silent(client)
    b.advance(seconds=61)
    assert all(client.receive().responses for _ in range(3))
    assert values(b) == [b"1", b"2", b"3"]


def test_a_delay_ends_by_itself(b: Broker, client: Client) -> None:
    b.faults.on("Metadata").delay(ms=30)
    begun = time.monotonic()
    client.ask(MetadataRequest(topics=[]), 8)
    assert time.monotonic() - begun >= 0.029


def test_other_connections_go_on_during_a_delay(b: Broker, client: Client) -> None:
    b.faults.on("Produce").delay(seconds=60)
    client.send(to("orders"), 8)
    assert Client(b.port).ask(MetadataRequest(topics=[]), 8)


def test_a_held_fetch_is_answered_when_it_is_released(b: Broker, client: Client) -> None:
    b.produce("orders", b"x")
    hold = b.faults.on("Fetch", topic="orders").hold()
    client.send(fetch(topic="orders"), 11)
    silent = is_silent(client)
    hold.release()
    assert (silent, bool(client.receive())) == (True, True)
    assert fetched(client.ask(fetch(topic="orders"), 11))[0].error_code == 0


def test_a_held_answer_has_had_its_effect(b: Broker, client: Client) -> None:
    hold = b.faults.on("Produce").hold(after=True)
    client.send(to("orders"), 8)
    silent = is_silent(client), values(b)
    hold.release()
    assert (silent, bool(client.receive())) == ((True, [b"x"]), True)


def test_what_is_released_in_the_moment_in_which_it_is_held_goes_on(
    b: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, meet = b.faults.on("Produce").hold(), ScriptedCore._meet

    def released_before(*given: Any) -> None:
        hold.release()
        meet(*given)

    monkeypatch.setattr(ScriptedCore, "_meet", released_before)
    assert produced(client.ask(to("orders"), 8)).error_code == 0


def test_a_hold_that_brokers_share_is_released_at_each() -> None:
    with broker() as first, broker() as second:
        hold = first.faults.on("Metadata").hold()
        second.faults.add(hold)
        clients = [Client(each.port) for each in (first, second)]
        for each in clients:
            each.wait(5)
            each.send(MetadataRequest(topics=[]), 8)
        assert all(map(is_silent, clients))
        hold.release()
        assert all(each.receive() for each in clients)
        for each in clients:
            each.close()


def test_what_is_held_goes_when_faults_are_cleared(b: Broker, client: Client) -> None:
    b.faults.on("Produce").hold()
    client.send(to("orders"), 8)
    assert is_silent(client)
    b.faults.clear()
    assert client.receive()


def test_a_throttled_answer_says_how_long(b: Broker, client: Client) -> None:
    b.faults.on("Produce").throttle(ms=700).once()
    assert [client.ask(to("orders"), 8).throttle_time_ms for _ in range(2)] == [700, 0]


# -- connections and bytes


def test_a_disconnect_before_has_no_effect(b: Broker, client: Client) -> None:
    b.faults.on("Produce").disconnect()
    with pytest.raises(ConnectionError):
        client.ask(to("orders"), 8)
    assert values(b) == []


def test_a_disconnect_after_leaves_the_effect(b: Broker, client: Client) -> None:
    b.faults.on("Produce").disconnect(after=True)
    with pytest.raises(ConnectionError):
        client.ask(to("orders"), 8)
    assert values(b) == [b"x"]


@pytest.mark.parametrize(("after", "effect"), [(False, []), (True, [b"x"])])
def test_a_dropped_request_is_never_answered_nor_what_follows(
    b: Broker, client: Client, after: bool, effect: list[bytes]
) -> None:
    b.faults.on("Produce").drop(after=after).once()
    client.send(to("orders"), 8)
    client.send(MetadataRequest(topics=[]), 8)
    assert (is_silent(client), values(b)) == (True, effect)


def test_an_answer_in_pieces_is_whole_in_the_end(b: Broker, client: Client) -> None:
    b.faults.on("Metadata").in_pieces(size=20)
    client.send(MetadataRequest(topics=None), 8)
    first = len(client.socket.recv(1000, socket.MSG_PEEK))
    whole = len(client.receive().encode(8))
    assert (first % 20, first < whole) == (0, True)
    b.faults.clear()
    assert client.ask(MetadataRequest(topics=None), 8).topics


def test_corrupt_records_are_refused_by_their_checksum(b: Broker, client: Client) -> None:
    b.produce("orders", b"x")
    b.faults.on("Fetch", topic="orders").corrupt().once()
    with pytest.raises(RecordError):
        parse_set(fetched(client.ask(fetch(topic="orders"), 11))[0].records)
    assert parse_set(fetched(client.ask(fetch(topic="orders"), 11))[0].records)


def test_an_answer_without_records_does_not_count_as_corrupted(b: Broker, client: Client) -> None:
    fault = b.faults.on("Fetch", topic="orders").corrupt().once()
    client.ask(fetch(topic="orders"), 11)
    before = fault.hits
    b.produce("orders", b"x")
    client.ask(fetch(topic="orders"), 11)
    assert (before, fault.hits) == (0, 1)


# -- older releases


@pytest.mark.parametrize(("release", "produce_last", "fetch_last"), [("0.10", 2, 2), ("1.0", 5, 6), ("2.8", 9, 12)])
def test_it_acts_like_an_older_release(
    b: Broker, client: Client, release: str, produce_last: int, fetch_last: int
) -> None:
    b.faults.act_like(release)
    ranges = {each.api_key: each.max_version for each in client.ask(ApiVersionsRequest(), 0).api_keys}
    assert (ranges[0], ranges[1]) == (produce_last, fetch_last)


def test_an_older_release_has_no_features(b: Broker, client: Client) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    assert client.ask(request, 3).finalized_features != []
    b.faults.act_like("2.8")
    assert client.ask(request, 3).finalized_features == []


def test_a_version_that_the_older_release_lacks_is_hung_up_on(b: Broker, client: Client) -> None:
    b.faults.act_like("1.0")
    with pytest.raises(ConnectionError):
        client.ask(to("orders"), 8)


def test_an_api_that_the_older_release_lacks_is_not_promised(b: Broker, client: Client) -> None:
    b.faults.act_like("1.0")
    assert BY_NAME["DeleteGroups"].key not in {each.api_key for each in client.ask(ApiVersionsRequest(), 0).api_keys}


def test_a_version_of_api_versions_that_it_lacks_is_answered_as_kafka_does(b: Broker, client: Client) -> None:
    b.faults.act_like("1.0")
    client.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    assert client.receive().error_code == ErrorCode.UNSUPPORTED_VERSION


# -- the history


def test_every_request_is_remembered_with_what_it_said_and_how_it_ended(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders").fail(NOT_LEADER).once()
    client.ask(to("orders"), 8)
    client.ask(to("orders"), 8)
    first, second = b.requests("Produce", topic="orders")
    assert repr(first) == "Produce v8 of 'test' (orders) -> NOT_LEADER_OR_FOLLOWER [fail(NOT_LEADER_OR_FOLLOWER)]"
    assert repr(second) == "Produce v8 of 'test' (orders)"
    assert second.body.topic_data[0].partition_data[0].index == 0


def test_the_tests_own_questions_are_neither_met_nor_remembered(b: Broker) -> None:
    fault = b.faults.on("Produce").fail(NOT_LEADER)
    b.produce("orders", b"x")
    assert (fault.hits, b.requests()) == (0, [])


def test_the_history_is_by_group_too(b: Broker, client: Client) -> None:
    client.ask(FindCoordinatorRequest(key="billing"), 2)
    client.ask(FindCoordinatorRequest(key="other"), 2)
    assert [each.api for each in b.requests(group="billing")] == ["FindCoordinator"]


def test_old_bodies_are_let_go() -> None:
    from kbroker.faults.history import MOST_BYTES, History

    history = History()
    for _ in range(3):
        history.add(Seen("Produce", 8, "c", "body", MOST_BYTES // 2, 0, set(), set()))
    assert [each.body for each in history] == [None, "body", "body"]


# -- the disk


def ask_until_it_ends(b: Broker) -> None:
    for _ in within(10):
        b.call(lambda node: None)


def test_a_full_disk_ends_a_broker_with_one_directory_and_it_comes_back_with_what_was_acknowledged() -> None:
    with broker() as b:
        b.produce("orders", b"x")
        client = Client(b.port)
        b.disk.full()
        client.send(to("orders", b"y"), 8)  # its answer may be cut off by the broker's end
        with pytest.raises(UsageError, match=r"ended by itself \(no log directory is left\)"):
            ask_until_it_ends(b)
        b.disk.heal()
        b.kill()
        b.start()
        assert values(b) == [b"x"]


def test_a_broker_whose_disk_failed_at_the_end_of_a_test_runs_for_the_next() -> None:
    with broker() as b:
        for _ in range(3):  # it is about to end: whoever asks it now finds it, or not
            b.create_topic("orders")
            b.disk.broken()
            with pytest.raises(UsageError):
                b.produce("orders", b"x")
            b.put_back()
            assert b.topics() == {}


def test_a_disk_that_is_full_after_some_bytes_has_what_was_written_before() -> None:
    with broker() as b:
        b.produce("orders", b"x")
        b.disk.full(after_bytes=10_000)
        assert b.produce("orders", b"y" * 1000) == [1]
        Client(b.port).send(to("orders", b"z" * 20_000), 8)
        with pytest.raises(UsageError, match=r"ended by itself \(no log directory is left\)"):
            ask_until_it_ends(b)
        assert repr(b.disk) == "ENOSPC"
        b.disk.heal()
        b.kill()
        b.start()
        assert values(b) == [b"x", b"y" * 1000]


def test_a_slow_disk_makes_an_append_wait() -> None:
    with broker() as b:
        b.produce("orders", b"x")
        b.disk.slow(ms=40)
        begun = time.monotonic()
        b.produce("orders", b"y")
        assert time.monotonic() - begun >= 0.04


# -- one line for each mistake


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda f: f.on("Prodcue"), "there is no API 'Prodcue'; did you mean Produce?"),
        (lambda f: f.on("Produce").fail("NOT_LEADER"), "did you mean NOT_LEADER_OR_FOLLOWER?"),
        (
            lambda f: f.on("Heartbeat", topic="t"),
            'Heartbeat names no topic, so this can never match: write on("Heartbeat") alone',
        ),
        (lambda f: f.on("Produce", group="g"), "Produce names no group"),
        (lambda f: f.on("ShareFetch", topic="t"), "ShareFetch is met as a whole"),
        (lambda f: f.on("Produce", partition=1), 'write on("Produce", topic="...", partition=1)'),
        (lambda f: f.on("Produce", version=99), "so version 99 can never match"),
        (lambda f: f.on("Produce").times(0), "times(0) would never match"),
        (lambda f: f.on("Produce").nth(0), "requests are counted from 1"),
        (lambda f: f.on("Produce").delay(), "write delay(seconds=0.5)"),
        (lambda f: f.on("Produce").corrupt(), 'write on("Fetch")'),
        (lambda f: f.on("Produce").release(), "write .hold() before .release()"),
        (lambda f: f.on("Produce").in_pieces(size=0), "write in_pieces(size=1)"),
        (lambda f: f.on("Produce").fail(NOT_LEADER).delay(ms=1), "does something already"),
        (lambda f: f.act_like("3.9"), "choose 0.10, 1.0, 2.8"),
    ],
)
def test_a_fault_that_cannot_be_is_one_line(b: Broker, write, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError) as error:
        write(b.faults)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_faults_read_as_they_were_written(b: Broker, client: Client) -> None:
    b.faults.on("Produce", topic="orders").fail(NOT_LEADER).times(2)
    b.faults.on("Fetch", topic="orders", partition=1).delay(ms=5, after=True)
    client.ask(to("orders"), 8)
    assert repr(b.faults).splitlines() == [
        "on('Produce', topic='orders').fail(NOT_LEADER_OR_FOLLOWER) met 1",
        "on('Fetch', topic='orders', partition=1).delay(ms=5, after=True) met 0",
    ]


# ---- armed later


@pytest.fixture
def passing(b: Broker) -> Iterator[Broker]:
    """A broker as one with a console has it: what comes is passed on until there is a fault."""

    def set_to(remembers: bool) -> None:
        b.call(lambda node: setattr(node.core, "_remembers", remembers))

    set_to(False)
    yield b
    set_to(True)


def test_requests_are_passed_on_until_a_fault_is_armed(passing: Broker, client: Client) -> None:
    def outcome() -> int:
        code: int = produced(client.ask(produce(b"a", topic="orders"), 9)).error_code
        return code

    assert outcome() == ErrorCode.NONE
    assert passing.requests() == []
    passing.faults.on("Produce", topic="orders").fail(NOT_LEADER).once()
    assert (outcome(), outcome()) == (NOT_LEADER, ErrorCode.NONE)
    assert [each.fault for each in passing.requests("Produce")] == ["fail(NOT_LEADER_OR_FOLLOWER)", ""]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_produce_that_wants_no_answer_keeps_no_place(passing: Broker, client: Client, version: int) -> None:
    client.send(produce(b"a", topic="orders", acks=0), version)
    assert client.ask(MetadataRequest(topics=[]), 5).brokers


def test_a_fetch_session_that_began_before_is_met(passing: Broker, client: Client) -> None:
    first = client.ask(fetch(topic="orders", indices=(0, 1), session=(0, 0)), 11)
    passing.faults.on("Fetch", topic="orders", partition=1).fail(NOT_LEADER).once()
    wait = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=first.session_id, session_epoch=1, topics=[])
    assert {index: part.error_code for index, part in fetched(client.ask(wait, 11)).items()} == {1: NOT_LEADER}
