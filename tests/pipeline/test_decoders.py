"""Values of a schema registry's formats as columns: each format by itself, without Spark and without a registry."""

from __future__ import annotations

import io
import json
import random
import struct
from datetime import date
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kbroker.pipeline import protobuf
from kbroker.pipeline.avro import Avro
from kbroker.pipeline.framed import FramedDecoder, Known, NewSchemaError, Schema, compiled
from kbroker.pipeline.json_schema import JsonSchema
from kbroker.pipeline.protobuf import Protobuf
from kbroker.pipeline.shapes import Bodies, MisfitError, ddl, merged


def bodies(values: list[bytes]) -> Bodies:
    import numpy as np

    ends = np.cumsum([len(each) for each in values], dtype=np.int64)
    starts = ends - np.array([len(each) for each in values], np.int64)
    return Bodies(np.frombuffer(b"".join(values), np.uint8), starts, ends)


def avro_bytes(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


# ---- Avro

EVERYTHING = record(
    n="null",
    b="boolean",
    i="int",
    l="long",
    f="float",
    d="double",
    y="bytes",
    s="string",
    fixed={"type": "fixed", "name": "F", "size": 3},
    e={"type": "enum", "name": "E", "symbols": ["A", "B"]},
    a={"type": "array", "items": ["null", "long"]},
    m={"type": "map", "values": {"type": "array", "items": "string"}},
    o=["string", "null"],
    wide=["null", "int", "double"],
    sub={"type": "record", "name": "S", "fields": [{"name": "x", "type": ["null", "F"]}]},
    subs={"type": "array", "items": "S"},
    bare={"type": "record", "name": "N", "fields": []},
)


def anything(rng: random.Random) -> dict[str, Any]:
    def text() -> str:
        return "".join(rng.choice("aé漢𝄞") for _ in range(rng.randrange(4)))

    def some(make: Any, most: int = 4) -> list[Any]:
        return [make() for _ in range(rng.randrange(most))]

    def sub() -> dict[str, Any]:
        return {"x": rng.choice([None, b"xyz"])}

    number = rng.choice([0, -1, 63, -65, 2**31 - 1, -(2**31)])
    return {
        "n": None,
        "b": rng.random() < 0.5,
        "i": number,
        "l": rng.choice([number, 2**63 - 1, -(2**63)]),
        "f": struct.unpack("f", struct.pack("f", rng.uniform(-9, 9)))[0],
        "d": rng.choice([0.0, 1e300, float("inf")]),
        "y": rng.randbytes(rng.randrange(5)),
        "s": text(),
        "fixed": rng.randbytes(3),
        "e": rng.choice("AB"),
        "a": some(lambda: rng.choice([None, 7]), 90 if rng.random() < 0.05 else 4),
        "m": {text() + str(n): some(text) for n in range(rng.randrange(3))},
        "o": rng.choice([None, text()]),
        "wide": rng.choice([None, 3, 2.5]),
        "sub": sub(),
        "subs": some(sub),
        "bare": {},
    }


def shown(value: dict[str, Any]) -> dict[str, Any]:
    """A value as its column has it."""
    wide = value["wide"] and float(value["wide"])
    return {**value, "m": list(value["m"].items()), "wide": wide, "bare": "{}"}


def test_avro_of_any_kind_is_what_fastavro_has_written() -> None:
    rng = random.Random(7)
    values = [anything(rng) for _ in range(300)]
    found, reasons = Avro(json.dumps(EVERYTHING), {}).decoded(bodies([avro_bytes(EVERYTHING, each) for each in values]))
    found.validate(full=True)
    assert (found.to_pylist(), reasons) == ([shown(each) for each in values], {})


def test_avro_that_is_cut_off_or_has_more_has_a_reason_and_leaves_the_others() -> None:
    sound = shown(value := anything(random.Random(1)))
    whole = avro_bytes(EVERYTHING, value)
    broken = [whole[:length] for length in range(len(whole))]
    found, reasons = Avro(json.dumps(EVERYTHING), {}).decoded(bodies([whole, *broken, whole + b"\0", whole]))
    assert found.to_pylist() == [sound, *[None] * (len(broken) + 1), sound]
    assert sorted(reasons) == list(range(1, len(broken) + 2))
    assert reasons[len(broken) + 1] == "bytes are left behind it"


def test_random_bytes_are_avro_where_fastavro_says_so() -> None:
    """Where both take them they are the same; fastavro takes some that are none: more bytes, a boolean of 2."""
    rng, parsed = random.Random(3), fastavro.parse_schema(EVERYTHING)
    whole = [bytearray(avro_bytes(EVERYTHING, anything(rng))) for _ in range(400)]
    for each in whole:
        each[rng.randrange(len(each))] ^= 1 << rng.randrange(8)
    found, reasons = Avro(json.dumps(EVERYTHING), {}).decoded(bodies([bytes(each) for each in whole]))
    for row, (each, mine) in enumerate(zip(whole, found.to_pylist(), strict=True)):
        if mine is not None:
            assert repr(mine) == repr(shown(fastavro.schemaless_reader(io.BytesIO(each), parsed, None)))
        else:
            assert row in reasons


@pytest.mark.parametrize(
    "kind", ["int", "long", "float", "double", {"type": "long", "logicalType": "timestamp-micros"}]
)
def test_long_arrays_of_numbers_are_read_in_a_step(kind: Any) -> None:
    """Item by item a record with a million of them took a minute."""
    plain = kind if isinstance(kind, str) else "long"
    rng = random.Random(2)
    values = [[rng.randrange(-(2**31), 2**31) for _ in range(count)] for count in (70, 0, 3, 1000, 65)]
    values = (
        [[struct.unpack("f", struct.pack("f", each))[0] for each in one] for one in values]
        if kind == "float"
        else values
    )
    whole = [avro_bytes(record(a={"type": "array", "items": plain}), {"a": each}) for each in values]
    decoder = Avro(json.dumps(record(a={"type": "array", "items": kind})), {})
    broken = [whole[3][:-2], whole[3][:100], whole[3][:-1] + b"\x02", whole[0] + b"\0"]
    found, reasons = decoder.decoded(bodies([*whole, *broken, whole[0]]))
    lists = found.field("a").cast(pa.list_(pa.int64())) if plain != kind else found.field("a")
    assert lists.to_pylist() == [*values, *[None] * 4, values[0]]
    assert sorted(reasons) == [5, 6, 7, 8]
    if kind in ("int", "long"):
        far = bytearray(avro_bytes(record(a={"type": "array", "items": "long"}), {"a": [1] * 100}))
        far[10:21] = b"\xff" * 10 + b"\x01"  # longer than any number
        assert decoder.decoded(bodies([bytes(far), whole[0]]))[0].to_pylist() == [None, {"a": values[0]}]


LOGICAL = [
    ({"type": "int", "logicalType": "date"}, date(1969, 12, 31), "date"),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_001, "timestamp"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 5, "timestamp_ntz"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1234567.05"), "decimal(9,2)"),
    ({"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 5}, Decimal(-7), "decimal(5,0)"),
    ({"type": "string", "logicalType": "uuid"}, "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "string"),
    ({"type": "int", "logicalType": "time-millis"}, 5, "bigint"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "column"), LOGICAL)
def test_logical_types_of_avro(kind: Any, value: Any, column: str) -> None:
    written = {name: each for name, each in kind.items() if name != "logicalType"} if isinstance(value, int) else kind
    decoder = Avro(json.dumps(record(x=kind)), {})
    found, reasons = decoder.decoded(bodies([avro_bytes(record(x=written), {"x": value})]))
    (got,) = (
        found.field("x").cast(pa.int64()).to_pylist()
        if column.startswith("timestamp")
        else found.field("x").to_pylist()
    )
    times = 1000 if "millis" in str(kind) and column == "timestamp" else 1
    assert (got, reasons, ddl(decoder.kind)) == (value * times if times > 1 else value, {}, f"struct<`x`: {column}>")


def test_what_has_no_place_in_a_column_has_a_reason() -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    kinds = record(t=time, d={"type": "bytes", "logicalType": "decimal", "precision": 2})
    plain = record(t="long", d="bytes")
    values = [avro_bytes(plain, {"t": t, "d": d}) for t, d in [(2**62, b"\1"), (1, b"\x7f"), (1, b"\xff" * 40)]]
    found, reasons = Avro(json.dumps(kinds), {}).decoded(bodies(values))
    assert reasons == {0: "no timestamp is so far away", 1: "a decimal has too many digits"}
    assert found[2].as_py()["d"] == Decimal(-1)


@pytest.mark.parametrize(
    "schema",
    ["{", '"nosuch"', record(a="int", A="int"), {**record(), "fields": [{"name": "r", "type": ["null", "R"]}]}],
)
def test_a_schema_that_has_no_columns_says_why(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"no Avro|by case alone|within itself"):
        Avro(schema if isinstance(schema, str) else json.dumps(schema), {})


def test_avro_that_refers_to_other_schemas() -> None:
    other = {"type": "record", "name": "c.Money", "fields": [{"name": "units", "type": "long"}]}
    mine = record(price="c.Money")
    assert (
        ddl(Avro(json.dumps(mine), {"c.Money": json.dumps(other)}).kind) == "struct<`price`: struct<`units`: bigint>>"
    )


# ---- Protobuf

PROTO = """syntax = "proto3"; package x;
import "c/money.proto"; import "google/protobuf/timestamp.proto";
message A {
  message B { int32 q = 1; A up = 2; }
  enum K { ZERO = 0; ONE = 1; }
  int64 id = 1; optional string note = 2; c.Money price = 3; google.protobuf.Timestamp at = 4;
  map<string, float> by = 5; repeated K kinds = 6; B b = 7; uint64 large = 8;
  oneof either { int32 left = 9; bytes right = 10; } Tree tree = 11;
}
message Ping {}
message Tree { repeated Tree leaves = 1; }
"""
MONEY = 'syntax = "proto3"; package c; message Money { int64 units = 1; }'


@pytest.fixture(scope="module")
def descriptors() -> bytes:
    return protobuf.compiled(PROTO, {"c/money.proto": MONEY})


def message_class(descriptors: bytes, name: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def test_messages_of_protobuf_are_columns(descriptors: bytes) -> None:
    made = message_class(descriptors, "x.A")
    message = made(id=5, kinds=[1, 9], large=2**64 - 1, left=0)
    message.at.seconds, message.by["k"], message.price.units = 253_402_300_799, 0.5, 7
    message.b.up.id = 3
    found, reasons = Protobuf(descriptors, (0,)).decoded(
        bodies([message.SerializeToString(), b"\xff", b"", b"\x12\1\xff"])
    )
    first = found[0].as_py()
    assert first.pop("at").year == 9999
    assert first == {
        "id": 5, "note": None, "price": {"units": 7}, "by": [("k", 0.5)], "kinds": ["ONE", "9"], "b": {"q": 0},
        "large": Decimal(2**64 - 1), "left": 0, "right": None,
    }  # fmt: skip
    assert found[2].as_py()["id"] == 0
    assert reasons.keys() == {1, 3}
    assert "Wire format was corrupt" in reasons[1]


def test_other_messages_of_the_same_schema(descriptors: bytes) -> None:
    assert ddl(Protobuf(descriptors, (0, 0)).kind).startswith("struct<`q`: bigint, `up`: struct<`id`: bigint")
    assert Protobuf(descriptors, (1,)).decoded(bodies([b""]))[0].to_pylist() == ["{}"]
    with pytest.raises(ValueError, match=r"no message \[5\]"):
        Protobuf(descriptors, (5,))


@pytest.mark.parametrize(("text", "names"), [("message", []), ('import "c";', []), ("", ["../c"]), ("", ["/c"])])
def test_what_is_no_schema_of_protobuf_says_why(text: str, names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no Protobuf|no name of a file"):
        protobuf.compiled(text, dict.fromkeys(names, ""))


# ---- JSON Schema

JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"oneOf": [{"type": "null"}, {"type": "string", "minLength": 2}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "any": {},
        "by": {"type": "object", "additionalProperties": {"type": "number"}},
        "up": {"$ref": "#"},
        "other": {"$ref": "other.json"},
    },
    "required": ["id"],
    "$defs": {"tag": {"type": "object", "properties": {"on": {"type": ["null", "boolean"]}}}},
}


def test_values_of_a_json_schema_are_columns() -> None:
    decoder = JsonSchema(
        json.dumps(JSON), {"other.json": '{"type": "object", "properties": {"z": {"type": "string"}}}'}
    )
    full = {"id": 1.0, "name": "ab", "tags": [{"on": True}, {}], "any": {"q": [1]}, "by": {"k": 1}, "up": {"id": 2}}
    values = [
        json.dumps({**full, "more": 1}).encode(),
        b'{"id": 2}',
        b'{"id": "x"}',
        b"{}",
        b"{",
        b'{"id": 1, "name": "a"}',
    ]
    values += [
        b'{"id": 1, "other": {"z": 1}}',
        b'{"id": %d}' % 2**70,
        b'{"id": 1}{}',
        b'{"id": 1, "any": NaN}',
        b"\xff",
    ]
    values += [b'{"id": 1, "name": "\\ud800x"}', b"[" * 100_000]
    found, reasons = decoder.decoded(bodies(values))
    assert found[0].as_py() == {
        "id": 1, "name": "ab", "tags": [{"on": True}, {"on": None}], "any": '{"q": [1]}', "by": [("k", 1.0)],
        "up": '{"id": 2}', "other": None,
    }  # fmt: skip
    assert found[1].as_py()["id"] == 2
    assert sorted(reasons) == list(range(2, len(values)))
    assert (reasons[2], reasons[3]) == ('"x" is not of type "integer"', '"id" is a required property')


def test_nothing_is_fetched_that_a_json_schema_refers_to() -> None:
    with pytest.raises(ValueError, match=r"no JSON Schema: .*http://127.0.0.1:1/x.json"):
        JsonSchema('{"$ref": "http://127.0.0.1:1/x.json"}', {})


# ---- columns of several schemas


def test_a_column_has_room_for_all_schemas_or_says_where_it_has_not() -> None:
    one = Avro(
        json.dumps(record(a="int", s={"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}]})), {}
    )
    two = Avro(
        json.dumps(record(s={"type": "record", "name": "S", "fields": [{"name": "y", "type": "float"}]}, b="long")), {}
    )
    both = merged(one.kind, two.kind, "value")
    assert ddl(both) == "struct<`a`: bigint, `s`: struct<`x`: bigint, `y`: double>, `b`: bigint>"
    found, _ = one.decoded(bodies([avro_bytes(record(a="int", x="int"), {"a": 1, "x": 2})]))
    assert found.cast(both).to_pylist() == [{"a": 1, "s": {"x": 2, "y": None}, "b": None}]
    with pytest.raises(MisfitError, match=r"value\.a is string and the column is bigint"):
        merged(both, Avro(json.dumps(record(a="string")), {}).kind, "value")


# ---- framing


def rows(*values: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "reason": pa.array([None] * len(values), pa.string())}
    )


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_records_find_their_schema_by_the_framing(descriptors: bytes) -> None:
    avro, proto = Schema(7, "AVRO", json.dumps(record(id="long"))), Schema(8, "PROTOBUF", PROTO, (), descriptors)
    kinds = [compiled(avro, ()).kind, compiled(proto, (0,)).kind]
    usable = dict.fromkeys([(7, ()), (8, (0,))])
    known = Known(merged(*kinds, "value"), usable, {(9, (-1,)): "schema id 9 is not in the registry"})
    decoder = FramedDecoder({7: avro, 8: proto}, {"value": known}, asks=False)
    values = [
        framed(8, b"\0\x08\x05"),
        framed(7, b"\x0a"),
        None,
        framed(8, b"\2\0\x08\6"),
        framed(9, b""),
        b"{}",
        b"\0\0",
        b"[1, 2, 3]",
    ]
    values += [framed(8, b"\2"), framed(8, b"\xff" * 9), framed(10, b""), framed(7, b"")]
    found = decoder.decoded(rows(*values).slice(0))
    assert [each and each["id"] for each in found.column("value_data").to_pylist()] == [5, 5, None, 6] + [None] * 8
    assert found.column("value_schema").to_pylist() == [8, 7, None, 8, 9, None, None, None, 8, 8, 10, 7]
    reasons = found.column("reason").to_pylist()
    assert reasons[:4] == [None] * 4
    assert reasons[4:8] == [
        "value: schema id 9 is not in the registry",
        "value: it has 2 bytes, fewer than the framing of a schema registry",
        "value: it has 2 bytes, fewer than the framing of a schema registry",
        "value: it has no framing of a schema registry: it begins with byte 91, not 0",
    ]
    assert reasons[8] == reasons[9] == "value: it does not say which message of its schema it is"
    assert reasons[10].startswith("value: schema id 10 was not asked for")
    assert reasons[11] == "value: no AVRO of schema id 7: it ends too early"
    part = decoder.decoded(rows(*values).slice(1, 3))
    assert [each and each["id"] for each in part.column("value_data").to_pylist()] == [5, None, 6]


def test_a_schema_that_is_not_known_is_asked_for() -> None:
    decoder = FramedDecoder({}, {"value": Known(None, {}, {})}, asks=True)
    assert decoder.decoded(rows(b"x", None)).schema.names == ["value", "reason", "value_schema"]
    with pytest.raises(NewSchemaError):
        decoder.decoded(rows(framed(3, b"")))
    assert list(decoder.unknown(rows(framed(3, b""), b"x", None, framed(3, b"")))) == [("value", 3, ())] * 2
