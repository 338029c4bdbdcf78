"""How a message is declared: a class is the schema, for all versions at once.

Owns the wire types, the field declarations (`since`, `until`, `plain`, `tagged`), the base classes `Struct` and
`Message`, and the two errors. `protocol/messages/` is written in it; all code makes, reads and compares values of
these classes. Import stores declarations and does nothing else: annotations stay strings, the constructor is
compiled at the first call, readers and writers at the first use of a version (`codec.py`). No byte is read or
written in this file.

    class HeartbeatRequest(Message, api=12, versions="0-4", flexible="4+"):
        '''Keeps a member in its group.'''
        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: String | None = since(3, default=None)

A field without a call is required by the constructor and present in all versions. Constructors take keywords, or
positions in field order; type checkers are shown keywords only, since a new version may put a field anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import ClassVar, Self

T = TypeVar("T")
LAST_VERSION = 32767  # versions are int16 on the wire: "9+" means 9-32767
ZERO_UUID = bytes(16)


class DecodeError(ValueError):
    """Bytes that are not the message they should be: `path` names the field, `reason` what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path or 'message'}: {self.reason}"


class EncodeError(ValueError):
    """A value that cannot be written in this version: `path` names the field, `reason` what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path or 'message'}: {self.reason}"


class Wire:
    """A primitive wire type: its name in Kafka's schemas; size in bytes and `struct` format if that is fixed."""

    __slots__ = ("format", "name", "size")

    def __init__(self, name: str, size: int = 0, format: str = "") -> None:  # noqa: A002 - struct's own word
        self.name = name
        self.size = size  # 0: has a length prefix
        self.format = format

    def __repr__(self) -> str:
        return f"<wire type {self.name}>"


class Region(Protocol):
    """Bytes somewhere else, such as a range of a file: all the codec asks of them is their number."""

    def __len__(self) -> int:
        """How many bytes."""


Bool: TypeAlias = Annotated[bool, Wire("bool", 1, "?")]
Int8: TypeAlias = Annotated[int, Wire("int8", 1, "b")]
Int16: TypeAlias = Annotated[int, Wire("int16", 2, "h")]
Int32: TypeAlias = Annotated[int, Wire("int32", 4, "i")]
Int64: TypeAlias = Annotated[int, Wire("int64", 8, "q")]
UInt16: TypeAlias = Annotated[int, Wire("uint16", 2, "H")]
UInt32: TypeAlias = Annotated[int, Wire("uint32", 4, "I")]
Float64: TypeAlias = Annotated[float, Wire("float64", 8, "d")]
Uuid: TypeAlias = Annotated[bytes, Wire("uuid", 16, "16s")]  # 16 raw bytes, most significant first
String: TypeAlias = Annotated[str, Wire("string")]  # at most 32767 bytes of UTF-8
Bytes: TypeAlias = Annotated[bytes, Wire("bytes")]
Array: TypeAlias = list[T]
if TYPE_CHECKING:
    Piece: TypeAlias = bytes | bytearray | memoryview | Region
    # one buffer, or the pieces of one; decoding yields a memoryview on the frame
    Records: TypeAlias = bytes | bytearray | memoryview | Sequence[Piece]
else:
    Records: TypeAlias = Annotated[memoryview, Wire("records")]

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "<required>", "__slots__": ()})()


class Declared:
    """What a call such as `since(3, default=None)` says about a field; `schema.py` makes a `Field` of it."""

    __slots__ = ("default", "first", "ignorable", "last", "nullable", "tag")

    def __init__(
        self, first: int, last: int, tag: int | None, default: object, nullable: str | None, ignorable: bool
    ) -> None:
        self.first = first
        self.last = last
        self.tag = tag
        self.default = default
        self.nullable = nullable
        self.ignorable = ignorable


def plain(*, default: Any = REQUIRED, nullable: str | None = None, ignorable: bool = False) -> Any:
    """A field of all versions.

    default: what the constructor and a version without the field fill in, Kafka's own; `[]` a fresh list each time,
    `{}` the struct with its own defaults (shared and read-only: assign a new struct, never its fields).
    nullable: versions that may hold None, such as "4+"; without it, all if the annotation says `| None`, else none.
    ignorable: writing a version without the field drops a value that is not the default, instead of raising.
    """
    return Declared(0, LAST_VERSION, None, default, nullable, ignorable)


def since(
    first: int, *, default: Any, until: int | None = None, nullable: str | None = None, ignorable: bool = False
) -> Any:
    """A field of versions `first` to `until` (included; None: all later ones). The rest as in `plain`."""
    return Declared(first, LAST_VERSION if until is None else until, None, default, nullable, ignorable)


