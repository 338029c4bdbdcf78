"""What is fuzzed: each decoder with real frames to start from, and what must hold of its answer.

Called by `campaign.py` and the tests beside it. A target's `check` returns whether the bytes were taken, lets a
DecodeError through as the answer that it is, and raises anything else only where the decoder is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocol.explain import read_slowly
from protocol.message import DecodeError, Message
from tests.judges.pairs import all_pairs
from tests.judges.verdicts import for_examples


class Target(NamedTuple):
    """A decoder under fuzz. check: True for a value, False for an error that names its field."""

    name: str
    check: Callable[[bytes], bool]
    decode: Callable[[bytes], object]  # the decoder alone, to measure
    seeds: list[bytes]


def message_target(cls: type[Message], version: int, examples: int = 3) -> Target:
    """The reader of one message in one version."""
    seeds: list[bytes] = []
    for_examples(cls, version, examples, True, lambda value: seeds.append(value.encode(version)))

    def check(data: bytes) -> bool:
        return check_message(cls, version, data)

    return Target(f"{cls.__name__} v{version}", check, lambda data: cls.decode_from(data, version), seeds)


def check_message(cls: type[Message], version: int, data: bytes) -> bool:
    """A value that ends inside the frame, that the patient reader reads too, and that can be written; or False."""
    try:
        value, end = cls.decode_from(data, version)
    except DecodeError as error:
        refusal = error
    else:
        check_value(value, end, version, data)
        return True
    assert refusal.path, f"names no field: {refusal}"
    return False


def check_value(value: Message, end: int, version: int, data: bytes) -> None:
    """What must hold of a value that was read from `data` up to `end`."""
    cls = type(value)
    assert end <= len(data), f"read to {end} of {len(data)}"
    again, slow_end = read_slowly(cls, version, data)
    assert end == slow_end, f"ends at {end}, the patient reader at {slow_end}"
    written = value.encode(version)
    assert written == again.encode(version), "not what the patient reader reads"
    assert cls.decode(written, version).encode(version) == written, "does not survive being written"


def all_targets(examples: int = 3) -> list[Target]:
    """Every decoder."""
    return [message_target(cls, version, examples) for cls, version in all_pairs()]
