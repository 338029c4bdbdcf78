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


class _NoGil:
    """The interpreter's lock stays: as a decorator and as a block."""

    def __call__(self, function: F) -> F:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


nogil = _NoGil()
