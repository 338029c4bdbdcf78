"""Which log directory has which replica, told to the quorum: AssignReplicasToDirs.

Driven by `broker/life.py`. Controllers keep the directory of each replica, so that a directory that fails costs only
what it held. What is told last of a replica counts; what is not taken is told again, later each time. A broker with one
directory tells nothing: controllers know that directory from its registration.

Source: AssignmentsManager of Apache Kafka 4.3, by behaviour; KIP-858.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("kbroker.quorum")

MOST_IN_A_REQUEST = 2250
FIRST_BACKOFF_MS, MOST_BACKOFF_MS = 100, 10_000

Replica: TypeAlias = "tuple[bytes, int]"
"""A partition of this broker: topic id and index."""


class DirectoryAssignments:
    """What is still to be told. due_ms: when; None while nothing is, or a request is under way."""

    def __init__(self, node_id: int) -> None:
        self.due_ms: int | None = None
        self._node_id = node_id
        self._wanted: dict[Replica, bytes] = {}
        self._told: dict[Replica, bytes] = {}  # in the request under way
        self._failures = 0  # in a row

    def __len__(self) -> int:
        return len(self._wanted)

    def assign(self, topic_id: bytes, index: int, directory_id: bytes, now_ms: int) -> None:
        """A replica is in this directory."""
        self._wanted[topic_id, index] = directory_id
        if not self._told and self.due_ms is None:
            self.due_ms = now_ms

    def forget(self, topic_id: bytes, index: int) -> None:
        """A replica is not here any more."""
        self._wanted.pop((topic_id, index), None)

    def next_request(self, broker_epoch: int, now_ms: int) -> AssignReplicasToDirsRequest | None:
        """What is due."""
        if self.due_ms is None or now_ms < self.due_ms or not self._wanted:
            return None
        self.due_ms = None
        self._told = dict(list(self._wanted.items())[:MOST_IN_A_REQUEST])
        directories: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory_id in self._told.items():
            directories.setdefault(directory_id, {}).setdefault(topic_id, []).append(index)
        return AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=broker_epoch,
            directories=[_directory(each, topics) for each, topics in directories.items()],
        )

    def answered(self, response: AssignReplicasToDirsResponse, now_ms: int) -> None:
        """The leader has answered: what it has taken is done with."""
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            if error is not ErrorCode.NOT_CONTROLLER:
                log.warning("broker %d: log directories of replicas are not taken: %s", self._node_id, error.name)
            self.failed(now_ms)
            return
        told, self._told = self._told, {}
        refused = 0
        for directory in response.directories:
            for topic in directory.topics:
                for part in topic.partitions:
                    replica = topic.topic_id, part.partition_index
                    code = ErrorCode.of(part.error_code)
                    # who is not a replica any more, or whose topic has gone, needs no directory
                    if code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID):
                        if self._wanted.get(replica) == told.get(replica):
                            self._wanted.pop(replica, None)
                    else:
                        refused += 1
        if refused:
            log.warning("broker %d: log directories of %d replicas are not taken yet", self._node_id, refused)
        self._go_on(now_ms, has_failed=bool(refused))

    def failed(self, now_ms: int) -> None:
        """No answer, or none that is about replicas."""
        self._told = {}
        self._go_on(now_ms, has_failed=True)

    def _go_on(self, now_ms: int, *, has_failed: bool) -> None:
        self._failures = self._failures + 1 if has_failed else 0
        if self._wanted:
            backoff_ms = min(FIRST_BACKOFF_MS << min(self._failures - 1, 10), MOST_BACKOFF_MS) if has_failed else 0
            self.due_ms = now_ms + backoff_ms


def _directory(directory_id: bytes, topics: Mapping[bytes, list[int]]) -> AssignedDirectory:
    return AssignedDirectory(
        id=directory_id,
        topics=[
            AssignedTopic(
                topic_id=topic_id,
                partitions=[AssignedPartition(partition_index=index) for index in indices],
            )
            for topic_id, indices in topics.items()
        ],
    )
