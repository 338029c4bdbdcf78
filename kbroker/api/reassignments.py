"""AlterPartitionReassignments, ListPartitionReassignments: partitions that are to be led and kept by other brokers.

Served: version 0 of both, by the controller; others answer NOT_CONTROLLER. Nothing moves between brokers yet: to be
where it is already is granted, a reassignment that is wrong is refused with the code and the words of Apache Kafka
3.9's controller, and there is none to list or to call off.

Unlike Kafka: a reassignment to other live brokers is refused, INVALID_REPLICA_ASSIGNMENT, until there is replication.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kbroker.api.routes import Route
from kbroker.broker.permission import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kbroker.api.call import Call
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.metadata.store import Assignment


def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    """Each reassignment by itself."""
    plane = call.broker.plane
    assignments = _assignments(plane)
    if assignments is None:
        return _refuse_alter(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message)
    responses = []
    for topic in request.topics:
        parts = [_reassign(topic.name, each, assignments.get(topic.name), plane) for each in topic.partitions]
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=parts))
    return AlterPartitionReassignmentsResponse(error_code=ErrorCode.NONE, error_message=None, responses=responses)


def _assignments(plane: ControlPlane) -> Mapping[str, Mapping[int, Assignment]] | None:
    """Who is to have each partition, as the controller knows; None if it is another broker."""
    epoch = plane.controller.epoch
    return None if epoch is None else epoch.context.assignments


def _reassign(
    topic: str, wanted: ReassignablePartition, partitions: Mapping[int, Assignment] | None, plane: ControlPlane
) -> ReassignablePartitionResponse:
    try:
        _check_reassignment(topic, wanted, partitions, plane)
    except KafkaError as error:
        return ReassignablePartitionResponse(
            partition_index=wanted.partition_index, error_code=error.code, error_message=error.message or None
        )
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=ErrorCode.NONE, error_message=None
    )


def _check_reassignment(
    topic: str, wanted: ReassignablePartition, partitions: Mapping[int, Assignment] | None, plane: ControlPlane
) -> None:
    """Raises: KafkaError if it cannot be granted."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partitions is None:
        raise KafkaError(unknown, f"Unable to find a topic named {topic}.")
    if wanted.partition_index not in partitions:
        raise KafkaError(unknown, f"Unable to find partition {topic}:{wanted.partition_index}.")
    if wanted.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    _check_replicas(wanted.replicas, plane)
    if tuple(wanted.replicas) != partitions[wanted.partition_index].replicas:
        text = "Replicas cannot be moved to other brokers: this broker does not replicate yet."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _check_replicas(replicas: Sequence[int], plane: ControlPlane) -> None:
    why = None
    if not replicas:
        why = "an empty replica list"
    twice = [each for each, times in Counter(replicas).items() if times > 1]
    unknown = sorted(set(replicas) - plane.cache.brokers.keys())
    if twice:
        why = f"the broker {twice[0]} more than once"
    elif unknown:
        why = f"broker {unknown[0]}, but no such broker is registered"
    if why is not None:
        text = f"The manual partition assignment includes {why}."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """What is being moved now, of what was asked about."""
    assignments = _assignments(call.broker.plane)
    if assignments is None:
        return _refuse_list(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message)
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
        if each.adding or each.removing
    ]


def _refuse_alter(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, text: str
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=text, responses=[])


def _refuse_list(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, text: str
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=code, error_message=text, topics=[])


ROUTES = (
    Route(
        45, AlterPartitionReassignmentsRequest, 0, 0, alter_partition_reassignments, _refuse_alter, (Operation.ALTER,)
    ),
    Route(
        46, ListPartitionReassignmentsRequest, 0, 0, list_partition_reassignments, _refuse_list, (Operation.DESCRIBE,)
    ),
)
