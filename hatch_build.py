"""Build hook: compiles the loops over records in protocol/records into extensions beside them, in every installation.

Called by hatchling (pyproject.toml, [tool.hatch.build.targets.wheel.hooks.custom]); by hand, `python hatch_build.py`
does the same in a checkout. Never fails an installation: without a C compiler, or with KBROKER_PURE=1 set,
it says so in one line and the same file runs interpreted (`protocol.records.walker_kind()` tells which).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import source_hash
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand
    BuildHookInterface = object  # type: ignore[assignment, misc]

PACKAGE = Path("protocol", "records")
MODULES = ("_walker", "_converter")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compile, and tell hatchling that the wheel now belongs to one Python and one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is put together; an editable install finds the extension in the tree itself."""
        del version
        extensions = compile_loops(Path(self.root))
        if extensions:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"] += [extension.relative_to(self.root).as_posix() for extension in extensions]


def compile_loops(root: Path) -> list[Path]:
    """Compile the loops of the tree at `root` in place; the extensions' paths, none if they stay interpreted."""
    for module in MODULES:
        for stale in (root / PACKAGE).glob(f"{module}.*.so"):
            stale.unlink()  # never an extension older than its source
    if os.environ.get("KBROKER_PURE"):
        return _interpreted("KBROKER_PURE is set")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return [Path(shutil.copy2(built, root / PACKAGE)) for built in _build_extensions(root, Path(scratch))]
    except (Exception, SystemExit) as error:  # setuptools ends the process where it finds no compiler
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return _interpreted(reason[-1])


def _build_extensions(root: Path, scratch: Path) -> list[Path]:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    shutil.copytree(root / PACKAGE, scratch / PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (scratch / "protocol" / "__init__.py").touch()
    extensions = []
    for module in MODULES:
        source = scratch / PACKAGE / f"{module}.py"
        hashed = source_hash(source.read_bytes())
        with source.open("a") as file:  # protocol/records/_built.py refuses the extension of any other source
            file.write(f"\nSOURCE_HASH = {hashed!r}\n")
        name = ".".join((*PACKAGE.parts, module))
        extensions.append(Extension(name, [str(source)], extra_compile_args=["-O3", "-g0", "-w"]))
    modules = cythonize(extensions, quiet=True, build_dir=str(scratch / "c"))
    command = build_ext(Distribution({"name": "walker", "ext_modules": modules}))
    command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "o")
    command.ensure_finalized()
    with _quiet():
        command.run()
    return [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]


class _quiet:  # noqa: N801
    """Keep the compiler's chatter out of an installation that may go on without it."""

    def __enter__(self) -> None:
        self._saved = [os.dup(1), os.dup(2)]
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nowhere, fd)
        os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        for fd, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, fd)
            os.close(saved)


def _interpreted(reason: str) -> list[Path]:
    print(f"kbroker: loops over records stay interpreted, strict checks are slower: {reason}", file=sys.stderr)
    return []


if __name__ == "__main__":
    for compiled in compile_loops(Path(__file__).parent):
        print(f"compiled {compiled}")
