"""kbroker beside Apache Kafka 4.4.0, under the same load, in one run: every budget of the design.

Both brokers run at the same time and get a row's rounds in turn, so that a slow moment of the machine hits both; both
are warmed up before a row's first round, until they no longer get faster; no sample is left out. Printed: medians, the
median of the rounds' ratios, the least and the greatest, the budget and whether it holds. Beside it, written as rows
end: `bench.json` with all samples, `bench.md` and `bench.svg`. A row that fails says why, and the others go on.

Processor time is what the kernel counted for the broker's process. Times and rates depend on whatever else the machine
does: read their ratio only (they are in brackets).
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.brokers import APACHES, OURS, RELEASE, ROOT
from benchmarks.harness.catalogue import ALL
from benchmarks.harness.crowds import raise_file_limit
from benchmarks.harness.ending import run
from benchmarks.harness.report import Outcome, as_json, as_markdown, as_svg, as_text
from benchmarks.harness.rows import FULL, QUICK
from benchmarks.harness.runner import Runner
from compat_tests import apache
from kbroker.runtime.interpreter import describe_interpreter
from protocol.records import walker_kind

DISK_BYTES = 14_000_000_000  # what a full run may have on the disk at a time, with room


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed or a row failed."""
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
    for package in ("kbroker", "protocol"):  # as pip does it: a checkout that may not write bytecode never has it
        compileall.compile_dir(ROOT / package, quiet=1)
    machine = describe_machine("quick" if arguments.quick else "full")
    print(machine["summary"], flush=True)
    out = Path(arguments.out)
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-", dir=arguments.folder) as folder:
        if shutil.disk_usage(folder).free < DISK_BYTES:
            print(f"{folder} has less than {DISK_BYTES // 10**9} GB free: give --folder on another disk")
            return 2
        runner = Runner(
            kinds,
            Path(folder),
            rounds=arguments.rounds,
            warm_rounds=arguments.warm_rounds,
            lets_cores_sleep=arguments.let_cores_sleep,
            publish=lambda outcomes: write(out, machine, outcomes),
        )
        outcomes = runner.run(rows)
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    print(f"\n{as_text(outcomes)}\n\n{minutes:.0f} minutes; samples, table, picture: {out}/bench.json .md .svg")
    return 1 if any(outcome.failure or outcome.misses for outcome in outcomes) else 0


def write(out: Path, machine: dict[str, str], outcomes: list[Outcome]) -> None:
    """The results so far, so that a run that is broken off leaves what it had."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(as_json(machine, outcomes))
    (out / "bench.md").write_text(as_markdown(outcomes) + "\n")
    (out / "bench.svg").write_text(as_svg(machine, outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench broker", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="*", default=[], metavar="ROW", help=", ".join(row.key for row in ALL))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds: half the time, wider spreads")
    parser.add_argument("--rounds", type=int, default=None, help="instead of the rows' own")
    parser.add_argument("--warm-rounds", type=int, default=None, help="at most; instead of the rows' own")
    parser.add_argument("--let-cores-sleep", action="store_true", help="no spinners in the rows of latency")
    parser.add_argument("--alone", action="store_true", help="kbroker only: values without ratios")
    parser.add_argument("--folder", default=None, help="where data directories go for the time (default: temporary)")
    parser.add_argument("--out", default=".cache/bench", help="where the results go")
    arguments = parser.parse_args()
    if arguments.folder is not None and not os.path.isdir(arguments.folder):
        parser.error(f"{arguments.folder} is no folder")
    return arguments


def describe_machine(scale: str) -> dict[str, str]:
    """What the numbers were measured on; `summary` in one line."""
    processor = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = []
    if shutil.which("java"):  # --alone needs none
        java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[:1]
    about = {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_gb:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": describe_interpreter(),
        "walker": walker_kind(),
        "apache": RELEASE,
        "java": java[0] if java else "",
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "scale": scale,
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    about["summary"] = (
        f"{about['when']}: {processor}, {about['cores']} cores, {about['memory']}; {about['system']}; "
        f"{about['python']}, walker {about['walker']}; Apache Kafka {RELEASE}, {about['java']}; "
        f"load before {about['load']}; {scale}"
    )
    return about


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    run(main, kept="rows that had ended are in --out")
