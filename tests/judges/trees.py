"""Trees: values that every judge can be asked about and compared with, in JSON's own types.

A struct is a dict by field name (lower case, no underscores: Java's names and ours meet there), bytes and UUIDs are
hex, unknown tags are under "_tags". Called by the judges' tests and scripts/wire.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from protocol.message import Struct
from protocol.schema import FieldType, fields, fields_at

Json = Any

CHANGED_UNTIL_STABLE = {"ReadShareGroupStateSummaryResponse", "ShareGroupMetadataValue"}
"""Messages whose version 0 lacks fields in releases that had share groups in early access, kio's among them: those
releases do not judge them."""


def plain_name(name: str) -> str:
    """A field's name as every judge's naming habit comes down to; `generation_id` got a longer one in 4.4."""
    return name.replace("_", "").lower().replace("ormemberepoch", "")


def tree(value: Struct, version: int) -> Json:
    """The fields that `version` has, as a tree."""
    return _struct_tree(value, version)


def _struct_tree(value: Struct, version: int | None) -> Json:
    made = {
        name: _value_tree(of, getattr(value, attribute), version) for name, attribute, of in _plan(type(value), version)
    }
    if value.unknown_tags:
        made["_tags"] = {str(tag): bytes(data).hex() for tag, data in value.unknown_tags.items()}
    return made


@cache
def _plan(cls: type[Struct], version: int | None) -> list[tuple[str, str, FieldType]]:
    wanted = fields(cls) if version is None else fields_at(cls, version)
    return [(plain_name(field.name), field.name, field.type) for field in wanted]


def _value_tree(of: FieldType, value: Any, version: int | None) -> Json:
    if value is None:
        return None
    if of.kind == "array":
        assert of.element is not None
        return [_value_tree(of.element, one, version) for one in value]
    if of.kind == "struct":
        return _struct_tree(value, version)
    if of.kind in ("bytes", "records", "uuid"):
        return bytes(value).hex()
    return value


def absent_differences(value: Struct, theirs: Json, version: int, path: str = "") -> list[str]:
    """Where fields that `version` lacks did not decode to the default that the judge gives them.

    value: decoded from bytes of `version`. theirs: a tree of all fields; what it does not know at all is passed over.
    """
    found = []
    for field in fields(type(value)):
        name = plain_name(field.name)
        if name not in theirs:
            continue
        ours = getattr(value, field.name)
        here = f"{path}.{field.name}" if path else field.name
        if not field.present_at(version):
            if _value_tree(field.type, ours, None) != _without_tags(theirs[name], field.type):
                found.append(f"{here}: ours {ours!r}, theirs {theirs[name]!r}")
        elif field.type.kind == "struct" and ours is not None:
            found += absent_differences(ours, theirs[name], version, here)
        elif field.type.kind == "array" and ours and field.type.element and field.type.element.kind == "struct":
            for index, (one, other) in enumerate(zip(ours, theirs[name], strict=True)):
                found += absent_differences(one, other, version, f"{here}[{index}]")
    return found


def _without_tags(theirs: Json, of: FieldType) -> Json:
    """A default struct of the judge, cut down to the fields that ours has: later releases add some."""
    if of.struct is None or theirs is None or not isinstance(theirs, dict):
        return theirs
    known = {plain_name(field.name): field.type for field in fields(of.struct)}
    return {name: _without_tags(value, known[name]) for name, value in theirs.items() if name in known}


def agree(ours: Json, theirs: Json) -> bool:
    """Whether a tree of one version equals the judge's tree of all fields, where ours has a field."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("_tags") != theirs.get("_tags"):
            return False
        return all(name in theirs and agree(value, theirs[name]) for name, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    return bool(ours == theirs)
