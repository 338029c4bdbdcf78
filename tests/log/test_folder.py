"""The bound on open files."""

from __future__ import annotations

from kbroker.log.folder import OpenFiles


class Owner:
    def __init__(self) -> None:
        self.touched = False
        self.is_open = True

    def close_files(self) -> None:
        self.is_open = False


def test_the_oldest_untouched_owner_lets_go_first() -> None:
    files, owners = OpenFiles(3), [Owner() for _ in range(4)]
    for owner in owners[:3]:
        files.opened(owner)
        owner.touched = False
    owners[0].touched = True
    files.opened(owners[3])
    assert [owner.is_open for owner in owners] == [True, False, True, True]


def test_the_owner_that_opens_is_never_asked() -> None:
    files, owners = OpenFiles(2), [Owner() for _ in range(50)]
    for owner in owners:
        files.opened(owner)
        assert owner.is_open
    assert (len(files), sum(owner.is_open for owner in owners)) == (2, 2)


def test_an_owner_that_closed_counts_no_more() -> None:
    files, owner = OpenFiles(2), Owner()
    files.opened(owner)
    files.closed(owner)
    files.closed(owner)
    assert len(files) == 0
