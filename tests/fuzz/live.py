"""Damaged requests of every API into a running broker, while a healthy client works on it.

Called by scripts/fuzz --live (`python -m tests.fuzz.live`, without end) and by `test_live.py`. The frames to damage are
those of the end-to-end exchanges, played on that very broker: they name topics, groups and members that exist, which
a frame of invented values never would. Frames go out pipelined; one that the broker has to hang up on is the last of
its connection. Each connection ends with the client closing its side, and the broker has to close the other: whatever
parks, hangs or loops is noticed there. Some connections are of another kind: well-formed requests of a hostile shape
(`hostile.py`).

What must hold: an answer or a closed connection, no traceback, log lines rate-limited, memory bounded, and a client
that behaves sees no error, nor ever waits for seconds. Requests that only a controller sends go to a broker of their
own: whoever may send them may rightfully take any topic away.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kbroker.api.routes import ROUTES, load
from kbroker.config.limits import NEW_PARTITIONS_PER_REQUEST
from protocol.headers import parse_request_header, skip_tags
from protocol.message import DecodeError
from tests.e2e import (  # noqa: F401 - they add their exchanges
    control_exchanges,
    group_exchanges,
    login_exchanges,
    share_exchanges,
    transaction_exchanges,
)
from tests.e2e.exchanges import EXCHANGES
from tests.e2e.world import World
from tests.frames import framed
from tests.fuzz.healthy import HealthyClient
from tests.fuzz.hostile import attack, finish
from tests.fuzz.mutations import mutate
from tests.processes import CONTROL_LISTENER, BrokerProcess

CONTROL_APIS = (4, 5, 6)
PRODUCE, CREATE_TOPICS, CREATE_PARTITIONS = 0, 19, 37
MOST_PARTITIONS = 10
GETS_THROUGH = 0.6  # of the frames are to reach a handler: mutations are tried until one can be decoded
TRIES = 8
FRAMES_PER_CONNECTION = 16
CONNECTIONS = 4  # at once: threads, each with one connection after the other
HOSTILE_SHARE = 0.02  # of connections: each may take as long as many others
LONGEST_WAIT_S = 3.0  # of a record of the healthy client, on a machine that is busy with this very campaign
HANG_S = 60.0  # a connection that is not closed by then is a finding
MOST_RSS_BYTES = 400 << 20
LOG_LINES_PER_S = 120  # ten for each place in the code that logs, and some places
REMEMBERED = 100_000  # frames, to find the one that a traceback is about
BAD_SIZES = (-1, -(2**31), 2**31 - 1, 104_857_601)


@dataclass
class Report:
    """How a campaign went."""

    frames: int = 0
    connections: int = 0
    answers: int = 0
    rss_bytes: int = 0
    log_lines: int = 0
    healthy: int = 0
    hostile: int = 0
    longest_s: float = 0.0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.frames} frames on {self.connections} connections in {self.seconds:.0f} s: {self.answers} answers, "
            f"{self.log_lines} log lines, {self.rss_bytes >> 20} MB at most; "
            f"a healthy client got {self.healthy} records through, the slowest in {self.longest_s * 1000:.0f} ms, "
            f"beside {self.hostile} hostile connections; {len(self.findings)} findings"
        )


def seeds(broker: BrokerProcess, apis: tuple[int, ...]) -> dict[int, list[bytes]]:
    """Real frames by API, those of each version among them, from the exchanges played on a broker."""
    load()
    here = World(broker.port, control_port=broker.ports["CONTROL"])
    for api in apis:
        for version in range(ROUTES[api].first, ROUTES[api].last + 1):
            EXCHANGES[api](here, version)
    found: dict[int, list[bytes]] = {api: [] for api in apis}
    for frame in here.client.sent + here.broker.sent:
        api = struct.unpack_from(">h", frame)[0]
        if api in found:
            found[api].append(frame)
    here.client.close()
    here.broker.close()
    return found


def ends_connection(frame: bytes) -> bool:
    """Whether nothing should follow a frame: the broker has to hang up on it, or may (Produce with acks=0)."""
    return frame[:2] == bytes(2) or malformed(frame)


def malformed(frame: bytes) -> bool:
    """Whether the broker cannot answer a frame."""
    try:
        api, version, _, _, start = parse_request_header(frame)
        route = ROUTES.get(api)
        if route is None or not route.first <= version <= route.last:
            return True
        if version >= route.flexible_from:
            start = skip_tags(frame, start)
        route.request.decode(memoryview(frame), version, start)
    except DecodeError:
        return True
    return False


def asks_for_much(frame: bytes) -> bool:
    """Whether it rightfully makes more partitions than a campaign has memory and time for."""
    try:
        api, version, _, _, start = parse_request_header(frame)
        if api not in (CREATE_TOPICS, CREATE_PARTITIONS) or not ROUTES[api].first <= version <= ROUTES[api].last:
            return False
        start = skip_tags(frame, start) if version >= ROUTES[api].flexible_from else start
        request: Any = ROUTES[api].request.decode(memoryview(frame), version, start)
    except DecodeError:
        return False
    counts = [each.num_partitions if api == CREATE_TOPICS else each.count for each in request.topics]
    return any(MOST_PARTITIONS < count <= NEW_PARTITIONS_PER_REQUEST for count in counts)


class Campaign:
    """Damaged frames into one broker."""

    def __init__(
        self,
        broker: BrokerProcess,
        frames: dict[int, list[bytes]],
        seed: int,
        port: int = 0,
        healthy: HealthyClient | None = None,
    ) -> None:
        """port: if not the broker's first. healthy: a client whose waits are watched; beside it some are hostile."""
        self._healthy = healthy
        self.report = Report()
        self._port = port or broker.port
        self._broker = broker
        self._frames = frames
        self._apis = list(frames)
        self._all = [frame for some in frames.values() for frame in some]
        self._rng = Random(seed)
        self._sent: deque[bytes] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def run(self, cases: int | None, told: Callable[[Report], None] = lambda report: None) -> Report:
        """Send so many frames, None for no end; stop at the first finding."""
        begun = time.monotonic()
        lines_before = self._broker.log.count("\n")
        threads = [threading.Thread(target=self._work, args=(cases,), daemon=True) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.5)
            self._look(begun, lines_before)
            told(self.report)
        self._look(begun, lines_before)
        return self.report

    def _work(self, cases: int | None) -> None:
        while not self.report.findings:
            with self._lock:
                if cases is not None and self.report.frames >= cases:
                    return
                batch = self._batch(FRAMES_PER_CONNECTION if cases is None else cases - self.report.frames)
                bad_size = self._rng.choice(BAD_SIZES) if self._rng.random() < 0.05 else None
                self.report.frames += len(batch)
                self.report.connections += 1
                self._sent.extend(batch)
                is_hostile = self._healthy is not None and self._rng.random() < HOSTILE_SHARE
                rng = Random(self._rng.random())
                self.report.hostile += is_hostile
            if is_hostile:
                self._attack(rng)
            self._play(batch, bad_size)

    def _batch(self, most: int) -> list[bytes]:
        batch: list[bytes] = []
        while len(batch) < min(most, FRAMES_PER_CONNECTION) and not (batch and ends_connection(batch[-1])):
            some = self._frames[self._rng.choice(self._apis)]
            others = self._all if self._rng.random() < 0.1 else some
            frame = mutate(self._rng, self._rng.choice(some), others)
            if self._rng.random() < GETS_THROUGH:
                for _ in range(TRIES):
                    if not malformed(frame):
                        break
                    frame = mutate(self._rng, self._rng.choice(some), others)
            if not asks_for_much(frame):
                batch.append(frame)
        return batch

    def _attack(self, rng: Random) -> None:
        """A connection of a hostile shape."""
        frames = [frame for frame in self._all if not asks_for_much(frame)]
        try:
            self.report.answers += attack(rng, self._port, frames)
        except (ConnectionResetError, BrokenPipeError):
            pass
        except OSError as error:  # a time-out among them
            self._find(f"{error}: a hostile connection got no answers")

    def _play(self, batch: list[bytes], bad_size: int | None) -> None:
        data = framed(*batch)
        if bad_size is not None:
            data += struct.pack(">i", bad_size) + b"?"
        received = bytearray()
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=HANG_S) as client:
                client.sendall(data)
                finish(client)
                while more := client.recv(1 << 16):
                    received += more
        except (ConnectionResetError, BrokenPipeError):
            pass  # closed while we still sent
        except OSError as error:  # a time-out among them
            self._find(f"{error}: {[frame.hex() for frame in batch]}")
        self.report.answers += _count_frames(received)

    def _look(self, begun: float, lines_before: int) -> None:
        """At the broker itself."""
        report, log = self.report, self._broker.log
        report.seconds = time.monotonic() - begun
        report.log_lines = log.count("\n") - lines_before
        if self._broker.process.poll() is not None:
            self._find(f"the broker has ended: {log[-4000:]}")
            return
        report.rss_bytes = max(report.rss_bytes, self._broker.rss_bytes)
        if report.rss_bytes > MOST_RSS_BYTES:
            self._find(f"{report.rss_bytes} bytes of memory")
        if self._healthy is not None:
            report.longest_s = self._healthy.waited_s()
            if report.longest_s > LONGEST_WAIT_S:
                self._find(f"the healthy client has waited {report.longest_s:.1f} s for a record")
        if report.log_lines > LOG_LINES_PER_S * (report.seconds + 1):
            self._find(f"{report.log_lines} log lines in {report.seconds:.0f} s: {log[-2000:]}")
        if "Traceback" in log:
            at = log.index("Traceback")
            line = log[log.rfind("\n", 0, at - 1) + 1 : at]
            self._find(f"{log[max(at - 500, 0) : at + 4000]}\n{self._frames_of(line)}")

    def _frames_of(self, line: str) -> str:
        """The frames that a log line may be about."""
        found = []
        for frame in list(self._sent):
            try:
                api, version, correlation_id, _, _ = parse_request_header(frame)
            except DecodeError:
                continue
            if api in ROUTES and f"{ROUTES[api].name} v{version} #{correlation_id} " in line:
                found.append(frame.hex())
        return "\n".join(found[-3:])

    def _find(self, finding: str) -> None:
        self.report.findings.append(finding)


