"""The README's first steps and every documented `pip install` of kbroker, as printed, in a fresh checkout.

Its port is the only thing that is another one, since 9092 may be taken on a machine that runs tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.usage import installed_by
from tests.test_installing import PAGES, ROOT

pytestmark = pytest.mark.timeout(1800)

README = (ROOT / "README.md").read_text()
COMMANDS = sorted(
    {
        re.sub(r"[`\s]*(#.*)?$", "", line)
        for page in PAGES
        for line in re.findall(r"pip install [^`#\n]*", page.read_text())
        if re.search(r" '?\.", line)
    }
)
RUNS = sorted(set(re.findall(r"(?:uvx|pipx run) [^`\n]*kbroker start", README)))
VENDORED = "vendor/kbroker"  # where the pages have a checkout in a project of the reader's
PROJECT = '[project]\nname = "shop"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
START_S = 1500.0


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has of this tree, as it is now, and nothing that was made here."""
    folder = tmp_path_factory.mktemp("readme") / "kbroker"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def bash(checkout: Path, script: str, **variables: str) -> str:
    """What a script prints, run where the README has its reader stand; in bash, without this test's environment."""
    own = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=checkout,
        env={**own, **variables},
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def port(checkout: Path) -> Iterator[str]:
    """Of the broker that `scripts/start` starts, which makes its environment first."""
    command = ["scripts/start", "--override", "listeners=PLAINTEXT://127.0.0.1:0"]
    broker = subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(START_S, broker.kill)
    timer.start()
    try:
        assert broker.stdout is not None
        yield next(found[1] for line in broker.stdout if (found := re.search(r"listening on .*:(\d+)$", line.rstrip())))
    finally:
        timer.cancel()
        broker.terminate()
        broker.communicate()


def test_five_minutes(checkout: Path, port: str) -> None:
    """README: the first steps, after `scripts/start` and `. .venv/bin/activate`"""
    source = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0].replace(":9092", f":{port}")
    (checkout / "five_minutes.py").write_text(source)
    script = ". .venv/bin/activate\npython five_minutes.py"
    assert [bash(checkout, script) for _ in range(2)] == ["1000 orders\n"] * 2


def test_commands_of_a_terminal(checkout: Path, port: str) -> None:
    """README: the commands of a terminal, by the environment that `scripts/start` has made"""
    (section,) = re.findall(r"## From a terminal\n(.*?)\n\n", README, re.DOTALL)
    lines = [line.strip() for line in section.splitlines() if "pip install" not in line]
    script = "\n".join([". .venv/bin/activate", *lines]).replace("-o beginning", "-o beginning -e")
    said = bash(checkout, script, KBROKER_BOOTSTRAP_SERVER=f"127.0.0.1:{port}")
    assert "two" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_installed(checkout: Path, command: str, tmp_path: Path) -> None:
    """Documented: each way to install"""
    stands = checkout
    if VENDORED in command:
        stands = tmp_path / "project"
        (stands / VENDORED).parent.mkdir(parents=True)
        (stands / VENDORED).symlink_to(checkout)
        (stands / "pyproject.toml").write_text(PROJECT)
    elif "../kbroker" in command:
        (stands := checkout.parent / "shop").mkdir(exist_ok=True)
    assert "kbroker" in bash(stands, in_environment(tmp_path, command, "kbroker --version", "pip check"))


@pytest.mark.parametrize("command", RUNS)
def test_what_is_run_without_installing_it(checkout: Path, command: str, tmp_path: Path) -> None:
    """README: a start by uv, or by pipx"""
    runner, _, rest = command.partition(" ")
    own = f"{{ type -P {runner} > /dev/null || pip install {'uv' if runner == 'uvx' else runner}; }}"
    script = in_environment(tmp_path, own, f"{runner} {rest.replace('kbroker start', 'kbroker --version')}")
    left = {f"XDG_{each}_HOME": str(tmp_path / each) for each in ("CACHE", "DATA")}  # where they leave what they made
    assert "kbroker, version " in bash(checkout, script, **left)


def test_what_the_program_says_to_install(checkout: Path, tmp_path: Path) -> None:
    """The program's own hint, where kbroker is installed and its name is not on the index"""
    has_it = 'python -c "import confluent_kafka"'
    script = in_environment(
        tmp_path, "pip install .", f"! {has_it} 2> /dev/null", installed_by("cli").partition(" ")[2]
    )
    bash(checkout, f"{script}\n{has_it}")


def in_environment(tmp_path: Path, *commands: str) -> str:
    """A script that runs these in a new virtual environment."""
    made = tmp_path / "env"
    return "\n".join([f'python3 -m venv "{made}"', f'. "{made}/bin/activate"', *commands])
