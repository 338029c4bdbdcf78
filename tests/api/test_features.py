"""Features: what a broker supports, what its cluster has finalized, and how that is changed."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kbroker.api.routes import ROUTES, SERVED, Route
from kbroker.metadata.features import SUPPORTED, TRANSACTION_VERSION, newest
from kbroker.metadata.store import FEATURES, decode_features, encode_features
from kbroker.ports import Create, Delete, Operation, SetData
from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.groups import HeartbeatRequest
from protocol.messages.handshake import ApiVersionsRequest
from tests.controller.cluster import Cluster
from tests.requests import VERSIONS
from tests.world import BROKER, CLUSTER, World

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NAME = TRANSACTION_VERSION
APACHE = b"""{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},
    "endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"5"}"""


def wanted(*levels: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    updates = [FeatureUpdateKey(feature=name, max_version_level=to, upgrade_type=kind) for name, to, kind in levels]
    return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)


def finalized(told: Any) -> dict[str, int]:
    """Of an answer to ApiVersions."""
    return {each.name: each.max_version_level for each in told.finalized_features}


def stored(cluster: Cluster | World) -> dict[str, int]:
    return decode_features(cluster.ensemble.tree.nodes[FEATURES].data)


def write(cluster: Cluster, operation: Operation) -> None:
    """As a tool or another broker does."""
    assert cluster.ensemble.tree.apply(operation, 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()


# -- what is told


def test_a_broker_that_is_alone_has_all_features_on_at_their_newest_level() -> None:
    told = World().client().ask(VERSIONS, 4)
    assert finalized(told) == newest()
    assert told.finalized_features_epoch == 0
    assert {each.name: (each.min_version, each.max_version) for each in told.supported_features} == {
        name: (first, last) for name, first, last in SUPPORTED
    }


def test_a_cluster_on_zookeeper_begins_with_none() -> None:
    cluster = Cluster(1)
    told = cluster.ask(VERSIONS, 4)
    assert (finalized(told), told.finalized_features_epoch) == ({}, 0)
    assert cluster.data(FEATURES) == b'{"version":2,"status":1,"features":{}}'


def test_clients_that_know_no_feature_from_level_0_on_are_not_told_of_one() -> None:
    told = World().client().ask(VERSIONS, 3)  # Java up to 3.8 gives up the connection (KIP-1022)
    assert (told.supported_features, finalized(told)) == ([], newest())


def test_what_was_finalized_is_there_after_a_restart() -> None:
    world = World()
    assert world.client().ask(wanted((NAME, 1, SAFE_DOWNGRADE)), 2).error_code == ErrorCode.NONE
    world.restart()
    assert finalized(world.client().ask(VERSIONS, 4)) == newest() | {NAME: 1}


def test_features_that_are_all_off_stay_off() -> None:
    world = World()
    off = wanted(*((name, 0, SAFE_DOWNGRADE) for name in newest()))
    assert world.client().ask(off, 2).error_code == ErrorCode.NONE
    world.restart()
    assert finalized(world.client().ask(VERSIONS, 4)) == {}


@pytest.mark.parametrize("levels", [{}, {NAME: 1}])
def test_metadata_of_an_earlier_kbroker_is_brought_up_to_date(levels: dict[str, int]) -> None:
    world = World()
    world.ensemble.tree.nodes[FEATURES].data = encode_features(levels)
    for _ in range(2):
        world.restart()
        assert stored(world) == newest()
        assert finalized(world.client().ask(VERSIONS, 4)) == newest()
        assert world.ensemble.tree.nodes[FEATURES].version == 0


# -- who is meant


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),
        (CLUSTER, BROKER, ErrorCode.NONE),
        (None, 99, ErrorCode.INVALID_REQUEST),  # both are known, or neither
        (CLUSTER, -1, ErrorCode.INVALID_REQUEST),
        (CLUSTER, 99, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", BROKER, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_that_takes_the_broker_for_another_one_starts_again(
    cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1"}
    request = ApiVersionsRequest(**software, cluster_id=cluster_id, node_id=node_id)
    told = World().client().ask(request, 5)
    assert (told.error_code, bool(told.api_keys)) == (code, code is ErrorCode.NONE)


# -- what a broker cannot do


def test_a_broker_does_not_join_a_cluster_that_does_what_it_cannot() -> None:
    cluster = Cluster(1)
    content = b'{"version":2,"status":1,"features":{"novel.version":{"max_version_level":1}}}'
    write(cluster, SetData(FEATURES, content))
    assert cluster.nodes[1].plane.fatal.startswith("the cluster has finalized novel.version=1; this broker supports ")


def test_a_node_that_makes_no_sense_leaves_what_was_agreed_on(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1)
    assert cluster.ask(wanted((NAME, 2, UPGRADE)), 2).error_code == ErrorCode.NONE
    write(cluster, SetData(FEATURES, b"{"))
    assert finalized(cluster.ask(VERSIONS, 4)) == {NAME: 2}
    told = cluster.ask(wanted((NAME, 1, SAFE_DOWNGRADE)), 2)
    assert (told.error_code, told.error_message) == (
        ErrorCode.FEATURE_UPDATE_FAILED,
        "/feature in the metadata store makes no sense",
    )


# -- changing


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_broker_hears_of_a_level_that_is_finalized(version: int) -> None:
    cluster = Cluster(1, 2)
    done = cluster.ask(wanted((NAME, 2, UPGRADE)), version, 1)
    assert done.error_code == ErrorCode.NONE
    assert [(each.feature, each.error_code) for each in done.results] == ([(NAME, 0)] if version < 2 else [])
    for broker in (1, 2):
        told = cluster.ask(VERSIONS, 4, broker)
        assert (finalized(told), told.finalized_features_epoch) == ({NAME: 2}, 1)
        assert cluster.nodes[broker].broker.features.is_on(NAME, 2)


def test_who_asks_next_on_the_same_connection_is_told_of_the_new_level() -> None:
    client = World().client()
    client.ask(wanted((NAME, 0, UNSAFE_DOWNGRADE)), 1)
    assert finalized(client.ask(VERSIONS, 4)).get(NAME, 0) == 0


def test_validating_changes_nothing() -> None:
    cluster = Cluster(1)
    assert cluster.ask(wanted((NAME, 2, UPGRADE), validate_only=True), 2).error_code == ErrorCode.NONE
    assert stored(cluster) == {}


def test_a_level_that_is_there_already_is_no_change() -> None:
    client = World().client()
    assert client.ask(wanted((NAME, 2, UPGRADE)), 2).error_code == ErrorCode.NONE
    assert client.ask(VERSIONS, 4).finalized_features_epoch == 0


@pytest.mark.parametrize(
    ("name", "level", "kind", "why"),
    [
        ("metadata.version", 21, UPGRADE, "Local controller 1 does not support this feature."),
        ("", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("a", 0, SAFE_DOWNGRADE, "Local controller 1 does not support this feature."),
        ("a", 1, 7, "The controller does not support the given upgrade type."),
        (NAME, -1, SAFE_DOWNGRADE, "A feature version cannot be less than 0."),
        (NAME, 3, UPGRADE, "Local controller 1 only supports versions 0-2"),
        (NAME, 1, UPGRADE, "without setting the upgrade type to either safe or unsafe downgrade."),
        (NAME, 0, UPGRADE, "without setting the upgrade type to either safe or unsafe downgrade."),
    ],
)
def test_an_update_is_refused_in_the_words_of_kafka(name: str, level: int, kind: int, why: str) -> None:
    world = World()
    told = world.client().ask(wanted((name, level, kind)), 2)
    said = "The update failed for all features since the following feature had an error: "
    assert (told.error_code, told.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
    assert told.error_message.startswith(f"{said}Invalid update version {level} for feature {name}. ")
    assert told.error_message.endswith(why)
    assert stored(world) == newest()


def test_a_downgrade_leads_to_no_newer_level() -> None:
    told = Cluster(1).ask(wanted((NAME, 1, SAFE_DOWNGRADE)), 1)
    assert told.error_message.endswith("Can't downgrade to a newer version.")


def test_all_updates_of_a_request_are_made_or_none() -> None:
    cluster = Cluster(1)
    told = cluster.ask(wanted((NAME, 2, UPGRADE), ("a", 1, UPGRADE)), 1)
    assert (told.error_code, told.results, stored(cluster)) == (ErrorCode.INVALID_UPDATE_VERSION, [], {})


@pytest.mark.parametrize(("allowed", "level"), [(False, 2), (True, 1)])
def test_version_0_says_whether_a_downgrade_is_allowed(allowed: bool, level: int) -> None:
    world = World()
    update = FeatureUpdateKey(feature=NAME, max_version_level=1, allow_downgrade=allowed)
    world.client().ask(UpdateFeaturesRequest(feature_updates=[update]), 0)
    assert stored(world)[NAME] == level


def test_what_a_broker_of_zookeeper_mode_cannot_do_is_refused_while_it_is_registered() -> None:
    cluster = Cluster(1)
    write(cluster, Create("/brokers/ids/7", APACHE))
    told = cluster.ask(wanted((NAME, 2, UPGRADE)), 2)
    assert told.error_message.endswith("feature transaction.version. Broker 7 does not support this feature.")
    write(cluster, Delete("/brokers/ids/7"))
    assert cluster.ask(wanted((NAME, 2, UPGRADE)), 2).error_code == ErrorCode.NONE


def test_only_the_controller_looks_at_updates() -> None:
    told = Cluster(1, 2).ask(wanted(("a", 1, UPGRADE)), 1, 2)
    assert (told.error_code, told.results) == (ErrorCode.NOT_CONTROLLER, [])


# -- what waits for a feature


def test_an_api_is_told_and_served_only_while_its_feature_is_finalized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVED, 12, SERVED[12]._replace(feature=NAME, level=2))
    plain = ROUTES[12]
    gated = Route(12, plain.request, plain.first, plain.last, plain.serve, plain.refuse, plain.needs)
    monkeypatch.setitem(ROUTES, 12, gated)
    client = World().client()
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert 12 in {each.api_key for each in client.ask(VERSIONS, 4).api_keys}
    assert client.ask(heartbeat, 4).error_code != ErrorCode.UNSUPPORTED_VERSION
    client.ask(wanted((NAME, 1, SAFE_DOWNGRADE)), 2)
    assert 12 not in {each.api_key for each in client.ask(VERSIONS, 4).api_keys}
    assert client.ask(heartbeat, 4).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("feature", "protocol", "apis"),
    [
        ("group.version", "consumer", {68, 69}),
        ("share.version", "", {76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92}),
        ("streams.version", "streams", {88, 89, 93}),
    ],
)
def test_groups_of_kafka_4_are_told_of_only_while_they_are_on(feature: str, protocol: str, apis: set[int]) -> None:
    def told(world: World) -> set[int]:
        return apis & {each.api_key for each in world.client().ask(VERSIONS, 4).api_keys}

    world = World()
    assert told(world) == apis
    assert world.client().ask(wanted((feature, 0, SAFE_DOWNGRADE)), 2).error_code == ErrorCode.NONE
    assert told(world) == set()
    if protocol:
        others = ",".join({"classic", "consumer", "streams"} - {protocol})
        assert told(World(group_coordinator_rebalance_protocols=others)) == set()


def test_who_asks_for_a_kind_of_group_that_the_settings_leave_out_is_refused() -> None:
    world = World(group_coordinator_rebalance_protocols="classic")
    told = world.client().ask(ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False), 0)
    (group,) = told.groups
    assert (group.error_code, group.error_message) == (
        ErrorCode.UNSUPPORTED_VERSION,
        "group.coordinator.rebalance.protocols has no consumer groups.",
    )


def test_every_feature_that_an_api_waits_for_is_supported() -> None:
    awaited = {(served.feature, served.level) for served in SERVED.values() if served.feature}
    supported = {(name, level) for name, first, last in SUPPORTED for level in range(1, last + 1)}
    assert awaited <= supported
    assert {name for name, _, _ in SUPPORTED} - {TRANSACTION_VERSION} <= {name for name, _ in awaited}


@pytest.mark.parametrize("api", [55, 64], ids=["DescribeQuorum", "UnregisterBroker"])
def test_what_only_a_metadata_quorum_answers_ends_the_connection_as_with_a_broker_on_zookeeper(api: int) -> None:
    client = World().client()
    listed = {each.api_key for each in client.ask(VERSIONS, 4).api_keys}
    client.send_bytes(struct.pack(">hhih", api, 0, 1, -1) + b"\0\0\0")
    assert (api in listed, client.closing) == (False, f"API key {api} version 0 is not served")
