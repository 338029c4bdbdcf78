"""Keys and values that are numbers, as text: by kcat's pack strings (`-s key=q`), or the names of deserializers.

Called by `kbroker consume`. A pack string is a letter for each thing in the bytes, in order: `<` and `>` say the order
of bytes, which is `>` at first; b h i q are integers of 1, 2, 4 and 8 bytes, in capitals without a sign; f and d are
floats, which kcat does not have; c is a character, s all the rest, $ the end, and a space is printed as it is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import click

from kbroker.cli._records import Consumed

_PACKED = re.compile("[<>bBhHiIqQfdcs$ ]+")
_JAVA = {
    "ByteArray": "s", "ByteBuffer": "s", "Bytes": "s", "String": "s", "UUID": "s",
    "Boolean": "b$", "Short": "h$", "Integer": "i$", "Long": "q$", "Float": "f$", "Double": "d$",
}  # fmt: skip

Unpack = Callable[[bytes], bytes]


def unpacker(text: str) -> Unpack:
    """A function that gives text for bytes, and raises ValueError for bytes that are not of this form.

    text: a pack string, or the name of a deserializer of Java's, with its package or without. Raises: ValueError.
    """
    fields = _JAVA.get(text.rpartition(".")[2].removesuffix("Deserializer"), text)
    if _PACKED.fullmatch(fields) is None:
        raise ValueError(f"{text}: allowed: letters of <>bBhHiIqQfdcs$, or {', '.join(_JAVA)} and Deserializer")
    if fields == "s":
        return lambda data: data
    return lambda data: _unpacked(data, fields, text)


def _unpacked(data: bytes, fields: str, name: str) -> bytes:
    order, at, text = ">", 0, b""
    try:
        for field in fields:
            if field in "<>":
                order = field
            elif field == " ":
                text += b" "
            elif field == "s":
                text += data[at:]
                at = len(data)
            elif field != "$":
                (value,) = struct.unpack_from(order + field, data, at)
                text += value if isinstance(value, bytes) else str(value).encode()
                at += struct.calcsize(order + field)
            elif at < len(data):
                raise struct.error
    except struct.error:
        raise ValueError(f"its {len(data)} bytes are no {name}") from None
    return text


def unpacked_by(packed: Iterable[str], key: str | None, value: str | None) -> Callable[[Consumed], Consumed] | None:
    """A function that gives a record with its key and value as text; None if both stay as they are.

    packed: what -s says, `key=FORM`, `value=FORM` or a form for both. key, value: forms that are said otherwise.
    Raises: UsageError. The function raises ClickException for a record that is not of its form.
    """
    forms = {"key": key, "value": value}
    for each in packed:
        which, equals, form = each.partition("=")
        if equals and which not in forms:
            raise click.UsageError(f"-s {each}: write it as key=FORM, value=FORM or FORM")
        forms.update({which: form} if equals else dict.fromkeys(forms, each))
    try:
        unpacks = {which: unpacker(form) for which, form in forms.items() if form is not None}
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    def unpacked(record: Consumed) -> Consumed:
        changed: dict[str, Any] = {}
        for which, unpack in unpacks.items():
            if (data := getattr(record, which)) is not None:
                try:
                    changed[which] = unpack(data)
                except ValueError as error:
                    where = f"{record.topic}-{record.partition} at offset {record.offset}"
                    raise click.ClickException(f"{where}: {which}: {error}") from None
        return record._replace(**changed)

    return unpacked if unpacks else None
