"""When a broker's process tidies up."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kbroker.runtime.loop import Loop
from kbroker.runtime.memory import (
    BURST_BYTES,
    GROWN_BYTES,
    LAST_PAUSE,
    MOST_LOOKS_BUSY,
    Housekeeping,
    OutsideArenas,
    empty_buffer,
    trim,
)
from kbroker.runtime.platform.linux import resident_bytes


class House:
    """A process whose memory a test moves by hand."""

    def __init__(self, loop: Loop) -> None:
        self.bytes = 30 << 20
        self.busy = False
        self.free = GROWN_BYTES // 2  # of them
        self.tidied = self.trimmed = 0
        self.outside = 0  # how deep
        self.keeping = Housekeeping(loop, lambda: self.busy, lambda: self.bytes, self.collect, self.trim, self)

    def __enter__(self) -> None:
        self.outside += 1

    def __exit__(self, *_: object) -> None:
        self.outside -= 1

    def collect(self) -> None:
        self.tidied += 1

    def trim(self) -> None:
        self.trimmed += 1
        self.bytes -= self.free
        self.free = 0

    def looks(self, times: int = 1) -> int:
        """Returns: how often it has tidied up by then."""
        for _ in range(times):
            self.keeping.check()
        return self.tidied


@pytest.fixture
def loop() -> Iterator[Loop]:
    turning = Loop()
    yield turning
    turning.close()


@pytest.fixture
def house(loop: Loop) -> Iterator[House]:
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    yield House(loop)
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks


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


def test_what_becomes_free_after_it_has_tidied_up_is_given_back_as_well(house: House) -> None:
    house.bytes += 10 * GROWN_BYTES
    house.looks()
    house.free = 10 * GROWN_BYTES
    house.looks(2)
    assert (house.tidied, house.free) == (1, 0)


def test_memory_that_stays_is_looked_at_less_and_less_often(house: House) -> None:
    house.bytes += 10 * GROWN_BYTES
    house.looks(4 * LAST_PAUSE)
    assert (house.tidied, house.trimmed) == (1, 1 + LAST_PAUSE.bit_length())


def test_one_that_is_back_where_it_was_gives_back_nothing_more(house: House) -> None:
    house.bytes += GROWN_BYTES + 1
    house.looks(LAST_PAUSE)
    assert house.trimmed == 1


def test_a_burst_lasts_until_the_process_grows_no_more(house: House) -> None:
    seen = []
    for growth in (BURST_BYTES, 1, 2 * GROWN_BYTES, 2 * GROWN_BYTES, GROWN_BYTES):
        house.bytes += growth
        house.keeping.notice()
        before = house.outside
        seen.append((before, house.looks(), house.outside))
    assert seen == [(0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 0, 1), (1, 1, 0)]


def test_a_burst_without_end_waits_for_once(house: House) -> None:
    for _ in range(MOST_LOOKS_BUSY + 1):
        house.bytes += 2 * GROWN_BYTES
        house.keeping.notice()
        house.looks()
    assert (house.tidied, house.outside) == (1, 0)


def test_a_small_burst_gives_back_what_is_free_and_nothing_is_looked_at(house: House) -> None:
    house.bytes += BURST_BYTES + 1
    house.keeping.notice()
    house.looks()
    assert (house.tidied, house.trimmed, house.outside) == (0, 1, 0)


def test_a_process_is_left_without_a_burst_and_without_anybody_to_notice_one(house: House) -> None:
    callbacks = gc.callbacks[:]
    house.keeping.start()
    house.bytes += BURST_BYTES + 1
    house.keeping.notice()
    house.keeping.stop()
    assert (gc.callbacks, house.outside) == (callbacks, 0)


def test_what_a_burst_has_left_is_tidied_up_at_its_end(house: House) -> None:
    house.bytes += GROWN_BYTES + 1
    house.keeping.notice()
    house.busy = True
    while_busy = house.looks(2), house.outside
    house.busy = False
    assert (while_busy, house.looks(2), house.outside) == ((0, 1), 1, 0)


def test_a_burst_is_noticed_once_thousands_of_objects_stay(house: House, loop: Loop) -> None:
    house.keeping.start()
    house.bytes += 2 * BURST_BYTES
    young, old, _ = gc.get_threshold()
    loop.turn(wait=False)
    at_first = house.outside
    stay: list[list[int]] = [[] for _ in range(young * (old + 2))]
    loop.turn(wait=False)
    assert (len(stay) > 1_000, at_first, house.outside) == (True, 0, 1)


def test_memory_goes_back_to_the_system() -> None:
    blocks: list[bytes | None] = [bytes(2_000) for _ in range(50_000)]
    grown = resident_bytes()
    for at in range(len(blocks)):
        if at % 500:  # what stays is everywhere
            blocks[at] = None
    trim()
    assert grown - resident_bytes() > 60 << 20


def test_names_that_were_looked_up_are_let_go() -> None:
    name = "".join(["a name", " of a burst"])  # nobody else's
    before = sys.getrefcount(name)
    getattr(object(), name, None)
    assert sys.getrefcount(name) == before + 1
    trim()
    assert sys.getrefcount(name) == before


def test_a_buffer_takes_memory_where_something_is_in_it() -> None:
    before = resident_bytes()
    buffer = empty_buffer(64 << 20)
    made = resident_bytes()
    for at in range(0, 32 << 20, 4096):
        buffer[at] = 1
    grown = resident_bytes() - made
    assert (len(buffer), buffer[-1], made - before < 4 << 20) == (64 << 20, 0, True)
    assert 28 << 20 < grown < 36 << 20


# ---- objects outside of arenas; in a process of its own, whose heap is empty, and which may break

MAKE = """
from kbroker.runtime.memory import OutsideArenas, trim
from kbroker.runtime.platform.linux import resident_bytes
outside = OutsideArenas()
with outside:
    pass
before = resident_bytes()
"""


def _said(script: str, *options: str) -> list[int]:
    command = [sys.executable, *options, "-c", MAKE + script]
    return [int(word) for word in subprocess.check_output(command, text=True).split()]


def test_objects_that_outlive_a_burst_keep_nothing_but_their_pages() -> None:
    grown, kept = _said("""
with outside:
    burst = [(at, str(at)) for at in range(200_000)]
grown = resident_bytes()
stay = burst[::2_000]
del burst
trim()
print(grown - before, resident_bytes() - before)
""")
    assert (grown > 20 << 20, kept < 4 << 20) == (True, True), (grown, kept)


@pytest.mark.parametrize("options", [(), ("-X", "dev"), ("-X", "tracemalloc")])
def test_objects_go_and_grow_on_either_side(options: tuple[str, ...]) -> None:
    assert _said(
        """
lists, names = [[0] for _ in range(100)], {"usual": 1}
with outside:
    for each in lists:
        each.extend(range(each[0], 200))
    names |= {str(at): [at] for at in range(1_000)}
    more = [[0] for _ in range(100)]
    lists.pop(), names.pop("usual")
for each in (*lists, *more):
    each.extend(range(200))
del lists[::2], more[::3]
print(sum(map(len, lists)), sum(map(len, more)), sum(at[0] for at in names.values()))
""",
        *options,
    ) == [19_649, 13_266, 499_500]


def test_without_the_gil_all_objects_lie_where_python_puts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its collector finds them there; an allocator in between would hide them."""
    monkeypatch.setattr(sys, "abiflags", "t")
    monkeypatch.setattr(ctypes, "pythonapi", None)
    with OutsideArenas():
        pass