def _count_frames(data: bytearray) -> int:
    position = count = 0
    while position + 4 <= len(data):
        position += 4 + struct.unpack_from(">i", data, position)[0]
        count += 1
    return count


def fuzz_clients_apis(folder: Path, cases: int | None, seed: int, told: Callable[[Report], None]) -> Report:
    """All that clients send, beside a client that behaves."""
    load()
    with BrokerProcess(folder, **SETTINGS, **CONTROL_LISTENER) as broker:
        frames = seeds(broker, tuple(api for api in sorted(ROUTES) if api not in CONTROL_APIS))
        with HealthyClient(broker.port) as healthy:
            report = Campaign(broker, frames, seed, healthy=healthy).run(cases, told)
        report.findings += healthy.complaints
        report.healthy = healthy.received
        if broker.stop() != 0:
            report.findings.append("it did not stop cleanly")
    return report


def fuzz_control_apis(folder: Path, cases: int | None, seed: int, told: Callable[[Report], None]) -> Report:
    """All that a controller sends."""
    load()
    with BrokerProcess(folder, **SETTINGS, **CONTROL_LISTENER) as broker:
        port = broker.ports["CONTROL"]
        return Campaign(broker, seeds(broker, CONTROL_APIS), seed, port).run(cases, told)


SETTINGS = {
    "group_initial_rebalance_delay_ms": "0",
    "offsets_topic_num_partitions": "3",
    "auto_create_topics_enable": "false",  # each damaged name would be a topic: that costs memory, rightfully
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz --live", description="Feed damaged requests to a running broker."
    )
    parser.add_argument("--cases", type=int, help="how many frames (default: until something is found)")
    parser.add_argument("--seed", type=int, default=1, help="what the damage follows from (default %(default)s)")
    parser.add_argument("--control", action="store_true", help="the requests of controllers, not those of clients")
    asked = parser.parse_args()
    fuzz = fuzz_control_apis if asked.control else fuzz_clients_apis
    shown, report = [0.0], Report()

    def told(so_far: Report) -> None:
        nonlocal report
        report = so_far
        if report.seconds >= shown[0] + 10:
            shown[0] = report.seconds
            print(report, flush=True)

    with tempfile.TemporaryDirectory(prefix="kbroker-fuzz-") as folder:
        try:
            report = fuzz(Path(folder), asked.cases, asked.seed, told)
        except KeyboardInterrupt:  # the way to end it while it finds nothing
            report.findings.clear()  # Ctrl-C is the broker's, too: what they say is that it has gone
            print("broken off")
    print(*report.findings, report, sep="\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
