"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs on simulated machines."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.facts import BrokerConfigChanged
from kbroker.config.broker import BrokerConfig
from kbroker.config.foreign import PER_LISTENER
from kbroker.config.resolve import RESIZED_BY_STEPS
from kbroker.config.settings import Dynamic, Setting
from kbroker.controller.admin import NewTopic
from kbroker.metadata.store import decode_config
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from tests.controller.cluster import Cluster
from tests.world import World

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    cluster: Cluster, kind: int, name: str, *keys: str, version: int = 4, broker: int = 0, **include: bool
) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )
    return cluster.ask(DescribeConfigsRequest(resources=[resource], **include), version, broker).results[0]


def one(cluster: Cluster, kind: int, name: str, key: str, **more: Any) -> Any:
    (entry,) = describe(cluster, kind, name, key, **more).configs
    return entry


def change(
    cluster: Cluster, kind: int, name: str, *changes: tuple[str, int, str | None], broker: int = 0, **more: Any
) -> ErrorCode:
    configs = [IncrementalAlterableConfig(name=key, config_operation=do, value=text) for key, do, text in changes]
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=more.pop("validate_only", False))
    return ErrorCode(cluster.ask(request, more.pop("version", 1), broker).responses[0].error_code)


def replace(cluster: Cluster, kind: int, name: str, configs: dict[str, str | None], version: int = 2) -> ErrorCode:
    settings = [AlterableConfig(name=key, value=text) for key, text in configs.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=settings)
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    return ErrorCode(cluster.ask(request, version).responses[0].error_code)


# -- describing


@pytest.mark.parametrize("version", range(5))
def test_a_topic_is_described_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t", retention_ms="7")
    entry = one(cluster, TOPIC, "t", "retention.ms", version=version)
    assert (entry.value, entry.is_sensitive, entry.is_default) == ("7", False, False)


def test_sources_and_synonyms_of_a_topic_s_setting() -> None:
    cluster = Cluster(1, log_retention_ms="5")
    cluster.create("t", retention_ms="7")
    entry = one(cluster, TOPIC, "t", "retention.ms", include_synonyms=True)
    synonyms = [(each.name, each.value, each.source) for each in entry.synonyms]
    assert (entry.config_source, entry.config_type) == (1, 5)
    assert synonyms[:2] == [("retention.ms", "7", 1), ("log.retention.ms", "5", 4)]


def test_version_0_tells_defaults_apart() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert one(cluster, TOPIC, "t", "retention.ms", version=0).is_default


def test_documentation_if_asked_for() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    texts = [
        one(cluster, TOPIC, "t", "retention.ms", include_documentation=wanted).documentation for wanted in (False, True)
    ]
    assert texts[0] is None
    assert texts[1]


def test_all_settings_without_keys() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert {"cleanup.policy", "segment.bytes"} <= {each.name for each in describe(cluster, TOPIC, "t").configs}


def test_a_broker_is_described_by_itself() -> None:
    cluster = Cluster(1, 2, num_partitions="6")
    entry = one(cluster, BROKER, "2", "num.partitions", broker=2)
    assert (entry.value, entry.config_source, entry.read_only) == ("6", 4, True)
    assert describe(cluster, BROKER, "2", broker=1).error_code == ErrorCode.INVALID_REQUEST
    assert describe(cluster, BROKER, "two", broker=1).error_code == ErrorCode.INVALID_REQUEST


def test_unknown_topics_and_kinds() -> None:
    cluster = Cluster(1)
    assert describe(cluster, TOPIC, "none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(cluster, TOPIC, "a b").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert describe(cluster, 99, "x").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(5))
def test_a_description_without_anything_to_say_has_an_empty_text_as_kafkas_has(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    for kind, name in ((TOPIC, "t"), (TOPIC, "none"), (BROKER, "1"), (BROKER, "")):
        assert describe(cluster, kind, name, version=version).error_message == ""


def test_a_topic_that_comes_while_another_one_s_settings_are_read_is_not_known_yet() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    cluster.nodes[1].plane.admin.create([NewTopic("b", 1, 1, {}, {})], validate_only=False)
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None) for name in "ab"
    ]
    results = cluster.ask(DescribeConfigsRequest(resources=resources), 4).results
    assert [each.error_code for each in results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_any_broker_describes_topics() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1,))
    change(cluster, TOPIC, "t", ("retention.ms", SET, "7"))
    assert one(cluster, TOPIC, "t", "retention.ms", broker=2).value == "7"


