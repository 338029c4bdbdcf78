"""Whole numbers as every command reads them: plain digits, a sign before them if one likes, as in a broker's settings.

Python's own int takes 1_000, ' 3 ' and the digits of every script, too: of a number that was copied from somewhere, or
mistyped, it makes one that was not meant.
"""

from __future__ import annotations

import re
from typing import Any

import click

_WHOLE = re.compile("[+-]?[0-9]{1,20}")  # no number of Kafka's is longer; of very long ones int makes an error


def whole(text: str) -> int:
    """The number that the text is. Raises: ValueError."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


class Number(click.IntRange):
    """An option's whole number, between bounds if there are any."""

    def __init__(self, min: int | None = None, max: int | None = None) -> None:  # noqa: A002  # click's names
        super().__init__(min, max)
        if min is None and max is None:
            self.name = "integer"

    def _describe_range(self) -> str:
        """What help says of the bounds; where there are none, click would say `x<=None`."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises: BadParameter."""
        if isinstance(value, str):
            try:
                value = whole(value)
            except ValueError:
                self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)
