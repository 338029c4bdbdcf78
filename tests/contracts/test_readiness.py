"""What the loop waits with keeps its promises on every platform: epoll, poll, and kqueue on a fake of its calls."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from kbroker.runtime.platform import READABLE, WRITABLE, Readiness
from kbroker.runtime.platform.readiness import Kqueue, PosixPoll
from tests.contracts import kqueues

Pair = tuple[socket.socket, socket.socket]

KINDS = {"epoll": select.epoll, "poll": PosixPoll, "kqueue": partial(Kqueue, kqueues)}


@pytest.fixture(params=sorted(KINDS))
def readiness(request: pytest.FixtureRequest) -> Iterator[Readiness]:
    made: Readiness = KINDS[request.param]()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def told(readiness: Readiness, of: socket.socket | int) -> int:
    """All that is told of a descriptor without waiting."""
    wanted = of if isinstance(of, int) else of.fileno()
    events = 0
    for fd, event in readiness.poll(0, 100):
        events |= event if fd == wanted else 0
    return events


def fill(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while sock.send(bytes(1 << 16)):
            pass


def test_a_descriptor_is_told_of_as_long_as_it_has_something(readiness: Readiness, pair: Pair) -> None:
    readiness.register(pair[0].fileno(), READABLE)
    assert told(readiness, pair[0]) == 0
    pair[1].send(b"xy")
    assert (told(readiness, pair[0]), told(readiness, pair[0])) == (READABLE, READABLE)
    pair[0].recv(1)
    assert told(readiness, pair[0]) == READABLE
    pair[0].recv(1)
    assert told(readiness, pair[0]) == 0


def test_only_what_was_asked_for_is_told(readiness: Readiness, pair: Pair) -> None:
    fd = pair[0].fileno()
    pair[1].send(b"x")
    readiness.register(fd, WRITABLE)
    assert told(readiness, fd) == WRITABLE
    readiness.modify(fd, READABLE | WRITABLE)
    assert told(readiness, fd) == READABLE | WRITABLE
    readiness.modify(fd, READABLE)
    assert told(readiness, fd) == READABLE
    readiness.unregister(fd)
    assert told(readiness, fd) == 0
    readiness.register(fd, READABLE)
    assert told(readiness, fd) == READABLE


def test_a_full_socket_is_told_of_once_there_is_room(readiness: Readiness, pair: Pair) -> None:
    fill(pair[0])
    readiness.register(pair[0].fileno(), WRITABLE)
    assert told(readiness, pair[0]) == 0
    pair[1].setblocking(False)
    with suppress(BlockingIOError):
        while pair[1].recv(1 << 20):
            pass
    assert told(readiness, pair[0]) == WRITABLE


@pytest.mark.parametrize("asked", [READABLE, WRITABLE, READABLE | WRITABLE])
def test_a_hang_up_is_told_to_those_who_asked_for_anything(readiness: Readiness, pair: Pair, asked: int) -> None:
    readiness.register(pair[0].fileno(), asked)
    pair[1].close()
    event = told(readiness, pair[0])
    assert bool(event & ~WRITABLE) or not asked & READABLE
    assert bool(event & ~READABLE) or not asked & WRITABLE


def test_the_end_of_a_pipe_is_told(readiness: Readiness) -> None:
    read, write = os.pipe()
    readiness.register(read, READABLE)
    assert told(readiness, read) == 0
    os.close(write)
    assert told(readiness, read) & ~WRITABLE
    readiness.unregister(read)
    os.close(read)


def test_what_was_closed_is_told_no_more_and_its_number_can_be_registered_again(readiness: Readiness) -> None:
    read, write = os.pipe()
    readiness.register(read, READABLE)
    os.write(write, b"x")
    os.close(read)
    assert told(readiness, read) == 0
    again, other = os.pipe()
    assert again == read  # the lowest number that is free
    readiness.register(again, READABLE)
    assert told(readiness, again) == 0
    os.write(other, b"x")
    assert told(readiness, again) == READABLE
    for fd in (write, again, other):
        os.close(fd)


def test_those_beyond_the_most_are_told_the_next_times(readiness: Readiness) -> None:
    pipes = [os.pipe() for _ in range(10)]
    for read, write in pipes:
        os.write(write, b"x")
        readiness.register(read, READABLE)
    polls = [readiness.poll(0, 3) for _ in range(4)]
    assert [len(each) for each in polls] == [3] * 4
    assert {fd for ready in polls for fd, _ in ready} == {read for read, _ in pipes}
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)


def test_it_waits_as_long_as_it_was_told_to(readiness: Readiness, pair: Pair) -> None:
    readiness.register(pair[0].fileno(), READABLE)
    began_s = time.monotonic()
    assert readiness.poll(0.0125, 10) == []
    assert time.monotonic() - began_s >= 0.0125


def test_without_a_limit_it_waits_until_something_comes(readiness: Readiness, pair: Pair) -> None:
    readiness.register(pair[0].fileno(), READABLE)
    threading.Timer(0.02, pair[1].send, (b"x",)).start()
    assert [fd for fd, _ in readiness.poll(None, 10)] == [pair[0].fileno()]