# -- changing topics


def retention_ms(cluster: Cluster, broker: int) -> list[int]:
    """As the broker's logs have it."""
    logs = [each.log for each in cluster.nodes[broker].replicas.partitions.values()]
    return [log.config.retention_ms for log in logs if log is not None]


@pytest.mark.parametrize("version", range(2))
def test_a_change_is_stored_and_in_force_at_once(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t", segment_bytes="100000")
    assert change(cluster, TOPIC, "t", ("retention.ms", SET, "7"), version=version) is ErrorCode.NONE
    assert decode_config(cluster.data("/config/topics/t")) == {"segment.bytes": "100000", "retention.ms": "7"}
    assert (cluster.nodes[1].configs.topic_config("t").retention_ms, retention_ms(cluster, 1)) == (7, [7])


def test_a_change_reaches_the_other_brokers_that_hold_the_topic() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (2, 3))
    change(cluster, TOPIC, "t", ("retention.ms", SET, "7"), broker=1)
    cluster.settle()
    assert [retention_ms(cluster, broker) for broker in (1, 2, 3)] == [[], [7], [7]]
    assert cluster.nodes[3].configs.topic_config("t").retention_ms == 7


def test_deleting_goes_back_to_the_default() -> None:
    cluster = Cluster(1)
    cluster.create("t", retention_ms="7")
    change(cluster, TOPIC, "t", ("retention.ms", DELETE, None))
    assert one(cluster, TOPIC, "t", "retention.ms").config_source == 5


