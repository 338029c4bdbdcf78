"""Types of columns that records are decoded to: Arrow's, of the kinds that Spark and tables have.

Called by the decoders of a registry's formats. Whole numbers are 64 bits wide and others are doubles, also where a
schema has less: a field that gets wider later stays in its column. Everything may be null.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import types

TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
UNSIGNED = pa.decimal128(20, 0)
"""What has room for 64 bits without a sign."""
_NAMES = {
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIME: "timestamp",
    LOCAL_TIME: "timestamp_ntz",
}


class MisfitError(ValueError):
    """Two types that have no column in common. The text says where, and which they are."""


class Bodies:
    """Bytes to decode, as they lie in an Arrow buffer. starts, ends: where each begins and ends."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        self.data, self.starts, self.ends = data, starts, ends

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, rows: np.ndarray) -> Bodies:
        """Some of them."""
        return Bodies(self.data, self.starts[rows], self.ends[rows])

    def array(self) -> pa.Array:
        """As Arrow has binaries."""
        return gathered(self.data, self.starts, self.ends - self.starts)

    def __iter__(self) -> Iterator[bytes]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.data[start:end].tobytes()


def gathered(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Pieces of a buffer as binaries."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    offsets = np.zeros(len(starts) + 1, np.int32)
    offsets[1:] = ends
    found = data[np.repeat(starts - offsets[:-1], lengths) + np.arange(total)]
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(found)])


def spread(found: pa.Array, rows: np.ndarray, count: int) -> pa.Array:
    """What was found of some rows, at their places among so many; null at the others."""
    if len(rows) == count:
        return found
    at = np.zeros(count, np.int64)
    at[rows] = np.arange(len(rows))
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    return found.take(pa.array(at, mask=absent))


def normal(kind: pa.DataType) -> pa.DataType:
    """The column that what is of an Arrow type is kept in."""
    if types.is_uint64(kind):
        return UNSIGNED
    if types.is_integer(kind) or types.is_duration(kind) or types.is_time(kind):
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_timestamp(kind):
        return TIME if kind.tz else LOCAL_TIME
    if types.is_struct(kind):
        return struct([(field.name, normal(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(normal(kind.key_type), normal(kind.item_type))
    if types.is_list(kind):
        return pa.list_(normal(kind.value_type))
    return kind


def struct(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    """A struct of these. Raises MisfitError where a table cannot tell two of the names apart."""
    seen: dict[str, str] = {}
    for name, _ in fields:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise MisfitError(f"fields {other} and {name} differ by case alone")
    return pa.struct(fields)


def merged(known: pa.DataType, more: pa.DataType, where: str) -> pa.DataType:
    """A type that has room for both: the fields of a struct are those of either. Raises MisfitError."""
    if known == more:
        return known
    if types.is_struct(known) and types.is_struct(more):
        fields = {field.name: field.type for field in known}
        for field in more:
            name = field.name
            fields[name] = merged(fields[name], field.type, f"{where}.{name}") if name in fields else field.type
        return struct(list(fields.items()))
    if types.is_map(known) and types.is_map(more) and known.key_type == more.key_type:
        return pa.map_(known.key_type, merged(known.item_type, more.item_type, f"{where}.value"))
    if types.is_list(known) and types.is_list(more):
        return pa.list_(merged(known.value_type, more.value_type, f"{where}[]"))
    raise MisfitError(f"{where} is {ddl(more)} and the column is {ddl(known)}")


def ddl(kind: pa.DataType) -> str:
    """A type as Spark writes it."""
    if types.is_struct(kind):
        inner = ", ".join(f"`{field.name.replace('`', '``')}`: {ddl(field.type)}" for field in kind)
        return f"struct<{inner}>"
    if types.is_map(kind):
        return f"map<{ddl(kind.key_type)}, {ddl(kind.item_type)}>"
    if types.is_list(kind):
        return f"array<{ddl(kind.value_type)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]


def plain(name: str) -> pa.DataType:
    """What Spark calls so, if it is made of nothing else."""
    return next(kind for kind, each in _NAMES.items() if each == name)
