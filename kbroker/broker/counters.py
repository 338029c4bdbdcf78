"""What a broker counts while it works, for its metrics: plain numbers, written by the core.

Nothing here knows a metrics format, and no reader waits: it takes what stands there. Numbers only
grow, from the start of the broker on; what goes up and down (connections, sizes of purgatories) is looked at where it
is. Bytes are the server's (`runtime/server.py`), which sees them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from protocol.namedtuple import NamedTuple
from protocol.schema import fields

if TYPE_CHECKING:
    from protocol.flat import Flat
    from protocol.message import Message, Struct

MOST_API_KEYS = 128
AT_ONCE = 2_000  # structs looked at, without a break: less than a millisecond


class Counters:
    """A broker's counters.

    requests: by API key, begun or refused for what they are. errors: by API key and error code, one for each part of an
    answer that has it, NONE left out. waits: by API key, answers that were not there at once, by the bits that their
    wait in milliseconds has: 0 is below 1 ms, 1 below 2, 3 below 8. waited_ms: all of those together, by API key.
    """

    __slots__ = ("errors", "requests", "waited_ms", "waits")

    def __init__(self) -> None:
        self.requests = [0] * MOST_API_KEYS
        self.errors: Counter[tuple[int, int]] = Counter()
        self.waits: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.waited_ms: Counter[int] = Counter()

    def note_wait(self, api: int, waited_ms: int) -> None:
        """Count an answer that was not there at once."""
        self.waits[api][waited_ms.bit_length()] += 1
        self.waited_ms[api] += waited_ms

    def note_errors(self, api: int, response: Message | Flat, flat: type[Message] | None = None) -> None:
        """Count the error codes in an answer. flat: the class of one that is a tuple."""
        codes = _codes_in(type(response) if flat is None else flat, is_flat=flat is not None)
        if not codes.inner:  # as of many small answers
            for code in filter(None, [get(response) for get in codes.own]):
                self.errors[api, int(code)] += 1
            return
        for _ in _count(self.errors, api, [response], codes):
            pass

    def note_errors_in_slices(
        self, api: int, response: Message | Flat, flat: type[Message] | None = None
    ) -> Iterator[None]:
        """The same, with a break now and then."""
        kind = type(response) if flat is None else flat
        return _count(self.errors, api, [response], _codes_in(kind, is_flat=flat is not None))


class Codes(NamedTuple):
    """Where a struct has error codes: its own fields, and those that hold structs which have some, with their plan."""

    own: tuple[Callable[[Any], Any], ...]
    inner: tuple[tuple[Callable[[Any], Any], Codes], ...]


@cache
def _codes_in(kind: type[Struct], *, is_flat: bool) -> Codes:
    own, inner = [], []
    for place, field in enumerate(fields(kind)):
        get: Callable[[Any], Any] = itemgetter(place) if is_flat else attrgetter(field.name)
        below = field.type.struct or (field.type.element.struct if field.type.element else None)
        if below is None:
            if field.name.endswith("error_code"):
                own.append(get)
        elif any(codes := _codes_in(below, is_flat=is_flat)):
            inner.append((get, codes))
    return Codes(tuple(own), tuple(inner))


def _count(
    errors: Counter[tuple[int, int]], api: int, structs: Sequence[Any], codes: Codes
) -> Generator[None, None, None]:
    """Level by level, so that an answer about ten thousand partitions is looked through in no time."""
    for start in range(0, len(structs), AT_ONCE):
        some = structs[start : start + AT_ONCE]
        for get in codes.own:
            for code in filter(None, map(get, some)):
                errors[api, int(code)] += 1
        if start:
            yield
    for get, below in codes.inner:
        inside: list[Any] = []
        for value in map(get, structs):
            if isinstance(value, list):
                inside += value
            elif value is not None:
                inside.append(value)
        if inside:
            yield from _count(errors, api, inside, below)