def test_lists_are_appended_to_and_subtracted_from() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    change(cluster, TOPIC, "t", ("cleanup.policy", APPEND, "compact,delete"))
    assert one(cluster, TOPIC, "t", "cleanup.policy").value == "delete,compact"
    change(cluster, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
    assert one(cluster, TOPIC, "t", "cleanup.policy").value == "compact"


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("no.such.thing", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("no.such.thing", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_wrong_with_a_change(wanted: tuple[str, int, str | None], code: ErrorCode) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert change(cluster, TOPIC, "t", ("segment.bytes", SET, "100000"), wanted) is code
    assert decode_config(cluster.data("/config/topics/t")) == {}


def test_what_is_wrong_with_a_resource() -> None:
    cluster = Cluster(1)
    setting = ("retention.ms", SET, "1")
    assert change(cluster, TOPIC, "none", setting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert change(cluster, TOPIC, "", setting) is ErrorCode.INVALID_REQUEST
    assert change(cluster, 8, "1", setting) is ErrorCode.INVALID_REQUEST
    assert change(cluster, BROKER, "2", setting) is ErrorCode.INVALID_REQUEST
    assert change(cluster, BROKER, "x", setting) is ErrorCode.INVALID_REQUEST


def test_a_setting_or_a_resource_twice() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    setting = IncrementalAlterableConfig(name="retention.ms", config_operation=SET, value="1")
    twice = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[setting, setting])
    once = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[setting])
    for resources in ([twice], [once, once]):
        answer = cluster.ask(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1)
        assert {each.error_code for each in answer.responses} == {ErrorCode.INVALID_REQUEST}


def test_trying_changes_nothing() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert change(cluster, TOPIC, "t", ("retention.ms", SET, "7"), validate_only=True) is ErrorCode.NONE
    assert decode_config(cluster.data("/config/topics/t")) == {}
    assert retention_ms(cluster, 1) == [604_800_000]


@pytest.mark.parametrize("version", range(3))
def test_replacing_drops_what_is_not_named(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t", retention_ms="7", segment_bytes="100000")
    assert replace(cluster, TOPIC, "t", {"retention.ms": "8"}, version) is ErrorCode.NONE
    assert decode_config(cluster.data("/config/topics/t")) == {"retention.ms": "8"}
    assert replace(cluster, TOPIC, "t", {"retention.ms": None}, version) is ErrorCode.INVALID_REQUEST


# -- changing brokers


def test_a_broker_s_setting_is_in_force_at_once() -> None:
    cluster = Cluster(1, 2)
    assert change(cluster, BROKER, "1", ("log.retention.ms", SET, "7")) is ErrorCode.NONE
    assert [node.configs.broker.log_retention_ms for node in cluster.nodes.values()] == [7, 604_800_000]
    assert one(cluster, BROKER, "1", "log.retention.ms").config_source == 2
    assert cluster.nodes[1].told.count(BrokerConfigChanged()) == 1


def test_a_setting_of_all_brokers_reaches_all_and_their_topics() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2,))
    assert change(cluster, BROKER, "", ("log.retention.ms", SET, "7")) is ErrorCode.NONE
    cluster.settle()
    assert cluster.nodes[2].configs.topic_config("t").retention_ms == 7
    assert retention_ms(cluster, 2) == [7]
    assert one(cluster, BROKER, "2", "log.retention.ms", broker=2).config_source == 3
    assert [each.name for each in describe(cluster, BROKER, "").configs] == ["log.retention.ms"]


def test_a_broker_remembers_its_settings() -> None:
    cluster = Cluster(1)
    change(cluster, BROKER, "1", ("log.retention.ms", SET, "7"))
    change(cluster, BROKER, "", ("message.max.bytes", SET, "5000"))
    cluster.restart(1)
    broker = cluster.nodes[1].configs.broker
    assert (broker.log_retention_ms, broker.message_max_bytes) == (7, 5000)


HONOURED = [
    each
    for each in BrokerConfig.KEYS.values()
    if each.dynamic is not Dynamic.READ_ONLY and each.unused is None and each.name not in PER_LISTENER
    if not any(check.allowed.startswith("empty: ") for check in each.checks)
]
TEXTS = {  # of settings for which another value than the default is not easily made up
    "compression.type": "gzip",
    "log.cleanup.policy": "compact",
    "log.message.timestamp.type": "LogAppendTime",
    "max.connections.per.ip.overrides": "10.0.0.1:7",
    "log.message.timestamp.difference.max.ms": "77",
    "log.cleaner.dedupe.buffer.size": "2000000",
    "advertised.listeners": "PLAINTEXT://elsewhere:9092",
    "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "ssl.client.auth": "required",
    "ssl.enabled.protocols": "TLSv1.2",
    "ssl.endpoint.identification.algorithm": "HTTPS",
}


def another_value(each: Setting) -> str:
    """A legal text for a setting that is not its default."""
    if each.name in TEXTS:
        return TEXTS[each.name]
    for text in ("1", "2", "7", "77", "7777", "true", "false"):
        try:
            if each.parse(text) != each.default:
                return text
        except ValueError:
            continue
    raise AssertionError(f"a text for {each.name} is wanted here")


@pytest.mark.parametrize("each", HONOURED, ids=lambda each: each.name)
def test_every_dynamic_setting_is_in_force_after_a_restart(each: Setting) -> None:
    cluster = Cluster(1, password_encoder_secret="secret")
    text = another_value(each)
    assert change(cluster, BROKER, "1", (each.name, SET, text)) is ErrorCode.NONE
    cluster.restart(1)
    node = cluster.nodes[1]
    assert getattr(node.configs.broker, each.attribute) == each.parse(text)
    assert BrokerConfigChanged() in node.told


def test_a_change_to_the_same_value_is_told_for_files_may_be_others() -> None:
    """KIP-226: a key store is loaded again by setting its path to what it is."""
    cluster = Cluster(1)
    for _ in range(2):
        before = cluster.nodes[1].told.count(BrokerConfigChanged())
        assert change(cluster, BROKER, "1", ("listener.name.a.ssl.keystore.location", SET, "/x")) is ErrorCode.NONE
        assert cluster.nodes[1].told.count(BrokerConfigChanged()) == before + 1


def test_a_change_whose_files_cannot_be_used_is_refused() -> None:
    cluster = Cluster(1)
    cluster.nodes[1].configs.verify = lambda layers: [f"no: {','.join(layers.dynamic_broker)}"]
    assert change(cluster, BROKER, "1", ("log.retention.ms", SET, "7")) is ErrorCode.INVALID_CONFIG
    assert cluster.nodes[1].configs.layers.dynamic_broker == {}


def test_topics_follow_a_change_that_was_made_while_the_session_was_lost() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2,))
    cluster.nodes[2].store.expire()
    change(cluster, BROKER, "", ("log.retention.ms", SET, "7"))
    cluster.settle()
    assert retention_ms(cluster, 2) == [7]


