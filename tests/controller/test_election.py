"""The five elections: who leads next, and who stays in sync."""

from __future__ import annotations

from kbroker.controller.election import Elected, controlled_shutdown, offline, preferred, reassigned, restarted


def test_offline_the_first_live_replica_in_sync_leads() -> None:
    assert offline([1, 2, 3], [3, 2], {2, 3}, unclean_allowed=False) == Elected(2, (3, 2))


def test_offline_the_dead_are_not_in_sync() -> None:
    assert offline([1, 2, 3], [1, 2, 3], {2, 3}, unclean_allowed=False) == Elected(2, (2, 3))


def test_offline_nobody_in_sync_nobody_leads() -> None:
    assert offline([1, 2], [1], {2}, unclean_allowed=False) is None


def test_offline_unclean_any_live_replica_leads_alone() -> None:
    assert offline([1, 2, 3], [1], {3, 2}, unclean_allowed=True) == Elected(2, (2,), unclean=True)


def test_offline_clean_is_chosen_even_where_unclean_is_allowed() -> None:
    assert offline([1, 2, 3], [3], {2, 3}, unclean_allowed=True) == Elected(3, (3,))


def test_offline_all_dead() -> None:
    assert offline([1, 2], [1, 2], set(), unclean_allowed=True) is None


def test_reassigned_the_first_new_replica_in_sync_leads() -> None:
    assert reassigned([4, 5], [1, 5, 4], {1, 4, 5}) == Elected(4, (1, 5, 4))
    assert reassigned([4, 5], [1, 5], {1, 4, 5}) == Elected(5, (1, 5))
    assert reassigned([4, 5], [1, 5, 4], {1, 5}) == Elected(5, (1, 5, 4))
    assert reassigned([4, 5], [1], {1, 4, 5}) is None


def test_preferred_only_the_first_replica_will_do() -> None:
    assert preferred([1, 2], [2, 1], {1, 2}) == Elected(1, (2, 1))
    assert preferred([1, 2], [2], {1, 2}) is None
    assert preferred([1, 2], [1, 2], {2}) is None


def test_shutdown_the_leaving_neither_lead_nor_stay_in_sync() -> None:
    assert controlled_shutdown([1, 2, 3], [1, 2, 3], {1, 2, 3}, {1}) == Elected(2, (2, 3))
    assert controlled_shutdown([1, 2, 3], [1, 2, 3], {1, 3}, {1}) == Elected(3, (2, 3))
    assert controlled_shutdown([1, 2], [1], {1, 2}, {1}) is None


def test_restarted_a_leader_that_was_there_all_the_time_stays() -> None:
    assert restarted([1, 2, 3], 2, [2, 1, 3], {1, 2, 3}, {1}) == Elected(2, (2, 3))


def test_restarted_the_first_leads_that_was_there_all_the_time() -> None:
    assert restarted([1, 2, 3], 1, [1, 3, 2], {1, 2, 3}, {1}) == Elected(2, (3, 2))


def test_restarted_who_was_not_in_sync_does_not_lead() -> None:
    assert restarted([1, 2, 3], 1, [1, 3], {1, 2, 3}, {1}) == Elected(3, (3,))


def test_restarted_all_in_sync_have_and_the_leader_stays() -> None:
    assert restarted([1, 2, 3], 2, [1, 2], {1, 2, 3}, {1, 2}) == Elected(2, (1, 2))


def test_restarted_the_leader_is_dead_and_the_others_have() -> None:
    assert restarted([1, 2, 3], 1, [1, 2, 3], {2, 3}, {2, 3}) == Elected(2, (2, 3))


def test_restarted_nobody_in_sync_is_live() -> None:
    assert restarted([1, 2], 1, [1], {2}, {1}) is None
