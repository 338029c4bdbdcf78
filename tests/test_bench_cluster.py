"""The load of the cluster's bench is what it says: batches in sequence, refusals noticed, budgets judged."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.cluster import findings
from benchmarks.harness.cluster_rows import FULL, Small
from benchmarks.harness.streams import ALL, Stream
from benchmarks.harness.wire import PRODUCE_VERSION, LoadError, batch
from protocol.headers import encode_response_header
from protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from protocol.records.content import parse_set


def answer(code: int = 0) -> bytes:
    part = PartitionProduceResponse(index=0, error_code=code, base_offset=0)
    response = ProduceResponse(responses=[TopicProduceResponse(name="topic", partition_responses=[part])])
    return encode_response_header(ProduceResponse, PRODUCE_VERSION, 1) + response.encode(PRODUCE_VERSION)


class Broker:
    """Answers with what it is given. sent: frames."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: deque[bytes] = deque()
        self.socket = SimpleNamespace(recv=lambda size: self.answers.popleft())

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def frame(self) -> bytes:
        return answer()

    def says(self, *codes: int) -> None:
        self.answers.append(b"".join(len(each).to_bytes(4, "big") + each for each in map(answer, codes)))


@pytest.fixture
def broker() -> Broker:
    return Broker()


def stream(broker: Broker) -> Stream:
    return Stream(cast(Any, broker), "topic", 0, batch(3, 100), 3, ALL, producer_id=77)


def test_batches_follow_in_sequence_and_their_checksums_hold(broker: Broker) -> None:
    made = stream(broker)
    made.send()
    headers = [parse_set(memoryview(each)[made._batch_at :][: made._size])[0][0] for each in broker.sent]
    assert [(each.producer_id, each.base_sequence) for each in headers] == [(77, 0), (77, 3)]


def test_answers_are_counted_however_they_come(broker: Broker) -> None:
    made = stream(broker)
    broker.says(0, 0)
    whole = broker.answers.pop()
    broker.answers += [whole[:-5], whole[-5:]]
    assert (made.receive(), made.receive(), made.records) == (1, 1, 9)


def test_a_refused_batch_among_others_ends_the_run(broker: Broker) -> None:
    made = stream(broker)
    broker.says(0, 19, 0)
    with pytest.raises(LoadError, match="error 19"):
        made.receive()


def test_a_row_is_judged_by_the_ratio_of_its_rounds() -> None:
    ours, theirs = {"p50": 1.0, "p99": 7.0, "cpu": 1.0}, {"p50": 2.0, "p99": 10.0, "cpu": 1.0}
    found = findings(Small(FULL), {"kbroker": [ours], "apache": [theirs]})
    assert [each.verdict for each in found] == ["holds", "MISSED", ""]
