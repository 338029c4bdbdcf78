"""Where kbroker's time goes under a row of the bench: a flame graph, and system calls per request.

Run by `scripts/profile ROW`. The flame graph is py-spy's, of Python frames, by wall time in which the broker was busy;
the lines that took most of it are printed. System calls are counted by strace, which slows the broker many times: it
runs apart from the flame graph, and only its counts mean something.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness.brokers import OURS, Broker, started
from benchmarks.harness.catalogue import ALL
from benchmarks.harness.rows import QUICK, Row, prepare

SAMPLES_A_SECOND = 500
LINES = 25


def main() -> int:
    """Profile a row; 2 if there is no such row or no py-spy."""
    rows = {row.key: row for row in ALL if not row.uses_fresh}
    parser = argparse.ArgumentParser(prog="scripts/profile", description=__doc__.split("\n\n")[0])
    parser.add_argument("row", choices=sorted(rows))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--out", default=".cache/bench", help="where the flame graph goes")
    arguments = parser.parse_args()
    if shutil.which("py-spy") is None:
        print("py-spy is not installed: pip install '.[dev]'")
        return 2
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    row = rows[arguments.row](QUICK)
    graph = out / f"profile-{row.key}.svg"
    with (
        tempfile.TemporaryDirectory(prefix="kbroker-profile-") as folder,
        started(OURS, Path(folder) / OURS) as broker,
    ):
        prepare(row, [broker])
        row.measure(broker)
        stacks = flame_graph(row, broker, arguments.seconds, graph, Path(folder))
        calls, requests = system_calls(row, broker)
    print(f"flame graph: {graph}\n\nbusiest lines, % of the broker's busy time")
    print("\n".join(busiest(stacks)))
    print(f"\nsystem calls a request, over {requests} requests")
    print("\n".join(f"  {count / requests:9.3f}  {name}" for name, count in calls.most_common() if requests))
    return 0


def flame_graph(row: Row, broker: Broker, seconds: float, graph: Path, folder: Path) -> str:
    """Sample the broker while the row's rounds go on; writes the picture, returns the stacks as py-spy's raw text."""
    raw = folder / "stacks"
    command = ["py-spy", "record", "-p", str(broker.pid), "-d", str(int(seconds)), "-r", str(SAMPLES_A_SECOND)]
    for kind, path in (("raw", raw), ("flamegraph", graph)):
        _under_load(row, broker, [*command, "-f", kind, "-o", str(path)])
    return raw.read_text()


def system_calls(row: Row, broker: Broker) -> tuple[Counter[str], int]:
    """Calls by name over some rounds, and how many requests those were; none where there is no strace."""
    if shutil.which("strace") is None:
        print("strace is not installed: no counts of system calls")
        return Counter(), 0
    command = ["strace", "-f", "-c", "-U", "calls,name", "-p", str(broker.pid)]
    tracer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(0.5)  # it attaches to every thread first
    before = row.requests
    row.measure(broker)
    tracer.send_signal(signal.SIGINT)
    said, _ = tracer.communicate()
    calls: Counter[str] = Counter()
    for line in said.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit() and words[1] != "total":
            calls[words[1]] = int(words[0])
    return calls, row.requests - before


def _under_load(row: Row, broker: Broker, command: list[str]) -> None:
    """Run a command while rounds follow one another."""
    done = threading.Event()

    def watch() -> None:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    def watched() -> None:
        try:
            watch()
        finally:
            done.set()

    thread = threading.Thread(target=watched)
    thread.start()
    while not done.is_set():
        row.measure(broker)
    thread.join()


def busiest(stacks: str) -> list[str]:
    """The lines of code that were running in most samples, from `a;b;c count` lines."""
    lines: Counter[str] = Counter()
    for entry in stacks.splitlines():
        stack, _, count = entry.rpartition(" ")
        innermost = stack.split(";")[-1]
        if not innermost.startswith("_worker"):  # a pool's thread that waits for work
            lines[innermost] += int(count)
    total = max(sum(lines.values()), 1)
    return [f"  {100 * count / total:5.1f}  {line}" for line, count in lines.most_common(LINES)]


if __name__ == "__main__":
    sys.exit(main())
