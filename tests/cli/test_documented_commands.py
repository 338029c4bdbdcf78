"""Every command line of kbroker that stands in a block of the pages is one that the program takes, as printed.

What they do is tested elsewhere: here they are read, and those that ask a cluster go on until they would.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from kbroker.cli._cluster import Cluster
from kbroker.cli._commands import kbroker
from tests.test_installing import PAGES, ROOT

ASKING = {
    "acls", "cluster", "configs", "delete-records", "elect-leaders", "features", "groups", "quotas", "reassign",
    "topics", "transactions", "users",
}  # fmt: skip
COMMAND = re.compile(r"(?:^|[|(]|: |- )\s*(?:\$ )?(?:\S*/)?kbroker (?=[a-z-])(.*)")


def documented() -> Iterator[tuple[str, str]]:
    """Command lines, with where they are."""
    for page in PAGES:
        is_code = False
        for number, line in enumerate(re.sub(r"\\\n\s*", "", page.read_text()).splitlines(), 1):
            is_code ^= line.startswith("```")
            if is_code or line.startswith("    "):
                for found in COMMAND.finditer(line):
                    yield found[1], f"{page.relative_to(ROOT)} line {number}"


LINES = dict(sorted(documented()))


def words_of(line: str) -> list[str]:
    """The words of a command, up to where its output is sent elsewhere."""
    lexer = shlex.shlex(re.sub(r"\d>", ">", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if re.fullmatch("[|&;<>]+", word):
            break
        words += [word] if word != "..." else []
    return words


class ReachedError(Exception):
    """A command is about to speak to a cluster."""


def reached(cluster: Cluster) -> None:
    raise ReachedError


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_is_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "admin", reached)
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)  # a file of the reader's
    monkeypatch.setattr("kbroker.cli._cluster.settings_given", lambda path, given: {})
    command: click.Command = kbroker
    name, words = "", words_of(line)
    first = words[0]
    while isinstance(command, click.Group):
        name = words.pop(0)
        below = command.get_command(click.Context(command), name)
        assert below is not None, f"{LINES[line]}: there is no {name}"
        command = below
    context = command.make_context(name, words)
    if first in ASKING:
        with pytest.raises(ReachedError):
            command.invoke(context)


def test_the_pages_have_many() -> None:
    assert len(LINES) > 80
