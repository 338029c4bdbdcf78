"""What Apache's console tools are told by --property: how a record is printed, and how a line becomes a record.

Called by `kbroker consume` (print.key, key.separator ...) and `kbroker produce` (parse.key, headers.delimiter ...).
Names and defaults are those of DefaultMessageFormatter and LineMessageReader.

Unlike Kafka: a property that is none is refused; separators are read with escapes, as \\t for a tab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import click

from kbroker.cli._records import Clean, Consumed, as_it_is, or_null, unescaped
from protocol.namedtuple import NamedTuple

Headers = list[tuple[str, bytes | None]]

_PRINTED = ("timestamp", "partition", "offset", "headers", "key", "value")  # in this order
_PRINT_DEFAULTS = {
    **{f"print.{name}": "true" if name == "value" else "false" for name in _PRINTED},
    "key.separator": "\\t",
    "line.separator": "\\n",
    "headers.separator": ",",
    "null.literal": "null",
}
DESERIALIZERS = ("key.deserializer", "value.deserializer")
_TIMES = {0: "CreateTime", 1: "LogAppendTime"}
_READ_DEFAULTS = {
    "parse.key": "false",
    "key.separator": "\\t",
    "parse.headers": "false",
    "headers.delimiter": "\\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
}


def properties(given: Iterable[str]) -> dict[str, str]:
    """What `--property KEY=VALUE` says, the later of two. Raises: UsageError."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--property {each}: write it as KEY=VALUE")
        found[key] = value
    return found


def printer(given: Mapping[str, str], clean: Clean = as_it_is) -> Callable[[Consumed], bytes]:
    """A function that prints a record. given: properties. Raises: UsageError for one that is none."""
    known = _known(given, _PRINT_DEFAULTS, DESERIALIZERS)
    between, end = unescaped(known["key.separator"]), unescaped(known["line.separator"])
    comma, null = unescaped(known["headers.separator"]), known["null.literal"].encode()

    def headers(record: Consumed) -> bytes:
        pairs = (clean(name.encode() + b":" + or_null(value, null)) for name, value in record.headers)
        return comma.join(pairs) or b"NO_HEADERS"

    parts: dict[str, Callable[[Consumed], bytes]] = {
        "timestamp": _time,
        "partition": lambda record: b"Partition:%d" % record.partition,
        "offset": lambda record: b"Offset:%d" % record.offset,
        "headers": headers,
        "key": lambda record: clean(or_null(record.key, null)),
        "value": lambda record: clean(or_null(record.value, null)),
    }
    chosen = [parts[name] for name in _PRINTED if _is_true(known, f"print.{name}")]
    return lambda record: between.join(part(record) for part in chosen) + end


def _time(record: Consumed) -> bytes:
    if record.timestamp is None:
        return b"NO_TIMESTAMP"
    return f"{_TIMES.get(record.timestamp_type or 0)}:{record.timestamp}".encode()


class Piece(NamedTuple):
    """What a line says of a record."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None


def line_reader(given: Mapping[str, str]) -> Callable[[bytes], Piece]:
    """A function that reads a line, and raises ValueError for one that is not as told.

    given: properties. Raises: UsageError for one that is none, and for separators that could not be told apart.
    """
    known = _known(given, _READ_DEFAULTS, ("null.marker",))
    has_key, has_headers, is_lax = (_is_true(known, key) for key in ("parse.key", "parse.headers", "ignore.error"))
    names = ("key.separator", "headers.delimiter", "headers.separator", "headers.key.separator")
    key_end, headers_end, comma, colon = (unescaped(known[name]) for name in names)
    null = known["null.marker"].encode() if "null.marker" in known else None
    if not all((key_end, headers_end, comma, colon)) or len({headers_end, comma, colon}) < 3:
        raise click.UsageError("--property: separators are no empty text, and those of headers differ from each other")

    def cut(line: bytes, delimiter: bytes, name: str) -> tuple[bytes | None, bytes]:
        head, found, rest = line.partition(delimiter)
        if found:
            return head, rest
        if is_lax:
            return None, line
        raise ValueError(f"no {name} {delimiter.decode(errors='backslashreplace')!r} is in it")

    def header(pair: bytes) -> tuple[str, bytes | None]:
        name, value = cut(pair, colon, "headers.key.separator")
        text = (value if name is None else name).decode(errors="surrogateescape")
        return text, None if name is None or value == null else value

    def read(line: bytes) -> Piece:
        key: bytes | None = None
        headers: bytes | None = None
        value = line
        if has_headers:
            headers, value = cut(value, headers_end, "headers.delimiter")
        if has_key:
            key, value = cut(value, key_end, "key.separator")
        return Piece(
            None if key == null else key,
            None if value == null else value,
            None if headers in (None, null) else [header(pair) for pair in (headers or b"").split(comma) if pair],
        )

    return read


def _known(given: Mapping[str, str], defaults: Mapping[str, str], others: tuple[str, ...]) -> dict[str, str]:
    for key in given:
        if key not in defaults and key not in others:
            raise click.UsageError(f"--property {key}: allowed: {', '.join((*defaults, *others))}")
    return {**defaults, **given}


def _is_true(known: Mapping[str, str], key: str) -> bool:
    value = known[key].strip().lower()
    if value not in ("true", "false"):
        raise click.UsageError(f"--property {key}={known[key]}: allowed: true, false")
    return value == "true"
