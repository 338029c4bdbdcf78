"""Producers that never stop, in a process of their own, for `benchmarks/control.py`.

Arguments: the port of the broker, a topic, records of 1,000 bytes in a batch. One connection for each partition, five
batches under way on each, acks=1. Each line on stdin is answered by a line with the bytes acknowledged so far.
"""

from __future__ import annotations

import selectors
import sys

from benchmarks.harness.brokers import HOST
from benchmarks.harness.clusters import partitions
from benchmarks.harness.streams import IN_FLIGHT, LEADER, Stream
from benchmarks.harness.wire import Connection, batch

RECORD_BYTES = 1000


def main() -> int:
    """Until stdin ends."""
    port, topic, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with Connection(HOST, port) as connection:
        indices = [each.partition_index for each in partitions(connection, topic)]
    data = batch(count, RECORD_BYTES)
    streams = [Stream(Connection(HOST, port), topic, index, data, count, LEADER) for index in indices]
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        for each in streams:
            selector.register(each.connection.socket, selectors.EVENT_READ, each)
            for _ in range(IN_FLIGHT):
                each.send()
        while True:
            for key, _ in selector.select():
                stream: Stream | None = key.data
                if stream is not None:
                    for _ in range(stream.receive()):
                        stream.send()
                elif not sys.stdin.readline():
                    return 0
                else:
                    print(sum(each.records for each in streams) * RECORD_BYTES, flush=True)


if __name__ == "__main__":
    sys.exit(main())
