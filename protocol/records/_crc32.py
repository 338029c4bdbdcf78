"""The tables of CRC-32: for `_converter`, which takes by them what the processor cannot fold (`_folding.pxd`)."""

from __future__ import annotations

from array import array


def _crc32_table() -> array[int]:
    """Sixteen tables of CRC-32, one behind the other: the k-th advances a byte over k more that are zero."""
    table = array("I", bytes(16 * 256 * 4))
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        table[byte] = crc
    for slot in range(256, 16 * 256):
        before = table[slot - 256]
        table[slot] = (before >> 8) ^ table[before & 0xFF]
    return table


CRC32_TABLE = _crc32_table()
