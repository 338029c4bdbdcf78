"""How many partitions a large Produce may name."""

from __future__ import annotations

import pytest

from kbroker.api.produce_bounds import names_over
from kbroker.config.limits import PARTITIONS_PER_PRODUCE
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.requests import batch, produced
from tests.requests import produce as one
from tests.world import World

VERSIONS = (3, 8, 9, 12, 13)


def request(
    *partitions: int, records: bytes | None = b"r" * 200, transactional_id: str | None = None
) -> ProduceRequest:
    """So many partitions of one topic after the other."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(partition_data=[PartitionProduceData(index=at, records=records) for at in range(count)])
            for count in partitions
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [None, b"", b"r" * 70, b"r" * 20_000])
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_topics_and_partitions_are_counted(version: int, records: bytes | None, transactional_id: str | None) -> None:
    frame = memoryview(b"head" + request(3, 0, 4, records=records, transactional_id=transactional_id).encode(version))
    assert [names_over(most, frame, version, 4) for most in (9, 10)] == [True, False]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_cut_off_is_left_to_decoding(version: int) -> None:
    whole = request(2, 2).encode(version)
    assert not any(names_over(6, memoryview(whole[:size]), version, 0) for size in range(len(whole) + 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_more_partitions_than_anybody_has_end_the_connection(version: int) -> None:
    world = World()
    client = world.client()
    client.send(request(2 * PARTITIONS_PER_PRODUCE, records=None), version)
    assert "more elements than are taken" in client.closing


def test_a_large_batch_is_no_matter() -> None:
    world = World(message_max_bytes="5000000")
    world.create("t")
    answer = world.client().ask(one(records=batch(bytes(2_000_000))), 9)
    assert produced(answer).error_code == 0
