"""What other tools call things: the programs of Apache Kafka and kcat, and options of theirs that ours stand for.

Who comes from them types what they have typed for years. It works, or the line that refuses it says what to type here;
so it does for what who is new may take for a command line of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from shlex import join
from typing import Any

import click

_PROGRAMS = {
    "broker-api-versions": "cluster --api-versions",
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer-groups": "groups",
    "consumer-perf-test": "perf consume",
    "get-offsets": "topics --offsets",
    "help": "--help",
    "kcat": "produce or kbroker consume",
    "kafkacat": "produce or kbroker consume",
    "leader-election": "elect-leaders",
    "log-dirs": "cluster --log-dirs",
    "producer-perf-test": "perf produce",
    "reassign-partitions": "reassign",
    "server-start": "start",
    "share-groups": "groups",
    "status": "cluster --describe",
    "streams-groups": "groups",
    "version": "--version",
}
_STOP = ("stop", "server-stop")
MODES = {
    "-C": "consume",
    "-G": "consume -G GROUP",
    "-L": "topics --describe, or kbroker cluster --describe",
    "-P": "produce",
    "-Q": "topics --offsets --time WHEN",
}
"""What kcat's options that say what to do are here."""


def here(program: str, commands: Container[str]) -> str:
    """What does here what a program of Apache Kafka's does, or nothing. It may end in .sh."""
    name = program.removesuffix(".sh").removeprefix("kafka-")
    if name in _STOP:
        return "Ctrl-C or SIGTERM ends a broker"
    command = _PROGRAMS.get(name) or (name if name in commands else "")
    return f"it is kbroker {command} here" if command else ""


def as_options(extra: Sequence[str], command: click.Command) -> str:
    """How words that stand alone are said as options: `list orders` of `topics` is `--list --topic orders`; or nothing.

    What an action is about is named by an option that is called as the command, which has it in the plural.
    """
    known = {name for param in command.params for name in param.opts}
    of_what = f"--{(command.name or '').removesuffix('s')}"
    words: list[str] = []
    for word in extra:
        if f"--{word}" in known:
            words.append(f"--{word}")
        elif of_what in known:
            words += [of_what, word]
        else:
            return ""
    return join(words)


class ReadFile(click.Path):
    """A file that is to be read. hint: what is said of a path that is none, which may have been meant otherwise."""

    def __init__(self, hint: Callable[[str], str]) -> None:
        super().__init__(exists=True, dir_okay=False)
        self._hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Its path. Raises: BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(f"{error.message}{self._hint(value)}", ctx, param) from None


class Also(click.Option):
    """An option that goes by further names, which other tools have and help does not show."""

    def __init__(self, *arguments: Any, also: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._also = also

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have them read."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        parser.add_option(self, list(self._also), dest=self.name, action=action, nargs=self.nargs)
