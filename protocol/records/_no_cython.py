"""What `_walker` asks of Cython, where Cython is not installed: decorators that do nothing, and `compiled` is False."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

compiled = False


def cfunc(function: F) -> F:
    """Stay a Python function."""
    return function


inline = cfunc


def exceptval(*, check: bool) -> Callable[[F], F]:
    """Raise as any Python function does."""
    del check
    return cfunc
