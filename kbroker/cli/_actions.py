"""Commands that do one of several things, each asked for by a flag of its own, as Apache's tools have it.

`actions` gives a command those flags, and `chosen` says which one was given: exactly one, or a line that says so. An
option that the action does not heed is refused: who typed `topics --list --under-replicated-partitions` would take all
that is listed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Command = TypeVar("Command", bound=Callable[..., Any])

NOTHING: Mapping[str, Collection[str]] = MappingProxyType({})
_GIVEN = "kbroker.cli.actions"


def actions(choices: Mapping[str, str]) -> Callable[[Command], Command]:
    """Options `--name` for each of the choices. choices: what the help says, by name."""

    def decorate(command: Command) -> Command:
        for name, text in reversed(list(choices.items())):
            command = click.option(f"--{name}", is_flag=True, help=text, expose_value=False, callback=_note)(command)
        return command

    return decorate


def chosen(choices: Mapping[str, str], only: Mapping[str, Collection[str]] = NOTHING) -> str:
    """The one action of the command line. only: parameters that no other actions than these heed.

    Raises: UsageError if it names none or several, or an option that the action would pass by.
    """
    context = click.get_current_context()
    given: list[str] = context.meta.get(_GIVEN, [])
    if len(given) != 1:
        flags = ", ".join(f"--{name}" for name in choices)
        raise click.UsageError(f"say one thing to do, of {flags}" + (f"; not {len(given)}" if given else ""))
    (action,) = given
    for name, heeding in only.items():
        if action not in heeding and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            actions = " or ".join(f"--{each}" for each in heeding)
            raise click.UsageError(f"{_option(context, name)} goes with {actions}, not with --{action}")
    return action


def _option(context: click.Context, name: str) -> str:
    """How a parameter that was given is written; of several flags that set one, that which set it."""
    value = context.params.get(name)
    found = [each for each in context.command.params if each.name == name]
    return next((each for each in found if getattr(each, "flag_value", None) == value), found[0]).opts[0]


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta.setdefault(_GIVEN, []).append(param.opts[0].removeprefix("--"))
