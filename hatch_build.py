"""Build hook: lays a wheel out, and compiles the loops over records in protocol/records into extensions beside them.

Called by hatchling (pyproject.toml, [tool.hatch.build.targets.wheel.hooks.custom]); by hand, `python hatch_build.py`
compiles in a checkout. Never fails an installation for want of a C compiler: without one, or with KBROKER_PURE=1 set,
it says so in one line and the same files run interpreted (`protocol.records.walker_kind()` tells which). Such a wheel
is for every platform. With KBROKER_COMPILED=1, for those who make the wheels of a release, it is compiled or not made.

An editable install finds everything in the tree. In a wheel, `protocol` is `kbroker.protocol`, and every import of it
says so: a package of so common a name at the top of site-packages would sooner or later meet another one
(docs/decisions/0016-protocol-in-a-wheel.md).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand
    BuildHookInterface = object  # type: ignore[assignment, misc]

RECORDS = "records"  # the part of the package `protocol` that has loops
MODULES = ("_walker", "_converter", "_cleaner")
IMPORT = re.compile(r"^(\s*(?:from|import) )protocol(?=[.\s])", re.MULTILINE)
NUMBERS = re.compile(r"^from [\w.]+\._numbers import .*$", re.MULTILINE)
NOT_SHIPPED = shutil.ignore_patterns("*.so", "__pycache__")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Lay out, compile, and tell hatchling that the wheel now belongs to one Python and one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is put together; an editable install finds the extension in the tree itself."""
        root = Path(self.root)
        if version == "editable":
            package, name = root / "protocol", "protocol"
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="kbroker-wheel-")
            lay_out(root, Path(self._scratch.name))
            build_data["force_include"][f"{self._scratch.name}/kbroker"] = "kbroker"
            package, name = Path(self._scratch.name, "kbroker", "protocol"), "kbroker.protocol"
        if compile_loops(package, name):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Run when the wheel is there."""
        del build_data, artifact_path
        if version != "editable":
            self._scratch.cleanup()


def lay_out(root: Path, wheel: Path) -> None:
    """Copy the packages of the tree at `root` as a wheel has them: `protocol` within kbroker, imported from there."""
    shutil.copytree(root / "kbroker", wheel / "kbroker", ignore=NOT_SHIPPED)
    shutil.copytree(root / "protocol", wheel / "kbroker" / "protocol", ignore=NOT_SHIPPED)
    for path in wheel.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(IMPORT.sub(r"\1kbroker.protocol", text), encoding="utf-8")


def compile_loops(package: Path, name: str) -> list[Path]:
    """Compile the loops of the package `protocol` in place; the extensions' paths, none if that cannot be.

    package: its folder. name: under which it is imported. What was compiled before goes only once there is a newer one:
    of a source that has changed since, `protocol/records/_built.py` refuses it.
    """
    if os.environ.get("KBROKER_PURE"):
        _remove_compiled(package)
        return _interpreted("KBROKER_PURE is set; for a compiled one, unset it")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            built = _build_extensions(package, name, Path(scratch))
            _remove_compiled(package)  # a process that runs keeps the file that it has
            return [Path(shutil.copy2(extension, package / RECORDS)) for extension in built]
    except (Exception, SystemExit) as error:  # setuptools ends the process where it finds no compiler
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if os.environ.get("KBROKER_COMPILED"):
            raise SystemExit(f"kbroker: KBROKER_COMPILED is set, and this cannot be compiled: {reason[-1]}") from error
        return _interpreted(reason[-1])


def _remove_compiled(package: Path) -> None:
    for module in MODULES:
        for extension in (package / RECORDS).glob(f"{module}.*.so"):
            extension.unlink()


def _build_extensions(package: Path, name: str, scratch: Path) -> list[Path]:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    names = name.split(".")
    folder = scratch.joinpath(*names, RECORDS)
    shutil.copytree(package / RECORDS, folder, ignore=NOT_SHIPPED)
    for depth in range(1, len(names) + 1):
        scratch.joinpath(*names[:depth], "__init__.py").touch()
    hash_of = run_path(str(folder / "_built.py"))["hash_of"]
    extensions = []
    for module in MODULES:
        source = folder / f"{module}.py"
        hashed = hash_of(str(folder), module)
        source.write_text(with_numbers(source.read_text(encoding="utf-8"), folder), encoding="utf-8")
        with source.open("a") as file:  # protocol/records/_built.py refuses the extension of any other source
            file.write(f"\nSOURCE_HASH = {hashed!r}\n")
        where = ".".join((*names, RECORDS, module))
        extensions.append(Extension(where, [str(source)], extra_compile_args=["-O3", "-g0", "-w"]))
    modules = cythonize(
        extensions,
        quiet=True,
        build_dir=str(scratch / "c"),
        include_path=[str(folder)],
        # They touch what they are given, and nothing of the module's: a Python without the GIL need not bring it back.
        compiler_directives={"freethreading_compatible": True},
    )
    command = build_ext(Distribution({"name": "walker", "ext_modules": modules}))
    command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "o")
    command.ensure_finalized()
    with _quiet():
        command.run()
    return [Path(command.get_ext_fullpath(extension.name)) for extension in extensions]


def with_numbers(text: str, folder: Path) -> str:
    """A loop's source with the functions of `_numbers.py` in the place of their import."""
    numbers = (folder / "_numbers.py").read_text(encoding="utf-8")
    return NUMBERS.sub(lambda _: numbers[numbers.index("@cython.cfunc") :], text, count=1)


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
    print(f"kbroker: loops over records are not compiled, strict checks are slower: {reason}", file=sys.stderr)
    return []


if __name__ == "__main__":
    for compiled in compile_loops(Path(__file__).parent / "protocol", "protocol"):
        print(f"compiled {compiled}")
