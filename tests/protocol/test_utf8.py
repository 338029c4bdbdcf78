"""Bytes that should be text: what Java's String makes of them, which tests/judges/test_utf8.py asks Java itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.primitives import utf8

BAD = {
    "lone continuation": ("80", 1),
    "two of them": ("8080", 2),
    "overlong nul": ("c080", 2),
    "overlong slash in three": ("e080af", 3),
    "overlong in four": ("f08080af", 4),
    "two of three": ("e282", 1),
    "three of four": ("f09f98", 1),
    "start of one, start of another": ("e2c3", 2),
    "surrogate": ("eda080", 1),
    "pair of surrogates": ("eda0bdedb880", 2),
    "surrogate cut short": ("eda0", 1),
    "last surrogate": ("edbfbf", 1),
    "surrogate and a continuation": ("eda08080", 2),
    "above U+10FFFF": ("f4908080", 4),
    "F5": ("f5808080", 4),
    "five bytes": ("f888808080", 5),
    "FF": ("ff", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sequences_become_as_many_replacement_characters_as_in_java(name: str) -> None:
    sequence, count = BAD[name]
    assert utf8(b"a" + bytes.fromhex(sequence) + b"z") == "a" + "\ufffd" * count + "z"


@given(st.text())
def test_text_stays_as_it_is(text: str) -> None:
    assert utf8(memoryview(text.encode())) == text


@given(st.binary())
def test_any_bytes_are_some_text(content: bytes) -> None:
    utf8(content).encode()
