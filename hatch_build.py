"""Build hook: compiles protocol/records/_walker.py into an extension beside it, in a wheel and in an editable install.

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

MODULE = "protocol.records._walker"
SOURCE = Path("protocol", "records", "_walker.py")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compile, and tell hatchling that the wheel now belongs to one Python and one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is put together; an editable install finds the extension in the tree itself."""
        del version
        extension = compile_walker(Path(self.root))
        if extension is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(extension.relative_to(self.root).as_posix())


def compile_walker(root: Path) -> Path | None:
    """Compile the walker of the tree at `root` in place; the extension's path, None if it stays interpreted."""
    for stale in (root / SOURCE).parent.glob("_walker.*.so"):
        stale.unlink()  # never an extension older than its source
    if os.environ.get("KBROKER_PURE"):
        return _interpreted("KBROKER_PURE is set")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            built = _build_extension(root, Path(scratch))
            return Path(shutil.copy2(built, (root / SOURCE).parent))
    except (Exception, SystemExit) as error:  # setuptools ends the process where it finds no compiler
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return _interpreted(reason[-1])


def _build_extension(root: Path, scratch: Path) -> Path:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    source = scratch / SOURCE
    shutil.copytree(root / SOURCE.parent, source.parent, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (scratch / "protocol" / "__init__.py").touch()
    with source.open("a") as file:  # protocol/records/_built.py refuses the extension of any other source
        file.write(f"\nSOURCE_HASH = {source_hash((root / SOURCE).read_bytes())!r}\n")
    extension = Extension(MODULE, [str(source)], extra_compile_args=["-O3", "-g0", "-w"])
    modules = cythonize([extension], quiet=True, build_dir=str(scratch / "c"))
    command = build_ext(Distribution({"name": "walker", "ext_modules": modules}))
    command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "o")
    command.ensure_finalized()
    with _quiet():
        command.run()
    return Path(command.get_ext_fullpath(MODULE))


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


def _interpreted(reason: str) -> None:
    print(f"kbroker: {SOURCE} stays interpreted, strict checks of records are slower: {reason}", file=sys.stderr)


if __name__ == "__main__":
    compiled = compile_walker(Path(__file__).parent)
    print(f"compiled {compiled}" if compiled else "interpreted")
