"""Which directory has which replica is told until controllers have taken it."""

from __future__ import annotations

from kbroker.quorum.directories import MOST_IN_A_REQUEST, DirectoryAssignments
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignedDirectoryResult,
    AssignedPartitionResult,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

ONE, OTHER = b"1" * 16, b"2" * 16
TOPIC = b"t" * 16


def told(request: AssignReplicasToDirsRequest) -> dict[tuple[bytes, int], bytes]:
    return {
        (topic.topic_id, part.partition_index): directory.id
        for directory in request.directories
        for topic in directory.topics
        for part in topic.partitions
    }


def response(request: AssignReplicasToDirsRequest, error: ErrorCode = ErrorCode.NONE) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(
        error_code=0,
        directories=[
            AssignedDirectoryResult(
                id=directory.id,
                topics=[
                    AssignedTopicResult(
                        topic_id=topic.topic_id,
                        partitions=[
                            AssignedPartitionResult(partition_index=part.partition_index, error_code=error)
                            for part in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in request.directories
        ],
    )


def ask(assignments: DirectoryAssignments, now_ms: int = 0) -> AssignReplicasToDirsRequest:
    request = assignments.next_request(40, now_ms)
    assert request is not None
    return request


def test_what_is_taken_is_told_once() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    assignments.assign(TOPIC, 1, OTHER, 0)
    request = ask(assignments)
    assert (request.broker_id, request.broker_epoch, told(request)) == (7, 40, {(TOPIC, 0): ONE, (TOPIC, 1): OTHER})
    assignments.answered(response(request), 0)
    assert (len(assignments), assignments.due_ms) == (0, None)


def test_a_replica_that_has_moved_meanwhile_is_told_again() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    request = ask(assignments)
    assignments.assign(TOPIC, 0, OTHER, 0)
    assert assignments.next_request(40, 0) is None
    assignments.answered(response(request), 5)
    assert told(ask(assignments, 5)) == {(TOPIC, 0): OTHER}


def test_what_is_refused_is_told_again_later_each_time() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    assignments.answered(response(ask(assignments), ErrorCode.UNKNOWN_SERVER_ERROR), 0)
    assert assignments.due_ms == 100
    assert assignments.next_request(40, 99) is None
    assignments.answered(response(ask(assignments, 100), ErrorCode.UNKNOWN_SERVER_ERROR), 100)
    assert assignments.due_ms == 300
    ask(assignments, 300)
    assignments.failed(300)
    assert assignments.due_ms == 700


def test_a_topic_that_has_gone_needs_no_directory() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    assignments.answered(response(ask(assignments), ErrorCode.UNKNOWN_TOPIC_ID), 0)
    assert assignments.due_ms is None


def test_another_leader_is_told_all_of_it() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    ask(assignments)
    assignments.answered(AssignReplicasToDirsResponse(error_code=ErrorCode.NOT_CONTROLLER, directories=[]), 0)
    assert told(ask(assignments, 100)) == {(TOPIC, 0): ONE}


def test_many_are_told_in_several_requests() -> None:
    assignments = DirectoryAssignments(7)
    for index in range(MOST_IN_A_REQUEST + 1):
        assignments.assign(TOPIC, index, ONE, 0)
    request = ask(assignments)
    assert len(told(request)) == MOST_IN_A_REQUEST
    assignments.answered(response(request), 0)
    assert len(told(ask(assignments))) == 1


def test_what_is_not_here_any_more_is_not_told() -> None:
    assignments = DirectoryAssignments(7)
    assignments.assign(TOPIC, 0, ONE, 0)
    assignments.forget(TOPIC, 0)
    assert assignments.next_request(40, 0) is None
