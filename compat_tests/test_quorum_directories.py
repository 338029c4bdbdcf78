"""A member's directories and metadata log beside Apache's: handed to and fro, read by its tool, while controllers die.

Three controllers of Apache Kafka 4.4.0 take snapshots all the time and forget the log before. One kbroker is a member;
an Apache broker of the same node id takes its directories over, and gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests import waiting
from compat_tests.apache import NEWEST, BrokerServer, Quorum, QuorumBroker, Server, free_port, run_tool
from compat_tests.brokers import KbrokerMember
from compat_tests.raw import METADATA, Connection
from kbroker.properties import format_properties, parse_properties
from protocol.messages.metadata import MetadataRequest

NODE = 7
OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.max.retention.bytes": "6000",
    "internal.metadata.log.segment.bytes": "3000",
    "internal.metadata.delete.delay.millis": "1000",
    "metadata.max.idle.interval.ms": "100",
}
SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "5000", "broker.heartbeat.interval.ms": "500"}
eventually = partial(waiting.eventually, within_s=120)
pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    found = Quorum(NEWEST, tmp_path, controllers=3)
    with ExitStack() as stack:
        for controller in found.controllers.values():
            file = controller.settings_file
            file.write_text(format_properties({**parse_properties(file.read_text()), **OFTEN}))
            stack.enter_context(controller)
        yield found


def metadata_log(folder: Path) -> Path:
    return folder / "data0" / "__cluster_metadata-0"


def snapshots(folder: Path) -> list[Path]:
    return sorted(metadata_log(folder).glob("*.checkpoint"))


def topics(broker: Server) -> set[str]:
    with Connection(broker.port) as connection:
        answer = connection.ask(MetadataRequest(topics=None), METADATA)
    return {each.name for each in answer.topics}


def make(broker: Server, topic: str) -> None:
    """A topic, which the broker then knows. Controllers may just be electing."""
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([NewTopic(topic, 1, 1)], timeout_ms=30_000)
    admin.close()
    eventually(lambda: topic in topics(broker))


def write(broker: Server, topic: str, values: Sequence[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
    for future in [producer.send(topic, value) for value in values]:
        future.get(30)
    producer.close()


def everything(broker: Server, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    values: list[bytes] = []
    eventually(
        lambda: bool(
            values.extend(each.value for some in consumer.poll(500).values() for each in some) or len(values) >= count
        )
    )
    consumer.close()
    return values


def check_dumped(*files: Path) -> None:
    """Apache's tool reads all of it."""
    arguments = ["--cluster-metadata-decoder", "--deep-iteration", "--files", ",".join(map(str, files))]
    done = run_tool(NEWEST, "org.apache.kafka.tools.DumpLogSegments", *arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("Dumping ") == len(files), said
    assert "isvalid: true" in said, said
    assert "isvalid: false" not in said, said
    assert "Could not" not in said, said


def test_directories_go_to_an_apache_broker_and_back_with_all_that_is_in_them(quorum: Quorum, tmp_path: Path) -> None:
    port = free_port()
    ours = KbrokerMember(quorum, tmp_path / "ours", NODE, settings=SETTINGS)
    theirs = QuorumBroker(quorum, tmp_path / "theirs", NODE, port=port, settings={"offsets.topic.num.partitions": "1"})
    (tmp_path / "shared").mkdir()
    for folder in (tmp_path / "ours", tmp_path / "theirs"):
        (folder / "data0").symlink_to(tmp_path / "shared")
    values = [b"%d" % number for number in range(300)]
    theirs.format()  # by Apache's storage tool
    with ours:
        make(ours, "moved")
        write(ours, "moved", values[:100])
        eventually(lambda: len(snapshots(ours.folder)) > 0)
    check_dumped(*snapshots(ours.folder), *sorted(metadata_log(ours.folder).glob("*.log")))
    with theirs:
        assert everything(theirs, "moved", 100) == values[:100]
        write(theirs, "moved", values[100:200])
    with ours:
        assert everything(ours, "moved", 200) == values[:200]
        write(ours, "moved", values[200:])
        assert everything(ours, "moved", 300) == values


def test_a_member_outlives_controllers_that_are_killed_and_fetches_their_snapshots(
    quorum: Quorum, tmp_path: Path
) -> None:
    member: BrokerServer = KbrokerMember(quorum, tmp_path / "member", NODE, settings=SETTINGS)
    member.start()
    for number, controller in enumerate(quorum.controllers.values()):
        controller.kill()
        make(member, f"without-{number}")
        controller.start()
    member.kill()
    controller = quorum.controllers[100]
    newest = snapshots(controller.folder)[-1].name
    eventually(lambda: snapshots(controller.folder)[-1].name > newest)
    for each in metadata_log(member.folder).iterdir():
        each.unlink()
    member.start()
    fetched = snapshots(member.folder)
    assert fetched
    assert topics(member) == {"without-0", "without-1", "without-2"}
    for controller in quorum.controllers.values():
        controller.kill()
    for controller in quorum.controllers.values():
        controller.start()
    make(member, "after-all")
    member.stop()
    check_dumped(*snapshots(member.folder), *sorted(metadata_log(member.folder).glob("*.log")))
