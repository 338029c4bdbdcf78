"""The controller's lines: whether brokers have answered what was in them, which an answer to CreateTopics waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.topic_ready import AwaitBrokers, once_all_know
from kbroker.broker.control_plane import ControlPlane
from kbroker.controller.controller_channel import AnsweredKey, ControllerChannelManager
from kbroker.timing import Touched
from protocol.messages.control import UpdateMetadataRequest


def request() -> UpdateMetadataRequest:
    return UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=1, topic_states=[], live_brokers=[])


class Lines:
    """Two brokers' lines. told: the keys that were touched."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.channels = ControllerChannelManager(self._tell)
        for broker_id in (1, 2):
            self.channels.open(broker_id)

    def _tell(self, fact: object) -> None:
        if isinstance(fact, Touched):
            self.told += fact.keys

    def put(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.channels.put(broker_id, request())

    def answer(self, broker_id: int) -> None:
        head = self.channels.head(broker_id)
        assert head is not None
        assert self.channels.answered(broker_id, head)

    def once_all_know(self, deadline_ms: int = 1000, now_ms: int = 0) -> Any:
        plane = SimpleNamespace(controller=SimpleNamespace(channels=self.channels))
        return once_all_know(cast(ControlPlane, plane), deadline_ms, now_ms, lambda: cast(Any, "answer"))


def test_what_was_put_before_is_answered_when_its_last_request_is() -> None:
    lines = Lines()
    lines.put(1, 2, 2)
    keys = lines.channels.unanswered()
    assert keys == [AnsweredKey(1, 1), AnsweredKey(2, 2)]
    lines.put(2)  # later, and nothing to wait for
    lines.answer(1)
    lines.answer(2)
    assert list(map(lines.channels.is_answered, keys)) == [True, False]
    lines.answer(2)
    assert list(map(lines.channels.is_answered, keys)) == [True, True]
    assert lines.told == [AnsweredKey(1, 1), AnsweredKey(2, 1), AnsweredKey(2, 2)]


def test_a_broker_that_is_gone_is_not_waited_for_even_if_it_comes_back() -> None:
    lines = Lines()
    lines.put(2, 2)
    (key,) = lines.channels.unanswered()
    lines.channels.close(2)
    assert key in lines.told
    lines.channels.open(2)
    lines.put(2)
    assert lines.channels.is_answered(key)
    assert lines.channels.unanswered() == [AnsweredKey(2, 3)]


def test_an_answer_leaves_when_all_brokers_know() -> None:
    lines = Lines()
    assert lines.once_all_know() == "answer"
    lines.put(1, 2)
    waiting = lines.once_all_know()
    assert isinstance(waiting, AwaitBrokers)
    lines.answer(1)
    assert waiting.answer(1) is None
    lines.answer(2)
    assert waiting.answer(2) == "answer"


def test_a_broker_that_hangs_is_waited_for_until_the_deadline() -> None:
    lines = Lines()
    lines.put(2)
    assert lines.once_all_know(deadline_ms=5, now_ms=5) == "answer"
    waiting = lines.once_all_know(deadline_ms=5)
    assert (waiting.deadline_ms, waiting.expired(5)) == (5, "answer")
