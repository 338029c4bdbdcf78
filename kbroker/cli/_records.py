"""Records as bytes for a pipe: as JSON lines, or by a format string with kcat's tokens.

Called by `kbroker consume`; what it shows to people is in `_screen.py`. Pipes and files get the bytes as they are. For
a terminal they go through `harmless` first, whatever form was asked for: a client's control characters are escaped.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from kbroker.cli._tables import printable
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from confluent_kafka import Message

NO_TIME = 0  # of the client's types of timestamps; 1 and 2 are its producer's and its broker's
_TIME_TYPES: dict[int | None, str] = {0: "create", 1: "logappend"}
_quoted = json.encoder.encode_basestring  # a string as JSON: an encoder for whole documents is made each time
_TOKEN = re.compile(r"%(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Consumed(NamedTuple):
    """A record as it is printed. timestamp: in ms, None where its format has none. timestamp_type: 0 its producer's, 1
    its broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def consumed(message: Message) -> Consumed:
    """A message of the client's as a record."""
    kind, timestamp = message.timestamp()
    return Consumed(
        message.topic(),
        message.partition(),
        message.offset(),
        None if kind == NO_TIME else timestamp,
        kind - 1,
        message.key(),
        message.value(),
        message.headers() or [],
    )


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


def as_json(record: Consumed) -> bytes:
    """One line of JSON, with kcat's names. What is no UTF-8 stands under NAME_base64, and NAME is null."""
    headers = _headers(record) if record.headers else "[]"
    kind = _TIME_TYPES.get(record.timestamp_type, "unknown")
    text = (
        f'{{"topic":{_quoted(record.topic)},"partition":{record.partition},"offset":{record.offset},"tstype":"{kind}",'
        f'"ts":{"null" if record.timestamp is None else record.timestamp},"headers":{headers},'
        f"{_member('key', record.key)},{_member('payload', record.value)}}}"
    )
    if not text.isprintable():  # JSON itself escapes no more than the first 32
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return text.encode() + b"\n"


def _member(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_quoted(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}":null,"{name}_base64":"{base64.b64encode(data).decode()}"'


def as_it_is(data: bytes) -> bytes:
    """For a pipe or a file: nothing is changed."""
    return data


def harmless(data: bytes) -> bytes:
    """For a terminal: control characters, and what is no UTF-8, as escapes."""
    return printable(data.decode(errors="backslashreplace")).encode()


Clean = Callable[[bytes], bytes]


def formatter(text: str, clean: Clean = as_it_is, null: bytes = b"") -> Callable[[Consumed], bytes]:
    """A function by a format of kcat's, and what it takes from a record cleaned: %s value, %S its length, %R the same
    as four bytes, %k key, %K, %t topic, %p partition, %o offset, %T timestamp in ms, %h headers, %% a percent sign;
    escapes as in `unescaped`. null: what stands for a key or a value that is none.

    Raises: UsageError for any other token.
    """
    tokens = _tokens(null)
    template, chosen, at = b"", [], 0
    for match in _TOKEN.finditer(text):
        template += unescaped(text[at : match.start()]).replace(b"%", b"%%")
        at = match.end()
        if match[1] == "%":
            template += b"%%"
        elif match[1] in tokens:
            template += b"%b"
            chosen.append(tokens[match[1]])
        else:
            raise click.UsageError(f"--format: {match[0]!r} is none of %{', %'.join(tokens)}, %%")
    template += unescaped(text[at:]).replace(b"%", b"%%")
    if clean is as_it_is:
        return lambda record: template % tuple([part(record) for part in chosen])
    return lambda record: template % tuple([clean(part(record)) for part in chosen])


def delimited(
    key_delimiter: str | None, delimiter: str, clean: Clean = as_it_is, null: bytes = b""
) -> Callable[[Consumed], bytes]:
    """A function that gives the value and the delimiter, and before them the key and its own if there is one.

    null: what stands for a key or a value that is none.
    """
    end = unescaped(delimiter)
    if key_delimiter is None:
        return lambda record: clean(or_null(record.value, null)) + end
    between = unescaped(key_delimiter)
    return lambda record: clean(or_null(record.key, null)) + between + clean(or_null(record.value, null)) + end


def or_null(data: bytes | None, null: bytes) -> bytes:
    """The data, or what stands for none."""
    return null if data is None else data


def _tokens(null: bytes) -> dict[str, Callable[[Consumed], bytes]]:
    return {
        "s": lambda record: or_null(record.value, null),
        "S": lambda record: b"%d" % _size(record.value),
        "k": lambda record: or_null(record.key, null),
        "K": lambda record: b"%d" % _size(record.key),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % (-1 if record.timestamp is None else record.timestamp),  # None: format v0 has none
        "h": lambda record: b",".join(
            name.encode() + b"=" + (value or b"NULL") for name, value in record.headers or ()
        ),
        "R": lambda record: _size(record.value).to_bytes(4, "big", signed=True),
    }


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Consumed) -> str:
    items = [item for pair in _header_pairs(record) for item in pair]
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"))


def _header_pairs(record: Consumed) -> Iterator[tuple[str, str | None]]:
    for name, value in record.headers or ():
        yield name, None if value is None else value.decode(errors="backslashreplace")
