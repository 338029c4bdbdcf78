"""A node on a loop of the test's: opened, served, stopped or killed, with nothing of it left in the process."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.address_authorizer import AddressAuthorizer
from kbroker.broker.facts import BrokerConfigChanged
from kbroker.config import Given
from kbroker.config.sasl import sasl_config
from kbroker.ports import TO_CONTROLLER, Clock, Endpoint
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.compaction_beside import Beside
from kbroker.runtime.descriptors import Shares
from kbroker.runtime.disk_pool import THREADS
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.loop import Loop
from kbroker.runtime.node import Host, Node, StartupError
from kbroker.runtime.tree_file import Change, TreeFile
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.control import ControlledShutdownRequest
from protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from protocol.messages.metadata import MetadataRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.certificates import Authority
from tests.processes import Client
from tests.requests import VERSIONS

PATIENCE_S = 5.0
JAAS = 'x.PlainLoginModule required user_alice="sesame";'
LOOPBACK = Given("PLAINTEXT://127.0.0.1:0", "the test")


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def node_in(folder: Path, loop: Loop, clock: Clock | None = None, **settings: str) -> Node:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder / "data"), **settings}
    static = {key.replace("_", "."): Given(value, "the test") for key, value in given.items()}
    return Node(static, loop, Host(SystemDisk(), clock or SystemClock(), SystemRandom(), Shares.of(1024)))


def serving(folder: Path, loop: Loop, clock: Clock | None = None, **settings: str) -> Node:
    node = node_in(folder, loop, clock, **settings)
    node.open()
    loop.run_until(lambda: node.ready or node.fatal)
    node.serve()
    return node


def flush(node: Node, loop: Loop) -> list[object]:
    """How one more piece of work for the disk ended: [None], or ["waits"] if it has not for long."""
    ended: list[object] = []
    node._pool.submit(lambda: None, ended.append)
    given_up = loop.timer(lambda: ended.append("waits"))
    given_up.set(PATIENCE_S)
    loop.run_until(lambda: ended)
    return ended


def test_its_host_says_where_logs_are_compacted(tmp_path: Path, loop: Loop) -> None:
    begin = Beside()
    host = Host(SystemDisk(), SystemClock(), SystemRandom(), Shares.of(1024), begin_compaction=begin)
    node = Node({"log.dirs": Given(str(tmp_path), "the test"), "listeners": LOOPBACK}, loop, host)
    node.open()
    assert node._logs.cleaner._begin is begin
    node.stop()


def test_more_compactions_than_at_the_start_keep_no_work_from_the_disk(tmp_path: Path, loop: Loop) -> None:
    host = Host(SystemDisk(), SystemClock(), SystemRandom(), Shares.of(1024), begin_compaction=Beside())
    node = Node({"log.dirs": Given(str(tmp_path), "the test"), "listeners": LOOPBACK}, loop, host)
    node.open()
    loop.run_until(lambda: node.ready or node.fatal)
    at_once, goes_on = 2 * THREADS, threading.Event()
    node.broker.plane.notices.set_broker(own={"log.cleaner.threads": str(at_once)})
    node.core.step(BrokerConfigChanged(), node._host.clock.now_ms())
    for _ in range(at_once):
        node._pool.submit(goes_on.wait, lambda _: None)  # type: ignore[arg-type]
    flushed = flush(node, loop)
    goes_on.set()
    node.stop()
    assert flushed == [None]


def marker(folder: Path) -> bool:
    return (folder / "data" / ".kafka_cleanshutdown").exists()


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_node_that_serves_takes_connections(tmp_path: Path, loop: Loop) -> None:
    node = serving(tmp_path, loop)
    client = Client(node.ports["PLAINTEXT"])
    loop.turn()
    node.stop()
    assert client.socket.recv(1) == b""


def test_the_id_of_a_new_cluster_may_be_given_and_one_that_is_there_keeps_its_own(
    tmp_path: Path, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    ids = []
    for given in ("a" * 22, "a" * 22, "b" * 22):
        node = node_in(tmp_path, loop, cluster_id=given)
        node.open()
        ids.append(node.cluster_id)
        node.stop()
    assert ids == ["a" * 22] * 3
    told = [record.getMessage() for record in caplog.records if "cluster.id" in record.getMessage()]
    assert told == [f"cluster.id={'b' * 22}: has no effect: this is cluster {'a' * 22}"]


def told_to_clients(node: Node, loop: Loop) -> list[tuple[str, int]]:
    client = Client(node.ports["PLAINTEXT"])
    client.send(MetadataRequest(topics=[]), 9)
    loop.run_until(lambda: answered(client))
    return [(each.host, each.port) for each in client.receive().brokers]


def test_addresses_for_clients_change_while_it_runs_and_stay_over_a_restart(tmp_path: Path, loop: Loop) -> None:
    node = serving(tmp_path, loop)
    client = Client(node.ports["PLAINTEXT"])
    change = IncrementalAlterableConfig(
        name="advertised.listeners", config_operation=0, value="PLAINTEXT://shop.example:19092"
    )
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name=str(node.node_id), configs=[change])
    client.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    loop.run_until(lambda: answered(client))
    cache = node.broker.plane.cache
    loop.run_until(lambda: cache.brokers[node.node_id].endpoints[0].port == 19092)
    told = [told_to_clients(node, loop)]
    node.stop()
    again = serving(tmp_path, loop)
    told.append(told_to_clients(again, loop))
    again.stop()
    assert told == [[("shop.example", 19092)]] * 2


def test_addresses_that_its_listeners_have_left_behind_are_told_to_nobody(
    tmp_path: Path, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    node = serving(tmp_path, loop)
    node.broker.plane.notices.set_broker(own={"advertised.listeners": "OLD://shop.example:19092"})
    node.core.step(BrokerConfigChanged(), node._host.clock.now_ms())
    told = told_to_clients(node, loop)
    node.stop()
    assert told == [("127.0.0.1", node.ports["PLAINTEXT"])]
    assert any("clients are told the same addresses as before" in each.getMessage() for each in caplog.records)


def test_alone_it_is_ready_when_it_leads_again_what_it_led(tmp_path: Path, loop: Loop) -> None:
    first = serving(tmp_path, loop)
    client = Client(first.ports["PLAINTEXT"])
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
    loop.run_until(lambda: answered(client))
    first.stop()
    again = serving(tmp_path, loop)
    leads = [partition.is_leader for partition in again.broker.replicas.partitions.values()]
    again.stop()
    assert leads == [True]


def test_brokers_whose_names_are_looked_up_for_long_keep_no_work_from_the_disk(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, answers = serving(tmp_path, loop), threading.Event()
    asked: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        loop.call_from_thread(lambda: asked.append(host))
        answers.wait()
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    request = ControlledShutdownRequest(broker_id=1, broker_epoch=0)
    peers = node.broker.plane._requester._join()
    for other in range(2, 2 + THREADS):
        address = Endpoint("PLAINTEXT", 0, f"broker-{other}.example", 9092)
        peers.send(other, address, TO_CONTROLLER, request, 3, "token", 60_000)
    loop.run_until(lambda: len(asked) == THREADS)
    flushed = flush(node, loop)
    answers.set()
    node.stop()
    assert flushed == [None]


def test_a_look_up_of_who_is_a_broker_is_no_work_for_the_disk(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a stop waits for the name server, with its session still open, before it leaves the cluster."""
    node, answers = serving(tmp_path, loop), threading.Event()
    asked: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        loop.call_from_thread(lambda: asked.append(host))
        answers.wait()
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    only = node.broker.auth_helper.authorizer
    assert isinstance(only, AddressAuthorizer)
    only._learn(frozenset({"broker-2.example"}))
    node.server.settle()
    loop.run_until(lambda: asked)
    is_idle = node.server.jobs_done
    answers.set()
    loop.run_until(lambda: only._again is None)
    node.stop()
    assert is_idle


