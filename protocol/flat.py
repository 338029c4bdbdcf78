"""Messages as plain tuples, for those that a broker reads and writes by the ten thousand in a second.

A struct is the tuple of its fields, all of them and in the order of their declaration, arrays are lists, and a field
that a version does not have is its default. Tags that the schema does not know are passed over. `Message.read_flat`
and `write_flat` are generated from the schema by the same generators as `decode` and `encode` (`codec.py`), and read
and write the same bytes; no instance is made in between.

    ProduceRequest.read_flat(frame, 9, start)  ->  (None, 1, 30000, [("orders", ZERO_UUID, [(0, <memory at ...>)])])

Who reads all fields takes the tuple apart into their names, in a line; who reads few names their places by `place`:

    RACK_ID = place(FetchRequest, "rack_id")
    rack_id = request[RACK_ID]

Also here: from one form to the other, for what wants names (tools, tests, and what meets a message rarely).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias, TypeVar

from protocol.message import Struct
from protocol.schema import Field, FieldType, default_struct, fields

Flat: TypeAlias = tuple[Any, ...]
AnyStruct = TypeVar("AnyStruct", bound=Struct)


def flattened(struct: Struct) -> Flat:
    """The tuple of an instance's fields. What it has of unknown tags is left out."""
    return _tuple(type(struct), struct)


def message_of(cls: type[AnyStruct], values: Flat) -> AnyStruct:
    """The instance of a tuple; its arrays are copies."""
    struct = cls.__new__(cls)
    for field, value in zip(fields(cls), values, strict=True):
        setattr(struct, field.name, _named(field.type, value))
    struct.unknown_tags = None
    return struct


def place(cls: type[Struct], name: str) -> int:
    """Where a field stands in the tuple of its struct: a constant beside the code that reads that field alone."""
    return [field.name for field in fields(cls)].index(name)


def flat_default(field: Field) -> Any:
    """What a version without the field yields: as `Field.default_value`, a struct as its tuple."""
    value = field.default_value()
    cls = field.type.struct
    return value if cls is None or value is None else default_tuple(cls)


@cache
def default_tuple(cls: type[Struct]) -> Flat:
    """A struct of defaults alone, always the same one: as a tagged field, it is seen at a glance to be left out."""
    return _tuple(cls, default_struct(cls))


def _tuple(cls: type[Struct], struct: Struct) -> Flat:
    return tuple(_flat(field.type, getattr(struct, field.name)) for field in fields(cls))


def _flat(kind: FieldType, value: Any) -> Any:
    if value is None:
        return None
    if kind.struct is not None:
        return _tuple(kind.struct, value)
    if kind.element is not None:
        return [_flat(kind.element, each) for each in value]
    return value


def _named(kind: FieldType, value: Any) -> Any:
    if value is None:
        return None
    if kind.struct is not None:
        return message_of(kind.struct, value)
    if kind.element is not None:
        return [_named(kind.element, each) for each in value]
    return value
