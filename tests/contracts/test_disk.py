"""What every `Disk` does, the operating system's and the simulated one alike."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kbroker.ports import Disk, Region
from kbroker.runtime import files
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.platform import portable
from kbroker.sim.disk import SimDisk


class Place:
    """A disk and an empty folder on it."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self.disk = disk
        self.folder = folder

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def write(self, name: str, content: bytes) -> None:
        file = self.disk.open(self.path(name), "create")
        file.write([content], 0)
        file.close()

    def read(self, name: str) -> bytes:
        return self.disk.open(self.path(name), "read").read(0, 1 << 20)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.disk.list(self.folder))


@pytest.fixture(params=["system", "portable", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "portable":
        for name in ("lock_file", "unlock_file", "sync_file", "pwritev"):
            monkeypatch.setattr(files, name, getattr(portable, name))
    if request.param != "simulated":
        return Place(SystemDisk(), str(tmp_path))
    disk = SimDisk()
    disk.make_dir("/d")
    return Place(disk, "/d")


def test_written_bytes_are_read_back(place: Place) -> None:
    place.write("a", b"hello")
    assert place.read("a") == b"hello"


def test_several_buffers_are_written_one_behind_the_other(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    file.write([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 2)
    assert file.read(0, 100) == b"\0\0abcdef"


def test_more_buffers_than_one_system_call_takes_are_all_written(place: Place) -> None:
    file = place.disk.open(place.path("a"), "create")
    file.write([b"%04d" % i for i in range(3000)], 0)
    assert file.size() == 12_000
    assert file.read(4 * 2999, 4) == b"2999"


def test_reading_at_the_end_returns_less(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "read")
    assert (file.read(3, 10), file.read(5, 10), file.read(99, 1)) == (b"lo", b"", b"")


def test_resize_cuts_and_fills_with_zeros(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "write")
    file.resize(2)
    file.resize(4)
    assert file.read(0, 10) == b"he\0\0"


def test_a_map_shows_later_writes(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "write")
    view = file.map()
    file.write([b"J"], 0)
    file.sync()
    assert bytes(view) == b"Jello"


def test_a_map_outlives_its_handle(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "read")
    view = file.map()
    file.close()
    assert bytes(view) == b"hello"


def test_a_map_cannot_be_written(place: Place) -> None:
    place.write("a", b"hello")
    assert place.disk.open(place.path("a"), "write").map().readonly


def test_an_empty_file_maps_to_nothing(place: Place) -> None:
    place.write("a", b"")
    assert len(place.disk.open(place.path("a"), "read").map()) == 0


def test_a_new_map_shows_the_new_size(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "write")
    old = file.map()
    file.resize(8)
    assert bytes(file.map()) == b"hello\0\0\0"
    del old


@pytest.mark.parametrize("mode", ["read", "write"])
def test_opening_what_is_not_there_fails(place: Place, mode: str) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("a"), mode)  # type: ignore[arg-type]


def test_a_file_is_not_made_in_a_folder_that_is_missing(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("no/a"), "create")


def test_create_keeps_what_is_there(place: Place) -> None:
    place.write("a", b"hello")
    place.disk.open(place.path("a"), "create").close()
    assert place.read("a") == b"hello"


def test_a_handle_survives_rename_and_removal(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "read")
    place.disk.rename(place.path("a"), place.path("b"))
    place.disk.remove(place.path("b"))
    assert (file.read(0, 5), place.names()) == (b"hello", [])


def test_rename_replaces_a_file(place: Place) -> None:
    place.write("a", b"new")
    place.write("b", b"old")
    place.disk.rename(place.path("a"), place.path("b"))
    assert (place.names(), place.read("b")) == (["b"], b"new")


def test_renaming_a_folder_takes_its_files_along(place: Place) -> None:
    place.disk.make_dir(place.path("t-0"))
    place.write("t-0/a", b"x")
    place.disk.rename(place.path("t-0"), place.path("t-0-delete"))
    assert place.read("t-0-delete/a") == b"x"


def test_rename_of_what_is_not_there_fails(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place.path("a"), place.path("b"))


def test_list_tells_sizes_and_folders(place: Place) -> None:
    place.write("a", b"hello")
    place.disk.make_dir(place.path("d"))
    listed = sorted((entry.name, entry.size, entry.is_dir) for entry in place.disk.list(place.folder))
    assert listed == [("a", 5, False), ("d", 0, True)]


def test_listing_a_missing_folder_fails(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.list(place.path("no"))


def test_listing_a_file_fails(place: Place) -> None:
    place.write("a", b"")
    with pytest.raises(NotADirectoryError):
        place.disk.list(place.path("a"))


def test_stat_tells_a_file_a_folder_and_nothing(place: Place) -> None:
    place.write("a", b"hello")
    file, folder = place.disk.stat(place.path("a")), place.disk.stat(place.folder)
    assert file is not None
    assert folder is not None
    assert (file.name, file.size, file.is_dir, folder.is_dir) == ("a", 5, False, True)
    assert place.disk.stat(place.path("b")) is None


def test_a_file_says_that_it_was_modified_when_it_is_told_to(place: Place) -> None:
    place.write("a", b"1")
    place.disk.set_modified(place.path("a"), 1_600_000_000_123)
    place.disk.rename(place.path("a"), place.path("b"))
    entry = place.disk.stat(place.path("b"))
    assert entry is not None
    assert entry.modified_ms == 1_600_000_000_123
    with pytest.raises(FileNotFoundError):
        place.disk.set_modified(place.path("a"), 0)


def test_remove_of_what_is_not_there_fails(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.remove(place.path("a"))


def test_a_folder_is_made_once(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    with pytest.raises(FileExistsError):
        place.disk.make_dir(place.path("d"))


def test_only_an_empty_folder_is_removed(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    place.write("d/a", b"")
    with pytest.raises(OSError) as raised:  # noqa: PT011
        place.disk.remove_dir(place.path("d"))
    assert raised.value.errno == errno.ENOTEMPTY
    place.disk.remove(place.path("d/a"))
    place.disk.remove_dir(place.path("d"))
    assert place.names() == []


def test_folders_can_be_synced(place: Place) -> None:
    place.write("a", b"")
    place.disk.sync_dir(place.folder)
    with pytest.raises(FileNotFoundError):
        place.disk.sync_dir(place.path("no"))


def test_a_lock_is_taken_once_until_released(place: Place) -> None:
    lock = place.disk.lock(place.path(".lock"))
    with pytest.raises(BlockingIOError):
        place.disk.lock(place.path(".lock"))
    lock.release()
    lock.release()
    place.disk.lock(place.path(".lock")).release()


def test_closing_twice_is_harmless_and_using_after_is_an_error(place: Place) -> None:
    place.write("a", b"hello")
    file = place.disk.open(place.path("a"), "read")
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        file.read(0, 1)


def test_a_volume_has_space_and_no_more_free_than_there_is(place: Place) -> None:
    volume = place.disk.volume(place.folder)
    assert 0 < volume.free_bytes <= volume.total_bytes


def test_a_region_stands_for_its_bytes(place: Place) -> None:
    place.write("a", b"hello")
    region = Region(place.disk.open(place.path("a"), "read"), 1, 3)
    assert (len(region), region.read()) == (3, b"ell")
