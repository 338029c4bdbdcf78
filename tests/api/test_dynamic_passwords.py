"""Passwords that are set at run time: enciphered in the metadata store, clear in the broker, shown to no client."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from kbroker.config import Given
from kbroker.config.limits import PASSWORDS_OF_A_BROKER
from kbroker.metadata.store import decode_config, encode_config
from kbroker.ports import Create
from kbroker.security.password_encoder import PasswordEncoder
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tests.controller.cluster import Cluster

BROKER, SET, DELETE = 4, 0, 1
KEY, OTHER = "listener.name.plaintext.ssl.keystore.password", "listener.name.plaintext.ssl.key.password"
PATH = "/config/brokers/1"
pytest.importorskip("cryptography", reason="cryptography is not installed: nothing enciphers passwords")


def change(
    cluster: Cluster, *changes: tuple[str, int, str | None], name: str = "1", validate_only: bool = False
) -> Any:
    configs = [IncrementalAlterableConfig(name=key, config_operation=do, value=text) for key, do, text in changes]
    resource = IncrementalAlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return cluster.ask(request, 1).responses[0]


def stored(cluster: Cluster) -> dict[str, str]:
    return decode_config(cluster.data(PATH))


def in_force(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.nodes[1].plane.configs.layers.dynamic_broker)


def test_a_password_is_enciphered_in_the_store_and_clear_in_the_broker() -> None:
    cluster = Cluster(1, password_encoder_secret="one", password_encoder_iterations="1024")
    assert change(cluster, (KEY, SET, "sesame"), ("log.cleaner.threads", SET, "2")).error_code == 0
    kept = stored(cluster)
    assert in_force(cluster) == {KEY: "sesame", "log.cleaner.threads": "2"}
    assert "sesame" not in str(kept)
    assert "iterations:1024" in kept[KEY]
    assert PasswordEncoder("one").decode(kept[KEY]) == "sesame"
    assert kept["log.cleaner.threads"] == "2"


def test_a_password_that_stays_keeps_its_text_when_another_is_set() -> None:
    cluster = Cluster(1, password_encoder_secret="one")
    change(cluster, (KEY, SET, "sesame"))
    before = stored(cluster)[KEY]
    assert change(cluster, (OTHER, SET, "sesame")).error_code == 0
    assert stored(cluster)[KEY] == before
    assert stored(cluster)[OTHER] != before
    assert change(cluster, (KEY, DELETE, None)).error_code == 0
    assert in_force(cluster) == {OTHER: "sesame"}


def test_a_password_outlives_the_broker() -> None:
    cluster = Cluster(1, password_encoder_secret="one")
    change(cluster, (KEY, SET, "sesame"))
    cluster.restart(1)
    assert in_force(cluster) == {KEY: "sesame"}


def test_no_client_is_shown_a_password() -> None:
    cluster = Cluster(1, password_encoder_secret="the secret")
    change(cluster, (KEY, SET, "sesame"))
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None)
    answer = cluster.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4)
    (entry,) = [each for each in answer.results[0].configs if each.name == KEY]
    assert (entry.value, entry.is_sensitive) == (None, True)
    assert "sesame" not in repr(answer)
    assert "the secret" not in repr(answer)


def test_without_a_secret_a_password_is_refused_in_kafkas_words() -> None:
    cluster = Cluster(1)
    assert change(cluster, (KEY, SET, "sesame"), validate_only=True).error_code == 0
    refused = change(cluster, (KEY, SET, "sesame"))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.error_message == (
        "Invalid config value for resource ConfigResource(type=BROKER, name='1'): "
        "Password encoder secret not configured"
    )
    assert not cluster.has(PATH)


def test_a_password_for_all_brokers_is_refused() -> None:
    cluster = Cluster(1, password_encoder_secret="one")
    refused = change(cluster, (KEY, SET, "sesame"), name="")
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "broker id must be specified" in refused.error_message


def restarted_with(cluster: Cluster, **settings: str) -> None:
    cluster.stop(1)
    given = {name.replace("_", "."): Given(text, "test") for name, text in settings.items()}
    cluster.machine(1)._static |= given
    cluster.start(1)


def test_at_a_new_secret_what_is_kept_is_enciphered_again() -> None:
    cluster = Cluster(1, password_encoder_secret="one")
    change(cluster, (KEY, SET, "sesame"), (OTHER, SET, "open"), ("log.cleaner.threads", SET, "2"))
    restarted_with(cluster, password_encoder_secret="two", password_encoder_old_secret="one")
    assert in_force(cluster) == {KEY: "sesame", OTHER: "open", "log.cleaner.threads": "2"}
    kept = stored(cluster)
    assert [PasswordEncoder("two").decode(kept[key]) for key in (KEY, OTHER)] == ["sesame", "open"]
    cluster.restart(1)  # the old secret is still there, and harms nothing
    assert stored(cluster) == kept
    assert change(cluster, (OTHER, SET, "shut")).error_code == 0
    assert in_force(cluster)[OTHER] == "shut"


@pytest.mark.parametrize("settings", [{"password_encoder_secret": "two"}, {}])
def test_a_password_that_cannot_be_read_is_none_and_the_broker_runs(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    kept = PasswordEncoder("one").encode("sesame", random.Random(1).randbytes)
    cluster = Cluster(1, **settings)
    cluster.stop(1)
    cluster.ensemble.tree.apply(Create(PATH, encode_config({KEY: kept, "log.cleaner.threads": "2"})), 0)
    cluster.start(1)
    assert in_force(cluster) == {"log.cleaner.threads": "2"}
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert line.startswith(f"Dynamic password config {KEY} could not be decoded, ignoring: ")
    assert kept not in caplog.text


def test_a_password_for_all_brokers_in_the_store_is_none(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1, password_encoder_secret="one")
    cluster.stop(1)
    cluster.ensemble.tree.apply(Create("/config/brokers/<default>", encode_config({KEY: "sesame"})), 0)
    cluster.start(1)
    assert not cluster.nodes[1].plane.configs.layers.dynamic_default
    assert f"Per-broker configs defined at default cluster level will be ignored: {KEY}" in caplog.text
    assert "sesame" not in caplog.text


def test_one_broker_has_only_so_many_passwords() -> None:
    """Each takes the broker milliseconds: one client must not hold up all others."""
    cluster = Cluster(1, password_encoder_secret="one", password_encoder_iterations="1024")
    many = [(f"listener.name.l{at}.ssl.key.password", SET, "sesame") for at in range(PASSWORDS_OF_A_BROKER + 1)]
    refused = change(cluster, *many)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.error_message.endswith(f"{len(many)} passwords of one broker; allowed: {PASSWORDS_OF_A_BROKER}")
    assert change(cluster, *many[1:]).error_code == 0
