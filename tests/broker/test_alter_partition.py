"""In-sync sets on their way from a leader to the controller."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.alter_partition import RETRY_MS, AlterPartitionManager
from kbroker.broker.store_plane import StorePlane
from kbroker.controller.events import AlterPartition
from kbroker.ports import IN_SYNC, PeerFault, PeerFaultKind
from kbroker.replica.facts import InSyncProposed
from kbroker.replica.partition import LeaderState, Partition, Proposal
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.messages.control import AlterPartitionResponse, AlterPartitionResult, AlterPartitionTopicResult
from tests.world import World

ME, ONE, TWO = 1, 2, 3
ID = bytes(range(16))


class Leader:
    """A broker that leads p-0 and is controller, too; what it asks itself is in `asked`."""

    def __init__(self) -> None:
        self.world = World()
        self.asked: list[AlterPartition] = []
        self.told: list[Any] = []
        self.sent: list[tuple[int, str, int]] = []
        self.is_known = False  # where another controller is
        self.proposals: Any = None
        controller = SimpleNamespace(is_active=True, put=self.asked.append)
        plane: Any = SimpleNamespace(
            controller=controller, broker_epoch=7, broker_id=ME, cache=SimpleNamespace(controller_id=ONE),
            configs=self.world.plane.configs, _requester=self,
        )  # fmt: skip
        plane.alter_partition = partial(StorePlane.alter_partition, plane)
        self.plane = plane
        clock = self.world.clock
        self.scheduler = Scheduler(clock.now_ms())
        self.changes = AlterPartitionManager(self.world.replicas, plane, clock, self.scheduler, self.told.append)
        state = LeaderState(1, ME, 0, (ME, ONE, TWO), 0, (ME, ONE, TWO))
        self.world.replicas.become("p", 0, ID, state, is_new=True)

    def ask(self, asker: Any, broker_id: int, purpose: str, request: Any, token: Any, *, version: int) -> bool:
        """As the requester does."""
        self.sent.append((broker_id, purpose, version))
        self.proposals = token
        return self.is_known

    @property
    def partition(self) -> Partition:
        return self.world.partition("p")

    def propose(self, *isr: int) -> None:
        self.partition.proposal = Proposal(isr, 0, self.partition.partition_epoch, -1)
        self._handle_changes(InSyncProposed(self.partition))

    def answer(self, event: AlterPartition, *isr: int, partition_epoch: int) -> None:
        result = AlterPartitionResult(
            partition_index=0,
            error_code=0,
            leader_id=ME,
            leader_epoch=0,
            isr=list(isr),
            partition_epoch=partition_epoch,
        )
        self._answer(
            event,
            AlterPartitionResponse(error_code=0, topics=[AlterPartitionTopicResult(topic_id=ID, partitions=[result])]),
        )

    def refuse(self, event: AlterPartition) -> None:
        self._answer(event, AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER, topics=[]))

    def _answer(self, event: AlterPartition, response: AlterPartitionResponse) -> None:
        event.done(response)
        self._handle_changes(self.told.pop())

    def _handle_changes(self, fact: Any) -> None:
        self.changes.handlers[type(fact)](fact, self.world.clock.now_ms())

    def wait(self) -> None:
        self.world.clock.advance(RETRY_MS)
        self.scheduler.ring(self.world.clock.now_ms())


def test_what_is_refused_for_now_is_asked_again() -> None:
    leader = Leader()
    leader.propose(ME, ONE)
    leader.refuse(leader.asked[0])
    leader.wait()
    assert len(leader.asked) == 2


def test_who_is_refused_again_and_again_asks_less_often_and_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = Leader()
    caplog.set_level("INFO")
    caplog.clear()  # of what was said before, where another test has left the level so
    began_ms = leader.world.clock.now_ms()
    leader.propose(ME, ONE)
    asked_ms = [0]
    while asked_ms[-1] < 30_000:
        leader.refuse(leader.asked[-1])
        while len(leader.asked) == len(asked_ms):
            leader.wait()
        asked_ms.append(leader.world.clock.now_ms() - began_ms)
    pauses = [after - before for before, after in pairwise(asked_ms)]
    assert (pauses[:7], max(pauses)) == ([50, 100, 200, 400, 800, 1_000, 1_000], 1_000)
    assert caplog.messages == ["AlterPartition is answered with NOT_CONTROLLER; it is asked again until it is not"]
    leader.answer(leader.asked[-1], ME, ONE, partition_epoch=1)
    leader.propose(ME)
    leader.refuse(leader.asked[-1])
    leader.wait()
    assert len(leader.asked) == len(asked_ms) + 2


def test_a_second_answer_to_one_request_says_nothing() -> None:
    leader = Leader()
    leader.propose(ME, ONE)
    leader.answer(leader.asked[0], ME, ONE, partition_epoch=1)
    leader.propose(ME)
    leader.refuse(leader.asked[0])
    leader.wait()
    assert (len(leader.asked), leader.partition.isr) == (2, (ME, ONE))
    leader.answer(leader.asked[1], ME, partition_epoch=2)
    assert leader.partition.isr == (ME,)


def test_refusals_of_many_partitions_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    leader = Leader()
    state = LeaderState(1, ME, 0, (ME, ONE, TWO), 0, (ME, ONE, TWO))
    leader.world.replicas.become("p", 1, ID, state, is_new=True)
    partitions = [leader.world.partition("p", index) for index in range(2)]
    leader.propose(ME)
    for partition in partitions:
        partition.proposal = Proposal((ME, ONE), 0, 0, -1)
        leader._handle_changes(InSyncProposed(partition))
    leader.refuse(leader.asked[0])  # as a whole: all are asked again together
    leader.wait()
    results = [
        AlterPartitionResult(
            partition_index=index, error_code=ErrorCode.INELIGIBLE_REPLICA, leader_id=0, leader_epoch=0, isr=[],
            partition_epoch=0,
        )
        for index in range(2)
    ]  # fmt: skip
    topics = [AlterPartitionTopicResult(topic_id=ID, partitions=results)]
    caplog.set_level("INFO")
    caplog.clear()
    leader._answer(leader.asked[1], AlterPartitionResponse(error_code=0, topics=topics))
    assert caplog.messages == ["in-sync sets stay as they are: p-0 and 1 more: INELIGIBLE_REPLICA"]


def test_many_proposals_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.broker.alter_partition.PROPOSALS_AT_ONCE", 2)
    leader = Leader()
    state = LeaderState(1, ME, 0, (ME, ONE, TWO), 0, (ME, ONE, TWO))
    for index in range(1, 5):
        leader.world.replicas.become("p", index, ID, state, is_new=True)
    leader.propose(ME)
    for index in range(1, 5):
        partition = leader.world.partition("p", index)
        partition.proposal = Proposal((ME, ONE), 0, 0, -1)
        leader._handle_changes(InSyncProposed(partition))
    leader.answer(leader.asked[0], ME, partition_epoch=1)
    leader.refuse(leader.asked[1])  # these wait again, with the others
    leader.wait()
    topics = [topic for event in leader.asked for topic in event.request.topics]
    assert [[each.partition_index for each in topic.partitions] for topic in topics] == [[0], [1, 2], [3, 4]]


def test_nobody_is_asked_before_this_broker_is_registered() -> None:
    leader = Leader()
    leader.plane.broker_epoch = -1
    leader.propose(ME, ONE)
    before = len(leader.asked)
    leader.plane.broker_epoch = 0  # the first that the store can give
    leader.wait()
    assert (before, len(leader.asked)) == (0, 1)


def test_another_controller_is_asked_as_soon_as_it_is_known_where_it_is() -> None:
    leader = Leader()
    leader.plane.controller.is_active = False
    leader.propose(ME, ONE)
    leader.is_known = True
    leader.wait()
    leader.wait()
    assert leader.sent == [(ONE, IN_SYNC, 3)] * 2


def test_a_request_that_is_lost_is_asked_again() -> None:
    leader = Leader()
    leader.plane.controller.is_active, leader.is_known = False, True
    leader.propose(ME, ONE)
    asked = cast(Any, SimpleNamespace(token=leader.proposals))
    leader.changes.heard(asked, PeerFault(asked, PeerFaultKind.RESET, True, "why"), leader.world.clock.now_ms())
    before = len(leader.sent)
    leader.wait()
    assert (before, len(leader.sent)) == (1, 2)


@pytest.mark.parametrize(
    ("code", "asked", "keeps"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, 1, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, 1, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1, True),  # these may have been granted before: the larger set counts
        (ErrorCode.UNKNOWN_TOPIC_ID, 1, True),
        (ErrorCode.FENCED_LEADER_EPOCH, 1, True),
        (ErrorCode.INVALID_UPDATE_VERSION, 1, True),
        (ErrorCode.INVALID_REQUEST, 1, True),
        (ErrorCode.NEW_LEADER_ELECTED, 1, True),
        (ErrorCode.NOT_CONTROLLER, 2, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 2, True),
    ],
)
def test_what_becomes_of_a_proposal_that_is_refused(code: ErrorCode, asked: int, keeps: bool) -> None:
    leader = Leader()
    leader.propose(ME, ONE)
    result = AlterPartitionResult(
        partition_index=0, error_code=code, leader_id=0, leader_epoch=0, isr=[], partition_epoch=0
    )
    topics = [AlterPartitionTopicResult(topic_id=ID, partitions=[result])]
    leader._answer(leader.asked[0], AlterPartitionResponse(error_code=0, topics=topics))
    leader.wait()
    assert (len(leader.asked), leader.partition.proposal is not None) == (asked, keeps)


def test_a_quorum_is_told_in_which_life_each_replica_has_caught_up_and_a_store_is_not() -> None:
    leader = Leader()
    leader.world.replicas.follower_fetched(leader.partition, ONE, 0, 0, 70, leader.world.clock.now_ms())
    told: list[Any] = []
    for controller in (leader.plane.controller, None):
        leader.plane.controller = controller
        leader.plane.alter_partition = lambda asker, request, *others: told.append(request) or True
        leader.changes._under_way = None
        leader.propose(ME, ONE, TWO)
    epochs = [
        [(each.broker_id, each.broker_epoch) for each in request.topics[0].partitions[0].new_isr_with_epochs]
        for request in told
    ]
    assert epochs == [[(ME, -1), (ONE, -1), (TWO, -1)], [(ME, 7), (ONE, 70), (TWO, -1)]]
