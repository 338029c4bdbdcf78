"""The command line. One file per command, imported when that command is called: `kbroker start` loads no tool.

`main` is what the `kbroker` script runs. A command prints its results on standard output and everything else, one line
each, on standard error; bad input is never a traceback. Exit codes: 0 all well, 1 something asked about is wrong (a
broken file, say), 2 what was asked could not be done.

A start that is written plainly goes straight to the broker. click, which reads every other command line and says what
is wrong with one, would be an eighth of all the processor time until the first record is acknowledged.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kbroker.usage import why_not_here

if why_not_here():  # in words of Python 3.7: a walrus would be all that it tells of
    sys.stderr.write(f"{why_not_here()}\n")
    sys.exit(2)

from kbroker.cli._broker import discard_output, plain_start, run_broker, say

INTERRUPTED = 130  # as a shell has it after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. arguments: without the program's name, the process's own by default."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _open_closed_streams()
    # a name on disk need not be text, and not every terminal can show one that is
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has seen enough
        discard_output()
        return 0
    except KeyboardInterrupt:  # before a broker has taken signals into its own hands
        return INTERRUPTED
    except OSError as error:
        return complain(said_by_system(error))
    except ImportError as error:
        if error.name != "crc32c":
            raise
        return complain(str(error))


def _open_closed_streams() -> None:
    """Put nothing in the place of a stream that a shell has closed (`>&-`): Python has None there, and a file or socket
    that is opened later would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as we live


def _run(words: list[str]) -> int:
    start = plain_start(words[1:]) if words[:1] == ["start"] else None
    if start is not None:
        return run_broker(start)
    from kbroker.cli._commands import run_command

    return run_command(words)


def complain(message: str, hint: str = "") -> int:
    """Say in one line on standard error what is wrong; returns exit code 2."""
    say(f"kbroker: {' '.join(message.split())}{hint}")
    return 2


def said_by_system(error: OSError) -> str:
    """An operating system's error in one line: where, and what."""
    reason = error.strerror or errno.errorcode.get(error.errno or 0) or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason
