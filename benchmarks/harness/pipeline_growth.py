"""How jobs grow on a standalone Spark cluster of two workers: their seconds, and the memory of an executor.

Called by benchmarks/pipeline.py. One driver has all sizes one after the other, in one session, behind a small one that
warms; an executor's memory is the greatest so far of its JVM and its Python workers together, as Linux counts it.

    python -m benchmarks.harness.pipeline_growth MASTER BOOTSTRAP FOLDER COUNT,COUNT...
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kbroker.pipeline import archive, audit, compact_check, mirror, profile, register, replay, session
from kbroker.pipeline.kafka import Source
from tests.pipeline.on_cluster import SMALL

EXECUTOR = "CoarseGrainedExecutorBackend"
LINEAR = 1.2
"""What time may grow by beyond the records, and memory at all."""
Found = dict[str, dict[str, float]]
"""By number of records: seconds of each job, and `memory`, MB of the larger executor."""


def jobs(spark: Any, source: Source, topic: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Each job, of what is in a topic, in their order."""
    to, copy = str(folder / "archive"), {topic: f"{topic}-copy"}

    def profiled() -> None:
        for table in profile.profile(spark, source, [topic]).values():
            table.write.format("noop").mode("overwrite").save()
        spark.catalog.clearCache()

    def read() -> None:
        reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
        reader.option("subscribe", topic).load().write.format("noop").mode("overwrite").save()

    def audited() -> None:
        assert audit.audit(spark, source, source, copy)["equal"]

    return {
        "archive": partial(archive.archive, spark, source, [topic], to, until_now=True),
        "replay": partial(replay.replay, spark, source, to, topics=copy),
        "mirror": partial(mirror.mirror, spark, source, source, {topic: f"{topic}-m"}, str(folder / "mirror")),
        "audit": audited,
        "profile": profiled,
        "compact-check": partial(compact_check.compact_check, spark, source, [topic]),
        'format("kbroker")': read,
    }


class Memory:
    """Looks at the executors' memory until its end. greatest: MB of the larger one."""

    def __init__(self) -> None:
        self.greatest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No longer."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.greatest = max(self.greatest, *executors().values(), 0.0)


def executors() -> dict[int, float]:
    """MB of each executor on this machine, with its Python workers: what they share is counted once (Pss)."""
    parents: dict[int, int] = {}
    found: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if EXECUTOR in (entry / "cmdline").read_text():
                    found[int(entry.name)] = 0.0
            except OSError:  # it has ended
                continue
    for process in parents:
        above = process
        while above in parents and above not in found:
            above = parents[above]
        if above in found:
            found[above] += _pss_mb(process)
    return found


def _pss_mb(process: int) -> float:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


def measured(master: str, bootstrap: str, folder: Path, topics: Mapping[int, str]) -> Found:
    """Run all jobs of each topic on a cluster, the first only to warm. topics: by number of records."""
    words = [master, bootstrap, str(folder), json.dumps([*topics.items()])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.harness.pipeline_growth", *words], stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def told(found: Found) -> tuple[list[str], bool]:
    """The lines of a table, and whether a budget is missed."""
    sizes = sorted(found, key=int)
    first, last = found[sizes[0]], found[sizes[-1]]
    more = int(sizes[-1]) / int(sizes[0])
    lines = [f"| | {' | '.join(f'{int(size):,}' for size in sizes)} records | growth | budget | |"]
    lines.append("|" + "---|" * (len(sizes) + 4))
    missed = False
    for name in first:
        grown = last[name] / first[name]
        budget = LINEAR if name == "memory" else LINEAR * more
        missed |= grown > budget
        unit = "MB" if name == "memory" else "s"
        shown = " | ".join(f"{found[size][name]:,.1f} {unit}" for size in sizes)
        verdict = "holds" if grown <= budget else "MISSED"
        lines.append(f"| {name} | {shown} | {grown:.2f}x | <= {budget:g}x | {verdict} |")
    return lines, missed


def main(master: str, bootstrap: str, home: str, topics: str) -> None:
    """Drive the cluster: prints what was found as JSON."""
    spark = session.start(master, conf={**SMALL, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "8"})
    register(spark)
    memory, found = Memory(), {}
    for number, (count, topic) in enumerate(json.loads(topics)):
        times: dict[str, float] = {}
        for name, job in jobs(spark, Source(bootstrap), topic, Path(home, topic)).items():
            begun = time.perf_counter()
            job()
            times[name] = time.perf_counter() - begun
            print(f"{name}, {count:,} records: {times[name]:.1f} s", file=sys.stderr, flush=True)
        times["memory"] = memory.greatest
        if number:  # the first warms
            found[count] = times
    memory.end()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