def test_no_setting_may_shut_everybody_out() -> None:
    cluster = Cluster(1)
    assert change(cluster, BROKER, "1", ("max.connections", SET, "0")) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "", ("max.connections", SET, "0")) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "", ("max.connections", SET, "1")) is ErrorCode.NONE


@pytest.mark.parametrize("key", RESIZED_BY_STEPS)
@pytest.mark.parametrize("name", ["1", ""])
def test_a_number_of_threads_changes_to_half_or_twice_the_present_one_at_most(key: str, name: str) -> None:
    cluster = Cluster(1, **{key.replace(".", "_"): "8"}, log_cleaner_dedupe_buffer_size=str(1 << 30))
    wanted = (17, 16, 33, 7, 8, 4, 1, 3, 2, 1, 0, 3, 2)
    taken = [count for count in wanted if change(cluster, BROKER, name, (key, SET, str(count))) is ErrorCode.NONE]
    assert taken == [16, 8, 4, 3, 2, 1, 2]


def test_the_threads_of_a_listener_change_to_half_or_twice_the_present_number_at_most() -> None:
    cluster = Cluster(1, num_network_threads="4")
    key = "listener.name.plaintext.num.network.threads"
    wanted = ("9", "8", "16", "7", "8", "4", "2")
    taken = [count for count in wanted if change(cluster, BROKER, "1", (key, SET, count)) is ErrorCode.NONE]
    assert taken == ["8", "16", "8", "4", "2"]
    assert change(cluster, BROKER, "1", ("num.network.threads", SET, "8")) is ErrorCode.NONE
    assert change(cluster, BROKER, "1", (key, DELETE, None)) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "1", ("listener.name.other.num.network.threads", SET, "99")) is ErrorCode.NONE


@pytest.mark.parametrize(("in_file", "most"), [("5", 10), ("many", 6)])  # a text that is no number has no effect
def test_the_threads_of_a_listener_in_the_file_are_its_present_number(in_file: str, most: int) -> None:
    cluster = Cluster(1, listener_name_plaintext_num_network_threads=in_file)
    key = "listener.name.plaintext.num.network.threads"
    assert change(cluster, BROKER, "1", (key, SET, str(most + 1))) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "1", (key, SET, str(most))) is ErrorCode.NONE


def test_a_number_of_threads_that_is_no_longer_set_changes_no_faster() -> None:
    cluster = Cluster(1)
    setting = "num.io.threads"
    for count in ("4", "2"):
        assert change(cluster, BROKER, "1", (setting, SET, count)) is ErrorCode.NONE
    assert change(cluster, BROKER, "1", (setting, DELETE, None)) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "1", (setting, SET, "4")) is ErrorCode.NONE
    assert change(cluster, BROKER, "1", (setting, DELETE, None)) is ErrorCode.NONE


def test_no_setting_may_stop_compaction() -> None:
    cluster = Cluster(1)
    assert change(cluster, BROKER, "1", ("log.cleaner.threads", SET, "0")) is ErrorCode.INVALID_CONFIG
    for size in ("0", "128", "1048576"):  # with no more than a megabyte for the keys of each thread
        assert change(cluster, BROKER, "", ("log.cleaner.dedupe.buffer.size", SET, size)) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "", ("log.cleaner.dedupe.buffer.size", SET, "1048600")) is ErrorCode.NONE
    assert change(cluster, BROKER, "1", ("log.cleaner.threads", SET, "2")) is ErrorCode.INVALID_CONFIG


