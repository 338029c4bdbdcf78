"""What only the broker knows, seen from the console that `kbroker start` has begun beside it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import ProtocolError
from kbroker.console.inside import Inside
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
)
from protocol.messages.metadata import MetadataRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.console.pages import Pages, scripts_in
from tests.processes import BrokerProcess, Client
from tests.requests import fetch, fetched, produce, produced

EVIL = '"><script>alert(1)</script>'
pytestmark = pytest.mark.slow
GROUP = "billing"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Pages]]:
    port = free_port()
    folder = tmp_path_factory.mktemp("broker")
    settings = {
        "console_listener": f"127.0.0.1:{port}",
        "offsets_topic_num_partitions": "1",
        "group_initial_rebalance_delay_ms": "0",
        "log_index_interval_bytes": "0",
        "auto_create_topics_enable": "false",
    }
    with BrokerProcess(folder, **settings) as broker:
        pages = Pages(port)
        with Client(broker.port, "maker") as client:
            topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])]
            client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 4)
            for number in range(20):
                client.ask(produce(b"%d" % number * 50), 9)
        yield broker, pages


@pytest.fixture
def pages(running: tuple[BrokerProcess, Pages]) -> Pages:
    return running[1]


@pytest.fixture
def client(running: tuple[BrokerProcess, Pages]) -> Iterator[Client]:
    with Client(running[0].port, EVIL) as made:
        made.wait(10)
        yield made


def of(pages: Pages, client: str = EVIL, **given: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pages.api("/wire", client=client, **given)["requests"]
    return found


def test_a_request_and_its_answer_are_told_field_by_field(pages: Pages, client: Client) -> None:
    client.ask(produce(b"a", b"bc"), 9)
    newest = of(pages, api="Produce")[0]
    found = pages.api("/wire/request", number=newest["number"])
    assert [each["what"] for each in found["stages"]] == ["received", "begun", "answered"]
    fields = {each["name"]: each for each in found["fields"]}
    assert fields["acks"]["value"] == "1"
    (topic,) = fields["topic_data"]["inner"]
    partition = {each["name"]: each for each in topic["inner"]}["partition_data"]["inner"][0]
    assert {each["name"]: each["value"] for each in partition["inner"]}["records"].startswith("78 bytes")
    assert found["answer_fields"][0]["name"] == "responses"
    assert found["size"] > 80
    assert scripts_in(pages.get("/wire/request", number=newest["number"]).text) == []


def test_hostile_names_run_nothing_on_any_page(pages: Pages, client: Client) -> None:
    client.ask(MetadataRequest(topics=[]), 5)
    for path, given in (
        ("/wire", {}),
        ("/wire/waits", {}),
        ("/wire/faults", {}),
        ("/wire/group", {"name": EVIL}),
        ("/wire/partition", {"topic": "t", "partition": 0}),
        ("/wire/segment", {"topic": "t", "partition": 0, "base_offset": 0, "offset": 7}),
    ):
        page = pages.get(path, **given)  # type: ignore[arg-type]
        assert page.status == 200, path
        assert scripts_in(page.text) == []
        assert "<script>alert" not in page.text
    assert "alert(1)" in pages.get("/wire").text


def test_it_is_said_what_a_fetch_waits_for(pages: Pages, client: Client) -> None:
    client.send(fetch(offset=1000, max_wait_ms=5000, min_bytes=1 << 20), 11)
    client.send(fetch(offset=20, max_wait_ms=5000, min_bytes=1 << 20), 11)
    client.receive()  # the first is out of range: it is answered at once
    (waits,) = _until(lambda: [each for each in pages.api("/wire/waits")["waits"] if each["client"] == EVIL])
    assert waits["api"] == "Fetch"
    assert waits["why"].startswith("purgatory: records in t-0")
    assert 0 < waits["left_ms"] <= 6100


def _until(look: Any) -> Any:
    """What `look` gives, once it is something; it asks the broker each time, which takes its while."""
    end_s = time.monotonic() + 10
    while not (found := look()):
        assert time.monotonic() < end_s
    return found


def test_a_partition_is_told_as_it_lies_on_disk(pages: Pages, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    found = pages.api("/wire/partition", topic="t", partition=0)
    assert found["high_watermark"] == found["log_end_offset"] >= 21
    assert found["segments"][0]["active"]
    assert found["segments"][0]["index_entries"] > 10
    assert found["epochs"] == [{"epoch": 0, "from": 0}]
    entry = pages.api("/wire/segment", topic="t", partition=0, base_offset=0, offset=10)
    assert entry["looked_up"]["offset"] <= 10
    assert entry["batches"][0]["base_offset"] == entry["looked_up"]["offset"]
    page = pages.get("/wire/partition", topic="t", partition=0).text
    assert "high watermark" in page
    missing = pages.get("/wire/partition", topic="none", partition=0)
    assert (missing.status, "has no replica of none-0" in missing.text) == (400, True)


def test_an_armed_fault_is_met_once_and_the_retry_is_seen(pages: Pages, client: Client) -> None:
    pages.get("/wire/faults")
    armed = pages.post("/wire/faults/arm", on="Produce", action="fail", value="NOT_LEADER_OR_FOLLOWER", topic="t")
    assert (armed.status, "Arm a fault: done." in armed.text) == (200, True)
    codes = [produced(client.ask(produce(b"a"), 9)).error_code for _ in range(2)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
    (fault,) = pages.api("/wire/faults")["armed"]
    assert (fault["hits"], fault["over"]) == (1, True)
    rows = of(pages, api="Produce")[:2]
    assert [each["fault"] for each in rows] == ["", "fail(NOT_LEADER_OR_FOLLOWER)"]
    assert rows[1]["state"] == "NOT_LEADER_OR_FOLLOWER"
    assert pages.post("/wire/faults/disarm").status == 200
    assert pages.api("/wire/faults")["armed"] == []
    assert fetched(client.ask(fetch(), 11))[0].error_code == ErrorCode.NONE


def test_a_wrong_fault_is_told_in_one_line(pages: Pages) -> None:
    answer = pages.change("/wire/faults/arm", on="Prodce", action="fail", value="NONE")
    assert (answer.status, "did you mean Produce?" in answer.text) == (400, True)
    answer = pages.change("/wire/faults/arm", on="Produce", action="delay_ms", value="soon")
    assert "value=soon: write a whole number" in answer.text


def test_errors_in_answers_are_named(pages: Pages, client: Client) -> None:
    client.ask(produce(b"a", topic="none"), 9)
    assert of(pages, api="Produce")[0]["errors"] == ["UNKNOWN_TOPIC_OR_PARTITION"]
    client.ask(fetch(offset=10_000), 11)
    assert of(pages, api="Fetch")[0]["errors"] == ["OFFSET_OUT_OF_RANGE"]
    client.ask(fetch(), 11)
    assert of(pages, api="Fetch")[0]["errors"] == []


def test_a_rebalance_is_a_sequence(pages: Pages, client: Client) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=10_000, rebalance_timeout_ms=1000, member_id="", protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    _until(lambda: client.ask(FindCoordinatorRequest(key=GROUP), 1).error_code == 0)
    joined = _until(lambda: (found := client.ask(join, 3)).error_code == 0 and found)
    client.ask(
        SyncGroupRequest(
            group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[]
        ),
        3,
    )
    texts = [each["text"] for each in pages.api("/wire/group", name=GROUP)["events"]]
    assert texts[-4:] == ["JoinGroup", "generation 1, is the leader", "SyncGroup", "its assignment"]
    assert "<polygon" in pages.get("/wire/group", name=GROUP).text


def test_what_cannot_be_read_is_remembered_all_the_same(pages: Pages, running: tuple[BrokerProcess, Pages]) -> None:
    with Client(running[0].port, "broken") as client:
        client.send_bytes((4).to_bytes(4, "big") + b"\x00\x00\x00\x09")
        with pytest.raises((ConnectionError, ProtocolError)):
            client.receive()
    assert _until(lambda: [each for each in pages.api("/wire")["requests"] if each["state"] == "closed"])


def test_a_broker_that_says_nothing_has_not_ended() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inside = Inside(theirs)
        ours.sendall(b'{"a": 1}\n')
        assert inside.options() == {"a": 1}
        began_s = time.monotonic()
        assert not inside.ended()
        assert time.monotonic() - began_s < 5
        ours.close()
        assert inside.ended()


def test_a_console_that_ends_is_started_again(pages: Pages, running: tuple[BrokerProcess, Pages]) -> None:
    broker = running[0]
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children")
    assert pages.get("/").status == 200
    (child,) = children.read_text().split()
    os.kill(int(child), signal.SIGKILL)
    _until(lambda: children.read_text().split() not in ([child], []))
    assert pages.get("/").status == 200
    assert "the console has ended (signal 9)" in broker.log


def test_it_is_no_process_until_a_browser_comes_and_has_counted_meanwhile(tmp_path: Path) -> None:
    port = free_port()
    with BrokerProcess(tmp_path, console_listener=f"127.0.0.1:{port}") as broker:
        children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children")
        for _ in range(3):
            with Client(broker.port, "maker") as client:
                client.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), 9)
        assert children.read_text() == ""
        pages = Pages(port)
        assert pages.get("/").status == 200
        assert len(children.read_text().split()) == 1
        assert "bytes in" in pages.api("/rates")["rates"]


def test_its_port_is_told_and_has_to_be_free(running: tuple[BrokerProcess, Pages], tmp_path: Path) -> None:
    broker, pages = running
    other = BrokerProcess(tmp_path, console_listener=f"127.0.0.1:{pages.port}")
    assert other.wait() == 1
    assert f"cannot listen on console.listener=127.0.0.1:{pages.port}: Address already in use" in other.log
    assert broker.process.poll() is None
