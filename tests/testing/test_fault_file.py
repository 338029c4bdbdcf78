"""Faults from a file: the same words as in a test, and one line for each mistake."""

from __future__ import annotations

import pytest

from kbroker.faults import UsageError
from kbroker.faults.file import DiskPlan, read_faults


def fault(*lines: str) -> str:
    return "\n".join(["[[fault]]", *lines])


@pytest.mark.parametrize(
    ("lines", "reads"),
    [
        (['on = "Produce"', 'fail = "CORRUPT_MESSAGE"'], "on('Produce').fail(CORRUPT_MESSAGE)"),
        (['on = "fetch"', 'topic = "t"', "partition = 1", "drop = true"], "on('Fetch', topic='t', partition=1).drop()"),
        (['on = "Fetch"', "delay_ms = 5", "after = true"], "on('Fetch').delay(ms=5, after=True)"),
        (['on = "Fetch"', "throttle_ms = 5"], "on('Fetch').throttle(ms=5)"),
        (['on = "Fetch"', "in_pieces = 3"], "on('Fetch').in_pieces(size=3)"),
        (['on = "Fetch"', "corrupt = true"], "on('Fetch').corrupt()"),
        (['on = "Heartbeat"', 'group = "g"', "disconnect = true"], "on('Heartbeat', group='g').disconnect()"),
        (['on = "Produce"', 'client_id = "c"', "version = 8", "hold = true"], "client_id='c', version=8).hold()"),
    ],
)
def test_a_fault_reads_as_in_a_test(lines: list[str], reads: str) -> None:
    (read,) = read_faults(fault(*lines), "f").faults
    assert reads in repr(read)


def test_times_and_nth_count() -> None:
    twice, third = read_faults(
        fault('on = "Fetch"', "drop = true", "times = 2") + "\n" + fault('on = "Fetch"', "drop = true", "nth = 3"), "f"
    ).faults
    assert [[each.count() for _ in range(4)] for each in (twice, third)] == [
        [True, True, False, False],
        [False, False, True, False],
    ]


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", None),
        ("[disk]\nslow_ms = 5", DiskPlan(slow_ms=5)),
        ("[disk]\nslow_ms = 5\nfull_after_bytes = 0", DiskPlan(slow_ms=5, full_after_bytes=0)),
        ("[disk]\nbroken_after_bytes = 1_000", DiskPlan(broken_after_bytes=1000)),
    ],
)
def test_a_file_says_what_the_disk_does(text: str, plan: DiskPlan | None) -> None:
    assert read_faults(text, "f").disk == plan


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[fault]", "f: is not TOML"),
        ("[[faults]]", "f: there is no word 'faults'; did you mean fault?"),
        ("[fault]", "f: write [[fault]], in two pairs of brackets"),
        ('act_like = "3.9"', "f: there are no tables of Kafka 3.9: choose 0.10, 1.0, 2.8"),
        (fault("drop = true"), 'f: fault 1: it is on no API: write on = "Produce"'),
        (fault('on = "Prodcue"', "drop = true"), "f: fault 1: there is no API 'Prodcue'; did you mean Produce?"),
        (fault('on = "Fetch"'), "f: fault 1: it does nothing: write one of fail, delay_ms"),
        (fault('on = "Fetch"', "drop = true", "hold = true"), "it does drop and hold: write one of"),
        (fault('on = "Fetch"', 'fail = "NOT_LEADER"'), "did you mean NOT_LEADER_OR_FOLLOWER?"),
        (fault('on = "Fetch"', 'delay_ms = "5"'), "delay_ms = '5': allowed: a whole number"),
        (fault('on = "Fetch"', "delay_ms = true"), "delay_ms = True: allowed: a whole number"),
        (fault('on = "Fetch"', "drop = false"), "drop = False: allowed: true"),
        (fault('on = "Fetch"', "dorp = true"), "there is no word 'dorp'; did you mean drop?"),
        (fault('on = "Fetch"', "drop = true", "times = 0"), "times(0) would never match"),
        ("disk = 5", "f: write [disk], in one pair of brackets, above slow_ms"),
        ("[disk]", "f: [disk] does nothing: write one of slow_ms, full_after_bytes, broken_after_bytes"),
        ("[disk]\nslow = 5", "f: there is no word 'slow'; did you mean slow_ms?"),
        ("[disk]\nslow_ms = -5", "f: [disk] slow_ms = -5: allowed: a whole number, 0 or more"),
        ("[disk]\nfull_after_bytes = 5\nbroken_after_bytes = 5", "f: [disk] is full_after_bytes and broken_after"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        read_faults(text, "f")
    assert told in str(error.value)
    assert "\n" not in str(error.value)
