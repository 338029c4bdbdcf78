"""The patient codec: reads and writes any message by walking its schema, and says which field is wrong and why.

Called by generated readers and writers when something went wrong, and by tests as a second opinion on them. Slow,
and written for clarity: no step trusts the input. It allocates no more than the bytes in hand justify, and it
recurses only as deep as the schema is nested.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from protocol._runtime import MAX_STRING_BYTES, MOST_UNKNOWN_TAGS, size_of, tag_section
from protocol.message import DecodeError, EncodeError, Message, Struct
from protocol.namedtuple import NamedTuple
from protocol.primitives import read_uvarint, utf8, uvarint
from protocol.schema import Field, FieldType, fields, is_flexible, minimum_size


def explain_read(message: type[Message], version: int, buffer: Any, start: int, error: Exception) -> DecodeError:
    """What is wrong with a message that its reader gave up on with `error`."""
    reader = _Reader(memoryview(buffer), start, version, is_flexible(message, version), PATIENCE)
    try:
        reader.struct(message, "")
    except DecodeError as reason:
        return reason
    raise AssertionError(f"{message.__name__} v{version}: only the generated reader refuses this") from error


def explain_write(value: Message, version: int, error: Exception) -> EncodeError:
    """What is wrong with a message that its writer gave up on with `error`."""
    try:
        write_slowly(value, version)
    except EncodeError as reason:
        return reason
    raise AssertionError(f"{type(value).__name__} v{version}: only the generated writer refuses this") from error


def read_slowly(message: type[Message], version: int, buffer: Any, start: int = 0) -> tuple[Any, int]:
    """As `message.decode_from`, one field at a time. Raises: DecodeError."""
    reader = _Reader(memoryview(buffer), start, version, is_flexible(message, version))
    return reader.struct(message, ""), reader.position


def write_slowly(value: Message, version: int) -> list[Any]:
    """As `value.encode_parts`, one field at a time, small parts not yet joined. Raises: EncodeError."""
    writer = _Writer(version, is_flexible(type(value), version))
    writer.struct(type(value), value, "")
    return writer.parts


class Told(NamedTuple):
    """One field as it stands in a message. kind: of its type. value: a list of these for a struct, of whatever an
    element is for an array, else the value. at, size: its bytes, in the buffer."""

    name: str
    kind: str
    value: Any
    at: int
    size: int


def describe(message: type[Message], version: int, buffer: Any, start: int = 0) -> tuple[list[Told], str]:
    """Every field of a message in the order of its bytes, for people; and why it ends early, or empty.

    Bytes may be missing at the end: what there is is told.
    """
    teller = _Teller(memoryview(buffer), start, version, is_flexible(message, version), PATIENCE)
    return teller.struct(message, ""), teller.cut


# A hostile frame may hold a hundred million good values before the bad one, and the caller that asks for the reason is
# the thread that serves all clients: after this many values, about 0.1 s, the reason stays unknown.
PATIENCE = 50_000


class _Reader:
    def __init__(
        self, buffer: memoryview, position: int, version: int, flexible: bool, patience: int | None = None
    ) -> None:
        self.patience = patience  # values to read before giving up; None: never give up
        self.buffer = buffer
        self.position = position
        self.version = version
        self.flexible = flexible

    def left(self) -> int:
        return len(self.buffer) - self.position

    def take(self, size: int, path: str) -> memoryview:
        if size > self.left():
            raise DecodeError(path, f"needs {size} bytes at position {self.position}, and {self.left()} are left")
        self.position += size
        return self.buffer[self.position - size : self.position]

    def uvarint(self, path: str) -> int:
        try:
            value, self.position = read_uvarint(self.buffer, self.position)
        except IndexError:
            raise DecodeError(path, f"ends inside a varint at position {self.position}") from None
        except ValueError as error:
            raise DecodeError(path, f"{error} at position {self.position}") from None
        return value

    def length(self, code: str, path: str) -> int:
        """A length or count, -1 for null."""
        if self.flexible:
            return self.uvarint(path) - 1
        size: int = struct.unpack(">" + code, self.take(struct.calcsize(code), path))[0]
        return max(size, -1)

    def struct(self, cls: type[Struct], path: str) -> Struct:
        value = cls.__new__(cls)
        for field in fields(cls):
            if not field.present_at(self.version) or field.tag is not None:
                setattr(value, field.name, field.default_value())
                continue
            inner = _below(path, field.name)
            setattr(value, field.name, self.value(field.type, field.nullable_at(self.version), inner))
        value.unknown_tags = self.tags(cls, value, path) if self.flexible else None
        return value

    def value(self, kind: FieldType, nullable: bool, path: str) -> Any:
        if self.patience is not None:
            self.patience -= 1
            if self.patience < 0:
                raise DecodeError(path, "good up to here, malformed somewhere behind: too long to say where")
        if kind.struct is not None:
            if nullable and self.take(1, path)[0] > 127:
                return None
            return self.struct(kind.struct, path)
        if kind.kind == "array":
            assert kind.element is not None
            return self.array(kind.element, nullable, path)
        assert kind.wire is not None
        if kind.wire.size:
            return struct.unpack(">" + kind.wire.format, self.take(kind.wire.size, path))[0]
        return self.content(kind.kind, nullable, path)

    def content(self, kind: str, nullable: bool, path: str) -> Any:
        size = self.length("h" if kind == "string" else "i", path)
        if size < 0:
            return _null(nullable, path)
        if kind == "string" and size > MAX_STRING_BYTES:
            raise DecodeError(path, f"string of {size} bytes, more than {MAX_STRING_BYTES}")
        content = self.take(size, path)
        if kind == "records":
            return content
        if kind == "bytes":
            return bytes(content)
        return utf8(content)

    def array(self, element: FieldType, nullable: bool, path: str) -> Any:
        count = self.length("i", path)
        if count < 0:
            return _null(nullable, path)
        least = minimum_size(element, self.version, self.flexible)
        if count * least > self.left():
            raise DecodeError(path, f"{count} elements of at least {least} bytes, and {self.left()} bytes are left")
        return [self.value(element, False, f"{path}[{index}]") for index in range(count)]

    def tags(self, cls: type[Struct], value: Struct, path: str) -> dict[int, bytes] | None:
        known = {field.tag: field for field in fields(cls) if field.tag is not None}
        known |= {field.tag: field for field in fields(cls) if field.tag is not None and field.present_at(self.version)}
        unknown: dict[int, bytes] = {}
        here = _below(path, "tags")
        count = self.uvarint(here)
        if count > MOST_UNKNOWN_TAGS:
            raise DecodeError(here, f"{count} of them: at most {MOST_UNKNOWN_TAGS} are taken")
        for _ in range(count):
            tag = self.uvarint(here)
            size = self.uvarint(here)
            if size > self.left():
                raise DecodeError(here, f"tag {tag} of {size} bytes, and {self.left()} are left")
            if tag in known:
                self.tag(known[tag], value, size, path)
            else:
                unknown[tag] = bytes(self.take(size, here))
        return unknown or None

    def tag(self, field: Field, value: Struct, size: int, path: str) -> None:
        here = _below(path, field.name)
        if not field.present_at(self.version):
            raise DecodeError(here, f"tag {field.tag} does not belong to version {self.version}")
        end = self.position + size
        nullable, inner = field.nullable_at(self.version), field.type.struct
        if nullable and inner is not None:  # the mark is a varint in a tag
            setattr(value, field.name, self.struct(inner, here) if self.uvarint(here) else None)
        else:
            setattr(value, field.name, self.value(field.type, nullable, here))
        if self.position != end:
            raise DecodeError(here, f"tag {field.tag} says {size} bytes, its value takes {self.position - end + size}")


class _Teller(_Reader):
    """Gives fields instead of structs, and ends where the bytes do."""

    cut = ""

    def struct(self, cls: type[Struct], path: str) -> list[Told]:  # type: ignore[override]
        told: list[Told] = []
        for field in fields(cls):
            if field.present_at(self.version) and field.tag is None:
                at = self.position
                try:
                    value = self.value(field.type, field.nullable_at(self.version), _below(path, field.name))
                except DecodeError as error:
                    self.cut = self.cut or str(error)
                    return told
                told.append(Told(field.name, _kind_of(field.type), value, at, self.position - at))
                if self.cut:
                    return told
        if self.flexible:
            told += self._tagged(cls, path)
        return told

    def _tagged(self, cls: type[Struct], path: str) -> list[Told]:
        holder, at = SimpleNamespace(), self.position
        try:
            unknown = self.tags(cls, holder, path)  # type: ignore[arg-type]
        except DecodeError as error:
            self.cut = self.cut or str(error)
            unknown = None
        kinds = {field.name: _kind_of(field.type) for field in fields(cls)}
        size = self.position - at
        found = [Told(name, kinds[name], value, at, size) for name, value in vars(holder).items()]
        return found + [Told(f"tag {tag}", "bytes", data, at, size) for tag, data in (unknown or {}).items()]

    def content(self, kind: str, nullable: bool, path: str) -> Any:
        before = self.position
        try:
            return super().content(kind, nullable, path)
        except DecodeError as error:
            if kind == "string":
                raise
            self.position = before
            self.length("i", path)
            self.cut = str(error)
            return bytes(self.take(self.left(), path))

    def array(self, element: FieldType, nullable: bool, path: str) -> Any:
        count = self.length("i", path)
        if count < 0:
            return _null(nullable, path)
        found: list[Any] = []
        while len(found) < count and not self.cut:
            try:
                found.append(self.value(element, False, f"{path}[{len(found)}]"))
            except DecodeError as error:
                self.cut = str(error)
        return found


def _kind_of(kind: FieldType) -> str:
    """A type in the words of Kafka's guide."""
    if kind.kind == "array":
        assert kind.element is not None
        return f"array of {_kind_of(kind.element)}"
    return kind.struct.__name__ if kind.struct is not None else kind.kind


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.parts: list[Any] = []
        self.version = version
        self.flexible = flexible

    def length(self, size: int, code: str, path: str) -> None:
        """A length or count, -1 for null."""
        if size > (MAX_STRING_BYTES if code == "h" else 0x7FFFFFFE):
            raise EncodeError(path, f"too long: {size}")
        self.parts.append(uvarint(size + 1) if self.flexible else struct.pack(">" + code, size))

    def struct(self, cls: type[Struct], value: Any, path: str) -> None:
        if not isinstance(value, cls):
            raise EncodeError(path, f"{type(value).__name__} where {cls.__name__} belongs")
        for field in fields(cls):
            here = _below(path, field.name)
            given = _slot(value, field.name, here)
            if not field.present_at(self.version):
                if not field.ignorable and given != field.default_value():
                    raise EncodeError(here, f"is {_short(given)}, and version {self.version} cannot say so")
            elif field.tag is None:
                self.value(field.type, given, field.nullable_at(self.version), here)
        if self.flexible:
            self.tags(cls, value, path)
        elif value.unknown_tags:
            raise EncodeError(_below(path, "unknown_tags"), f"version {self.version} has no tagged fields")

    def value(self, kind: FieldType, given: Any, nullable: bool, path: str) -> None:
        if given is None and not nullable:
            raise EncodeError(path, f"None where version {self.version} needs a value")
        if kind.struct is not None:
            if nullable:
                self.parts.append(b"\xff" if given is None else b"\1")
            if given is not None:
                self.struct(kind.struct, given, path)
        elif kind.kind == "array":
            assert kind.element is not None
            self.array(kind.element, given, path)
        elif kind.wire is not None and kind.wire.size:
            self.primitive(kind.wire.format, kind.kind, given, path)
        else:
            self.content(kind.kind, given, path)

    def primitive(self, code: str, name: str, given: Any, path: str) -> None:
        try:
            packed = struct.pack(">" + code, given)
        except (struct.error, TypeError, OverflowError) as error:
            raise EncodeError(path, f"{_short(given)} is not {name}: {error}") from None
        if code == "16s" and len(given) != 16:
            raise EncodeError(path, f"{len(given)} bytes where an id has 16")
        self.parts.append(packed)

    def content(self, kind: str, given: Any, path: str) -> None:
        code = "h" if kind == "string" else "i"
        if given is None:
            self.length(-1, code, path)
            return
        try:
            content = _CONTENT[kind](given)
        except (TypeError, AttributeError, UnicodeEncodeError) as error:
            raise EncodeError(path, f"{_short(given)} is not {kind}: {error}") from None
        self.length(size_of(content), code, path)
        if kind == "records" and isinstance(content, list | tuple):
            self.parts += content
        else:
            self.parts.append(content)

    def array(self, element: FieldType, given: Any, path: str) -> None:
        if given is None:
            self.length(-1, "i", path)
            return
        if not isinstance(given, list | tuple):
            raise EncodeError(path, f"{type(given).__name__} where a list belongs")
        self.length(len(given), "i", path)
        for index, one in enumerate(given):
            self.value(element, one, False, f"{path}[{index}]")

    def tags(self, cls: type[Struct], value: Struct, path: str) -> None:
        here = _below(path, "unknown_tags")
        found = dict(value.unknown_tags or {})
        for field in fields(cls):
            if field.tag is None:
                continue
            if field.tag in found:
                raise EncodeError(here, f"tag {field.tag} is {field.name}, not unknown")
        for tag, content in found.items():
            if not isinstance(tag, int) or not 0 <= tag <= 0xFFFFFFFF or not isinstance(content, bytes):
                raise EncodeError(here, f"{tag!r}: {_short(content)} is not a tag and its bytes")
        for field in fields(cls):
            if field.tag is not None and field.present_at(self.version):
                given = getattr(value, field.name)
                if given != field.default_value():
                    inner = _Writer(self.version, self.flexible)
                    nullable, of, here = field.nullable_at(self.version), field.type.struct, _below(path, field.name)
                    if nullable and of is not None:  # the mark is a varint in a tag
                        inner.parts.append(b"\0" if given is None else b"\1")
                        if given is not None:
                            inner.struct(of, given, here)
                    else:
                        inner.value(field.type, given, nullable, here)
                    found[field.tag] = b"".join(inner.parts)
        self.parts.append(tag_section(found))


def _records(given: Any) -> Any:
    size_of(given)
    if isinstance(given, str):
        raise TypeError("records are bytes")
    return given


_CONTENT: dict[str, Callable[[Any], Any]] = {
    "string": lambda given: given.encode(),
    "bytes": lambda given: bytes(memoryview(given)),
    "records": _records,
}


def _null(nullable: bool, path: str) -> None:
    if not nullable:
        raise DecodeError(path, "null where a value is needed")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _slot(value: Struct, name: str, path: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        raise EncodeError(path, "was never set") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
