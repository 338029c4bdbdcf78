"""How much memory old clients' compressed messages take of a broker: test_opened_memory.py.

`python -m tests.api.opened_within CODEC TYPE FOLDER` runs a broker that keeps what it is sent with compression.type
TYPE; four connections each send it 80 MB in one wrapper of a codec. It prints the bytes sent by each, and the process's
resident memory before, and at its peak while all are answered. A process of its own, so that nothing else counts.
"""

from __future__ import annotations

import sys
from threading import Thread

from kbroker.testing import broker
from kbroker.testing._client import Connection
from protocol.records import Record, legacy
from protocol.records.compression import codec_named
from tests.protocol.records.bombs import forget_peak, resident
from tests.requests import produce, produced

CONNECTIONS = 4
BYTES = 80 << 20
SETTINGS = {"message.max.bytes": 120 << 20, "auto.create.topics.enable": "false"}


def wrapper(codec: str, size: int) -> bytes:
    """A set of v1 messages of a kilobyte each, in one wrapper."""
    records = [Record(at, 1_000, None, bytes(1_000)) for at in range(size // 1_034)]
    return bytes(legacy.build_set(records, 1, codec_id=codec_named(codec).codec_id))


def main(codec: str, compression_type: str, folder: str) -> None:
    """Send, wait, tell."""
    with broker(data=folder, settings={**SETTINGS, "compression.type": compression_type}) as one:
        one.create_topic("t")
        host, _, port = one.bootstrap.rpartition(":")
        connections = [Connection(host, int(port)) for _ in range(CONNECTIONS)]
        small, large = produce(records=wrapper(codec, 10_000)), produce(records=wrapper(codec, BYTES))
        assert produced(connections[0].ask(small, 2)).error_code == 0  # what it needs is loaded
        codes: list[int] = []

        def send(connection: Connection) -> None:
            codes.append(produced(connection.ask(large, 2)).error_code)

        forget_peak()
        before = resident("VmRSS")
        threads = [Thread(target=send, args=(each,)) for each in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        most = resident("VmHWM")
        assert codes == [0] * CONNECTIONS, codes
        print(len(large.encode(2)), before, most)
        for each in connections:
            each.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
