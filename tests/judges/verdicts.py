"""One value, one version, one judge: what the judge objects to, as sentences; no sentence, no objection.

Called by the judges' tests and by scripts/wire, which ask the same questions and differ in how often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings

from protocol.message import Message, Struct
from protocol.schema import fields
from tests.judges import kio
from tests.judges.java import Judge
from tests.judges.trees import Json, absent_differences, agree, plain_name, tree
from tests.judges.values import messages

S = TypeVar("S", bound=Struct)


def apache_objects(judge: Judge, value: Message, version: int) -> list[str]:
    """Apache writes the same bytes, reads ours as the same value, and gives absent fields the same defaults.

    Tagged fields that a later release added to a version this one already had stay at their default here.
    """
    name = type(value).__name__
    known = judge.fields(name)
    if _lacks_a_tag(type(value), known):
        value = without_unknown(value, type(value), known)
    ours, expected = value.encode(version), _cut(tree(value, version), known)
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


def without_unknown(value: S, cls: type[S], known: Json) -> S:
    """The value with its tagged fields that the judge does not have at their default."""
    changed: dict[str, Any] = {}
    for field in fields(cls):
        held, name = getattr(value, field.name), plain_name(field.name)
        inner = field.type.struct or (field.type.element and field.type.element.struct)
        if name not in known:
            changed[field.name] = field.default_value() if field.tag is not None else held
        elif inner is None or held is None:
            changed[field.name] = held
        elif isinstance(held, list):
            changed[field.name] = [without_unknown(one, inner, known[name]) for one in held]
        else:
            changed[field.name] = without_unknown(held, inner, known[name])
    return cls(**changed, unknown_tags=value.unknown_tags)


def _cut(ours: Json, known: Json) -> Json:
    """A tree without the names that the judge does not know; had they been written, the bytes would differ."""
    if isinstance(ours, list):
        return [_cut(one, known) for one in ours]
    if not isinstance(ours, dict) or known is None:
        return ours
    return {name: _cut(value, known.get(name)) for name, value in ours.items() if name in known or name == "_tags"}


def _lacks_a_tag(cls: type[Struct], known: Json) -> bool:
    for field in fields(cls):
        name, inner = plain_name(field.name), field.type.struct or (field.type.element and field.type.element.struct)
        if name not in known:
            if field.tag is not None:
                return True
        elif inner is not None and _lacks_a_tag(inner, known[name]):
            return True
    return False


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
