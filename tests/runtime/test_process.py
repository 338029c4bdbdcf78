"""A broker process from its start to its end: ports, signals, and a second one in the same place."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaProducer

from protocol.errors import ErrorCode
from protocol.messages.control import StopReplicaRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.e2e.world import World
from tests.processes import CONTROL_LISTENER, BrokerProcess, Client, within
from tests.requests import produce, produced

pytestmark = pytest.mark.slow


def test_port_0_is_a_free_port_that_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert Client(broker.port).ask(ApiVersionsRequest(), 0).error_code == 0


@pytest.mark.parametrize("clients", [0, 50])
def test_sigterm_ends_it_cleanly_and_quickly(tmp_path: Path, clients: int) -> None:
    with BrokerProcess(tmp_path) as broker:
        waiting = [Client(broker.port) for _ in range(clients)]
        begun = time.monotonic()
        code = broker.stop()
    assert (code, time.monotonic() - begun < 10, (tmp_path / "data" / ".kafka_cleanshutdown").exists()) == (
        0,
        True,
        True,
    )
    assert all(client.socket.recv(1) == b"" for client in waiting)


def test_a_terminal_that_closes_ends_it_cleanly(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.process.send_signal(signal.SIGHUP)
        code = broker.wait()
    assert (code, (tmp_path / "data" / ".kafka_cleanshutdown").exists()) == (0, True)


def test_it_outlives_its_terminal_where_the_signal_is_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        broker = BrokerProcess(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    with broker:
        broker.process.send_signal(signal.SIGHUP)
        assert Client(broker.port).ask(ApiVersionsRequest(), 0).error_code == 0


def test_it_hears_of_its_children_whatever_it_was_started_by(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        broker = BrokerProcess(tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    with broker:
        status = Path(f"/proc/{broker.process.pid}/status").read_text()
        (ignored,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    assert not ignored & 1 << signal.SIGCHLD - 1


def test_a_second_broker_on_the_same_directory_says_so_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path):
        (tmp_path / "second").mkdir()
        second = BrokerProcess(tmp_path / "second", log_dirs=str(tmp_path / "data"))
        assert (second.wait(), second.log.count("\n"), str(tmp_path / "data") in second.log) == (1, 1, True)


def test_a_second_broker_on_the_same_port_says_so_in_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as first:
        (tmp_path / "second").mkdir()
        second = BrokerProcess(tmp_path / "second", listeners=f"PLAINTEXT://127.0.0.1:{first.port}")
        assert (second.wait(), second.log.count("\n"), str(first.port) in second.log) == (1, 1, True)


def test_the_control_planes_listener_is_served_beside_the_clients(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **CONTROL_LISTENER) as broker:
        answers = [Client(port).ask(ApiVersionsRequest(), 0).error_code for port in broker.ports.values()]
        assert (list(broker.ports), answers) == (["PLAINTEXT", "CONTROL"], [0, 0])


def stopped(port: int) -> int:
    """The error code of a StopReplica without partitions."""
    request = StopReplicaRequest(controller_id=1, controller_epoch=1)
    code: int = Client(port).ask(request, 3).error_code
    return code


def test_controllers_are_heard_on_their_listener_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **CONTROL_LISTENER) as broker:
        codes = [stopped(broker.ports[name]) for name in ("PLAINTEXT", "CONTROL")]
        assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE]


def test_out_of_descriptors_it_goes_on_with_whom_it_has(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        here = World(broker.port)
        topic = here.filled()
        used = len(os.listdir(f"/proc/{broker.process.pid}/fd"))
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (used + 5, used + 5))
        more = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(20)]
        assert here.produce(topic, b"still").base_offset == 3
        for each in more:
            each.close()
        assert World(broker.port).produce(topic, b"again").base_offset == 4
        assert "Traceback" not in broker.log


def test_clients_cannot_take_the_descriptors_of_the_logs(tmp_path: Path) -> None:
    starting = BrokerProcess(tmp_path)
    resource.prlimit(starting.process.pid, resource.RLIMIT_NOFILE, (120, 120))  # while it imports
    with starting as broker:
        here = World(broker.port)
        more = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(130)]
        for _ in range(20):
            assert here.produce(here.filled(), b"still").base_offset == 3
        for each in more:
            each.close()


def test_a_log_of_more_segments_than_descriptors_is_recovered_flushed_and_written_to(tmp_path: Path) -> None:
    def start() -> BrokerProcess:
        broker = BrokerProcess(tmp_path, log_segment_bytes="105")
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (100, 100))  # while it imports
        return broker.await_start()

    broker = start()
    here = World(broker.port)
    topic = here.filled()
    for _ in range(150):
        here.produce(topic, b"v")
    broker.process.kill()
    broker.wait()
    again = start()
    assert World(again.port).produce(topic, b"more").base_offset == 153
    assert (again.stop(), "offline" in again.log, "Traceback" in again.log) == (0, False, False)


def test_it_stops_with_its_last_log_directory(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).await_start()
    here = World(broker.port)
    topic = here.filled()
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))  # EFBIG: no file grows beyond
    assert here.produce(topic, b"v" * 5000).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.wait() == 1
    assert "no log directory is left" in broker.log
    assert "Traceback" not in broker.log


def test_it_ends_cleanly_in_the_middle_of_flushes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_flush_interval_messages="1", num_partitions="20") as broker:
        producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{broker.port}", linger_ms=0)
        for number in range(400):
            producer.send("flushed", b"%d" % number)
        producer.flush(30)
        code = broker.stop()
        producer.close(0)
    assert (code, "Traceback" in broker.log, (tmp_path / "data" / ".kafka_cleanshutdown").exists()) == (0, False, True)


def test_a_broker_errs_as_a_file_says(tmp_path: Path) -> None:
    faults = tmp_path / "faults.toml"
    faults.write_text('[[fault]]\non = "ApiVersions"\nfail = "UNSUPPORTED_VERSION"\ntimes = 1\n')
    with BrokerProcess(tmp_path, arguments=("--faults", str(faults))) as broker:
        client = Client(broker.port)
        codes = [client.ask(ApiVersionsRequest(), 0).error_code for _ in range(2)]
    assert codes == [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE]


def test_a_disk_is_full_where_a_file_says_so(tmp_path: Path) -> None:
    faults = tmp_path / "faults.toml"
    faults.write_text("[disk]\nfull_after_bytes = 1_000_000\n")
    with BrokerProcess(tmp_path, arguments=("--faults", str(faults))) as broker:
        client = Client(broker.port)
        topic = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        for _ in within(10):
            if not client.ask(topic, 8).topics[0].error_code:
                break
        codes = [produced(client.ask(produce(b"x" * 100_000), 8)).error_code for _ in range(5)]
        with suppress(ConnectionError):  # it hangs up when it ends
            for _ in range(10):
                client.send(produce(b"x" * 100_000), 8)
        code = broker.wait()
    assert (codes, code) == ([0] * 5, 1)
    assert "No space left on device" in broker.log


def test_a_copy_of_a_broker_that_is_held_still_starts_with_what_was_acknowledged(tmp_path: Path) -> None:
    """As docs/operating.md has it for a backup; systemd holds a service still by its cgroup."""
    with BrokerProcess(tmp_path) as broker:
        here = World(broker.port)
        topic = here.filled()
        here.produce(topic, b"acknowledged")
        broker.process.send_signal(signal.SIGSTOP)
        shutil.copytree(tmp_path / "data", tmp_path / "backup" / "data")
        broker.process.send_signal(signal.SIGCONT)
        assert here.produce(topic, b"later").base_offset == 4
    with BrokerProcess(tmp_path / "backup") as again:
        assert World(again.port).produce(topic, b"another").base_offset == 4
