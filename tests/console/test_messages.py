"""Records found, followed and sent."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kbroker.console.cluster import Cluster, ConsoleError
from kbroker.console.messages import message, messages, produce, steps_of, tail
from kbroker.console.values import Values
from kbroker.security.client import ClientSecurity
from kbroker.testing import Broker
from tests.console.pages import Running

VALUES = Values()


@pytest.fixture(scope="module")
def cluster(shop: Broker) -> Cluster:
    return Cluster([("127.0.0.1", shop.port)], ClientSecurity())


def keys(found: dict[str, Any]) -> list[str]:
    return [each["key"]["text"] for each in found["records"]]


def test_one_is_found_by_its_key(cluster: Cluster) -> None:
    found = messages(cluster, VALUES, "orders", key="k7")
    assert keys(found) == ["k7"]
    assert found["complete"]


def test_the_newest_come_first_and_the_page_goes_on(cluster: Cluster) -> None:
    seen: list[str] = []
    resume = ""
    for _ in range(10):
        found = messages(cluster, VALUES, "orders", limit=100, resume=resume)
        seen += keys(found)
        resume = found["next"]
        if not resume:
            break
    assert len(seen) == 300
    assert set(seen) == {f"k{number}" for number in range(300)}


@pytest.mark.parametrize("limit", [7, 100, 500])
def test_the_oldest_come_first_each_once(cluster: Cluster, limit: int) -> None:
    seen: list[str] = []
    resume, start = "", "oldest"
    while True:
        found = messages(cluster, VALUES, "orders", start=start, limit=limit, resume=resume)
        seen += keys(found)
        resume = found["next"]
        if not resume:
            break
    assert len(seen) == 300
    assert set(seen) == {f"k{number}" for number in range(300)}


def test_what_is_in_a_value_is_found(cluster: Cluster) -> None:
    assert keys(messages(cluster, VALUES, "orders", value='"book 25"')) == ["k25"]
    assert keys(messages(cluster, VALUES, "orders", path="$.item.name", equals="book 25")) == ["k25"]
    assert keys(messages(cluster, VALUES, "orders", path="id", equals="25")) == ["k25"]
    assert keys(messages(cluster, VALUES, "orders", path="price", equals="12.5")) == ["k25"]
    assert keys(messages(cluster, VALUES, "orders", path="none", equals="25")) == []


def test_a_text_that_json_has_in_escapes_is_found(cluster: Cluster, shop: Broker) -> None:
    shop.create_topic("escaped")
    shop.produce("escaped", b'{"who": "\\u0061lice"}', b'{"who": "gr\xc3\xbcn"}', b'{"who": "bob"}')
    cluster.described(fresh=True)
    for who, offset in (("alice", 0), ("grün", 1), ("bob", 2)):
        found = messages(cluster, VALUES, "escaped", path="who", equals=who)
        assert [each["offset"] for each in found["records"]] == [offset]


def test_from_an_offset_and_from_a_time(cluster: Cluster) -> None:
    found = messages(cluster, VALUES, "orders", start="offset", at="98", partitions="1")
    assert [each["offset"] for each in found["records"]] == [98, 99]
    assert len(messages(cluster, VALUES, "orders", start="ago", at="1h", limit=500)["records"]) == 300
    assert messages(cluster, VALUES, "orders", start="time", at="2100-01-01T00:00")["records"] == []


def test_a_search_whose_time_is_up_says_where_it_was_and_goes_on(cluster: Cluster) -> None:
    found = messages(cluster, VALUES, "orders", start="oldest", key="none", seconds=0.1)
    assert found["records"] == []
    assert found["complete"] or found["next"]


def test_a_partition_that_cannot_be_read_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbroker.console import messages as module

    real = module.ends

    def without_one(*given: Any) -> Any:
        return tuple({place: at for place, at in each.items() if place[1] != 1} for each in real(*given))

    monkeypatch.setattr(module, "ends", without_one)
    found = messages(cluster, VALUES, "orders", limit=500)
    assert (found["unread"], found["complete"]) == ([1], False)


def test_what_is_sent_comes_back_with_its_headers(cluster: Cluster) -> None:
    sent = produce(cluster, "empty", value="a\r\nb", key="k", headers="source: web\nn: 1")
    found = message(cluster, VALUES, "empty", sent["partition"], sent["offset"])
    assert found["raw"]["value"] == "a\nb"
    assert found["raw"]["headers"] == "source: web\nn: 1"
    assert keys(messages(cluster, VALUES, "empty", header="source=web")) == ["k"]
    assert keys(messages(cluster, VALUES, "empty", header="source")) == ["k"]
    assert keys(messages(cluster, VALUES, "empty", header="source=shop")) == []


def test_a_tombstone_and_bytes_are_sent(cluster: Cluster) -> None:
    sent = produce(cluster, "empty", key="gone", tombstone=True)
    assert message(cluster, VALUES, "empty", 0, sent["offset"])["value"]["form"] == "null"
    sent = produce(cluster, "empty", value="00 ff", encoding="hex")
    found = message(cluster, VALUES, "empty", 0, sent["offset"])
    assert (found["value"]["form"], found["value"]["text"]) == ("hex", "00ff")


def test_a_key_goes_where_java_sends_it(cluster: Cluster) -> None:
    for key, partition in (("a", 0), ("k1", 0), ("k2", 2)):
        assert produce(cluster, "orders", value="x", key=key)["partition"] in range(3), partition
    assert produce(cluster, "orders", value="x", partition="2")["partition"] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": "{", "encoding": "json"}, "the value is no JSON"),
        ({"value": "0", "encoding": "hex"}, "the value is not hex"),
        ({"headers": "source"}, "write a header as name: value"),
        ({"partition": "9"}, "topic orders has no partition 9"),
        ({"partition": "x"}, "partition=x: write a number"),
    ],
)
def test_what_cannot_be_sent_is_told(cluster: Cluster, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConsoleError, match=said):
        produce(cluster, "orders", **given)


def test_a_tail_brings_what_has_come_since(cluster: Cluster) -> None:
    begun = tail(cluster, VALUES, "empty")
    assert begun["records"] == []
    produce(cluster, "empty", value="one", key="a")
    produce(cluster, "empty", value="two", key="b")
    found = tail(cluster, VALUES, "empty", resume=begun["next"])
    assert [each["value"]["text"] for each in found["records"]] in (["two", "one"], ["one"])
    assert keys(tail(cluster, VALUES, "empty", resume=begun["next"], key="b")) == ["b"]


def test_steps_of_a_path() -> None:
    assert steps_of("$.order.items[0]['a name']") == ["order", "items", 0, "a name"]
    assert steps_of("order") == ["order"]
    with pytest.raises(ConsoleError, match="is no path"):
        steps_of("$.a..b")


def test_the_form_of_a_page_sends(pages: Running) -> None:
    pages.get("/messages", topic="empty")
    answer = pages.post("/messages/produce", topic="empty", value="by hand", key="")
    assert answer.status == 200
    assert "Produce: done." in answer.text
    assert "by hand" in pages.get("/messages", topic="empty").text


def test_a_compressed_batch_is_looked_into(cluster: Cluster, shop: Broker) -> None:
    from kbroker.console.messages import BY_NAME
    from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
    from protocol.records import Record
    from protocol.records.content import build_batch

    now_ms = int(time.time() * 1000)
    records = [Record(at, now_ms, b"z%d" % at, json.dumps({"n": at}).encode()) for at in range(50)]
    batch = bytes(build_batch(records, base_offset=0, codec_id=1))
    data = TopicProduceData(name="zipped", partition_data=[PartitionProduceData(index=0, records=batch)])
    shop.create_topic("zipped")
    cluster.described(fresh=True)
    cluster.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), None, BY_NAME)
    assert keys(messages(cluster, VALUES, "zipped", key="z42")) == ["z42"]
    assert keys(messages(cluster, VALUES, "zipped", value='"n": 42')) == ["z42"]
