"""What is written into the metadata store, byte for byte, and what is read from older and other brokers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.metadata.store import (
    Assignment,
    BrokerInfo,
    Endpoint,
    LeaderIsr,
    SupportedFeature,
    TopicInfo,
    decode_broker,
    decode_cluster_id,
    decode_config,
    decode_config_change,
    decode_controller,
    decode_features,
    decode_isr_change,
    decode_log_dir_event,
    decode_producer_id_block,
    decode_state,
    decode_topic,
    decode_uuid,
    encode_broker,
    encode_cluster_id,
    encode_config,
    encode_config_change,
    encode_controller,
    encode_features,
    encode_producer_id_block,
    encode_state,
    encode_topic,
    encode_uuid,
    isr_without,
)
from kbroker.ports import Stat

STAT = Stat(czxid=42, mzxid=42, version=7, children_version=0, session=1)
PLAIN = BrokerInfo(3, (Endpoint("PLAINTEXT", 0, "h", 9092),), None, 42)
IDS = st.lists(st.integers(0, 1000), unique=True, max_size=5).map(tuple)


def test_ids_are_written_as_kafka_writes_them() -> None:
    assert encode_uuid(bytes(16)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert encode_uuid(bytes(range(240, 256))) == "8PHy8_T19vf4-fr7_P3-_w"


@given(st.binary(min_size=16, max_size=16))
def test_ids_come_back(value: bytes) -> None:
    assert decode_uuid(encode_uuid(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 44])
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(ValueError, match=r"16 bytes|Incorrect padding"):
        decode_uuid(text)


@given(
    topic_id=st.none() | st.binary(min_size=16, max_size=16),
    partitions=st.dictionaries(st.integers(0, 50), st.builds(Assignment, IDS, IDS, IDS), max_size=5),
)
def test_topics_come_back(topic_id: bytes | None, partitions: dict[int, Assignment]) -> None:
    topic = TopicInfo(topic_id, dict(sorted(partitions.items())))
    assert decode_topic(encode_topic(topic)) == topic


def test_a_topic_as_apache_writes_it() -> None:
    topic = TopicInfo(bytes(16), {0: Assignment((1, 2), (2,), ()), 1: Assignment((2,))})
    assert json.loads(encode_topic(topic)) == {
        "version": 3,
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "partitions": {"0": [1, 2], "1": [2]},
        "adding_replicas": {"0": [2]},
        "removing_replicas": {},
    }


def test_a_topic_of_an_old_broker() -> None:
    assert decode_topic(b'{"version":1,"partitions":{"0":[3]}}') == TopicInfo(None, {0: Assignment((3,))})


@given(st.builds(LeaderIsr, st.integers(-1, 9), st.integers(0, 9), IDS, st.integers(0, 9), st.sampled_from([0, 1])))
def test_states_come_back_with_their_version(state: LeaderIsr) -> None:
    assert decode_state(encode_state(state), STAT) == state._replace(version=7)


def test_the_recovery_state_is_written_only_while_recovering() -> None:
    state = LeaderIsr(1, 2, (1,), 3)
    assert b"recovery" not in encode_state(state)
    assert json.loads(encode_state(state._replace(recovery=1)))["leader_recovery_state"] == 1


def test_brokers_come_back_with_their_epoch() -> None:
    features = (SupportedFeature("share.version", 1, 2),)
    broker = BrokerInfo(3, (Endpoint("OUT", 0, "h", 1), Endpoint("IN", 1, "::1", 2)), "r", features=features)
    assert decode_broker(3, encode_broker(broker, 5), STAT) == broker._replace(epoch=42)


def test_a_broker_as_apache_writes_it() -> None:
    endpoints = Endpoint("IN", 1, "s", 2), Endpoint("OUT", 0, "h", 1)
    broker = BrokerInfo(3, endpoints, features=(SupportedFeature("share.version", 0, 2),))
    content = json.loads(encode_broker(broker, 5))
    assert content == {
        "version": 5,
        "host": "h",
        "port": 1,
        "jmx_port": -1,
        "timestamp": "5",
        "endpoints": ["IN://s:2", "OUT://h:1"],
        "listener_security_protocol_map": {"IN": "SSL", "OUT": "PLAINTEXT"},
        "features": {"share.version": {"min_version": 1, "max_version": 2}},
    }


def test_features_as_apache_writes_them() -> None:
    assert encode_features({"a": 2}) == b'{"version":2,"status":1,"features":{"a":{"max_version_level":2}}}'
    assert decode_features(encode_features({"a": 2, "b": 1})) == {"a": 2, "b": 1}


def test_features_of_the_older_layout_and_those_that_are_not_in_use() -> None:
    older = b'{"version":1,"status":1,"features":{"a":{"min_version_level":1,"max_version_level":2}}}'
    assert decode_features(older) == {"a": 2}
    assert decode_features(older.replace(b'"status":1', b'"status":0')) == {}


@pytest.mark.parametrize("level", [0, -1, "1", None])
def test_a_finalized_level_that_makes_no_sense(level: object) -> None:
    content = {"version": 2, "status": 1, "features": {"a": {"max_version_level": level}}}
    with pytest.raises(ValueError, match=r"level below 1|no number"):
        decode_features(json.dumps(content).encode())


def test_brokers_of_older_layouts() -> None:
    first = b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}'
    second = b'{"version":2,"host":"h","port":1,"jmx_port":-1,"timestamp":"1","endpoints":["SSL://[::1]:5"]}'
    assert decode_broker(1, first, STAT).endpoints == (Endpoint("PLAINTEXT", 0, "h", 9092),)
    assert decode_broker(1, second, STAT).endpoints == (Endpoint("SSL", 1, "::1", 5),)


def test_layouts_of_a_newer_kafka_are_read_for_what_is_known() -> None:
    broker = decode_broker(3, encode_broker(PLAIN, 0).replace(b'"version":5', b'"version":6,"novel":[1]'), STAT)
    topic = TopicInfo(bytes(range(16)), {0: Assignment((1, 2))})
    state = LeaderIsr(1, 5, (1, 2), 3, version=7)
    newer_topic = encode_topic(topic).replace(b'"version":3', b'"version":4,"novel":{"0":1}')
    newer_state = encode_state(state).replace(b'"version":1', b'"version":2,"novel":null')
    assert broker == PLAIN
    assert (decode_topic(newer_topic), decode_state(newer_state, STAT)) == (topic, state)


def test_the_small_ones_come_back() -> None:
    assert decode_controller(encode_controller(4, 1)) == 4
    assert decode_cluster_id(encode_cluster_id("abc")) == "abc"
    assert decode_config(encode_config({"a": "é"})) == {"a": "é"}
    assert decode_config_change(encode_config_change("topics/t")) == ("topics", "t")
    assert decode_producer_id_block(encode_producer_id_block(1, 1000, 1999)) == (1, 1000, 1999)


def test_what_apache_writes_and_we_only_read() -> None:
    assert decode_isr_change(b'{"version":1,"partitions":[{"topic":"t","partition":3}]}') == [("t", 3)]
    assert decode_log_dir_event(b'{"version":1,"broker":2,"event":1}') == 2
    assert decode_config_change(b'{"version":1,"entity_type":"topics","entity_name":"t"}') == ("topics", "t")


def test_nodes_without_content() -> None:
    assert decode_config(b"") == {}
    assert decode_producer_id_block(b"") == (-1, -1, -1)


def test_the_last_replica_in_sync_stays() -> None:
    assert isr_without((1, 2), 1) == (2,)
    assert isr_without((1,), 1) == (1,)
    assert isr_without((1, 2), 3) == (1, 2)
