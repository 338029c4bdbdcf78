"""What happens to the disk that metadata is on."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written to any file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def killed(path: Path, to: Path) -> Path:
    """The files as they are now, elsewhere: what a kill leaves."""
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{to}{suffix}")
    return to
