"""Records as bytes for a pipe: as JSON lines, or by a format string with kcat's tokens.

Called by `kbroker consume`; what it shows to people is in `_screen.py`. Pipes and files get the bytes as they are. For
a terminal they go through `harmless` first, whatever form was asked for: a client's control characters are escaped.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._tables import printable

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord

_TIME_TYPES = {0: "create", 1: "logappend"}
_TOKEN = re.compile(r"%(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescaped(text: str) -> bytes:
    """What a delimiter or format string of the command line stands for: \\n, \\t, \\r, \\0, \\xNN."""

    def one(match: re.Match[str]) -> str:
        found = match[1]
        raw = (
            bytes([int(found[1:], 16)])
            if found[0] == "x" and len(found) > 1
            else _ESCAPES.get(found, match[0].encode())
        )
        return raw.decode("latin-1")

    return _ESCAPED.sub(one, text.encode().decode("latin-1")).encode("latin-1")


def as_json(record: ConsumerRecord) -> bytes:
    """One line of JSON, with kcat's names. What is no UTF-8 stands under NAME_base64, and NAME is null."""
    line: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": _TIME_TYPES.get(record.timestamp_type, "unknown"),
        "ts": record.timestamp,
        "headers": [item for pair in _header_pairs(record) for item in pair],
    }
    for name, data in (("key", record.key), ("payload", record.value)):
        try:
            line[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            line[name] = None
            line[f"{name}_base64"] = base64.b64encode(data).decode()
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():  # JSON itself escapes no more than the first 32
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return text.encode() + b"\n"


def as_it_is(data: bytes) -> bytes:
    """For a pipe or a file: nothing is changed."""
    return data


def harmless(data: bytes) -> bytes:
    """For a terminal: control characters, and what is no UTF-8, as escapes."""
    return printable(data.decode(errors="backslashreplace")).encode()


Clean = Callable[[bytes], bytes]


def formatter(text: str, clean: Clean = as_it_is) -> Callable[[ConsumerRecord], bytes]:
    """A function by a format of kcat's, and what it takes from a record cleaned: %s value, %S its length, %k key, %K,
    %t topic, %p partition, %o offset, %T timestamp in ms, %h headers, %% a percent sign; escapes as in `unescaped`.

    Raises: UsageError for any other token.
    """
    parts: list[bytes | Callable[[ConsumerRecord], bytes]] = []
    at = 0
    for match in _TOKEN.finditer(text):
        parts.append(unescaped(text[at : match.start()]))
        at = match.end()
        if match[1] == "%":
            parts.append(b"%")
        elif match[1] in _TOKENS:
            parts.append(_TOKENS[match[1]])
        else:
            raise click.UsageError(f"--format: {match[0]!r} is none of %{', %'.join(_TOKENS)}, %%")
    parts.append(unescaped(text[at:]))
    return lambda record: b"".join(part if isinstance(part, bytes) else clean(part(record)) for part in parts)


def delimited(key_delimiter: str | None, delimiter: str, clean: Clean = as_it_is) -> Callable[[ConsumerRecord], bytes]:
    """A function that gives the value and the delimiter, and before them the key and its own if there is one."""
    end = unescaped(delimiter)
    if key_delimiter is None:
        return lambda record: clean(record.value or b"") + end
    between = unescaped(key_delimiter)
    return lambda record: clean(record.key or b"") + between + clean(record.value or b"") + end


_TOKENS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % (-1 if record.timestamp is None else record.timestamp),  # None: format v0 has none
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"NULL") for name, value in record.headers or ()),
}


def _header_pairs(record: ConsumerRecord) -> Iterator[tuple[str, str | None]]:
    for name, value in record.headers or ():
        yield name, None if value is None else value.decode(errors="backslashreplace")
