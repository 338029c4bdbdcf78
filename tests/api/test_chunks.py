"""A request's partitions, some at a time."""

from __future__ import annotations

import pytest

from kbroker.api.chunks import portions
from protocol.messages.group_offsets import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic


def topics(*sizes: int) -> list[OffsetDeleteRequestTopic]:
    """Topics t0, t1, ... of so many partitions."""
    return [
        OffsetDeleteRequestTopic(
            name=f"t{number}", partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in range(size)]
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((2,), [[("t0", [0, 1])]]),
        ((3,), [[("t0", [0, 1, 2])]]),
        ((7,), [[("t0", [0, 1, 2])], [("t0", [3, 4, 5])], [("t0", [6])]]),
        ((2, 2), [[("t0", [0, 1]), ("t1", [0])], [("t1", [1])]]),
        ((0, 0, 0, 0), [[("t0", []), ("t1", []), ("t2", [])], [("t3", [])]]),
        ((3, 0, 1), [[("t0", [0, 1, 2])], [("t1", []), ("t2", [0])]]),
    ],
)
def test_each_partition_is_in_one_portion(sizes: tuple[int, ...], expected: list[list[tuple[str, list[int]]]]) -> None:
    whole = topics(*sizes)
    found = [
        [(topic.name, [each.partition_index for each in topic.partitions]) for topic in portion]
        for portion in portions(whole, 3)
    ]
    assert (found, whole) == (expected, topics(*sizes))
