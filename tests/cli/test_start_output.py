"""What a start prints, for people and for machines."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.harness.wire import Connection, Producer, batch, create_topics, fetch_frame, produce_frame
from kbroker.cli import run
from kbroker.runtime.interpreter import describe_interpreter
from tests.processes import BrokerProcess


def test_the_banner_fits_80_columns_and_says_where_to_begin(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        port = broker.port
    said = broker.says + broker.rest.splitlines()
    assert max(len(line) for line in said if "data in" not in line) <= 80
    assert f"    kbroker produce -b 127.0.0.1:{port} -t quickstart" in said
    assert f"    kbroker consume -b 127.0.0.1:{port} -t quickstart -o beginning" in said
    assert f"  runs on      {describe_interpreter()}" in said


def test_an_address_that_clients_use_is_told_where_it_is_another_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, advertised_listeners="PLAINTEXT://broker.example:7000") as broker:
        pass
    assert "  clients use  PLAINTEXT://broker.example:7000" in broker.says + broker.rest.splitlines()


def test_what_to_try_first_is_at_an_address_of_this_machine(tmp_path: Path) -> None:
    settings = {
        "listeners": "NET://127.0.0.1:0,HOST://127.0.0.1:0",
        "advertised_listeners": "NET://broker.example:19092,HOST://localhost:9095",
        "listener_security_protocol_map": "NET:PLAINTEXT,HOST:PLAINTEXT",
    }
    with BrokerProcess(tmp_path, **settings) as broker:
        pass
    assert "    kbroker produce -b localhost:9095 -t quickstart" in broker.says + broker.rest.splitlines()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_told_as_clients_take_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, listeners="PLAINTEXT://[::1]:0") as broker:
        port = broker.port
    said = broker.says + broker.rest.splitlines()
    assert f"  listening on PLAINTEXT://[::1]:{port}" in said
    assert f"    kbroker produce -b [::1]:{port} -t quickstart" in said


def test_with_json_everything_printed_is_json(tmp_path: Path) -> None:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}/data", "no.such.key=1"]
    overrides = [word for each in settings for word in ("--override", each)]
    command = [sys.executable, "-m", "kbroker", "start", "--log-format", "json", *overrides]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        banner = json.loads(broker.stdout.readline())
        broker.terminate()
        rest, log = broker.communicate(timeout=30)
    assert rest == ""
    assert banner["message"].endswith("is ready")
    assert banner["listeners"]["PLAINTEXT"].startswith("127.0.0.1:")
    assert banner["python"] == describe_interpreter()
    lines = [json.loads(line) for line in log.splitlines()]
    assert lines[0]["message"].startswith("no.such.key: unknown key")


@pytest.fixture(params=["a closed pipe", "a full disk"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor that takes no byte."""
    if request.param == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("words", [("start",), ("dev-cluster", "1", "--port", "0")])
