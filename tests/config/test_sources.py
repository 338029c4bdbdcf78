"""Where values are written: Java properties, environment variables, --override."""

from __future__ import annotations

import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config import ConfigError
from kbroker.config.sources import parse_overrides, parse_properties, static_values


def values(text: str) -> dict[str, str]:
    return {key: given.text for key, given in parse_properties(text).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\nc:3\nd 4\n e\t=\t5", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}),
        ("# a comment\n! another\n  # indented\n\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c", {"a": "b=c"}),
        ("listeners=A://:1,\\\n    B://:2", {"listeners": "A://:1,B://:2"}),
        ("a=x\\\n# not a comment", {"a": "x# not a comment"}),
        ("a=ends in backslash\\\\\nb=1", {"a": "ends in backslash\\", "b": "1"}),
        ("a=last line\\", {"a": "last line"}),
        ("key\\ with\\=signs\\:=v", {"key with=signs:": "v"}),
        ("a=tab\\there\\u00e9\\q", {"a": "tab\thereéq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=spaces after   \n", {"a": "spaces after"}),
        ("# comment ends in a backslash\\\na=1", {"a": "1"}),
    ],
)
def test_properties_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


def test_broken_unicode_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_properties("a=1\nb=\\u12g4")


def test_value_knows_its_line_even_after_a_continuation() -> None:
    assert parse_properties("a=1,\\\n2\nb=3", "my.properties")["b"].where == "my.properties line 3"


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        parse_properties(text)


@given(st.dictionaries(st.text(string.ascii_letters + ".", min_size=1), st.text(string.printable)))
def test_escaped_values_come_back(wanted: dict[str, str]) -> None:
    def escaped(value: str) -> str:
        return "".join(f"\\u{ord(character):04x}" for character in value)

    written = "\n".join(f"{key}={escaped(value)}" for key, value in wanted.items())
    assert values(written) == {key: value.strip() for key, value in wanted.items()}


def test_override_beats_environment_beats_file() -> None:
    given = static_values(
        "a=file\nb=file\nc=file",
        environment={"KAFKA_B": "environment", "KAFKA_C": "environment"},
        overrides=["c=given"],
    )
    assert {key: value.text for key, value in given.items()} == {"a": "file", "b": "environment", "c": "given"}


@pytest.mark.parametrize("argument", ["no-equals", "=value", " =x"])
def test_override_without_a_key_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="allowed: key=value"):
        parse_overrides([argument])
