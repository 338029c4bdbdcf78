"""Messages that exist for tests only: between them they use every wire type and every kind of declaration."""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Struct,
    UInt16,
    UInt32,
    Uuid,
    plain,
    since,
    tagged,
    until,
)


class Everything(Message, versions="0-5", flexible="3+"):
    """Every wire type; not flexible up to 2."""

    flag: Bool
    tiny: Int8
    small: Int16
    port: UInt16
    number: Int32
    count: UInt32
    large: Int64
    ratio: Float64
    id: Uuid
    text: String
    text_or_none: String | None
    content: Bytes
    content_or_none: Bytes | None = plain(default=None)
    flags: Array[Bool]
    numbers: Array[Int32]
    numbers_or_none: Array[Int64] | None
    ids: Array[Uuid]
    names: Array[String]
    names_or_none: Array[String] | None
    contents: Array[Bytes]
    inner: Inner
    inner_or_none: Inner | None
    items: Array[Item]
    items_or_none: Array[Item] | None = plain(default=[])


class Inner(Struct):
    """A struct as a field, with an array of its own."""

    number: Int32
    items: Array[Item]
    flag: Bool


class Item(Struct):
    """An element that is different in every version."""

    name: String = until(1, default="", ignorable=True)
    id: Uuid = since(2, default=ZERO_UUID, ignorable=True)
    number: Int16
    middle: Int32 = since(1, default=7, until=4, ignorable=True)


class Versioned(Message, api=7, versions="0-4", flexible="2+"):
    """Fields that come and go, and refuse to be dropped."""

    early: Int32 = until(1, default=5)
    late: String = since(1, default="x")
    late_list: Array[Int32] = since(1, default=[])
    late_struct: Pair = since(3, default={})
    dropped: Int64 = since(4, default=-1, ignorable=True)
    narrow: String | None = plain(nullable="3+", default="")
    narrow_list: Array[Int32] | None = plain(nullable="1-2", default=[])


class Pair(Struct):
    """Two numbers."""

    left: Int32 = plain(default=-1)
    right: Int64 = plain(default=-1)


class Tagged(Message, versions="0-2", flexible="1+"):
    """Tagged fields of every kind, out of order, some of later versions; one struct in an array has some too."""

    number: Int32 = plain(default=0)
    text: String = tagged(4, since=1, default="")
    text_or_none: String | None = tagged(0, since=1, default="so")
    none_or_text: String | None = tagged(2, since=1, default=None)
    flag: Bool = tagged(1, since=1, default=True)
    id: Uuid = tagged(3, since=1, default=ZERO_UUID)
    pair: Pair = tagged(9, since=1, default={})
    absent_or_pair: Pair | None = tagged(10, since=1, default=None)
    items: Array[TaggedItem] = tagged(5, since=1, default=[])
    ids: Array[Uuid] = tagged(6, since=2, default=[], ignorable=True)
    large: Int64 = tagged(300, since=2, default=-1)
    inside: Array[TaggedItem]


class TaggedItem(Struct):
    """An element with tags."""

    name: String
    pair: Pair = tagged(0, since=1, default={})
    more: Array[String] = tagged(1, since=1, default=[], ignorable=True)


class Carrier(Message, api=1, versions="0-2", flexible="1+"):
    """Records between other fields: read as views."""

    name: String
    note: String | None
    content: Bytes
    loads: Array[Load]
    last: Records | None
    end: Int8


class Load(Struct):
    """Records that must be there."""

    number: Int32
    records: Records


class Empty(Message, versions="0-1", flexible="1+"):
    """No fields at all."""


class OfNumbers(Message, versions="0-1", flexible="1+"):
    """An array of fixed-size primitives."""

    values: Array[Int32]


class OfIds(Message, versions="0-1", flexible="1+"):
    """An array of the largest primitives."""

    values: Array[Uuid]


class OfNames(Message, versions="0-1", flexible="1+"):
    """An array of what has a length of its own."""

    values: Array[String]


class OfPairs(Message, versions="0-1", flexible="1+"):
    """An array of structs."""

    values: Array[Pair]


ALL: tuple[type[Message], ...] = (Everything, Versioned, Tagged, Carrier, Empty)
