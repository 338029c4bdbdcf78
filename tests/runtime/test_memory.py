"""When a broker's process tidies up."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kbroker.runtime.loop import Loop
from kbroker.runtime.memory import (
    GROWN_BYTES,
    MOST_LOOKS_BUSY,
    Housekeeping,
    collect_and_trim,
    resident_bytes,
)


class House:
    """A process whose memory a test moves by hand."""

    def __init__(self, loop: Loop) -> None:
        self.bytes = 30 << 20
        self.busy = False
        self.tidied = 0
        self.keeping = Housekeeping(loop, lambda: self.busy, lambda: self.bytes, self.tidy)

    def tidy(self) -> None:
        self.tidied += 1
        self.bytes -= GROWN_BYTES // 2

    def looks(self, times: int = 1) -> int:
        """Returns: how often it has tidied up by then."""
        for _ in range(times):
            self.keeping.look()
        return self.tidied


@pytest.fixture
def house() -> Iterator[House]:
    before, loop = gc.get_threshold(), Loop()
    yield House(loop)
    loop.close()
    gc.set_threshold(*before)


def test_a_process_that_has_not_grown_is_left_alone(house: House) -> None:
    house.bytes += GROWN_BYTES
    assert house.looks(3) == 0


def test_one_that_has_grown_is_tidied_up_once(house: House) -> None:
    house.bytes += GROWN_BYTES + 1
    assert house.looks(3) == 1


def test_growth_is_counted_from_the_least_there_was(house: House) -> None:
    house.bytes -= 10 << 20
    house.looks()
    house.bytes += GROWN_BYTES + 1
    assert house.looks() == 1


def test_nothing_that_is_under_way_is_held_up(house: House) -> None:
    house.busy = True
    house.bytes += GROWN_BYTES + 1
    while_busy = house.looks(MOST_LOOKS_BUSY)
    house.busy = False
    assert (while_busy, house.looks()) == (0, 1)


def test_what_is_under_way_without_end_waits_for_once(house: House) -> None:
    house.busy = True
    house.bytes += GROWN_BYTES + 1
    assert house.looks(MOST_LOOKS_BUSY + 1) == 1


def test_the_collector_leaves_old_objects_alone(house: House) -> None:
    house.keeping.start()
    assert gc.get_threshold()[2] > 1_000_000


def test_memory_goes_back_to_the_system() -> None:
    blocks: list[bytes | None] = [bytes(2_000) for _ in range(50_000)]
    grown = resident_bytes()
    for at in range(len(blocks)):
        if at % 500:  # what stays is everywhere
            blocks[at] = None
    collect_and_trim()
    assert grown - resident_bytes() > 60 << 20
