"""A login as Java writes it down: a module, how much it is needed, options; `sasl.jaas.config` has one of these.

Source: the javadoc of javax.security.auth.login.Configuration; of java.io.StreamTokenizer, whose quotes these are.
"""

from __future__ import annotations

import re

from protocol.namedtuple import NamedTuple

_MODULE = re.compile(r"\s*(?P<name>[\w.$]+)\s+(?i:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.S)
_OPTION = re.compile(
    r"""\s*(?P<name>[\w$-]+)\s*=\s*"""
    r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s"';]+))""",
    re.S,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.S)
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Module(NamedTuple):
    """A login module and its options. name: of the class, without its package."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"Module({self.name}, {', '.join(self.options)})"  # without the values: passwords are among them


def read_module(text: str) -> Module:
    """The one module of a text. Raises: ValueError that says nothing of what is in it: that may be a password."""
    found = _MODULE.fullmatch(text)
    if found is None:
        raise ValueError('no login module as Java writes it: MODULE required NAME="VALUE" ...;')
    options: dict[str, str] = {}
    rest = found["options"]
    while option := _OPTION.match(rest):
        quoted = option["double"] or option["single"] or ""
        options[option["name"]] = option["bare"] or unescaped(quoted)
        rest = rest[option.end() :]
    if rest.strip():
        raise ValueError('no options as Java writes them: NAME="VALUE", with blanks between them and one ; at the end')
    return Module(found["name"].rpartition(".")[2], options)


def read_login(text: str) -> tuple[str, str] | None:
    """User and password of a DigestLoginModule; None for no text at all. Raises: ValueError for anything else."""
    if not text.strip():
        return None
    module, options = read_module(text)
    if module != "DigestLoginModule" or not options.get("username") or "password" not in options:
        raise ValueError("no login of a DigestLoginModule, with username and password")
    return options["username"], options["password"]


def unescaped(quoted: str) -> str:
    """What Java reads between two quotes."""
    return _ESCAPE.sub(_escaped, quoted)


def _escaped(found: re.Match[str]) -> str:
    """The character that a backslash and what follows it stand for."""
    code = found[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _NAMED.get(code, code)


def is_login(text: str) -> bool:
    """Whether `read_login` takes it."""
    try:
        read_login(text)
    except ValueError:
        return False
    return True
