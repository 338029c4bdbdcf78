"""What `/metrics` costs on the ordinary rows: kbroker with it, read once a second, beside kbroker without.

    scripts/bench metrics [--rows ROW...] [--quick] [--rounds N]

Both processes run at the same time and get a row's rounds in turn, as in `scripts/bench broker`, whose rows these are.
Processor time of the broker's process, the pages it made among it: medians, and the median of the rounds' ratios. It
has no budget: `tests/test_cost.py` holds what a request may cost, in lines.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness.brokers import HOST, OURS, Broker, started
from benchmarks.harness.catalogue import ALL
from benchmarks.harness.report import markdown_table, with_unit
from benchmarks.harness.rows import FULL, QUICK, Row
from benchmarks.harness.runner import prepared
from compat_tests.apache import free_port

ROWS = ("produce-1k", "produce-100", "pingpong", "fetch")
WARM_ROUNDS = 2
EVERY_S = 1.0
PATIENCE_S = 10.0
HEADINGS = ("row", "measure", "without", "with", "ratio", "spread")


def main() -> int:
    """Run the rows asked for, print a Markdown table; 2 if there is no such row."""
    asked = _arguments()
    kinds = {row.key: row for row in ALL if not row.uses_fresh and any(each.key == "cpu" for each in row.metrics)}
    if unknown := [key for key in asked.rows if key not in kinds]:
        print(f"no rows named {', '.join(unknown)}; there are: {', '.join(kinds)}", file=sys.stderr)
        return 2
    rows = [kinds[key](QUICK if asked.quick else FULL) for key in asked.rows]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
        where = f"{HOST}:{free_port()}"
        without = stack.enter_context(started(OURS, folder / "without"))
        with_them = stack.enter_context(started(OURS, folder / "with", {"kbroker.metrics.listener": where}))
        pages = stack.enter_context(scraped(f"http://{where}/metrics"))
        lines = [_line(row, (without, with_them), asked.rounds or row.rounds) for row in rows]
    print(markdown_table(HEADINGS, lines))
    print(f"\n{len(pages)} pages, of {statistics.median(pages):,.0f} bytes")
    return 0


@contextmanager
def scraped(url: str) -> Iterator[list[int]]:
    """The page is read once a second within the block, as Prometheus would, oftener than it does; how long each was."""
    sizes: list[int] = []
    ended = threading.Event()

    def read() -> None:
        while True:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
                sizes.append(len(page.read()))
            if ended.wait(EVERY_S):
                return

    reader = threading.Thread(target=read, name="scraper")
    reader.start()
    try:
        yield sizes
    finally:
        ended.set()
        reader.join()


def _line(row: Row, brokers: tuple[Broker, Broker], rounds: int) -> tuple[str, ...]:
    (metric,) = (each for each in row.metrics if each.key == "cpu")
    taken: tuple[list[float], list[float]] = ([], [])
    with prepared(row, brokers):
        for number in range(WARM_ROUNDS + rounds):
            for into, broker in zip(taken, brokers, strict=True):
                cpu = row.measure(broker)["cpu"]
                if number >= WARM_ROUNDS:
                    into.append(cpu)
    ratios = [after / before for before, after in zip(*taken, strict=True)]
    medians = (with_unit(statistics.median(each), metric) for each in taken)
    spread = f"{min(ratios):.3f} - {max(ratios):.3f}"
    return (row.title, metric.title, *medians, f"{statistics.median(ratios):.3f}x", spread)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench metrics", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--rounds", type=int, default=None, help="instead of the rows' own")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
