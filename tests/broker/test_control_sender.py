"""The way of the controller's lines to other brokers: in order, again until answered, dropped with the line."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from kbroker.broker.control_sender import ControlSender
from kbroker.config import BrokerLayers, Given
from kbroker.controller.controller_channel import ControllerChannelManager, ControlRequest
from kbroker.controller.events import ControlAnswer
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.metadata.requester import Requester
from kbroker.metadata.store import BrokerInfo
from kbroker.timing import Touched
from protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.contracts.peer_benches import CLUSTER, PlayedBroker, SimBench

OWN = 1


class Bench:
    """A sender, its channels, and broker 2 played by the test. answers: what it told the controller."""

    def __init__(self, **settings: str) -> None:
        self.net = SimBench()
        self.facts: deque[object] = deque()
        self.answers: list[ControlAnswer] = []
        self.channels = ControllerChannelManager(self.facts.append)
        self.brokers: dict[int, BrokerInfo] = {}
        self.controller = SimpleNamespace(
            channels=self.channels, epoch=SimpleNamespace(context=SimpleNamespace(brokers=self.brokers))
        )
        static = {key.replace("_", "."): Given(text, "test") for key, text in settings.items()}
        configs = Configs(BrokerLayers(static=static))
        clock = cast(Any, SimpleNamespace(now_ms=lambda: 0))
        requester = Requester(OWN, MetadataCache(), configs, lambda: self.net.peers, clock, "PLAINTEXT")
        requester.cluster_id = CLUSTER
        self.sender = ControlSender(cast(Any, self.controller), requester, self.facts.append)
        self.handlers = {**self.sender.handlers, **requester.handlers}
        self.broker = self.join(2)

    def join(self, broker_id: int, listener: str = "PLAINTEXT") -> PlayedBroker:
        played = self.net.broker(broker_id)
        for api in (4, 5, 6):
            played.served[api] = (0, 8)
        self.brokers[broker_id] = BrokerInfo(broker_id, (played.address._replace(listener=listener),))
        self.channels.open(broker_id)
        return played

    def turn(self, ms: int = 0) -> None:
        """Heed facts, and whatever the network brings; as the plane does, take answers off their lines."""
        self.net.advance(ms)
        while self.facts or self.net.events:
            self.facts += self.net.events
            self.net.events.clear()
            while self.facts:
                fact = self.facts.popleft()
                if isinstance(fact, ControlAnswer):
                    self.answers.append(fact)
                    self.channels.answered(fact.broker_id, fact.request)
                elif not isinstance(fact, Touched):  # that is for the core
                    self.handlers[type(fact)](fact, 0)
            self.net.settle()

    def put(self, *requests: ControlRequest, broker_id: int = 2) -> None:
        for request in requests:
            self.channels.put(broker_id, request)
        self.turn()


def leads(epoch: int = 7) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=1, controller_epoch=3, broker_epoch=epoch, type=0, topic_states=[], live_leaders=[]
    )


def stops() -> StopReplicaRequest:
    return StopReplicaRequest(controller_id=1, controller_epoch=3, broker_epoch=7, topic_states=[])


def updates() -> UpdateMetadataRequest:
    return UpdateMetadataRequest(controller_id=1, controller_epoch=3, broker_epoch=7, topic_states=[], live_brokers=[])


LED = LeaderAndIsrResponse(error_code=0, topics=[])


def test_an_answer_is_told_with_its_request_and_broker() -> None:
    bench = Bench()
    request = leads()
    bench.put(request)
    bench.broker.asked[0].answer(LED)
    bench.turn()
    assert bench.answers == [ControlAnswer(2, request, LED)]
    assert bench.answers[0].request is request


def test_each_kind_goes_in_the_version_of_kafka_3_9_one_after_the_other() -> None:
    bench = Bench()
    bench.put(leads(), updates(), stops())
    for response in (LED, UpdateMetadataResponse(error_code=0), StopReplicaResponse(error_code=0, partition_errors=[])):
        bench.broker.asked[-1].answer(response)
        bench.turn()
    assert [(type(each.request), each.version) for each in bench.broker.asked] == [
        (LeaderAndIsrRequest, 7),
        (UpdateMetadataRequest, 8),
        (StopReplicaRequest, 4),
    ]
    assert len(bench.answers) == 3


def test_a_request_without_an_answer_is_sent_again_until_there_is_one() -> None:
    bench = Bench()
    bench.put(leads(), updates())
    for count in (1, 2, 3):
        assert [type(each.request) for each in bench.broker.asked] == [LeaderAndIsrRequest] * count
        bench.broker.asked[-1].hang_up()
        bench.turn()
        bench.turn(1_000)
    bench.broker.asked[-1].answer(LED)
    bench.turn()
    assert len(bench.answers) == 1
    assert isinstance(bench.broker.asked[-1].request, UpdateMetadataRequest)


def test_what_takes_longer_than_the_setting_allows_is_sent_again() -> None:
    bench = Bench(controller_socket_timeout_ms="5000")
    bench.put(leads())
    bench.turn(4_999)
    assert len(bench.broker.asked) == 1
    bench.turn(1)
    bench.turn(100)
    assert len(bench.broker.asked) == 2


def test_a_line_that_is_closed_says_nothing_more() -> None:
    bench = Bench()
    bench.put(leads())
    bench.channels.close(2)
    bench.turn()
    assert bench.broker.open == []
    bench.turn(60_000)
    assert (bench.answers, len(bench.broker.asked)) == ([], 1)


def test_the_next_term_begins_on_a_line_of_its_own() -> None:
    bench, former = Bench(), leads(1)
    bench.put(former)
    bench.channels.clear()
    bench.channels.open(2)
    bench.put(leads(2))
    assert not bench.channels.answered(2, former)  # as the own broker may say late, to which no line leads
    bench.broker.asked[-1].answer(LED)
    bench.turn()
    assert [each.request.broker_epoch for each in bench.broker.asked] == [1, 2]
    assert [each.request.broker_epoch for each in bench.answers] == [2]


def test_without_a_term_nothing_is_sent() -> None:
    bench = Bench()
    bench.controller.epoch = None
    bench.put(leads())
    assert bench.broker.accepted == 0


def test_what_the_controller_says_to_its_own_broker_does_not_go_by_a_line() -> None:
    bench = Bench()
    own = bench.join(OWN)
    bench.put(leads(), broker_id=OWN)
    assert own.accepted == 0


def test_a_broker_without_the_listener_is_not_spoken_to() -> None:
    bench = Bench()
    other = bench.join(3, listener="OTHER")
    bench.put(leads(), broker_id=3)
    assert (other.accepted, bench.answers) == (0, [])


def test_the_control_planes_own_listener_is_spoken_to_if_there_is_one() -> None:
    bench = Bench(
        listeners="PLAINTEXT://:9092,CONTROL://:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        control_plane_listener_name="CONTROL",
    )
    data = bench.broker
    control = bench.join(3, listener="CONTROL")
    bench.put(leads(), broker_id=2)
    bench.put(leads(), broker_id=3)
    assert (data.accepted, control.accepted) == (0, 1)


def test_a_request_that_a_broker_does_not_serve_is_left_out() -> None:
    bench = Bench()
    bench.broker.served[4] = (0, 6)
    bench.put(leads(), updates())
    assert [type(each.request) for each in bench.broker.asked] == [UpdateMetadataRequest]
    assert bench.answers == []
