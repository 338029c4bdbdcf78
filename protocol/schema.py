"""What a message class declares, resolved: fields with types, ranges and defaults, and which of them a version has.

Called by the compiler (`codec.py`), by the explaining codec (`explain.py`), by tests and documentation that walk
schemas. Evaluates annotations, once per class, at the first question. Never touches bytes.

    for field in fields_at(FetchRequest, 12):
        print(field.name, field.type, field.tag, field.nullable_at(12), field.default)
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from protocol.message import REQUIRED, ZERO_UUID, Declared, Message, Struct, StructMeta, Wire, parse_versions
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_ZERO: dict[str, object] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": ZERO_UUID,
}


class SchemaError(TypeError):
    """A declaration that means nothing; only the author of a message can cause it."""


class FieldType(NamedTuple):
    """The type of a field on the wire, whatever the version.

    kind: a primitive's name ("int32", "string", "records", ...), "struct" or "array".
    wire: the primitive; None for struct and array. struct: the class. element: what an array holds.
    """

    kind: str
    wire: Wire | None = None
    struct: type[Struct] | None = None
    element: FieldType | None = None

    def __str__(self) -> str:
        if self.kind == "array":
            return f"[]{self.element}"
        return self.struct.__name__ if self.struct else self.kind


class Field(NamedTuple):
    """One field: name in snake case, type, versions it is in (first to last), tag if it is a tagged field.

    nullable: first and last version that may hold None; an empty range (1, 0) if none may.
    default: REQUIRED if the constructor must be given it; `[]` and `{}` as in `message.plain`.
    """

    name: str
    type: FieldType
    first: int
    last: int
    tag: int | None
    default: Any
    nullable: tuple[int, int]
    ignorable: bool

    def present_at(self, version: int) -> bool:
        """Whether `version` has the field, as a plain or a tagged one."""
        return self.first <= version <= self.last

    def nullable_at(self, version: int) -> bool:
        """Whether the field may be None in `version`."""
        return self.nullable[0] <= version <= self.nullable[1]

    def default_value(self) -> Any:
        """What a version without the field yields: a fresh list, the shared default struct, or the constant."""
        if self.default is REQUIRED:
            return self.zero()
        if self.default == [] and isinstance(self.default, list):
            return []
        if self.default == {} and isinstance(self.default, dict):
            assert self.type.struct is not None, self.name
            return default_struct(self.type.struct)
        return self.default

    def zero(self) -> Any:
        """Kafka's default for a field that declares none: 0, False, empty, all zeros."""
        if self.type.kind == "array":
            return []
        if self.type.struct is not None:
            return default_struct(self.type.struct)
        return _ZERO.get(self.type.kind, 0)


@cache
def fields(cls: type[Struct]) -> tuple[Field, ...]:
    """All fields of a message or struct, in the order of the wire, tagged ones where they are declared."""
    scope = vars(sys.modules[cls.__module__])
    return tuple(_resolve(cls, name, cls.__annotations__[name], how, scope) for name, how in cls.declared.items())


