"""Which quota counts for whom, and who shares it."""

from __future__ import annotations

import pytest

from kbroker.broker import client_quotas
from kbroker.broker.client_quotas import ClientQuotaManager, ClientQuotas, ConnectionQuotas
from kbroker.broker.rates import Rate, Windows
from kbroker.config import ONE_BROKER, BrokerLayers
from kbroker.metadata.configs import Configs

BY_PRECEDENCE = (
    ("users/a/clients/c", ("a", "c")),
    ("users/a/clients/<default>", ("a", "c")),
    ("users/a", ("a", "")),
    ("users/<default>/clients/c", ("a", "c")),
    ("users/<default>/clients/<default>", ("a", "c")),
    ("users/<default>", ("a", "")),
    ("clients/c", ("", "c")),
    ("clients/<default>", ("", "c")),
)


@pytest.fixture
def quotas() -> ClientQuotas:
    return ClientQuotas(Configs(BrokerLayers(static={}, alone=ONE_BROKER)).broker)


@pytest.mark.parametrize("first", range(len(BY_PRECEDENCE)))
def test_the_first_of_kafkas_order_counts(quotas: ClientQuotas, first: int) -> None:
    for number, (path, _) in enumerate(BY_PRECEDENCE[first:], start=first + 1):
        quotas.set_entity(path, {"producer_byte_rate": str(number)})
    found = quotas.produce.of["a", "c"]
    assert found is not None
    assert (found.meter.bound, found.tags) == (first + 1, BY_PRECEDENCE[first][1])


def test_a_quota_that_is_taken_back_gives_way_to_the_next(quotas: ClientQuotas) -> None:
    for path, _ in BY_PRECEDENCE:
        quotas.set_entity(path, {"consumer_byte_rate": "5"})
    for path, _ in BY_PRECEDENCE:
        assert quotas.fetch.of["a", "c"] is not None
        quotas.set_entity(path, {})
    assert quotas.fetch.of["a", "c"] is None
    assert not quotas.is_on


def test_client_ids_of_a_user_share_the_users_quota(quotas: ClientQuotas) -> None:
    quotas.set_entity("users/a", {"producer_byte_rate": "5"})
    assert quotas.produce.of["a", "c"] is quotas.produce.of["a", "d"]
    assert quotas.produce.of["b", "c"] is None


def test_users_do_not_share_what_is_set_for_each(quotas: ClientQuotas) -> None:
    quotas.set_entity("users/<default>", {"producer_byte_rate": "5"})
    assert quotas.produce.of["a", "c"] is not quotas.produce.of["b", "c"]


def test_users_share_the_quota_of_a_client_id(quotas: ClientQuotas) -> None:
    quotas.set_entity("clients/c", {"producer_byte_rate": "5"})
    assert quotas.produce.of["a", "c"] is quotas.produce.of["b", "c"]


def test_names_are_found_as_the_store_spells_them(quotas: ClientQuotas) -> None:
    quotas.set_entity("users/a%20b%2F%C3%BC/clients/c%3A1", {"producer_byte_rate": "5"})
    assert quotas.produce.of["a b/ü", "c:1"] is not None
    assert quotas.produce.of["a b/ü", None] is None


@pytest.mark.parametrize("text", ["", "much", "NaN", "Infinity"])
def test_what_is_no_limit_limits_nobody(quotas: ClientQuotas, text: str) -> None:
    quotas.set_entity("users/a", {"producer_byte_rate": text, "SCRAM-SHA-256": "secret"})
    assert not quotas.is_on


def test_a_changed_quota_keeps_what_was_used(quotas: ClientQuotas) -> None:
    quotas.set_entity("users/a", {"producer_byte_rate": "1000"})
    found = quotas.produce.of["a", "c"]
    assert found is not None
    found.meter.record(5000, 0)
    quotas.set_entity("users/a", {"producer_byte_rate": "100"})
    again = quotas.produce.of["a", "c"]
    assert again is not None
    assert again.meter.record(0, 0) > 0


def test_clients_by_the_million_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST_METERS", 10)
    manager: ClientQuotaManager[Rate] = ClientQuotaManager(Rate, Windows(11, 1))
    manager.set_limit((None, "<default>"), 5.0)
    for number in range(100):
        found = manager.of["a", f"client {number}"]
        assert found is not None
        found.meter.record(1, number)
    assert len(manager.meters) <= 10


def test_addresses_connect_as_fast_as_they_may() -> None:
    """KIP-612: one that is too fast waits for at most a window, and what is refused does not count."""
    quotas = ConnectionQuotas(Windows(11, 1))
    assert quotas.throttle_ms("10.0.0.1", 0) == 0
    quotas.set_limit("<default>", 1)
    quotas.set_limit("10.0.0.2", 2)
    assert [quotas.throttle_ms("10.0.0.1", 0) for _ in range(12)] == [0] * 10 + [1000] * 2
    assert [quotas.throttle_ms("10.0.0.2", 0) for _ in range(21)] == [0] * 20 + [500]
    assert quotas.throttle_ms("10.0.0.1", 11_000) == 0
