"""A codec of the user's own, installed as docs/codecs.md says, and used by a topic."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.config.broker import COMPRESSION_TYPES
from protocol.errors import ErrorCode
from protocol.records import Record
from protocol.records.batch import write_crc
from protocol.records.content import build_batch
from tests.requests import produce, produced
from tests.world import Client, World

ROOT = Path(__file__).parents[2]
USE = """
from protocol.records.content import parse_set
from tests.requests import fetch, fetched, produce, produced
from tests.world import World

world = World()
world.create("quiet", compression_type="rle")
client = world.client()
assert produced(client.ask(produce(b"a" * 9000, topic="quiet"), 9)).error_code == 0
((header, records),) = parse_set(bytes(fetched(client.ask(fetch(topic="quiet"), 12))[0].records))
print(header.codec_id, header.size_bytes < 1000, records[0].value == b"a" * 9000)
"""


@pytest.fixture
def world() -> World:
    return World()


def install_example(folder: Path, *, in_checkout: bool) -> None:
    """Put the example of the docs where Python finds it. compat_tests/test_installed.py has it as it stands."""
    page = (ROOT / "docs" / "codecs.md").read_text()
    module, project = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.S)
    (folder / "rle.py").write_text(module.replace("kbroker.protocol", "protocol") if in_checkout else module)
    info = folder / "kafka_rle-1.dist-info"  # what pip makes of the project
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kafka-rle\nVersion: 1\n")
    (entry,) = re.findall(r'entry-points."(kbroker.codecs)"\]\n(\w+) = "(.*)"', project)
    (info / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*entry))


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which the example of the docs is installed."""
    install_example(tmp_path, in_checkout=True)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def test_the_example_of_the_docs_works(installed: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", USE], env=installed, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("5 True True\n", "")


def test_a_name_that_no_package_brings_is_refused() -> None:
    holds = COMPRESSION_TYPES.holds
    assert [holds(name) for name in ("rle", "none", "gzip", "producer")] == [False, False, True, True]


def test_a_batch_in_a_codec_that_nobody_has_is_refused(world: World, client: Client) -> None:
    world.create("t")
    foreign = build_batch([Record(0, 0, None, b"v")], codec_id=1)
    foreign[22] = 5
    write_crc(foreign, 0, len(foreign))
    answer = produced(client.ask(produce(records=bytes(foreign)), 9))
    assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
