"""What is said where a user asks for what cannot be: one line, with what to write or to install instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable

OLDEST_PYTHON = (3, 11)


class UsageError(Exception):
    """The test asks for what cannot be; the text is one line, and ends with what to write instead."""


def why_not_here(system: str = sys.platform, version: tuple[int, ...] = tuple(sys.version_info[:3])) -> str:
    """Why no broker can run on this system or this Python, in one line; empty if one can.

    An old Python has to be able to read this file, and what imports it: kbroker/cli/__init__.py.
    """
    if system == "win32":
        return "kbroker runs on Linux and macOS; on Windows, run it in WSL (wsl --install)"
    if version < OLDEST_PYTHON:
        oldest, found = (".".join(map(str, each)) for each in (OLDEST_PYTHON, version))
        what_to_do = "uv brings one: uv python install 3.13"
        return f"kbroker needs Python {oldest} or newer, and {sys.executable} is {found}; {what_to_do}"
    return ""


def installed_by(extra: str) -> str:
    """How to get what an extra of pyproject.toml brings; in a checkout, too, whose kbroker pip then leaves as it is."""
    return f"type pip install 'kbroker[{extra}]'"


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """There is no such thing; the name nearest to it, or some that there are. kind: "API", "setting", ..."""
    from difflib import get_close_matches  # only a mistake pays for loading it

    names = sorted(known)
    folded = {each.casefold(): each for each in names}
    near = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    hint = f"did you mean {folded[near[0]]}?" if near else f"there are, for example, {', '.join(names[:5])}"
    return UsageError(f"there is no {kind} {name!r}; {hint}")
