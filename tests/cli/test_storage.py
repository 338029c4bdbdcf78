"""`kbroker storage`: directories of a member of a KRaft cluster, formatted as Apache's tool does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker\nnode.id=7\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n"
        f"log.dirs={tmp_path}/a,{tmp_path}/b\n"
    )
    return path


def formatted(path: Path, *more: str, cluster_id: str = CLUSTER) -> int:
    return run(["storage", "format", "-t", cluster_id, "-c", str(path), *more])


def test_format_writes_meta_properties_into_each_directory(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert formatted(properties) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    for name in "ab":
        lines = (tmp_path / name / "meta.properties").read_text().splitlines()
        assert {"version=1", f"cluster.id={CLUSTER}", "node.id=7"} < set(lines)


def test_what_is_formatted_is_left_alone(properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formatted(properties)
    before = (tmp_path / "a/meta.properties").read_text()
    assert formatted(properties) == 2
    assert f"kbroker: Log directory {tmp_path}/a is already formatted." in capsys.readouterr().err
    assert formatted(properties, "--ignore-formatted", "--no-initial-controllers") == 0
    assert (tmp_path / "a/meta.properties").read_text() == before


def test_a_directory_of_another_cluster_is_refused(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formatted(properties)
    assert formatted(properties, "-g", cluster_id="AkU3OEVBNTcwNTJENDM2Qk") == 2
    assert "cluster id MkU3OEVBNTcwNTJENDM2Qk differs from AkU3OEVBNTcwNTJENDM2Qk" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("format", "-t", CLUSTER), ("info",)])
def test_a_file_that_is_no_server_properties_is_refused(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "server.json").write_text('{"process.roles": "broker"}\n')
    assert run(["storage", *words, "-c", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"kbroker: {path}: no key of a broker is in it")


def test_a_broker_that_is_no_member_needs_no_formatting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path}/a\n")
    assert formatted(path) == 2
    assert capsys.readouterr().err.startswith(f"kbroker: {path}: process.roles is not broker")


def test_info_shows_whose_directories_they_are(
    properties: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["storage", "info", "-c", str(properties)]) == 1
    assert f"kbroker: {tmp_path}/a: there is no such directory" in capsys.readouterr().err
    formatted(properties)
    capsys.readouterr()
    assert run(["storage", "info", "-c", str(properties)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Found log directories:"
    assert said[1].startswith(f"  {tmp_path}/a  {{cluster.id={CLUSTER}, directory.id=")


def test_a_random_id_is_one_of_kafkas(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", "random-uuid"]) == 0
    assert len(capsys.readouterr().out.strip()) == 22
