"""Which Python runs this, and whether it was built to be fast: the banner of a start and the benches say it."""

from __future__ import annotations

import platform
import sys
import sysconfig

DISTRIBUTORS = "/usr"
"""Where distributions put their Python. Theirs are optimised; Debian's build does not say so."""


def describe_interpreter(flags: str | None = None, prefix: str = sys.base_prefix) -> str:
    """Its kind, release and build, such as `CPython 3.12.4, optimised`.

    Optimised is one built by its own profile (configure's --enable-optimizations): a broker on it takes some tenth
    less of the processor. flags: what `configure` was given; those of this interpreter unless told. prefix: where it
    is installed.
    """
    given = (sysconfig.get_config_var("CONFIG_ARGS") or "") if flags is None else flags
    optimised = "--enable-optimizations" in given or prefix == DISTRIBUTORS
    kind = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{kind}, {'optimised' if optimised else 'built without --enable-optimizations'}"
