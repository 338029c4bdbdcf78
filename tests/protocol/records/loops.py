"""Modules of loops over records as Python runs them, beside those that were compiled when this was installed."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import protocol.records
from protocol.records import walker_kind

KINDS = ("interpreted", "compiled")


@cache
def interpreted(name: str) -> ModuleType:
    """The source of `protocol/records/<name>.py`, whatever is installed beside it."""
    source = Path(protocol.records.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{name}_interpreted", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(kind: str, monkeypatch: pytest.MonkeyPatch, user: ModuleType, name: str, loops: tuple[str, ...]) -> None:
    """Have a module take these loops of `name` in this kind. Skips the test where there was no C compiler."""
    if kind == "compiled":
        skip_if_not_compiled()
        return
    module = interpreted(name)
    for each in loops:
        monkeypatch.setattr(user, each, getattr(module, each))


def skip_if_not_compiled() -> None:
    """Say in the test's outcome that there was no C compiler."""
    if walker_kind() != "compiled":
        pytest.skip("the loops were not compiled when this was installed: no C compiler")
