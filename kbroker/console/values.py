"""What a record's key or value is to a person: text, JSON, Avro or Protobuf by a schema registry, or hex.

`Values` remembers schemas, never records. What cannot be read is shown as hex, with the reason. Nothing here is HTML:
templates escape all of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from kbroker.console.cluster import ConsoleError
from protocol.namedtuple import NamedTuple

FORMS = ("auto", "text", "json", "registry", "hex")
PREFIX = 5  # bytes of the framing of a schema registry: 0, and the schema's id
SHOWN_BYTES = 4096  # of a value in a list
MOST_BYTES = 1 << 20  # of one shown whole
REGISTRY_S = 5.0
SCHEMA_BYTES = 1 << 20
MOST_SCHEMAS = 1000
MOST_REFERENCES = 100


class Shown(NamedTuple):
    """A key or a value. form: null, text, json, avro, protobuf, hex. size: in bytes. note: why it is shown so."""

    form: str
    text: str
    size: int
    is_cut: bool = False
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For scripts and templates."""
        return {"form": self.form, "text": self.text, "size": self.size, "cut": self.is_cut, "note": self.note}


class Values:
    """How values are read. registry: the URL of a schema registry, with user:password@ if it wants them, or empty."""

    def __init__(self, registry: str = "") -> None:
        self.registry = registry
        self._schemas: dict[int, Any] = {}

    def shown(self, data: bytes | None, form: str = "auto", most: int = SHOWN_BYTES) -> Shown:
        """A key or value as it is to be shown. most: bytes; JSON is on one line unless they are many."""
        indent = 1 if most > SHOWN_BYTES else None
        if data is None:
            return Shown("null", "", 0)
        size = len(data)
        if form in ("auto", "registry") and self.registry and size >= PREFIX and data[0] == 0:
            try:
                kind, value = self.decoded(data)
                text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
                return Shown(kind, text[:most], size, len(text) > most)
            except (ValueError, ConsoleError) as error:
                return Shown("hex", _hex(data[:most]), size, size > most, str(error))
        if form == "registry":
            return Shown("hex", _hex(data[:most]), size, size > most, "it has no framing of a schema registry")
        if form == "hex":
            return Shown("hex", _hex(data[:most]), size, size > most)
        try:
            text = data[: most + 4].decode() if size <= most + 4 else _whole_text(data[:most])
        except UnicodeDecodeError:
            if form == "text":
                return Shown("text", data[:most].decode(errors="replace"), size, size > most)
            return Shown("hex", _hex(data[:most]), size, size > most)
        if form == "json" or (form == "auto" and text[:1] in ("{", "[")):
            try:
                pretty = json.dumps(json.loads(text), ensure_ascii=False, indent=indent)
                return Shown("json", pretty[:most], size, len(pretty) > most or size > most)
            except ValueError as error:
                if form == "json":
                    return Shown("text", text[:most], size, size > most, f"it is no JSON: {error}"[:200])
        if form == "auto" and any(each < " " and each not in "\t\r\n" for each in text):
            return Shown("hex", _hex(data[:most]), size, size > most)
        return Shown("text", text[:most], size, size > most)

    def value(self, data: bytes | None) -> Any:
        """What a JSON path looks into: JSON, or what a schema says. Raises: ValueError, ConsoleError."""
        if data is None:
            raise ValueError("null")
        if self.registry and len(data) >= PREFIX and data[0] == 0:
            return self.decoded(data)[1]
        return json.loads(data)

    def decoded(self, data: bytes) -> tuple[str, Any]:
        """What bytes with the framing of a registry say: avro, protobuf or json, and the value.

        Raises: ValueError, ConsoleError.
        """
        number = int.from_bytes(data[1:PREFIX], "big")
        if number not in self._schemas:
            if len(self._schemas) >= MOST_SCHEMAS:
                self._schemas.clear()
            self._schemas[number] = self._fetched(number)
        kind, schema = self._schemas[number]
        if kind == "avro":
            return kind, _avro(schema, data[PREFIX:])
        if kind == "protobuf":
            return kind, _protobuf(schema, data[PREFIX:])
        return kind, json.loads(data[PREFIX:])

    def _fetched(self, number: int) -> tuple[str, Any]:
        found = self._get(f"/schemas/ids/{number}")
        kind = str(found.get("schemaType", "AVRO")).casefold()
        references = self._references(found.get("references") or [], {})
        if kind == "avro":
            return kind, _avro_schema(str(found["schema"]), references)
        if kind == "protobuf":
            return kind, _descriptors(str(found["schema"]), references)
        return kind, found["schema"]

    def _references(self, wanted: list[Any], found: dict[str, str]) -> dict[str, str]:
        for each in wanted:
            name = str(each["name"])
            if name not in found and len(found) < MOST_REFERENCES:
                there = self._get(f"/subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}")
                self._references(there.get("references") or [], found)
                found[name] = str(there["schema"])
        return found

    def _get(self, path: str) -> dict[str, Any]:
        parts = urlsplit(self.registry)
        host = parts.netloc.rpartition("@")[2]
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username:
            headers["Authorization"] = (
                "Basic " + base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            )
        request = Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}{path}", headers=headers)
        try:
            with urlopen(request, timeout=REGISTRY_S) as answer:
                found = json.loads(answer.read(SCHEMA_BYTES))
        except HTTPError as error:
            raise ValueError(f"the schema registry answers {error.code} to {path}") from None
        except (OSError, ValueError) as error:
            raise ConsoleError(f"the schema registry at {host} does not answer: {error}", 502) from None
        if not isinstance(found, dict):
            raise ValueError(f"the schema registry does not say what {path} is")
        return found


