"""Which leader epoch starts where."""

from __future__ import annotations

import pytest

from kbroker.log.epochs import LeaderEpochs

KNOWN = [(2, 10), (4, 20), (7, 35)]


def test_epochs_are_noted_once_at_their_first_offset() -> None:
    epochs = LeaderEpochs()
    noted = [epochs.assign(3, 10), epochs.assign(3, 15), epochs.assign(5, 20)]
    assert (noted, epochs.entries(), epochs.latest) == ([True, False, True], [(3, 10), (5, 20)], 5)


@pytest.mark.parametrize(
    ("epoch", "start", "left"),
    [
        (8, 35, [(2, 10), (4, 20), (8, 35)]),
        (8, 12, [(2, 10), (8, 12)]),
        (5, 40, [(2, 10), (4, 20), (5, 40)]),
        (7, 30, [(2, 10), (4, 20), (7, 30)]),
        (1, 5, [(1, 5)]),
    ],
)
def test_what_a_leader_stamps_wins_over_what_contradicts_it(
    epoch: int, start: int, left: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(KNOWN)
    epochs.assign(epoch, start)
    assert epochs.entries() == left


@pytest.mark.parametrize(
    ("epoch", "end"),
    [(-1, (-1, -1)), (0, (0, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 35)), (6, (4, 35)), (7, (7, 50)), (8, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_begins(epoch: int, end: tuple[int, int]) -> None:
    assert LeaderEpochs(KNOWN).end_offset_for(epoch, 50) == end


def test_nothing_is_known_of_an_empty_log() -> None:
    assert LeaderEpochs().end_offset_for(3, 50) == (-1, -1)


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 4), (99, 7)])
def test_an_offset_was_written_in_an_epoch(offset: int, epoch: int) -> None:
    assert LeaderEpochs(KNOWN).epoch_at(offset) == epoch


@pytest.mark.parametrize(
    ("end", "left"), [(50, KNOWN), (36, KNOWN), (35, KNOWN[:2]), (20, KNOWN[:1]), (11, KNOWN[:1]), (10, []), (0, [])]
)
def test_a_cut_forgets_epochs_that_start_behind_it(end: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(KNOWN)
    epochs.truncate_from_end(end)
    assert (epochs.entries(), epochs.version) == (left, int(left != KNOWN))


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, KNOWN),
        (10, KNOWN),
        (15, [(2, 15), (4, 20), (7, 35)]),
        (20, [(4, 20), (7, 35)]),
        (25, [(4, 25), (7, 35)]),
        (99, [(7, 99)]),
    ],
)
def test_the_epoch_at_the_log_start_starts_there(start: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(KNOWN)
    epochs.truncate_from_start(start)
    assert (epochs.entries(), epochs.version) == (left, int(left != KNOWN))


def test_what_was_cleared_is_gone_when_epochs_begin_again() -> None:
    epochs = LeaderEpochs(KNOWN)
    epochs.clear()
    epochs.assign(1, 0)
    assert (epochs.entries(), epochs.latest) == ([(1, 0)], 1)
