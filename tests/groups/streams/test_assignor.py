"""The sticky task assignor: everything is given once, evenly, and stays where it was."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.groups.streams.assignor import Member, SubtopologyTasks, assign, java_order, java_order_of_computed
from kbroker.groups.streams.tasks import Task, Tasks


def alone(*names: str) -> list[Member]:
    """Members, each in a process of its own."""
    return [Member(name, f"process-{name}") for name in names]


def with_before(members: list[Member], before: dict[str, Tasks]) -> list[Member]:
    return [member._replace(before=before.get(member.member_id, Tasks())) for member in members]


def test_tasks_are_spread_by_ranges() -> None:
    found = assign(alone("a", "b"), [SubtopologyTasks("0", 2, False), SubtopologyTasks("1", 2, False)], 0)
    assert [sorted(tasks.active) for tasks in found.values()] == [[("0", 0), ("1", 0)], [("0", 1), ("1", 1)]]


def test_tasks_stay_where_they_were_when_a_member_joins() -> None:
    parts = [SubtopologyTasks("0", 6, True)]
    first = assign(alone("a", "b"), parts, 0)
    second = assign(with_before(alone("a", "b", "c"), first), parts, 0)
    assert second["a"].active < first["a"].active
    assert second["b"].active < first["b"].active
    assert [len(tasks.active) for tasks in second.values()] == [2, 2, 2]


def test_a_standby_task_becomes_active_where_its_state_is() -> None:
    before = {"c": Tasks(standby=frozenset({("0", 0)}))}
    found = assign(with_before(alone("a", "b", "c"), before), [SubtopologyTasks("0", 1, True)], 1)
    assert found["c"].active == {("0", 0)}


def test_state_on_disk_draws_a_task_to_a_member_that_is_new() -> None:
    members = [Member("a", "one"), Member("b", "two", offsets={("0", 0): 100})]
    found = assign(members, [SubtopologyTasks("0", 2, True)], 0)
    assert ("0", 0) in found["b"].active


def test_standby_tasks_are_never_in_the_process_of_the_active_one() -> None:
    members = [Member("a1", "one"), Member("a2", "one"), Member("b1", "two")]
    found = assign(members, [SubtopologyTasks("0", 6, True)], 1)
    one = found["a1"].with_all(found["a2"])
    assert not one.active & one.standby
    assert not found["b1"].active & found["b1"].standby


def test_there_are_fewer_standby_tasks_where_there_are_too_few_processes() -> None:
    found = assign(alone("a", "b"), [SubtopologyTasks("0", 2, True)], 2)
    assert sum(len(tasks.standby) for tasks in found.values()) == 2


def test_a_task_without_state_has_no_standby_tasks() -> None:
    found = assign(alone("a", "b"), [SubtopologyTasks("0", 2, False)], 1)
    assert not any(tasks.standby for tasks in found.values())


@pytest.mark.parametrize("seed", range(40))
def test_every_task_is_active_once_and_loads_are_even(seed: int) -> None:
    random = Random(seed)
    names = [f"m{at}" for at in range(random.randrange(1, 9))]
    members = [Member(name, f"p{random.randrange(4)}") for name in names]
    parts = [SubtopologyTasks(str(at), random.randrange(1, 9), random.random() < 0.5) for at in range(3)]
    before: dict[str, Tasks] = {}
    for _ in range(4):
        present = random.sample(members, random.randrange(1, len(members) + 1))
        before = assign(with_before(present, before), parts, random.randrange(3))
        given: list[Task] = [task for tasks in before.values() for task in tasks.active]
        assert sorted(given) == sorted((part.subtopology_id, at) for part in parts for at in range(part.tasks))
        share = -(-len(given) // len(present))
        processes: dict[str, list[Task]] = {}
        for member in present:
            tasks = before[member.member_id]
            assert len(tasks.active) <= share or len({each.process_id for each in present}) < len(present)
            processes.setdefault(member.process_id, []).extend(tasks.active | tasks.standby)
        assert all(len(set(held)) == len(held) for held in processes.values())


def test_keys_come_in_the_order_of_a_hash_table_of_java() -> None:
    assert java_order(["two", "three", "one"]) == ["one", "two", "three"]


def test_keys_that_are_computed_come_in_an_order_of_their_own() -> None:
    """Both share the bucket of a table for two, until a key comes again and finds the table full."""
    assert java_order_of_computed(["two", "one"], 2) == ["one", "two"]
    assert java_order_of_computed(["two", "one", "two"], 2) == ["two", "one"]
