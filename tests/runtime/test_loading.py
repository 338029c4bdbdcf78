"""What is said of the loading of log directories."""

from __future__ import annotations

import logging

import pytest

from kbroker.log.log_loader import LoadProgress
from kbroker.log.names import TopicPartition
from kbroker.log.recovery import RecoveryProgress
from kbroker.runtime.loading import LINE_S, DirectoryLoad, Loading, in_bytes, in_time

ORDERS = TopicPartition("orders", 3)


class Clock:
    """Seconds, as a test sets them."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loading(clock: Clock, caplog: pytest.LogCaptureFixture) -> Loading:
    caplog.set_level(logging.INFO)
    return Loading(clock=clock)


def recovering(done: int, of: int, *, segments: tuple[int, int], read: int, path: str = "/data") -> LoadProgress:
    return LoadProgress(path, done, of, (ORDERS, RecoveryProgress(*segments, read, 10 * read)))


def test_counts_rate_and_time_left_are_told(clock: Clock, loading: Loading, caplog: pytest.LogCaptureFixture) -> None:
    clock.now_s += 4
    loading(LoadProgress("/data", 1, 4))
    loading(recovering(1, 4, segments=(2, 4), read=600_000_000))
    clock.now_s += LINE_S
    loading(recovering(1, 4, segments=(3, 4), read=900_000_000))
    assert caplog.messages == [
        "/data: 1 of 4 partitions loaded, about 12 s left",
        "/data: 1 of 4 partitions loaded, 900 MB read again at 100 MB/s, about 12 s left (orders-3 75%)",
    ]


def test_lines_come_every_few_seconds_for_each_directory(
    clock: Clock, loading: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        clock.now_s += 1
        for path in ("/a", "/b"):
            loading(recovering(0, 2, segments=(1, 9), read=1000, path=path))
    assert [line.partition(":")[0] for line in caplog.messages] == ["/a", "/b"] * 2


def test_a_quick_clean_start_says_nothing(clock: Clock, loading: Loading, caplog: pytest.LogCaptureFixture) -> None:
    clock.now_s += 0.9
    loading(LoadProgress("/data", 1, 1))
    assert caplog.messages == []


def test_the_end_says_what_was_read_again_however_quick(
    clock: Clock, loading: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now_s += 0.5
    loading(recovering(0, 2, segments=(1, 1), read=2_000_000))
    loading(LoadProgress("/data", 1, 2))
    loading(recovering(1, 2, segments=(1, 1), read=3_000_000))
    loading(LoadProgress("/data", 2, 2))
    assert caplog.messages == ["/data: 2 partitions loaded in 0.5 s, 5.0 MB read again at 10.0 MB/s"]


def test_nothing_is_said_of_the_time_left_before_anything_is_done() -> None:
    load = DirectoryLoad("/data", 0)
    load.report(LoadProgress("/data", 0, 7), 3)
    assert (load.seconds_left, str(load)) == (None, "/data: 0 of 7 partitions loaded")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 KB"),
        (2_500_000, "2.5 MB"),
        (123_400_000_000, "123 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_bytes_are_said_as_people_do(count: float, text: str) -> None:
    assert in_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (150, "2 min"), (7500, "2 h 5 min")])
def test_times_are_said_as_people_do(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
