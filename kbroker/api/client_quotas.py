"""DescribeClientQuotas, AlterClientQuotas: how much users, client ids and addresses may do (KIP-546, KIP-612).

Served: 0-1 of both. Quotas are settings of their entities in the metadata store, as Kafka keeps them, so brokers of
both kinds heed them alike. A change is written, applied here before it is answered, and reaches the other brokers by a
notice. All changes of one entity are made, or none. What is described is what this broker has been told.

Unlike Kafka: the address of an `ip` entity is written as four numbers; names of hosts are not looked up.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, cast

from kbroker.api.authorization import cluster
from kbroker.api.chunks import is_break
from kbroker.api.configs import AwaitStore, Entity, value_of
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.broker.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
)
from kbroker.config.settings import INT_MAX, LONG_MAX
from kbroker.metadata.entities import DEFAULT_ENTITY, desanitized, is_entity, sanitized
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    ComponentData,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
    ValueData,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kbroker.api.call import Call, InSlices
    from kbroker.broker.store_plane import StorePlane
    from kbroker.controller.admin import Change, Pending

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)
KEYS = {"users": OF_CLIENTS, "clients": OF_CLIENTS, "ips": (CONNECTION_CREATION_RATE,)}
PARTS = {"users": (USER, CLIENT_ID), "clients": (CLIENT_ID,), "ips": (IP,)}
LONGS, INTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE), (CONNECTION_CREATION_RATE,)
LIMIT = float(1 << 64)
EPSILON = 1e-6  # a byte rate may be so far from a whole number

# -- AlterClientQuotas


def alter_client_quotas(request: AlterClientQuotasRequest, call: Call) -> InSlices:
    """Set and remove quotas; of an entity, or of a part of one, that is named twice the last word counts."""
    plane = call.broker.store_plane
    outcomes: dict[tuple[tuple[str, str | None], ...], KafkaError | tuple[str, str]] = {}
    changes: dict[tuple[str, str], Change] = {}
    for at, entry in enumerate(request.entries):
        if is_break(at):
            yield
        parts = {part.entity_type: part.entity_name for part in entry.entity}
        named = tuple(sorted(parts.items()))
        try:
            entity = _entity(parts)
            changes[entity] = _change(entry.ops, entity[0])
            outcomes[named] = entity
        except KafkaError as error:
            outcomes[named] = error
    pending = plane.admin.change_configs(changes, validate_only=request.validate_only)

    def answer_with() -> InSlices:
        results = []
        for at, (named, outcome) in enumerate(outcomes.items()):
            if is_break(at):
                yield
            error = outcome if isinstance(outcome, KafkaError) else None
            if not isinstance(outcome, KafkaError):
                error = _written(outcome, pending, plane, validate_only=request.validate_only)  # type: ignore[arg-type]
            results.append(_altered(named, error))
        return AlterClientQuotasResponse(entries=results)

    waiting = AwaitStore(pending, answer_with, call.now_ms)
    answer = waiting.answer(call.now_ms)
    return waiting if answer is None else (yield from answer)


def _entity(parts: Mapping[str, str | None]) -> tuple[str, str]:
    """(kind, name) of an entity in the metadata store. Raises: KafkaError INVALID_REQUEST, as Kafka does."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    nodes = {kind: DEFAULT_ENTITY if name is None else sanitized(name) for kind, name in parts.items()}
    user, client_id, address = (nodes.get(kind) for kind in (USER, CLIENT_ID, IP))
    if address is not None:
        if len(nodes) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
        if address != DEFAULT_ENTITY and not _is_address(address):
            raise _invalid(f"{address} is not a valid IP or resolvable host.")
        entity = ("ips", address)
    elif user is None:
        entity = ("clients", str(client_id))
    else:
        entity = ("users", user if client_id is None else f"{user}/clients/{client_id}")
    if not is_entity("/".join(entity)):  # a dot, or two: no name of a node
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
    return entity


def _is_address(text: str) -> bool:
    """Whether this is an address of IPv4: nodes of others are not read by Kafka either."""
    parts = text.split(".")
    return len(parts) == 4 and all(re.fullmatch("[0-9]{1,3}", each) and int(each) < 256 for each in parts)


def _change(operations: Sequence[OpData], kind: str) -> Change:
    """What is to become of an entity's settings. Raises: KafkaError INVALID_REQUEST."""
    wanted = {each.key: None if each.remove else each.value for each in operations}
    texts = {key: None if value is None else _text(key, value, kind) for key, value in wanted.items()}

    def change(before: dict[str, str]) -> dict[str, str]:
        after = {**before, **{key: text for key, text in texts.items() if text is not None}}
        return {key: text for key, text in after.items() if texts.get(key, text) is not None}

    return change


