"""Where a lone broker's metadata is, and that it is there at all: without it, the log directories have no topics.

Asked by the node before it touches a log directory. A broker that started with partitions and without metadata would
have no topics, say nothing, and treat what it finds as left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kbroker.log.checkpoints import read_text
from kbroker.log.errors import CorruptFileError
from kbroker.log.metaproperties import parse_meta_properties
from kbroker.log.names import META_PROPERTIES, METADATA_LOG, NOT_OURS, parse_folder_name
from kbroker.ports import Disk

STORE_FILE = "metadata.db"


class StoreMissingError(Exception):
    """There is no metadata where there should be some, or too much of it; one line for the operator."""


def find_store(disk: Disk, paths: Sequence[str]) -> str:
    """The path of the file, which is to be made in the first directory if all of them are new. paths: log.dirs.

    Directories that cannot be looked at are passed by, unless it may be there. Raises: StoreMissingError.
    """
    found = [path for path in paths if _has_store(disk, path)]
    if len(found) > 1:
        raise StoreMissingError(
            f"{found[0]} and {found[1]} both have a {STORE_FILE}: move away the one that is not in use"
        )
    if found:
        return f"{found[0]}/{STORE_FILE}"
    hidden = next((path for path in paths if not _can_be_read(disk, path)), None)
    if hidden is not None and any(_is_in_use(disk, path) for path in paths):
        raise StoreMissingError(f"{hidden}: cannot be read, and no other log directory has a {STORE_FILE}")
    rebuild = f"kbroker metadata rebuild {' '.join(paths)}"
    for path in paths:
        names = _folders(disk, path)
        signs = _kraft_signs(disk, path, names)
        if signs:
            raise StoreMissingError(f"{path}: is of Apache Kafka in KRaft mode ({signs}); {rebuild} takes it over")
        count = sum(_is_partition(name) for name in names)
        if count:
            partitions = "1 partition" if count == 1 else f"{count} partitions"
            text = f"holds {partitions}, and no log directory has a {STORE_FILE}, which says whose they are"
            raise StoreMissingError(f"{path}: {text}; put it back, or {rebuild} rebuilds it")
    emptied = (path for path in paths if _sizes(disk, path)[0] is not None)  # which is refused when it is opened
    return f"{next(emptied, paths[0])}/{STORE_FILE}"


def _has_store(disk: Disk, path: str) -> bool:
    """Whether there is a file with something in it, or the log of one that has not been moved into it yet."""
    return any(_sizes(disk, path))


def _sizes(disk: Disk, path: str) -> list[int | None]:
    """Of the file and its log; None where there is none."""
    try:
        entries = [disk.stat(f"{path}/{STORE_FILE}{suffix}") for suffix in ("", "-wal")]
    except OSError:
        return [None, None]
    return [None if entry is None else entry.size for entry in entries]


def _can_be_read(disk: Disk, path: str) -> bool:
    """Whether it is known what is in there; of one that is missing it is."""
    try:
        entry = disk.stat(path)
        return entry is None or (entry.is_dir and disk.list(path) is not None)
    except OSError:
        return False


def _is_in_use(disk: Disk, path: str) -> bool:
    """Whether a broker has had this directory."""
    with suppress(OSError):
        return disk.stat(f"{path}/{META_PROPERTIES}") is not None
    return False


def _folders(disk: Disk, path: str) -> list[str]:
    try:
        return [entry.name for entry in disk.list(path) if entry.is_dir]
    except OSError:
        return []


def _is_partition(name: str) -> bool:
    folder = parse_folder_name(name)
    return folder is not None and folder.state == "live" and name not in NOT_OURS


def _kraft_signs(disk: Disk, path: str, names: Sequence[str]) -> str:
    """What shows that a KRaft broker owns the directory, or empty."""
    signs = []
    try:
        text = read_text(disk, path, META_PROPERTIES)
        if text is not None and parse_meta_properties(text).version == 1:
            signs.append(f"{META_PROPERTIES} version 1")
    except (OSError, CorruptFileError):
        pass  # the code that opens the directory says so
    signs += [name for name in names if name == f"{METADATA_LOG}-0"]
    return ", ".join(signs)
