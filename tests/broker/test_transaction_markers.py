"""Markers on their way: to other brokers, to partitions that cannot take them yet, and until they are committed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kbroker.broker import transaction_markers
from kbroker.broker.transaction_markers import TransactionMarkers
from kbroker.config.limits import DELETED_IF_UNKNOWN_MS, MARKER_RETRY_MS, MARKERS_AT_ONCE
from kbroker.metadata.cache import TopicImage
from kbroker.metadata.requester import Requester
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.ports import PeerAnswer, PeerFault, PeerFaultKind
from kbroker.timing import Scheduler
from kbroker.timing.scheduler import SLICE_STEPS
from kbroker.txn import Producer
from kbroker.txn.shard import WriteMarkers
from kbroker.txn.state import PREPARE_COMMIT, Transaction
from protocol.errors import ErrorCode
from protocol.messages.control import UpdateMetadataPartitionState
from protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.peers import Nobody
from tests.world import World

HERE, THERE = ("t", 0), ("t", 1)


class Peers(Nobody):
    """Takes requests down and answers none."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, WriteTxnMarkersRequest, object]] = []
        self.addresses: list[Endpoint] = []

    def send(
        self, broker_id: int, address: Any, purpose: str, request: Any, version: int, token: object, timeout_ms: int
    ) -> None:
        self.sent.append((broker_id, request, token))
        self.addresses.append(address)


class Stage:
    """A broker with partition 0 of a topic; partition 1 is led by broker 2, as far as the image says."""

    def __init__(self) -> None:
        self.world = World()
        self.world.create("t", partitions=2)
        broker = self.world.broker
        cache = broker.plane.cache
        cache.brokers[2] = cache.brokers[1]
        cache.topics["__transaction_state"] = TopicImage("__transaction_state")
        self.state: UpdateMetadataPartitionState = cache.topics["t"].partitions[1]
        self.state.leader = 2
        self.peers = Peers()
        listener = next(iter(cache.brokers[1].endpoints)).listener
        self.scheduler = Scheduler()
        self.requester = Requester(1, cache, broker.plane.configs, lambda: self.peers, self.world.clock, listener)
        self.markers = TransactionMarkers(
            1,
            broker.replicas,
            cache,
            broker.group_runtime,
            self.world.clock,
            self.requester,
            self.scheduler,
        )
        self.done: list[str] = []
        self.markers.done = lambda markers, _now_ms: self.done.append(markers.transaction.name)

    def send(self, *partitions: tuple[str, int], name: str = "pay", producer_id: int = 7, epoch: int = 0) -> None:
        transaction = Transaction(name, producer_id, epoch, 1000, PREPARE_COMMIT, frozenset(partitions), 0, 0)
        self.markers.send(WriteMarkers(0, 3, transaction), 0)

    def answer(self, code: ErrorCode) -> None:
        """The answer to the last request: the same for all that was asked."""
        part = WritableTxnMarkerPartitionResult(partition_index=1, error_code=code)
        topic = WritableTxnMarkerTopicResult(name="t", partitions=[part])
        _, request, token = self.peers.sent[-1]
        results = [
            WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[topic]) for marker in request.markers
        ]
        self.hear(PeerAnswer(token, WriteTxnMarkersResponse(markers=results)))

    def asked(self) -> list[list[tuple[int, int]]]:
        """Producer ids and epochs of the markers in each request."""
        return [
            [(marker.producer_id, marker.producer_epoch) for marker in request.markers]
            for _, request, _ in self.peers.sent
        ]

    def hear(self, event: PeerAnswer | PeerFault) -> None:
        self.requester.handlers[type(event)](event, 0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_leader_elsewhere_is_sent_the_marker_of_its_partitions_alone(stage: Stage) -> None:
    stage.send(HERE, THERE)
    ((broker_id, request, _),) = stage.peers.sent
    (marker,) = request.markers
    assert (broker_id, marker.coordinator_epoch, marker.transaction_result) == (2, 3, True)
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]


def test_marker_is_sent_to_the_listener_of_brokers_by_its_security_protocol(stage: Stage) -> None:
    cache = stage.world.plane.cache
    listener = cache.brokers[1].endpoints[0].listener
    cache.brokers[2] = BrokerInfo(2, (Endpoint("CLIENTS", 0, "two", 9092), Endpoint(listener, 1, "two", 9093)))
    stage.send(THERE)
    assert stage.peers.addresses == [Endpoint(listener, 1, "two", 9093)]


def test_transaction_is_done_when_the_other_leader_says_so(stage: Stage) -> None:
    stage.send(HERE, THERE)
    before = list(stage.done)
    stage.answer(ErrorCode.NONE)
    assert (before, stage.done) == ([], ["pay"])


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_marker_that_a_leader_cannot_take_is_sent_again_after_a_while(stage: Stage, code: ErrorCode) -> None:
    stage.send(THERE)
    stage.answer(code)
    assert (len(stage.peers.sent), stage.scheduler.next_ms) == (1, MARKER_RETRY_MS)
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert (len(stage.peers.sent), stage.done) == (2, [])


