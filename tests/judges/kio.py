"""kio as a judge: schemas generated from Kafka's definitions by people who never saw ours, run by their code.

Called by the judges' tests and scripts/wire. `fit` first moves a value into what kio's own types can hold (it makes a
datetime of some int64, an enumeration of error codes); every other value is judged as it is. kio drops the frame at
an unknown tag, so those are for the Java judge.
"""

from __future__ import annotations

import datetime
import io
import math
from dataclasses import fields as dataclass_fields
from functools import cache
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, is_optional

from protocol.message import Message, Struct
from protocol.schema import Field, fields
from tests.judges.trees import CHANGED_UNTIL_STABLE, Json, plain_name

_CODES = sorted(int(code) for code in ErrorCode)


@cache
def _paths() -> dict[tuple[str, int], str]:
    return {
        (path.partition(":")[2], version): path
        for of_version in schema_name_map.values()
        for version, of_type in of_version.items()
        for path in of_type.values()
    }


def can_judge(message: str, version: int) -> bool:
    """Whether kio has a class of a message in one version; nothing of it is imported yet."""
    return message not in CHANGED_UNTIL_STABLE and (message, version) in _paths()


@cache
def entity(message: str, version: int) -> Any:
    """kio's class of a message in one version, or None if it has none that can judge."""
    return resolve_name(_paths()[message, version]) if can_judge(message, version) else None


def decode(message: type[Message], version: int, data: bytes) -> tuple[Json, bytes]:
    """The tree that kio reads out of bytes, and the bytes that it writes for what it read."""
    cls = entity(message.__name__, version)
    value, size = entity_reader(cls)(data, 0)
    assert size == len(data), f"kio left {len(data) - size} bytes of {message.__name__} {version}"
    out = io.BytesIO()
    entity_writer(cls)(out, value)
    return _struct_tree(value, message), out.getvalue()


def _struct_tree(value: Any, ours: type[Struct]) -> Json:
    if value is None:
        return None
    made = {}
    for field in dataclass_fields(value):
        mine = _our_field(ours, field.name)
        held = getattr(value, field.name)
        inner = mine.type.struct or (mine.type.element and mine.type.element.struct)
        if inner is None:
            made[plain_name(mine.name)] = _plain_tree(held)
        elif isinstance(held, tuple):
            made[plain_name(mine.name)] = [_struct_tree(one, inner) for one in held]
        else:
            made[plain_name(mine.name)] = _struct_tree(held, inner)
    return made


def _plain_tree(value: Any) -> Json:
    match value:
        case tuple():
            return [_plain_tree(one) for one in value]
        case bytes():
            return value.hex()
        case UUID():
            return value.bytes.hex()
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            return round(value.timestamp() * 1000)
    return value


@cache
def _our_field(ours: type[Struct], kio_name: str) -> Field:
    """Ours for one of kio's, which drops the unit of what it makes a datetime or timedelta."""
    found = {plain_name(field.name): field for field in fields(ours)}
    name = plain_name(kio_name)
    return found[name] if name in found else found[name + "ms"]


def agree(ours: Json, theirs: Json) -> bool:
    """Whether our tree of a version is kio's, which spells some absent values differently: see the three cases."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(agree(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    if theirs is None:  # no datetime is -1, no UUID is all zeros
        return ours is None or ours == -1 or ours == "0" * 32
    return bool(ours == theirs)


def fit(value: Struct, cls: Any) -> None:
    """Change a value, in place, into one that kio's class can hold."""
    for field in dataclass_fields(cls):
        mine = _our_field(type(value), field.name)
        held = getattr(value, mine.name)
        shape = classify_field(field)
        if held is None:
            if "tag" in field.metadata:  # kio writes no null under a tag
                setattr(value, mine.name, mine.default_value())
        elif isinstance(shape, EntityTupleField):
            for one in held:
                fit(one, shape.type_)
        elif isinstance(shape, EntityField):
            assert mine.type.struct is not None
            own = mine.type.struct(**{inner: getattr(held, inner) for inner in mine.type.struct.declared})
            fit(own, shape.type_)
            setattr(value, mine.name, own)  # what was held may be the default that all share
        elif isinstance(held, list):
            setattr(value, mine.name, [_fitted(one, field.metadata["kafka_type"], False) for one in held])
        else:
            setattr(value, mine.name, _fitted(held, field.metadata["kafka_type"], is_optional(field)))


def _fitted(value: Any, kafka_type: str, optional: bool) -> Any:
    match kafka_type:
        case "error_code":
            return value if value in _CODES else _CODES[value % len(_CODES)]
        case "timedelta_i64":
            return value % 2**40 - 2**39
        case "datetime_i64":
            return value if value == -1 and optional else abs(value) % 2**31 * 1000
        case "float64":
            return value if math.isfinite(value) else 0.5
    return value
