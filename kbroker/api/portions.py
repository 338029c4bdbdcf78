"""Many partitions of a request, some at a time: for handlers that do a portion, and then let others have their turn.

Called by handlers of requests that name partitions under topics. A portion is a list of topics like the request's own.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HasPartitions(Protocol):
    """A topic of a request."""

    partitions: list[Any]


T = TypeVar("T", bound=HasPartitions)


def portions(topics: Sequence[T], most: int) -> Iterator[list[T]]:
    """The same topics in the same order, with at most so many partitions a portion; one without any counts as one."""
    portion: list[T] = []
    room = most
    for topic in topics:
        start, size = 0, len(topic.partitions)
        while start < size or not size:
            part = copy(topic)
            part.partitions = topic.partitions[start : start + room]
            portion.append(part)
            taken = len(part.partitions) or 1
            start, size, room = start + taken, size or 1, room - taken
            if not room:
                yield portion
                portion, room = [], most
    if portion:
        yield portion
