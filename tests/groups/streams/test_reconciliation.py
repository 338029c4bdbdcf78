"""A member's way from what it has to its target, one heartbeat after the other."""

from __future__ import annotations

from kbroker.groups.streams.reconciliation import Current, Epoch, MemberState, Owners, compare_epoch, reconcile
from kbroker.groups.streams.tasks import Tasks

A, B, C = ("0", 0), ("0", 1), ("0", 2)
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS


def active(*tasks: tuple[str, int]) -> Tasks:
    return Tasks(frozenset(tasks))


def having(tasks: Tasks, epoch: int = 3) -> Current:
    return Current(epoch, epoch - 1, STABLE, tasks, since=dict.fromkeys(tasks.active, epoch))


def owners(**held: Tasks) -> Owners:
    found = Owners()
    for process_id, tasks in held.items():
        found.add(tasks, process_id)
    return found


def test_a_member_that_has_its_target_stays_as_it_is() -> None:
    current = having(active(A))
    assert reconcile(current, "p", active(B), 3, None, owners(p=active(A))) is current


def test_free_tasks_are_given_at_once() -> None:
    after = reconcile(Current(), "p", active(A, B), 5, Tasks(), Owners())
    assert after == Current(5, 0, STABLE, active(A, B), since={A: 5, B: 5})


def test_a_member_lets_go_before_it_gets_anything() -> None:
    after = reconcile(having(active(A, B)), "p", active(B, C), 4, None, owners(p=active(A, B)))
    assert after == Current(3, 3, UNREVOKED, active(B), active(A), {A: 3, B: 3})


def test_a_member_that_still_has_what_it_must_let_go_of_waits() -> None:
    waiting = Current(3, 2, UNREVOKED, active(B), active(A), {A: 3, B: 3})
    held = owners(p=active(A, B))
    assert reconcile(waiting, "p", active(B, C), 4, active(A, B), held) is waiting
    assert reconcile(waiting, "p", active(B, C), 4, None, held) is waiting


def test_a_member_that_has_let_go_reaches_the_target() -> None:
    waiting = Current(3, 2, UNREVOKED, active(B), active(A), {A: 3, B: 3})
    after = reconcile(waiting, "p", active(B, C), 4, active(B), owners(p=active(A, B)))
    assert after == Current(4, 3, STABLE, active(B, C), since={B: 3, C: 4})


def test_tasks_of_others_are_waited_for() -> None:
    after = reconcile(having(active(A)), "p", active(A, B), 4, None, owners(p=active(A), q=active(B)))
    assert after == Current(4, 3, UNRELEASED, active(A), since={A: 3})
    assert reconcile(after, "p", active(A, B), 4, None, owners(p=active(A))).state is STABLE


def test_a_process_has_a_task_in_one_role_at_a_time() -> None:
    held = owners(p=Tasks(standby=frozenset({A})), q=active(B))
    after = reconcile(Current(), "p", Tasks(frozenset({A}), frozenset({B})), 5, Tasks(), held)
    assert (after.state, after.tasks) == (UNRELEASED, Tasks(standby=frozenset({B})))


def test_several_processes_may_have_standby_tasks_of_one_task() -> None:
    held = owners(q=active(A), r=Tasks(standby=frozenset({A})))
    assert reconcile(Current(), "p", Tasks(standby=frozenset({A})), 5, Tasks(), held).state is STABLE


def test_a_member_in_a_state_of_a_newer_kafka_begins_again() -> None:
    odd = Current(3, 2, MemberState.UNKNOWN, active(A), since={A: 3})
    assert reconcile(odd, "p", active(A), 4, Tasks(), owners(p=active(A))).state is STABLE


def test_the_epoch_before_is_good_if_the_answer_was_lost() -> None:
    current = Current(5, 4, STABLE, active(A, B), since={A: 5, B: 5})
    assert compare_epoch(current, 5, None) is Epoch.GOOD
    assert compare_epoch(current, 0, Tasks()) is Epoch.GOOD
    assert compare_epoch(current, 4, active(A)) is Epoch.GOOD
    assert compare_epoch(current, 4, active(C)) is Epoch.SMALLER
    assert compare_epoch(current, 4, None) is Epoch.SMALLER
    assert compare_epoch(current, 3, active(A)) is Epoch.SMALLER
    assert compare_epoch(current, 6, active(A)) is Epoch.GREATER
