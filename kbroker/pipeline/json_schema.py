"""Values in JSON by a JSON Schema as columns: jsonschema-rs says whether they are, the schema says which columns.

Called by `registry.py`. A part of a schema that says no one type (oneOf, no type at all, one within itself) is a column
of text with JSON in it. Names that the schema does not have are in the bytes only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from kbroker.pipeline.shapes import Bodies, struct
from kbroker.pipeline.values import no_constant, utf8_text

_READ = json.JSONDecoder(parse_constant=no_constant).decode
_WRITE = json.JSONEncoder(ensure_ascii=False).encode
Shape = Callable[[Any], Any]
"""Makes of a value what Arrow takes for the column."""
WHOLE = 2.0**63
"""Whole numbers have a column up to here."""


class JsonSchema:
    """A schema. kind: what its values are as a column."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """references: what it refers to, by names. Raises ValueError."""
        try:
            self._root = json.loads(text)
            self._others = {name: json.loads(each) for name, each in references.items()}
            self._validator = _validator(self._root, self._others)
        except Exception as error:  # libraries raise many kinds of errors for what is no schema
            raise ValueError(f"the schema is no JSON Schema: {_first(error)}") from None
        self.kind, self._shape = self._node(self._root, self._root, ())

    def decoded(self, bodies: Bodies) -> tuple[pa.Array, dict[int, str]]:
        """The values, null where one is not as the schema has it, and why it is not, by its place."""
        found, reasons = [], {}
        for row, body in enumerate(bodies):
            try:
                value = _READ(utf8_text(body))
                if not self._validator.is_valid(value):
                    raise ValueError(_first(next(self._validator.iter_errors(value))))
                found.append(self._shape(value))
            except (ValueError, OverflowError, RecursionError) as error:
                found.append(None)
                reasons[row] = _first(error)
        try:
            return pa.array(found, self.kind), reasons
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError):  # one of all: which, each of them says
            for row, value in enumerate(found):
                try:
                    pa.array([value], self.kind)
                except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
                    found[row], reasons[row] = None, _first(error)
            return pa.array(found, self.kind), reasons

    def _node(self, schema: Any, root: Any, within: tuple[int, ...]) -> tuple[pa.DataType, Shape]:
        schema, root, within = self._resolved(schema, root, within)
        names = _types(schema)
        if len(names) != 1:
            return _TEXT
        (name,) = names
        if name in _PLAIN:
            return _PLAIN[name]
        if name == "array" and isinstance(schema.get("items"), dict):
            kind, shape = self._node(schema["items"], root, within)
            return pa.list_(kind), _each(shape)
        if name == "object" and schema.get("properties"):
            nodes = {each: self._node(inner, root, within) for each, inner in schema["properties"].items()}
            kind = struct([(each, node[0]) for each, node in nodes.items()])
            return kind, _named({each: node[1] for each, node in nodes.items()})
        if name == "object" and isinstance(schema.get("additionalProperties"), dict):
            kind, shape = self._node(schema["additionalProperties"], root, within)
            return pa.map_(pa.string(), kind), _mapped(shape)
        return _TEXT

    def _resolved(self, schema: Any, root: Any, within: tuple[int, ...]) -> tuple[Any, Any, tuple[int, ...]]:
        """What a schema stands for: behind references, and what is not null of two. {} where it is no one thing."""
        while isinstance(schema, dict):
            if id(schema) in within:
                return {}, root, within
            within = (*within, id(schema))
            if "$ref" in schema:
                file, _, pointer = schema["$ref"].partition("#")
                root = self._others.get(file, {}) if file else root
                schema = _at(root, pointer)
                continue
            some = [each for each in schema.get("oneOf") or schema.get("anyOf") or () if each != {"type": "null"}]
            if len(some) == 1 and "type" not in schema:
                schema = some[0]
                continue
            return ({} if some else schema), root, within
        return {}, root, within


def _validator(schema: Any, others: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    def retrieve(uri: str) -> Any:
        for name, other in others.items():
            if uri == name or uri.endswith(f"/{name}"):
                return other
        raise LookupError(f"the registry has no {uri} for it")  # and nothing is fetched from anywhere else

    return jsonschema_rs.validator_for(schema, retriever=retrieve)


def _types(schema: Any) -> list[str]:
    found = schema.get("type", [])
    names = [found] if isinstance(found, str) else found
    return [each for each in names if each != "null"]


def _at(root: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; {} if nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(root, dict) or name not in root:
            return {}
        root = root[name]
    return root


def _each(shape: Shape) -> Shape:
    return lambda value: None if value is None else [shape(each) for each in value]


def _named(shapes: Mapping[str, Shape]) -> Shape:
    return lambda value: None if value is None else {name: shape(value.get(name)) for name, shape in shapes.items()}


def _mapped(shape: Shape) -> Shape:
    return lambda value: None if value is None else [(name, shape(each)) for name, each in value.items()]


def _as_is(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    """A whole number: to a JSON Schema 1.0 is one."""
    return int(value) if isinstance(value, float) and abs(value) < WHOLE else value


def _real(value: Any) -> Any:
    return None if value is None else float(value)


def _as_text(value: Any) -> str | None:
    return None if value is None else _WRITE(value)


def _first(error: Any) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_TEXT: tuple[pa.DataType, Shape] = (pa.string(), _as_text)
_PLAIN: dict[str, tuple[pa.DataType, Shape]] = {
    "string": (pa.string(), _as_is),
    "boolean": (pa.bool_(), _as_is),
    "integer": (pa.int64(), _whole),
    "number": (pa.float64(), _real),
}
