"""Which value counts, where it came from, and what may be changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.config import (
    ONE_BROKER,
    BrokerConfig,
    BrokerLayers,
    ConfigError,
    ConfigType,
    Entry,
    Given,
    Source,
    Synonym,
    check_broker,
    check_topic,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    foreign,
    listener_limits,
    resolve_broker,
    resolve_topic,
    warnings,
)

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def given(values: Mapping[str, str]) -> dict[str, Given]:
    return {key: Given(text, "server.properties line 1") for key, text in values.items()}


def broker(**static: str) -> BrokerConfig:
    return resolve_broker(BrokerLayers(static=given({key.replace("_", "."): text for key, text in static.items()})))


def entry(entries: list[Entry], name: str) -> Entry:
    (found,) = [each for each in entries if each.name == name]
    return found


# --- values


def test_minutes_beat_hours_and_milliseconds_beat_both() -> None:
    assert broker(log_retention_hours="2").log_retention_ms == 2 * HOUR_MS
    assert broker(log_retention_hours="2", log_retention_minutes="3").log_retention_ms == 3 * MINUTE_MS
    assert broker(log_retention_minutes="3", log_retention_ms="4").log_retention_ms == 4


def test_retention_of_minus_one_hour_is_for_ever() -> None:
    assert broker(log_retention_hours="-1").log_retention_ms == -1


def test_log_dirs_default_to_log_dir() -> None:
    assert broker().log_dirs == ("/tmp/kafka-logs",)
    assert broker(log_dir="/data").log_dirs == ("/data",)
    assert broker(log_dir="/data", log_dirs="/a,/b").log_dirs == ("/a", "/b")


def test_node_id_is_another_name_of_broker_id() -> None:
    assert broker(node_id="7").broker_id == 7


def test_key_left_empty_is_not_set() -> None:
    assert broker(broker_rack="").broker_rack is None


def test_dynamic_for_one_beats_dynamic_for_all_beats_static_beats_one_broker_beats_default() -> None:
    key = "message.max.bytes"
    layers = BrokerLayers()
    seen = [resolve_broker(layers).message_max_bytes]
    layers = BrokerLayers(alone={key: "1"})
    seen.append(resolve_broker(layers).message_max_bytes)
    layers = BrokerLayers(alone={key: "1"}, static=given({key: "2"}))
    seen.append(resolve_broker(layers).message_max_bytes)
    seen.append(resolve_broker(layers.with_dynamic(broker={}, default={key: "3"})).message_max_bytes)
    seen.append(resolve_broker(layers.with_dynamic(broker={key: "4"}, default={key: "3"})).message_max_bytes)
    assert seen == [1_048_588, 1, 2, 3, 4]


def test_lone_broker_does_not_wait_for_members_nor_ask_for_replicas() -> None:
    config = resolve_broker(BrokerLayers(alone=ONE_BROKER))
    assert (config.group_initial_rebalance_delay_ms, config.offsets_topic_replication_factor) == (0, 1)


def test_topic_without_override_follows_the_broker() -> None:
    config = broker(log_retention_hours="1", message_max_bytes="500")
    topic = resolve_topic({"max.message.bytes": "600"}, config)
    assert (topic.retention_ms, topic.max_message_bytes) == (HOUR_MS, 600)


def test_older_name_sets_both_timestamp_limits() -> None:
    topic = resolve_topic({"message.timestamp.difference.max.ms": "5"}, broker())
    assert (topic.message_timestamp_before_max_ms, topic.message_timestamp_after_max_ms) == (5, 5)


def test_override_of_a_key_we_do_not_know_is_passed_by() -> None:
    assert resolve_topic({"confluent.tier.enable": "true"}, broker()).segment_bytes == 1_073_741_824


# --- faults


def test_every_bad_value_gets_a_line_with_key_value_allowed_and_place() -> None:
    with pytest.raises(ConfigError) as caught:
        broker(num_partitions="none", log_cleanup_policy="forget")
    assert caught.value.lines == [
        "num.partitions=none: allowed: a 32-bit integer, at least 1 (server.properties line 1)",
        "log.cleanup.policy=forget: allowed: a comma-separated list, a list of compact, delete "
        "(server.properties line 1)",
    ]


@pytest.mark.parametrize(
    "static",
    [
        {"broker.id": "1", "node.id": "2"},
        {"log.roll.ms": "0"},
        {"log.retention.ms": "0"},
        {"log.dirs": ""},
        {"queued.max.request.bytes": "10"},
        {"max.connections.per.ip": "0"},
        {"max.connections": "0"},
        {"group.min.session.timeout.ms": "2000000"},
        {"replica.lag.time.max.ms": "10"},
        {"log.cleaner.threads": "0"},
        {"log.cleaner.dedupe.buffer.size": "1048576"},
        {"log.cleaner.threads": "128"},
    ],
)
def test_values_that_contradict_each_other_are_refused(static: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        resolve_broker(BrokerLayers(static=given(static)))


def test_unknown_key_is_told_the_nearest_known_one() -> None:
    (line,) = warnings(given({"advertised.listener": "PLAINTEXT://a:1"}))
    assert line == "advertised.listener: unknown key; did you mean advertised.listeners? (server.properties line 1)"


def test_key_without_effect_is_named_once_with_the_reason() -> None:
    lines = warnings(given({"num.network.threads": "8", "ssl.provider": "x", "log.dirs": "/data"}))
    assert [line.split(":")[0] for line in lines] == ["num.network.threads", "ssl.provider"]
    assert "one thread serves all connections" in lines[0]


def test_key_without_effect_at_its_default_is_not_worth_a_line() -> None:
    assert warnings(given({"num.network.threads": "3"})) == []


@pytest.mark.parametrize(
    ("name", "is_enough"),
    [
        ({}, False),
        ({"zookeeper.ssl.client.enable": "true"}, False),
        ({"zookeeper.ssl.keystore.location": "/own.pem"}, False),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "/own.pem"}, True),
        ({"kbroker.zookeeper.sasl.jaas.config": 'DigestLoginModule required username="k" password="p";'}, True),
    ],
)
def test_nodes_for_brokers_alone_need_a_name_of_the_broker(name: dict[str, str], is_enough: bool) -> None:
    layers = BrokerLayers(given({"zookeeper.set.acl": "true", **name}))
    if is_enough:
        assert resolve_broker(layers).zookeeper_set_acl
        return
    with pytest.raises(ConfigError, match=r"zookeeper.set.acl=true: allowed: with a login"):
        resolve_broker(layers)


# --- changes


def test_read_only_key_cannot_be_changed_while_running() -> None:
    (line,) = check_broker({"num.partitions": "3"}, BrokerLayers(), per_broker=True)
    assert line.startswith("Cannot update these configs dynamically: num.partitions")


TWO_LISTENERS = {
    "listeners": "INSIDE://:9092,OUTSIDE://:9093",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


@pytest.mark.parametrize(
    ("advertised", "fault"),
    [
        ("INSIDE://a:1,OUTSIDE://b:2", None),
        ("INSIDE://a:1", None),
        ("OUTSIDE://b:2", "inter.broker.listener.name=INSIDE: allowed: OUTSIDE"),
        ("INSIDE://a:1,ELSEWHERE://b:2", "names of listener.security.protocol.map"),
        ("junk", "allowed: NAME://host:port"),
        ("INSIDE://0.0.0.0:1", "an address that clients can reach"),
    ],
)
def test_what_clients_are_told_may_change_while_running(advertised: str, fault: str | None) -> None:
    layers, change = BrokerLayers(static=given(TWO_LISTENERS)), {"advertised.listeners": advertised}
    lines = check_broker(change, layers, per_broker=True)
    assert lines == [] if fault is None else fault in lines[0]
    assert "broker id must be specified" in check_broker(change, layers, per_broker=False)[0]


def test_brokers_keep_the_listener_that_they_speak_over() -> None:
    static = given(TWO_LISTENERS | {"control.plane.listener.name": "OUTSIDE"})
    del static["inter.broker.listener.name"]
    (line,) = check_broker({"advertised.listeners": "OUTSIDE://b:2"}, BrokerLayers(static=static), per_broker=True)
    assert line.startswith("control.plane.listener.name=OUTSIDE: allowed: an advertised listener that is not")
    del static["control.plane.listener.name"]
    (line,) = check_broker({"advertised.listeners": "OUTSIDE://b:2"}, BrokerLayers(static=static), per_broker=True)
    assert line == "advertised.listeners=OUTSIDE://b:2: allowed: with INSIDE, over which brokers speak to each other"


def test_key_of_one_broker_cannot_be_set_for_all() -> None:
    change = {"sasl.enabled.mechanisms": "PLAIN"}
    assert len(check_broker(change, BrokerLayers(), per_broker=False)) == 1
    assert check_broker(change, BrokerLayers(), per_broker=True) == []


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_throttled_rates_can_be_set_for_one_broker_and_for_all(role: str) -> None:
    change = {f"{role}.replication.throttled.rate": "1"}
    assert [check_broker(change, BrokerLayers(), per_broker=per_broker) for per_broker in (True, False)] == [[], []]


def test_dynamic_value_is_checked_like_a_static_one() -> None:
    (line,) = check_broker({"message.max.bytes": "-1"}, BrokerLayers(), per_broker=False)
    assert line == "Invalid value -1 for configuration message.max.bytes: must be a 32-bit integer, at least 0"


def test_what_no_topic_could_have_is_refused_for_the_broker() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"}
    line = "log.cleaner.min.compaction.lag.ms=5: allowed: at most log.cleaner.max.compaction.lag.ms (4)"
    assert check_broker(lags, BrokerLayers(), per_broker=False) == [line]


def test_a_bad_value_for_all_is_refused_where_this_broker_has_one_of_its_own() -> None:
    layers = BrokerLayers(dynamic_broker={"message.max.bytes": "1"})
    (line,) = check_broker({"message.max.bytes": "abc"}, layers, per_broker=False)
    assert line == "Invalid value abc for configuration message.max.bytes: must be a 32-bit integer, at least 0"


@pytest.mark.parametrize("per_broker", [True, False])
def test_an_unknown_dynamic_key_is_taken(per_broker: bool) -> None:
    assert check_broker({"no.such.key": "1"}, BrokerLayers(), per_broker=per_broker) == []


@pytest.mark.parametrize(
    ("key", "text", "for_one", "for_all"),
    [
        ("sasl.kerberos.min.time.before.relogin", "1000", "", "Cannot update these configs at default cluster level"),
        ("sasl.kerberos.min.time.before.relogin", "soon", "Invalid value soon for", "Cannot update these configs at"),
        ("remote.fetch.max.wait.ms", "7", "", ""),
        ("zookeeper.set.acl", "true", "Cannot update these configs dynamically", "Cannot update these configs dyna"),
        ("ssl.keystore.location", "/x", "These security configs can be", "These security configs can be"),
        ("listener.name.a.ssl.keystore.location", "/x", "", "Cannot update these configs at default cluster level"),
        ("listener.name.a.max.connections", "7", "", ""),
        ("listener.name.a.max.connections", "many", "Invalid value many for", "Invalid value many for"),
        ("listener.name.a.no.such.key", "7", "", "Cannot update these configs at default cluster level"),
    ],
)
def test_keys_of_parts_that_are_not_here_are_taken_as_kafka_takes_them(
    key: str, text: str, for_one: str, for_all: str
) -> None:
    for per_broker, expected in ((True, for_one), (False, for_all)):
        faults = check_broker({key: text}, BrokerLayers(), per_broker=per_broker)
        assert (faults[0] if faults else "").startswith(expected)
        assert bool(faults) == bool(expected)


def test_apaches_dynamic_keys_are_known_here() -> None:
    table = Path(__file__).with_name("kafka-configs.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in table[1:]]
    here = foreign.KNOWN.keys() | foreign.FIXED
    assert [
        name for scope, name, _, _, of_39, _ in rows if scope == "broker" and of_39 != "-" and name not in here
    ] == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"retention.m": "1"}, "Unknown topic config name: retention.m; did you mean retention.ms?"),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: must be a 64-bit integer, at least -1",
        ),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms=5: allowed: at most max.compaction.lag.ms (4)",
        ),
    ],
)
def test_bad_topic_override_gets_one_line(changes: dict[str, str], line: str) -> None:
    assert check_topic(changes, broker()) == [line]


# --- descriptions


def test_topic_value_from_the_broker_names_its_source() -> None:
    layers = BrokerLayers(static=given({"log.retention.ms": "5", "log.retention.hours": "1"}))
    found = entry(describe_topic({}, layers, resolve_broker(layers)), "retention.ms")
    assert (found.value, found.source) == ("5", Source.STATIC_BROKER_CONFIG)
    assert found.synonyms == (
        Synonym("log.retention.ms", "5", Source.STATIC_BROKER_CONFIG),
        Synonym("log.retention.hours", "1", Source.STATIC_BROKER_CONFIG),
        Synonym("log.retention.hours", "168", Source.DEFAULT_CONFIG),
    )


@pytest.mark.parametrize("static", [{}, {"log.retention.hours": "1", "log.roll.hours": "1"}])
@pytest.mark.parametrize("key", ["retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms"])
def test_older_names_alone_are_no_synonyms_of_a_topics_setting(static: dict[str, str], key: str) -> None:
    layers = BrokerLayers(static=given(static))
    found = entry(describe_topic({}, layers, resolve_broker(layers)), key)
    assert (found.source, found.synonyms) == (Source.DEFAULT_CONFIG, ())


def test_topic_override_comes_first_among_its_synonyms() -> None:
    layers = BrokerLayers(dynamic_default={"message.max.bytes": "2"})
    found = entry(describe_topic({"max.message.bytes": "1"}, layers, resolve_broker(layers)), "max.message.bytes")
    assert [(each.name, each.value, each.source) for each in found.synonyms] == [
        ("max.message.bytes", "1", Source.DYNAMIC_TOPIC_CONFIG),
        ("message.max.bytes", "2", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("message.max.bytes", "1048588", Source.DEFAULT_CONFIG),
    ]


def test_topic_setting_without_a_broker_key_has_no_synonyms_by_default() -> None:
    found = entry(describe_topic({}, BrokerLayers(), broker()), "leader.replication.throttled.replicas")
    assert (found.value, found.source, found.synonyms) == ("", Source.DEFAULT_CONFIG, ())


def test_broker_key_without_value_shows_none() -> None:
    found = entry(describe_broker(BrokerLayers()), "log.retention.ms")
    assert (found.value, found.source, found.read_only) == (None, Source.DEFAULT_CONFIG, False)


def test_broker_entry_lists_the_older_names_behind_its_own() -> None:
    layers = BrokerLayers(static=given({"log.retention.ms": "5", "log.retention.hours": "1"}))
    found = entry(describe_broker(layers), "log.retention.ms")
    assert [each.name for each in found.synonyms] == ["log.retention.ms", "log.retention.hours", "log.retention.hours"]


def test_one_broker_value_shows_as_static_on_the_wire_and_as_itself_inside() -> None:
    found = entry(describe_broker(BrokerLayers(alone=ONE_BROKER)), "group.initial.rebalance.delay.ms")
    assert (found.value, found.source, found.source.wire) == ("0", Source.ONE_BROKER_CONFIG, 4)


def test_a_static_value_shows_once_where_one_broker_would_assume_another() -> None:
    key = "group.initial.rebalance.delay.ms"
    found = entry(describe_broker(BrokerLayers(alone=ONE_BROKER, static=given({key: "7"}))), key)
    assert [(each.value, each.source.wire) for each in found.synonyms] == [("7", 4), ("3000", 5)]


def test_secret_shows_no_value_anywhere() -> None:
    layers = BrokerLayers(static=given({"sasl.jaas.config": 'M required password="hunter2";'}))
    found = entry(describe_broker(layers), "sasl.jaas.config")
    assert (found.value, found.sensitive, [each.value for each in found.synonyms]) == (None, True, [None])


def test_internal_key_shows_only_when_set() -> None:
    names = {each.name for each in describe_broker(BrokerLayers())}
    assert "log.initial.task.delay.ms" not in names
    set_ = BrokerLayers(static=given({"log.initial.task.delay.ms": "1"}))
    assert entry(describe_broker(set_), "log.initial.task.delay.ms").value == "1"


def test_empty_broker_name_lists_what_was_set_for_all() -> None:
    (found,) = describe_all_brokers(BrokerLayers(dynamic_default={"message.max.bytes": "2"}))
    assert (found.name, found.value, found.source) == ("message.max.bytes", "2", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_an_unknown_key_that_was_set_shows_without_its_value_and_says_that_it_has_no_effect() -> None:
    layers = BrokerLayers(dynamic_default={"some.new.key": "1", "message.max.bytes": "2"})
    found = entry(describe_all_brokers(layers), "some.new.key")
    assert (found.value, found.sensitive, found.read_only, found.type) == (None, True, True, ConfigType.UNKNOWN)
    assert found.synonyms == (Synonym("some.new.key", None, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),)
    assert "no effect" in found.documentation
    assert entry(describe_broker(layers), "some.new.key") == found


def test_a_key_of_a_part_that_is_not_here_shows_what_was_set_and_that_it_has_no_effect() -> None:
    layers = BrokerLayers(dynamic_broker={"sasl.kerberos.min.time.before.relogin": "1000"})
    found = entry(describe_broker(layers), "sasl.kerberos.min.time.before.relogin")
    assert [(each.value, each.source) for each in found.synonyms] == [
        ("1000", Source.DYNAMIC_BROKER_CONFIG),
        ("60000", Source.DEFAULT_CONFIG),
    ]
    assert (found.value, found.read_only, found.type) == ("1000", False, ConfigType.LONG)
    assert found.documentation.endswith("and has no login of Java's to refresh.")


def test_what_is_set_for_all_shows_no_default_beside_it() -> None:
    layers = BrokerLayers(dynamic_default={"remote.fetch.max.wait.ms": "7"})
    (found,) = describe_all_brokers(layers)
    assert found.synonyms == (Synonym("remote.fetch.max.wait.ms", "7", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),)


def test_a_listeners_own_limits_beat_no_ones_but_its_own() -> None:
    given = {
        "listener.name.a.max.connections": Given("7", "file"),
        "listener.name.b.max.connection.creation.rate": Given("9", "file"),
    }
    layers = BrokerLayers(static=given, dynamic_default={"listener.name.a.max.connections": "8"})
    assert listener_limits(layers, "A") == {"max.connections": 8}
    assert listener_limits(layers, "B") == {"max.connection.creation.rate": 9}
    assert listener_limits(layers, "C") == {}
    assert warnings({**given, "listeners": Given("A://:1,B://:2", "file")}) == []


def test_a_listeners_own_limit_that_is_no_number_is_refused_by_its_whole_name() -> None:
    layers = BrokerLayers(static={"listener.name.a.max.connections": Given("many", "file")})
    with pytest.raises(ConfigError) as caught:
        listener_limits(layers, "A")
    assert caught.value.lines == ["listener.name.a.max.connections=many: allowed: a 32-bit integer, at least 0 (file)"]


def test_a_listeners_own_setting_shows_under_its_whole_name() -> None:
    layers = BrokerLayers(
        dynamic_broker={"listener.name.a.max.connections": "7", "listener.name.a.ssl.key.password": "p"}
    )
    found = entry(describe_broker(layers), "listener.name.a.max.connections")
    assert (found.value, found.read_only, len(found.synonyms)) == ("7", True, 1)
    hidden = entry(describe_broker(layers), "listener.name.a.ssl.key.password")
    assert (hidden.value, hidden.sensitive, hidden.synonyms[0].value) == (None, True, None)


def test_a_setting_that_is_not_acted_on_says_so_in_its_documentation() -> None:
    found = entry(describe_broker(BrokerLayers()), "num.network.threads")
    assert "Has no effect here: one thread" in found.documentation
