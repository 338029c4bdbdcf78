"""What archived values are decoded to: columns beside their bytes, and why one is set apart that does not decode.

Called in the tasks that read, with rows of `columns`, batch after batch. Knows no Spark session; a format is an entry
of `decoder`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from kbroker.pipeline.errors import PipelineError

REGISTRY = "registry"
"""As `registry.py` has it: each record says itself which schema it is of."""
FORMATS = ("text", "json", "avro", REGISTRY)
REASON = "reason string"
"""The column that says why a row is set apart; null if it is not. `Decoder`s see it, and add to it."""

Text = tuple[str | None, str | None]
"""What a value was decoded to, and why it was not: one of them, or neither for a null value, which is a tombstone."""


class Decodes(Protocol):
    """What adds to rows what their values are."""

    @property
    def ddl(self) -> str:
        """The columns that `decoded` adds."""

    def decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with what their values are, and the reasons of those that do not decode."""


class Decoder:
    """Adds a column to rows. column: its name."""

    def __init__(self, column: str, decode: Callable[[bytes], str]) -> None:
        """decode: a value's text. What it raises says why there is none."""
        self.column, self._decode = column, decode

    @property
    def ddl(self) -> str:
        """What `decoded` adds."""
        return f"{self.column} string"

    def decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with what their values are, and the reasons of those that do not decode."""
        texts, reasons = [], rows.column("reason").to_pylist()
        for index, value in enumerate(rows.column("value").to_pylist()):
            text = None
            if value is not None and reasons[index] is None:
                try:
                    text = self._decode(value)
                except Exception as error:  # whatever it is, it is this record's alone
                    reasons[index] = str(error) or type(error).__name__
            texts.append(text)
        at = rows.schema.get_field_index("reason")
        told = rows.set_column(at, "reason", pa.array(reasons, pa.string()))
        return told.append_column(self.column, pa.array(texts, pa.string()))


def decoder(values: str | None, schema: str | None) -> Decoder | None:
    """What decodes a format of FORMATS, by itself; None for none. schema: of avro, JSON. Raises PipelineError."""
    if values is None or values == REGISTRY:
        return None
    if values == "avro":
        return Decoder("value_json", _avro(schema or ""))
    return Decoder("value_json", json_text) if values == "json" else Decoder("value_text", utf8_text)


def utf8_text(value: bytes) -> str:
    """A value as text. Raises ValueError."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the value is no UTF-8: byte {error.start} is none") from None


# ---- JSON


def json_text(value: bytes) -> str:
    """A value that is one text of JSON, as RFC 8259 has it. Raises ValueError.

    Numbers of any length and names that come twice are JSON, and so is any depth.
    """
    text = utf8_text(value)
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=no_constant)
    except RecursionError:
        _check_deep(text)
    except ValueError as error:
        raise ValueError(f"the value is no JSON: {error}") from None
    return text


def no_constant(name: str) -> None:
    """What `json` calls for a number that JSON does not have. Raises ValueError."""
    raise ValueError(f"{name} is no value of JSON")


_TOKEN = re.compile(
    r"[ \t\n\r]*(?:(?P<mark>[][{}:,])"
    r'|(?P<text>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*")'
    r"|(?P<plain>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null))"
)
_SPACE = " \t\n\r"
_CLOSES = {"{": "}", "[": "]"}


def _check_deep(text: str) -> None:
    """What `json` checks, of a text that is nested more deeply than Python calls itself. Raises ValueError."""
    position, expected = 0, "value"  # or: name, first name, first value, colon, more
    waiting: list[str] = []  # how what is open is closed
    while True:
        found = _TOKEN.match(text, position)
        mark, said, plain = found.group("mark", "text", "plain") if found else (None, None, None)
        if mark in _CLOSES and "value" in expected:
            waiting.append(_CLOSES[mark])
            expected = "first name" if mark == "{" else "first value"
        elif waiting and mark == waiting[-1] and expected in ("more", "first name" if mark == "}" else "first value"):
            waiting.pop()
            expected = "more"
        elif mark == "," and expected == "more" and waiting:
            expected = "name" if waiting[-1] == "}" else "value"
        elif mark == ":" and expected == "colon":
            expected = "value"
        elif said and "name" in expected:
            expected = "colon"
        elif (said or plain) and "value" in expected:
            expected = "more"
        else:
            break
        position = found.end() if found else position
    if waiting or expected != "more" or text[position:].strip(_SPACE):
        raise ValueError(f"the value is no JSON: not so at character {position}")


# ---- Avro


def _avro(schema: str) -> Callable[[bytes], str]:
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise PipelineError(f"the Avro schema is no JSON: {error}") from None
    compiled: list[Any] = []

    def decode(value: bytes) -> str:
        import fastavro  # in the task: what it compiles stays there

        if not compiled:
            compiled.append(fastavro.parse_schema(parsed))
        stream = io.BytesIO(value)
        try:
            found = fastavro.schemaless_reader(stream, compiled[0], None)
        except Exception as error:  # whatever a decoder raises on bytes that are not its own
            raise ValueError(f"the value is no Avro of the schema: {error or type(error).__name__}") from None
        if stream.read(1):
            raise ValueError("the value is no Avro of the schema: bytes are left behind it")
        return json.dumps(found, default=lambda each: each.hex() if isinstance(each, bytes) else str(each))

    return decode


def reasons(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the reasons to set them apart, whatever their values are: a header's name that is no text."""
    headers = rows.column("headers")
    if headers.null_count == len(headers) or _is_text(headers.values):  # all at once
        return rows.append_column("reason", pa.nulls(rows.num_rows, pa.string()))
    sound = [not cell.is_valid or _is_text(cell.values) for cell in headers]
    found = [None if each else "a header's name is no UTF-8" for each in sound]
    return rows.append_column("reason", pa.array(found, pa.string()))


def _is_text(headers: pa.StructArray) -> bool:
    """Whether the names of headers are UTF-8: Arrow has them as they came."""
    try:
        headers.field("key").cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
