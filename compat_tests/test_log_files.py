"""Apache's tools and brokers on the files that our log wrote, and our tools and log on theirs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.apache import NEWEST, KraftBroker, ZooKeeper, ZooKeeperBroker, dump_log, run_tool
from compat_tests.apache_data import fill as fill_apache
from kbroker.log.config import LogConfig
from kbroker.runtime.files import SystemDisk
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from tests.log.directories import CODECS, fill, open_directory, run_jobs
from tests.processes import BrokerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]
TOPICS = "org.apache.kafka.tools.TopicCommand"
SUFFIXES = ("log", "index", "timeindex", "txnindex", "snapshot")
# Where bytes are no UTF-8, Java and Python disagree on how many replacement characters to show.
REPLACED = re.compile("\N{REPLACEMENT CHARACTER}+")


def files_in(directory: Path) -> str:
    """All files that Apache's tool shows, but for KRaft's own, as its --files wants them."""
    found = [path for suffix in SUFFIXES for path in sorted(directory.glob(f"*/*.{suffix}"))]
    return ",".join(str(path) for path in found if path.parent.name != "__cluster_metadata-0")


def ours(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of our tools as a user does."""
    script = [sys.executable, "-c", "from kbroker.cli import main; main()", command, *arguments]
    return subprocess.run(script, capture_output=True, text=True, errors="replace")


def shown(output: str) -> list[str]:
    """What a dump tool printed, line by line. Apache's 3.9.1 has a brace too many behind old records' checksums."""
    return REPLACED.sub("?", re.sub(r"(crc: \d+)}", r"\1", output)).splitlines()


@pytest.fixture(scope="module")
def our_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ours") / "logs"
    fill(SystemDisk(), str(path))
    return path


# 3.9.1 has the formats that ours are; the newest release, which takes half a minute more, is left to scripts/compat
@pytest.fixture(scope="module", params=[NEWEST, pytest.param("3.9.1", marks=pytest.mark.quick)])
def apache_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a running Apache broker left after a clean stop."""
    folder = tmp_path_factory.mktemp("apache")
    settings = {"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "100"}
    with KraftBroker(request.param, folder, settings=settings) as broker:
        fill_apache(broker.address)
        compacted = folder / "data0" / "cleaner-offset-checkpoint"
        deadline = time.monotonic() + 60
        while "compacted" not in compacted.read_text():
            assert time.monotonic() < deadline, "the cleaner never ran"
            time.sleep(0.1)
    return folder / "data0"


# ---- Apache's tool on our files


@pytest.mark.parametrize("release", ["3.9.1", NEWEST])
@pytest.mark.quick
def test_apaches_tool_finds_no_fault_in_our_indices(our_directory: Path, release: str) -> None:
    files = files_in(our_directory)
    done = dump_log(release, "--files", files, "--index-sanity-check")
    assert (done.returncode, done.stderr) == (0, "")
    indices = [path for path in files.split(",") if path.endswith("index") and not path.endswith("txnindex")]
    said = [line for line in done.stdout.splitlines() if line.endswith((" passed sanity check.", " is empty."))]
    assert len(said) == len(indices) > 10


@pytest.mark.quick
def test_apaches_tool_reads_every_record_of_ours_and_complains_of_none(our_directory: Path) -> None:
    done = dump_log("3.9.1", "--files", files_in(our_directory), "--deep-iteration", "--print-data-log")
    assert (done.returncode, done.stderr) == (0, "")
    assert "isvalid: false" not in done.stdout
    assert "invalid bytes" not in done.stdout
    assert all(f"compresscodec: {codec}" in done.stdout for codec in CODECS)


@pytest.mark.parametrize("flags", [[], ["--deep-iteration"], ["--print-data-log"], ["--verify-index-only"]])
@pytest.mark.quick
def test_our_tool_shows_our_files_as_apaches_does(our_directory: Path, flags: list[str]) -> None:
    files = files_in(our_directory)
    theirs, mine = dump_log("3.9.1", "--files", files, *flags), ours("dump-log", "--files", files, *flags)
    assert shown(mine.stdout) == shown(theirs.stdout)
    assert (mine.returncode, mine.stderr) == (0, "")


@pytest.mark.quick
def test_our_tool_shows_messages_of_old_formats_as_apaches_does(tmp_path: Path) -> None:
    path = tmp_path / "old-0" / "00000000000000000000.log"
    path.parent.mkdir()
    content, offset = bytearray(), 0
    for magic, append_time in ((0, None), (1, None), (1, 1_700_000_000_999)):
        for codec_id in range(4):  # zstd came with v2
            times = range(1_700_000_000_000, 1_700_000_000_004)
            records = [
                Record(offset + at, time_ms if magic else -1, None if at == 1 else b"key", b"v" * at)
                for at, time_ms in enumerate(times)
            ]
            content += legacy.build_set(records, magic, codec_id=codec_id, append_time=append_time)
            offset += len(records)
    path.write_bytes(content)
    theirs = dump_log("3.9.1", "--files", str(path), "--print-data-log")
    assert shown(ours("dump-log", "--files", str(path), "--print-data-log").stdout) == shown(theirs.stdout)
    assert ours("verify-log", str(path.parent), "--quiet").returncode == 1  # the indices are missing


# ---- our tools on Apache's files


def test_our_verification_finds_nothing_wrong_in_apaches_directory(apache_directory: Path) -> None:
    done = ours("verify-log", "--quiet", str(apache_directory))
    assert (done.returncode, done.stdout) == (0, f"{apache_directory}: nothing wrong\n")


@pytest.mark.parametrize("flags", [["--deep-iteration"], ["--print-data-log"], ["--index-sanity-check"]])
def test_our_tool_shows_apaches_files_as_apaches_does(apache_directory: Path, flags: list[str]) -> None:
    files = ",".join(path for path in files_in(apache_directory).split(",") if "-delete/" not in path)
    theirs, mine = dump_log("3.9.1", "--files", files, *flags), ours("dump-log", "--files", files, *flags)
    assert shown(mine.stdout) == shown(theirs.stdout)
    assert len(mine.stdout) > 10_000


@pytest.mark.parametrize(
    ("topic", "flag"),
    [
        ("__consumer_offsets", "--offsets-decoder"),
        ("__transaction_state", "--transaction-log-decoder"),
        ("__cluster_metadata", "--cluster-metadata-decoder"),
    ],
)
def test_records_that_brokers_keep_are_shown_as_apaches_tool_shows_them(
    apache_directory: Path, topic: str, flag: str
) -> None:
    path = str(apache_directory / f"{topic}-0" / "00000000000000000000.log")
    theirs, mine = dump_log(NEWEST, "--files", path, flag), ours("dump-log", "--files", path, flag)
    assert shown(mine.stdout) == shown(theirs.stdout)


FLOOD = """
import sys
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=1)
while True:
    producer.send("t", b"x" * 500, partition=0)
