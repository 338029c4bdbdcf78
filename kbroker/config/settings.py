"""What a setting is: a typed, checked, documented name; and what a class of settings is.

The classes in broker.py and topic.py declare one setting a line; the attribute's name is the key's with `_` for `.`,
the annotation is its Kafka type:

    num_partitions: Int = setting(1, at_least(1), doc="Partitions of a topic created without a number.")

An instance holds resolved values and nothing else: slots, frozen, an attribute costs what a slot costs. How values are
resolved from files and overrides is resolve.py's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from protocol.namedtuple import NamedTuple

Value: TypeAlias = "bool | int | float | str | tuple[str, ...] | None"

Boolean: TypeAlias = bool
String: TypeAlias = str
Int: TypeAlias = int
Short: TypeAlias = int
Long: TypeAlias = int
Double: TypeAlias = float
List: TypeAlias = tuple[str, ...]
Class: TypeAlias = str
Password: TypeAlias = str

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308


class ConfigType(Enum):
    """The types of DescribeConfigs v3+; the value is the type's number on the wire. Source: KIP-569."""

    UNKNOWN = 0  # of a key that is none of ours
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(Enum):
    """Whether a value may change while the broker runs, and for whom. Source: KIP-226."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"  # for all brokers or for one


READ_ONLY, PER_BROKER, CLUSTER_WIDE = Dynamic.READ_ONLY, Dynamic.PER_BROKER, Dynamic.CLUSTER_WIDE


class Check(NamedTuple):
    """What a value must satisfy beyond its type; `allowed` is how a message says it."""

    allowed: str
    holds: Callable[[Any], bool]


def at_least(minimum: float) -> Check:
    """Numbers from `minimum` up."""
    return Check(f"at least {minimum}", lambda value: value >= minimum)


def between(minimum: float, maximum: float) -> Check:
    """Numbers from `minimum` to `maximum`, both included."""
    return Check(f"{minimum} to {maximum}", lambda value: minimum <= value <= maximum)


def one_of(*names: str) -> Check:
    """Exactly one of these words."""
    return Check("one of " + ", ".join(names), lambda value: value in names)


def empty(why: str) -> Check:
    """No value at all. why: what is not there to make use of one."""
    return Check(f"empty: {why}", lambda value: not value)


NOT_TRUE = Check("here only false", lambda value: not value)
"""A switch that stays off: there is nothing to switch on."""


def each_of(*names: str) -> Check:
    """A list with nothing but these words."""
    return Check("a list of " + ", ".join(names), lambda value: all(item in names for item in value))


def matching(pattern: str, allowed: str) -> Check:
    """Text that matches a regular expression as a whole."""
    compiled = re.compile(pattern)
    return Check(allowed, lambda value: compiled.fullmatch(value) is not None)


class Setting(NamedTuple):
    """One key: everything there is to know about it but its value.

    fallbacks: (key, factor): where the value comes from when the key itself is not set, in this order; the factor turns
    hours or minutes into milliseconds. broker: for a topic's key, the broker's key with the default for all topics.
    unused: why the broker accepts the key without acting on it; None for a key it honours. internal: never shown.
    """

    name: str
    type: ConfigType
    default: Value
    checks: tuple[Check, ...]
    doc: str
    dynamic: Dynamic
    fallbacks: tuple[tuple[str, int], ...]
    broker: str | None
    unused: str | None
    internal: bool

    @property
    def attribute(self) -> str:
        """Its name in a settings class."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether its value must never be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def unit(self) -> str | None:
        """ms, s, min, h, bytes, bytes/s; None for counts, ratios and words."""
        if self.name.endswith("bytes.per.second"):
            return "bytes/s"
        last = self.name.rsplit(".", 1)[-1]
        return _UNITS.get(last) or ("bytes" if self.name in _SIZES_IN_BYTES else None)

    @property
    def allowed(self) -> str:
        """What a value may be, for messages."""
        return ", ".join([_TYPE_WORDS[self.type], *(check.allowed for check in self.checks)])

    def parse(self, text: str) -> Value:
        """The value that `text` stands for; ValueError (says nothing: see `allowed`) if it is not legal."""
        text = text.strip()
        if not text and self.default is None and self.type in (ConfigType.STRING, ConfigType.CLASS):
            return None  # written down empty, as images do with what they leave open
        value = _PARSERS[self.type](text)
        if not all(check.holds(value) for check in self.checks):
            raise ValueError
        return value

    def shown(self, value: Value) -> str | None:
        """The text that DescribeConfigs shows for a value: Java's way of writing it, None if there is none."""
        if value is None or self.sensitive:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return _java_double(value) if isinstance(value, float) else str(value)


