"""Our NamedTuple and typing's: whatever is asked of a class, both answer the same."""

from __future__ import annotations

import copy
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from protocol import namedtuple


class Ours(namedtuple.NamedTuple):
    """An offset in a topic."""

    topic: str
    offset: int = -1
    tags: tuple[str, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @classmethod
    def first(cls, topic: str) -> Ours:
        return cls(topic, 0)


class Theirs(typing.NamedTuple):
    """An offset in a topic."""

    topic: str
    offset: int = -1
    tags: tuple[str, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @classmethod
    def first(cls, topic: str) -> Theirs:
        return cls(topic, 0)


class OursEmpty(namedtuple.NamedTuple):
    """Without a field."""


def matched(made: Any) -> Any:
    match made:
        case Ours(topic, offset=offset) | Theirs(topic, offset=offset):
            return topic, offset


ASKED: dict[str, Callable[[Any], Any]] = {
    "by place": lambda kind: kind("t", 5, ("a",)),
    "by name": lambda kind: kind(tags=("a",), topic="t"),
    "defaults": lambda kind: kind("t"),
    "a field": lambda kind: (kind("t", 5).offset, kind("t", 5)[1], kind("t", 5).next_offset),
    "unpacked": lambda kind: [*kind("t", 5)],
    "shown": lambda kind: repr(kind("t", 5)).removeprefix(kind.__name__),
    "equal": lambda kind: kind("t", 5) == ("t", 5, ()) and hash(kind("t", 5)) == hash(("t", 5, ())),
    "ordered": lambda kind: sorted([kind("b"), kind("a", 2), kind("a", 1)]),
    "replaced": lambda kind: kind("t", 5)._replace(offset=6, tags=("b",)),
    "as a dict": lambda kind: kind("t", 5)._asdict(),
    "from values": lambda kind: kind._make(["t", 5, ()]),
    "another constructor": lambda kind: kind.first("t"),
    "fields": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__),
    "matched": lambda kind: matched(kind("t", 5)),
    "pickled": lambda kind: pickle.loads(pickle.dumps(kind("t", 5))),
    "copied": lambda kind: copy.deepcopy(kind("t", 5, ("a",))),
    "the class": lambda kind: (kind.__doc__, kind.__module__, type(kind), issubclass(kind, tuple)),
    "annotated": lambda kind: typing.get_type_hints(kind),
}
MISUSED: dict[str, Callable[[Any], Any]] = {
    "too few": lambda kind: kind(),
    "too many": lambda kind: kind("t", 5, (), 1),
    "an unknown name": lambda kind: kind("t", place=5),
    "a name twice": lambda kind: kind("t", topic="u"),
    "a field is set": lambda kind: setattr(kind("t"), "offset", 6),
    "an attribute is set": lambda kind: setattr(kind("t"), "another", 6),
    "a field is deleted": lambda kind: delattr(kind("t"), "offset"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_both_answer_the_same(asked: str) -> None:
    ask = ASKED[asked]
    assert ask(Ours) == ask(Theirs)


@pytest.mark.parametrize("misused", MISUSED)
def test_both_refuse_the_same_misuse(misused: str) -> None:
    said = []
    for kind in (Ours, Theirs):
        with pytest.raises((TypeError, AttributeError)) as refused:
            MISUSED[misused](kind)
        said.append((refused.type, str(refused.value).replace(kind.__name__, "")))
    assert said[0] == said[1]


def test_without_fields_too() -> None:
    assert OursEmpty() == ()
    assert repr(OursEmpty()) == "OursEmpty()"


def test_what_does_not_fit_the_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="Ours has 3 fields, not 2"):
        Ours._make(["t", 5])
    with pytest.raises(ValueError, match="Ours has no field 'place'"):
        Ours("t")._replace(place=5)  # type: ignore[call-arg]


def test_a_field_without_a_default_comes_before_those_with_one() -> None:
    namespace = {"__annotations__": {"offset": "int", "topic": "str"}, "offset": -1}
    make: Any = type(namedtuple.NamedTuple)
    with pytest.raises(TypeError, match="Misplaced: a field without a default"):
        make("Misplaced", (namedtuple.NamedTuple,), namespace)
