"""Where the replicas of new partitions go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.assignment import alternate, assign
from protocol.errors import ErrorCode, KafkaError


def test_leaders_go_round_the_brokers_from_the_start() -> None:
    chosen = assign({1: None, 2: None, 3: None}, 4, 1, start=1, shift=0)
    assert chosen == [[2], [3], [1], [2]]


def test_followers_shift_with_each_round() -> None:
    chosen = assign({0: None, 1: None, 2: None}, 6, 2, start=0, shift=0)
    assert chosen == [[0, 1], [1, 2], [2, 0], [0, 2], [1, 0], [2, 1]]


def test_more_partitions_go_on_where_the_others_ended() -> None:
    brokers = dict.fromkeys(range(5))
    whole = assign(brokers, 9, 3, start=3, shift=3)
    assert assign(brokers, 4, 3, start=3, shift=3, first=5) == whole[5:]


def test_brokers_alternate_between_racks() -> None:
    assert alternate({0: "b", 1: "c", 2: "a", 3: "a", 4: "b"}) == [2, 0, 1, 3, 4]


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "code"),
    [
        (1, 0, 1, ErrorCode.INVALID_PARTITIONS),
        (1, -5, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_impossible_assignments_are_refused(brokers: int, partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        assign(dict.fromkeys(range(brokers)), partitions, factor, start=0, shift=0)
    assert raised.value.code is code


def test_racks_must_be_known_of_all_or_none() -> None:
    with pytest.raises(KafkaError):
        assign({1: "a", 2: None}, 1, 1, start=0, shift=0)


@given(
    racks=st.dictionaries(st.integers(0, 20), st.sampled_from("abc"), min_size=1, max_size=9),
    with_racks=st.booleans(),
    partitions=st.integers(1, 40),
    start=st.integers(0, 50),
    shift=st.integers(0, 50),
    data=st.data(),
)
def test_replicas_stand_on_different_brokers_and_racks(
    racks: dict[int, str], with_racks: bool, partitions: int, start: int, shift: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    known = dict(racks) if with_racks else dict.fromkeys(racks)
    chosen = assign(known, partitions, factor, start=start, shift=shift)
    assert all(len(set(each)) == factor for each in chosen)
    assert {broker for each in chosen for broker in each} <= racks.keys()
    if with_racks:
        spread = min(factor, len(set(racks.values())))
        assert all(len({racks[broker] for broker in each}) == spread for each in chosen)
    leaders = Counter(each[0] for each in chosen)
    assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1