def test_read_only_settings_are_refused() -> None:
    cluster = Cluster(1)
    assert change(cluster, BROKER, "1", ("num.partitions", SET, "7")) is ErrorCode.INVALID_CONFIG
    assert change(cluster, BROKER, "", ("advertised.listeners", SET, "A://b:1")) is ErrorCode.INVALID_CONFIG


# -- groups


def test_a_group_has_the_broker_s_settings_and_its_own() -> None:
    cluster = Cluster(1, group_share_heartbeat_interval_ms="6000")
    assert change(cluster, GROUP, "g", ("share.auto.offset.reset", SET, "earliest")) is ErrorCode.NONE
    assert cluster.nodes[1].configs.group("g") == {"share.auto.offset.reset": "earliest"}
    own = one(cluster, GROUP, "g", "share.auto.offset.reset", include_synonyms=True)
    assert (own.value, own.config_source, own.config_type) == ("earliest", 8, 2)
    assert [(each.value, each.source) for each in own.synonyms] == [("earliest", 8), ("latest", 5)]
    inherited = one(cluster, GROUP, "g", "share.heartbeat.interval.ms", include_synonyms=True)
    assert (inherited.value, inherited.config_source) == ("6000", 4)
    assert [each.name for each in inherited.synonyms] == ["group.share.heartbeat.interval.ms"] * 2
    assert change(cluster, GROUP, "g", ("share.auto.offset.reset", DELETE, None)) is ErrorCode.NONE
    assert one(cluster, GROUP, "g", "share.auto.offset.reset").config_source == 5
    assert cluster.nodes[1].configs.groups == {}


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("share.auto.offset.reset", "by_duration:P1DT2H", ErrorCode.NONE),
        ("share.auto.offset.reset", "soon", ErrorCode.INVALID_CONFIG),
        ("share.isolation.level", "READ_COMMITTED", ErrorCode.INVALID_CONFIG),
        ("share.record.lock.duration.ms", "14999", ErrorCode.INVALID_CONFIG),
        ("share.record.lock.duration.ms", "15000", ErrorCode.NONE),
        ("share.delivery.count.limit", "11", ErrorCode.INVALID_CONFIG),
        ("share.delivery.count.limit", "many", ErrorCode.INVALID_CONFIG),
        ("streams.num.standby.replicas", "3", ErrorCode.INVALID_CONFIG),
        ("streams.task.offset.interval.ms", "14999", ErrorCode.INVALID_CONFIG),
        ("streams.rack.aware.assignment.tags", "a, a", ErrorCode.INVALID_CONFIG),
        ("errors.deadletterqueue.topic.name", "__dead", ErrorCode.INVALID_CONFIG),
        ("errors.deadletterqueue.topic.name", "dlq.orders", ErrorCode.NONE),
        ("share.assignor.offload.enable", "false", ErrorCode.NONE),
        ("retention.ms", "5", ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_of_a_group_that_are_taken(key: str, text: str, code: ErrorCode) -> None:
    assert change(Cluster(1), GROUP, "g", (key, SET, text)) is code


def test_a_session_of_a_group_is_longer_than_a_heartbeat() -> None:
    cluster = Cluster(1, group_share_max_heartbeat_interval_ms="60000")
    assert change(cluster, GROUP, "g", ("share.heartbeat.interval.ms", SET, "45000")) is ErrorCode.INVALID_CONFIG
    assert change(cluster, GROUP, "g", ("share.heartbeat.interval.ms", SET, "44999")) is ErrorCode.NONE


@pytest.mark.parametrize("name", ["g", ".", "..", "a/b", "%2E", "<default>", "\0", "Ü ~"])
def test_every_broker_knows_a_group_s_settings_whatever_its_name(name: str) -> None:
    cluster = Cluster(1, 2)
    assert change(cluster, GROUP, name, ("share.isolation.level", SET, "read_committed")) is ErrorCode.NONE
    cluster.settle()
    said = [node.configs.groups for node in cluster.nodes.values()]
    assert said == [{name: {"share.isolation.level": "read_committed"}}] * 2


def test_no_group_is_without_a_name() -> None:
    cluster = Cluster(1)
    assert change(cluster, GROUP, "", ("share.isolation.level", SET, "read_committed")) is ErrorCode.INVALID_REQUEST
    assert describe(cluster, GROUP, "").error_code == ErrorCode.INVALID_REQUEST


def test_resources_tell_of_groups_with_settings() -> None:
    cluster = Cluster(1)
    change(cluster, GROUP, "g", ("share.isolation.level", SET, "read_committed"))
    answer = cluster.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert [(each.resource_name, each.resource_type) for each in answer.config_resources] == [("g", GROUP)]


def test_a_broker_that_comes_back_reads_what_is_set_for_groups() -> None:
    cluster = Cluster(1, 2)
    change(cluster, GROUP, "g", ("share.isolation.level", SET, "read_committed"))
    change(cluster, GROUP, "h", ("share.isolation.level", SET, "read_committed"))
    cluster.settle()
    assert sorted(cluster.nodes[2].configs.groups) == ["g", "h"]
    cluster.stop(2)
    assert change(cluster, GROUP, "g", ("share.isolation.level", DELETE, None)) is ErrorCode.NONE
    assert list(cluster.start(2).configs.groups) == ["h"]


# -- notices


def test_notices_are_thrown_away_after_a_while() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    change(cluster, TOPIC, "t", ("retention.ms", SET, "7"))
    cluster.settle()
    assert len(cluster.ensemble.tree.nodes["/config/changes"].children) == 1
    cluster.advance(14 * 60 * 1000)
    assert len(cluster.ensemble.tree.nodes["/config/changes"].children) == 1
    cluster.advance(60 * 1000)
    assert len(cluster.ensemble.tree.nodes["/config/changes"].children) == 0


def test_the_controller_counts_in_the_singular_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="kbroker.controller")
    Cluster(1)
    assert "1 broker, 0 topics" in [each.getMessage() for each in caplog.records]