def test_marker_that_is_refused_again_and_again_is_told_of_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker.transactions")
    stage.send(THERE)
    for code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT):
        stage.answer(code)
        stage.scheduler.ring(MARKER_RETRY_MS)
    told = [each.rsplit(": ", 2)[1] for each in caplog.messages]
    assert told == ["NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT"]


def test_request_without_an_answer_is_sent_again(stage: Stage) -> None:
    stage.send(THERE)
    stage.hear(PeerFault(stage.peers.sent[0][2], PeerFaultKind.RESET, was_sent=True, why="cut"))
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert len(stage.peers.sent) == 2


def test_fenced_coordinator_gives_up(stage: Stage) -> None:
    stage.send(THERE)
    stage.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert (len(stage.peers.sent), stage.done) == (1, [])


def test_partition_without_a_leader_waits_for_one(stage: Stage) -> None:
    stage.state.leader = -1
    stage.send(THERE)
    before = len(stage.peers.sent)
    stage.state.leader = 2
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert (before, len(stage.peers.sent)) == (0, 1)


def test_partition_that_is_gone_for_long_needs_no_marker(stage: Stage) -> None:
    stage.send(("gone", 0))
    stage.scheduler.ring(DELETED_IF_UNKNOWN_MS)
    assert stage.done == ["pay"]


def test_partition_that_the_image_does_not_have_yet_is_waited_for(stage: Stage) -> None:
    stage.send(("gone", 0))
    stage.scheduler.ring(DELETED_IF_UNKNOWN_MS - 1)
    assert stage.done == []


def test_marker_counts_when_the_high_watermark_has_passed_it(stage: Stage) -> None:
    partition = stage.world.partition("t", 0)
    partition.isr = (1, 2)
    stage.send(HERE)
    before = list(stage.done)
    partition.isr = (1,)
    partition.advance_high_watermark()
    stage.markers.moved(partition, 0)
    assert (before, stage.done, stage.markers.uncommitted) == ([], ["pay"], {})


def test_marker_that_a_lost_leadership_leaves_in_doubt_is_sent_to_the_next_leader(stage: Stage) -> None:
    partition = stage.world.partition("t", 0)
    partition.isr = (1, 2)
    stage.send(HERE)
    partition.is_leader = False
    stage.world.broker.plane.cache.topics["t"].partitions[0].leader = 2
    stage.markers.moved(partition, 0)
    assert ([broker_id for broker_id, _, _ in stage.peers.sent], stage.done) == ([2], [])


def test_markers_that_are_wanted_meanwhile_leave_in_one_request(stage: Stage) -> None:
    for number in range(4):
        stage.send(THERE, name=f"pay-{number}", producer_id=number)
    before = stage.asked()
    stage.answer(ErrorCode.NONE)
    assert (before, stage.asked()[1:]) == ([[(0, 0)]], [[(1, 0), (2, 0), (3, 0)]])
    stage.answer(ErrorCode.NONE)
    assert (stage.done, len(stage.peers.sent)) == ([f"pay-{number}" for number in range(4)], 2)


def test_two_transactions_of_a_producer_are_never_in_one_request(stage: Stage) -> None:
    stage.send(THERE)
    stage.send(THERE, name="other", producer_id=1)
    stage.send(THERE, name="other", producer_id=1, epoch=1)
    for _ in range(3):
        stage.answer(ErrorCode.NONE)
    assert stage.asked() == [[(7, 0)], [(1, 0)], [(1, 1)]]


def test_markers_that_wait_behind_a_request_without_an_answer_go_to_whoever_leads_by_then(stage: Stage) -> None:
    stage.send(THERE)
    stage.send(THERE, name="other", producer_id=1)
    stage.hear(PeerFault(stage.peers.sent[0][2], PeerFaultKind.RESET, was_sent=True, why="cut"))
    stage.world.broker.plane.cache.brokers[3] = stage.world.broker.plane.cache.brokers[1]
    stage.state.leader = 3
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert [(to, len(request.markers)) for to, request, _ in stage.peers.sent] == [(2, 1), (3, 2)]


def test_markers_for_a_broker_without_an_address_wait_for_one(stage: Stage) -> None:
    known = stage.world.broker.plane.cache.brokers.pop(2)
    stage.send(THERE)
    before = stage.asked()
    stage.world.broker.plane.cache.brokers[2] = known
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert (before, stage.asked()) == ([], [[(7, 0)]])


