"""InitProducerId: an id for an idempotent producer, an id and an epoch for a transactional one.

Served: InitProducerId 0-5. Ids come from blocks that belong to this broker (`producer_blocks.py`). Without a
transactional id any broker answers, and the epoch is always 0: a producer that asks again gets a new id. With one its
transaction coordinator does (`kbroker.txn`).

Unlike Kafka: a transactional id has at most 1,000 characters (INVALID_REQUEST), and where a broker has 200,000 of them,
an address that had more made than others have on average gets no new ones (POLICY_VIOLATION).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.api.authorization import Asking, Right, Special, Whole, once_touched
from kbroker.api.call import LATER
from kbroker.api.coordinator_ready import once_loaded
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.coordinator_types import TRANSACTION
from kbroker.config.limits import TRANSACTIONAL_ID_LENGTH
from kbroker.coordinator import Caller
from kbroker.txn import Producer
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, Result
    from kbroker.broker.producer_id_blocks import ProducerIds

NO_ID = -1
NO_EPOCH = -1
STORE_PATIENCE_MS = 15_000  # how long to wait for a block


def init_producer_id(request: InitProducerIdRequest, call: Call) -> Result:
    """Hand out an id."""
    plane = call.broker.plane
    if (request.producer_id == NO_ID) != (request.producer_epoch == NO_EPOCH) or request.transactional_id == "":
        return _failure(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None and len(request.transactional_id) > TRANSACTIONAL_ID_LENGTH:
        return _failure(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _for_transactions(request, request.transactional_id, call)
    waiting = AwaitId(plane.producer_ids, call.now_ms)
    return waiting.answer(call.now_ms) or waiting


def _for_transactions(request: InitProducerIdRequest, name: str, call: Call) -> Result:
    """The coordinator of the transactional id knows its id and epoch, and fences the producer that had them before."""
    limit_ms = call.broker.plane.configs.broker.transaction_max_timeout_ms
    if not 0 < request.transaction_timeout_ms <= limit_ms:
        return _failure(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    asker = None if request.producer_id == NO_ID else Producer(request.producer_id, request.producer_epoch)

    def with_an_id(request: InitProducerIdRequest, call: Call) -> Result:
        caller = Caller(call.ticket, call.version, client_host=call.session.peer_host)
        transactions = call.broker.transactions
        effects = transactions.init(name, asker, request.transaction_timeout_ms, caller, call.now_ms)
        transactions.runtime.carry_out(effects, call.now_ms)
        return LATER

    ids = call.broker.plane.producer_ids
    if ids.are_there:
        return with_an_id(request, call)
    return once_touched(ids, STORE_PATIENCE_MS, request, call, with_an_id, _refuse)


class AwaitId:
    """An InitProducerId that waits for the next block."""

    __slots__ = ("_ids", "deadline_ms")

    def __init__(self, ids: ProducerIds, now_ms: int) -> None:
        self._ids = ids
        self.deadline_ms = now_ms + STORE_PATIENCE_MS

    @property
    def keys(self) -> Sequence[Hashable]:
        """The blocks."""
        return [self._ids]

    def answer(self, now_ms: int) -> InitProducerIdResponse | None:
        """Once there is an id."""
        producer_id = self._ids.take()
        if producer_id is None:
            return None
        return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)

    def expired(self, now_ms: int) -> InitProducerIdResponse:
        """The producer may ask again."""
        return _failure(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _failure(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_ID, producer_epoch=NO_EPOCH)


def _refuse(request: InitProducerIdRequest, code: ErrorCode, text: str, version: int) -> InitProducerIdResponse:
    return _failure(code)


def _ask_to_write(request: InitProducerIdRequest, asking: Asking) -> Left:
    """Who may write to some topic may do so idempotently (KIP-679)."""
    yield from ()
    call = asking.call
    may = (
        request.transactional_id is not None
        or asking.allows(Operation.IDEMPOTENT_WRITE)
        or call.broker.auth_helper.allows_any(call.session, Operation.WRITE, ResourceType.TOPIC)
    )
    if not may:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return request


NEEDS = (
    Whole((Operation.WRITE,), ResourceType.TRANSACTIONAL_ID, lambda request: request.transactional_id),
    Special((Right(Operation.IDEMPOTENT_WRITE), Right(Operation.WRITE, ResourceType.TOPIC)), _ask_to_write),
)
ROUTES = (
    Route(
        22,
        InitProducerIdRequest,
        0,
        5,
        init_producer_id,
        _refuse,
        NEEDS,
        before=once_loaded(TRANSACTION, lambda request: request.transactional_id),
    ),
)
