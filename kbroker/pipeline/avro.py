"""Values in Avro as columns: field after field, each of all records in one step.

Called by `registry.py`. fastavro reads the schemas, and knows their names, logical types and rules; of records it makes
Python's objects, which takes ten times as long as to decode them so (docs/decisions). The tests hold both to the same
answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbroker.pipeline.shapes import LOCAL_TIME, TIME, Bodies, MisfitError, ddl, gathered, spread, struct

MILLIS_US = (-(2**63) // 1000, (2**63 - 1) // 1000)
"""Which ms there are as microseconds."""
LONG = 64
"""Numbers of a block from which on it is read in one step."""
DIGITS = 38
"""Of a decimal, at most, in Arrow and Spark."""


class TroubleError(Exception):
    """Records that do not decode. rows: which."""

    def __init__(self, rows: np.ndarray, why: str) -> None:
        super().__init__(why)
        self.rows, self.why = rows, why


class _Records:
    """Records side by side, and how far each is read."""

    def __init__(self, bodies: Bodies) -> None:
        self.data, self.at, self.ends = bodies.data, bodies.starts.copy(), bodies.ends

    def long(self, rows: np.ndarray) -> np.ndarray:
        """A number of each of these records."""
        value = np.zeros(len(rows), np.uint64)
        at, ends = self.at[rows], self.ends[rows]
        going, shift = np.arange(len(rows)), 0
        while len(going):
            now = at[going]
            _check(rows[going], now < ends[going], "it ends too early")
            if shift > 63:
                raise TroubleError(rows[going], "a number has more than 64 bits")
            byte = self.data[now]
            value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[going] = now + 1
            going, shift = going[byte >= 0x80], shift + 7
        self.at[rows] = at
        return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)

    def sized(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where bytes begin whose length stands before them, and how long they are."""
        lengths = self.long(rows)
        return self.passed(rows, lengths), lengths

    def passed(self, rows: np.ndarray, lengths: Any) -> np.ndarray:
        """Where so many bytes begin, which are passed over."""
        at = self.at[rows]
        _check(rows, (lengths >= 0) & (lengths <= self.ends[rows] - at), "it ends too early")
        self.at[rows] = at + lengths
        return at


def _check(rows: np.ndarray, sound: np.ndarray, why: str) -> None:
    if not sound.all():
        raise TroubleError(rows[~sound], why)


Read = Callable[[_Records, np.ndarray], pa.Array]


class Avro:
    """A schema. kind: what its records are as a column."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """references: what it refers to, by names, each after what it refers to itself. Raises ValueError."""
        import fastavro

        self._named: dict[str, Any] = {}
        try:
            for each in references.values():
                fastavro.parse_schema(json.loads(each), named_schemas=self._named)
            parsed = fastavro.parse_schema(json.loads(text), named_schemas=self._named)
        except Exception as error:  # libraries raise many kinds of errors for what is no schema
            raise ValueError(f"the schema is no Avro: {error or type(error).__name__}") from None
        self.kind, self._read = self._node(parsed, ())

    def decoded(self, bodies: Bodies) -> tuple[pa.Array, dict[int, str]]:
        """The records, null where one does not decode, and why it does not, by its place."""
        reasons: dict[int, str] = {}
        rows = np.arange(len(bodies))
        while True:
            records = _Records(bodies.of(rows))
            every = np.arange(len(rows))
            try:
                found = self._read(records, every)
                _check(every, records.at == records.ends, "bytes are left behind it")
                return spread(found, rows, len(bodies)), reasons
            except TroubleError as trouble:
                reasons |= dict.fromkeys(rows[trouble.rows].tolist(), trouble.why)
                rows = np.delete(rows, trouble.rows)

    # ---- how each kind is read

    def _node(self, schema: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        if isinstance(schema, list):
            return self._union(schema, within)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema]
            schema = self._named[schema]
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, within)
        if kind == "enum":
            return pa.string(), _enum(schema["symbols"])
        if kind == "array":
            item, read = self._node(schema["items"], within)
            return pa.list_(item), _array(read, _width(schema["items"]))
        if kind == "map":
            item, read = self._node(schema["values"], within)
            return pa.map_(pa.string(), item), _map(read, item)
        if (logical := schema.get("logicalType")) is not None and (found := _logical(schema, kind, logical)):
            return found
        return (pa.binary(), _fixed(schema["size"])) if kind == "fixed" else self._node(kind, within)

    def _record(self, schema: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        name = schema["name"]
        if name in within:
            raise MisfitError(f"{name} is within itself, which no column can be")
        nodes = [(field["name"], *self._node(field["type"], (*within, name))) for field in schema["fields"]]
        if not nodes:
            return pa.string(), lambda records, rows: pa.repeat(pa.scalar("{}"), len(rows))
        whole, reads = struct([(name, kind) for name, kind, _ in nodes]), [read for _, _, read in nodes]
        fields = list(whole)
        return whole, lambda records, rows: pa.StructArray.from_arrays(
            [read(records, rows) for read in reads], fields=fields
        )

    def _union(self, branches: Sequence[Any], within: tuple[str, ...]) -> tuple[pa.DataType, Read]:
        nodes = [None if each == "null" else self._node(each, within) for each in branches]
        kinds = list(dict.fromkeys(node[0] for node in nodes if node))
        if not kinds:
            return _PLAIN["null"][0], _union_of([None] * len(nodes), lambda parts: parts[0])
        if set(kinds) == {pa.int64(), pa.float64()}:
            kinds = [pa.float64()]
        if len(kinds) == 1:  # all in one column, of which each record has one
            (kind,) = kinds
            one = [_cast(node, kind) for node in nodes]
            return kind, _union_of(one, lambda parts: parts[0] if len(parts) == 1 else pc.coalesce(*parts))
        members = [node for node in nodes if node]
        whole = struct([(f"member{index}", node[0]) for index, node in enumerate(members)])
        fields = list(whole)
        together = _union_of(nodes, lambda parts: parts)

        def read(records: _Records, rows: np.ndarray) -> pa.Array:
            parts = together(records, rows)
            some = np.any([part.is_valid().to_numpy(zero_copy_only=False) for part in parts], axis=0)
            return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(~some))

        return whole, read


def _cast(node: tuple[pa.DataType, Read] | None, kind: pa.DataType) -> tuple[pa.DataType, Read] | None:
    if node is None or node[0] == kind:
        return node
    read = node[1]
    return kind, lambda records, rows: read(records, rows).cast(kind, safe=False)


def _union_of(nodes: Sequence[tuple[pa.DataType, Read] | None], together: Callable[[list[pa.Array]], Any]) -> Any:
    """Reads a branch's number and the branch: an array of all rows for each that is not null."""

    def read(records: _Records, rows: np.ndarray) -> Any:
        chosen = records.long(rows)
        _check(rows, (chosen >= 0) & (chosen < len(nodes)), "a union has no such branch")
        parts = []
        for number, node in enumerate(nodes):
            if node is not None:
                mine = np.flatnonzero(chosen == number)
                parts.append(spread(node[1](records, rows[mine]), mine, len(rows)))
        return together(parts or [pa.nulls(len(rows), pa.string())])

    return read


