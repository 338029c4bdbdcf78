"""The hash by which Kafka's producers choose a partition for a key."""

from __future__ import annotations


def murmur2(data: bytes) -> int:
    """The 32 bits by which Kafka's default partitioner chooses: MurmurHash2 with seed 0x9747b28c (KIP-480)."""
    mask, multiplier, size = 0xFFFFFFFF, 0x5BD1E995, len(data)
    value = (0x9747B28C ^ size) & mask
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if whole < size:
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15
