"""Messages told field by field, whole and cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from protocol.apis import BY_NAME
from protocol.explain import Told, describe
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.schema import fields_at

FETCH = FetchRequest(
    max_wait_ms=500,
    min_bytes=1,
    cluster_id="c",
    topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=3, fetch_offset=7, partition_max_bytes=9)])],
)


def by_name(told: list[Told]) -> dict[str, Any]:
    return {each.name: each.value for each in told}


@pytest.mark.parametrize("version", range(19))
def test_every_field_is_told_with_its_place(version: int) -> None:
    request = FETCH
    data = request.encode(version)
    told, why = describe(FetchRequest, version, b"head" + data, 4)
    assert why == ""
    found = by_name(told)
    untagged = [field for field in fields_at(FetchRequest, version) if field.tag is None]
    for field in untagged:
        if field.type.struct is None and field.type.kind != "array":
            assert found[field.name] == getattr(request, field.name), field.name
    if version >= 12:
        assert found["cluster_id"] == "c"
    partition = by_name(by_name(found["topics"][0])["partitions"][0])
    assert (partition["partition"], partition["fetch_offset"]) == (3, 7)
    plain = [each for each in told if each.name in {field.name for field in untagged}]
    assert plain[0].at == 4
    assert all(before.at + before.size == after.at for before, after in itertools.pairwise(plain))


def test_what_is_cut_is_told_as_far_as_it_goes() -> None:
    part = PartitionProduceData(index=5, records=b"r" * 100)
    request = ProduceRequest(acks=-1, timeout_ms=9, topic_data=[TopicProduceData(name="t", partition_data=[part])])
    data = request.encode(9)
    whole = describe(ProduceRequest, 9, data)[0]
    for size in range(len(data)):
        told, why = describe(ProduceRequest, 9, data[:size])
        assert why
        assert [each.name for each in told] == [each.name for each in whole][: len(told)]
    told, why = describe(ProduceRequest, 9, data[:-40])
    assert "are left" in why
    partition = by_name(by_name(by_name(told)["topic_data"][0])["partition_data"][0])
    assert partition["index"] == 5
    assert set(partition["records"]) == {ord("r")}


def test_a_hostile_count_costs_nothing() -> None:
    api = BY_NAME["Metadata"]
    told, why = describe(api.request, 0, b"\x7f\xff\xff\xff" + b"\0\1a")
    assert why
    assert len(by_name(told)["topics"]) <= 2


def test_unknown_tags_are_told() -> None:
    request = ApiVersionsRequest(client_software_name="n", client_software_version="v")
    request.unknown_tags = {1000: b"x"}
    assert by_name(describe(ApiVersionsRequest, 3, request.encode(3))[0])["tag 1000"] == b"x"