def test_throttles_of_thousands_of_topics_are_set_in_one_request() -> None:
    keys = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    configs = [IncrementalAlterableConfig(name=key, config_operation=SET, value="*") for key in keys]
    resources = [
        IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=f"t{at}", configs=configs)
        for at in range(2000)
    ]
    world = World()
    client = world.client()
    number = client.send(IncrementalAlterConfigsRequest(resources=resources, validate_only=True), 1)
    world.advance(0)  # it is done in slices
    assert client.closing == ""
    codes = [each.error_code for each in client.look()[number].responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2000


def test_no_resource_has_so_many_settings_that_others_would_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.api.configs.ELEMENTS_AT_ONCE", 2)
    cluster = Cluster(1)
    cluster.create("t")
    many = [(f"no.such.{number}", SET, "1") for number in range(3)]
    assert change(cluster, TOPIC, "t", *many[:2]) is ErrorCode.INVALID_CONFIG
    assert change(cluster, TOPIC, "t", *many) is ErrorCode.INVALID_REQUEST


def test_a_list_is_not_appended_to_beyond_what_an_answer_can_tell() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    key = "leader.replication.throttled.replicas"
    lists = [",".join(f"{at}:{number}" for number in range(4_000)) for at in range(2)]
    assert [change(cluster, TOPIC, "t", (key, APPEND, more)) for more in lists] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
    ]
    assert one(cluster, TOPIC, "t", key, version=0).value == lists[0]


def test_settings_are_not_larger_than_zookeeper_takes() -> None:
    cluster = Cluster(1)
    for at in range(34):
        code = change(cluster, BROKER, "", (f"unknown.to.brokers.{at}", SET, "x" * 32_000))
        assert code is (ErrorCode.NONE if at < 31 else ErrorCode.POLICY_VIOLATION), at
    assert change(cluster, BROKER, "", ("log.retention.ms", SET, "5")) is ErrorCode.NONE