def fields_at(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """The fields that `version` of the message around `cls` has, tagged ones too."""
    return tuple(field for field in fields(cls) if field.present_at(version))


def is_flexible(message: type[Message], version: int) -> bool:
    """Whether `version` has compact lengths and tagged fields (KIP-482)."""
    return message.flexible[0] <= version <= message.flexible[1]


def direction(message: type[Message]) -> Literal["request", "response", "record"]:
    """Request or response, told by the name; record for what is kept in topics or inside other messages."""
    if message.api is None:
        return "record"
    if message.__name__.endswith("Request"):
        return "request"
    if message.__name__.endswith("Response"):
        return "response"
    raise SchemaError(f"{message.__name__} has an api key, but is neither Request nor Response")


def structs(cls: type[Struct]) -> tuple[type[Struct], ...]:
    """`cls` and every struct inside it, in order of first use."""
    found: dict[type[Struct], None] = {}
    waiting = [cls]
    while waiting:
        one = waiting.pop(0)
        if one not in found:
            found[one] = None
            waiting += [inner for inner in (_struct_of(field.type) for field in fields(one)) if inner]
    return tuple(found)


def has_records(message: type[Message], version: int) -> bool:
    """Whether `version` carries Records: such a message is decoded as views on the frame."""
    return any(field.type.kind == "records" for cls in structs(message) for field in fields_at(cls, version))


def minimum_size(kind: FieldType, version: int, flexible: bool) -> int:
    """The fewest bytes a value of this type takes, not counting the mark of a nullable struct."""
    if kind.wire is not None:
        if kind.wire.size:
            return kind.wire.size
        return 1 if flexible else 2 if kind.kind == "string" else 4
    if kind.struct is None:
        return 1 if flexible else 4
    plain = (field for field in fields_at(kind.struct, version) if field.tag is None)
    sizes = (
        1 if field.type.struct and field.nullable_at(version) else minimum_size(field.type, version, flexible)
        for field in plain
    )
    return sum(sizes) + flexible


def _struct_of(kind: FieldType) -> type[Struct] | None:
    return kind.struct or (kind.element.struct if kind.element else None)


def _resolve(cls: type[Struct], name: str, annotation: str, how: Declared, scope: dict[str, Any]) -> Field:
    where = f"{cls.__name__}.{name}"
    text = annotation.strip()
    optional = text.endswith("| None")
    if optional:
        text = text.removesuffix("| None").strip()
    try:
        kind = _field_type(eval(text, scope))
    except (NameError, SchemaError) as error:
        raise SchemaError(f"{where}: {error}") from None
    if how.nullable is not None:
        nullable = parse_versions(how.nullable)
    else:
        nullable = (0, 32767) if optional else (1, 0)
    if how.tag is not None and kind.kind == "records":
        raise SchemaError(f"{where}: records cannot be tagged")
    default = how.default
    if default is not REQUIRED and (default == {} and isinstance(default, dict)) != (
        kind.struct is not None and default is not None
    ):
        raise SchemaError(f"{where}: the default of a struct is {{}} or None, and of nothing else")
    return Field(name, kind, how.first, how.last, how.tag, default, nullable, how.ignorable)


def _field_type(value: Any) -> FieldType:
    if get_origin(value) is Annotated:
        wire = get_args(value)[1]
        return FieldType(wire.name, wire=wire)
    if get_origin(value) is list:
        element = _field_type(get_args(value)[0])
        if element.kind in ("array", "records"):
            raise SchemaError(f"an array of {element.kind} is not on the wire")
        return FieldType("array", element=element)
    if isinstance(value, type) and issubclass(value, Struct):
        return FieldType("struct", struct=value)
    raise SchemaError(f"{value!r} is not a wire type")


@cache
def default_struct(cls: type[Struct]) -> Struct:
    """The one instance of `cls` that stands wherever a field defaults to `{}`; it refuses to be changed."""

    def refuse(self: object, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} here is the shared default: assign a new struct instead")

    frozen: Any = StructMeta(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    frozen.declared = cls.declared
    instance: Struct = frozen.__new__(frozen)
    for field in fields(cls):
        setattr(instance, field.name, field.default_value())
    instance.unknown_tags = None
    frozen.__setattr__ = refuse
    return instance


def compile_init(cls: type[Struct]) -> Callable[..., None]:
    """The constructor of `cls`: one slot store a field, defaults in the signature."""
    scope: dict[str, Any] = {"REQUIRED": REQUIRED, "missing": _missing, "cls": cls}
    signature, body, required = [], [], []
    for number, field in enumerate(fields(cls)):
        value = field.name
        if field.default is REQUIRED:
            signature.append(f"{field.name}=REQUIRED")
            required.append(field.name)
        elif isinstance(field.default, list):
            signature.append(f"{field.name}=REQUIRED")
            value = f"[] if {field.name} is REQUIRED else {field.name}"
        else:
            scope[f"d{number}"] = field.default_value()
            signature.append(f"{field.name}=d{number}")
        body.append(f"    self.{field.name} = {value}\n")
    if required:
        test = " or ".join(f"{name} is REQUIRED" for name in required)
        body.append(f"    if {test}:\n        missing(cls, locals())\n")
    body.append("    self.unknown_tags = unknown_tags\n")
    text = f"def __init__(self, {', '.join([*signature, 'unknown_tags=None'])}):\n{''.join(body)}"
    exec(compile(text, f"<constructor of {cls.__name__}>", "exec"), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


def _missing(cls: type[Struct], given: dict[str, object]) -> None:
    names = [field.name for field in fields(cls) if field.default is REQUIRED and given[field.name] is REQUIRED]
    raise TypeError(f"{cls.__name__} is missing {', '.join(names)}")