def _hex(data: bytes) -> str:
    return data.hex(" ", -2)


def _plain(value: Any) -> Any:
    """What of Avro and Protobuf JSON does not have."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _whole_text(data: bytes) -> str:
    """The text of bytes that may end within a character. Raises: UnicodeDecodeError."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError as error:
            if cut == 3 or error.start < len(data) - 4:
                raise
    raise AssertionError(len(data))


def _avro_schema(text: str, references: Mapping[str, str]) -> Any:
    try:
        from fastavro.schema import parse_schema
    except ImportError:
        raise ValueError("values in Avro are read by fastavro, which is not installed") from None
    named: dict[str, Any] = {}
    for each in references.values():
        parse_schema(json.loads(each), named)
    return parse_schema(json.loads(text), named)


def _avro(schema: Any, data: bytes) -> Any:
    from io import BytesIO

    from fastavro import schemaless_reader

    try:
        return schemaless_reader(BytesIO(data), schema)
    except Exception as error:  # of a library that raises what its readers meet: EOFError, IndexError, TypeError...
        raise ValueError(f"it is not as its schema says: {type(error).__name__} {error}"[:200]) from None


def _descriptors(text: str, references: Mapping[str, str]) -> Any:
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        from kbroker.pipeline.protobuf import compiled
    except ImportError:
        raise ValueError(
            "values in Protobuf are read by what the extra `pipeline` brings: it is not installed"
        ) from None
    found = FileDescriptorSet.FromString(compiled(text, references))
    pool = DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return pool, found.file[-1]


def _protobuf(schema: Any, data: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    pool, file = schema
    numbers, at = _message_numbers(data)
    names, among = [file.package] if file.package else [], file.message_type
    for number in numbers:
        if not 0 <= number < len(among):
            raise ValueError(f"its schema has no message {numbers}")
        names.append(among[number].name)
        among = among[number].nested_type
    try:
        message = GetMessageClass(pool.FindMessageTypeByName(".".join(names))).FromString(data[at:])
    except DecodeError as error:
        raise ValueError(f"it is not as its schema says: {error}") from None
    return MessageToDict(message, preserving_proto_field_name=True)


def _message_numbers(data: bytes) -> tuple[list[int], int]:
    """Which message of its schema a value is, and where it begins: zigzag numbers, a single 0 for the first."""
    from protocol.primitives import read_uvarint

    try:
        count, at = read_uvarint(data, 0)
        if not count:
            return [0], at
        numbers = []
        for _ in range(min(count >> 1, 32)):
            number, at = read_uvarint(data, at)
            numbers.append(number >> 1)
        return numbers, at
    except (IndexError, ValueError):
        raise ValueError("it does not say which message of its schema it is") from None
