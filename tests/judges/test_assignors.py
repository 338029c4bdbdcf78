"""Assignors give what Apache's classes give: random groups, whose members have something already, no difference."""

from __future__ import annotations

import os
import random
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from compat_tests.apache import NoApacheError, jars
from kbroker.groups.assignors import GroupSpec, MemberSpec, RangeAssignor, UniformAssignor

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

RELEASE = "4.4.0"
GROUPS = int(os.environ.get("KBROKER_ASSIGNOR_GROUPS", "2000"))
_SOURCE = Path(__file__).parent / "groups" / "AssignorJudge.java"
ASSIGNORS = {"uniform": UniformAssignor(), "range": RangeAssignor()}


class Case:
    """A random group. topics: partitions by id. members, by id, in the order in which they came."""

    def __init__(self, rng: random.Random) -> None:
        self.assignor = rng.choice(("uniform", "uniform", "range"))
        most = rng.choice((1, 3, 8, 11))  # with 12 Java's tables differ between its releases
        self.topics = {_topic_id(rng): rng.choice((1, 2, 3, 5, 8, 20)) for _ in range(rng.randint(1, most))}
        ids = list(self.topics)
        count = rng.choice((1, 2, 3, 5, 9, 20))
        together = frozenset(rng.sample(ids, rng.randint(1, len(ids))))
        self.is_homogeneous = rng.random() < 0.5
        self.members: dict[str, MemberSpec] = {}
        owners = self._before(rng, ids, count)
        for number in sorted(range(count), key=lambda _: rng.random()):
            read = together if self.is_homogeneous else frozenset(rng.sample(ids, rng.randint(0, len(ids))))
            member_id = f"m{number}-{rng.randrange(10**6)}"
            instance_id = f"i{number}" if rng.random() < 0.2 else None
            self.members[member_id] = MemberSpec(member_id, instance_id, None, read, owners[number])

    def _before(self, rng: random.Random, ids: list[bytes], count: int) -> list[dict[bytes, frozenset[int]]]:
        """What members have: nothing, all in turn, or anything, some of it of topics that they do not read any more."""
        kind, owners = rng.choice(("nothing", "even", "any", "any")), [dict[bytes, set[int]]() for _ in range(count)]
        for topic in ids:
            for partition in range(self.topics[topic]):
                at = partition % count if kind == "even" else rng.randrange(count)
                if kind == "even" or (kind == "any" and rng.random() < 0.8):
                    owners[at].setdefault(topic, set()).add(partition)
        return [{topic: frozenset(parts) for topic, parts in each.items()} for each in owners]

    def lines(self) -> Iterator[str]:
        """The group as the judge reads it."""
        number = {topic: at for at, topic in enumerate(self.topics)}
        kind = "HOMOGENEOUS" if self.is_homogeneous else "HETEROGENEOUS"
        yield f"{self.assignor} {kind} {len(self.topics)} {len(self.members)}"
        for topic, count in self.topics.items():
            yield f"{urlsafe_b64encode(topic).decode().rstrip('=')} {count}"
        for member in self.members.values():
            read = ",".join(str(number[topic]) for topic in member.topics) or "-"
            yield f"{member.member_id} {member.instance_id or '-'} {read} {self.shown(member.assigned) or '-'}"

    def shown(self, assignment: Mapping[bytes, frozenset[int]]) -> str:
        """As the judge writes it."""
        return ";".join(
            f"{at}={','.join(map(str, sorted(assignment[topic])))}"
            for at, topic in enumerate(self.topics)
            if assignment.get(topic)
        )

    def ours(self) -> list[str]:
        """What our assignor gives, a line a member."""
        found = ASSIGNORS[self.assignor].assign(GroupSpec(self.members, self.is_homogeneous), self)
        return [f"{member_id} {self.shown(found.get(member_id, {}))}" for member_id in self.members]

    def partitions(self, topic_id: bytes) -> int:
        """See TopicSpec."""
        return self.topics[topic_id]

    def racks(self, topic_id: bytes, partition: int) -> set[str]:
        """See TopicSpec: neither looks at racks, as Apache's do not since Kafka 4."""
        return set()


def _topic_id(rng: random.Random) -> bytes:
    return bytes([rng.randrange(1, 248)]) + rng.randbytes(15)


def test_assignors_give_what_apaches_give(tmp_path: Path) -> None:
    try:
        lib = jars(RELEASE)
    except NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's jars are missing: {reason}")
        pytest.skip(f"no judge: {reason}")
    subprocess.run(["javac", "-cp", f"{lib}/*", "-d", str(tmp_path), str(_SOURCE)], check=True)
    rng = random.Random(20)
    cases = [Case(rng) for _ in range(GROUPS)]
    text = "".join(f"{line}\n" for case in cases for line in case.lines())
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{tmp_path}:{lib}/*", "AssignorJudge"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    answers = iter(done.stdout.splitlines())
    differing = []
    for at, case in enumerate(cases):
        theirs = [next(answers).rstrip() for _ in case.members]
        ours = [line.rstrip() for line in case.ours()]
        if ours != theirs:
            differing.append((at, case.assignor, case.is_homogeneous, list(case.lines()), theirs, ours))
    assert not differing, f"{len(differing)} of {GROUPS}, the first: {differing[0]}"
