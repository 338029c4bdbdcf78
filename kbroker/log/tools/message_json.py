"""Messages as JSON with Kafka's own field names, as Kafka's JSON converters show them. Called by tools that dump."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from kbroker.log.checkpoints import format_uuid
from protocol.message import Struct
from protocol.schema import FieldType, fields_at


def json_line(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def as_json(value: Struct, version: int) -> dict[str, Any]:
    """The fields of a version by names in camelCase: bytes in base64, tagged fields if they are set."""
    found = {}
    for field in fields_at(type(value), version):
        item = getattr(value, field.name)
        if field.tag is None or item != field.default_value():
            found[_camel_case(field.name)] = _plain(item, field.type, version)
    return found


def _plain(value: Any, kind: FieldType, version: int) -> Any:
    if value is None:
        return None
    if kind.kind == "array":
        assert kind.element is not None
        return [_plain(item, kind.element, version) for item in value]
    if kind.kind == "struct":
        return as_json(value, version)
    if kind.kind == "uuid":
        return format_uuid(value)
    if kind.kind in ("bytes", "records"):
        return base64.b64encode(bytes(value)).decode()
    return value


def _camel_case(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda found: found[1].upper(), name)
