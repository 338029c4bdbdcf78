"""Keeps a compiled module from hiding a source that has changed since: the danger of compiling in place.

Python prefers an extension to the `.py` beside it, however old it is. The build (hatch_build.py, which runs this file
without the package) writes `hash_of` its sources into the extension; its first importer (the package's
`__init__`, `convert` or `cleaning`) calls `use_or_refuse` before. It costs one small file read, and compiles nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from importlib.util import module_from_spec, source_hash, spec_from_loader

_COMPILED_WITH_IT = {"_converter": ("_numbers.py", "_folding.pxd")}  # others: ("_numbers.py",)


def hash_of(directory: str, name: str) -> bytes:
    """Of all that the extension of a module is made from. Raises: FileNotFoundError if it is not there."""
    written = b""
    for part in (f"{name}.py", *_COMPILED_WITH_IT.get(name, ("_numbers.py",))):
        with open(f"{directory}/{part}", "rb") as file:
            written += file.read()
    return source_hash(written)


def use_or_refuse(package: str, name: str) -> None:
    """Import a module of a package; where that is an extension of another source, load the source in its place."""
    directory = sys.modules[package].__path__[0]
    source = SourceFileLoader(f"{package}.{name}", f"{directory}/{name}.py")
    try:
        module = import_module(source.name)
        if not str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES)):
            return
        if getattr(module, "SOURCE_HASH", None) == hash_of(directory, name):
            return
    except FileNotFoundError:
        return  # installed without sources
    except ImportError:
        pass  # an old extension asks for names that are gone
    spec = spec_from_loader(source.name, source)
    assert spec is not None
    sys.modules[source.name] = module = module_from_spec(spec)
    source.exec_module(module)
    setattr(sys.modules[package], name, module)
    print(f"{source.path} has changed since it was compiled: interpreted until hatch_build.py runs", file=sys.stderr)
