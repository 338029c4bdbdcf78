"""A partition's folder, and the bound on how many files of all folders are open at once.

Owns paths and descriptors: segments and indices hold a `Folder` and their base offset, never a path, so that renaming
the folder is one assignment and an idle segment costs no string. Called by everything in this package that opens files.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import Protocol

from kbroker.log.names import SegmentPart
from kbroker.ports import Disk, File, OpenMode

FOREIGN_SUFFIX = ".foreign"


def free_name(disk: Disk, folder: str, name: str) -> str:
    """`name`, or with a number behind it, so that nothing in the folder has it. Raises OSError."""
    taken = {entry.name for entry in disk.list(folder)}
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in names if each not in taken)


def put_aside(disk: Disk, folder: str, name: str) -> str:
    """Rename what is no file of ours and has a name that we need; a line that says so. Raises OSError."""
    aside = free_name(disk, folder, name + FOREIGN_SUFFIX)
    disk.rename(f"{folder}/{name}", f"{folder}/{aside}")
    return f"{folder}/{name}: is none of this broker's: set aside as {aside}"


def make_dirs(disk: Disk, path: str) -> None:
    """Make a folder and those above it, as far as they are missing, durably. Raises OSError."""
    if disk.stat(path) is not None:
        return
    parent = path.rpartition("/")[0]
    if parent:
        make_dirs(disk, parent)
    disk.make_dir(path)
    disk.sync_dir(parent or "/")


class Opened(Protocol):
    """Something that holds a descriptor and can get it again when it needs it."""

    touched: bool

    def close_files(self) -> None:
        """Close, or leave to its last holder, what was opened."""
        ...


class OpenFiles:
    """At most `limit` descriptors held by idle owners; the ones not used lately go first.

    The second-chance algorithm: being used costs an owner one assignment (`touched = True`), not a place in a list.
    A descriptor that a region on its way out or an fsync still holds outlives this bound, but not its holder.
    is_offline: the log directory has failed: no file of its logs is opened any more.
    """

    __slots__ = ("_owners", "is_offline", "limit")

    def __init__(self, limit: int = 4096) -> None:
        assert limit >= 2, limit
        self.limit = limit
        self.is_offline = False
        self._owners: OrderedDict[Opened, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def opened(self, owner: Opened) -> None:
        """Count a descriptor of `owner`, and make room for it."""
        owners = self._owners
        owner.touched = True
        owners[owner] = None
        while len(owners) > self.limit:
            oldest, _ = owners.popitem(last=False)
            if oldest is owner or oldest.touched:
                oldest.touched = oldest is owner
                owners[oldest] = None
            else:
                oldest.close_files()

    def closed(self, owner: Opened) -> None:
        """Forget a descriptor that its owner gave up by itself."""
        self._owners.pop(owner, None)


class Folder:
    """The folder of one partition on one disk."""

    __slots__ = ("disk", "open_files", "path")

    def __init__(self, disk: Disk, path: str, open_files: OpenFiles) -> None:
        self.disk = disk
        self.path = path
        self.open_files = open_files

    def file_path(self, base_offset: int, part: SegmentPart, suffix: str = "") -> str:
        """Path of one part of a segment. suffix: "" or ".deleted", ".swap", ".cleaned"."""
        return f"{self.path}/{base_offset:020d}.{part}{suffix}"

    def open(self, base_offset: int, part: SegmentPart, mode: OpenMode) -> File:
        """Open one part of a segment. Raises OSError; also if the log directory is offline."""
        if self.open_files.is_offline:
            raise OSError(errno.EIO, "the log directory is offline", self.path)
        return self.disk.open(f"{self.path}/{base_offset:020d}.{part}", mode)
