"""Hypothesis strategies for messages, made from the message's own schema.

`messages(cls, version)` gives values that every field of that version can hold: extremes, nulls where the version
allows them, any Unicode, empty and (seldom) large, and unknown tags in flexible versions. Fields the version lacks
stay at their default. Called by the judges' tests, by the fuzz seeds and by scripts/wire. It knows no message by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from protocol.message import ZERO_UUID, Message, Struct
from protocol.schema import Field, FieldType, fields_at, is_flexible

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Struct)
_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}
_SIZES = (126, 127, 128, 300, 16_382, 16_383)  # lengths around which the varint before them grows
_MANY = (126, 127, 128, 300)
_SELDOM = 40  # one field in so many is large


@cache
def messages(cls: type[M], version: int, unknown_tags: bool = True) -> SearchStrategy[M]:
    """Values of a message that `version` can carry."""
    return structs(cls, version, unknown_tags and is_flexible(cls, version))


@cache
def structs(cls: type[S], version: int, unknown_tags: bool) -> SearchStrategy[S]:
    """Values of a struct inside a message of `version`."""
    present = {field.name: _field(field, version, unknown_tags) for field in fields_at(cls, version)}
    if unknown_tags:
        present["unknown_tags"] = _unknown_tags()
    return st.fixed_dictionaries(present).map(lambda values: cls(**values))


def _field(field: Field, version: int, unknown_tags: bool) -> SearchStrategy[Any]:
    values = _typed(field.type, version, unknown_tags)
    if field.nullable_at(version):
        values = st.none() | values
    if field.tag is not None:  # the default, left out on the wire, is worth a draw of its own
        values = st.builds(field.default_value) | values
    return values


def _typed(of: FieldType, version: int, unknown_tags: bool) -> SearchStrategy[Any]:
    if of.kind == "array":
        assert of.element is not None
        return _lists(of.element, _typed(of.element, version, unknown_tags), version)
    if of.kind == "struct":
        assert of.struct is not None
        return structs(of.struct, version, unknown_tags)
    return primitives(of.kind)


@cache
def primitives(kind: str) -> SearchStrategy[Any]:
    """Values of a primitive type by its name in the schemas."""
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        return st.sampled_from((low, -1 if low else 1, 0, 1, high)) | st.integers(low, high)
    made: dict[str, Callable[[], SearchStrategy[Any]]] = {
        "bool": st.booleans,
        "float64": lambda: st.floats(allow_nan=False),  # no judge could compare one
        "uuid": lambda: st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16),
        "string": lambda: _sometimes(
            st.text(max_size=8), st.sampled_from(_SIZES).map(lambda size: "µ" + "x" * (size - 2))
        ),
        "bytes": lambda: _blobs,
        "records": lambda: _blobs,
    }
    return made[kind]()


def _sometimes(usual: SearchStrategy[Any], large: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.integers(0, _SELDOM).flatmap(lambda rng: large if rng == _SELDOM else usual)


_blobs = _sometimes(
    st.binary(max_size=8), st.sampled_from(_SIZES).map(lambda size: b"\xff\x00" * (size // 2) + b"." * (size % 2))
)


def _lists(of: FieldType, elements: SearchStrategy[Any], version: int) -> SearchStrategy[list[Any]]:
    usual = st.lists(elements, max_size=3)
    if of.struct is not None and any(
        field.type.kind in ("array", "bytes", "records") for field in fields_at(of.struct, version)
    ):
        return usual  # many of those, each with its own many, would be megabytes
    return _sometimes(usual, st.builds(lambda one, count: [one] * count, elements, st.sampled_from(_MANY)))


def _unknown_tags() -> SearchStrategy[dict[int, bytes] | None]:
    """Tags far above any that Kafka has given out, in the order in which they are written."""
    tags = st.dictionaries(
        st.integers(1000, 1005) | st.sampled_from((16_383, 16_384, 2**31 - 2)), st.binary(max_size=4), max_size=2
    )
    return st.none() | tags.map(lambda found: dict(sorted(found.items())) or None)
