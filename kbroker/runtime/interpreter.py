"""Which Python runs this, and whether it was built to be fast: the banner of a start and the benches say it."""

from __future__ import annotations

import os
import sys

DISTRIBUTORS = "/usr"
"""Where distributions put their Python. Theirs are optimised; Debian's build does not say so."""
KINDS = {"cpython": "CPython", "pypy": "PyPy"}


def describe_interpreter(flags: str | None = None, prefix: str = sys.base_prefix) -> str:
    """Its kind, release and build, such as `CPython 3.12.4, optimised`.

    Optimised is one built by its own profile (configure's --enable-optimizations): a broker on it takes some tenth
    less of the processor. flags: what `configure` was given; those of this interpreter unless told. prefix: where it
    is installed.
    """
    optimised = prefix == DISTRIBUTORS or "--enable-optimizations" in (_flags() if flags is None else flags)
    kind = f"{KINDS.get(sys.implementation.name, sys.implementation.name)} {sys.version.partition(' ')[0]}"
    return f"{kind}, {'optimised' if optimised else 'built without --enable-optimizations'}"


def _flags() -> str:
    """The text of what a build has noted, `configure`'s arguments among it; empty if nothing is there.

    It is not imported, as `sysconfig` does: a thousand settings of the build would stay, half a megabyte.
    """
    folder = os.path.dirname(os.__file__)
    name = f"_sysconfigdata_{sys.abiflags}_{sys.platform}_{getattr(sys.implementation, '_multiarch', '')}.py"
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
