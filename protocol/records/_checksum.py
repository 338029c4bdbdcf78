"""CRC-32C, from the package crc32c without the 25 ms that its `__init__` takes to look up its own version.

`crc32c(data, initial=0)` works on any buffer without a copy, by the processor's own instruction where there is one,
and lets other threads run while it works on a large one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType

NOT_THERE = (
    "kbroker needs the package crc32c: pip install crc32c; where there is no wheel of it, that takes a C compiler and "
    "Python's headers (Debian: apt-get install gcc python3-dev; macOS: xcode-select --install)"
)


def _extension() -> ModuleType:
    package = PathFinder.find_spec("crc32c")
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:  # laid out differently than expected
        try:
            import crc32c
        except ImportError:
            raise ImportError(NOT_THERE, name="crc32c") from None
        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c: Callable[..., int] = _extension().crc32c
