"""Values of messages: constructors, equality, repr, shared defaults; and what a schema says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.message import ZERO_UUID, Array, Int32, Message, Records, Struct, parse_versions, plain, since, tagged
from protocol.schema import (
    SchemaError,
    default_struct,
    direction,
    fields,
    fields_at,
    has_records,
    is_flexible,
    minimum_size,
    structs,
)
from tests.protocol import toys


class Odd(Message, api=1, versions="0", flexible="none"):
    """Has an api key and says neither Request nor Response."""

    number: Int32


class Nested(Message, versions="0"):
    """An array of arrays, which the wire does not have."""

    numbers: Array[Array[Int32]]  # type: ignore[type-var,unused-ignore]


class Unknown(Message, versions="0"):
    """A type that does not exist."""

    number: Int33  # type: ignore[name-defined]  # noqa: F821


class TaggedRecords(Message, versions="0", flexible="0+"):
    """Records as a tagged field."""

    records: Records = tagged(0, since=0, default=b"")


class BadDefault(Message, versions="0"):
    """A struct that defaults to a number."""

    pair: toys.Pair = plain(default=5)


def test_constructor_takes_keywords_and_positions() -> None:
    assert toys.Pair(1, 2) == toys.Pair(left=1, right=2)  # type: ignore[misc,unused-ignore]


def test_constructor_fills_in_defaults() -> None:
    value = toys.Versioned()
    assert (value.early, value.late, value.late_list, value.dropped, value.narrow) == (5, "x", [], -1, "")


def test_constructor_names_what_is_missing() -> None:
    with pytest.raises(TypeError, match="Inner is missing items, flag"):
        toys.Inner(number=1)  # type: ignore[call-arg,unused-ignore]


def test_constructor_refuses_unknown_names() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'middle'"):
        toys.Pair(middle=1)  # type: ignore[call-arg,unused-ignore]


def test_default_list_is_fresh() -> None:
    toys.Versioned().late_list.append(1)
    assert toys.Versioned().late_list == []


def test_default_struct_is_shared_and_cannot_be_changed() -> None:
    one, two = toys.Versioned().late_struct, toys.Versioned().late_struct
    assert one is two
    with pytest.raises(AttributeError, match="shared default: assign a new struct"):
        one.left = 5


def test_default_struct_equals_and_reads_as_a_fresh_one() -> None:
    shared = toys.Versioned().late_struct
    assert shared == toys.Pair()
    assert toys.Pair() == shared
    assert repr(shared) == "Pair(left=-1, right=-1)"
    assert isinstance(shared, toys.Pair)


def test_values_have_slots_only() -> None:
    with pytest.raises(AttributeError):
        toys.Pair().middle = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("other", [toys.Pair(left=2), toys.Pair(unknown_tags={1: b""}), toys.Item(number=1), 5])
def test_values_that_differ_are_not_equal(other: object) -> None:
    assert toys.Pair(left=1) != other


def test_no_tags_and_empty_tags_are_equal() -> None:
    assert toys.Pair(unknown_tags={}) == toys.Pair()


def test_repr_shows_every_field_and_unknown_tags() -> None:
    assert repr(toys.Pair(left=1, unknown_tags={5: b"x"})) == "Pair(left=1, right=-1, unknown_tags={5: b'x'})"


@pytest.mark.parametrize(("text", "versions"), [("3", (3, 3)), ("0-13", (0, 13)), ("9+", (9, 32767)), ("none", (1, 0))])
def test_version_ranges_are_parsed(text: str, versions: tuple[int, int]) -> None:
    assert parse_versions(text) == versions


def test_schema_lists_the_fields_of_a_version_in_order() -> None:
    assert [field.name for field in fields_at(toys.Item, 2)] == ["id", "number", "middle"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("flag", "bool"), ("numbers", "[]int32"), ("inner", "Inner"), ("items", "[]Item"), ("ids", "[]uuid")],
)
def test_schema_knows_the_types(name: str, kind: str) -> None:
    assert {field.name: str(field.type) for field in fields(toys.Everything)}[name] == kind


def test_schema_knows_tags_defaults_and_nullability() -> None:
    field = next(field for field in fields(toys.Tagged) if field.name == "none_or_text")
    assert (field.tag, field.default, field.first, field.nullable_at(1)) == (2, None, 1, True)


@pytest.mark.parametrize(("version", "nullable"), [(0, False), (2, False), (3, True), (4, True)])
def test_narrowed_nullability_counts_by_version(version: int, nullable: bool) -> None:
    field = next(field for field in fields(toys.Versioned) if field.name == "narrow")
    assert field.nullable_at(version) is nullable


def test_default_values_are_those_of_kafka_when_none_is_declared() -> None:
    zeros = [field.default_value() for field in fields(toys.Item)]
    assert zeros == ["", ZERO_UUID, 0, 7]


def test_structs_are_found_in_order_of_use() -> None:
    assert structs(toys.Everything) == (toys.Everything, toys.Inner, toys.Item)


@pytest.mark.parametrize(("version", "size"), [(0, 4), (1, 8), (2, 22), (3, 23), (5, 19)])
def test_smallest_size_of_an_element(version: int, size: int) -> None:
    kind = next(field.type for field in fields(toys.Everything) if field.name == "items").element
    assert kind is not None
    assert minimum_size(kind, version, is_flexible(toys.Everything, version)) == size


def test_messages_with_records_are_known() -> None:
    assert [has_records(cls, 0) for cls in (toys.Carrier, toys.Everything)] == [True, False]


def test_direction_is_told_by_the_name() -> None:
    class PingRequest(Message, api=99, versions="0"): ...

    class PingResponse(Message, api=99, versions="0"): ...

    assert [direction(cls) for cls in (PingRequest, PingResponse, toys.Empty)] == ["request", "response", "record"]
    with pytest.raises(SchemaError, match="neither Request nor Response"):
        direction(Odd)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Nested, "Nested.numbers: an array of array is not on the wire"),
        (Unknown, "Unknown.number: name 'Int33' is not defined"),
        (TaggedRecords, "TaggedRecords.records: records cannot be tagged"),
        (BadDefault, "BadDefault.pair: the default of a struct is {} or None"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(cls: type[Struct], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fields(cls)


def test_shared_default_of_nested_structs_goes_all_the_way_down() -> None:
    inner: Any = default_struct(toys.Inner)
    assert (inner.number, inner.items, inner.flag) == (0, [], False)


def test_since_takes_both_ends() -> None:
    declared = since(2, default=0, until=4)
    assert (declared.first, declared.last) == (2, 4)
