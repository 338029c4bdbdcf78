"""Procedures of several steps: resumed with outcomes and answers, ended by sessions, each by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.config import BrokerLayers
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.metadata.requester import Requester
from kbroker.metadata.steps import (
    Ask,
    PeerFaultError,
    Procedure,
    SessionLostError,
    Steps,
    StoreRefusedError,
    ask,
    one_by_one,
)
from kbroker.metadata.store import BrokerInfo
from kbroker.ports import (
    Create,
    Get,
    Operation,
    Outcome,
    PeerFaultKind,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.sim.store import Ensemble
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import LeaderAndIsrRequest, LeaderAndIsrResponse
from tests.contracts.peer_benches import CLUSTER, PlayedBroker, SimBench


class Bench:
    """Steps over a simulated store whose events wait to be handed over."""

    def __init__(self) -> None:
        self.events: list[StoreEvent] = []
        self.store = Ensemble().connect(self.events.append)
        self.net = SimBench()
        self.cache = MetadataCache()
        configs, clock = Configs(BrokerLayers()), cast(Any, SimpleNamespace(now_ms=lambda: 0))
        self.requester = Requester(1, self.cache, configs, lambda: self.net.peers, clock, "PLAINTEXT")
        self.requester.cluster_id = CLUSTER
        self.steps = Steps(self.store, self.requester)
        self.results: list[object] = []

    def broker(self, broker_id: int = 2, *, listens: bool = True) -> PlayedBroker:
        """Another broker, in the image."""
        played = self.net.broker(broker_id, listens=listens)
        self.cache.brokers[broker_id] = BrokerInfo(broker_id, (played.address,))
        return played

    def run(self, procedure: Procedure[object]) -> None:
        self.steps.start(procedure, self.results.append, self.results.append)

    def turn(self) -> int:
        """Hand over what is there. Returns: how many answers."""
        events, self.events[:] = list(self.events), []
        answers = [event for event in events if isinstance(event, StoreAnswer)]
        for answer in answers:
            self.steps.resume(answer)
        return len(answers)

    def hear(self) -> None:
        """Hand over what came of requests to other brokers."""
        self.net.settle()
        events, self.net.events[:] = list(self.net.events), []
        for event in events:
            self.requester.handlers[type(event)](event, 0)


def copy(source: str, target: str) -> Procedure[object]:
    (found,) = yield [Get(source)]
    (made,) = yield [Create(target, found.data)]
    return made.fault or target


def nothing() -> Procedure[object]:
    no_operations: list[Operation] = []
    outcomes = yield no_operations
    return outcomes


def test_a_procedure_takes_a_turn_for_each_step() -> None:
    bench = Bench()
    bench.store.submit([Create("/a", b"x")], "mine")
    bench.events.clear()
    bench.run(copy("/a", "/b"))
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, [], True)
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, ["/b"], False)


def test_procedures_run_side_by_side() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.run(copy("/a", "/c"))
    bench.turn()
    bench.turn()
    assert bench.results == ["/b", "/c"]


def test_a_step_without_operations_takes_no_turn() -> None:
    bench = Bench()
    bench.run(nothing())
    assert bench.results == [()]


def test_a_lost_session_ends_a_procedure() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.turn()
    bench.events.clear()
    bench.store.cut()
    bench.run(copy("/a", "/c"))
    bench.store.expire()
    bench.store.heal()
    bench.turn()
    assert [type(result) for result in bench.results] == [SessionLostError]


def test_what_the_store_refuses_ends_a_procedure_and_no_other() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.run(copy("/a", "/c"))
    first, _ = (event for event in bench.events if isinstance(event, StoreAnswer))
    bench.steps.resume(StoreAnswer(first.token, (Outcome(None, "/x"), Outcome(StoreFault.REFUSED, "/a"))))
    assert [str(result) for result in bench.results] == ["the metadata store refuses what is asked of /a"]
    assert isinstance(bench.results[0], StoreRefusedError)
    assert bench.steps.busy


def test_what_is_refused_among_others_may_be_looked_at_one_by_one() -> None:
    bench = Bench()

    def both() -> Procedure[object]:
        return [outcome.fault for outcome in (yield from one_by_one([Get("/a"), Get("/b")]))]

    bench.run(both())
    bench.run(both())
    first, second = (event for event in bench.events if isinstance(event, StoreAnswer))
    refused = Outcome(StoreFault.REFUSED, "/a")
    bench.steps.resume(StoreAnswer(first.token, (refused, Outcome(StoreFault.NO_NODE, "/b"))))
    bench.steps.resume(StoreAnswer(second.token, (refused, Outcome(StoreFault.CONNECTION_LOST, "/b"))))
    assert bench.results[0] == [StoreFault.REFUSED, StoreFault.NO_NODE]
    assert isinstance(bench.results[1], StoreRefusedError)  # nobody knows of the other


def test_a_session_that_ends_within_a_step_ends_its_procedure_and_no_other() -> None:
    bench = Bench()
    bench.run(copy("/a", "/b"))
    bench.run(copy("/a", "/c"))
    first, second = (event for event in bench.events if isinstance(event, StoreAnswer))
    lost = [Outcome(None, "/a"), Outcome(StoreFault.SESSION_EXPIRED, "/a")]
    bench.steps.resume(StoreAnswer(first.token, lost))
    assert ([type(result) for result in bench.results], bench.steps.busy) == ([SessionLostError], True)
    bench.events[:] = [second]
    bench.turn()
    bench.turn()
    assert (bench.results[1:], bench.steps.busy) == (["/c"], False)


def test_a_procedure_goes_on_after_a_step_of_which_nobody_knew() -> None:
    bench = Bench()
    bench.store.submit([Create("/a", b"x")], "mine")
    bench.events.clear()
    bench.run(copy("/a", "/b"))
    (read,) = (event for event in bench.events if isinstance(event, StoreAnswer))
    bench.events.clear()
    bench.steps.resume(StoreAnswer(read.token, [Outcome(StoreFault.CONNECTION_LOST, "/a")]))
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, [], True)
    assert (bench.turn(), bench.results, bench.steps.busy) == (1, ["/b"], False)
    assert bench.store._ensemble.tree.nodes["/b"].data == b"x"


def test_a_procedure_may_clean_up_after_a_lost_session() -> None:
    def careful() -> Procedure[object]:
        try:
            yield [Get("/a")]
        except SessionLostError:
            return "cleaned up"

    bench = Bench()
    bench.store.cut()
    bench.run(careful())
    bench.store.expire()
    bench.store.heal()
    bench.turn()
    assert bench.results == ["cleaned up"]


def test_an_error_goes_up_where_nobody_takes_it() -> None:
    def wrong() -> Procedure[object]:
        yield [Get("/a")]
        raise RuntimeError("wrong")

    bench = Bench()
    bench.steps.start(wrong())
    with pytest.raises(RuntimeError):
        bench.turn()


def consult(broker: PlayedBroker) -> Procedure[object]:
    request = LeaderAndIsrRequest(
        controller_id=1, controller_epoch=3, broker_epoch=7, type=0, topic_states=[], live_leaders=[]
    )
    answer = yield from ask(Ask(broker.id, request, timeout_ms=1_000))
    (made,) = yield [Create("/told", str(answer.error_code).encode())]
    return made.path


def test_a_procedure_goes_on_with_the_answer_of_another_broker() -> None:
    bench = Bench()
    broker = bench.broker()
    bench.run(consult(broker))
    bench.hear()
    assert (bench.results, bench.steps.busy) == ([], True)
    broker.asked[0].answer(LeaderAndIsrResponse(error_code=41, topics=[]))
    bench.hear()
    bench.turn()
    assert (bench.results, bench.store._ensemble.tree.nodes["/told"].data) == (["/told"], b"41")
    assert not bench.steps.busy


def test_a_request_without_an_answer_is_an_error_in_its_procedure() -> None:
    bench = Bench()
    bench.run(consult(bench.broker(listens=False)))
    bench.hear()
    (error,) = bench.results
    assert isinstance(error, PeerFaultError)
    assert (error.fault.kind, error.fault.was_sent) == (PeerFaultKind.REFUSED, False)
    assert str(error) == f"{PeerFaultKind.REFUSED.value}: {error.fault.why}"


def test_of_two_that_ask_the_one_without_an_answer_is_still_under_way() -> None:
    bench = Bench()
    broker = bench.broker()
    bench.run(consult(bench.broker(3, listens=False)))
    bench.run(consult(broker))
    bench.hear()
    assert ([type(result) for result in bench.results], bench.steps.busy) == ([PeerFaultError], True)
    broker.asked[0].answer(LeaderAndIsrResponse(error_code=0, topics=[]))
    bench.hear()
    bench.turn()
    assert (bench.results[1:], bench.steps.busy) == (["/told"], False)


def test_who_is_to_ask_where_no_controller_is_known_is_told_so() -> None:
    bench = Bench()
    bench.run(consult(bench.net.broker()))
    (error,) = bench.results
    assert isinstance(error, KafkaError)
    assert (error.code, bench.steps.busy) == (ErrorCode.NOT_CONTROLLER, False)
