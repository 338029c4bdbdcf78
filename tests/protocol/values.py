"""Hypothesis strategies for message values, made from the schema alone."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from protocol.message import Message, Struct
from protocol.schema import Field, FieldType, fields_at, is_flexible

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_BYTES = st.one_of(st.binary(max_size=20), st.sampled_from([126, 127, 128, 300, 16383]).map(bytes))
_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.one_of(st.text(max_size=8), st.sampled_from([126, 127, 128, 300]).map(lambda size: "é" * size)),
    "bytes": _BYTES,
    "records": _BYTES,
    **{
        name: st.one_of(st.integers(low, high), st.sampled_from([low, high])) for name, (low, high) in _INTEGERS.items()
    },
}
_TAGS = st.one_of(st.none(), st.dictionaries(st.integers(1000, 2**31 - 1), _BYTES, min_size=1, max_size=3))


def messages(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Values of `cls` that `version` can carry without loss."""
    return structs(cls, version, is_flexible(cls, version))


@cache
def structs(cls: type[Struct], version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """Values of one struct. Hypothesis looks a strategy over when it is made, which is dearer than to draw from it."""
    arguments = {field.name: _field(field, version, flexible) for field in fields_at(cls, version)}
    if flexible:
        arguments["unknown_tags"] = _TAGS
    return st.builds(cls, **arguments)


def _field(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    values = _values(field.type, version, flexible)
    if field.tag is not None and field.type.struct is not None:  # Kafka does not write a tagged struct of defaults
        default = field.default_value()
        return st.one_of(st.just(default), values.filter(lambda value: value != field.zero()))
    if field.nullable_at(version):
        return st.one_of(st.none(), values)
    return values


def _values(kind: FieldType, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    if kind.struct is not None:
        return structs(kind.struct, version, flexible)
    if kind.element is not None:
        inner = _values(kind.element, version, flexible)
        if kind.element.struct is None:
            return st.one_of(st.lists(inner, max_size=4), st.builds(lambda one: [one] * 140, inner))
        return st.lists(inner, max_size=3)
    return _LEAVES[kind.kind]
