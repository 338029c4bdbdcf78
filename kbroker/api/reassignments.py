"""AlterPartitionReassignments, ListPartitionReassignments: partitions that are to be led and kept by other brokers.

Served: AlterPartitionReassignments 0-1, ListPartitionReassignments 0, by the controller; others answer NOT_CONTROLLER.
A reassignment is answered when it has begun; it goes on by itself (`controller/reassignment.py`). Refusals are in the
words of Apache Kafka's controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kbroker.api.authorization import cluster
from kbroker.api.call import LATER
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.broker.facts import Reply
from kbroker.config.limits import ELEMENTS_AT_ONCE
from kbroker.controller.events import Reassign
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kbroker.api.call import Call, Result
    from kbroker.broker.store_plane import StorePlane
    from kbroker.metadata.store import Assignment

    Outcomes: TypeAlias = Mapping[tuple[str, int], KafkaError | None]

MANY_REPLICAS = 10 * ELEMENTS_AT_ONCE  # a replica is an element, too, but costs next to nothing


def alter_partition_reassignments(request: AlterPartitionReassignmentsRequest, call: Call) -> Result:
    """Each partition by itself, when it is the controller's turn."""
    broker, ticket = call.broker, call.ticket
    if not broker.store_plane.controller.is_active:
        return _refuse_alter(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message, call.version)
    wanted = {
        (topic.name, each.partition_index): None if each.replicas is None else tuple(each.replicas)
        for topic in request.topics
        for each in topic.partitions
    }

    def answered(outcomes: Outcomes) -> None:
        broker.tell(Reply(ticket, _altered(request, outcomes, call.version)))

    broker.store_plane.controller.put(Reassign(wanted, answered, request.allow_replication_factor_change))
    return LATER


def _altered(
    request: AlterPartitionReassignmentsRequest, outcomes: Outcomes, version: int
) -> AlterPartitionReassignmentsResponse:
    lost = next((each for each in outcomes.values() if each and each.code is ErrorCode.NOT_CONTROLLER), None)
    if lost is not None:
        return _refuse_alter(request, lost.code, lost.code.message, version)
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                _outcome(each.partition_index, outcomes[topic.name, each.partition_index]) for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=responses,
    )


def _outcome(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=index,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=(error.message or None) if error else None,
    )


def _assignments(plane: StorePlane) -> Mapping[str, Mapping[int, Assignment]] | None:
    """Who is to have each partition, as the controller knows; None if it is another broker."""
    epoch = plane.controller.epoch
    return None if epoch is None else epoch.context.assignments


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """What is being moved now, of what was asked about."""
    assignments = _assignments(call.broker.store_plane)
    if assignments is None:
        return _refuse_list(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message, call.version)
    if request.topics is None:
        asked = {topic: list(partitions) for topic, partitions in assignments.items()}
    else:
        asked = {topic.name: topic.partition_indexes for topic in request.topics}
    topics = [
        OngoingTopicReassignment(name=topic, partitions=moving)
        for topic, indexes in asked.items()
        if (moving := _moving(indexes, assignments.get(topic, {})))
    ]
    return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, error_message=None, topics=topics)


def _moving(indexes: Sequence[int], partitions: Mapping[int, Assignment]) -> list[OngoingPartitionReassignment]:
    known = [(index, partitions[index]) for index in dict.fromkeys(indexes) if index in partitions]
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=list(each.replicas),
            adding_replicas=list(each.adding),
            removing_replicas=list(each.removing),
        )
        for index, each in known
        if each.is_moving
    ]


def _refuse_alter(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, text: str, version: int
) -> AlterPartitionReassignmentsResponse:
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(partition_index=each.partition_index, error_code=code, error_message=text)
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=text,
        responses=responses,
    )


def _refuse_list(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, text: str, version: int
) -> ListPartitionReassignmentsResponse:
    topics = [
        OngoingTopicReassignment(
            name=topic.name,
            partitions=[
                OngoingPartitionReassignment(
                    partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[]
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return ListPartitionReassignmentsResponse(error_code=code, error_message=text, topics=topics)


NEEDS_TO_LIST = (cluster(Operation.DESCRIBE),)
ROUTES = (
    Route(
        45,
        AlterPartitionReassignmentsRequest,
        0,
        1,
        alter_partition_reassignments,
        _refuse_alter,
        (cluster(Operation.ALTER),),
        elements=MANY_REPLICAS,
    ),
    Route(
        46,
        ListPartitionReassignmentsRequest,
        0,
        0,
        list_partition_reassignments,
        _refuse_list,
        NEEDS_TO_LIST,
    ),
)
