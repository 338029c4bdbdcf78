"""A value as the user wrote it, and the error that says why what was written cannot be used.

Made by `sources.py` and `environment.py`; carried from there to the code that resolves or complains.
"""

from __future__ import annotations

from protocol.namedtuple import NamedTuple


class ConfigError(Exception):
    """The configuration cannot be used. lines: one a fault, each with key, value and what is allowed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Given(NamedTuple):
    """A value as written, and where."""

    text: str
    where: str
