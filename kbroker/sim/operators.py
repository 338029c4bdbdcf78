"""A simulated operator of a cluster: moves replicas, calls moves off, elects leaders, changes settings of topics.

Each is one request to the controller, sent again until the broker that answers is controller. What the answer says
is written down, also an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    TopicPartitions,
)

if TYPE_CHECKING:
    from kbroker.sim.checks import Where
    from protocol.message import Message

TOPIC = 2
SET = 0
ELECTIONS = {"preferred": 0, "unclean": 1}
AGAIN = {ErrorCode.NOT_CONTROLLER, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}

Told = PartitionResult | ReassignablePartitionResponse | AlterConfigsResourceResponse


class Operator(Router):
    """Does one thing at a time: a script is what it is told to do next."""

    def play(self, script: Callable[[], Script]) -> None:
        """Begin."""
        self._next = script
        self.start()

    def live(self) -> Script:
        """What it was told."""
        yield from self.shake_hands()
        yield from self._next()

    def reassign(self, where: Where, replicas: Sequence[int] | None) -> Script:
        """AlterPartitionReassignments. replicas: node ids, the preferred leader first; None: call the move off."""
        topic, index = where
        part = ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[part])])
        what = f"moves {topic}-{index} to {' '.join(map(str, replicas))}" if replicas else f"cancels {topic}-{index}"
        yield from self._do(what, request, lambda answer: answer.responses[0].partitions[0])

    def elect(self, kind: str, where: Where) -> Script:
        """ElectLeaders. kind: see `ELECTIONS`."""
        topic, index = where
        parts = [TopicPartitions(topic=topic, partitions=[index])]
        request = ElectLeadersRequest(election_type=ELECTIONS[kind], topic_partitions=parts)
        yield from self._do(
            f"elects the {kind} leader of {topic}-{index}",
            request,
            lambda answer: answer.replica_election_results[0].partition_result[0],
        )

    def set(self, topic: str, key: str, value: str) -> Script:
        """IncrementalAlterConfigs."""
        config = IncrementalAlterableConfig(name=key, config_operation=SET, value=value)
        resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        yield from self._do(f"sets {key}={value} of {topic}", request, lambda answer: answer.responses[0])

    def _do(self, what: str, request: Message, told: Callable[[Any], Told]) -> Generator[Any, Any, None]:
        while True:
            try:
                answer = yield from self.ask(request, to=(yield from self.controller()))
            except Lost:
                code = ErrorCode.NOT_CONTROLLER
            else:
                code = ErrorCode.of(getattr(answer, "error_code", 0) or told(answer).error_code)
            if code not in AGAIN:
                self.note(f"{what}: {code.name}")
                return
            self.misled_by_controller()
            yield from self.pause(300)
