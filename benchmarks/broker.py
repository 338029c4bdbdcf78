"""kbroker beside Apache Kafka 4.3.0, under the same load, in one run: every budget of the design.

Both brokers run at the same time and get a row's rounds in turn, so that a slow moment of the machine hits both; both
are warmed up before a row's first round; no sample is left out. Printed: medians, the median of the rounds' ratios,
the least and the greatest, the budget and whether it holds. Beside it: `bench.json` with all samples, `bench.md` and
`bench.svg`.

Processor time is what the kernel counted for the broker's process. Times and rates depend on whatever else the machine
does: read their ratio only (they are in brackets).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.brokers import APACHES, BROKERS, OURS, RELEASE, Broker, started
from benchmarks.harness.catalogue import ALL
from benchmarks.harness.crowds import raise_file_limit
from benchmarks.harness.report import Finding, as_json, as_markdown, as_svg, as_text, findings
from benchmarks.harness.rows import FULL, QUICK, Fresh, Measured, Row
from compat_tests import apache
from protocol.records import walker_kind

DISK_BYTES = 14_000_000_000  # what a full run may have on the disk at a time, with room


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed."""
    arguments = _arguments()
    rows = [row(QUICK if arguments.quick else FULL) for row in ALL if not arguments.rows or row.key in arguments.rows]
    unknown = set(arguments.rows) - {row.key for row in ALL}
    if unknown:
        print(f"no rows named {', '.join(sorted(unknown))}; there are: {', '.join(row.key for row in ALL)}")
        return 2
    kinds = [OURS] if arguments.alone else [OURS, APACHES]
    if reason := apache.missing() if APACHES in kinds else None:
        print(f"no Apache Kafka to compare with ({reason}): install them, or give --alone")
        return 2
    raise_file_limit()
    machine = describe_machine(arguments.quick)
    print(machine["summary"], flush=True)
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-", dir=arguments.folder) as folder:
        if shutil.disk_usage(folder).free < DISK_BYTES:
            print(f"{folder} has less than {DISK_BYTES // 10**9} GB free: give --folder on another disk")
            return 2
        found = run(rows, kinds, Path(folder), arguments.rounds)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(as_json(machine, found))
    (out / "bench.md").write_text(as_markdown(found) + "\n")
    (out / "bench.svg").write_text(as_svg(machine, found))
    print(f"\n{as_text(found)}\n\nsamples, table, picture: {out}/bench.json .md .svg")
    return 1 if any(each.holds is False for each in found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench broker", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW", help=", ".join(row.key for row in ALL))
    parser.add_argument("--quick", action="store_true", help="minutes instead of most of an hour; wider spreads")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the scale's own")
    parser.add_argument("--alone", action="store_true", help="kbroker only: values without ratios")
    parser.add_argument("--folder", default=None, help="where data directories go for the time (default: temporary)")
    parser.add_argument("--out", default=".cache/bench", help="where the results go")
    return parser.parse_args()


def run(rows: list[Row], kinds: list[str], folder: Path, rounds: int) -> list[Finding]:
    """All rows; both brokers stay up for those that need no new ones."""
    found: list[Finding] = []
    shared = [row for row in rows if not row.uses_fresh]
    with ExitStack() as stack:
        running = [stack.enter_context(started(kind, folder / kind)) for kind in kinds] if shared else []
        for row in shared:
            found += _run_shared(row, running, rounds or row.rounds)
    for row in rows:
        if row.uses_fresh:
            found += _run_fresh(row, kinds, folder, rounds or row.rounds)
    return found


def _run_shared(row: Row, running: list[Broker], rounds: int) -> list[Finding]:
    print(f"\n{row.title}", flush=True)
    samples: dict[str, list[Measured]] = {broker.kind: [] for broker in running}
    for broker in running:
        row.prepare(broker)
    for number in range(-row.scale.warm_rounds, rounds):
        for broker in running:
            measured = row.measure(broker)
            _show(broker.kind, measured, "warming up" if number < 0 else "")
            if number >= 0:
                samples[broker.kind].append(measured)
    for broker in running:
        row.finish(broker)
    return findings(row, samples)


def _run_fresh(row: Row, kinds: list[str], folder: Path, rounds: int) -> list[Finding]:
    print(f"\n{row.title}", flush=True)
    samples: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            samples[kind].append(row.measure_fresh(kind, maker(folder)))
            _show(kind, samples[kind][-1])
    return findings(row, samples)


def _show(kind: str, measured: Measured, remark: str = "") -> None:
    print(f"  {kind:8}", "  ".join(f"{key} {value:.4g}" for key, value in measured.items()), remark, flush=True)


def maker(folder: Path) -> Fresh:
    """What rows make brokers of their own with."""

    def fresh(kind: str, settings: dict[str, str]) -> Broker:
        return BROKERS[kind](Path(tempfile.mkdtemp(dir=folder)) / kind, settings)

    return fresh


def describe_machine(quick: bool) -> dict[str, str]:
    """What the numbers were measured on; `summary` in one line."""
    processor = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[:1]
    about = {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_gb:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "walker": walker_kind(),
        "apache": RELEASE,
        "java": java[0] if java else "",
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "scale": "quick" if quick else "full",
    }
    about["summary"] = (
        f"{processor}, {about['cores']} cores, {about['memory']}; {about['system']}; {about['python']}, walker "
        f"{about['walker']}; Apache Kafka {RELEASE}, {about['java']}; load before {about['load']}; {about['scale']}"
    )
    return about


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())
