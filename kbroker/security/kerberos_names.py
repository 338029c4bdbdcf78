"""Names of Kerberos as users: `sasl.kerberos.principal.to.local.rules`, as Kafka has them from Hadoop.

A principal is `service/host@REALM`, or `user@REALM`. The first rule that applies makes the user:

    DEFAULT                                        of the own realm: the first part
    RULE:[2:$1;$2](alice;.*)s/;.*$//g/L            of two parts: these, put together; if they match; changed; in small

Source: KerberosRule, KerberosShortNamer and KerberosName of Apache Kafka 3.9, by behaviour. Expressions are Python's:
they differ from Java's in rare forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from protocol.namedtuple import NamedTuple

_PRINCIPAL = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE = re.compile(
    r"DEFAULT|RULE:\[(?P<parts>[0-9]*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER = re.compile(r"\$([0-9]+)")
_NOT_SIMPLE = re.compile(r"[/@]")


class NoRuleError(ValueError):
    """No rule makes a user of a principal, or one makes a name that is none."""


class _Rule(NamedTuple):
    """parts: how many a principal has to have, -1: DEFAULT. match: what they, put together, have to be."""

    parts: int
    format: str
    match: re.Pattern[str] | None
    old: re.Pattern[str] | None
    new: str
    is_for_all: bool
    case: str


class KerberosNames:
    """The rules of a listener. realm: the own one. Raises: ValueError for a rule that is none."""

    def __init__(self, rules: Sequence[str], realm: str) -> None:
        self._rules = [_rule(each.strip()) for each in rules]
        self._realm = realm

    def user_of(self, principal: str) -> str:
        """Raises: NoRuleError."""
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            if "@" in principal:
                raise NoRuleError(f"{principal:.100}: no name of Kerberos")
            return principal
        service, host, realm = found.groups()
        parts = [realm, service] if host is None else [realm, service, host]
        for rule in self._rules:
            user = self._applied(rule, parts)
            if user is not None:
                return user
        raise NoRuleError(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal:.100}")

    def _applied(self, rule: _Rule, parts: Sequence[str]) -> str | None:
        if rule.parts < 0:
            user = parts[1] if parts[0] == self._realm else None
        elif len(parts) - 1 == rule.parts:
            user = _changed(rule, parts)
        else:
            user = None
        if user is None:
            return None
        if _NOT_SIMPLE.search(user):
            raise NoRuleError(f"a rule of sasl.kerberos.principal.to.local.rules makes {user:.100}, which is no name")
        return user.lower() if rule.case == "L" else user.upper() if rule.case == "U" else user


def _changed(rule: _Rule, parts: Sequence[str]) -> str | None:
    def parameter(found: re.Match[str]) -> str:
        number = int(found[1])
        if number >= len(parts):
            raise NoRuleError(f"${number} in a rule of sasl.kerberos.principal.to.local.rules: there are {len(parts)}")
        return parts[number]

    base = _PARAMETER.sub(parameter, rule.format)
    if rule.match is not None and rule.match.fullmatch(base) is None:
        return None
    if rule.old is None:
        return base
    return rule.old.sub(rule.new, base, count=0 if rule.is_for_all else 1)


def _rule(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.100}: allowed: DEFAULT, or RULE:[PARTS:FORMAT](MATCH)s/OLD/NEW/g/L")
    if text == "DEFAULT":
        return _Rule(-1, "", None, None, "", False, "")
    match, old = found["match"], found["old"]
    try:
        return _Rule(
            int(found["parts"] or 0),
            found["format"],
            None if match is None else re.compile(match),
            None if old is None else re.compile(old),
            _PARAMETER.sub(r"\\\1", found["new"] or ""),  # a group in Java's words
            found["all"] is not None,
            found["case"] or "",
        )
    except re.error as error:
        raise ValueError(f"{text!r:.100}: no expression: {error}") from None
