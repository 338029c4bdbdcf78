"""Records as text: for a terminal, as JSON lines, or by a format string with kcat's tokens.

Called by `kbroker consume`. What a client put into a key or a value never reaches a terminal as it is: control
characters are escaped there. Pipes and files get the bytes themselves.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.highlighter import JSONHighlighter
from rich.text import Text

from kbroker.cli._tables import printable

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord

NULL = "null"
_TIME_TYPES = {0: "create", 1: "logappend"}
_TOKEN = re.compile(r"%(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_highlight_json = JSONHighlighter()


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


def shown(record: ConsumerRecord, *, with_topic: bool) -> Text:
    """A line for a terminal: where, when, key, value, headers."""
    line = Text()
    if with_topic:
        line.append(f"{printable(record.topic)} ", style="magenta")
    line.append(f"{record.partition}:{record.offset}".ljust(6), style="cyan")
    line.append(f"  {_time(record.timestamp)}  ", style="dim")
    if record.key is not None:
        line.append(_text(record.key), style="bold yellow")
        line.append("  ")
    line.append_text(_value(record.value))
    for name, value in record.headers or ():
        line.append(f"  {printable(name)}=", style="dim")
        line.append(NULL if value is None else _text(value), style="dim green")
    return line


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
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def formatter(text: str) -> Callable[[ConsumerRecord], bytes]:
    """A function by a format of kcat's: %s value, %S its length, %k key, %K, %t topic, %p partition, %o offset,
    %T timestamp in ms, %h headers, %% a percent sign; escapes as in `unescaped`.

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
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


_TOKENS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"NULL") for name, value in record.headers or ()),
}


def _header_pairs(record: ConsumerRecord) -> Iterator[tuple[str, str | None]]:
    for name, value in record.headers or ():
        yield name, None if value is None else value.decode(errors="backslashreplace")


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):  # a client may have written any number
        return str(timestamp_ms)


def _text(data: bytes) -> str:
    return printable(data.decode(errors="backslashreplace"))


def _value(data: bytes | None) -> Text:
    if data is None:
        return Text(NULL, style="dim italic")
    text = Text(_text(data))
    if data[:1] in (b"{", b"["):
        _highlight_json.highlight(text)
    return text
