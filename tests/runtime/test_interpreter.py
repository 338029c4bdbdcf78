"""The line that says which Python runs a broker."""

from __future__ import annotations

import platform
import sysconfig

import pytest

from kbroker.runtime.interpreter import _flags, describe_interpreter


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


def test_what_a_build_has_noted_is_read_without_being_loaded() -> None:
    assert describe_interpreter(prefix="/opt") == describe_interpreter(
        sysconfig.get_config_var("CONFIG_ARGS") or "", prefix="/opt"
    )
    settings = _flags()
    assert all(str(sysconfig.get_config_var(name)) in settings for name in ("BINDIR", "SOABI"))
