"""All commands by name, as click reads them. Called by `run` for everything but a plainly written start."""

from __future__ import annotations

import re
import sys
import time
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from kbroker import __version__
from kbroker.cli import _elsewhere, complain
from kbroker.cli._signals import EndedError

COMMANDS = {
    "start": ("kbroker.cli.start:start", "Run a broker."),
    "service": ("kbroker.cli.service:service", "Print a systemd unit or a launchd plist that runs a broker."),
    "dev-cluster": ("kbroker.cli.dev_cluster:dev_cluster", "Run some brokers on this machine, for trying things out."),
    "topics": ("kbroker.cli.topics:topics", "List, describe, create, alter and delete topics."),
    "groups": ("kbroker.cli.groups:groups", "Consumer groups: their members, offsets and lag."),
    "transactions": (
        "kbroker.cli.transactions:transactions",
        "Transactions: list, describe, find hanging ones, abort.",
    ),
    "configs": ("kbroker.cli.configs:configs", "Describe and alter settings of topics and brokers."),
    "users": ("kbroker.cli.users:users", "Who may log in by SCRAM: list, create, alter, delete."),
    "acls": ("kbroker.cli.acls:acls", "Access rules: who may do what."),
    "quotas": ("kbroker.cli.quotas:quotas", "Quotas of users, client ids and addresses: describe, alter."),
    "features": ("kbroker.cli.features:features", "What a cluster has agreed to do: describe, upgrade, downgrade."),
    "cluster": ("kbroker.cli.cluster:cluster", "Brokers of a cluster, their log directories and API versions."),
    "reassign": ("kbroker.cli.reassign:reassign", "Move partitions between brokers."),
    "elect-leaders": ("kbroker.cli.elect_leaders:elect_leaders", "Have partitions led by their first replica again."),
    "delete-records": ("kbroker.cli.delete_records:delete_records", "Delete the records before an offset."),
    "produce": ("kbroker.cli.produce:produce", "Write records from standard input or files to a topic."),
    "consume": ("kbroker.cli.consume:consume", "Print the records of topics, and follow them."),
    "console": ("kbroker.cli.console:console", "Pages for a browser about a cluster."),
    "perf": ("kbroker.cli.perf:perf", "Measure how fast records are written and read."),
    "dump-log": ("kbroker.cli.dump_log:dump_log", "Show what is in the files of a log directory."),
    "storage": ("kbroker.cli.storage:storage", "Format the log directories of a member of a KRaft cluster."),
    "metadata": ("kbroker.cli.metadata:metadata", "Check the metadata of a broker, or rebuild it."),
    "verify-log": ("kbroker.cli.verify_log:verify_log", "Check every file of a log directory."),
    "log": ("kbroker.cli.log:log", "Say what compaction would save in a partition."),
    "pipeline": ("kbroker.cli.pipeline:pipeline", "Archive, replay, mirror, audit and profile topics on Spark."),
}
"""Name, where the command is, and what the overview says of it."""
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")  # click's words


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end this with exit code 1, which says of a file that it is broken
            raise click.exceptions.Exit(0) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and (here := _elsewhere.here(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}: {here}")
        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbroker")
def kbroker() -> None:
    """A Kafka broker in Python, and its tools."""


def run_command(words: list[str]) -> int:
    """Run what the words say; the exit code. Raises: OSError as the command does, BrokenPipeError among them."""
    try:
        code = kbroker.main(words, prog_name="kbroker", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = _where_it_goes(error, words) or f" (see {error.ctx.command_path} --help)"
        if _wants_json(words):
            return _complain_in_json(error.format_message() + hint)
        return complain(error.format_message(), hint)
    except click.exceptions.Abort:
        return 130
    except EndedError as ended:
        return 128 + ended.number  # as a shell has it


def _where_it_goes(error: click.UsageError, words: list[str]) -> str:
    """Of an option that stands before the command that has it, where it belongs; of kcat's, what does it here; of words
    that are no options, how they are."""
    context = error.ctx
    if context is not None and (extra := _EXTRA.fullmatch(error.message)):
        meant = _elsewhere.as_options(extra[1].split(), context.command)
        return f"; did you mean {context.command_path} {meant}?" if meant else ""
    if not isinstance(error, click.NoSuchOption) or context is None:
        return ""
    if context.parent is None and (mode := next(filter(_elsewhere.MODES.get, words), None)):
        return f" kcat's {mode} is kbroker {_elsewhere.MODES[mode]}"
    command: click.Command | None = context.command
    path = [context.command_path]
    for word in words:
        below = command.get_command(context, word) if isinstance(command, click.Group) else None
        if below is None:
            continue
        command = below
        path.append(word)
        if any(error.option_name in option.opts for option in command.params):
            return f" It goes behind the command: {' '.join(path)} {error.option_name} ..."
    return ""


def _wants_json(words: list[str]) -> bool:
    """Whether a start is asked for whose every line is read by a machine: the wrong command line's, too."""
    pairs = zip(words, (*words[1:], ""), strict=True)
    return words[:1] == ["start"] and any(
        word == "--log-format=json" or (word, value) == ("--log-format", "json") for word, value in pairs
    )


def _complain_in_json(message: str) -> int:
    """As `complain`, for a machine."""
    from kbroker.runtime.logs import json_line

    line = json_line("error", time.time(), {"logger": "kbroker", "message": " ".join(message.split())})
    print(line, file=sys.stderr)
    return 2
