"""Makes a damaged frame out of a good one. Draws from the given Random alone: the same seed gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

_BYTES = bytes((0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
_HOSTILE = tuple(
    bytes.fromhex(text)
    for text in (
        "7fff 8000 ffff 0000 0001 00ff",  # lengths of two bytes
        "7fffffff 80000000 ffffffff 00000000 00ffffff 0000ffff",  # of four
        "ffffffff07 ffffffff0f 8080808008 ffff03 ff7f 8000 808000 ffffffffff7f",  # varints: largest, too large, padded
        "ffffffffffffffffff01 80808080808080808000 ffffffffffffffffffff",
        "7fffffffffffffff ffffffffffffffff 8000000000000000",  # of eight
        "c328 edadbf f4908080",  # no UTF-8
    )
    for text in text.split()
)


def mutate(rng: Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    """One to four kinds of damage, one after the other; now and then bytes that never were a frame."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((0, 1, 2, 5, 20, 100, 1000)))
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choice(_KINDS)(rng, data, others)
    return bytes(data)


def _position(rng: Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _flip_bit(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(_BYTES)


def _overwrite(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    hostile, at = rng.choice(_HOSTILE), _position(rng, data)
    data[at : at + len(hostile)] = hostile


def _insert(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _position(rng, data)
    data[at:at] = rng.choice(_HOSTILE) if rng.random() < 0.5 else rng.randbytes(rng.randrange(1, 9))


def _delete(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _position(rng, data)
    del data[at : at + rng.choice((1, 1, 2, 4, 16))]


def _truncate(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[_position(rng, data) :]


def _repeat(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _position(rng, data)
    piece = data[at : at + rng.choice((1, 4, 16, 64))]
    data[at:at] = piece * rng.choice((1, 2, 30))


def _splice(rng: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    data[_position(rng, data) :] = other[rng.randrange(len(other) + 1) :]


_KINDS: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    _flip_bit,
    _set_byte,
    _overwrite,
    _overwrite,
    _insert,
    _delete,
    _truncate,
    _repeat,
    _splice,
)
