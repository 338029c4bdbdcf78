"""Nodes of the metadata store with content that nobody understands: passed by, with a line, and all else goes on."""

from __future__ import annotations

import logging

import pytest

from kbroker.metadata.store import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    Assignment,
    config_path,
    decode_topic,
    encode_config,
    encode_state,
    state_path,
    topic_path,
)
from kbroker.ports import Create, Delete, SetData
from protocol.errors import ErrorCode
from tests.controller.cluster import Cluster

NONSENSE = [b"", b"{", b"[]", b"null", b"{}", b'{"version":"x","endpoints":3,"partitions":[1]}']

OTHER_TYPES = {
    "/brokers/ids/7": [
        b'{"version":5,"endpoints":["PLAINTEXT://host7:9092"],"rack":7}',
        b'{"version":5,"endpoints":["PLAINTEXT://host7:9092909290"]}',
        b'{"version":1,"host":"host7","port":"9092"}',
    ],
    "/brokers/ids/10000000000": [b'{"version":1,"host":"host7","port":9092}'],
    topic_path("odd"): [
        b'{"version":2,"partitions":{"0":["1"]},"adding_replicas":{},"removing_replicas":{}}',
        b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"0":"2"},"removing_replicas":{}}',
        b'{"version":1,"partitions":{"0":[10000000000]}}',
        b'{"version":1,"partitions":{"10000000000":[1]}}',
    ],
    "/isr_change_notification/isr_change_0000000000": [b'{"version":1,"partitions":[{"topic":["t"],"partition":0}]}'],
    "/log_dir_event_notification/log_dir_event_0000000000": [b'{"version":1,"broker":Infinity,"event":1}'],
    "/config/changes/config_change_0000000009": [b'{"version":1,"entity_type":"topics","entity_name":["t"]}'],
}
"""Content whose parts are there, and of another type than what is written of them to other brokers."""

STATES_OF_OTHER_TYPES = [
    b'{"version":1,"leader":"2","leader_epoch":0,"isr":[1,2],"controller_epoch":1}',
    b'{"version":1,"leader":2,"leader_epoch":0,"isr":["1","2"],"controller_epoch":1}',
    b'{"version":1,"leader":2,"leader_epoch":0,"isr":[1,2],"controller_epoch":"1"}',
    b'{"version":1,"leader":2,"leader_epoch":10000000000,"isr":[1,2],"controller_epoch":1}',
]


@pytest.fixture(params=NONSENSE)
def nonsense(request: pytest.FixtureRequest) -> bytes:
    content: bytes = request.param
    return content


