"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: what brokers ask the share coordinator.

Served: 83 in version 0, 84 in 0, 85 in 0-1, 86 in 0, 87 in 0-1 (KIP-932). Each share-partition of a request is asked
about by itself (`share/share_coordinator.py`), and the answer leaves when all are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.api.authorization import cluster
from kbroker.api.call import LATER
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.broker.facts import Joint
from kbroker.share.share_coordinator import read_refused, refused, summary_refused
from kbroker.share.share_records import Place
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateResult,
    StateResult,
    StateSummaryResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kbroker.api.call import Call, Result
    from kbroker.coordinator import Effect
    from kbroker.share.share_coordinator import ShareCoordinator
    from protocol.message import Message

    Ask = Callable[[ShareCoordinator, Place, Any, Any, int], Iterable[Effect]]


class _Kind:
    """One of the five. response, topic: the classes of the answer; refused: makes what is said of a partition."""

    def __init__(self, ask: Ask, response: type[Any], topic: type[Any], refused: Callable[..., Message]) -> None:
        self.ask = ask
        self.response = response
        self.topic = topic
        self.refused = refused

    def serve(self, request: Any, call: Call) -> Result:
        """Ask about each share-partition."""
        coordinator: ShareCoordinator = call.broker.share_coordinator.coordinator
        results = [self.topic(topic_id=topic.topic_id, partitions=[]) for topic in request.topics]
        response: Message = self.response(results=results)
        wanted = [(topic, result) for topic, result in zip(request.topics, results, strict=True) if topic.partitions]
        count = sum(len(topic.partitions) for topic, _ in wanted)
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if not count:
            return response
        joint = Joint(call.ticket, count, lambda: response)
        for topic, result in wanted:
            for said in topic.partitions:
                place = Place(request.group_id, bytes(topic.topic_id), said.partition)
                part = joint.part(result.partitions.append)
                coordinator.runtime.carry_out(self.ask(coordinator, place, said, part, call.now_ms), call.now_ms)
        return LATER

    def refuse(self, request: Any, code: ErrorCode, text: str, version: int) -> Message:
        """The same error for each share-partition."""
        results = [
            self.topic(
                topic_id=topic.topic_id,
                partitions=[
                    self.refused(Place(request.group_id, bytes(topic.topic_id), said.partition), code, text)
                    for said in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        response: Message = self.response(results=results)
        return response


INITIALIZE = _Kind(
    lambda coordinator, *asked: coordinator.initialize(*asked), InitializeShareGroupStateResponse, StateResult, refused
)
READ = _Kind(
    lambda coordinator, *asked: coordinator.read(*asked), ReadShareGroupStateResponse, ReadStateResult, read_refused
)
WRITE = _Kind(lambda coordinator, *asked: coordinator.write(*asked), WriteShareGroupStateResponse, StateResult, refused)
DELETE = _Kind(
    lambda coordinator, place, said, part, now_ms: coordinator.delete(place, part, now_ms),
    DeleteShareGroupStateResponse,
    StateResult,
    refused,
)
SUMMARIZE = _Kind(
    lambda coordinator, place, said, part, now_ms: coordinator.summarize(place, part, now_ms),
    ReadShareGroupStateSummaryResponse,
    StateSummaryResult,
    summary_refused,
)
NEEDS = (cluster(Operation.CLUSTER_ACTION),)
ROUTES = (
    Route(83, InitializeShareGroupStateRequest, 0, 0, INITIALIZE.serve, INITIALIZE.refuse, NEEDS),
    Route(84, ReadShareGroupStateRequest, 0, 0, READ.serve, READ.refuse, NEEDS),
    Route(85, WriteShareGroupStateRequest, 0, 1, WRITE.serve, WRITE.refuse, NEEDS),
    Route(86, DeleteShareGroupStateRequest, 0, 0, DELETE.serve, DELETE.refuse, NEEDS),
    Route(87, ReadShareGroupStateSummaryRequest, 0, 1, SUMMARIZE.serve, SUMMARIZE.refuse, NEEDS),
)
