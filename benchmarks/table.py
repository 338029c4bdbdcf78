"""The table of docs/benchmarks.md, from the runs that are kept in benchmarks/results.

`scripts/bench table RUN.json...` keeps these runs (the `bench.json` of each) in place of those kept before, and writes
the table; without runs it writes the table of those that are kept. Runs on an optimised interpreter are judged.
`tests/test_bench_runs.py` holds the table to the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.harness.catalogue import ALL
from benchmarks.harness.runs import (
    SHOWN,
    Run,
    condensed,
    full_table,
    published,
    put_table,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> int:
    """Keep the runs given, write the tables; 2 if a file is no run."""
    parser = argparse.ArgumentParser(prog="scripts/bench table", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json", help="bench.json of each run to be kept")
    arguments = parser.parse_args()
    if arguments.runs:
        try:
            found = [condensed(json.loads(path.read_text())) for path in arguments.runs]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"not a run of scripts/bench broker: {type(error).__name__}: {error}")
            return 2
        names = {file_name(run) for run in found}
        if len(names) < len(found):
            print("the same run twice: each has to be one of its own")
            return 2
        keep(found)
    PAGE.write_text(page())
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def keep(runs: list[Run]) -> None:
    """Put these runs in place of those kept before."""
    RESULTS.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.json"):
        path.unlink()
    for run in runs:
        (RESULTS / file_name(run)).write_text(json.dumps(run, indent=1) + "\n")


def file_name(run: Run) -> str:
    """When it began, so that names sort as time does."""
    when: str = run["machine"]["when"]
    return when.replace(" UTC", "").replace(" ", "T").replace(":", "") + ".json"


def kept() -> list[Run]:
    """The runs that are kept, oldest first."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def page() -> str:
    """What the page with the table should say, by what is kept."""
    return put_table(PAGE.read_text(), SHOWN, full_table(ALL, published(kept())))


if __name__ == "__main__":
    sys.exit(main())
