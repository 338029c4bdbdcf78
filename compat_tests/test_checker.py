"""The judge of records: it sees each kind of broken promise, and none where there is none."""

from __future__ import annotations

import pytest

from compat_tests.checker import Acknowledged, Read, complaints

pytestmark = pytest.mark.quick

GOOD = {0: [Read(0, "a", 0), Read(1, "b", 0), Read(2, "a", 2)], 1: [Read(0, "a", 1), Read(1, "a", 3)]}
PROMISED = [Acknowledged("a", 0, 0, 0), Acknowledged("a", 1, 1, 0), Acknowledged("a", 2, 0, 2)]


def test_what_was_not_acknowledged_may_be_there() -> None:
    assert complaints(PROMISED, GOOD) == []


def test_a_record_that_is_lost() -> None:
    assert complaints(PROMISED, {0: GOOD[0], 1: []}) == ["a 1, acknowledged at (1, 0), is lost"]


def test_a_record_at_another_offset() -> None:
    assert complaints(PROMISED, {**GOOD, 1: [Read(1, "a", 1)]}) == ["a 1, acknowledged at (1, 0), is at (1, 1)"]


def test_a_record_of_which_the_client_does_not_know_the_offset() -> None:
    unplaced = Acknowledged("a", 1, 1, None)
    assert complaints([unplaced], GOOD) == []
    assert complaints([unplaced], {0: GOOD[0], 1: []}) == ["a 1, acknowledged at (1, None), is lost"]
    elsewhere = {0: [Read(0, "a", 1)], 1: []}
    assert complaints([unplaced], elsewhere) == ["a 1, acknowledged at (1, None), is at (0, 0)"]


def test_a_record_that_is_there_twice() -> None:
    assert complaints([], {0: [Read(0, "a", 4), Read(1, "a", 4)]}) == ["a 4 is behind its 4, at (0, 1)"]


def test_records_out_of_order() -> None:
    assert complaints([], {0: [Read(0, "a", 4), Read(1, "a", 2)]}) == ["a 2 is behind its 4, at (0, 1)"]
