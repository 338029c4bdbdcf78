"""What a controller tells this broker (LeaderAndIsr, StopReplica, UpdateMetadata), and what brokers ask it.

Served: LeaderAndIsr 0-7, StopReplica 0-4, UpdateMetadata 0-8, ControlledShutdown 0-3, AlterPartition 0-3,
AllocateProducerIds 0, as Apache 3.9 speaks them between brokers. The first three are obeyed by
`broker/controller_requests.py`, strictly one after the other; what is said here is what may not even get there.
ControlledShutdown and AlterPartition wait for their turn in the controller's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.call import LATER
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.broker.controller_requests import ControlRequest, leader_states
from kbroker.broker.facts import Reply
from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.controller.events import AlterPartition, ShutDown
from kbroker.log.names import topic_name_fault
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    RemainingPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.call import Call, Result


def control(request: ControlRequest, call: Call) -> Result:
    """Obey the controller, at once or when it is this request's turn. Raises: KafkaError for what none would say."""
    call.broker.auth_helper.require_control_listener(call.session)
    _check(request)
    answer = call.broker.store_plane.control_requests.handle(request, call.version, call.ticket)
    if answer is None or answer.error_code == ErrorCode.NONE:
        call.session.is_controller = True  # goes first from now on; a controller that is out of date does not
    return answer or LATER


def _check(request: ControlRequest) -> None:
    """Names become folders, and any client that can connect can claim to be a controller."""
    if isinstance(request, LeaderAndIsrRequest):
        for name, _, state in leader_states(request):
            fault = topic_name_fault(name)
            if fault:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if state.partition_index < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"partition {state.partition_index} of {name}")
    elif isinstance(request, UpdateMetadataRequest):
        for broker in request.live_brokers:
            for endpoint in broker.endpoints:
                if not 0 <= endpoint.security_protocol < len(SECURITY_PROTOCOLS):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"security protocol {endpoint.security_protocol}")


def alter_partition(request: AlterPartitionRequest, call: Call) -> Result:
    """Ask the controller to change in-sync sets; NOT_CONTROLLER where it is another broker."""
    broker, ticket = call.broker, call.ticket
    broker.store_plane.controller.put(
        AlterPartition(request, call.version, lambda response: broker.tell(Reply(ticket, response)))
    )
    return LATER


def controlled_shutdown(request: ControlledShutdownRequest, call: Call) -> Result:
    """Ask the controller to move all leaders away from a broker; NOT_CONTROLLER where it is another broker."""
    broker, ticket = call.broker, call.ticket

    def answered(code: ErrorCode, left: Sequence[tuple[str, int]]) -> None:
        remaining = [RemainingPartition(topic_name=topic, partition_index=index) for topic, index in left]
        broker.tell(Reply(ticket, ControlledShutdownResponse(error_code=code, remaining_partitions=remaining)))

    broker.store_plane.controller.put(ShutDown(request.broker_id, request.broker_epoch, answered))
    return LATER


def _refuse_shutdown(request: ControlledShutdownRequest, code: ErrorCode, text: str, version: int) -> Result:
    return ControlledShutdownResponse(error_code=code, remaining_partitions=[])


def allocate_producer_ids(request: AllocateProducerIdsRequest, call: Call) -> Result:
    """Give another broker a block of producer ids."""
    broker, ticket = call.broker, call.ticket
    epoch = broker.store_plane.controller.epoch
    if epoch is None:
        return _refuse_ids(request, ErrorCode.NOT_CONTROLLER, "", call.version)
    sender = epoch.context.brokers.get(request.broker_id)
    if sender is None:
        return _refuse_ids(request, ErrorCode.BROKER_ID_NOT_REGISTERED, "", call.version)
    if sender.epoch != request.broker_epoch:
        return _refuse_ids(request, ErrorCode.STALE_BROKER_EPOCH, "", call.version)

    def claimed(block: range | None) -> None:
        response = AllocateProducerIdsResponse(
            error_code=ErrorCode.NOT_CONTROLLER if block is None else ErrorCode.NONE,
            producer_id_start=block.start if block else 0,
            producer_id_len=len(block) if block else 0,
        )
        broker.tell(Reply(ticket, response))

    broker.store_plane.producer_id_blocks.claim(request.broker_id, claimed)
    return LATER


def _refuse_ids(request: AllocateProducerIdsRequest, code: ErrorCode, text: str, version: int) -> Result:
    return AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0)


def _refuse_alteration(request: AlterPartitionRequest, code: ErrorCode, text: str, version: int) -> Result:
    return AlterPartitionResponse(error_code=code, topics=[])


def _refuse(request: ControlRequest, code: ErrorCode, text: str, version: int) -> Result:
    """Without partitions, which look different from version to version: nothing was done to any."""
    if isinstance(request, LeaderAndIsrRequest):
        return LeaderAndIsrResponse(error_code=code)
    if isinstance(request, StopReplicaRequest):
        return StopReplicaResponse(error_code=code, partition_errors=[])
    return UpdateMetadataResponse(error_code=code)


NEEDS = (cluster(Operation.CLUSTER_ACTION),)
MANY = ELEMENTS_PER_REQUEST
ROUTES = (
    Route(
        4,
        LeaderAndIsrRequest,
        0,
        7,
        control,
        _refuse,
        NEEDS,
        elements=MANY,
    ),
    Route(
        5,
        StopReplicaRequest,
        0,
        4,
        control,
        _refuse,
        NEEDS,
        elements=MANY,
    ),
    Route(
        6,
        UpdateMetadataRequest,
        0,
        8,
        control,
        _refuse,
        NEEDS,
        elements=MANY,
    ),
    Route(
        56,
        AlterPartitionRequest,
        0,
        3,
        alter_partition,
        _refuse_alteration,
        NEEDS,
        elements=MANY,
    ),
    Route(7, ControlledShutdownRequest, 0, 3, controlled_shutdown, _refuse_shutdown, NEEDS),
    Route(67, AllocateProducerIdsRequest, 0, 0, allocate_producer_ids, _refuse_ids, NEEDS),
)