"""


@pytest.mark.quick
def test_a_killed_brokers_directory_has_nothing_but_a_torn_end(tmp_path: Path) -> None:
    broker = KraftBroker(NEWEST, tmp_path).start()
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, broker.address], stderr=subprocess.DEVNULL)
    try:
        log = broker.log_dirs[0] / "t-0" / "00000000000000000000.log"
        deadline = time.monotonic() + 60
        while not log.exists() or log.stat().st_size < 3_000_000:
            assert time.monotonic() < deadline, broker.output[-1000:]
            time.sleep(0.01)
    finally:
        broker.kill()
        flood.kill()
        flood.wait()
    done = ours("verify-log", "--quiet", str(broker.log_dirs[0]))
    faults = [line for line in done.stdout.splitlines() if line.startswith(("fault", "unreadable"))]
    assert [line for line in faults if "at the end are no batch" not in line] == []


# ---- taking turns on one directory


@pytest.mark.quick
def test_apaches_broker_and_our_log_take_turns_on_one_directory(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        broker = ZooKeeperBroker(tmp_path / "broker", zookeeper=zookeeper.address)
        with broker:
            run_tool("3.9.1", TOPICS, "--bootstrap-server", broker.address, "--create", "--topic", "t")
            _produce(broker.address, range(10))
        manager = open_directory(SystemDisk(), str(broker.log_dirs[0]), config=LogConfig(), identity=None)
        log = manager.get("t", 0)
        assert log is not None
        assert log.log_end_offset == 10
        epoch = log.epochs.latest
        for number in range(10, 20):
            now_ms = time.time_ns() // 1_000_000
            batch = build_batch([Record(0, now_ms, None, str(number).encode())])
            log.append_as_leader(memoryview(batch), epoch, now_ms)
        log.set_high_watermark(log.log_end_offset)
        run_jobs(manager)
        manager.close()
        with broker:
            _produce(broker.address, range(20, 30))
            assert _consume(broker.address, 30) == [str(number).encode() for number in range(30)]
            assert "Recovering" not in broker.output
    done = ours("verify-log", "--quiet", str(broker.log_dirs[0]))
    assert done.stdout.endswith("nothing wrong\n"), done.stdout


def test_our_broker_takes_a_kraft_directory_over(apache_directory: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(apache_directory, data)
    refused = BrokerProcess(tmp_path)
    assert refused.wait() == 1
    signs = "meta.properties version 1, __cluster_metadata-0"
    assert f"is of Apache Kafka in KRaft mode ({signs}); kbroker metadata rebuild {data} takes it over" in refused.log
    made = ours("metadata", "rebuild", str(data))
    assert made.returncode == 0, made.stderr
    with BrokerProcess(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            topic = f"codec-{codec}"
            files = ",".join(str(path) for path in sorted(data.glob(f"{topic}-*/*.log")))
            written = ours("dump-log", "--files", files, "--print-data-log").stdout.count("\n| offset:")
            consumer = KafkaConsumer(
                bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=3000, group_id=None
            )
            consumer.assign([TopicPartition(topic, index) for index in (0, 1)])
            assert (written > 0, sum(1 for _ in consumer)) == (True, written)
            consumer.close()
        _produce_to(address, "codec-none", 10)
    assert "Traceback" not in broker.log
    assert ours("metadata", "check", str(data)).stdout.endswith("nothing wrong\n")


def _produce_to(address: str, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    for _ in range(count):
        producer.send(topic, b"more").get(10)
    producer.close()


def _produce(address: str, numbers: range) -> None:
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for number in numbers:
        producer.send("t", str(number).encode(), partition=0)
    producer.flush()
    producer.close()


def _consume(address: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            found += [record.value for record in records]
    consumer.close()
    return found