def until(last: int, *, default: Any, nullable: str | None = None, ignorable: bool = False) -> Any:
    """A field of versions 0 to `last` (included). The rest as in `plain`."""
    return Declared(0, last, None, default, nullable, ignorable)


def tagged(
    tag: int,
    *,
    since: int,
    default: Any,
    until: int | None = None,
    nullable: str | None = None,
    ignorable: bool = False,
) -> Any:
    """A field written as tag `tag`, and only where it is not the default (KIP-482). The rest as in `since`."""
    return Declared(since, LAST_VERSION if until is None else until, tag, default, nullable, ignorable)


_PLAIN = Declared(0, LAST_VERSION, None, REQUIRED, None, False)


@dataclass_transform(kw_only_default=True, field_specifiers=(plain, since, until, tagged))
class StructMeta(type):
    """Turns annotations into slots and keeps the declarations; everything else waits for the first use."""

    declared: dict[str, Declared]

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        api: int | None = None,
        versions: str = "0+",
        flexible: str = "none",
    ) -> StructMeta:
        names = namespace.get("__annotations__", ())
        namespace["declared"] = {field: namespace.pop(field, _PLAIN) for field in names}
        namespace["__slots__"] = tuple(names)
        if bases and bases[0].__name__ == "Message":
            namespace["api"] = api
            namespace["versions"] = parse_versions(versions)
            namespace["flexible"] = parse_versions(flexible)
            namespace["_readers"] = {}
            namespace["_writers"] = {}
            namespace["_flat_readers"] = {}
            namespace["_flat_writers"] = {}
        return super().__new__(mcs, name, bases, namespace)


def parse_versions(text: str) -> tuple[int, int]:
    """First and last of "3", "0-13", "9+" or "none" (which gives an empty range, first > last)."""
    if text == "none":
        return (1, 0)
    if text.endswith("+"):
        return (int(text[:-1]), LAST_VERSION)
    first, dash, last = text.partition("-")
    return (int(first), int(last) if dash else int(first))


class Struct(metaclass=StructMeta):
    """A group of fields inside a message, read and written by the message it is part of.

    unknown_tags: tagged fields this schema does not know, raw, by tag; None when there are none. Kept by decoding and
    written back by encoding.
    """

    if TYPE_CHECKING:
        unknown_tags: dict[int, bytes] | None = None
        declared: ClassVar[dict[str, Declared]]
    else:
        unknown_tags: dict[int, bytes] | None = plain(default=None)

        def __init__(self, *args, **kwargs):
            from protocol.schema import compile_init  # the compiler imports this file

            cls = type(self)
            cls.__init__ = compile_init(cls)
            cls.__init__(self, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.declared is not other.declared:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.declared) and (
            (self.unknown_tags or None) == (other.unknown_tags or None)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in self.declared]
        if self.unknown_tags:
            parts.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


