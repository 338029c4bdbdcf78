"""One value, one version, one judge: what the judge objects to, as sentences; no sentence, no objection.

Called by the judges' tests and by scripts/wire, which ask the same questions and differ in how often.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings

from protocol.message import Message
from tests.judges import kio
from tests.judges.java import Judge
from tests.judges.trees import Json, absent_differences, agree, tree
from tests.judges.values import messages


def apache_objects(judge: Judge, value: Message, version: int) -> list[str]:
    """Apache writes the same bytes, reads ours as the same value, and gives absent fields the same defaults."""
    name, ours, expected = type(value).__name__, value.encode(version), tree(value, version)
    found = _ourselves(value, ours, version)
    (written,) = judge.encode([(name, version, expected)])
    if written != ours:
        found.append(f"{judge.release} writes {_shown(written)}, we write {ours.hex()}")
    (read,) = judge.decode([(name, version, ours)])
    if isinstance(read, str):
        return [*found, f"{judge.release} cannot read {ours.hex()}: {read}"]
    theirs, left = read
    if left:
        found.append(f"{judge.release} leaves {left} bytes")
    if not agree(expected, theirs):
        found.append(f"{judge.release} reads {theirs}, it is {expected}")
    return found + absent_differences(type(value).decode(ours, version), theirs, version)


def kio_objects(value: Message, version: int) -> list[str]:
    """kio reads our bytes as the same value and writes the same bytes for it. Changes `value` to what kio can hold."""
    kio.fit(value, kio.entity(type(value).__name__, version))
    ours, expected = value.encode(version), tree(value, version)
    found = _ourselves(value, ours, version)
    theirs, written = kio.decode(type(value), version, ours)
    if not kio.agree(expected, theirs):
        found.append(f"kio reads {theirs}, it is {expected}")
    if written != ours:
        found.append(f"kio writes {written.hex()}, we write {ours.hex()}")
    return found


def _ourselves(value: Message, data: bytes, version: int) -> list[str]:
    back, end = type(value).decode_from(data, version)
    found: list[str] = [] if end == len(data) else [f"we leave {len(data) - end} bytes"]
    read: Json = tree(back, version)
    return found if read == tree(value, version) else [*found, f"we read {read}, it is {tree(value, version)}"]


def _shown(written: bytes | str) -> str:
    return written if isinstance(written, str) else written.hex()


def for_examples(
    cls: type[Message], version: int, count: int, unknown_tags: bool, ask: Callable[[Message], None]
) -> None:
    """Call `ask` with `count` values of a message, the same ones at each run; a failure is made as small as can be."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(messages(cls, version, unknown_tags))
    def each(value: Message) -> None:
        ask(value)

    each()
