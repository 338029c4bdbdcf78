"""Features: none is there, and none can be made."""

from __future__ import annotations

import struct

import pytest

from protocol.errors import ErrorCode
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.controller.cluster import Cluster
from tests.requests import VERSIONS
from tests.world import World


def test_no_feature_is_listed_as_in_a_cluster_on_zookeeper() -> None:
    told = World().client().ask(VERSIONS, 4)
    assert (told.supported_features, told.finalized_features_epoch, told.finalized_features) == ([], 0, [])


def test_the_version_of_transactions_is_listed_where_the_settings_give_one() -> None:
    told = World(transaction_version="2").client().ask(VERSIONS, 4)
    (supported,), (finalized,) = told.supported_features, told.finalized_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 0, 2)
    assert (finalized.name, finalized.max_version_level, told.finalized_features_epoch) == ("transaction.version", 2, 2)


def test_clients_that_know_no_feature_from_level_0_on_are_not_told_of_one() -> None:
    told = World(transaction_version="2").client().ask(VERSIONS, 3)  # Java up to 3.8 gives up the connection (KIP-1022)
    assert [each.name for each in told.supported_features] == []
    assert [each.name for each in told.finalized_features] == ["transaction.version"]


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type", "why"),
    [
        ("metadata.version", 21, 1, "the provided feature is not supported"),
        ("", 1, 1, "Feature name can not be empty"),
        ("", 0, 7, "Feature name can not be empty"),
        ("a", 1, 7, "unknown upgrade type"),
        ("a", 0, 1, "versionLevel: 0 less than 1 without setting the SAFE downgradeType"),
        ("a", 0, 2, "Can not delete non-existing"),
        ("a", 0, 3, "Can not delete non-existing"),
        ("a", 1, 2, "the provided feature is not supported"),
    ],
)
def test_an_update_is_refused_in_the_words_of_kafka(name: str, level: int, upgrade_type: int, why: str) -> None:
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
    (result,) = World().client().ask(UpdateFeaturesRequest(feature_updates=[update]), 1).results
    assert (result.feature, result.error_code) == (name, ErrorCode.INVALID_REQUEST)
    assert why in result.error_message


@pytest.mark.parametrize(("allowed", "why"), [(False, "less than 1 without"), (True, "non-existing")])
def test_version_0_says_whether_a_downgrade_is_allowed(allowed: bool, why: str) -> None:
    update = FeatureUpdateKey(feature="a", max_version_level=0, allow_downgrade=allowed)
    (result,) = World().client().ask(UpdateFeaturesRequest(feature_updates=[update]), 0).results
    assert why in result.error_message


def test_only_the_controller_looks_at_updates() -> None:
    update = FeatureUpdateKey(feature="a", max_version_level=1)
    told = Cluster(1, 2).ask(UpdateFeaturesRequest(feature_updates=[update]), 1, 2)
    assert (told.error_code, told.results) == (ErrorCode.NOT_CONTROLLER, [])


@pytest.mark.parametrize("api", [55, 74], ids=["DescribeQuorum", "ListConfigResources"])
def test_what_only_a_metadata_quorum_answers_ends_the_connection_as_with_a_broker_on_zookeeper(api: int) -> None:
    client = World().client()
    listed = {each.api_key for each in client.ask(VERSIONS, 4).api_keys}
    client.send_bytes(struct.pack(">hhih", api, 0, 1, -1) + b"\0\0\0")
    assert (api in listed, client.closing) == (False, f"API key {api} version 0 is not served")
