"""A broker without a console, and what `kbroker console` refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import run
from tests.processes import BrokerProcess


def test_a_broker_without_a_console_loads_none_of_it() -> None:
    program = (
        "import sys, kbroker.cli._broker as broker, kbroker.runtime.main\n"
        "broker._core_and_disk(None, '')\n"
        "print([name for name in sys.modules if name.startswith(('kbroker.console', 'starlette', 'jinja2'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_command_says_where_it_is_and_serves(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        command = ["console", "-b", f"127.0.0.1:{broker.port}", "--listener", "127.0.0.1:0"]
        process = subprocess.Popen([sys.executable, "-m", "kbroker", *command], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"is at http://127\.0\.0\.1:(\d+)/", said)
        assert found is not None, said
        from tests.console.pages import Pages

        assert "Overview" in Pages(int(found[1])).get("/").text
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-b", "nowhere"], "--bootstrap nowhere: write it as HOST:PORT"),
        (["--listener", ":8080"], "--listener :8080: write it as HOST:PORT"),
        (["-X", "security.protocol=TLS"], "security.protocol=TLS: allowed: "),
        (
            [
                "--listener", "0.0.0.0:0", "-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=PLAIN",
                "-X", "sasl.username=u", "-X", "sasl.password=p",
            ],
            "--listener 0.0.0.0:0 is reached by others, who would all be 'u'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_file_of_client_settings_has_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "none.properties"
    broker = BrokerProcess(tmp_path, console_listener="127.0.0.1:0", console_client_config=str(path))
    assert broker.wait() == 1
    assert f"console.client.config={path}: no such file" in broker.log


@pytest.mark.parametrize("listener", [":8080", "8080", "localhost:http", "localhost:99999"])
def test_what_is_no_address_is_told_in_one_line(tmp_path: Path, listener: str) -> None:
    broker = BrokerProcess(tmp_path, console_listener=listener)
    assert broker.wait() == 1
    assert f"console.listener={listener}: " in broker.log
    assert len(broker.log.splitlines()) == 1
