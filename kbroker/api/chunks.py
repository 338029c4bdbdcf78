"""Many partitions of a request, some at a time: for handlers that do a portion, and then let others have their turn.

Called by handlers of requests that name partitions under topics. A portion is a list of topics like the request's own;
what portions are answered later is put together as if there had been none.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kbroker.api.call import LATER
from kbroker.broker.facts import Joint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kbroker.api.call import Call, InSlices
    from kbroker.broker.facts import JointPart
    from protocol.message import Message


AT_ONCE = 32  # topics or partitions looked at without a break: some hundred microseconds


def is_break(at: int, at_once: int = AT_ONCE) -> bool:
    """Whether others get their turn before the item at this place, of many in a row."""
    return at % at_once == at_once - 1


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


def in_portions(
    request: Any,
    call: Call,
    most: int,
    begin: Callable[[Any, JointPart], object],
    make: Callable[[list[Any]], Message],
) -> InSlices:
    """Have a request done as several of at most so many partitions each, and answered as one.

    begin: does a request of a portion's topics; its answer goes to the ticket given. make: an answer with these topics.
    """
    topics = (_with(request, "topics", some) for some in portions(request.topics, most))
    return jointly(call, topics, "topics", begin, lambda answered: make(_in_one(answered)))


def jointly(
    call: Call,
    requests: Iterable[Any],
    part: str,
    begin: Callable[[Any, JointPart], object],
    make: Callable[[list[list[Any]]], Message],
) -> InSlices:
    """Have requests done one after the other, and answered as one.

    part: of each answer, what `make` is given a list of. begin: does a request; its answer goes to the ticket given.
    """
    answered: list[list[Any]] = []
    joint = Joint(call.ticket, 1, lambda: make(answered))
    for request in requests:
        joint.waiting += 1
        answered.append([])
        begin(request, joint.part(partial(_fill, answered[-1], part)))
        yield
    whole = joint.part().answered(None)
    if whole is not None:
        call.broker.tell(whole)
    return LATER


def _with(request: Any, part: str, some: list[Any]) -> Any:
    """The same request, of some only."""
    portion = copy(request)
    setattr(portion, part, some)
    return portion


def in_pieces(request: Any, part: str, items: Sequence[Any], most: int) -> Iterator[Any]:
    """The same request several times, in whose part there are at most so many of these items each."""
    return (_with(request, part, list(items[start : start + most])) for start in range(0, len(items), most))


def _fill(place: list[Any], part: str, answer: Any) -> None:
    place += getattr(answer, part)


def _in_one(answered: list[list[Any]]) -> list[Any]:
    """What portions were answered: a topic that went on in the next one is one again."""
    topics: list[Any] = []
    for topic in chain.from_iterable(answered):
        if topics and _of(topics[-1]) == _of(topic):
            topics[-1].partitions += topic.partitions
        else:
            topics.append(topic)
    return topics


def _of(topic: Any) -> tuple[str, bytes | None]:
    return topic.name, getattr(topic, "topic_id", None)