def _enum(symbols: Sequence[str]) -> Read:
    texts = pa.array(symbols, pa.string())

    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        chosen = records.long(rows)
        _check(rows, (chosen >= 0) & (chosen < len(symbols)), "an enum has no such symbol")
        return texts.take(pa.array(chosen))

    return read


def _blocks(
    records: _Records, rows: np.ndarray, item: Callable[[_Records, np.ndarray], None], width: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Read items, the n-th of all records in one step; of numbers, a long block in one. item: reads one of each of
    these rows of these records. width: as `_width` has it.

    Returns: the offsets of each record's items, and the order that brings them side by side.
    """
    live, lengths, owners = np.arange(len(rows)), np.zeros(len(rows), np.int64), [np.zeros(0, np.int64)]
    while len(live):
        counts = records.long(rows[live])
        sized = counts < 0
        records.long(rows[live[sized]])  # the block's bytes
        counts = np.abs(counts)
        some = counts > 0
        live, counts = live[some], counts[some]
        room = records.ends[rows[live]] - records.at[rows[live]]
        _check(rows[live], (counts >= 0) & (counts <= room), "it has more items than bytes")
        lengths[live] += counts
        at_once = counts > (LONG if width else np.inf)
        if at_once.any():
            mine = np.repeat(live[at_once], counts[at_once])
            _run(records, rows[mine], _starts(records, rows[live[at_once]], counts[at_once], width), item)
            owners.append(mine)
        stepwise, left = live[~at_once], counts[~at_once]
        for number in range(int(left.max(initial=0))):
            mine = stepwise[left > number]
            item(records, rows[mine])
            owners.append(mine)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return offsets, np.argsort(np.concatenate(owners), kind="stable")


def _starts(records: _Records, rows: np.ndarray, counts: np.ndarray, width: int) -> np.ndarray:
    """Where each number of long blocks begins, one block of each of these rows; they are passed over."""
    found = []
    for index, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
        at, end = int(records.at[row]), int(records.ends[row])
        if width > 0:
            behind = at + width * np.arange(1, count + 1)
        else:
            behind = np.flatnonzero(records.data[at : min(end, at - width * count)] < 0x80)[:count] + at + 1
        is_whole = len(behind) == count and behind[-1] <= end
        _check(rows[index : index + 1], np.array([is_whole]), "it ends too early")
        found.append(np.concatenate([[at], behind[:-1]]))
        records.at[row] = behind[-1]
    return np.concatenate(found)


def _run(
    records: _Records, owners: np.ndarray, starts: np.ndarray, item: Callable[[_Records, np.ndarray], None]
) -> None:
    """Read items that begin there, as if each were a record."""
    try:
        item(_Records(Bodies(records.data, starts, records.ends[owners])), np.arange(len(starts)))
    except TroubleError as trouble:
        raise TroubleError(np.unique(owners[trouble.rows]), trouble.why) from None


def _width(schema: Any) -> int:
    """How many bytes an item has: -10, at most 10, of which the last is below 0x80; 0 for one of no such kind."""
    kind = schema.get("type") if isinstance(schema, dict) else schema
    return {"int": -10, "long": -10, "float": 4, "double": 8}.get(kind, 0) if isinstance(kind, str) else 0


def _array(read_item: Read, width: int) -> Read:
    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        items = [read_item(records, rows[:0])]
        offsets, order = _blocks(records, rows, lambda *mine: items.append(read_item(*mine)), width)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.concat_arrays(items).take(pa.array(order)))

    return read


def _map(read_item: Read, item: pa.DataType) -> Read:
    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        names, items = [_text(records, rows[:0])], [read_item(records, rows[:0])]

        def pair(some: _Records, mine: np.ndarray) -> None:
            names.append(_text(some, mine))
            items.append(read_item(some, mine))

        offsets, order = _blocks(records, rows, pair)
        sides = [pa.concat_arrays(side).take(pa.array(order)) for side in (names, items)]
        return pa.MapArray.from_arrays(pa.array(offsets), *sides, type=pa.map_(pa.string(), item))

    return read


def _text(records: _Records, rows: np.ndarray) -> pa.Array:
    found = gathered(records.data, *records.sized(rows))
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        _check(rows, np.array([_is_text(each) for each in found.to_pylist()]), "a text is no UTF-8")
        raise


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fixed(size: int) -> Read:
    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        sizes = np.full(len(rows), size)
        return gathered(records.data, records.passed(rows, sizes), sizes)

    return read


def _number(kind: str) -> Read:
    size = np.dtype(kind).itemsize

    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        at = records.passed(rows, np.full(len(rows), size))
        found = records.data[at[:, None] + np.arange(size)].reshape(-1).view(kind)
        return pa.array(found.astype(np.float64))

    return read


def _boolean(records: _Records, rows: np.ndarray) -> pa.Array:
    byte = records.data[records.passed(rows, np.ones(len(rows), np.int64))]
    _check(rows, byte < 2, "a boolean is neither 0 nor 1")
    return pa.array(byte == 1)


def _long(kind: pa.DataType, times: int = 1) -> Read:
    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        found = records.long(rows)
        if times != 1:
            _check(rows, (found >= MILLIS_US[0]) & (found <= MILLIS_US[1]), f"no {ddl(kind)} is so far away")
        return pa.array(found * times).view(kind)

    return read


def _date(records: _Records, rows: np.ndarray) -> pa.Array:
    found = records.long(rows)
    _check(rows, found == found.astype(np.int32), "an int has more than 32 bits")
    return pa.array(found.astype(np.int32)).view(pa.date32())


def _int(records: _Records, rows: np.ndarray) -> pa.Array:
    found = records.long(rows)
    _check(rows, found == found.astype(np.int32), "an int has more than 32 bits")
    return pa.array(found)


def _decimal(precision: int, scale: int, size: int | None) -> Read:
    limit = 10**precision

    def read(records: _Records, rows: np.ndarray) -> pa.Array:
        if size is None:
            at, lengths = records.sized(rows)
        else:
            lengths = np.full(len(rows), size)
            at = records.passed(rows, lengths)
        pieces = gathered(records.data, at, lengths).to_pylist()
        found = [int.from_bytes(each, "big", signed=True) for each in pieces]
        _check(rows, np.array([abs(each) < limit for each in found], np.bool_), "a decimal has too many digits")
        data = b"".join(each.to_bytes(16, "little", signed=True) for each in found)
        return pa.Array.from_buffers(pa.decimal128(precision, scale), len(found), [None, pa.py_buffer(data)])

    return read


def _logical(schema: Any, kind: str, logical: str) -> tuple[pa.DataType, Read] | None:
    """What a logical type is read as; None for one that is kept as what it is made of."""
    if (kind, logical) == ("int", "date"):
        return pa.date32(), _date
    if kind == "long" and logical in _TIMES:
        column, times = _TIMES[logical]
        return column, _long(column, times)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if 0 < precision <= DIGITS and 0 <= scale <= precision:
            return pa.decimal128(precision, scale), _decimal(precision, scale, schema.get("size"))
    return None


_TIMES = {
    "timestamp-millis": (TIME, 1000),
    "timestamp-micros": (TIME, 1),
    "local-timestamp-millis": (LOCAL_TIME, 1000),
    "local-timestamp-micros": (LOCAL_TIME, 1),
}
_PLAIN: dict[str, tuple[pa.DataType, Read]] = {
    "null": (pa.string(), lambda records, rows: pa.nulls(len(rows), pa.string())),
    "boolean": (pa.bool_(), _boolean),
    "int": (pa.int64(), _int),
    "long": (pa.int64(), _long(pa.int64())),
    "float": (pa.float64(), _number("<f4")),
    "double": (pa.float64(), _number("<f8")),
    "bytes": (pa.binary(), lambda records, rows: gathered(records.data, *records.sized(rows))),
    "string": (pa.string(), _text),
}
