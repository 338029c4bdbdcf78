"""Frames out of a byte stream, however the stream is cut."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.frames import KEPT_BYTES, FrameDecoder, FrameError

bodies = st.lists(st.binary(max_size=300), max_size=8)


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def fed(decoder: FrameDecoder, *chunks: bytes) -> list[bytes]:
    return [bytes(frame) for chunk in chunks for frame in decoder.feed(memoryview(chunk))]


def test_whole_frames_are_views_on_the_buffer() -> None:
    buffer = bytearray(framed(b"one", b"", b"three"))
    frames = FrameDecoder(100).feed(memoryview(buffer))
    assert [bytes(frame) for frame in frames] == [b"one", b"", b"three"]
    assert all(frame.obj is buffer for frame in frames)


@given(bodies, st.lists(st.integers(1, 50), max_size=60))
def test_cuts_make_no_difference(frames: list[bytes], cuts: list[int]) -> None:
    stream, chunks, at = framed(*frames), [], 0
    for cut in cuts:
        chunks.append(stream[at : at + cut])
        at += cut
    assert fed(FrameDecoder(1000), *chunks, stream[at:]) == frames


def test_one_byte_at_a_time() -> None:
    stream = framed(b"abc", b"", b"defgh")
    assert fed(FrameDecoder(5), *(bytes([byte]) for byte in stream)) == [b"abc", b"", b"defgh"]


@given(st.binary(min_size=1, max_size=200_000), st.integers(1, 70_000))
def test_the_rest_may_be_received_in_place(body: bytes, most: int) -> None:
    decoder = FrameDecoder(1 << 20)
    frames = list(decoder.feed(memoryview(framed(body)[:5])))
    at = 1
    while (room := decoder.room()) is not None:
        count = min(most, len(room), len(body) - at)
        room[:count] = body[at : at + count]
        at += count
        frames += decoder.filled(count)
    assert [bytes(frame) for frame in frames] == [body]


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(FrameError, match=str(size)):
        FrameDecoder(100).feed(memoryview(size.to_bytes(4, "big", signed=True)))


def test_an_announcement_alone_takes_little_memory() -> None:
    decoder = FrameDecoder(100 << 20)
    tracemalloc.start()
    decoder.feed(memoryview((100 << 20).to_bytes(4, "big") + b"x"))
    decoder.room()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_stopping_inside_a_frame_shows() -> None:
    decoder = FrameDecoder(100)
    assert not decoder.midway
    decoder.feed(memoryview(framed(b"abc")[:2]))
    assert decoder.midway


def test_a_gathered_frame_reuses_the_last_ones_buffer() -> None:
    decoder = FrameDecoder(100)
    first = [decoder.feed(memoryview(framed(b"abcdef")[cut])) for cut in (slice(6), slice(6, None))][1][0]
    second = [decoder.feed(memoryview(framed(b"xyz")[cut])) for cut in (slice(5), slice(5, None))][1][0]
    assert bytes(second) == b"xyz"
    assert first.obj is second.obj
    assert decoder.release()
    assert not decoder.release()


def test_a_large_frame_keeps_the_buffer_it_was_gathered_in() -> None:
    decoder, body = FrameDecoder(100 << 20), b"f" * (KEPT_BYTES + 1)
    (first,) = [decoder.feed(memoryview(framed(body)[cut])) for cut in (slice(6), slice(6, None))][1]
    assert decoder.held_bytes == 0
    decoder.feed(memoryview(framed(b"xyz" * 1000)[:100]))
    assert first == body


def test_a_frame_just_gathered_is_not_overwritten_by_the_next_beginning() -> None:
    stream = framed(b"first!", b"second")
    decoder = FrameDecoder(100)
    decoder.feed(memoryview(stream[:6]))
    assert [bytes(frame) for frame in decoder.feed(memoryview(stream[6:16]))] == [b"first!"]
    assert [bytes(frame) for frame in decoder.feed(memoryview(stream[16:]))] == [b"second"]


def test_what_is_behind_so_many_frames_is_left_for_later() -> None:
    stream, decoder = memoryview(framed(*[b"a"] * 10, b"b")[:-1]), FrameDecoder(100)
    found = []
    while stream:
        frames = decoder.feed(stream, 4)
        found.append(len(frames))
        stream = decoder.rest
    assert (found, decoder.midway) == ([4, 4, 2], True)


@given(bodies, st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5))
def test_a_limit_on_frames_makes_no_difference(frames: list[bytes], cuts: list[int], most: int) -> None:
    stream, decoder, at, found = framed(*frames), FrameDecoder(1000), 0, []
    for cut in [*cuts, len(stream)]:
        rest = memoryview(stream)[at : at + cut]
        at += cut
        while rest:
            found += [bytes(frame) for frame in decoder.feed(rest, most)]
            rest = decoder.rest
    assert found == frames


def test_a_large_frame_grows_by_a_little_at_a_time_and_is_not_copied() -> None:
    decoder, most = FrameDecoder(100 << 20), 0
    decoder.feed(memoryview((50 << 20).to_bytes(4, "big") + b"x"))
    tracemalloc.start()
    while (room := decoder.room()) is not None:
        size, held = len(room), decoder.held_bytes
        del room
        most = max(most, size, tracemalloc.get_traced_memory()[1] - held)
        tracemalloc.reset_peak()
        decoder.filled(size)
    tracemalloc.stop()
    assert most <= (2 << 20) + (50 << 20) // 8  # which a bytearray has in reserve, untouched
