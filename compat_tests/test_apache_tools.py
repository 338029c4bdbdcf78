"""Apache's own command line tools as bin/kafka-*.sh runs them: the last release with ZooKeeper, and the newest."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.apache import NEWEST, RELEASES, run_tool
from compat_tests.brokers import Place
from compat_tests.clients import Driver
from compat_tests.test_groups import fill
from compat_tests.waiting import eventually

SECTION = "7 Apache's tools"
TOOLS = "org.apache.kafka.tools"
CONFIGS = {"3.9.1": "kafka.admin.ConfigCommand", NEWEST: f"{TOOLS}.ConfigCommand"}
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = {"3.9.1": "kafka.tools.ConsoleProducer", NEWEST: f"{TOOLS}.ConsoleProducer"}
API_VERSIONS = {"3.9.1": "kafka.admin.BrokerApiVersionsCommand", NEWEST: f"{TOOLS}.BrokerApiVersionsCommand"}
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.parametrize("release", RELEASES)]


def run(release: str, main_class: str, *arguments: str, text: str | None = None, code: int = 0) -> str:
    """What the tool said; it must end with `code`."""
    done = run_tool(release, main_class, *arguments, text=text, timeout_s=90)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def topics(release: str, broker: Place, *arguments: str) -> str:
    return run(release, f"{TOOLS}.TopicCommand", "--bootstrap-server", broker.address, *arguments)


def groups(release: str, broker: Place, *arguments: str) -> str:
    patience = ["--timeout", "30000"] * ("--describe" in arguments)  # its own are 5 s, too few on a busy machine
    return run(release, GROUPS, "--bootstrap-server", broker.address, *arguments, *patience)


def test_api_versions(release: str, broker: Place) -> None:
    """kafka-broker-api-versions lists what the broker serves"""
    said = run(release, API_VERSIONS[release], "--bootstrap-server", broker.address)
    assert "Produce(0): " in said


def test_topics_create_and_describe(release: str, broker: Place, topic: str) -> None:
    """kafka-topics creates, describes"""
    settings = ["--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=1000"]
    topics(release, broker, "--create", "--topic", topic, *settings)
    said = topics(release, broker, "--describe", "--topic", topic)
    assert said.count("Leader: ") == 3
    assert "retention.ms=1000" in said


def test_topics_alter_and_delete(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-topics adds partitions, deletes"""
    reference.create_topic(topic)
    topics(release, broker, "--alter", "--topic", topic, "--partitions", "4")
    eventually(lambda: reference.partitions(topic) == [0, 1, 2, 3])
    topics(release, broker, "--delete", "--topic", topic)
    eventually(lambda: topic not in reference.topics())


def test_console_producer_and_consumer(release: str, broker: Place, topic: str) -> None:
    """kafka-console-producer and -consumer"""
    bootstrap = ["--bootstrap-server", broker.address, "--topic", topic]
    run(release, CONSOLE_PRODUCER[release], *bootstrap, text="one\ntwo\nthree\n")
    said = run(release, CONSOLE_CONSUMER, *bootstrap, "--from-beginning", "--max-messages", "3")
    assert said.split() == ["one", "two", "three"]


READ = "parse.key=true parse.headers=true key.separator=: headers.delimiter=| null.marker=NULL"
PRINTED = "print.key=true print.headers=true print.partition=true print.offset=true key.separator=; null.literal=none"
LINES = "a:1,b:NULL|k:v\nNULL|NULL:NULL\nc:|:\n"


def properties(release: str, text: str, whose: str) -> list[str]:
    """By the option's name in that release: it says of the older one, on standard output, that it will go."""
    return [word for each in text.split() for word in ("--property" if release < "4" else f"--{whose}-property", each)]


def ours(*words: str, text: str = "") -> str:
    """What a command of kbroker's says, given the words of Apache's tool."""
    command = [sys.executable, "-m", "kbroker", *words]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, timeout=90).stdout


def test_our_console_says_what_apaches_says(release: str, broker: Place, topic: str) -> None:
    """kafka-console-producer and -consumer, and kbroker's commands, with the same words"""
    bootstrap = ["--bootstrap-server", broker.address, "--topic", topic]
    run(release, CONSOLE_PRODUCER[release], *bootstrap, *properties(release, READ, "reader"), text=LINES)
    ours("produce", *bootstrap, *properties(release, READ, "reader"), text=LINES)
    wanted = [*bootstrap, "--from-beginning", "--max-messages", "6"]
    for printed in (PRINTED, "print.value=false print.timestamp=true print.headers=true headers.separator=/"):
        said = run(release, CONSOLE_CONSUMER, *wanted, *properties(release, printed, "formatter"))
        assert ours("consume", *wanted, *properties(release, printed, "formatter")) == said
    texts = [
        line.partition(";")[2].partition(";")[2]
        for line in ours("consume", *wanted, *properties(release, PRINTED, "formatter")).split()
    ]
    assert texts[:3] == texts[3:]  # what Apache's tool has made of the lines, and ours