def test_markers_that_nobody_wants_any_more_are_not_sent(stage: Stage) -> None:
    cache = stage.world.broker.plane.cache
    cache.brokers[3], cache.topics["t"].partitions[0].leader = cache.brokers[1], 3
    stage.send(HERE, name="first", producer_id=1)  # broker 3 is being asked
    stage.send(HERE, THERE)
    stage.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert stage.asked() == [[(1, 0)], [(7, 0)]]
    stage.hear(PeerFault(stage.peers.sent[0][2], PeerFaultKind.RESET, was_sent=True, why="cut"))
    stage.scheduler.ring(MARKER_RETRY_MS)
    assert stage.asked()[2:] == [[(1, 0)]]


MANY = [("wide", index) for index in range(MARKERS_AT_ONCE * 6)]


@pytest.fixture
def wide(stage: Stage) -> Stage:
    """With a topic of many partitions, all led here."""
    stage.world.create("wide", partitions=len(MANY))
    cache = stage.world.broker.plane.cache
    cache.brokers[2] = cache.brokers[1]
    return stage


def marked(stage: Stage) -> int:
    """How many partitions of the topic have a marker."""
    logs = [stage.world.partition(*where).log for where in MANY]
    return sum(log.log_end_offset for log in logs if log is not None)


def go_through(stage: Stage) -> None:
    """All slices."""
    while stage.scheduler.is_slicing:
        stage.scheduler.run_slice(stage.world.clock.now_ms)


def test_transaction_of_many_partitions_is_marked_in_slices(wide: Stage) -> None:
    wide.send(*MANY)
    steps = [marked(wide)]
    while wide.scheduler.is_slicing:
        assert wide.done == []
        wide.scheduler.run_slice(wide.world.clock.now_ms)
        steps.append(marked(wide))
    assert max(after - before for before, after in pairwise([0, *steps])) <= SLICE_STEPS
    assert (marked(wide), wide.done) == (len(MANY), ["pay"])


def test_transaction_goes_on_in_slices_though_its_markers_count_one_by_one_meanwhile(wide: Stage) -> None:
    first = wide.world.partition(*MANY[0])
    first.isr = (1, 2)
    wide.send(*MANY)
    first.isr = (1,)
    first.advance_high_watermark()
    wide.markers.moved(first, 0)
    go_through(wide)
    assert (marked(wide), wide.done) == (len(MANY), ["pay"])


def test_leadership_that_is_lost_between_two_slices_is_the_next_leaders_marker(wide: Stage) -> None:
    wide.send(*MANY)
    wide.world.broker.plane.cache.topics["wide"].partitions[len(MANY) - 1].leader = 2
    go_through(wide)
    ((broker_id, request, _),) = wide.peers.sent
    asked = request.markers[0].topics[0].partition_indexes
    assert (marked(wide), broker_id, asked) == (len(MANY) - 1, 2, [len(MANY) - 1])


def test_coordinator_that_is_fenced_between_two_slices_marks_no_more(wide: Stage) -> None:
    wide.send(THERE)
    wide.send(*MANY)
    before = marked(wide)
    assert wide.world.partition("wide", 20).log is not None
    wide.markers.append(("wide", 20), Producer(7, 1), 4, 0, commit=False)  # of a newer coordinator
    go_through(wide)
    assert (marked(wide) - before < len(MANY) // 2, wide.done) == (True, [])


def test_markers_that_a_leader_counts_one_by_one_are_not_looked_at_all_over_each_time(
    wide: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = MANY[:MARKERS_AT_ONCE]
    for where in some:
        wide.world.partition(*where).isr = (1, 2)
    wide.send(*some)
    looked: list[object] = []
    write_or_send = wide.markers._write_or_send

    def counted(*which: Any) -> None:
        looked.append(which)
        write_or_send(*which)

    monkeypatch.setattr(wide.markers, "_write_or_send", counted)
    for where in some:
        partition = wide.world.partition(*where)
        partition.isr = (1,)
        partition.advance_high_watermark()
        wide.markers.moved(partition, 0)
    assert (len(looked), wide.done) == (1, ["pay"])


def all_marked(marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=ErrorCode.NONE)
                for index in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


def test_request_to_a_leader_has_no_more_markers_than_it_takes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_markers, "MOST_MARKERS", 3)
    partitions = stage.world.broker.plane.cache.topics["t"].partitions
    for index in range(2, 9):
        partitions[index] = stage.state
    stage.send(*(("t", index) for index in range(1, 6)))
    stage.send(("t", 6), name="other", producer_id=1)
    stage.send(("t", 7), name="third", producer_id=2)
    sizes: list[list[int]] = []
    while len(sizes) < len(stage.peers.sent):
        _, request, token = stage.peers.sent[-1]
        sizes.append([len(marker.topics[0].partition_indexes) for marker in request.markers])
        stage.hear(PeerAnswer(token, WriteTxnMarkersResponse(markers=[all_marked(each) for each in request.markers])))
    assert (sizes, sorted(stage.done)) == ([[3], [2, 1], [1]], ["other", "pay", "third"])
