"""The outline of DER (X.690): enough to find a field in a certificate. Used by `certificates.py` and `jks.py`."""

from __future__ import annotations

from protocol.namedtuple import NamedTuple

SEQUENCE, SET, INTEGER, OBJECT, OCTETS, UTC_TIME, GENERALIZED_TIME = 0x30, 0x31, 0x02, 0x06, 0x04, 0x17, 0x18
LONG_FORM, MOST_SIZE_BYTES = 0x80, 4


class Element(NamedTuple):
    """One value. content: without its tag and size; whole: with them."""

    tag: int
    content: bytes
    whole: bytes

    @property
    def children(self) -> list[Element]:
        """The values within. Raises: ValueError."""
        return parse(self.content)


def parse(data: bytes) -> list[Element]:
    """The values that stand one behind the other. Raises: ValueError if that is not all there is."""
    found, at = [], 0
    while at < len(data):
        element = _first(data[at:])
        found.append(element)
        at += len(element.whole)
    return found


def _first(data: bytes) -> Element:
    if len(data) < 2 or data[0] & 0x1F == 0x1F:
        raise ValueError("no DER")
    size, start = data[1], 2
    if size & LONG_FORM:
        count = size & ~LONG_FORM
        if not 0 < count <= MOST_SIZE_BYTES or len(data) < 2 + count:
            raise ValueError("no DER")
        size, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < start + size:
        raise ValueError("DER that ends early")
    return Element(data[0], data[start : start + size], data[: start + size])


def oid(content: bytes) -> str:
    """The dotted text of an object identifier's content."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("no object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
