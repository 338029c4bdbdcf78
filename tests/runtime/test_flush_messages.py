"""flush.messages on a real process whose disk does not answer: the loop goes on, the answer does not leave."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.processes import BrokerProcess, Client
from tests.requests import fetch, fetched, produce

pytestmark = pytest.mark.slow

STUCK_DISK = """
import os, time
sync = os.fsync
def slow(fd):
    while os.path.exists({stuck!r}) and "/t-0/" in os.readlink(f"/proc/self/fd/{{fd}}"):
        open({asked!r}, "w").close()
        time.sleep(0.01)
    sync(fd)
os.fdatasync = os.fsync = slow
"""


def await_file(path: Path) -> None:
    """Until another process has made it; pytest's time limit bounds this."""
    while not path.exists():
        select.select([], [], [], 0.01)


def test_a_produce_is_answered_and_shown_when_the_disk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, asked = tmp_path / "stuck", tmp_path / "asked"
    (tmp_path / "sitecustomize.py").write_text(STUCK_DISK.format(stuck=str(stuck), asked=str(asked)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with BrokerProcess(tmp_path, log_flush_interval_messages="1") as broker:
        producer, other = Client(broker.port), Client(broker.port)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        producer.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
        stuck.touch()
        producer.send(produce(b"v"), 9)
        await_file(asked)
        seen = (
            other.ask(ApiVersionsRequest(), 0).error_code,
            len(fetched(other.ask(fetch(), 12))[0].records),
            select.select([producer.socket], [], [], 0.1)[0],
        )
        stuck.unlink()
        producer.receive()
        assert (seen, len(fetched(other.ask(fetch(), 12))[0].records) > 0) == ((0, 0, []), True)
