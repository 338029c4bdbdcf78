"""What an installed kbroker has to do: run by the Python that it is installed for, which needs nothing else.

    python installed.py [compiled|interpreted]

Records go in and out of a broker by every codec, over a socket; a Python without the GIL must have none afterwards.
Prints what it found in a line. Called by test_installed.py, and for each wheel of a release by cibuildwheel.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib import import_module

wanted = sys.argv[1] if len(sys.argv) > 1 else ""
without_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

import kbroker  # noqa: E402


def has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


assert has_gil() != without_gil, "the GIL is back after `import kbroker`"

from kbroker.runtime.blocking import BlockingConnection, connect  # noqa: E402
from kbroker.testing import broker  # noqa: E402

# in a wheel, protocol is within kbroker
home = import_module(BlockingConnection.ask.__globals__["Connection"].__module__).__package__
assert home == "kbroker.client", home
protocol = "kbroker.protocol" if "kbroker.protocol" in sys.modules else "protocol"
fetch, metadata, produce = (import_module(f"{protocol}.messages.{each}") for each in ("fetch", "metadata", "produce"))
records = import_module(f"{protocol}.records")
content = import_module(f"{protocol}.records.content")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "installed"
sent = [[records.Record(at, 0, b"k", b"%d " % codec * 1000, ()) for at in range(100)] for codec in range(len(CODECS))]

with broker() as running:
    host, _, port = running.bootstrap.rpartition(":")
    with BlockingConnection(connect(host, int(port)), "installed") as connection:
        topics = [metadata.MetadataRequestTopic(name=TOPIC)]
        connection.ask(metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
        for codec, batch in enumerate(sent):
            data = produce.PartitionProduceData(index=0, records=content.build_batch(batch, codec_id=codec))
            topic = produce.TopicProduceData(name=TOPIC, partition_data=[data])
            while True:  # the topic may be a moment old
                request = produce.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
                answer = connection.ask(request, 9).responses[0].partition_responses[0]
                if answer.error_code != 3:
                    break
            assert answer.error_code == 0, (CODECS[codec], answer.error_code)
        partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[fetch.FetchTopic(topic=TOPIC, partitions=[partition])],
        )
        fetched = connection.ask(request, 11).responses[0].partitions[0].records
found = [[record.value for record in batch] for _, batch in content.parse_set(bytes(fetched))]
assert found == [[record.value for record in batch] for batch in sent], "what was fetched is not what was produced"

kind = records.walker_kind()
assert wanted in ("", kind), f"the loops over records are {kind}"
assert has_gil() != without_gil, "the GIL is back"
gil = "without the GIL" if without_gil else "with the GIL"
print(f"kbroker {kbroker.__version__}, {kind}, on Python {sys.version.split()[0]} {gil}: {', '.join(CODECS)}")