class Message(Struct):
    """A request, a response, or a record kept in a topic: a struct that is read and written by itself."""

    if TYPE_CHECKING:
        api: ClassVar[int | None]
        versions: ClassVar[tuple[int, int]]
        flexible: ClassVar[tuple[int, int]]
        _readers: ClassVar[dict[int, Callable[..., Any]]]  # by version; the sliced one of a version v at ~v
        _writers: ClassVar[dict[int, Callable[[Any], Any]]]  # likewise
        _flat_readers: ClassVar[dict[int, Callable[[Any, int], tuple[tuple[Any, ...], int]]]]  # likewise
        _flat_writers: ClassVar[dict[int, Callable[[tuple[Any, ...]], list[Any]]]]  # likewise

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, version: int, start: int = 0) -> Self:
        """The message in `buffer` from `start` on; bytes after it are left alone, as Kafka's broker leaves them.

        A message with Records holds views on `buffer`; any other holds copies. Raises: DecodeError.
        """
        return cls.decode_from(buffer, version, start)[0]

    @classmethod
    def decode_from(cls, buffer: bytes | bytearray | memoryview, version: int, start: int = 0) -> tuple[Self, int]:
        """As `decode`, with the position after the message: a caller that allows nothing to follow checks that."""
        return cls.reader(version)(buffer, start)

    @classmethod
    def reader(cls, version: int) -> Callable[[Any, int], tuple[Self, int]]:
        """What `decode_from` calls, for a reader of much of one version."""
        reader = cls._readers.get(version)
        if reader is None:
            from protocol.codec import compile_reader  # the compiler imports this file

            reader = cls._readers[version] = compile_reader(cls, version)
        return reader

    @classmethod
    def decode_slices(
        cls, buffer: bytes | bytearray | memoryview, version: int, start: int, most_elements: int
    ) -> Generator[None, None, Self]:
        """As `decode`, for large messages: it yields every 100 us or so, and goes on when it is asked to.

        most_elements: of all arrays together, one more raises DecodeError before they take memory.
        """
        reader = cls._readers.get(~version)
        if reader is None:
            from protocol.codec import compile_sliced_reader  # the compiler imports this file

            reader = cls._readers[~version] = compile_sliced_reader(cls, version)
        message, _ = yield from reader(buffer, start, most_elements)
        return cast("Self", message)

    def encode_slices(self, version: int) -> Generator[None, None, list[Any]]:
        """As `encode_parts`, for large messages: it yields every 100 us or so. Nothing in them may change meanwhile."""
        writer = self._writers.get(~version)
        if writer is None:
            from protocol.codec import compile_sliced_writer  # the compiler imports this file

            writer = self._writers[~version] = compile_sliced_writer(type(self), version)
        parts: list[Any] = yield from writer(self)
        return parts

    def encode(self, version: int) -> bytes:
        """The message as bytes. Raises: EncodeError, also where its records are not in memory."""
        parts = self.encode_parts(version)
        if len(parts) == 1 and type(parts[0]) is bytes:
            return parts[0]
        try:
            return b"".join(parts)
        except TypeError:
            raise EncodeError("", "holds records that are not in memory: use encode_parts") from None

    def encode_parts(self, version: int) -> list[Any]:
        """The message as buffers and regions in order; records are passed on as they are, never copied or read.

        Returns at least one part. Raises: EncodeError.
        """
        try:
            writer: Callable[[Any], list[Any]] = self._writers[version]
        except KeyError:
            from protocol.codec import compile_writer  # the compiler imports this file

            writer = self._writers[version] = compile_writer(type(self), version)
        return writer(self)

    @classmethod
    def read_flat(cls, buffer: bytes | bytearray | memoryview, version: int, start: int = 0) -> tuple[Any, ...]:
        """As `decode`, as a tuple (`flat.py`)."""
        return cls.flat_reader(version)(buffer, start)[0]

    @classmethod
    def flat_reader(cls, version: int) -> Callable[[Any, int], tuple[tuple[Any, ...], int]]:
        """What `read_flat` calls, for a reader of much of one version: (buffer, start) to the tuple and its end."""
        reader = cls._flat_readers.get(version)
        if reader is None:
            from protocol.codec import compile_flat_reader  # the compiler imports this file

            reader = cls._flat_readers[version] = compile_flat_reader(cls, version)
        return reader

    @classmethod
    def read_flat_slices(
        cls, buffer: bytes | bytearray | memoryview, version: int, start: int, most_elements: int
    ) -> Generator[None, None, tuple[Any, ...]]:
        """As `decode_slices`, as a tuple (`flat.py`)."""
        reader: Callable[..., Any] | None = cls._flat_readers.get(~version)
        if reader is None:
            from protocol.codec import compile_sliced_reader  # the compiler imports this file

            reader = cls._flat_readers[~version] = compile_sliced_reader(cls, version, flat=True)
        values, _ = yield from reader(buffer, start, most_elements)
        return cast("tuple[Any, ...]", values)

    @classmethod
    def write_flat(cls, values: tuple[Any, ...], version: int) -> list[Any]:
        """As `encode_parts`, of a tuple (`flat.py`)."""
        return cls.flat_writer(version)(values)

    @classmethod
    def flat_writer(cls, version: int) -> Callable[[tuple[Any, ...]], list[Any]]:
        """What `write_flat` calls, for a writer of much of one version."""
        writer = cls._flat_writers.get(version)
        if writer is None:
            from protocol.codec import compile_flat_writer  # the compiler imports this file

            writer = cls._flat_writers[version] = compile_flat_writer(cls, version)
        return writer

    @classmethod
    def write_flat_slices(cls, values: tuple[Any, ...], version: int) -> Generator[None, None, list[Any]]:
        """As `encode_slices`, of a tuple (`flat.py`)."""
        writer: Callable[..., Any] | None = cls._flat_writers.get(~version)
        if writer is None:
            from protocol.codec import compile_sliced_writer  # the compiler imports this file

            writer = cls._flat_writers[~version] = compile_sliced_writer(cls, version, flat=True)
        parts: list[Any] = yield from writer(values)
        return parts
