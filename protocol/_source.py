"""The text of a function while it is being generated: lines, indentation, names, constants, packed formats.

Used by the generators of readers and writers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

TURN_MASK = 127  # a sliced reader or writer yields after one element more than this, some 100 us
MANY = 33  # arrays of up to this many primitives use a ready-made Struct


@cache
def packed(format: str) -> struct.Struct:  # noqa: A002 - struct's own word
    """The big-endian Struct for a format, shared by all functions."""
    return struct.Struct(">" + format)


@cache
def unpackers(format: str, more: int) -> tuple[Any, ...]:  # noqa: A002 - struct's own word
    """`unpack_from` for 0, 1, 2, ... primitives of one format, by their number plus `more`."""
    return (None,) * more + tuple(struct.Struct(">" + format * number).unpack_from for number in range(MANY))


@cache
def packers(prefix: str, format: str) -> tuple[Any, ...]:  # noqa: A002 - struct's own word
    """`pack` for a count of format `prefix` and then 0, 1, 2, ... primitives, by their number."""
    return tuple(struct.Struct(">" + prefix + format * number).pack for number in range(MANY))


class Source:
    """Lines under construction, and the scope they will run in."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.done: list[str] = []
        self.depth = 0
        self.number = 0
        self.scope: dict[str, Any] = {}
        self._constants: dict[int, str] = {}

    def emit(self, *lines: str) -> None:
        """Add lines at the current indentation."""
        indent = "    " * self.depth
        self.lines += [indent + line for line in lines]

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """`opening`, and what is emitted inside it indented."""
        self.emit(opening)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def function(self, opening: str) -> Iterator[None]:
        """A function of its own, while another one is under construction."""
        outer, depth = self.lines, self.depth
        self.lines, self.depth = [], 0
        with self.block(opening):
            yield
        self.done += self.lines
        self.lines, self.depth = outer, depth

    def name(self, stem: str) -> str:
        """A local name not used before."""
        self.number += 1
        return f"{stem}{self.number}"

    def constant(self, value: Any, stem: str) -> str:
        """The name under which the function finds `value`."""
        known = self._constants.get(id(value))
        if known is None:
            known = self._constants[id(value)] = self.name(stem)
            self.scope[known] = value  # also keeps it alive, so that its id stays its own
        return known

    def literal(self, value: Any) -> str:
        """An expression for a default value: written out if Python can, a named constant if not."""
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, bytes) and not value):
            return repr(value)
        return self.constant(value, "default")

    def text(self) -> str:
        """All functions as one module."""
        return "\n".join([*self.done, *self.lines]) + "\n"
