"""One connection over real sockets: frames in, answers out in order, whatever the network and the reader do."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from kbroker.channel import Channel
from kbroker.config.limits import (
    ANSWER_BYTES_PER_CONNECTION,
    PARKED_BYTES,
    REQUESTS_IN_FLIGHT_PER_CONNECTION,
    REQUESTS_PER_LOOP_TURN,
)
from kbroker.ports import Region
from kbroker.runtime import transport
from kbroker.runtime.connection import PORTION_BYTES, REGION_BYTES, REGIONS_PER_TURN, SMALL_REGIONS_BYTES
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.server import SHARED_MS
from kbroker.runtime.transport import WantReadError, WantWriteError
from tests.frames import framed
from tests.runtime.loopback import LIMITS, Loopback, running
from tests.runtime.veiled_transport import VeiledTransport


@pytest.fixture
def here() -> Iterator[Loopback]:
    with running() as loopback:
        yield loopback


def region(here: Loopback, tmp_path: Path, size: int) -> bytes:
    """A file for the stub's answers; returns what is in it."""
    content = os.urandom(1024) * (size // 1024)
    (tmp_path / "log").write_bytes(content)
    here.core.region = Region(SystemDisk().open(str(tmp_path / "log"), "write"), 0, size)
    return content


# -- frames in


def test_a_frame_that_comes_byte_by_byte_is_answered(here: Loopback) -> None:
    client = here.connect()
    for byte in framed(b"echo"):
        here.send_bytes(client, bytes([byte]))
        here.turn()
    assert here.answers(client, 1) == [b"echo"]


def test_pipelined_frames_are_answered_in_order(here: Loopback) -> None:
    client = here.connect()
    frames = [b"e%d" % number for number in range(1000)]
    here.send(client, *frames)
    assert here.answers(client, 1000) == frames


def test_a_frame_larger_than_any_buffer_comes_in_whole(here: Loopback) -> None:
    client = here.connect()
    large = b"e" + os.urandom(900_000)
    here.send(client, b"e1", large, b"e2")
    assert here.answers(client, 3) == [b"e1", large, b"e2"]


def test_what_came_before_a_size_no_frame_may_have_is_handled(here: Loopback) -> None:
    client = here.connect()
    here.send_bytes(client, framed(b"e") * 100 + struct.pack(">i", -1) + b"and more")
    here.await_close(client)
    assert here.core.seen == [b"e"] * 100


def test_an_answer_that_comes_later_waits_in_its_place(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"p1", b"p2")
    here.until(lambda: len(here.core.seen) == 2)
    here.core.answer(here.core.channels[0], 2)
    here.server.settle()
    assert here.answers(client, 2) == [b"p1", b"p2"]


@pytest.mark.parametrize(("size", "said"), [(-1, "not negative"), (-(2**31), "not negative"), (2**31 - 1, "at most")])
def test_a_size_no_frame_may_have_closes_with_one_line(
    here: Loopback, size: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = here.connect()
    here.send_bytes(client, struct.pack(">i", size) + b"and more")
    here.await_close(client)
    assert [said in line.getMessage() for line in caplog.records if line.name == "kbroker.server"] == [True]


def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_nothing_behind(here: Loopback) -> None:
    client = here.connect()
    here.send_bytes(client, struct.pack(">i", 500_000) + bytes(1000))
    here.turn(3)
    client.close()
    here.until(lambda: here.core.gone != [])
    assert (here.server._connections, here.server._gathered_bytes) == ({}, 0)


def test_after_a_hang_up_nothing_more_is_handled(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"e1", b"x", *[b"e2"] * 100)
    here.await_close(client)
    assert here.core.seen == [b"e1", b"x"]


def test_an_unforeseen_failure_costs_the_connection_and_no_other(
    here: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = here.connect(), here.connect()
    here.send(client, b"!")
    here.await_close(client)
    here.send(other, b"e")
    assert here.answers(other, 1) == [b"e"]


# -- half a close


def test_a_client_that_only_stops_sending_gets_all_that_was_answered(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    large = b"e" + os.urandom(900_000)
    here.send(client, *[large] * 8)
    client.shutdown(socket.SHUT_WR)
    here.turn(50)
    assert here.answers(client, 8) == [large] * 8
    here.await_close(client)


def test_a_client_that_only_stops_sending_and_never_reads_is_idle(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    here.send(client, *[b"p", *[b"e" + bytes(900_000)] * 8])
    client.shutdown(socket.SHUT_WR)
    here.turn(50)
    here.clock.ms += 60_000
    here.server.sweep()
    assert len(here.core.gone) == 1


def test_a_client_that_is_gone_is_forgotten_with_answers_unsent(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    here.send(client, *[b"e" + bytes(900_000)] * 8)
    here.turn(50)
    client.close()
    here.until(lambda: len(here.core.gone) == 1)


# -- back-pressure and fairness


def test_beyond_the_requests_in_flight_the_socket_is_not_read_until_one_is_answered(here: Loopback) -> None:
    client = here.connect()
    here.send(client, *[b"p"] * (REQUESTS_IN_FLIGHT_PER_CONNECTION + 10))
    here.until(lambda: len(here.core.seen) == REQUESTS_IN_FLIGHT_PER_CONNECTION)
    here.send(client, b"p")
    here.turn(20)
    assert len(here.core.seen) == REQUESTS_IN_FLIGHT_PER_CONNECTION


def test_with_each_answer_that_leaves_one_request_more_is_handled(here: Loopback) -> None:
    client = here.connect()
    count = REQUESTS_IN_FLIGHT_PER_CONNECTION + 10
    here.send(client, *[b"p%d" % number for number in range(count)])
    here.until(lambda: len(here.core.seen) == REQUESTS_IN_FLIGHT_PER_CONNECTION)
    for number in range(count):
        here.until(lambda: bool(here.core.channels[0].pending))
        here.core.answer(here.core.channels[0])
        here.server.settle()
        assert here.answers(client, 1) == [b"p%d" % number]


def test_a_request_that_was_held_back_is_told_the_time_at_which_it_is_handled(here: Loopback) -> None:
    client = here.connect()
    here.send(client, *[b"p"] * (REQUESTS_IN_FLIGHT_PER_CONNECTION + 1))
    here.until(lambda: len(here.core.seen) == REQUESTS_IN_FLIGHT_PER_CONNECTION)
    here.clock.ms += 30_000
    here.core.answer(here.core.channels[0])
    here.server.settle()
    here.until(lambda: len(here.core.seen) > REQUESTS_IN_FLIGHT_PER_CONNECTION)
    assert here.core.seen_ms[-1] == here.clock.ms


def test_a_client_that_does_not_read_is_not_read_either(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    rest = memoryview(framed(b"e" + bytes(1_000_000)) * 60)
    blocked = 0
    while rest and blocked < 50:
        here.turn()
        try:
            rest = rest[client.send(rest) :]
            blocked = 0
        except BlockingIOError:
            blocked += 1
    assert len(here.core.seen) <= ANSWER_BYTES_PER_CONNECTION // 1_000_000 + 8  # and what the kernel holds of each way


def test_small_answers_without_end_do_not_count_as_unread(here: Loopback) -> None:
    client = here.connect()
    answer = b"e" + bytes(100_000)
    for _ in range(ANSWER_BYTES_PER_CONNECTION // 100_000 + 10):
        here.send(client, answer)
        here.answers(client, 1)
    assert here.core.channels[0].unsent_bytes == 0


def test_one_connection_has_only_so_many_requests_handled_in_a_turn(here: Loopback) -> None:
    client, other = here.connect(), here.connect()
    here.send(client, *[b"e"] * 1000)
    here.send(other, b"emine")
    here.until(lambda: b"emine" in here.core.seen)
    assert here.core.seen.index(b"emine") <= 2 * REQUESTS_PER_LOOP_TURN


@pytest.mark.parametrize(("halvings", "in_a_turn"), [(0, 16), (1, 8), (4, 1)])
def test_a_turn_has_fewer_requests_while_turns_are_long(here: Loopback, halvings: int, in_a_turn: int) -> None:
    client, seen = here.connect(), []
    here.send(client, *[b"e"] * 100)
    for _ in range(4):
        here.server.loop.halvings = halvings
        here.turn()
        seen.append(len(here.core.seen))
    assert [after - before for before, after in pairwise(seen)] == [in_a_turn] * 3


def test_what_is_pipelined_is_kept_as_it_came(here: Loopback) -> None:
    client = here.connect()
    sent = 10_000
    here.send(client, *[b"p"] * sent)
    here.until(lambda: len(here.core.seen) == REQUESTS_IN_FLIGHT_PER_CONNECTION)
    (connection,) = here.server._connections.values()
    assert len(connection._backlog) <= REQUESTS_PER_LOOP_TURN
    assert connection.held_bytes <= sent * len(framed(b"p")) + REQUESTS_IN_FLIGHT_PER_CONNECTION * PARKED_BYTES


# -- answers out


def test_a_slow_reader_gets_every_byte(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    large = b"e" + os.urandom(1_000_000)
    here.send(client, large, b"e2", large)
    here.turn(10)
    assert here.answers(client, 3) == [large, b"e2", large]


def test_regions_are_sent_between_the_buffers_around_them(here: Loopback, tmp_path: Path) -> None:
    content = region(here, tmp_path, 5_000 * 1024)
    client = here.connect(receive_buffer_bytes=4096)
    here.send(client, b"e1", b"r", b"e2", b"r")
    assert here.answers(client, 4) == [b"e1", content, b"e2", content]


def test_a_small_region_leaves_in_one_call_with_what_is_around_it(
    here: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = region(here, tmp_path, SMALL_REGIONS_BYTES)
    monkeypatch.delattr(os, "sendfile")
    client = here.connect()
    here.send(client, b"e1", b"r", b"e2")
    assert here.answers(client, 3) == [b"e1", content, b"e2"]


def test_of_many_small_regions_few_are_held_in_memory(here: Loopback, tmp_path: Path) -> None:
    content = region(here, tmp_path, SMALL_REGIONS_BYTES // 2)
    client = here.connect(receive_buffer_bytes=4096)
    here.send(client, *[b"r"] * 100)
    here.until(lambda: len(here.core.seen) == 100)
    assert here.connection().held_bytes <= SMALL_REGIONS_BYTES + 100 * len(framed(b""))
    assert here.answers(client, 100) == [content] * 100


def test_a_small_region_that_is_cold_is_read_on_the_pool(here: Loopback, tmp_path: Path) -> None:
    content = region(here, tmp_path, SMALL_REGIONS_BYTES)
    client = here.connect()
    here.server.read_small = lambda region: None  # type: ignore[method-assign]
    here.server.is_resident = lambda region, size: False  # type: ignore[method-assign]
    here.send(client, b"e1", b"r")
    here.until(lambda: bool(here.pool.jobs))
    here.pool.work()
    assert here.answers(client, 2) == [b"e1", content]


def test_a_fast_reader_of_much_leaves_the_others_their_turn(here: Loopback, tmp_path: Path) -> None:
    region(here, tmp_path, 64 << 20)
    client = here.connect()
    sent: list[int] = []
    here.server.is_resident = lambda region, size: not sent.append(size)  # type: ignore[method-assign]
    here.send(client, b"r")
    here.until(lambda: b"r" in here.core.seen)
    assert sum(sent) <= REGIONS_PER_TURN * REGION_BYTES


@pytest.fixture
def sent(here: Loopback, monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(here, monkeypatch)


class Sent:
    """Readers that take all at once. events: what was handled, and the size of each portion, in their order.

    meanwhile: called while the next portion is being sent.
    """

    def __init__(self, here: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = here
        self.events: list[bytes | int] = []
        self.meanwhile: Callable[[], object] = lambda: None
        receive = here.core.receive

        def note(channel: Channel, frame: memoryview, now_ms: int) -> None:
            self.events.append(bytes(frame))
            receive(channel, frame, now_ms)

        def sendfile(out: int, file: int, position: int, size: int) -> int:
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            self.events.append(size)
            meanwhile()
            return size

        here.core.receive = note  # type: ignore[method-assign]
        monkeypatch.setattr(transport, "send_file", sendfile)

    def bytes(self) -> int:
        return sum(event for event in self.events if isinstance(event, int))

    def read(self, client: socket.socket, size: int) -> None:
        """The region, of this size, from its request to its last portion; the events are of this alone."""
        del self.events[:]
        self._here.send(client, b"r")
        self._here.until(lambda: self.bytes() == size)


def test_between_portions_of_a_region_those_who_wait_get_their_turn(here: Loopback, tmp_path: Path, sent: Sent) -> None:
    region(here, tmp_path, 4 << 20)
    client, other = here.connect(), here.connect()
    sent.meanwhile = lambda: here.send(other, b"e1")
    sent.read(client, 4 << 20)
    assert sent.events == [b"r", REGION_BYTES, b"e1", *[PORTION_BYTES] * (3 * REGION_BYTES // PORTION_BYTES)]


def test_who_waited_behind_the_only_portion_counts_for_the_next_answer(
    here: Loopback, tmp_path: Path, sent: Sent
) -> None:
    region(here, tmp_path, 1 << 20)
    here.core.tail = b"tail"
    client, other = here.connect(), here.connect()
    sent.meanwhile = lambda: here.send(other, b"e1")
    here.send(client, b"r")
    here.until(lambda: b"e1" in here.core.seen)
    here.send(client, b"r")
    here.until(lambda: sent.bytes() == 2 << 20)
    small = [PORTION_BYTES] * (REGION_BYTES // PORTION_BYTES)
    assert sent.events == [b"r", REGION_BYTES, b"e1", b"r", *small]


def test_portions_are_large_again_once_nobody_waited_for_a_while(here: Loopback, tmp_path: Path, sent: Sent) -> None:
    region(here, tmp_path, 2 << 20)
    client, other = here.connect(), here.connect()
    sent.meanwhile = lambda: here.send(other, b"e1")
    sent.read(client, 2 << 20)
    here.clock.ms += SHARED_MS
    sent.read(client, 2 << 20)
    assert sent.events == [b"r", REGION_BYTES, REGION_BYTES]


def test_behind_the_turn_of_many_as_many_portions_leave(here: Loopback, tmp_path: Path, sent: Sent) -> None:
    region(here, tmp_path, 4 << 20)
    client, others = here.connect(), [here.connect() for _ in range(5)]

    def all_and_again() -> None:
        for other in others:
            here.send(other, b"e1")
        sent.meanwhile = all_and_again

    sent.meanwhile = all_and_again
    sent.read(client, 4 << 20)
    turn, portions = [b"e1"] * 5, [PORTION_BYTES] * 6
    assert sent.events[:18] == [b"r", REGION_BYTES, *turn, *portions, *turn]


def test_readers_of_much_do_not_wait_for_each_other_between_portions(
    here: Loopback, tmp_path: Path, sent: Sent
) -> None:
    region(here, tmp_path, 2 << 20)
    client, other = here.connect(), here.connect()
    sent.read(other, 2 << 20)
    del sent.events[:]
    sent.meanwhile = lambda: here.send(other, b"e1")
    here.send(client, b"r")
    here.until(lambda: b"e1" in here.core.seen)
    assert sent.events == [b"r", REGION_BYTES, REGION_BYTES, b"e1"]


def test_who_read_much_once_counts_again_after_a_sweep(here: Loopback, tmp_path: Path, sent: Sent) -> None:
    region(here, tmp_path, 2 << 20)
    client, other = here.connect(), here.connect()
    sent.read(other, 2 << 20)
    here.server.sweep()
    sent.meanwhile = lambda: here.send(other, b"e1")
    sent.read(client, 2 << 20)
    assert sent.events[:3] == [b"r", REGION_BYTES, b"e1"]


def test_a_client_that_is_closed_while_others_have_their_turn_is_sent_no_more(
    here: Loopback, tmp_path: Path, sent: Sent
) -> None:
    region(here, tmp_path, 2 << 20)
    client, other = here.connect(), here.connect()
    sent.meanwhile = lambda: here.send(other, b"e1")
    here.send(client, b"r")
    here.until(lambda: REGION_BYTES in sent.events)
    here.connection(0).close("")
    here.until(lambda: b"e1" in here.core.seen)
    here.turn(3)
    assert sent.events == [b"r", REGION_BYTES, b"e1"]


def test_a_cold_region_is_read_on_the_pool_and_then_sent(here: Loopback, tmp_path: Path) -> None:
    content = region(here, tmp_path, 3 << 20)
    client = here.connect()
    here.server.is_resident = lambda region, size: False  # type: ignore[method-assign]
    here.send(client, b"r")
    for _ in range(3):
        here.until(lambda: bool(here.pool.jobs))
        here.pool.work()
    assert here.answers(client, 1) == [content]


def test_a_cold_region_stalls_nobody_else(here: Loopback, tmp_path: Path) -> None:
    region(here, tmp_path, 1 << 20)
    client, other = here.connect(), here.connect()
    here.server.is_resident = lambda region, size: False  # type: ignore[method-assign]
    here.send(client, b"r", b"ebehind")
    here.until(lambda: bool(here.pool.jobs))
    here.send(other, b"e")
    assert here.answers(other, 1) == [b"e"]


def test_a_client_that_goes_during_a_cold_read_is_forgotten(here: Loopback, tmp_path: Path) -> None:
    region(here, tmp_path, 1 << 20)
    client = here.connect()
    here.server.is_resident = lambda region, size: False  # type: ignore[method-assign]
    here.send(client, b"r")
    here.until(lambda: bool(here.pool.jobs))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a killed process
    client.close()
    here.until(lambda: here.core.gone != [])
    here.pool.work()
    assert here.server._connections == {}


def test_a_client_that_ends_during_a_cold_read_gets_the_answer(here: Loopback, tmp_path: Path) -> None:
    content = region(here, tmp_path, 1 << 20)
    client = here.connect()
    here.server.is_resident = lambda region, size: False  # type: ignore[method-assign]
    here.send(client, b"r")
    here.until(lambda: bool(here.pool.jobs))
    client.shutdown(socket.SHUT_WR)
    here.turn(5)
    here.pool.work()
    assert here.answers(client, 1) == [content]
    here.until(lambda: here.server._connections == {})


def test_a_file_cut_while_it_is_sent_closes_the_connection_with_one_line(
    here: Loopback, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    region(here, tmp_path, 8 << 20)
    client = here.connect(receive_buffer_bytes=4096)
    here.send(client, b"r")
    here.until(lambda: b"r" in here.core.seen)
    (tmp_path / "log").open("r+b").truncate(1000)
    here.await_close(client)
    assert ["cut while it was being sent" in line.getMessage() for line in caplog.records] == [True]


def test_what_was_answered_before_a_hang_up_still_arrives(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    large = b"e" + bytes(900_000)
    here.send(client, large, b"x")
    assert here.answers(client, 1) == [large]


# -- memory


def test_an_idle_connection_gives_back_the_buffer_of_its_large_frames(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"e" + bytes(900_000))
    here.answers(client, 1)
    held = here.server._gathered_bytes
    here.clock.ms += 6_000
    here.server.sweep()
    assert (held >= 900_000, here.server._gathered_bytes, here.server._gathered) == (True, 0, {})


def test_a_frame_in_the_making_is_kept_while_its_client_is_quiet(here: Loopback) -> None:
    client = here.connect()
    frame = framed(b"e" + os.urandom(900_000))
    here.send_bytes(client, frame[:500_000])
    here.until(lambda: here.server._gathered_bytes > 0)
    here.turn(5)
    here.clock.ms += 6_000
    here.server.sweep()
    here.send_bytes(client, frame[500_000:])
    assert here.answers(client, 1) == [frame[4:]]


def test_unfinished_frames_are_bounded_over_all_connections() -> None:
    with running(LIMITS._replace(held_bytes=3_000_000)) as here:
        clients = [here.connect() for _ in range(6)]
        for client in clients:
            here.send_bytes(client, struct.pack(">i", 1 << 20) + bytes(800_000))
            here.turn(20)
        assert sum(each.held_bytes for each in here.server._connections.values()) <= 3_000_000 * 17 // 16
        assert len(here.core.gone) >= 3


def test_who_holds_most_goes_and_not_the_next_to_come() -> None:
    with running(LIMITS._replace(held_bytes=1_000_000)) as here:
        hoarder, other = here.connect(), here.connect()
        here.send_bytes(hoarder, struct.pack(">i", 1 << 20) + bytes(900_000))
        here.turn(20)
        here.send(other, b"e" + bytes(400_000))
        answered = len(here.answers(other, 1)[0])
        assert (answered, len(here.core.gone)) == (400_001, 1)


@pytest.mark.parametrize(("held_bytes", "gone"), [(-1, 1), (2_000_000, 0)])  # as Kafka ships it: one account of all
def test_what_groups_and_sessions_hold_leaves_less_for_connections(
    held_bytes: int, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.runtime.server.HELD_BYTES", 3_000_000)
    with running(LIMITS._replace(held_bytes=held_bytes)) as here:
        here.core.effects.held_bytes = 2_500_000
        here.send_bytes(here.connect(), struct.pack(">i", 1 << 20) + bytes(900_000))
        here.turn(20)
        assert len(here.core.gone) == gone


def test_answers_that_are_not_read_count() -> None:
    with running(LIMITS._replace(held_bytes=3_000_000)) as here:
        for _ in range(8):
            here.send(here.connect(receive_buffer_bytes=4096), b"e" + bytes(900_000))
            here.turn(20)
        assert sum(each.held_bytes for each in here.server._connections.values()) <= 3_000_000 * 17 // 16


# -- through another transport than the socket


def veiled(here: Loopback, receive_buffer_bytes: int = 0) -> VeiledTransport:
    """A client of a listener whose connections go through such a one."""
    here.listen("VEILED", transport=VeiledTransport)
    return VeiledTransport(here.connect("VEILED", receive_buffer_bytes), is_client=True)


def exchange(here: Loopback, client: VeiledTransport, data: bytes, expected: bytes) -> None:
    """Both sides send what they have, as they can."""
    rest, got, view = memoryview(data), bytearray(), memoryview(bytearray(1 << 16))

    def is_over() -> bool:
        nonlocal rest
        with suppress(BlockingIOError):
            while rest:
                rest = rest[client.send(rest) :]
        with suppress(BlockingIOError):
            while size := client.recv_into(view):
                got.extend(view[:size])
        return not rest and len(got) >= len(expected)

    here.until(is_over)
    assert got == expected


def test_frames_go_through_a_transport_that_speaks_with_its_peer(here: Loopback) -> None:
    client = veiled(here)
    frames = b"".join(framed(b"e" + os.urandom(size)) for size in (1, 20_000, 700_000, *range(500)))
    exchange(here, client, frames, frames)
    assert cast(VeiledTransport, here.connection()._transport).wanted[WantWriteError]


def test_an_answer_to_a_client_that_says_nothing_waits_for_it(here: Loopback) -> None:
    """More is answered than may be sent before the client has been heard again."""
    client = veiled(here)
    exchange(here, client, framed(b"p1"), b"")
    here.until(lambda: here.core.seen == [b"p1"])
    here.core.channels[-1].pending[0] = cast(Any, b"p" * 8_500)
    here.core.answer(here.core.channels[-1])
    here.server.settle()
    here.turn(20)
    assert cast(VeiledTransport, here.connection()._transport).wanted[WantReadError] == 1
    exchange(here, client, framed(b"e2"), framed(b"p" * 8_500) + framed(b"e2"))


def test_a_region_is_read_where_files_cannot_be_sent(here: Loopback, tmp_path: Path) -> None:
    client = veiled(here, receive_buffer_bytes=4096)
    content = region(here, tmp_path, 3 * REGION_BYTES)
    answer = framed(content)
    exchange(here, client, framed(b"r") * 3 + framed(b"e"), answer * 3 + framed(b"e"))


def test_a_file_that_was_cut_ends_a_connection_that_reads_it(here: Loopback, tmp_path: Path) -> None:
    client = veiled(here)
    region(here, tmp_path, REGION_BYTES)
    os.truncate(tmp_path / "log", 1 << 18)
    exchange(here, client, framed(b"r"), b"")
    view = memoryview(bytearray(1 << 16))

    def is_over() -> bool:
        with suppress(BlockingIOError):
            return client.recv_into(view) == 0
        return False

    here.until(is_over)


def test_a_client_behind_a_transport_that_sends_no_more_is_let_go(here: Loopback) -> None:
    client = veiled(here)
    exchange(here, client, framed(b"e"), framed(b"e"))
    client.socket.shutdown(socket.SHUT_WR)
    here.until(lambda: len(here.core.gone) == 1)


# -- clients over a quota


def test_nothing_is_read_from_a_muted_connection_until_it_is_muted_no_more(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"e first")
    here.until(lambda: len(here.core.seen) == 1)
    (channel,) = here.core.channels
    muted = cast(Any, b"stands for a request")
    channel.muted = muted
    channel.pending.append(muted)
    here.core.effects.writes[channel] = None
    here.server.settle()
    before = here.server.bytes_in
    client.send(framed(b"e second"))
    here.turn(20)
    assert (len(here.core.seen), here.server.bytes_in) == (1, before)
    channel.muted = None
    channel.pending.clear()
    here.core.effects.writes[channel] = None
    here.server.settle()
    here.until(lambda: len(here.core.seen) == 2)
