"""`kbroker consume` told as kcat and kafka-console-consumer.sh are: from where to where, which topics, printed how."""

from __future__ import annotations

import json
import re
import struct

import pytest

from kbroker.cli._reader import INTERNAL_TOPICS
from kbroker.cli._unpacking import unpacker
from kbroker.metadata import cache
from tests.cli.asking import Ask


@pytest.fixture
def ten(ask: Ask) -> str:
    """A topic of two partitions, with the values 0 to 4 and 5 to 9, each written at that time in ms."""
    from confluent_kafka import Producer

    bootstrap = json.loads(ask("cluster", "--describe", "--json")[1])["brokers"][0]
    if "ten" not in ask("topics", "--list")[1].split():
        ask("topics", "--create", "--topic", "ten", "--partitions", "2")
        producer = Producer({"bootstrap.servers": f"{bootstrap['host']}:{bootstrap['port']}"})
        for at in range(10):
            producer.produce("ten", str(at), key=f"k{at}", partition=at // 5, timestamp=1000 + at)
        producer.flush()
    return "ten"


def values(ask: Ask, *words: str) -> str:
    code, out, err = ask("consume", *words)
    assert (code, err) == (0, "")
    return "".join(sorted(out.split()))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("-o e@1003", "012"),
        ("-o s@1002 -o e@1007", "23456"),
        ("-o e@1007 -o 1 -p 0", "1234"),
        ("-o e@2999-01-01", "0123456789"),
        ("-o s@1007 -o e@1002", ""),
        ("--offset earliest -e", "0123456789"),
        ("--offset latest -e", ""),
        ("--consumer-property auto.offset.reset=earliest -e", "0123456789"),
        ("-X auto.offset.reset=earliest -o 3 -p 0 -e", "34"),
        ("--from-beginning --timeout-ms 1500", "0123456789"),
        ("--timeout-ms 100", ""),
    ],
)
def test_what_is_read_begins_and_ends_as_told(ask: Ask, ten: str, words: str, read: str) -> None:
    assert values(ask, "-t", ten, *words.split()) == read


def test_a_stop_counts_what_is_printed_alone(ask: Ask, ten: str) -> None:
    assert len(values(ask, ten, "-o", "e@1007", "-c", "6")) == 6


def test_topics_are_read_by_a_pattern_but_not_those_of_the_brokers(ask: Ask) -> None:
    for topic in ("like-1", "like-2"):
        ask("produce", "-t", topic, stdin=topic[-1:].encode())
    assert values(ask, "--include", "like-.", "-o", "beginning", "-e") == "12"
    assert values(ask, "-t", "^like-", "-t", "like-1", "-o", "beginning", "-e") == "12"
    assert values(ask, "^like", "-G", "by-pattern", "-o", "beginning", "-c", "2") == "12"
    assert "__consumer_offsets" in ask("topics", "--list", "--include-internal")[1]
    assert ask("consume", "--include", "__.*", "-e")[2].endswith("matches __.*\n")
    assert set(INTERNAL_TOPICS) == cache.INTERNAL_TOPICS


def test_properties_say_what_of_a_record_is_printed(ask: Ask) -> None:
    ask("produce", "-t", "printed", "-k", "key", "-H", "h=1", "-H", "n", stdin=b"value\n")
    ask("produce", "-t", "printed", "-Z", stdin=b"\n")
    words = ["print.key=true", "print.partition=true", "print.offset=true", "print.headers=true", "key.separator=|"]
    given = [word for each in words for word in ("--property", each)]
    first, second = ask("consume", "printed", "-o", "beginning", "-e", *given)[1].splitlines()
    assert first == "Partition:0|Offset:0|h:1,n:null|key|value"
    assert second == "Partition:0|Offset:1|NO_HEADERS|null|null"
    given = [*given, "--formatter-property", "print.timestamp=true", "--formatter-property", "print.value=false"]
    out = ask("consume", "printed", "-o", "beginning", "-c", "1", *given)[1]
    assert re.fullmatch(r"CreateTime:\d{13}\|Partition:0\|Offset:0\|h:1,n:null\|key\n", out)


def test_kcats_word_for_unbuffered_is_taken(ask: Ask, ten: str) -> None:
    assert values(ask, "-u", "-q", "-t", ten, "-o", "0", "-c2", "-p", "0") == "01"


