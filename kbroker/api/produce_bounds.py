"""How many partitions a Produce names, told before it is decoded.

Called by `core.py` for large ones. A request of socket.request.max.bytes may name twelve million partitions without
records: decoding takes 60 times its bytes, and answering it a minute and a half. The records of an honest one are
passed over here by their lengths, a microsecond a partition. What is malformed is left to decoding to say.

    topic       name (id since version 13), count of partitions, partitions, tags since 9
    partition   index: 4 bytes, records behind their length, tags since 9
"""

from __future__ import annotations

from struct import Struct, error

from protocol.headers import skip_tags
from protocol.message import DecodeError
from protocol.primitives import read_uvarint

FLEXIBLE_SINCE, TOPIC_IDS_SINCE = 9, 13
_SHORT, _INT = Struct(">h"), Struct(">i")
_ACKS_AND_TIMEOUT_BYTES, _INDEX_BYTES, _ID_BYTES = 6, 4, 16


def names_over(most: int, frame: memoryview, version: int, start: int) -> bool:
    """Whether a Produce names more than so many topics and partitions. start: where its body begins."""
    try:
        return _names_over(most, frame, version, start)
    except (IndexError, ValueError, error, DecodeError):
        return False


def _names_over(most: int, frame: memoryview, version: int, start: int) -> bool:
    flexible = version >= FLEXIBLE_SINCE
    named = 0
    position = _behind(frame, start, flexible, _SHORT)  # transactional_id
    topics, position = _length(frame, position + _ACKS_AND_TIMEOUT_BYTES, flexible, _INT)
    for _ in range(topics):
        if version >= TOPIC_IDS_SINCE:
            position += _ID_BYTES
        else:
            position = _behind(frame, position, flexible, _SHORT)
        partitions, position = _length(frame, position, flexible, _INT)
        named += 1 + partitions
        if named > most:
            return True
        for _ in range(partitions):
            position = _behind(frame, position + _INDEX_BYTES, flexible, _INT)
            if flexible:
                position = skip_tags(frame, position)
        if flexible:
            position = skip_tags(frame, position)
    return False


def _length(frame: memoryview, position: int, flexible: bool, form: Struct) -> tuple[int, int]:
    """A length or count, 0 for null, and where it ends."""
    if flexible:
        size, position = read_uvarint(frame, position)
        return max(size - 1, 0), position
    return max(form.unpack_from(frame, position)[0], 0), position + form.size


def _behind(frame: memoryview, position: int, flexible: bool, form: Struct) -> int:
    """The position behind a string or records."""
    size, position = _length(frame, position, flexible, form)
    return position + size
