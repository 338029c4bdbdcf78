"""Which partition of a coordinator's topic a group or a transactional id belongs to, by Kafka's hash."""

from __future__ import annotations

from functools import lru_cache

_NO_ABSOLUTE = -(1 << 31)
SHORT, MOST_REMEMBERED = 64, 2_000
"""Of keys up to this many characters, so many hashes are remembered, some 300 kB: each request asks for one or two."""


def java_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 units, as a signed 32-bit integer."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group id, or a transactional id, belongs to.

    The hash's absolute value counts, unlike in a producer's choice, which takes the sign bit away; of the hash that has
    none in 32 bits it is 0. Source: Utils.abs of Apache Kafka.
    """
    value = _hash_of_short(key) if len(key) <= SHORT else java_hash(key)
    return 0 if value == _NO_ABSOLUTE else abs(value) % partitions


_hash_of_short = lru_cache(MOST_REMEMBERED)(java_hash)