def test_our_console_reads_numbers_as_apaches(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-console-consumer with deserializers, and kbroker consume with the same words"""
    reference.create_topic(topic)
    packed = "".join(map(chr, struct.pack(">q", 0x0102030405060708)))
    ours("produce", "--bootstrap-server", broker.address, "--topic", topic, "-D", "\\xff", text=packed)
    form = properties(release, "value.deserializer=org.apache.kafka.common.serialization.LongDeserializer", "formatter")
    words = ["--bootstrap-server", broker.address, "--topic", topic, "--from-beginning", "--max-messages", "1", *form]
    assert ours("consume", *words) == run(release, CONSOLE_CONSUMER, *words) == f"{0x0102030405060708}\n"


def test_console_consumer_in_a_group(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-console-consumer in a group, twice: the second resumes"""
    fill(reference, topic, partitions=1, each=4)
    group = ["--bootstrap-server", broker.address, "--topic", topic, "--group", f"g-{topic}"]
    first = run(release, CONSOLE_CONSUMER, *group, "--from-beginning", "--max-messages", "2")
    second = run(release, CONSOLE_CONSUMER, *group, "--max-messages", "2")
    assert (first.split(), second.split()) == (["0-0", "0-1"], ["0-2", "0-3"])


def test_performance_tools(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-producer-perf-test and kafka-consumer-perf-test, 50,000 records"""
    reference.create_topic(topic, partitions=2)
    load = ["--num-records", "50000", "--record-size", "100", "--throughput", "-1"]
    props = ["--producer-props", f"bootstrap.servers={broker.address}", "acks=1"]
    assert "50000 records sent" in run(release, f"{TOOLS}.ProducerPerformance", "--topic", topic, *load, *props)
    wanted = ["--messages", "50000", "--timeout", "30000"]
    said = run(release, f"{TOOLS}.ConsumerPerformance", "--bootstrap-server", broker.address, "--topic", topic, *wanted)
    assert int(float(said.splitlines()[-1].split(",")[4])) >= 50_000


def test_verifiable_producer_and_consumer(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-verifiable-producer and kafka-verifiable-consumer"""
    reference.create_topic(topic)
    bootstrap = ["--bootstrap-server", broker.address, "--topic", topic]
    sent = run(release, f"{TOOLS}.VerifiableProducer", *bootstrap, "--max-messages", "200", "--acks", "-1")
    assert json.loads(sent.splitlines()[-1])["acked"] == 200
    consumer = ["--group-id", f"g-{topic}", "--max-messages", "200", "--reset-policy", "earliest"]
    read = run(release, f"{TOOLS}.VerifiableConsumer", *bootstrap, *consumer)
    events = [json.loads(line) for line in read.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 200


def test_end_to_end_latency(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-e2e-latency, 200 records"""
    reference.create_topic(topic)
    if release < "4":
        arguments = [broker.address, topic, "200", "1", "100"]
    else:
        sizes = ["--num-records", "200", "--producer-acks", "1", "--record-size", "100"]
        arguments = ["--bootstrap-server", broker.address, "--topic", topic, *sizes]
    assert "Avg latency" in run(release, f"{TOOLS}.EndToEndLatency", *arguments)


def test_configs(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-configs alters, describes and takes back a topic's setting"""
    reference.create_topic(topic)
    entity = ["--bootstrap-server", broker.address, "--entity-type", "topics", "--entity-name", topic]
    run(release, CONFIGS[release], *entity, "--alter", "--add-config", "max.message.bytes=123456")
    assert "max.message.bytes=123456" in run(release, CONFIGS[release], *entity, "--describe")
    run(release, CONFIGS[release], *entity, "--alter", "--delete-config", "max.message.bytes")
    assert reference.topic_configs(topic)["max.message.bytes"] == "1048588"


def test_quotas(release: str, broker: Place, topic: str) -> None:
    """kafka-configs sets, describes and removes quotas of users, client ids and addresses"""

    def configs(*arguments: str) -> str:
        return run(release, CONFIGS[release], "--bootstrap-server", broker.address, *arguments)

    user = ["--entity-type", "users", "--entity-name", topic]
    both = [*user, "--entity-type", "clients", "--entity-default"]
    address = ["--entity-type", "ips", "--entity-name", "10.0.0.1"]
    configs("--alter", *user, "--add-config", "producer_byte_rate=1000000,request_percentage=25.5")
    configs("--alter", *both, "--add-config", "consumer_byte_rate=2000000")
    configs("--alter", *address, "--add-config", "connection_creation_rate=100")
    said = configs("--describe", *user)
    assert f"user-principal '{topic}'" in said
    assert "producer_byte_rate=1000000.0" in said
    assert "request_percentage=25.5" in said
    assert "consumer_byte_rate=2000000.0" in configs("--describe", *both)
    assert "connection_creation_rate=100.0" in configs("--describe", *address)
    configs("--alter", *user, "--delete-config", "producer_byte_rate,request_percentage")
    configs("--alter", *both, "--delete-config", "consumer_byte_rate")
    configs("--alter", *address, "--delete-config", "connection_creation_rate")
    assert "producer_byte_rate" not in configs("--describe", *user)


def test_configs_of_the_broker(release: str, broker: Place, reference: Driver) -> None:
    """kafka-configs describes all settings of the broker, and alters one"""
    node = str(reference.brokers()[0][0])
    entity = ["--bootstrap-server", broker.address, "--entity-type", "brokers", "--entity-name", node]
    run(release, CONFIGS[release], *entity, "--alter", "--add-config", "log.cleaner.threads=2")
    said = run(release, CONFIGS[release], *entity, "--describe", "--all")
    run(release, CONFIGS[release], *entity, "--alter", "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads=2" in said
    assert "log.segment.bytes=1073741824" in said


def test_consumer_groups_describe(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-consumer-groups lists, describes members, state, offsets and lag"""
    fill(reference, topic, partitions=1, each=3)
    group = f"g-{topic}"
    reference.join("tool", group, [topic])
    reference.poll("tool", 3)
    reference.commit("tool")
    reference.produce(topic, [{"value": "lag"}])
    listed = groups(release, broker, "--list")
    offsets = groups(release, broker, "--describe", "--group", group)
    state = groups(release, broker, "--describe", "--group", group, "--state")
    members = groups(release, broker, "--describe", "--group", group, "--members")
    reference.leave("tool")
    assert group in listed.split()
    assert offsets.split()[offsets.split().index(topic) + 1 :][:4] == ["0", "3", "4", "1"]
    assert "Stable" in state
    assert "kafka-python" in members


def test_consumer_groups_reset_and_delete(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-consumer-groups resets offsets, deletes offsets, deletes a group"""
    fill(reference, topic, partitions=1, each=3)
    group = f"g-{topic}"
    reference.join("tool", group, [topic])
    reference.poll("tool", 3)
    reference.commit("tool")
    reference.leave("tool")
    groups(release, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "1", "--execute")
    assert reference.committed(group, topic, 0) == 1
    groups(release, broker, "--delete-offsets", "--group", group, "--topic", topic)
    assert reference.committed(group, topic, 0) is None
    groups(release, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    groups(release, broker, "--delete", "--group", group)
    assert group not in reference.groups()


def test_log_dirs(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-log-dirs tells sizes"""
    fill(reference, topic, partitions=2, each=1)
    bootstrap = ["--bootstrap-server", broker.address, "--describe", "--topic-list", topic]
    said = run(release, f"{TOOLS}.LogDirsCommand", *bootstrap)
    described = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    found = [one["partition"] for one in described["brokers"][0]["logDirs"][0]["partitions"]]
    assert sorted(found) == [f"{topic}-0", f"{topic}-1"]


@pytest.mark.parametrize(
    ("time", "offset"), [("earliest", 1), ("latest", 3), ("max-timestamp", 2), ("1700000000015", 2)]
)
def test_get_offsets(release: str, broker: Place, reference: Driver, topic: str, time: str, offset: int) -> None:
    """kafka-get-offsets --time {time}"""
    reference.create_topic(topic, configs={"retention.ms": "-1"})  # the records are old
    for number in range(3):
        reference.produce(topic, [{"value": "v", "timestamp": 1_700_000_000_000 + 10 * number}])
    reference.delete_records(topic, 0, 1)
    bootstrap = ["--bootstrap-server", broker.address, "--topic", topic, "--time", time]
    assert run(release, f"{TOOLS}.GetOffsetShell", *bootstrap).strip() == f"{topic}:0:{offset}"


def test_delete_records(release: str, broker: Place, reference: Driver, topic: str, tmp_path: Path) -> None:
    """kafka-delete-records"""
    fill(reference, topic, partitions=1, each=5)
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]}))
    bootstrap = ["--bootstrap-server", broker.address, "--offset-json-file", str(file)]
    run(release, f"{TOOLS}.DeleteRecordsCommand", *bootstrap)
    assert reference.bounds(topic, 0) == (3, 5)


def test_leader_election(release: str, broker: Place, reference: Driver, topic: str) -> None:
    """kafka-leader-election, preferred"""
    reference.create_topic(topic)
    place = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    said = run(release, f"{TOOLS}.LeaderElectionCommand", "--bootstrap-server", broker.address, *place)
    assert "leader" in said.lower() or "Valid replica already elected" in said


def test_cluster_id(release: str, broker: Place) -> None:
    """kafka-cluster tells the cluster's id"""
    said = run(release, f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.address)
    assert said.startswith("Cluster ID: ")
