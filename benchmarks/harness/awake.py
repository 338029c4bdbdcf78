"""Keeps the processor's cores from going to sleep while latencies are measured.

Used by `runner.py`. A core with nothing to do halts; on a virtual machine waking it costs some 30 us, several times
what a broker does for a small request, and the same for every broker: what is measured then is the hypervisor. Here a
process of the lowest class there is (SCHED_IDLE: it runs only where no other process wants to) turns on each core, for
both brokers and the floor alike. The kernel still hands a core over at once, and their processor time is not the
broker's. Not for rows that measure processor time or throughput of a busy broker: those cores do not sleep anyway.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import os, sys
parent = int(sys.argv[2])
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == parent:  # it ends with the process that began it, however that ended
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def cores_awake(wanted: bool = True) -> Iterator[None]:
    """No core of this process's goes to sleep within the block; with wanted=False, they may."""
    spinners = [
        subprocess.Popen([sys.executable, "-S", "-c", _SPIN, str(core), str(os.getpid())], stdin=subprocess.DEVNULL)
        for core in (sorted(os.sched_getaffinity(0)) if wanted else ())
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
