"""A login as Java writes it down: a module, how much it is needed, options; `sasl.jaas.config` has one of these.

Source: the javadoc of javax.security.auth.login.Configuration.
"""

from __future__ import annotations

import re

_LOGIN = re.compile(
    r"\s*[\w.]*DigestLoginModule\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.S
)
_OPTION = re.compile(r"""\s*(?P<name>\w+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"';]+))""")


def read_login(text: str) -> tuple[str, str] | None:
    """User and password of a DigestLoginModule; None for no text at all. Raises: ValueError for anything else."""
    if not text.strip():
        return None
    found = _LOGIN.fullmatch(text)
    options: dict[str, str] = {}
    rest = found["options"] if found else ""
    while option := _OPTION.match(rest):
        options[option["name"]] = option["double"] or option["single"] or option["bare"] or ""
        rest = rest[option.end() :]
    if rest.strip() or not options.get("username") or "password" not in options:
        raise ValueError("no login of a DigestLoginModule, with username and password")
    return options["username"], options["password"]


def is_login(text: str) -> bool:
    """Whether `read_login` takes it."""
    try:
        read_login(text)
    except ValueError:
        return False
    return True
