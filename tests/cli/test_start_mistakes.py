"""What a newcomer may get wrong about `kbroker start`: one line says where, what, and what would do; exit code 1."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.config import check_file, parse_properties
from kbroker.runtime.files import SystemDisk

CLUSTER = "abcdefghijklmnopqrstuv"
OTHER_CLUSTER = "zzcdefghijklmnopqrstuv"


def said(capsys: pytest.CaptureFixture[str], *arguments: str, **settings: str) -> str:
    """The line that a start with these mistakes prints."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **settings}  # 9092 may be taken: by what the README starts
    overrides = [f"--override={name.replace('_', '.')}={value}" for name, value in settings.items()]
    code = run(["start", *arguments, *overrides])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n"), err[:9]) == (1, "", 1, "kbroker: "), err
    return err[9:-1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def marked(folder: Path, *lines: str) -> str:
    """A log directory that belongs to somebody."""
    folder.mkdir()
    (folder / "meta.properties").write_text("\n".join(("version=0", *lines)) + "\n")
    return str(folder)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("num.partitions=abc", "num.partitions=abc: allowed: a 32-bit integer, at least 1 (--override)"),
        ("num.partitions=0", "num.partitions=0: allowed: a 32-bit integer, at least 1 (--override)"),
        ("auto.create.topics.enable=yes", "auto.create.topics.enable=yes: allowed: true or false (--override)"),
        ("broker.id=-5", "broker.id=-5: allowed: a 32-bit integer, at least -1 (--override)"),
        ("log.dirs=", "log.dirs=: allowed: at least one directory"),
        (
            "group.consumer.assignors=uniform,nope",
            "group.consumer.assignors=nope: allowed: uniform, range, or an entry point kbroker.group_assignors",
        ),
        (
            "authorizer.class.name=some.Authorizer",
            "authorizer.class.name=some.Authorizer: allowed: text, empty, kafka.security.authorizer.AclAuthorizer, or "
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer (--override)",
        ),
        ("foo", "--override 'foo': allowed: key=value"),
    ],
)
def test_a_bad_value_is_told_with_what_is_allowed(setting: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--override", setting) == line


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("no_such_module:Assignor", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:JSONDecoder", "allowed: an object, or a class without arguments, that has name and assign"),
    ],
)
def test_an_assignor_that_cannot_be_used_is_told_at_the_start(
    names: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metadata.EntryPoint("mine", names, "kbroker.group_assignors")
    monkeypatch.setattr(metadata, "entry_points", lambda group, name: [entry] if name == "mine" else [])
    line = said(capsys, group_consumer_assignors="range,mine")
    assert line == f"group.consumer.assignors=mine: entry point {names}: {why}"


def test_a_file_that_is_no_text_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin1.properties"
    path.write_bytes(b"num.partitions=1\n# caf\xe9\n")
    assert said(capsys, str(path)) == f"{path} line 2: allowed: text in UTF-8, other characters as \\uXXXX"


def test_a_mark_of_byte_order_is_no_part_of_the_first_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "windows.properties"
    path.write_bytes(b"\xef\xbb\xbfnum.partitions=x\n")
    assert said(capsys, str(path)).startswith("num.partitions=x: allowed: ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# listeners=PLAINTEXT://127.0.0.1:9092\n",
        b'{\n  "listeners": "PLAINTEXT://127.0.0.1:9092",\n  "log.dirs": "/data"\n}\n',
        "listeners=PLAINTEXT://127.0.0.1:9092\nlog.dirs=/data\n".encode("utf-16-le"),
        b"meta.properties\nmetadata.db\nmetadata.db-wal\nt-0\n",
        b"bootstrap.servers=127.0.0.1:9092\nsecurity.protocol=SSL\n",
        b"\0" * 4096,
    ],
    ids=["empty", "comments", "JSON", "UTF-16", "names of files", "a client's", "zeros"],
)
def test_a_file_without_a_key_of_a_broker_is_no_start(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or a broker on defaults would be open to everybody."""
    path = tmp_path / "server.properties"
    path.write_bytes(content)
    assert said(capsys, str(path)) == (
        f"{path}: no key of a broker is in it; allowed: lines of key=value, as server.properties has"
    )


@pytest.mark.parametrize("line", ["ssl.keystore.location=x", "listener.name.a.ssl.keystore.type=x", "num.partitions=x"])
def test_a_file_with_one_key_of_a_broker_is_read(line: str) -> None:
    check_file(parse_properties(line), "server.properties")


@pytest.mark.parametrize("folder", ["a\0b", "a\ud800b"])
def test_a_log_directory_that_no_file_system_can_name(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, log_dirs=f"/tmp/{folder}")
    assert line == f"log.dirs: {f'/tmp/{folder}'!r} is no name for a directory here"


def test_a_log_directory_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    instead = "another directory: kbroker start --data DIR --override listeners=PLAINTEXT://127.0.0.1:0"
    assert said(capsys, log_dirs=str(tmp_path / "file")) == f"{tmp_path}/file: is not a directory [ENOTDIR]; {instead}"


def test_a_log_directory_below_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in said(capsys, log_dirs=str(tmp_path / "file" / "data"))


def test_a_log_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, log_dirs="/proc/kbroker")  # where even root makes nothing
    assert line.startswith("no log directory can be used: /proc/kbroker: ")
    assert "; another directory: kbroker start --data DIR " in line


def test_a_log_directory_of_a_broker_that_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    lock = SystemDisk().lock(str(data / ".lock"))
    try:
        line = said(capsys, log_dirs=str(data))
    finally:
        lock.release()
    assert line.startswith(
        f"{data}: is in use by another broker, which holds .lock; another directory: kbroker start --data DIR "
    )


def test_a_log_directory_named_twice(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, log_dirs=f"{data},{data}") == f"{data}: is named twice in log.dirs"


def test_an_empty_place_in_log_dirs_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = marked(tmp_path / "a", "broker.id=7")
    line = said(capsys, log_dirs=f"{own},,", broker_id="3")  # an empty one once was the folder that it was started in
    assert line == f"{own}/meta.properties: broker id 7 differs from 3 of this broker's configuration"


def test_log_directories_of_two_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = marked(tmp_path / "a", "broker.id=1", f"cluster.id={CLUSTER}")
    two = marked(tmp_path / "b", "broker.id=1", f"cluster.id={OTHER_CLUSTER}")
    line = said(capsys, log_dirs=f"{one},{two}")
    assert line == f"{two}/meta.properties: cluster id {OTHER_CLUSTER} differs from {CLUSTER} of {one}/meta.properties"


def test_metadata_that_is_no_database(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    (data / "metadata.db").write_bytes(b"rubbish " * 100)
    assert (
        said(capsys, log_dirs=str(data))
        == f"{data}/metadata.db: is damaged: file is not a database; kbroker metadata rebuild {data} rebuilds it"
    )


def test_a_host_that_nobody_knows(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = said(capsys, log_dirs=str(data), listeners="PLAINTEXT://no.such.host.invalid:0")
    assert line.startswith("cannot listen on PLAINTEXT://no.such.host.invalid:0: ")
    assert "Errno" not in line


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use_is_told_with_the_command_for_another(
    taken: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "a.properties").write_text("num.partitions=1\n")
    listener = f"PLAINTEXT://127.0.0.1:{taken}"
    overrides = ["--override", f"listeners={listener}", "--override", f"log.dirs={data}"]
    for before, after in ([], []), ([str(file)], []), ([], ["--log-level", "error"]):
        line = said(capsys, *before, *after, listeners=listener, log_dirs=str(data))
        told, _, command = line.partition("; another port: ")
        assert told == f"cannot listen on {listener}: Address already in use"
        assert shlex.split(command) == ["kbroker", "start", *before, "--port", str(taken + 1), *overrides, *after]
    assert not data.exists()  # a start that cannot be leaves nothing behind


def test_a_port_in_use_of_several_is_to_be_written(taken: int, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    both = f"OTHER://127.0.0.1:0,PLAINTEXT://127.0.0.1:{taken}"
    line = said(capsys, log_dirs=str(data), listeners=both, listener_security_protocol_map=protocols)
    assert line.endswith("Address already in use; write another port into listeners")


@pytest.mark.parametrize("key", ["kbroker.metrics.listener", "console.listener"])
def test_a_port_in_use_of_what_is_beside_the_broker(
    key: str, taken: int, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{key}=127.0.0.1:{taken}"
    line = said(capsys, "--override", address, "--data", str(data))
    told, _, command = line.partition("; another port: ")
    assert told == f"cannot listen on {address}: Address already in use"
    assert f"--data {data} " in command
    assert f" --override {key}=127.0.0.1:{taken + 1}" in command
    assert address not in command
    assert not data.exists()


@pytest.mark.parametrize("key", ["ssl.key.password", "listener.name.inside.ssl.key.password", "my.own"])
def test_the_command_for_another_port_tells_no_password(
    key: str, taken: int, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["start", "--port", str(taken), "--data", str(data), "--override", f"{key}=hunter2"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert (code, "hunter2" in line) == (1, False)
    assert f"--override '{key}=[hidden]'" in line


def test_a_secured_start_stays_one_with_another_port(
    taken: int, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["start", "--secure", "--port", str(taken), "--data", str(data)])
    assert code == 1
    assert capsys.readouterr().err.endswith(
        f"; another port: kbroker start --port {taken + 1} --data {data} --secure\n"
    )
    assert not data.exists()


def test_a_port_in_use_leaves_no_folder_in_the_home_directory(
    taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert run(["start", "--port", str(taken)]) == 1
    assert capsys.readouterr().err.endswith(f"; another port: kbroker start --port {taken + 1}\n")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("9093", "To listen on that port: kbroker start --port 9093 (see"),
        (".", "To keep data there: kbroker start --data . (see"),
        ("99999", "File '99999' does not exist. (see"),
    ],
)
def test_what_stands_where_a_file_does_is_told_its_option(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["start", typed]) == 2
    assert told in capsys.readouterr().err


def test_one_port_for_several_listeners(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0"
    line = said(capsys, "--port", "9093", log_dirs=str(data), listeners=listeners)
    assert line == f"--port 9093: there are several listeners ({listeners}); set their ports there"


def test_a_fault_that_cannot_be_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    faults = tmp_path / "faults.toml"
    faults.write_text('[[fault]]\non = "Prodcue"\ndrop = true\n')
    line = said(capsys, "--faults", str(faults), log_dirs=str(data))
    assert line == f"{faults}: fault 1: there is no API 'Prodcue'; did you mean Produce?"


def test_a_file_of_faults_that_is_no_text_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    faults = tmp_path / "faults.toml"
    faults.write_bytes(b"\xff\xfe[\x00")
    assert said(capsys, "--faults", str(faults), log_dirs=str(data)).startswith(f"{faults}: is not TOML: ")


def test_two_variables_that_say_different_things(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "1")
    monkeypatch.setenv("KAFKA_CFG_NUM_PARTITIONS", "2")
    assert said(capsys).startswith("KAFKA_CFG_NUM_PARTITIONS and KAFKA_NUM_PARTITIONS: allowed: one of these")