def test_null_is_told_from_nothing(ask: Ask) -> None:
    ask("produce", "-t", "nulls", "-Z", "-K", ":", stdin=b":\n")
    ask("produce", "-t", "nulls", "-K", ":", stdin=b":\n")
    assert ask("consume", "nulls", "-o", "0", "-e", "-Z", "-K", "|")[1] == "NULL|NULL\n|\n"
    assert ask("consume", "nulls", "-o", "0", "-e", "-Z", "-f", "%k,%s,%S,")[1] == "NULL,NULL,-1,,,0,"
    assert ask("consume", "nulls", "-o", "0", "-e", "-Z")[1] == "NULL\n\n"


@pytest.mark.parametrize(
    "how",
    [
        "-s value=q -s key=i",
        "--property key.deserializer=org.apache.kafka.common.serialization.IntegerDeserializer "
        "--property value.deserializer=LongDeserializer --property print.key=true --property key.separator=|",
        "--key-deserializer IntegerDeserializer --value-deserializer LongDeserializer",
    ],
)
def test_numbers_are_printed_as_text(ask: Ask, how: str) -> None:
    if "numbers" not in ask("topics", "--list")[1].split():
        ask("produce", "-t", "numbers", "-K", "||", "-D", "\n\n", stdin=struct.pack(">i2sq", 7, b"||", -1 << 40))
    delimited = () if "print.key" in how else ("-K", "|")
    assert ask("consume", "numbers", "-o", "0", "-e", *how.split(), *delimited)[1] == f"7|{-1 << 40}\n"


def test_bytes_that_are_not_of_the_form_are_named(ask: Ask) -> None:
    ask("produce", "-t", "no-number", stdin=b"abc\n")
    code, out, err = ask("consume", "no-number", "-o", "0", "-e", "-s", "q")
    assert (code, out, err) == (2, "", "kbroker: no-number-0 at offset 0: value: its 3 bytes are no q\n")


@pytest.mark.parametrize(
    ("form", "data", "text"),
    [
        ("<h", b"\x01\x00rest", b"1"),
        (">H H", b"\xff\xff\x00\x02", b"65535 2"),
        ("bcs", b"\xffxyz", b"-1xyz"),
        ("DoubleDeserializer", struct.pack(">d", 0.5), b"0.5"),
        ("StringDeserializer", b"\xff", b"\xff"),
    ],
)
def test_a_form_says_what_bytes_mean(form: str, data: bytes, text: bytes) -> None:
    assert unpacker(form)(data) == text


@pytest.mark.parametrize(("form", "data"), [("q", b"1234567"), ("i$", b"12345"), ("b$", b"")])
def test_bytes_of_another_size_are_refused(form: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"^its {len(data)} bytes are no "):
        unpacker(form)(data)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("consume -t t -o 1 -o 2", "-o: allowed: one place to begin at, and one e@ to stop at"),
        ("consume -t t -o e@soon", "-o e@soon: allowed: e@MILLISECONDS, e@ and YYYY-MM-DDThh:mm, -1h"),
        ("consume -t t -G g -o e@5", "-o e@...: a group goes on for ever, or to the end: -e"),
        ("consume --include ( -e", "(: not a regular expression: "),
        ("consume -t ^no-such -e", "no topic at 127.0.0.1:"),
        ("consume -t t --property print.kye=true", "--property print.kye: allowed: print.timestamp, "),
        ("consume -t t --property print.key=yes", "--property print.key=yes: allowed: true, false"),
        ("consume -t t --property print.key", "--property print.key: write it as KEY=VALUE"),
        ("consume -t t --property print.key=true -J", "one of --format, --key-delimiter, --json and --property"),
        ("consume -t t -s avro", "avro: allowed: letters of <>bBhHiIqQfdcs$, or ByteArray, "),
        ("consume -t t -s kye=q", "-s kye=q: write it as key=FORM, value=FORM or FORM"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: str, line: str) -> None:
    ask("topics", "--create", "--topic", "t", "--if-not-exists")
    code, out, err = ask(*words.split(), stdin=b"")
    assert err.startswith(f"kbroker: {line}"), err
    assert (code, out, err.count("\n")) == (2, "", 1)