def _text(key: str, value: float, kind: str) -> str:
    """A quota as it is stored."""
    if key not in KEYS[kind]:
        raise _invalid(f"Invalid configuration key {key}")
    if key in LONGS or key in INTS:
        whole = 0 if math.isnan(value) else int(max(-LIMIT, min(value + EPSILON, LIMIT)))
        most = INT_MAX if key in INTS else LONG_MAX
        if abs(min(whole, most) - value) > EPSILON:
            raise _invalid(f"Configuration {key} must be a {'INT' if key in INTS else 'LONG'} value")
        return str(whole)
    return repr(value).replace("inf", "Infinity").replace("nan", "NaN")


def _written(
    entity: tuple[str, str], pending: Pending[dict[Entity, object]], plane: StorePlane, *, validate_only: bool
) -> KafkaError | None:
    """What became of one entity's change; one that was made is applied here, before its notice comes round."""
    try:
        settings = value_of(pending, entity)
    except KafkaError as error:
        return error
    if isinstance(settings, KafkaError):
        return settings
    if not validate_only:
        plane.notices.set_entity("/".join(entity), cast("dict[str, str]", settings))
    return None


def _altered(named: Iterable[tuple[str, str | None]], error: KafkaError | None) -> AlterClientQuotasResult:
    return AlterClientQuotasResult(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=None if error is None or error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message,
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in named],
    )


def _refuse_alter(
    request: AlterClientQuotasRequest, code: ErrorCode, text: str, version: int
) -> AlterClientQuotasResponse:
    error = KafkaError(code, text)
    entries = [[(part.entity_type, part.entity_name) for part in entry.entity] for entry in request.entries]
    return AlterClientQuotasResponse(entries=[_altered(each, error) for each in entries])


# -- DescribeClientQuotas


def describe_client_quotas(request: DescribeClientQuotasRequest, call: Call) -> InSlices:
    """Tell the quotas of the entities that fit."""
    wanted = _filter(request.components)
    kinds = {"ips"} if IP in wanted else {"users", "clients"} if wanted else {"users", "clients", "ips"}
    entries = []
    entities = call.broker.plane.entities.settings
    for at, (path, settings) in enumerate(sorted(entities.items())):
        if is_break(at):
            yield
        kind, *nodes = path.split("/")
        names = [None if node == DEFAULT_ENTITY else desanitized(node) for node in nodes[::2]]
        parts = dict(zip(PARTS[kind], names, strict=False))
        if kind in kinds and _fits(parts, wanted, strict=request.strict):
            values = {key: found for key in KEYS[kind] if (found := _shown(settings.get(key))) is not None}
            if values:
                entries.append(_described(parts, values))
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message="", entries=entries)


def _filter(components: Iterable[ComponentData]) -> dict[str, ComponentData]:
    """By type. Raises: KafkaError, as Kafka does."""
    found: dict[str, ComponentData] = {}
    for each in components:
        kind = each.entity_type
        if each.match_type not in (EXACT, DEFAULT, ANY) or (each.match_type == EXACT and each.match is None):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        if not kind:
            raise _invalid("Unexpected empty filter component entity type")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kind in found:
            raise _invalid(f"Duplicate {kind.removesuffix('-id')} filter component entity type")
        found[kind] = each
    if IP in found and len(found) > 1:
        raise _invalid(
            "Invalid entity filter component combination, "
            "IP filter component should not be used with user or clientId filter component."
        )
    return found


def _fits(parts: Mapping[str, str | None], wanted: Mapping[str, ComponentData], *, strict: bool) -> bool:
    """Whether an entity has all parts that are wanted, and where `strict` no others."""
    if strict and parts.keys() != wanted.keys():
        return False
    for kind, each in wanted.items():
        if kind not in parts:
            return False
        if each.match_type != ANY and parts[kind] != (each.match if each.match_type == EXACT else None):
            return False
    return True


def _shown(text: str | None) -> float | None:
    """A quota as it is told; None for what makes no sense."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _described(parts: Mapping[str, str | None], values: Mapping[str, float]) -> DescribeClientQuotasEntry:
    return DescribeClientQuotasEntry(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        values=[ValueData(key=key, value=value) for key, value in values.items()],
    )


def _refuse_describe(
    request: DescribeClientQuotasRequest, code: ErrorCode, text: str, version: int
) -> DescribeClientQuotasResponse:
    message = None if code is ErrorCode.UNKNOWN_SERVER_ERROR else text
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


ROUTES = (
    Route(
        48,
        DescribeClientQuotasRequest,
        0,
        1,
        describe_client_quotas,
        _refuse_describe,
        (cluster(Operation.DESCRIBE_CONFIGS),),
    ),
    Route(49, AlterClientQuotasRequest, 0, 1, alter_client_quotas, _refuse_alter, (cluster(Operation.ALTER_CONFIGS),)),
)
