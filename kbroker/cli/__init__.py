"""The command line. One file per command, imported when that command is called: `kbroker start` loads no tool.

`main` is what the `kbroker` script runs. A command prints its results on standard output and everything else, one line
each, on standard error; bad input is never a traceback. Exit codes: 0 all well, 1 something asked about is wrong (a
broken file, say), 2 what was asked could not be done.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from kbroker import __version__

COMMANDS = {
    "start": ("kbroker.cli.start:start", "Run a broker."),
    "dump-log": ("kbroker.cli.dump_log:dump_log", "Show what is in the files of a log directory."),
    "verify-log": ("kbroker.cli.verify_log:verify_log", "Check every file of a log directory."),
}
"""Name, where the command is, and what the overview says of it."""


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbroker")
def kbroker() -> None:
    """A Kafka broker in Python, and its tools."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. arguments: without the program's name, the process's own by default."""
    try:
        code = kbroker.main(arguments, prog_name="kbroker", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return complain(error.format_message(), error)
    except click.exceptions.Abort:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return complain(said_by_system(error))


def complain(message: str, error: click.ClickException | None = None) -> int:
    """Say in one line on standard error what is wrong; returns exit code 2."""
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f" (see {error.ctx.command_path} --help)"
    click.echo(f"kbroker: {' '.join(message.split())}{hint}", err=True)
    return 2


def said_by_system(error: OSError) -> str:
    """An operating system's error in one line: where, and what."""
    reason = error.strerror or errno.errorcode.get(error.errno or 0) or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason
