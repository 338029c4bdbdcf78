"""What a broker says of itself to Prometheus, in its text format (0.0.4): figures of process, sockets and core.

`exposition` gives the page in parts of some hundred lines, so that a broker of many partitions does something else in
between. Called by `monitoring.py`, on the broker's thread. What the core tells is in `api/figures.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from kbroker.api.figures import Family, Sample, single
from kbroker.runtime.platform import open_descriptors, resident_bytes

if TYPE_CHECKING:
    from kbroker.core import Core
    from kbroker.runtime.server import Server

LINES_PER_PART = 400  # a millisecond or so

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

STARTED_S = time.time()


def exposition(core: Core, server: Server) -> Iterator[bytes]:
    """The page, part by part."""
    lines: list[str] = []
    for family in chain(_process(), _sockets(server), core.figures()):
        lines.append(f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n")
        for sample in family.samples:
            labels = ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in sample.labels)
            lines.append(f"{family.name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {sample.value:.17g}\n")
            if len(lines) >= LINES_PER_PART:
                yield "".join(lines).encode()
                lines.clear()
    yield "".join(lines).encode()


def _process() -> Iterator[Family]:
    times = os.times()
    yield single("process_cpu_seconds_total", "counter", "Time on processors.", times.user + times.system)
    yield single("process_resident_memory_bytes", "gauge", "Memory held.", resident_bytes())
    yield single("process_start_time_seconds", "gauge", "When the process started, since 1970.", STARTED_S)
    yield single("process_open_fds", "gauge", "Open file descriptors.", open_descriptors())


def _sockets(server: Server) -> Iterator[Family]:
    stem = "kafka_server_socket_server_metrics_"
    connections = server.connections()
    yield Family(
        f"{stem}connection_count",
        "gauge",
        "Open connections.",
        [Sample(count, (("listener", name),)) for name, count in sorted(connections.items())] or [Sample(0)],
    )
    yield single(f"{stem}connection_creation_total", "counter", "Connections that were accepted.", server.accepted)
    yield single("kbroker_connections_refused_total", "counter", "Connections beyond a limit.", server.refused)
    if server.failed_handshakes:
        yield Family(
            "kbroker_handshakes_failed_total",
            "counter",
            "Handshakes of TLS that came to nothing.",
            [
                Sample(count, (("listener", listener), ("reason", kind)))
                for (listener, kind), count in sorted(server.failed_handshakes.items())
            ],
        )
    yield single(f"{stem}incoming_byte_total", "counter", "Bytes received.", server.bytes_in)
    yield single(f"{stem}outgoing_byte_total", "counter", "Bytes sent.", server.bytes_out)
