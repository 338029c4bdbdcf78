"""Records framed by a schema registry: which schema each is of, and their columns.

Called in the tasks that read, batch after batch, with what `registry.py` knows. Confluent's framing of a key or value:

    offset  size
    0       1     0
    1       4     the schema's id, big-endian
    5       -     of Protobuf: which message (how many numbers, and they, as zigzag varints; one 0 for the first)
    -       -     the body
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from kbroker.pipeline.avro import Avro
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.json_schema import JsonSchema
from kbroker.pipeline.protobuf import Protobuf
from kbroker.pipeline.shapes import Bodies, ddl, spread
from protocol.namedtuple import NamedTuple

PREFIX = 5
AVRO, PROTOBUF, JSON = FORMS = ("AVRO", "PROTOBUF", "JSON")
SIDES = ("key", "value")
Path = tuple[int, ...]
"""Which message of a Protobuf schema; () of other schemas."""
Ref = tuple[int, Path]
WHOLE: Path = (-1,)
"""In place of a path: all of an id."""


class NewSchemaError(PipelineError):
    """A record is of a schema that is not known: its driver asks for it, and reads the batch again."""


class Schema(NamedTuple):
    """A registered schema. references: names and texts of what it refers to. descriptors: of Protobuf, compiled."""

    id: int
    form: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    descriptors: bytes = b""

    @property
    def first_path(self) -> Path:
        """What most of its records are."""
        return (0,) if self.form == PROTOBUF else ()


class Known(NamedTuple):
    """What is known of keys, or of values. column: None as long as there is no schema. usable: schemas that have their
    columns in it. apart: those that have not, and why."""

    column: pa.DataType | None
    usable: Mapping[Ref, None]
    apart: Mapping[Ref, str]


@lru_cache(256)
def compiled(schema: Schema, path: Path) -> Any:
    """What decodes bodies of a schema: `kind` and `decoded`. Raises ValueError."""
    if schema.form == PROTOBUF:
        return Protobuf(schema.descriptors, path)
    return (Avro if schema.form == AVRO else JsonSchema)(schema.text, dict(schema.references))


class _Group(NamedTuple):
    """Records of one schema. rows: their places."""

    ref: Ref
    rows: np.ndarray
    bodies: Bodies


class FramedDecoder:
    """Adds to rows, for keys and values or one of them: SIDE_schema (the id) and SIDE_data (the columns)."""

    def __init__(self, schemas: Mapping[int, Schema], known: Mapping[str, Known], *, asks: bool) -> None:
        """asks: whether a schema that is not known is asked for, or its records are set apart."""
        self._schemas, self._known, self._asks = schemas, known, asks

    @property
    def ddl(self) -> str:
        """What `decoded` adds."""
        found = []
        for side, known in self._known.items():
            found.append(f"{side}_schema bigint")
            if known.column is not None:
                found.append(f"{side}_data {ddl(known.column)}")
        return ", ".join(found)

    def decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with what their keys and values are, and the reasons of those that do not decode."""
        for side, known in self._known.items():
            sound = rows.column("reason").is_null().to_numpy(zero_copy_only=False)
            ids, groups, odd = self._groups(side, rows, sound)
            parts, places = [], [np.zeros(0, np.int64)]
            for ref, at, bodies in groups:
                if (why := self._apart(side, ref)) is not None:
                    odd |= dict.fromkeys(at.tolist(), why)
                    continue
                schema = self._schemas[ref[0]]
                found, wrong = compiled(schema, ref[1]).decoded(bodies)
                odd |= {int(at[row]): f"no {schema.form} of schema id {ref[0]}: {why}" for row, why in wrong.items()}
                parts.append(found.cast(known.column))
                places.append(at)
            rows = _with_reasons(rows, side, odd).append_column(f"{side}_schema", ids)
            if known.column is not None:
                rows = rows.append_column(f"{side}_data", _together(parts, places, known.column, rows.num_rows))
        return rows

    def unknown(self, rows: pa.RecordBatch) -> Iterator[tuple[str, int, Path]]:
        """What is not known of these rows' framing."""
        for side in self._known:
            _, groups, _ = self._groups(side, rows, np.ones(rows.num_rows, np.bool_))
            for ref, at, _ in groups:
                if not self._is_known(side, ref):
                    yield from [(side, *ref)] * len(at)

    def _is_known(self, side: str, ref: Ref) -> bool:
        known = self._known[side]
        return ref in known.usable or ref in known.apart or (ref[0], WHOLE) in known.apart

    def _apart(self, side: str, ref: Ref) -> str | None:
        """Why records are set apart; None if they are not. Raises NewSchemaError."""
        known = self._known[side]
        if ref in known.usable:
            return None
        if not self._is_known(side, ref):
            if self._asks:
                raise NewSchemaError(f"schema id {ref[0]} {ref[1]} is not known yet")
            return f"schema id {ref[0]} was not asked for: more than enough of the batch's ids are not in the registry"
        return known.apart.get(ref) or known.apart[ref[0], WHOLE]

    def _groups(
        self, side: str, rows: pa.RecordBatch, wanted: np.ndarray
    ) -> tuple[pa.Array, list[_Group], dict[int, str]]:
        """The schemas' ids, the rows by schema, and why some have none."""
        column = rows.column(side)
        data, starts, ends = _laid(column)
        wanted = wanted & column.is_valid().to_numpy(zero_copy_only=False)
        long = wanted & (ends - starts >= PREFIX)
        framed = np.flatnonzero(long)
        framed = framed[data[starts[framed]] == 0]
        ids = np.full(len(column), -1, np.int64)
        prefix = data[starts[framed][:, None] + np.arange(1, PREFIX)]
        ids[framed] = np.ascontiguousarray(prefix).view(">u4").reshape(-1)
        bare = wanted & (ids < 0)
        odd = {row: _unframed(data, int(starts[row]), int(ends[row])) for row in np.flatnonzero(bare).tolist()}
        groups = []
        for number in np.unique(ids[framed]).tolist():
            mine = np.flatnonzero(ids == number)
            bodies = Bodies(data, starts[mine] + PREFIX, ends[mine])
            schema = self._schemas.get(number)
            if schema is None or schema.form != PROTOBUF:
                groups.append(_Group((number, ()), mine, bodies))
                continue
            groups += [
                _Group((number, path), mine[at], bodies.of(at)) for path, at in _messages(bodies, odd, mine).items()
            ]
        return pa.array(ids, mask=ids < 0), groups, odd


