"""AlterClientQuotas and DescribeClientQuotas; compat_tests/test_quotas.py asks Apache's broker the same."""

from __future__ import annotations

import json

import pytest

from kbroker.metadata.store import CONFIG_CHANGES
from kbroker.ports import Children, Get
from protocol.errors import ErrorCode
from tests.quotas import CONNECTION, CONSUMER, PRODUCER, REQUEST, alter, altered, describe, described
from tests.world import Client, World

ALTER, DESCRIBE = 1, 1
USER, CLIENT, BOTH = {"user": "a"}, {"client-id": "c"}, {"user": "a", "client-id": "c"}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def codes(client: Client, *args: object, **kwargs: bool) -> list[tuple[int, str | None]]:
    answer = client.ask(alter(*args, **kwargs), ALTER)  # type: ignore[arg-type]
    return [(entry.error_code, entry.error_message) for entry in answer.entries]


@pytest.mark.parametrize("version", [0, 1])
def test_what_is_set_is_described(client: Client, version: int) -> None:
    client.ask(alter(altered(USER, producer_byte_rate=1000), altered(BOTH, request_percentage=12.5)), version)
    client.ask(
        alter(
            altered({"client-id": None}, consumer_byte_rate=5), altered({"ip": "1.2.3.4"}, connection_creation_rate=7)
        ),
        version,
    )
    assert described(client.ask(describe(), version)) == {
        (("user", "a"),): {PRODUCER: 1000.0},
        (("user", "a"), ("client-id", "c")): {REQUEST: 12.5},
        (("client-id", None),): {CONSUMER: 5.0},
        (("ip", "1.2.3.4"),): {CONNECTION: 7.0},
    }


def test_quotas_are_kept_as_kafka_keeps_them_and_brokers_told(world: World, client: Client) -> None:
    client.ask(
        alter(altered({"user": "a b/ü", "client-id": None}, producer_byte_rate=1000, request_percentage=50)), ALTER
    )
    path = "users/a%20b%2F%C3%BC/clients/<default>"
    assert kept(world, Get(f"/config/{path}")) == {"version": 1, "config": {PRODUCER: "1000", REQUEST: "50.0"}}
    (notice,) = world.ensemble.tree.apply(Children(CONFIG_CHANGES), 0).names
    assert kept(world, Get(f"{CONFIG_CHANGES}/{notice}")) == {"version": 2, "entity_path": path}


def kept(world: World, get: Get) -> object:
    return json.loads(world.ensemble.tree.apply(get, 0).data)


def test_quotas_outlive_a_restart(world: World, client: Client) -> None:
    client.ask(alter(altered(BOTH, producer_byte_rate=1000)), ALTER)
    world.restart()
    assert described(world.client().ask(describe(), DESCRIBE)) == {
        (("user", "a"), ("client-id", "c")): {PRODUCER: 1000.0}
    }
    assert world.broker.quotas is not None
    assert world.broker.quotas.kinds == (True, False, False, False)


def test_a_quota_is_removed_and_the_others_stay(client: Client) -> None:
    client.ask(alter(altered(USER, producer_byte_rate=1000, consumer_byte_rate=5)), ALTER)
    client.ask(alter(altered(USER, producer_byte_rate=None)), ALTER)
    assert described(client.ask(describe(), DESCRIBE)) == {(("user", "a"),): {CONSUMER: 5.0}}


def test_what_is_only_checked_changes_nothing(client: Client) -> None:
    assert codes(client, altered(USER, producer_byte_rate=1), altered(USER, consumer_byte_rate=1.5), validate_only=True)
    assert described(client.ask(describe(), DESCRIBE)) == {}


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), True, []),
        ((("user", 0, "a"),), False, ["a", "a c"]),
        ((("user", 0, "a"),), True, ["a"]),
        ((("user", 1, None),), False, ["None"]),
        ((("user", 2, None),), True, ["None", "a"]),
        ((("client-id", 2, None),), False, ["a c", "c"]),
        ((("client-id", 0, "c"),), True, ["c"]),
        ((("client-id", 2, None), ("user", 2, None)), True, ["a c"]),
        ((("ip", 2, None),), False, ["1.2.3.4"]),
        ((("user", 0, "nobody"),), False, []),
    ],
)
def test_entities_fit_a_filter(
    client: Client, components: tuple[tuple[str, int, str | None], ...], strict: bool, found: list[str]
) -> None:
    entities = (USER, BOTH, CLIENT, {"user": None})
    client.ask(alter(*(altered(each, producer_byte_rate=1) for each in entities)), ALTER)
    client.ask(alter(altered({"ip": "1.2.3.4"}, connection_creation_rate=1)), ALTER)
    answer = client.ask(describe(*components, strict=strict), DESCRIBE)
    assert sorted(" ".join(str(name) for _, name in entity) for entity in described(answer)) == found


INVALID = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("parts", "quotas", "text"),
    [
        ({}, {PRODUCER: 1}, "Invalid empty client quota entity"),
        ({"user": ""}, {PRODUCER: 1}, "Empty user not supported"),
        ({"group": "g"}, {PRODUCER: 1}, "Unhandled client quota entity type: group"),
        (BOTH, {"nope": 1}, "Invalid configuration key nope"),
        (BOTH, {PRODUCER: 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        (BOTH, {PRODUCER: -1}, "Configuration producer_byte_rate must be a LONG value"),
        (BOTH, {PRODUCER: float("inf")}, "Configuration producer_byte_rate must be a LONG value"),
        (BOTH, {CONNECTION: 1}, "Invalid configuration key connection_creation_rate"),
        ({"ip": "1.2.3.4"}, {PRODUCER: 1}, "Invalid configuration key producer_byte_rate"),
        ({"ip": "1.2.3.4"}, {CONNECTION: 1e12}, "Configuration connection_creation_rate must be a INT value"),
        ({"ip": "a.invalid"}, {CONNECTION: 1}, "a.invalid is not a valid IP or resolvable host."),
        ({"ip": "1.2.3.4", **USER}, {CONNECTION: 1}, "Invalid quota entity combination, "
         "IP entity should not be used with user/client ID entity."),
    ],
)  # fmt: skip
def test_what_kafka_refuses_is_refused_in_its_words(
    client: Client, parts: dict[str, str | None], quotas: dict[str, float], text: str
) -> None:
    assert codes(client, altered(parts, **quotas), altered(USER, producer_byte_rate=7))[0] == (INVALID, text)
    assert described(client.ask(describe(), DESCRIBE)) == {(("user", "a"),): {PRODUCER: 7.0}}


def test_no_name_leads_out_of_its_place_in_the_store(client: Client) -> None:
    for parts in ({"user": "."}, {"user": ".."}, {"client-id": ".."}, {"user": "a", "client-id": "."}):
        assert codes(client, altered(dict(parts), producer_byte_rate=1)) == [(ErrorCode.UNKNOWN_SERVER_ERROR, None)]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 2, None), ("user", 2, None)], INVALID),
        ([("ip", 2, None), ("user", 2, None)], INVALID),
        ([("", 2, None)], INVALID),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, None)], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([("user", 3, "a")], ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    client: Client, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    answer = client.ask(describe(*components), DESCRIBE)
    assert (answer.error_code, answer.entries) == (code, None)


def test_credentials_of_a_user_are_no_quotas(world: World, client: Client) -> None:
    world.plane.notices.set_entity("users/a", {"SCRAM-SHA-256": "salt=c2FsdA==", PRODUCER: "5"})
    assert described(client.ask(describe(), DESCRIBE)) == {(("user", "a"),): {PRODUCER: 5.0}}
