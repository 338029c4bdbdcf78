"""A start without a properties file is for the person at this machine; with one, Kafka's defaults count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli._broker import Start, _settings
from kbroker.cli._own_machine import LISTENERS, user_data_directory
from kbroker.config import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path / "home"


def given(*overrides: str, **start: object) -> dict[str, str]:
    static = _settings(Start(overrides=overrides, **start), None)  # type: ignore[arg-type]
    return {key: each.text for key, each in static.items()}


def test_it_is_on_the_loopback_with_its_data_in_the_home_directory(home: Path) -> None:
    assert given() == {"listeners": LISTENERS, "log.dirs": f"{home}/.local/share/kbroker"}


def test_port_and_data_of_the_command_line_count(home: Path) -> None:
    assert given(port=9093, data="mine") == {"listeners": "PLAINTEXT://127.0.0.1:9093", "log.dirs": "mine"}
    assert not home.exists()


@pytest.mark.parametrize("key", ["log.dirs", "log.dir"])
def test_a_log_directory_that_is_given_counts(key: str, home: Path) -> None:
    assert given(f"{key}=mine") == {"listeners": LISTENERS, key: "mine"}
    assert not home.exists()


@pytest.mark.parametrize(
    "setting",
    [
        "listeners=PLAINTEXT://:9092",
        "advertised.listeners=PLAINTEXT://here.example:9092",
        "zookeeper.connect=zk:2181",
        "process.roles=broker",
    ],
)
def test_what_others_are_to_reach_is_not_on_the_loopback(setting: str) -> None:
    assert given(setting).get("listeners", "") != LISTENERS


def test_a_variable_counts_as_it_does_with_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_ADVERTISED_LISTENERS", "PLAINTEXT://here.example:9092")
    assert given()["listeners"] == "PLAINTEXT://:9092"


def test_with_a_file_kafka_s_defaults_count(tmp_path: Path, home: Path) -> None:
    (tmp_path / "server.properties").write_text("num.partitions=3\n")
    assert given(properties=str(tmp_path / "server.properties")) == {"num.partitions": "3"}
    assert not home.exists()


@pytest.mark.parametrize(
    ("environment", "platform", "folder"),
    [
        ({"HOME": "/home/a"}, "linux", "/home/a/.local/share/kbroker"),
        ({"HOME": "/home/a", "XDG_DATA_HOME": "/srv/a"}, "linux", "/srv/a/kbroker"),
        ({"HOME": "/home/a", "XDG_DATA_HOME": "relative"}, "linux", "/home/a/.local/share/kbroker"),
        ({"HOME": "/Users/a", "XDG_DATA_HOME": "/srv"}, "darwin", "/Users/a/Library/Application Support/kbroker"),
    ],
)
def test_the_data_directory_is_where_the_platform_has_it(
    environment: dict[str, str], platform: str, folder: str
) -> None:
    assert user_data_directory(environment, platform) == folder


@pytest.mark.parametrize("environment", [{"HOME": "/"}, {"HOME": "relative"}, {"XDG_DATA_HOME": "/a,b"}])
def test_without_a_home_it_is_told_to_name_a_directory(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"; kbroker start --data DIR$"):
        user_data_directory(environment, "linux")


def test_the_banner_says_who_reaches_it(tmp_path: Path, home: Path) -> None:
    command = [sys.executable, "-m", "kbroker", "start", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        said = []
        for line in broker.stdout:
            said.append(line.rstrip())
            if "kbroker consume" in line:
                broker.terminate()
    assert "  reached by   this machine alone; others: kbroker start server.properties" in said
    assert f"  data in      {home}/.local/share/kbroker" in said
    assert (home / ".local" / "share" / "kbroker" / "meta.properties").exists()