_UNITS = {"ms": "ms", "seconds": "s", "minutes": "min", "hours": "h", "bytes": "bytes"}
_SIZES_IN_BYTES = {"log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.size", "offsets.load.buffer.size"}
_TYPE_WORDS = {
    ConfigType.UNKNOWN: "text",
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "text",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a secret",
}


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
            raise ValueError
        return int(text)

    return parse


def _double(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError
    value = float(text)
    if abs(value) > DOUBLE_MAX:
        raise ValueError
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: dict[ConfigType, Callable[[str], Value]] = {
    ConfigType.UNKNOWN: str,
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(32),
    ConfigType.SHORT: _integer(16),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}


def _java_double(value: float) -> str:
    """As Double.toString writes it: plain from 0.001 up to ten million, else one digit, the others and an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # costs a millisecond of every start; two settings ever come here

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), value
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


def setting(
    default: Value,
    *checks: Check,
    doc: str,
    dynamic: Dynamic = READ_ONLY,
    fallbacks: tuple[tuple[str, int], ...] = (),
    broker: str | None = None,
    unused: str | None = None,
    internal: bool = False,
) -> Any:
    """Declare a setting in a settings class; its name and type come from the attribute. See Setting for the words."""
    return Setting("", ConfigType.STRING, default, checks, doc, dynamic, fallbacks, broker, unused, internal)


class _SettingsClass(type):
    """Turns the declared settings into slots, and keeps them in the order of declaration."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _SettingsClass:
        settings = {}
        for attribute in [key for key, value in namespace.items() if isinstance(value, Setting)]:
            type_name = namespace["__annotations__"][attribute].removesuffix(" | None").upper()
            declared: Setting = namespace.pop(attribute)
            key = attribute.replace("_", ".")
            settings[key] = declared._replace(name=key, type=ConfigType[type_name])
        namespace["KEYS"] = settings
        namespace["ATTRIBUTES"] = {key: each.attribute for key, each in settings.items()}
        namespace["__slots__"] = tuple(namespace["ATTRIBUTES"].values())
        return super().__new__(cls, name, bases, namespace)


class Settings(metaclass=_SettingsClass):
    """Resolved values, one attribute a key; frozen. KEYS, ATTRIBUTES: settings of the class, and names, by key."""

    KEYS: ClassVar[Mapping[str, Setting]]
    ATTRIBUTES: ClassVar[Mapping[str, str]]

    def __init__(self, values: Mapping[str, Value]) -> None:
        """values: by key; every key of the class and no other."""
        assert values.keys() == self.KEYS.keys(), sorted(values.keys() ^ self.KEYS.keys())
        set_slot = object.__setattr__
        for key, attribute in self.ATTRIBUTES.items():
            set_slot(self, attribute, values[key])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: resolved settings do not change; resolve new ones")

    def items(self) -> Iterator[tuple[Setting, Value]]:
        """Every setting with its resolved value, in the order of declaration."""
        for each in self.KEYS.values():
            yield each, getattr(self, each.attribute)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return [value for _, value in self.items()] == [value for _, value in other.items()]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [f"{each.name}={each.shown(value)}" for each, value in self.items() if value != each.default]
        return f"{type(self).__name__}({', '.join(shown)})"
