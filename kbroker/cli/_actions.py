"""Commands that do one of several things, each asked for by a flag of its own, as Apache's tools have it.

`actions` gives a command those flags, and `chosen` says which one was given: exactly one, or a line that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_GIVEN = "kbroker.cli.actions"


def actions(choices: Mapping[str, str]) -> Callable[[Command], Command]:
    """Options `--name` for each of the choices. choices: what the help says, by name."""

    def decorate(command: Command) -> Command:
        for name, text in reversed(list(choices.items())):
            command = click.option(f"--{name}", is_flag=True, help=text, expose_value=False, callback=_note)(command)
        return command

    return decorate


def chosen(choices: Mapping[str, str]) -> str:
    """The one action of the command line. Raises: UsageError if it names none or several."""
    given: list[str] = click.get_current_context().meta.get(_GIVEN, [])
    if len(given) == 1:
        return given[0]
    flags = ", ".join(f"--{name}" for name in choices)
    raise click.UsageError(f"say one thing to do, of {flags}" + (f"; not {len(given)}" if given else ""))


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta.setdefault(_GIVEN, []).append(param.opts[0].removeprefix("--"))
