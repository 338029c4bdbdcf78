"""Tables that were large once."""

from __future__ import annotations

import random
from sys import getsizeof

import pytest

from kbroker.tables import LEAST_BYTES, shrink


@pytest.mark.parametrize("kind", [dict, set])
def test_a_table_becomes_as_small_as_what_is_left_in_it(kind: type) -> None:
    table = dict.fromkeys(range(5_000)) if kind is dict else set(range(5_000))
    full = getsizeof(table)
    for key in range(4_990):
        table.pop(key) if isinstance(table, dict) else table.remove(key)
        shrink(table)
    assert (sorted(table), getsizeof(table) < min(full / 10, LEAST_BYTES)) == (list(range(4_990, 5_000)), True)


def test_a_small_or_a_full_table_is_left_alone() -> None:
    small, full = dict.fromkeys(range(50)), dict.fromkeys(range(5_000))
    for key in range(49):
        del small[key]
    sizes = getsizeof(small), getsizeof(full)
    shrink(small, full)
    assert (getsizeof(small), getsizeof(full)) == sizes


def test_it_is_the_same_table_in_the_same_order_whoever_holds_it() -> None:
    table = {key: str(key) for key in random.Random(7).sample(range(10_000), 10_000)}
    held, kept = table, dict(list(table.items())[-20:])
    for key in list(table)[:-20]:
        del table[key]
    shrink(table)
    assert (held is table, list(held.items())) == (True, list(kept.items()))


def test_a_table_is_copied_rarely_however_often_one_asks() -> None:
    """Its size changes each time, and only then."""
    table = dict.fromkeys(range(100_000))
    sizes = set()
    for key in range(100_000):
        del table[key]
        shrink(table)
        sizes.add(getsizeof(table))
    assert len(sizes) <= 5
