"""ssl.principal.mapping.rules: how the name in a client's certificate becomes the name of a user.

    DEFAULT                                      the name as it is
    RULE:pattern/replacement/                    if the pattern matches all of it; $1 is what the first group took
    RULE:pattern/replacement/L                   the same in lower case; U: in upper case

The first rule that applies counts; a name without one has no principal. Source: KIP-371, SslPrincipalMapper of Apache
Kafka 3.9 by behaviour. Unlike there, a rule that cannot be read is refused with its text, and patterns are Python's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)", re.DOTALL)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)

Rule = Callable[[str], str | None]


class PrincipalRules:
    """All rules of a setting. Raises: ValueError, saying which text is no rule."""

    def __init__(self, text: str) -> None:
        self._rules: list[Rule] = []
        at = 0
        while at < len(text.rstrip()):
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(
                    f"{text[at:].strip()!r} is no rule; allowed: DEFAULT, or RULE:pattern/replacement/[LU]"
                )
            at = found.end()
            self._rules.append(_as_it_is if found[1] else _rule(found[2], found[3], found[4]))

    def name_of(self, subject: str) -> str | None:
        """The user's name; None if no rule applies."""
        for rule in self._rules:
            name = rule(subject)
            if name is not None:
                return name
        return None


def _as_it_is(subject: str) -> str | None:
    return subject


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"RULE:{pattern}/{replacement}/{case}: {error}") from None

    def replaced(found: re.Match[str]) -> str:
        def part(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            number = int(reference[2])
            return (found[number] or "") if number <= compiled.groups else reference[0]

        return _REFERENCE.sub(part, replacement)

    def apply(subject: str) -> str | None:
        if compiled.fullmatch(subject) is None:
            return None
        name = compiled.sub(replaced, subject)
        return name.lower() if case == "L" else name.upper() if case == "U" else name

    return apply
