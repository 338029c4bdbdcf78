"""What the cluster commands print: a table for people, JSON for programs.

A table is coloured and ruled on a terminal, and plain columns without either in a pipe. JSON is one document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDE = 10_000  # characters: a pipe has no width, and a column cut short would be of no use to a script
UNKNOWN = "-"


def show_json(value: Any) -> None:
    """One JSON document on standard output. In another encoding than UTF-8 in ASCII alone, or it would be no JSON."""
    is_utf_8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=not is_utf_8, default=str))


def show_done(sentence: str, facts: Any, *, as_json: bool) -> None:
    """What was changed: a sentence for people, or what it says as a JSON document."""
    if as_json:
        show_json(facts)
    else:
        print(sentence)


def show_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, title: str = "") -> None:
    """Rows under their columns. columns: keys of the rows, in order; numbers are put to the right, None is a dash."""
    from rich.box import SIMPLE_HEAD  # here and below: a command that paints no table does not load it
    from rich.table import Table

    rows = list(rows)
    on_terminal = sys.stdout.isatty()
    table = Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD if on_terminal else None,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        values = [row.get(column) for row in rows]
        is_number = any(isinstance(value, int) for value in values)
        heading = column.replace("_", "-").upper()
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=not on_terminal)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    _console(None if on_terminal else WIDE).print(table)


def _console(width: int | None) -> Console:
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `run` knows what that means; rich would exit with 1, which some have a use for

    return Ours(width=width, highlight=False)


def printable(text: str) -> str:
    """Text of a client's choosing with control characters shown as escapes: a terminal obeys some of them."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cell(value: Any) -> Text:
    from rich.text import Text

    if value is None or value == "":
        return Text(UNKNOWN, style="dim")
    if isinstance(value, list | tuple):
        return Text(",".join(map(str, value)) or UNKNOWN)
    return Text(printable(str(value)))