def test_brokers_serve_where_nobody_can_be_told_that_they_do(
    words: tuple[str, ...], unwritable: int, tmp_path: Path
) -> None:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}"] if words == ("start",) else []
    command = [sys.executable, "-m", "kbroker", *words, *(word for each in settings for word in ("--override", each))]
    with subprocess.Popen(command, stdout=unwritable, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        told = next((line for line in running.stderr if "standard output cannot be written: " in line), None)
        running.terminate()
        _, complaints = running.communicate(timeout=60)
    assert told is not None
    assert (running.returncode, "Traceback" in complaints) == (0, False)


HANDLERS_AT_A_START = {"authorization", "call", "handshake", "produce_bounds", "routes"}
MODULES_AT_A_START = {"kbroker": 157, "protocol": 23}
NEEDLESS = {
    "bz2",
    "concurrent.futures",
    "datetime",
    "difflib",
    "ipaddress",
    "kbroker.faults",
    "kbroker.runtime.monitoring",
    "platform",
    "random",
    "shutil",
    "sysconfig",
}
OF_OTHERS = {  # what records going in and out of a broker of one do not need either
    "kbroker.api.fetch_follower",
    "kbroker.api.fetch_nearest",
    "kbroker.api.fetch_old",
    "kbroker.broker.alter_log_dirs",
    "kbroker.broker.transaction_markers",
    "kbroker.controller.in_sync",
    "kbroker.groups.coordinator",
    "kbroker.groups.shard",
    "kbroker.log.future_logs",
    "kbroker.runtime.compaction_beside",
    "kbroker.runtime.peers",
    "kbroker.txn.coordinator",
    "kbroker.txn.shard",
    "protocol.messages.groups",
    "protocol.messages.transactions",
    "protocol.records.convert",
}


def loaded_by(tmp_path: Path, use: Callable[[str, int], None]) -> set[str]:
    """The modules of a broker that has started, been used, and stopped."""
    settings = ["--override", "listeners=PLAINTEXT://127.0.0.1:0", "--override", f"log.dirs={tmp_path}/data"]
    command = [sys.executable, "-X", "importtime", "-m", "kbroker", "start", "--log-format", "json", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        said = json.loads(broker.stdout.readline())
        assert said["message"].endswith("is ready")
        host, _, port = said["listeners"]["PLAINTEXT"].rpartition(":")
        use(host, int(port))
        broker.terminate()
        _, log = broker.communicate(timeout=30)
    loaded = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    assert "kbroker.core" in loaded
    return loaded


def test_a_start_loads_nothing_that_most_brokers_never_need(tmp_path: Path) -> None:
    """What is loaded is a third of a quiet broker's memory, and half of the time until it answers."""
    loaded = loaded_by(tmp_path, lambda host, port: None)
    assert loaded & (NEEDLESS | OF_OTHERS) == set()
    assert {name.removeprefix("kbroker.api.") for name in loaded if "kbroker.api." in name} == HANDLERS_AT_A_START
    loaded.discard("kbroker.runtime.platform.readiness")  # other systems than Linux have it besides
    counted = Counter(name.partition(".")[0] for name in loaded)
    more = {name: counted[name] for name, most in MODULES_AT_A_START.items() if counted[name] > most}
    assert more == {}, "is each of them needed before a client asks for it?"


def test_records_in_and_out_load_nothing_of_groups_transactions_and_other_brokers(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, produce_and_fetch)
    assert {"kbroker.api.transaction_verification", "kbroker.api.fetch_reader"} <= loaded  # by the handlers of both
    assert loaded & OF_OTHERS == set()


def produce_and_fetch(host: str, port: int) -> None:
    """A topic, a record into it, and out again."""
    with Connection(host, port) as connection:
        create_topics(connection, ["t"])
        Producer(connection, produce_frame("t", [batch(1, 100)])).run(1)
        asked, at = fetch_frame("t", max_wait_ms=500, partition_bytes=1 << 20)
        struct.pack_into(">q", asked, at, 0)
        connection.send_bytes(asked)
        connection.frame()


@pytest.mark.parametrize(
    ("override", "said"),
    [("num.partitions=0", "num.partitions=0: allowed"), ("log.dirs=/dev/null/x", "/dev/null/x: ")],
)
def test_with_json_what_keeps_it_from_starting_is_json_too(
    override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["start", "--log-format", "json", "--override", override]) == 1
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"].startswith(said)) == ("error", True)


@pytest.mark.parametrize(
    "words",
    [["--log-format", "json", "--nonsense"], ["--nonsense", "--log-format=json"], ["no.file", "--log-format=json"]],
)
def test_with_json_a_wrong_command_line_is_told_in_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["start", *words]) == 2
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["message"].endswith("(see kbroker start --help)")) == ("error", True)


def test_a_setting_with_control_characters_is_shown_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "--override", "num.partitions=\x1b[2J"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kbroker", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kbroker, version ")


def test_a_long_complaint_is_folded_between_words_on_a_terminal(tmp_path: Path) -> None:
    child, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}/" + "d" * 30, "num.partitions=a lot of them"]
    overrides = [word for each in settings for word in ("--override", each)]
    command = [sys.executable, "-m", "kbroker", "start", *overrides]
    subprocess.run(command, stderr=terminal, stdout=subprocess.DEVNULL, check=False, timeout=60)
    os.close(terminal)
    lines = os.read(child, 65536).decode().splitlines()
    os.close(child)
    assert (len(lines), lines[1][:2], max(map(len, lines)) <= 80) == (2, "  ", True)