def _with_reasons(rows: pa.RecordBatch, side: str, odd: Mapping[int, str]) -> pa.RecordBatch:
    if not odd:
        return rows
    reasons = rows.column("reason").to_pylist()
    for row, why in odd.items():
        reasons[row] = f"{side}: {why}"
    return rows.set_column(rows.schema.get_field_index("reason"), "reason", pa.array(reasons, pa.string()))


def _laid(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of binaries, and where each begins and ends."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    found = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return found, bounds[:-1], bounds[1:]


def _together(parts: Sequence[pa.Array], places: Sequence[np.ndarray], kind: pa.DataType, count: int) -> pa.Array:
    if not parts:
        return pa.nulls(count, kind)
    rows = np.concatenate(places)
    order = np.argsort(rows)
    whole = pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
    return spread(whole if len(parts) == 1 else whole.take(pa.array(order)), rows[order], count)


def _unframed(data: np.ndarray, start: int, end: int) -> str:
    if end - start < PREFIX:
        return f"it has {end - start} bytes, fewer than the framing of a schema registry"
    return f"it has no framing of a schema registry: it begins with byte {data[start]}, not 0"


def _messages(bodies: Bodies, odd: dict[int, str], rows: np.ndarray) -> dict[Path, np.ndarray]:
    """By message of a schema: which bodies are of it. Passes over the numbers that say so."""
    data, starts, ends = bodies.data, bodies.starts, bodies.ends
    some = np.flatnonzero(starts < ends)
    is_first = np.zeros(len(starts), np.bool_)
    is_first[some] = data[starts[some]] == 0  # of almost all
    found: dict[Path, list[int]] = {}
    for index in np.flatnonzero(~is_first).tolist():
        try:
            path, starts[index] = _path(data, int(starts[index]), int(ends[index]))
            found.setdefault(path, []).append(index)
        except ValueError as error:
            odd[int(rows[index])] = str(error)
    starts[is_first] += 1
    groups = {path: np.array(each) for path, each in found.items()}
    if is_first.any():
        groups[(0,)] = np.concatenate([np.flatnonzero(is_first), groups.get((0,), np.zeros(0, np.int64))])
    return groups


def _path(data: np.ndarray, start: int, end: int) -> tuple[Path, int]:
    count, at = _varint(data, start, end)
    path = []
    for _ in range(count):
        number, at = _varint(data, at, end)
        path.append(number)
    return tuple(path), at


def _varint(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= end:
            break
        byte = int(data[at])
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            number = value >> 1 ^ -(value & 1)
            if number < 0:
                break
            return number, at
    raise ValueError("it does not say which message of its schema it is")