def test_a_look_up_of_who_is_a_broker_that_ends_as_nobody_foresaw_is_over(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or any address would pass as that host's for ever, and the store would not be asked again."""
    node, asked = serving(tmp_path, loop), list[str]()

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        raise MemoryError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(loop, "failed", lambda error: asked.append(repr(error)))
    only = node.broker.auth_helper.authorizer
    assert isinstance(only, AddressAuthorizer)
    only._learn(frozenset({"broker-2.example"}))
    only._is_broker("192.0.2.7")
    node.server.settle()
    loop.run_until(lambda: asked.count("MemoryError()") == 2)
    is_over = not only._addresses and only._again is None
    node.stop()
    assert is_over


def test_the_logs_are_closed_before_a_stop_waits_for_names(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, marks = serving(tmp_path, loop), []
    monkeypatch.setattr(node._name_pool, "close", lambda: marks.append(marker(tmp_path)))
    node.stop()
    assert marks == [True]


def test_a_stop_leaves_the_mark_of_a_clean_one(tmp_path: Path, loop: Loop) -> None:
    serving(tmp_path, loop).stop()
    assert marker(tmp_path)


def test_certificates_near_their_end_are_made_again_and_used(
    tmp_path: Path, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "authority")
    store = authority.store(authority.make("CN=broker", days=5), "own.pem")
    settings = authority.settings(ssl_keystore_location=str(store), listeners="SSL://127.0.0.1:0")
    node = serving(tmp_path / "data", loop, **settings)
    assert node._tls is not None
    node.look_at_certificates()
    assert sum("expires in 4 days" in each for each in caplog.messages) == 2  # at the start, and now
    first = node._tls._loaded["SSL"].own

    def renew() -> list[str]:
        authority.store(authority.make("CN=broker"), "own.pem")
        return ["a certificate"]

    node.renew_by(renew)
    caplog.clear()
    node.look_at_certificates()
    assert node._tls._loaded["SSL"].own.not_after > first.not_after
    assert not any("expires in" in each for each in caplog.messages)

    def fail() -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    node.renew_by(fail)
    node.look_at_certificates()
    assert "certificates cannot be made again: [Errno 28] No space left on device" in caplog.text
    node.stop()


def test_how_a_listeners_clients_log_in_is_not_changed_at_run_time(tmp_path: Path, loop: Loop) -> None:
    """As Kafka has it. Who may alter settings would let in whom it wants, or have any function called."""
    of = "listener.name.a."
    settings = {
        "listeners": "A://127.0.0.1:0",
        "listener.security.protocol.map": "A:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        f"{of}plain.sasl.jaas.config": JAAS,
    }
    node = serving(tmp_path, loop, **settings)
    configs = node.broker.plane.configs
    changes = {
        f"{of}plain.sasl.jaas.config": JAAS.replace("alice", "eve"),
        f"{of}sasl.jaas.config": JAAS.replace("alice", "eve"),
        f"{of}plain.sasl.server.callback.handler.class": "os:system",
        f"{of}oauthbearer.sasl.server.callback.handler.class": "os:system",
        f"{of}sasl.server.callback.handler.class": "os:system",
        f"{of}sasl.oauthbearer.jwks.endpoint.url": "http://eve/keys",
        f"{of}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{of}plain.connections.max.reauth.ms": "0",
        f"{of}no.such.key": "x",
    }
    for key, text in changes.items():
        line = configs.faults({key: text}, per_broker=True)[0]
        assert line.startswith("Configs cannot be updated dynamically for existing listener ListenerName(A)"), key
        assert "eve" not in line
    before = sasl_config(configs.layers, "A")
    written = {**changes, "sasl.jaas.config": JAAS.replace("alice", "eve"), "sasl.oauthbearer.expected.issuer": "eve"}
    configs.set_dynamic(broker=written)  # by a hand in the metadata store, or by an older kbroker
    assert sasl_config(configs.layers, "A").mechanisms == before.mechanisms
    assert configs.broker.sasl_oauthbearer_expected_issuer != "eve"
    (line,) = configs.faults({"sasl.enabled.mechanisms": "FOO"}, per_broker=True)
    assert "'FOO'; allowed: PLAIN" in line
    node.stop()


def test_a_kill_leaves_no_mark(tmp_path: Path, loop: Loop) -> None:
    serving(tmp_path, loop).kill()
    assert not marker(tmp_path)


@pytest.mark.parametrize("end", [Node.stop, Node.kill])
def test_after_its_end_another_has_its_folder(tmp_path: Path, loop: Loop, end: object) -> None:
    first = serving(tmp_path, loop)
    end(first)  # type: ignore[operator]
    second = serving(tmp_path, loop)
    second.stop()
    assert (second.node_id, second.cluster_id) == (first.node_id, first.cluster_id)


@pytest.mark.parametrize("end", [Node.stop, Node.kill])
def test_its_end_leaves_no_descriptor_and_no_thread(tmp_path: Path, loop: Loop, end: object) -> None:
    serving(tmp_path, loop).stop()  # whatever is made once in a process is there now
    before = descriptors(), threading.active_count()
    end(serving(tmp_path, loop))  # type: ignore[operator]
    assert (descriptors(), threading.active_count()) == before


def test_it_leaves_signals_to_the_process(tmp_path: Path, loop: Loop) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    node = serving(tmp_path, loop)
    during = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    node.stop()
    assert during == before


def test_it_leaves_the_collector_to_the_process(tmp_path: Path, loop: Loop) -> None:
    frozen = gc.get_freeze_count()
    serving(tmp_path, loop).stop()
    assert gc.get_freeze_count() == frozen


def test_an_open_that_fails_holds_nothing(tmp_path: Path, loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = node_in(tmp_path, loop, listeners=f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}")
        before = descriptors()
        with pytest.raises(StartupError, match="cannot listen on PLAINTEXT"):
            node.open()
        assert descriptors() == before
    serving(tmp_path, loop).stop()


def test_of_two_nodes_on_one_folder_the_second_is_refused(tmp_path: Path, loop: Loop) -> None:
    first = serving(tmp_path, loop)
    with pytest.raises(StartupError, match=str(tmp_path)):
        node_in(tmp_path, loop).open()
    first.stop()


def answered(client: Client) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=6_000,
    rebalance_timeout_ms=60_000,
    member_id="",
    group_instance_id="static",
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
)


class AheadClock(SystemClock):
    """The machine's, ahead by what a test adds; timers of the loop do not hear of that."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """See Clock."""
        return super().now_ms() + self.ahead_ms


def test_a_session_that_is_over_has_ended_for_a_request_that_comes_before_the_loop_s_timer(
    tmp_path: Path, loop: Loop
) -> None:
    clock = AheadClock()
    node = serving(tmp_path, loop, clock, group_initial_rebalance_delay_ms="0", offsets_topic_num_partitions="1")
    client = Client(node.ports["PLAINTEXT"])

    def ask(request: Message, version: int) -> Any:
        client.send(request, version)
        loop.run_until(lambda: answered(client))
        return client.receive()

    while ask(FindCoordinatorRequest(key="g"), 3).error_code or ask(JOIN, 5).error_code:
        pass  # its topic is being made, and loaded
    before = ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    clock.ahead_ms += JOIN.session_timeout_ms
    after = ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    node.stop()
    assert [answer.results[0].error_code for answer in (before, after)] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE]


def test_nobody_waits_for_the_disk_that_metadata_goes_to(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serving(tmp_path, loop)
    disk_is_back = threading.Event()
    writers: list[threading.Thread] = []
    write = TreeFile.write

    def slow(self: TreeFile, change: Change) -> None:
        writers.append(threading.current_thread())
        if writers[-1] is not threading.main_thread():
            disk_is_back.wait(10)
        write(self, change)

    monkeypatch.setattr(TreeFile, "write", slow)
    creating, other = (Client(node.ports["PLAINTEXT"]) for _ in range(2))
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    creating.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
    other.send(VERSIONS, 3)
    loop.run_until(lambda: answered(other))
    before = answered(creating)
    disk_is_back.set()
    loop.run_until(lambda: answered(creating))
    assert (before, threading.main_thread() in writers) == (False, False)
    node.stop()
