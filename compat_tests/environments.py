"""Where the stock clients live: each is installed once, alone, into `.cache/clients/<name>-<version>/`.

Called by `clients.py` when a test first needs a client. Everything comes from the ordinary registries (PyPI, npm,
Maven) or from what the machine has (kcat). A client that cannot be had raises NoClientError with what to do, and its
tests are skipped with that reason, which the matrix shows.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from compat_tests import apache

_CACHE = Path(__file__).parents[1] / ".cache" / "clients"
# What it only reads POMs of stays without a jar, and Ivy, which Spark fetches packages by, takes ~/.m2 for whole.
MAVEN = ("mvn", "-q", "-B", f"-Dmaven.repo.local={_CACHE.with_name('maven')}")
_DRIVERS = Path(__file__).parent / "drivers"


class NoClientError(RuntimeError):
    """The client is not on this machine and could not be installed; the text says what is missing."""


def unavailable(reason: str) -> NoReturn:
    """End a test that lacks something: skipped with the reason, but failed under CI=true, where all is to be had."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def python(name: str, version: str, requirements: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with exactly these requirements. Raises NoClientError."""

    def install(home: Path) -> None:
        run([sys.executable, "-m", "venv", str(home)])
        quiet = ["--quiet", "--disable-pip-version-check"]
        run([str(home / "bin" / "python"), "-m", "pip", "install", *quiet, *requirements])

    return installed(f"{name}-{version}", requirements, install) / "bin" / "python"


def package(name: str, version: str) -> Path:
    """A folder with this version of a package alone, for PYTHONPATH: what it depends on is in this environment, which
    has another version of it. Raises NoClientError."""
    wanted = f"{name}=={version}"

    def install(home: Path) -> None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
        run([sys.executable, "-m", "pip", "install", *quiet, "--target", str(home), wanted])

    return installed(f"only-{name}-{version}", [wanted], install)


def node(name: str, version: str, packages: Sequence[str]) -> Path:
    """A folder whose node_modules holds these packages. Raises NoClientError."""
    absent = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if absent:
        raise NoClientError(f"not installed: {', '.join(absent)}")

    def install(home: Path) -> None:
        home.mkdir(parents=True)
        (home / "package.json").write_text('{"private": true}')
        run(["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", *packages])

    return installed(f"{name}-{version}", packages, install)


def kcat() -> str:
    """The command of kcat. Raises NoClientError."""
    command = shutil.which("kcat") or shutil.which("kafkacat")
    if command is None:
        raise NoClientError("kcat is not installed (Debian: apt-get install kcat)")
    return command


def kcat_release() -> str:
    """The release of the kcat that this machine has; it is the only client that is not ours to choose."""
    try:
        said = subprocess.run([kcat(), "-V"], capture_output=True, text=True).stdout
    except NoClientError:
        return "(not installed)"
    found = re.search(r"Version (\S+)", said)
    return found[1] if found else "(unknown release)"


def java_classpath(release: str) -> str:
    """The class path of an Apache release, its clients included. Raises NoClientError."""
    if shutil.which("javac") is None:
        raise NoClientError("not installed: a JDK (javac)")
    try:
        return f"{apache.jars(release)}/*"
    except apache.NoApacheError as reason:
        raise NoClientError(str(reason)) from reason


def old_java(name: str, pom: str, reader: str) -> Path:
    """A folder with the `lib` that a POM names and, compiled with it, the `classes` of the driver of old Java clients.

    reader: the source in drivers/ of its class OldJavaReader. Raises NoClientError.
    """
    if reason := apache.missing():
        raise NoClientError(reason)
    sources = {"OldJavaDriver.java": "OldJavaDriver.java", "OldJavaReader.java": reader}
    texts = {file: Path(driver(source)).read_text() for file, source in sources.items()}

    def install(home: Path) -> None:
        for folder in ("src", "lib", "classes"):
            (home / folder).mkdir(parents=True)
        (home / "pom.xml").write_text(pom)
        for file, text in texts.items():
            (home / "src" / file).write_text(text)
        run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                f"{home}/pom.xml",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={home}/lib",
            ]
        )
        files = [f"{home}/src/{file}" for file in texts]
        run(["javac", "-nowarn", "-cp", f"{home}/lib/*", "-d", f"{home}/classes", *files])

    return installed(name, [pom, *texts.values()], install)


def jars_of(pom: Path, name: str, properties: Mapping[str, str] | None = None) -> list[Path]:
    """The jars that the POM's runtime scope names, copied by Maven into `.cache/clients/<name>/`.

    properties: of the POM, in place of its own.
    """
    if reason := apache.missing():
        raise NoClientError(reason)

    def install(home: Path) -> None:
        home.mkdir(parents=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home}"]
        run([*MAVEN, "-f", str(pom), *(f"-D{key}={value}" for key, value in (properties or {}).items()), *goal])

    return sorted(installed(name, [pom.read_text()], install).glob("*.jar"))


def go_program(name: str, folder: str) -> str:
    """The program that Go makes of a module in drivers/. Raises NoClientError."""
    if shutil.which("go") is None:
        raise NoClientError("not installed: go")
    sources = sorted(path for path in Path(driver(folder)).iterdir() if path.is_file())

    def install(home: Path) -> None:
        home.mkdir(parents=True)
        for source in sources:
            shutil.copy(source, home)
        run(["go", "build", "-C", str(home), "-mod=readonly", "-o", "driver", "."])

    return str(installed(name, [source.read_text() for source in sources], install) / "driver")


def driver(file: str) -> str:
    """The path of a driver's source."""
    return str(_DRIVERS / file)


def installed(name: str, wanted: Sequence[str], install: Callable[[Path], None]) -> Path:
    """The folder, made by `install` unless it was made from the same `wanted` before."""
    home, stamp = _CACHE / name, _CACHE / f"{name}.stamp"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with open(_CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        contents = "\n".join(wanted)
        if not stamp.exists() or stamp.read_text() != contents:
            shutil.rmtree(home, ignore_errors=True)
            install(home)
            stamp.write_text(contents)
    return home


def run(command: Sequence[str]) -> None:
    """Run a command that installs something. Raises NoClientError."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise NoClientError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr)[-1000:]}")
