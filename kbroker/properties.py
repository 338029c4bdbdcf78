"""Java's .properties text <-> a dict of strings: the language of server.properties and meta.properties.

Called by all that read or write such a file. Pure; knows no key. Source: java.util.Properties, "load".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")
_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values in the order they come; of a repeated key the last value.

    Raises ValueError for a broken \\uXXXX, the one thing the format can have wrong.
    """
    return {key: value for _, key, value in numbered_properties(text)}


def numbered_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """(number of its first line, from 1; key; value) of every line that says something, repeated keys included.

    Raises ValueError for a broken \\uXXXX, at the line that has it.
    """
    for number, line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        try:
            yield number, _unescape(line[:end]), _unescape(rest)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def format_properties(values: Mapping[str, str]) -> str:
    """One `key=value` line each, escaped so that `parse_properties` and Java read the same back."""
    return "".join(f"{_escape(key, key=True)}={_escape(value, key=False)}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without blanks before them, comments dropped, continued lines joined; with the number of the first."""
    pending, first = "", 0
    continued = False
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANK)
        if not continued:
            if not line or line[0] in "#!":
                continue
            first = number
        pending += line
        continued = (len(pending) - len(pending.rstrip("\\"))) % 2 == 1
        if continued:
            pending = pending[:-1]
        else:
            yield first, pending
            pending = ""
    if pending:
        yield first, pending


def _key_end(line: str) -> int:
    escaped = False
    for index, character in enumerate(line):
        if not escaped and character in "=:" + _BLANK:
            return index
        escaped = character == "\\" and not escaped
    return len(line)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\":
            parts.append(character)
            continue
        code = text[index : index + 1]
        index += 1
        if code == "u":
            digits = text[index : index + 4]
            if _UNICODE.fullmatch(digits) is None:
                raise ValueError(f"\\u is followed by {digits!r}, not by four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            index += 4
        else:
            parts.append(_ESCAPES.get(code, code))
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs


def _escape(text: str, *, key: bool) -> str:
    parts: list[str] = []
    for index, character in enumerate(text):
        if character in "\\=:#!" or (character == " " and (key or index == 0)):
            parts.append("\\" + character)
        elif character in "\t\n\r\f":
            parts.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[character])
        elif not " " <= character <= "~":
            parts.append("".join(f"\\u{unit:04X}" for unit in _utf16(character)))
        else:
            parts.append(character)
    return "".join(parts)


def _utf16(character: str) -> list[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[i : i + 2], "big") for i in range(0, len(encoded), 2)]
