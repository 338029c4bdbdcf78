"""The guide for testers, docs/testing.md, as a newcomer follows it: nothing but pytest, kafka-python and the wheel.

Its examples are run as they are printed; one more environment would tell no more, so the other clients are added to the
same one afterwards. Spark's example is in tests/pipeline/test_guide.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.test_docs import EXAMPLES, clients_of

SECTION = "7 Installed from a wheel"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def newcomer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with what the first line of docs/testing.md installs."""
    env = tmp_path_factory.mktemp("newcomer") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    add(env, f"{wheel}[testing]", "kafka-python==3.0.12")
    return env


def add(env: Path, *requirements: str) -> None:
    """Install into a virtual environment."""
    pip = [str(env / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True)


def outcome(env: Path, folder: Path, sources: list[str]) -> dict[str, int]:
    """How many tests passed, failed and so on: each source a file, all run at once as they are."""
    for number, source in enumerate(sources):
        (folder / f"test_example_{number}.py").write_text(source)
    command = [str(env / "bin" / "pytest"), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    print(done.stdout)  # shown where a test fails
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)", done.stdout)}
    assert counts, done.stdout + done.stderr
    return counts


def test_the_examples_of_the_guide_run_as_printed(newcomer: Path, tmp_path: Path) -> None:
    """docs/testing.md: its examples run as printed, with nothing but pytest and kafka-python"""
    plain = [(fails, source) for fails, source in EXAMPLES if not clients_of(source)]
    counts = outcome(newcomer, tmp_path, [source for _, source in plain])
    tests = sum(len(re.findall(r"^ *def test_", source, re.MULTILINE)) for _, source in plain)
    failing = sum(1 for fails, _ in plain if fails)
    assert counts == {"failed": failing, "passed": tests - failing}


LOOP = """
import asyncio

import pytest_asyncio
import pytest


@pytest_asyncio.fixture
async def reader(kafka_broker):
    reader, writer = await asyncio.open_connection("127.0.0.1", kafka_broker.port)
    yield reader
    writer.close()


@pytest.mark.asyncio
async def test_it(kafka_broker, reader):
    asked = asyncio.create_task(asyncio.to_thread(kafka_broker.produce, "orders", b"x"))
    assert await asked == [0]
    assert not reader.at_eof()
"""


def test_examples_with_other_clients_run_as_printed(newcomer: Path, tmp_path: Path) -> None:
    """docs/testing.md: its examples with aiokafka and confluent-kafka; a test of pytest-asyncio's"""
    add(newcomer, "aiokafka==0.14.0", "confluent-kafka==2.16.0", "pytest-asyncio==1.5.0")
    others = [source for _, source in EXAMPLES if clients_of(source) in ({"aiokafka"}, {"confluent_kafka"})]
    assert outcome(newcomer, tmp_path, [*others, LOOP]) == {"passed": 3}
