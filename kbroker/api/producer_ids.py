"""InitProducerId: an id, and an epoch, for a producer that numbers its batches (KIP-98).

Served: InitProducerId 0-5. A producer without a transactional id gets a new id with epoch 0, whatever id it had before:
the log tells a new id from a retry, so nothing is appended twice.

Unlike Kafka: a producer with a transactional id is told COORDINATOR_NOT_AVAILABLE, which clients retry, until there is
a transaction coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.routes import Route
from protocol.errors import ErrorCode
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kbroker.api.call import Call, Result
    from kbroker.api.producer_blocks import ProducerIds

WAIT_MS = 5000  # for a block of ids from the metadata store: it takes one fsync where all is well
FIRST_EPOCH = 0


def init_producer_id(request: InitProducerIdRequest, call: Call) -> Result:
    """The next id of this broker's block; waits while a block is being claimed."""
    if request.transactional_id is not None:
        if not request.transactional_id:
            return _refuse(request, ErrorCode.INVALID_REQUEST, "")
        return _refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refuse(request, ErrorCode.INVALID_REQUEST, "")
    waiting = AwaitId(call.broker.plane.producer_ids, call.now_ms + WAIT_MS)
    return waiting.answer(call.now_ms) or waiting


class AwaitId:
    """A producer for which there is no id yet."""

    __slots__ = ("_ids", "deadline_ms")

    def __init__(self, ids: ProducerIds, deadline_ms: int) -> None:
        self._ids = ids
        self.deadline_ms = deadline_ms

    @property
    def keys(self) -> Sequence[Hashable]:
        """The blocks of ids."""
        return (self._ids,)

    def answer(self, now_ms: int) -> InitProducerIdResponse | None:
        """The response once there is an id."""
        producer_id = self._ids.take()
        if producer_id is None:
            return None
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=producer_id, producer_epoch=FIRST_EPOCH
        )

    def expired(self, now_ms: int) -> InitProducerIdResponse:
        """The store did not answer in time: the client asks again."""
        return _refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refusal(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_epoch=-1)


def _refuse(request: InitProducerIdRequest, code: ErrorCode, text: str) -> InitProducerIdResponse:
    return _refusal(code)


ROUTES = (Route(22, InitProducerIdRequest, 0, 5, init_producer_id, _refuse),)
