"""What grows: kbroker's cost as there is more of something, beside Apache Kafka 4.4.0's, as curves.

`scripts/bench curves` measures: processor time a request from 1 to 10,000 connections, and a batch from 1 to 1,000
partitions a request; the time in which a group of 10 to 1,000 members has joined; memory and start with 100 to 50,000
partitions. Both brokers run at once and get their rounds in turn. Apache's is not asked for more where a round has
taken a minute, and the picture says so. Written to `--out` as curves end: `curves.json` and a picture each.

`scripts/bench curves --keep CURVES.json` measures nothing: it keeps that run's medians in benchmarks/results/curves,
and writes the pictures and their part of docs/benchmarks.md from what is kept; `tests/test_bench_curves.py` holds both
to it. Exit code 1: kbroker failed a step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.broker import describe_machine
from benchmarks.harness.brokers import APACHES, OURS, ROOT
from benchmarks.harness.crowds import raise_file_limit
from benchmarks.harness.ending import run
from benchmarks.harness.growth import CURVES, Curve, Grower
from benchmarks.harness.growth_pages import FOLDER, MARK, Kept, picture, section
from benchmarks.harness.runs import put_table
from benchmarks.table import PAGE, file_name
from compat_tests import apache

RESULTS = ROOT / "benchmarks" / "results" / "curves"
PICTURES = PAGE.parent / FOLDER
BENCH = "scripts/bench curves"


def main() -> int:
    """Measure the curves asked for, or keep those of an earlier run."""
    arguments = _arguments()
    if arguments.keep:
        try:
            keep(json.loads(arguments.keep.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"not a run of {BENCH}: {type(error).__name__}: {error}")
            return 2
        return 0
    kinds = [OURS] if arguments.alone else [OURS, APACHES]
    if reason := apache.missing() if APACHES in kinds else None:
        print(f"no Apache Kafka to compare with ({reason}): install them, or give --alone")
        return 2
    raise_file_limit()
    run: Kept = {"machine": describe_machine("curves"), "curves": {}}
    print(run["machine"]["summary"], flush=True)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kbroker-curves-", dir=arguments.folder) as folder:
        grower = Grower(
            kinds, Path(folder), most_s=arguments.most_s, most_step=arguments.most_step, rounds=arguments.rounds
        )
        for grown in grower.run([curve for curve in CURVES if curve.key in arguments.curves]):
            run["curves"][grown.key] = grown.condensed()
            write(arguments.out, run)
            print(f"  {grown.seconds:.0f} s", flush=True)
    print(f"\n{(time.perf_counter() - begun) / 60:.0f} minutes; medians and pictures: {arguments.out}")
    return 1 if any(OURS in grown["ends"] for grown in run["curves"].values()) else 0


def write(out: Path, run: Kept) -> None:
    """The curves so far."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "curves.json").write_text(json.dumps(run, indent=1) + "\n")
    for name, text in pictures(run).items():
        (out / name).write_text(text)


def pictures(run: Kept) -> dict[str, str]:
    """The pictures of a run, by the names of their files."""
    return {f"{curve.key}.svg": picture(curve, run["curves"][curve.key]) for curve in drawn(run)}


def drawn(run: Kept) -> list[Curve]:
    """The curves that a run has."""
    return [curve for curve in CURVES if curve.key in run["curves"]]


def keep(run: Kept) -> None:
    """Keep this run in place of the one kept before; write page and pictures."""
    found = pictures(run)
    for folder in (RESULTS, PICTURES):
        folder.mkdir(parents=True, exist_ok=True)
    for path in (*RESULTS.glob("*.json"), *PICTURES.glob("*.svg")):
        path.unlink()
    (RESULTS / file_name(run)).write_text(json.dumps(run, indent=1) + "\n")
    for name, text in found.items():
        (PICTURES / name).write_text(text)
    PAGE.write_text(page())
    print(f"written: {PAGE.relative_to(ROOT)}, {PICTURES.relative_to(ROOT)}")


def kept() -> Kept | None:
    """The run that is kept; None if there is none yet."""
    return next((json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))), None)


def page() -> str:
    """What the page with the curves should say, by what is kept."""
    return put_table(PAGE.read_text(), MARK, section(CURVES, kept()), BENCH)


def _arguments() -> argparse.Namespace:
    keys = [curve.key for curve in CURVES]
    parser = argparse.ArgumentParser(prog=BENCH, description=__doc__.split("\n\n")[0])
    parser.add_argument("--curves", nargs="*", default=keys, choices=keys, metavar="CURVE", help=", ".join(keys))
    parser.add_argument("--most-step", type=int, default=None, help="leave out steps above this one")
    parser.add_argument("--most-s", type=float, default=60.0, help="Apache's rounds, to go on (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=None, help="instead of the curves' own")
    parser.add_argument("--alone", action="store_true", help="kbroker only")
    parser.add_argument("--folder", default=None, help="where data directories go for the time (default: temporary)")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/curves"), help="where the results go")
    parser.add_argument("--keep", type=Path, default=None, metavar="CURVES.json", help="keep this run; measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    run(main, kept="curves that had ended are in --out")
