"""The line that says which Python runs a broker."""

from __future__ import annotations

import platform

import pytest

from kbroker.runtime.interpreter import describe_interpreter


@pytest.mark.parametrize(
    ("flags", "prefix", "ends"),
    [
        ("'--enable-shared' '--enable-optimizations' '--with-lto'", "/usr/local", ", optimised"),
        ("'--enable-shared'", "/usr", ", optimised"),
        ("'--enable-shared'", "/usr/local", ", built without --enable-optimizations"),
        ("", "/opt", ", built without --enable-optimizations"),
    ],
)
def test_it_says_whether_the_interpreter_is_optimised(flags: str, prefix: str, ends: str) -> None:
    assert describe_interpreter(flags, prefix) == f"CPython {platform.python_version()}{ends}"
