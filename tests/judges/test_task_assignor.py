"""The task assignor of streams groups gives what Apache's class gives: random groups with a past, no difference."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from compat_tests.apache import NoApacheError, jars
from kbroker.groups.streams.assignor import Member, SubtopologyTasks, assign, java_order
from kbroker.groups.streams.tasks import Task, Tasks

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

RELEASE = "4.4.0"
GROUPS = int(os.environ.get("KBROKER_ASSIGNOR_GROUPS", "5000"))
_SOURCE = Path(__file__).parent / "streams" / "TaskAssignorJudge.java"
NOBODY = Tasks()


class Case:
    """A random group: some of its members have tasks, some say that they have state of tasks on disk."""

    def __init__(self, random: Random) -> None:
        count = random.choice((1, 2, 3, 5, 9, 17, 40))
        processes = [f"p{random.randrange(10**6)}" for _ in range(random.randint(1, count))]
        sizes, share = random.choice(((1, 2, 3), (1, 4, 8, 12), (30,))), random.random()
        self.replicas = random.choice((0, 0, 1, 1, 2))
        self.parts = [
            SubtopologyTasks(str(at), random.choice(sizes), random.random() < share)
            for at in range(random.randint(1, 4))
        ]
        ids = [f"m{at}-{random.randrange(10**6)}" for at in range(count)]
        before, offsets = self._before(random, ids), self._offsets(random, ids)
        self.members = [
            Member(name, random.choice(processes), before.get(name, NOBODY), offsets.get(name, {}))
            for name in java_order(ids)
        ]

    def _tasks(self) -> list[tuple[Task, bool]]:
        return [((part.subtopology_id, at), part.is_stateful) for part in self.parts for at in range(part.tasks)]

    def _before(self, random: Random, ids: list[str]) -> dict[str, Tasks]:
        """Each task may have had one owner and some standbys."""
        kept = random.choice((0, 0.5, 0.9, 1))
        active: dict[str, set[Task]] = {}
        standby: dict[str, set[Task]] = {}
        for task, is_stateful in self._tasks():
            if random.random() < kept:
                active.setdefault(random.choice(ids), set()).add(task)
            if is_stateful and random.random() < kept:
                for name in random.sample(ids, min(self.replicas, len(ids))):
                    if task not in active.get(name, ()):
                        standby.setdefault(name, set()).add(task)
        return {name: Tasks(frozenset(active.get(name, ())), frozenset(standby.get(name, ()))) for name in ids}

    def _offsets(self, random: Random, ids: list[str]) -> dict[str, dict[Task, int]]:
        """What members say that they have on disk; no two of them the same number of one task."""
        told = random.choice((0, 0, 0.3))
        numbers = iter(random.sample(range(10**6), len(ids) * len(self._tasks())))
        return {
            name: {task: next(numbers) for task, is_stateful in self._tasks() if is_stateful and random.random() < told}
            for name in ids
        }

    def lines(self) -> Iterator[str]:
        """The group as the judge reads it."""
        yield f"{len(self.members)} {len(self.parts)} {self.replicas}"
        for part in self.parts:
            yield f"{part.subtopology_id} {part.tasks} {str(part.is_stateful).lower()}"
        for each in self.members:
            offsets = ",".join(f"{part}.{at}={offset}" for (part, at), offset in each.offsets.items()) or "-"
            before = f"{shown(each.before.active)} {shown(each.before.standby)}"
            yield f"{each.member_id} {each.process_id} {before} {offsets}"

    def answer(self) -> dict[str, str]:
        """Our assignment, as the judge writes it."""
        found: Mapping[str, Tasks] = assign(self.members, self.parts, self.replicas)
        return {name: f"{shown(tasks.active)} {shown(tasks.standby)}" for name, tasks in found.items()}


def shown(tasks: Iterable[Task]) -> str:
    """As the judge writes them."""
    return ",".join(sorted(f"{part}.{at}" for part, at in tasks)) or "-"


def test_random_groups_get_the_tasks_that_apaches_class_gives() -> None:
    try:
        lib = jars(RELEASE)
    except NoApacheError as reason:
        pytest.skip(str(reason))
    random = Random(1)
    cases = [Case(random) for _ in range(GROUPS)]
    asked = "".join(f"{line}\n" for case in cases for line in case.lines())
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{lib}/*", str(_SOURCE)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = iter(done.stdout.splitlines())
    for number, case in enumerate(cases):
        apaches = dict(next(told).split(" ", 1) for _ in case.members)
        assert case.answer() == apaches, (number, list(case.lines()))
