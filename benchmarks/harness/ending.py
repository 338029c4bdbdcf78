"""How a bench ends that is a process: Ctrl-C and SIGTERM do the same, so that brokers end and gigabytes are removed.

Used by the benches of `scripts/bench` that start brokers: nothing else would end these.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int], kept: str = "") -> NoReturn:
    """Exit with what `main` returns, or, once it was broken off, with a line. kept: what that says of results."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(f"broken off: {kept}" if kept else "broken off")
