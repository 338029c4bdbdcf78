"""`kbroker service`: units that systemd takes, property lists that run the same command."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kbroker.cli.service as service_module
from kbroker.cli import run
from kbroker.cli.service import _quoted


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["service", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["service", *words]) == 2
    return capsys.readouterr().err


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "my server.properties"
    path.write_text("listeners=PLAINTEXT://127.0.0.1:9092\nlog.dirs=/srv/a, /var/lib/kbroker/b\n")
    return path


def test_a_user_s_own_service_is_the_plain_start(capsys: pytest.CaptureFixture[str]) -> None:
    unit = printed(capsys, "--kind", "systemd")
    assert f"ExecStart={sys.executable} -m kbroker start\n" in unit
    assert "User=" not in unit
    assert unit.endswith("WantedBy=default.target\n")


def test_a_service_has_the_data_directory_that_the_shell_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/my data")
    assert 'start --data "/srv/my data/kbroker"\n' in printed(capsys, "--kind", "systemd")


def test_a_service_of_the_machine_may_write_where_its_log_directories_are(
    properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = printed(capsys, "--kind", "systemd", "--user", "kafka", str(properties))
    assert f'start "{properties}"\n' in unit
    assert "User=kafka\n" in unit
    assert [line for line in unit.splitlines() if line.startswith("ReadWritePaths")] == ["ReadWritePaths=/srv/a"]


def test_a_service_sees_the_files_that_it_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "server.properties"
    elsewhere.write_text("log.dirs=/srv/a\n")
    monkeypatch.setattr(service_module, "_SCRATCH", (f"{tmp_path}/",))
    assert "PrivateTmp=" not in printed(capsys, "--kind", "systemd", "--user", "kafka", str(elsewhere))
    monkeypatch.setattr(service_module, "_SCRATCH", ("/tmp/elsewhere/",))
    assert "PrivateTmp=yes" in printed(capsys, "--kind", "systemd", "--user", "kafka", str(elsewhere))


def test_the_unit_on_the_page_for_operators_is_the_one_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    file, unit = (text for text in re.findall(r"^```(?:properties|ini)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    path = tmp_path / "server.properties"
    path.write_text(file)
    monkeypatch.setattr(sys, "executable", "/opt/kbroker/bin/python")
    monkeypatch.setattr(service_module, "_SCRATCH", ())  # where the file of this test may lie
    shown = printed(capsys, "--kind", "systemd", "--user", "kbroker", str(path))
    assert shown.replace(str(path), "/etc/kbroker/server.properties").partition("\n")[2] == unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("words", [[], ["--user", "root"]])
def test_systemd_takes_the_unit(
    words: list[str], properties: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(properties.parent))
    unit = properties.with_name("kbroker.service")
    unit.write_text(printed(capsys, "--kind", "systemd", *words, str(properties)))
    where = [] if words else ["--user"]
    done = subprocess.run(["systemd-analyze", *where, "verify", str(unit)], capture_output=True, text=True)
    assert str(unit) not in done.stderr.replace("kbroker.service is marked world-inaccessible", "")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("/opt/kbroker/bin/python", "/opt/kbroker/bin/python"),
        ("/srv/50%", "/srv/50%%"),
        ("/srv/$HOME", "/srv/$$HOME"),
        ('a "b"', '"a \\"b\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("ünï", "ünï"),
    ],
)
def test_a_path_is_what_it_is(word: str, quoted: str) -> None:
    assert _quoted(word) == quoted


def test_launchd_runs_the_same_command(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = plistlib.loads(printed(capsys, "--kind", "launchd", str(properties)).encode())
    assert keys["ProgramArguments"] == [sys.executable, "-m", "kbroker", "start", str(properties)]
    assert keys["KeepAlive"] == {"SuccessfulExit": False}
    assert keys["StandardErrorPath"].endswith("/Library/Logs/kbroker.log")
    assert "UserName" not in keys


def test_a_daemon_of_launchd_has_a_user_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--kind", "launchd", "--user", "kafka")
    keys = plistlib.loads(text.encode())
    assert keys["UserName"] == "kafka"
    assert keys["ProgramArguments"][-2:] == ["--data", "/usr/local/var/kbroker/data"]
    assert "<!-- first: install -d -o kafka /usr/local/var/kbroker; this is /Library/LaunchDaemons/" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("log.dirs=data\n", "log.dirs=data: allowed for a service: a path from / on"),
        ("{}\n", "no key of a broker is in it"),
    ],
)
def test_a_file_that_runs_no_service_is_told(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    assert said in refused(capsys, str(path))


def test_a_name_that_no_user_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--user a b: allowed: the name of a user" in refused(capsys, "--user", "a b")


def test_an_installation_that_is_removed_one_day_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/me/.cache/uv/archive-v0/x")
    assert run(["service"]) == 0
    assert "is a cache, and removed one day: install it first" in capsys.readouterr().err