def expect_passed_by(path: str, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and the cluster goes on, also after it was met by a new controller."""
    cluster = Cluster(1, 2)
    with caplog.at_level(logging.ERROR, "kbroker.cluster"):
        write(cluster, Create(path, content))
    assert lines(caplog, path)
    assert cluster.create("after", 1, 2) is ErrorCode.NONE
    cluster.restart(1)
    assert cluster.create("later", 1, 2) is ErrorCode.NONE


def write(cluster: Cluster, operation: Create | SetData) -> None:
    assert cluster.ensemble.tree.apply(operation, 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()


def lines(caplog: pytest.LogCaptureFixture, path: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith(f"{path} in the metadata")]


@pytest.mark.parametrize(
    "path",
    [
        "/brokers/ids/7",
        topic_path("odd"),
        "/isr_change_notification/isr_change_0000000000",
        "/log_dir_event_notification/log_dir_event_0000000000",
        "/config/changes/config_change_0000000009",
    ],
)
def test_what_makes_no_sense_is_passed_by(path: str, nonsense: bytes, caplog: pytest.LogCaptureFixture) -> None:
    expect_passed_by(path, nonsense, caplog)


@pytest.mark.parametrize(("path", "content"), [(path, each) for path, some in OTHER_TYPES.items() for each in some])
def test_what_is_of_another_type_is_passed_by(path: str, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    expect_passed_by(path, content, caplog)


def test_content_that_is_too_deep_is_passed_by(caplog: pytest.LogCaptureFixture) -> None:
    expect_passed_by(topic_path("odd"), b"[" * 200_000, caplog)


@pytest.mark.parametrize("name", ["backup", "\u00b2"])
def test_what_is_named_like_no_broker_is_none(name: str) -> None:
    cluster = Cluster(1, 2)
    write(cluster, Create(f"/brokers/ids/{name}", b"{}"))
    assert cluster.create("after", 1, 2) is ErrorCode.NONE


@pytest.mark.parametrize("content", [*NONSENSE, *STATES_OF_OTHER_TYPES])
def test_a_partition_whose_state_makes_no_sense_keeps_the_others_from_nothing(content: bytes) -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2), (2, 1))
    write(cluster, SetData(state_path("t", 0), content))
    cluster.stop(1)
    assert cluster.leaders(2, "t")[-1] == 2
    assert cluster.data(state_path("t", 0)) == content  # nobody knows who may lead: it is for a person to mend


def test_a_state_of_a_controller_epoch_that_never_was_is_taken_as_it_stands(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    write(cluster, SetData(state_path("t", 0), encode_state(cluster.state("t")._replace(controller_epoch=50))))
    with caplog.at_level(logging.WARNING, "kbroker.controller"):
        cluster.stop(1)
    assert cluster.data(CONTROLLER_EPOCH) == b"2"
    assert sum("t-0: written in controller epoch 50" in each.getMessage() for each in caplog.records) == 1
    assert cluster.leaders(2, "t") == [2]
    assert cluster.state("t").controller_epoch == 2


@pytest.mark.parametrize("is_there_before", [False, True])
def test_a_topic_of_an_old_kafka_gets_an_id(is_there_before: bool) -> None:
    cluster = Cluster(1, 2)
    if is_there_before:
        cluster.stop(2)
        cluster.stop(1)
    write(cluster, Create(topic_path("old"), b'{"version":1,"partitions":{"0":[2,1]}}'))
    for broker in (1, 2):
        if broker not in cluster.nodes:
            cluster.start(broker)
    topic = decode_topic(cluster.data(topic_path("old")))
    assert topic.topic_id is not None
    assert topic.partitions == {0: Assignment((2, 1))}
    assert [node.plane.cache.topic_id("old") for node in cluster.nodes.values()] == [topic.topic_id] * 2
    assert cluster.nodes[2].replicas.partitions["old", 0].topic_id == topic.topic_id


@pytest.mark.parametrize("content", [b"", b'"7"', b"seven", b"10000000000"])
def test_no_controller_is_elected_after_an_epoch_that_makes_no_sense_until_it_is_written_anew(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(1, 2)
    with caplog.at_level(logging.ERROR, "kbroker.controller"):
        write(cluster, SetData(CONTROLLER_EPOCH, content))
        cluster.stop(cluster.controller.id)
        cluster.advance(60_000)
    (node,) = cluster.nodes.values()
    assert sum("/controller_epoch is no number" in each.getMessage() for each in caplog.records) == 1
    assert not cluster.has(CONTROLLER)
    write(cluster, SetData(CONTROLLER_EPOCH, b"7"))
    assert node.plane.controller.is_active
    assert cluster.data(CONTROLLER_EPOCH) == b"8"


def test_settings_that_make_no_sense_are_none() -> None:
    cluster = Cluster(1)
    write(cluster, Create(config_path("topics", "t"), b"{"))
    assert cluster.create("t", retention_ms="5") is ErrorCode.NONE


@pytest.mark.parametrize("entity", [("topics", "t"), ("brokers", "<default>")])
def test_an_unclean_leader_is_elected_as_soon_as_that_is_allowed(entity: tuple[str, str]) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (2, 3))
    cluster.stop(3)
    cluster.stop(2)
    cluster.start(3)
    assert cluster.state("t").leader == -1
    content = encode_config({"unclean.leader.election.enable": "true"})
    path = config_path(*entity)
    write(cluster, SetData(path, content) if cluster.has(path) else Create(path, content))
    notice = b'{"version":2,"entity_path":"%s"}' % "/".join(entity).encode()
    write(cluster, Create("/config/changes/config_change_", notice, sequential=True))
    assert cluster.state("t").leader == 3


def test_a_kraft_controller_that_takes_the_cluster_over_is_told_of_and_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(1, 2)
    taken = b'{"version":2,"brokerid":3000,"timestamp":"0","kraftControllerEpoch":4}'
    with caplog.at_level(logging.ERROR, "kbroker.controller"):
        assert cluster.ensemble.tree.apply(Delete(CONTROLLER), 0).fault is None
        write(cluster, Create(CONTROLLER, taken))  # for good, as the quorum does it
    told = [each.getMessage() for each in caplog.records if "on its way to KRaft" in each.getMessage()]
    assert len(told) == 2  # once by each broker
    assert "kraftControllerEpoch 4 in /controller" in told[0]
    assert cluster.data(CONTROLLER) == taken
    assert not any(node.plane.controller.is_active for node in cluster.nodes.values())
