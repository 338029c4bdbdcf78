"""What every `Peers` does: over sockets and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.config.limits import PEER_SETUP_MS
from kbroker.ports import CONTROL, FETCHER, Endpoint, PeerAnswer, PeerFault, PeerFaultKind, Versions
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.control import (
    AlterPartitionRequest,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from tests.contracts.peer_benches import BENCHES, CLUSTER, Bench, PlayedBroker

TIMEOUT_MS = 30_000


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = BENCHES[request.param]()
    made.peers.join(CLUSTER)
    yield made
    made.close()


def request(broker_epoch: int = 7) -> Message:
    return LeaderAndIsrRequest(
        controller_id=1, controller_epoch=3, broker_epoch=broker_epoch, type=0, topic_states=[], live_leaders=[]
    )


def done(code: ErrorCode = ErrorCode.NONE) -> Message:
    return LeaderAndIsrResponse(error_code=code, topics=[])


def send(
    bench: Bench, broker: PlayedBroker, token: object, *, purpose: str = CONTROL, version: Versions = 7, epoch: int = 7
) -> None:
    bench.peers.send(broker.id, broker.address, purpose, request(epoch), version, token, TIMEOUT_MS)


def heard(bench: Bench, broker: PlayedBroker, count: int = 1) -> Any:
    """The last of so many requests that the broker has got."""
    bench.until(lambda: len(broker.asked) >= count)
    assert len(broker.asked) == count
    return broker.asked[-1]


def ends(bench: Bench, count: int = 1) -> list[tuple[object, object]]:
    """Token, and fault or None, of what has been posted; waits for so many."""
    bench.until(lambda: len(bench.events) >= count)
    told = [(each.token, each.kind if isinstance(each, PeerFault) else None) for each in bench.events]
    bench.events.clear()
    return told


def whether_sent(bench: Bench, count: int = 1) -> list[bool]:
    bench.until(lambda: len(bench.events) >= count)
    return [each.was_sent for each in bench.events if isinstance(each, PeerFault)]


# -- answers


def test_an_answer_comes_to_the_token_of_its_request(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token")
    heard(bench, broker).answer(done(ErrorCode.STALE_CONTROLLER_EPOCH))
    bench.until(lambda: bench.events)
    (answer,) = bench.events
    assert isinstance(answer, PeerAnswer)
    assert (answer.token, answer.response) == ("token", done(ErrorCode.STALE_CONTROLLER_EPOCH))


def test_a_broker_hears_the_request_as_it_was_sent(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token", version=6, epoch=41)
    asked = heard(bench, broker)
    assert (asked.version, asked.request.broker_epoch, asked.client_id) == (6, 41, "broker-1-control")


def test_requests_on_a_line_arrive_one_after_the_other(bench: Bench) -> None:
    broker = bench.broker()
    for token in range(3):
        send(bench, broker, token, epoch=token)
    for count in (1, 2, 3):
        asked = heard(bench, broker, count)
        bench.settle()
        assert [each.request.broker_epoch for each in broker.asked] == list(range(count))
        asked.answer(done())
    assert ends(bench, 3) == [(0, None), (1, None), (2, None)]


def test_a_line_serves_request_after_request_on_one_connection(bench: Bench) -> None:
    broker = bench.broker()
    for count in (1, 2, 3):
        send(bench, broker, count)
        heard(bench, broker, count).answer(done())
        ends(bench)
    assert (broker.accepted, broker.greetings) == (1, 1)


def test_lines_of_two_purposes_do_not_wait_for_each_other(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "slow", purpose=CONTROL)
    heard(bench, broker, 1)
    send(bench, broker, "quick", purpose=FETCHER)
    heard(bench, broker, 2).answer(done())
    assert ends(bench) == [("quick", None)]


def test_lines_to_two_brokers_do_not_wait_for_each_other(bench: Bench) -> None:
    slow, quick = bench.broker(2), bench.broker(3)
    send(bench, slow, "slow")
    send(bench, quick, "quick")
    heard(bench, slow)
    heard(bench, quick).answer(done())
    assert ends(bench) == [("quick", None)]


def test_a_large_answer_comes_whole(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token")
    errors = [LeaderAndIsrPartitionError(partition_index=each, error_code=0) for each in range(100_000)]
    large = LeaderAndIsrResponse(
        error_code=0, topics=[LeaderAndIsrTopicError(topic_id=b"t" * 16, partition_errors=errors)]
    )
    heard(bench, broker).answer(large)
    bench.until(lambda: bench.events)
    (answer,) = bench.events
    assert isinstance(answer, PeerAnswer)
    assert answer.response == large


def test_a_request_for_an_earlier_life_of_the_broker_has_an_answer_that_says_so(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token", epoch=6)
    asked = heard(bench, broker)
    assert asked.request.broker_epoch < 7
    asked.answer(done(ErrorCode.STALE_BROKER_EPOCH))
    assert ends(bench) == [("token", None)]


def test_nothing_is_posted_from_within_send(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    heard(bench, broker).answer(done())
    ends(bench)
    bench.peers.send(
        broker.id, broker.address, CONTROL, AlterPartitionRequest(broker_id=1, topics=[]), 0, 2, TIMEOUT_MS
    )
    assert bench.events == []
    assert ends(bench) == [(2, PeerFaultKind.UNSUPPORTED)]


# -- faults


def test_where_nobody_listens_a_request_is_refused(bench: Bench) -> None:
    broker = bench.broker(listens=False)
    send(bench, broker, "token")
    assert whether_sent(bench) == [False]
    assert ends(bench) == [("token", PeerFaultKind.REFUSED)]


def test_an_address_that_nobody_has_is_refused(bench: Bench) -> None:
    bench.peers.send(2, Endpoint("PLAINTEXT", 0, "host.invalid", 9092), CONTROL, request(), 7, "token", TIMEOUT_MS)
    assert ends(bench) == [("token", PeerFaultKind.REFUSED)]


def test_a_connection_that_ends_fails_all_that_is_on_the_line_in_order(bench: Bench) -> None:
    broker = bench.broker()
    for token in range(3):
        send(bench, broker, token)
    heard(bench, broker).hang_up()
    assert whether_sent(bench, 3) == [True, False, False]
    assert ends(bench) == [(token, PeerFaultKind.RESET) for token in range(3)]


def test_a_broker_that_hangs_up_before_it_has_greeted_was_sent_nothing(bench: Bench) -> None:
    broker = bench.broker()
    broker.is_mute = True
    send(bench, broker, "token")
    bench.until(lambda: broker.open)
    bench.settle()
    broker.hang_up(broker.open[0])
    assert whether_sent(bench) == [False]
    assert ends(bench) == [("token", PeerFaultKind.REFUSED)]


def test_no_answer_in_time_ends_the_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token")
    heard(bench, broker)
    bench.advance(TIMEOUT_MS - 1)
    assert bench.events == []
    bench.advance(1)
    assert whether_sent(bench) == [True]
    assert ends(bench) == [("token", PeerFaultKind.TIMED_OUT)]
    bench.until(lambda: not broker.open)


def test_the_time_of_a_request_begins_when_it_is_the_first_on_its_line(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    send(bench, broker, 2)
    asked = heard(bench, broker)
    bench.advance(TIMEOUT_MS - 1)
    asked.answer(done())
    assert ends(bench) == [(1, None)]
    heard(bench, broker, 2)
    bench.advance(TIMEOUT_MS - 1)
    assert bench.events == []
    bench.advance(1)
    assert ends(bench) == [(2, PeerFaultKind.TIMED_OUT)]


def test_a_late_answer_is_not_taken_for_that_of_the_next_request(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "old")
    old = heard(bench, broker)
    bench.advance(TIMEOUT_MS)
    ends(bench)
    if old.connection in broker.open:
        old.answer(done(ErrorCode.STALE_CONTROLLER_EPOCH))
    send(bench, broker, "new")
    bench.advance(1_000)
    heard(bench, broker, 2).answer(done())
    bench.until(lambda: bench.events)
    (answer,) = bench.events
    assert isinstance(answer, PeerAnswer)
    assert (answer.token, answer.response) == ("new", done())


def test_an_answer_out_of_turn_ends_the_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token")
    asked = heard(bench, broker)
    asked.answer(done(), correlation_id=asked.correlation_id + 1)
    assert whether_sent(bench) == [True]
    assert ends(bench) == [("token", PeerFaultKind.OUT_OF_TURN)]
    bench.until(lambda: not broker.open)


def test_a_second_answer_to_a_request_is_not_taken_for_that_of_the_next(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    send(bench, broker, 2)
    asked = heard(bench, broker)
    asked.answer(done())
    asked.answer(done())
    assert ends(bench, 2) == [(1, None), (2, PeerFaultKind.OUT_OF_TURN)]


def test_an_answer_that_cannot_be_read_ends_the_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "token")
    asked = heard(bench, broker)
    asked.answer_bytes(asked.correlation_id.to_bytes(4, "big"))
    assert ends(bench) == [("token", PeerFaultKind.OUT_OF_TURN)]


def test_an_answer_that_nobody_asked_for_ends_the_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    asked = heard(bench, broker)
    asked.answer(done())
    ends(bench)
    asked.answer(done())
    bench.until(lambda: not broker.open)
    assert bench.events == []


def test_a_broker_of_another_cluster_is_sent_nothing(bench: Bench) -> None:
    broker = bench.broker()
    broker.cluster_id = "YW5vdGhlci1jbHVzdGVyIQ"
    send(bench, broker, "token")
    assert whether_sent(bench) == [False]
    assert ends(bench) == [("token", PeerFaultKind.STRANGER)]
    assert broker.asked == []


def test_another_broker_of_the_cluster_at_the_address_is_sent_nothing(bench: Bench) -> None:
    broker = bench.broker(2)
    broker.brokers = [(3, broker.address)]
    send(bench, broker, "token")
    assert ends(bench) == [("token", PeerFaultKind.STRANGER)]
    assert broker.asked == []


def test_a_broker_that_still_knows_of_another_at_its_address_is_spoken_to(bench: Bench) -> None:
    broker = bench.broker(2)
    broker.brokers = [(3, broker.address), (2, broker.address)]
    send(bench, broker, "token")
    assert heard(bench, broker)


def test_a_broker_that_knows_of_others_elsewhere_only_is_spoken_to(bench: Bench) -> None:
    broker = bench.broker(2)
    broker.brokers = [
        (3, Endpoint("PLAINTEXT", 0, broker.address.host, 1)),
        (4, Endpoint("PLAINTEXT", 0, "elsewhere", broker.address.port)),
    ]
    broker.cluster_id = None
    send(bench, broker, "token")
    assert heard(bench, broker)


def test_a_version_that_the_broker_does_not_serve_fails_alone(bench: Bench) -> None:
    broker = bench.broker()
    broker.served[4] = (0, 6)
    send(bench, broker, 1, version=7)
    send(bench, broker, 2, version=6)
    heard(bench, broker).answer(done())
    assert whether_sent(bench, 2) == [False]
    assert ends(bench) == [(1, PeerFaultKind.UNSUPPORTED), (2, None)]


def test_what_a_broker_serves_counts_for_one_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1, version=7)
    asked = heard(bench, broker)
    asked.answer(done())
    ends(bench)
    broker.served[4] = (0, 6)  # an older one has taken its place
    asked.hang_up()
    bench.settle()
    send(bench, broker, 2, version=7)
    assert ends(bench) == [(2, PeerFaultKind.UNSUPPORTED)]


def test_an_api_that_the_broker_does_not_serve_fails_alone(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    heard(bench, broker).answer(done())
    ends(bench)
    old = bench.broker(3)
    del old.served[4]
    send(bench, old, 2, version=0)
    assert ends(bench) == [(2, PeerFaultKind.UNSUPPORTED)]


@pytest.mark.parametrize("served", [(0, 4), (4, 4), (12, 12), (12, 13)])
def test_a_broker_is_greeted_in_a_version_that_it_serves(bench: Bench, served: tuple[int, int]) -> None:
    broker = bench.broker()
    broker.served[3] = served
    send(bench, broker, "token")
    heard(bench, broker).answer(done())
    assert ends(bench) == [("token", None)]


@pytest.mark.parametrize(("broker_id", "knows"), [(2, []), (2, [2]), (2, [3, 2]), (-2, [3])])
def test_a_controller_is_greeted_by_describing_the_controllers(bench: Bench, broker_id: int, knows: list[int]) -> None:
    """Of one whose number is not known yet, any may be at the address."""
    controller = bench.broker(broker_id)
    controller.be_controller()
    controller.brokers = [(each, controller.address) for each in knows]
    send(bench, controller, "token")
    heard(bench, controller).answer(done())
    assert (ends(bench), controller.greetings) == ([("token", None)], 1)


def test_a_controller_of_another_cluster_or_another_one_is_sent_nothing(bench: Bench) -> None:
    for cluster_id, knows in (("YW5vdGhlci1jbHVzdGVyIQ", 2), (CLUSTER, 3)):
        controller = bench.broker(2)
        controller.be_controller()
        controller.cluster_id, controller.brokers = cluster_id, [(knows, controller.address)]
        send(bench, controller, "token")
        assert ends(bench) == [("token", PeerFaultKind.STRANGER)]
        assert controller.asked == []


@pytest.mark.parametrize(("served", "asked"), [((0, 7), 6), ((0, 5), 5), ((4, 4), 4)])
def test_of_several_versions_the_newest_is_asked_that_is_served(
    bench: Bench, served: tuple[int, int], asked: int
) -> None:
    broker = bench.broker()
    broker.served[4] = served
    send(bench, broker, "token", version=(4, 6))
    got = heard(bench, broker)
    got.answer(done())
    assert (got.version, ends(bench)) == (asked, [("token", None)])


@pytest.mark.parametrize("served", [(0, 3), (7, 7)])
def test_where_none_of_several_versions_is_served_the_request_fails(bench: Bench, served: tuple[int, int]) -> None:
    broker = bench.broker()
    broker.served[4] = served
    send(bench, broker, "token", version=(4, 6))
    assert ends(bench) == [("token", PeerFaultKind.UNSUPPORTED)]


@pytest.mark.parametrize("served", [None, (0, 3), (13, 13)])
def test_a_broker_that_cannot_greet_is_sent_nothing(bench: Bench, served: tuple[int, int] | None) -> None:
    broker = bench.broker()
    broker.served.pop(3)
    if served:
        broker.served[3] = served
    send(bench, broker, "token")
    assert ends(bench) == [("token", PeerFaultKind.UNSUPPORTED)]


def test_a_broker_that_does_not_know_our_handshake_is_sent_nothing(bench: Bench) -> None:
    broker = bench.broker()
    broker.refuses_handshake = True
    send(bench, broker, "token")
    assert ends(bench) == [("token", PeerFaultKind.UNSUPPORTED)]


def test_a_broker_that_says_nothing_is_given_up_before_the_request_is_late(bench: Bench) -> None:
    broker = bench.broker()
    broker.is_mute = True
    send(bench, broker, "token")
    bench.until(lambda: broker.open)
    bench.advance(PEER_SETUP_MS - 1)
    assert bench.events == []
    bench.advance(1)
    assert ends(bench) == [("token", PeerFaultKind.REFUSED)]


# -- connecting again


def test_after_a_failure_a_line_waits_longer_each_time_up_to_a_second(bench: Bench) -> None:
    broker = bench.broker(listens=False)
    send(bench, broker, 0)
    ends(bench)
    for wait_ms in (50, 100, 200, 400, 800, 1_000, 1_000):
        send(bench, broker, wait_ms)
        bench.advance(wait_ms - 1)
        bench.settle()
        assert bench.events == [], wait_ms
        bench.advance(1)
        assert ends(bench) == [(wait_ms, PeerFaultKind.REFUSED)]


def test_an_answer_ends_the_waiting(bench: Bench) -> None:
    broker = bench.broker()
    for count in (1, 2, 3):
        send(bench, broker, count)
        bench.advance(1_000)
        heard(bench, broker, count).hang_up()
        ends(bench)
    send(bench, broker, 4)
    bench.advance(1_000)
    heard(bench, broker, 4).answer(done())
    ends(bench)
    send(bench, broker, 5)
    heard(bench, broker, 5).hang_up()
    ends(bench)
    send(bench, broker, 6)
    bench.advance(50)
    assert heard(bench, broker, 6)


def test_a_connection_alone_does_not_end_the_waiting(bench: Bench) -> None:
    broker = bench.broker()
    for count, wait_ms in ((1, 0), (2, 50), (3, 100)):
        send(bench, broker, count)
        bench.advance(wait_ms)
        heard(bench, broker, count).hang_up()
        ends(bench)
    send(bench, broker, 4)
    bench.advance(199)
    assert len(broker.asked) == 3


def test_what_is_sent_after_a_failure_goes_on_a_new_connection(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    heard(bench, broker).hang_up()
    ends(bench)
    send(bench, broker, 2)
    bench.advance(50)
    heard(bench, broker, 2).answer(done())
    assert ends(bench) == [(2, None)]
    assert broker.accepted == 2


def test_an_idle_line_whose_connection_ends_connects_again_at_once(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    asked = heard(bench, broker)
    asked.answer(done())
    ends(bench)
    asked.hang_up()
    bench.settle()
    assert bench.events == []
    send(bench, broker, 2)
    heard(bench, broker, 2).answer(done())
    assert ends(bench) == [(2, None)]


def test_a_request_may_be_late_while_its_line_waits_to_connect(bench: Bench) -> None:
    broker = bench.broker(listens=False)
    send(bench, broker, 1)
    ends(bench)
    bench.peers.send(broker.id, broker.address, CONTROL, request(), 7, 2, 20)
    bench.advance(20)
    assert whether_sent(bench) == [False]
    assert ends(bench) == [(2, PeerFaultKind.TIMED_OUT)]


def test_a_broker_that_has_moved_is_spoken_to_where_it_is_now(bench: Bench) -> None:
    before, after = bench.broker(2), bench.broker(2)
    send(bench, before, 1)
    heard(bench, before)
    send(bench, after, 2)
    heard(bench, after).answer(done())
    assert ends(bench, 2) == [(1, PeerFaultKind.RESET), (2, None)]
    bench.until(lambda: not before.open)


# -- ends


def test_a_line_that_is_dropped_says_nothing_more(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    send(bench, broker, 2)
    asked = heard(bench, broker)
    bench.peers.drop(broker.id, CONTROL)
    if asked.connection in broker.open:
        asked.answer(done())
    bench.until(lambda: not broker.open)
    bench.advance(TIMEOUT_MS)
    assert bench.events == []


def test_a_line_that_was_dropped_begins_anew(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, 1)
    heard(bench, broker)
    bench.peers.drop(broker.id, CONTROL)
    send(bench, broker, 2)
    heard(bench, broker, 2).answer(done())
    assert ends(bench) == [(2, None)]


def test_what_failed_on_a_line_is_not_posted_once_it_is_dropped(bench: Bench) -> None:
    before, after = bench.broker(2), bench.broker(2)
    send(bench, before, 1)
    heard(bench, before)
    send(bench, after, 2)
    bench.peers.drop(2, CONTROL)
    bench.settle()
    assert [each.token for each in bench.events] == [1]


def test_what_fails_at_once_is_not_posted_if_its_line_is_dropped_in_the_same_step(bench: Bench) -> None:
    broker = bench.broker()
    broker.served[4] = (0, 6)
    send(bench, broker, 1, version=6)
    heard(bench, broker).answer(done())
    ends(bench)
    send(bench, broker, 2, version=7)
    bench.peers.drop(broker.id, CONTROL)
    bench.advance(TIMEOUT_MS)
    assert bench.events == []


def test_dropping_one_line_leaves_the_others(bench: Bench) -> None:
    broker = bench.broker()
    send(bench, broker, "control", purpose=CONTROL)
    send(bench, broker, "fetch", purpose=FETCHER)
    bench.until(lambda: len(broker.asked) == 2)
    bench.peers.drop(broker.id, CONTROL)
    bench.peers.drop(broker.id, CONTROL)
    for asked in broker.asked:
        if asked.connection in broker.open and asked.client_id == "broker-1-fetcher":
            asked.answer(done())
    assert ends(bench) == [("fetch", None)]


def test_when_all_is_closed_nothing_is_posted(bench: Bench) -> None:
    broker, deaf = bench.broker(2), bench.broker(3, listens=False)
    send(bench, broker, 1)
    heard(bench, broker)
    send(bench, deaf, 2)
    bench.peers.close()
    bench.until(lambda: not broker.open)
    bench.advance(TIMEOUT_MS)
    assert bench.events == []
