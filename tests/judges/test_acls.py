"""Access rules decide as Apache's AclAuthorizer does: random sets of rules, random questions, no difference."""

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

RELEASE = "3.9.1"  # the last that has it
SETS, ASKS = 10_000, 12
_SOURCE = Path(__file__).parent / "acls" / "AclJudge.java"
_PRINCIPALS = ("User:a", "User:b", "User:*", "Group:a", "User:CN=x,O=y:z")
_HOSTS = ("10.0.0.1", "10.0.0.2", "::1", "::ffff:10.0.0.1")
_LETTERS = ("a", "b", "ab", "*", "ä", "𝄞", ".")

Question = tuple[str, str, Operation, ResourceType, str | None]


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 3)))


def _rules(rng: random.Random) -> list[tuple[Pattern, Rule]]:
    return [
        (
            Pattern(
                rng.choice((ResourceType.TOPIC, ResourceType.TOPIC, *ResourceType)),
                _name(rng),
                rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
            ),
            Rule(
                rng.choice(_PRINCIPALS),
                rng.choice(("*", "*", *map(java_host, _HOSTS))),
                rng.choice((2, *Operation)),
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
            rng.choice(list(Operation)),
            rng.choice((ResourceType.TOPIC, ResourceType.TOPIC, *ResourceType)),
            rng.choice((None, "", *(_name(rng) for _ in range(8)))),
        )
        for _ in range(ASKS)
    ]


def _ours(rules: Rules, asked: Question) -> bool:
    principal, host, operation, resource, name = asked
    if name is None:
        return rules.allow_any(principal, java_host(host), operation, resource)
    return rules.allow(principal, java_host(host), operation, resource, name)


@pytest.fixture
def judge() -> Iterator[subprocess.Popen[str]]:
    try:
        lib = jars(RELEASE)
    except NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's jars are missing: {reason}")
        pytest.skip(f"no jars of Apache's here: {reason}")
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{lib}/*", str(_SOURCE)]
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


def test_rules_decide_as_apaches_authorizer_does(judge: subprocess.Popen[str]) -> None:
    rng = random.Random(41)
    allowed = 0
    for _ in range(SETS):
        supers, is_open = rng.choice(([], [], ["User:a", "User:CN=x,O=y:z"])), rng.random() < 0.3
        bindings, questions = _rules(rng), _questions(rng)
        rules = Rules(supers, is_open=is_open)
        for pattern, rule in bindings:
            rules.put(pattern, rules.by_pattern.get(pattern, frozenset()) | {rule})
        answers = [_ours(rules, each) for each in questions]
        written = [[*pattern, *rule] for pattern, rule in bindings]
        theirs = _theirs(judge, {"supers": supers, "open": is_open, "rules": written, "asks": questions})
        assert theirs == answers, (bindings, questions)
        allowed += sum(answers)
    assert SETS * ASKS * 0.2 < allowed < SETS * ASKS * 0.8  # both answers are given often
