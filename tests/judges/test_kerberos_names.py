"""Principals of Kerberos are the users that Apache's class makes of them, by random rules."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.security.kerberos_names import KerberosNames, NoRuleError
from tests.judges.java import Judge

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

CASES = 2_000
REALM = "A.COM"
PARTS = ("alice", "App.x", "dr-who", "host", "b", "", "Kafka")
FORMATS = ("$1", "$2", "$0", "$1;$2", "$1@$0", "x$1", "$1$1", "lit")
MATCHES = (None, ".*", "App\\..*", "dr.*", ".*@A.COM", "alice", "[a-z]+")
CHANGES = ("", "s/App\\.//", "s/-.*//", "s/[ab]/x/g", "s/a/y/", "s/(.*)w(.*)/$2$1/", "s/;.*//g")


def rule(rng: Random) -> str:
    if rng.random() < 0.2:
        return "DEFAULT"
    match = rng.choice(MATCHES)
    shown = "" if match is None else f"({match})"
    case = rng.choice(("", "", "/L", "/U"))
    return f"RULE:[{rng.randint(1, 2)}:{rng.choice(FORMATS)}]{shown}{rng.choice(CHANGES)}{case}"


def principal(rng: Random) -> str:
    host = f"/{rng.choice(PARTS)}" if rng.random() < 0.5 else ""
    realm = rng.choice((f"@{REALM}", f"@{REALM}", "@OTHER", "", "@", f"@x@{REALM}"))
    return f"{rng.choice(PARTS)}{host}{realm}"


def ours(names: KerberosNames, principal: str) -> str | None:
    try:
        return names.user_of(principal)
    except NoRuleError:
        return None


def test_principals_are_the_users_that_apaches_class_makes_of_them(apache: Judge) -> None:
    rng = Random(41)
    asked = [
        {
            "realm": REALM,
            "rules": [rule(rng) for _ in range(rng.randint(1, 4))],
            "principals": [principal(rng) for _ in range(8)],
        }
        for _ in range(CASES)
    ]
    named = 0
    for case, answer in zip(asked, apache.ask("kerberos", asked), strict=True):
        names = KerberosNames(case["rules"], REALM)  # type: ignore[arg-type]
        users = [ours(names, each) for each in case["principals"]]  # type: ignore[arg-type]
        assert users == answer["users"], case
        named += sum(each is not None for each in users)
    assert CASES < named < 7 * CASES
