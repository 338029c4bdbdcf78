"""Java's properties text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.properties import format_properties, parse_properties


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_properties_read_back(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values)) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a\t=\tb c ", {"a": "b c "}),
        ("a", {"a": ""}),
        ("# a=b\n! c=d\n\n  \ne=f", {"e": "f"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=1\r\na=2\r", {"a": "2"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_properties_read_as_java_reads_them(text: str, values: dict[str, str]) -> None:
    assert parse_properties(text) == values


def test_broken_unicode_escape_is_refused() -> None:
    with pytest.raises(ValueError, match="followed by '12x4'"):
        parse_properties("a=\\u12x4")
