"""A wheel, installed as a user installs it: beside a package that is called `protocol` too, at both ends of the ranges.

Every other test runs in the tree, where `protocol` is a package of its own; this one asks what is shipped. It builds
the wheel once, installs it into virtual environments with the lowest and with the exact versions of what it depends on,
and runs the commands from a folder that has a `protocol` as well. So with the wheel for every platform, which is made
without a compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from compat_tests import environments
from kbroker import __version__
from tests.api.test_codecs import install_example

ROOT = Path(__file__).parents[1]
SECTION = "7 Installed from a wheel"
RUNNERS = ["pipx==1.18.4", "uv==0.13.9"]
pytestmark = pytest.mark.timeout(600)

CODEC_OF_ONES_OWN = """
from kbroker.protocol.records.compression import codec_named

codec = codec_named("rle")
print(codec.decompress(codec.compress(b"a" * 9), 9))
"""

MODULES = """
from importlib import import_module
from pkgutil import walk_packages
from kbroker import api, broker, log, protocol, runtime

for package in (api, broker, log, protocol, runtime):
    for each in walk_packages(package.__path__, package.__name__ + "."):
        import_module(each.name)
"""


def requirements() -> list[str]:
    """Of a user, as pyproject.toml has them."""
    declared: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return declared


def lowest() -> str:
    """Constraints for the lower end of each range."""
    return "\n".join(each.replace(">=", "==").split(",")[0] for each in requirements())


@pytest.fixture(scope="module", params=["lowest", "pure", pytest.param("exact", marks=pytest.mark.quick)])
def place(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a virtual environment, `env`, and two packages called `protocol`: in it, and beside kbroker."""
    folder = tmp_path_factory.mktemp(request.param)
    constraints = ROOT / "constraints.txt"
    if request.param == "lowest":
        constraints = folder / "constraints.txt"
        constraints.write_text(lowest())
    if request.param == "pure":
        wheel = _built(folder, KBROKER_PURE="1")
        assert wheel.name.endswith("-py3-none-any.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(constraints), str(wheel)], check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    for where in (folder, packages):
        (where / "protocol").mkdir()
        (where / "protocol" / "__init__.py").write_text("raise ImportError('this is somebody else')")
    return folder


def _built(folder: Path, **environment: str) -> Path:
    """The wheel that is made with these variables set."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    (built,) = folder.glob("kbroker-*.whl")
    return built


def run(place: Path, *command: str) -> str:
    """What a command of the installation prints, run in the folder."""
    program, *arguments = command
    done = subprocess.run(
        [str(place / "env" / "bin" / program), *arguments], cwd=place, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.quick
def test_nothing_called_protocol_is_put_at_the_top(wheel: Path) -> None:
    """The wheel has one package, kbroker"""
    listed = subprocess.run([sys.executable, "-m", "zipfile", "--list", str(wheel)], capture_output=True, text=True)
    names = [line.split()[0] for line in listed.stdout.splitlines()[1:]]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"kbroker"}


def test_every_codec_works(place: Path) -> None:
    """Records go in and out of a broker by all codecs, at both ends of the ranges of what it depends on"""
    kinds = ["interpreted"] if "pure" in place.name else []
    assert f"kbroker {__version__}, " in run(place, "python", str(ROOT / "compat_tests" / "installed.py"), *kinds)


def test_a_release_is_compiled_or_not_there(tmp_path: Path) -> None:
    """With KBROKER_COMPILED=1 and no compiler, the wheel is not made; one line says why"""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _built(tmp_path, KBROKER_COMPILED="1", CC="no-such-compiler")
    assert "kbroker: KBROKER_COMPILED is set, and this cannot be compiled: " in failed.value.stderr


def test_the_codec_of_the_docs_can_be_installed(place: Path) -> None:
    """docs/codecs.md: its codec as a package of its own, beside the wheel"""
    (packages,) = (place / "env" / "lib").glob("python*/site-packages")
    install_example(packages, in_checkout=False)
    assert run(place, "python", "-c", CODEC_OF_ONES_OWN) == "b'aaaaaaaaa'\n"


def test_every_module_can_be_loaded(place: Path) -> None:
    """What a broker loads when it is first needed is there, too"""
    assert run(place, "python", "-c", MODULES) == ""


def test_the_tools_work(place: Path) -> None:
    """The commands run, also as `python -m kbroker`"""
    assert "dump-log" in run(place, "kbroker", "--help")
    assert run(place, "python", "-m", "kbroker", "--version").startswith("kbroker, version ")
    completes = subprocess.run(
        [str(place / "env" / "bin" / "kbroker")],
        env={**os.environ, "_KBROKER_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
    )
    assert "complete -o nosort -F _kbroker_completion kbroker" in completes.stdout


def test_a_broker_starts(place: Path) -> None:
    """`kbroker start` is ready, serves and stops"""
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", "log.dirs=data"]
    overrides = [word for each in settings for word in ("--override", each)]
    command = [str(place / "env" / "bin" / "kbroker"), "start", "--log-format", "json", *overrides]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        banner = json.loads(broker.stdout.readline())
        broker.terminate()
    assert (banner["message"].split()[-1], broker.returncode) == ("ready", 0)
    assert run(place, "kbroker", "verify-log", "data").endswith("nothing wrong\n")


@pytest.mark.parametrize("runner", [("pipx", "run", "--spec"), ("uvx", "--from")], ids=["pipx run", "uvx"])
def test_it_starts_without_being_installed(wheel: Path, tmp_path: Path, runner: tuple[str, ...]) -> None:
    """`pipx run kbroker start` and `uvx kbroker start` serve on the loopback, with data in the home directory"""
    python = environments.python("runners", "2026", RUNNERS)
    command = [str(python.with_name(runner[0])), *runner[1:], str(wheel), "kbroker", "start", "--port", "0"]
    own = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        said = []
        for line in broker.stdout:
            said.append(line.strip())
            if line.startswith("  try:"):
                broker.terminate()
    assert "reached by   this machine alone; others: kbroker start server.properties" in said
    assert (tmp_path / ".local" / "share" / "kbroker" / "meta.properties").exists()
