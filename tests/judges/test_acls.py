"""Access rules decide as Apache's AclAuthorizer does: random sets of rules, random questions, no difference.

And as StandardAuthorizer does, which has its place in KRaft mode, and knows networks as hosts (KIP-1276). It is not
asked where Apache's two differ from each other, and kbroker does as the older one: where everyone is let in for want of
rules (the new one takes no notice of rules for all names then, and lets in no one by type); for names that begin with a
star; and by type for what is implied.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import NoApacheError, jars
from kbroker.broker.acls import Pattern, PatternType, Permission, Rule, Rules, java_host
from kbroker.broker.authorizer import Operation, ResourceType

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

JUDGES = {"AclJudge": ("3.9.1", 10_000), "StandardAclJudge": ("4.4.0", 2_000)}
"""With the release that each is of (3.9 is the last that has AclAuthorizer), and how many sets it judges: the second
takes ten times as long."""
ASKS = 12
_SOURCES = Path(__file__).parent / "acls"
_PRINCIPALS = ("User:a", "User:b", "User:*", "Group:a", "User:CN=x,O=y:z")
_HOSTS = ("10.0.0.1", "10.0.0.2", "::1", "::ffff:10.0.0.1")
_NETWORKS = ("10.0.0.0/31", "10.0.0.0/8", "::/0", "0.0.0.0/0", "::/127")
_OPERATIONS = [each for each in Operation if each is not Operation.TWO_PHASE_COMMIT]  # which 3.9 does not know
_IMPLIED = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_LETTERS = ("a", "b", "ab", "*", "ä", "𝄞", ".")

Question = tuple[str, str, Operation, ResourceType, str | None]


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 3)))


def _rules(rng: random.Random, networks: Sequence[str] = ()) -> list[tuple[Pattern, Rule]]:
    return [
        (
            Pattern(
                rng.choice((ResourceType.TOPIC, ResourceType.TOPIC, *ResourceType)),
                _name(rng),
                rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
            ),
            Rule(
                rng.choice(_PRINCIPALS),
                rng.choice(("*", "*", *map(java_host, _HOSTS), *networks)),
                rng.choice((2, *_OPERATIONS)),
                rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
            ),
        )
        for _ in range(rng.choice((0, 1, 3, 10, 40)))
    ]


def _questions(rng: random.Random) -> list[Question]:
    return [
        (
            rng.choice(("User:a", "User:b", "Group:a", "User:CN=x,O=y:z")),
            rng.choice(_HOSTS),
            rng.choice(_OPERATIONS),
            rng.choice((ResourceType.TOPIC, ResourceType.TOPIC, *ResourceType)),
            rng.choice((None, "", *(_name(rng) for _ in range(8)))),
        )
        for _ in range(ASKS)
    ]


def _is_judged_otherwise(asked: Question) -> bool:
    _, _, operation, _, name = asked
    return operation in _IMPLIED if name is None else name.startswith("*")


def _ours(rules: Rules, asked: Question) -> bool:
    principal, host, operation, resource, name = asked
    if name is None:
        return rules.allow_any(principal, java_host(host), operation, resource)
    return rules.allow(principal, java_host(host), operation, resource, name)


@pytest.fixture(params=JUDGES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def judge(name: str) -> Iterator[subprocess.Popen[str]]:
    try:
        lib = jars(JUDGES[name][0])
    except NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's jars are missing: {reason}")
        pytest.skip(f"no jars of Apache's here: {reason}")
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{lib}/*", str(_SOURCES / f"{name}.java")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _theirs(judge: subprocess.Popen[str], asked: dict[str, Any]) -> Sequence[bool]:
    assert judge.stdin is not None
    assert judge.stdout is not None
    judge.stdin.write(json.dumps(asked) + "\n")
    judge.stdin.flush()
    return [answer == "1" for answer in judge.stdout.readline().strip()]


def test_rules_decide_as_apaches_authorizers_do(judge: subprocess.Popen[str], name: str) -> None:
    rng = random.Random(41)
    networks = _NETWORKS if name == "StandardAclJudge" else ()
    allowed, (_, sets) = 0, JUDGES[name]
    for _ in range(sets):
        supers, is_open = rng.choice(([], [], ["User:a", "User:CN=x,O=y:z"])), rng.random() < 0.3 and not networks
        bindings, questions = list(dict.fromkeys(_rules(rng, networks))), _questions(rng)
        if networks:
            questions = [each for each in questions if not _is_judged_otherwise(each)]
        rules = Rules(supers, is_open=is_open)
        for pattern, rule in bindings:
            rules.put(pattern, rules.by_pattern.get(pattern, frozenset()) | {rule})
        answers = [_ours(rules, each) for each in questions]
        written = [[*pattern, *rule] for pattern, rule in bindings]
        theirs = _theirs(judge, {"supers": supers, "open": is_open, "rules": written, "asks": questions})
        assert theirs == answers, (bindings, questions)
        allowed += sum(answers)
    assert sets * ASKS * 0.1 < allowed < sets * ASKS * 0.8  # both answers are given often
