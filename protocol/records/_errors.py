"""The one error that everything under protocol.records raises about bytes it was handed.

Callers map `fault` to the error code of their answer; its numbers are Kafka's own error codes. What a caller of ours
does wrong (a negative position, a codec that was never registered on the way out) is an assert or a ValueError instead.
"""

from __future__ import annotations

from enum import IntEnum


class Fault(IntEnum):
    """What is wrong with the records, numbered as the error code that a broker answers with."""

    CORRUPT_MESSAGE = 2  # sizes, magic, checksum or compressed bytes that cannot be what was sent
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87  # the checksum may hold, the content does not parse or breaks a rule


class RecordError(Exception):
    """Records that cannot be accepted, and where.

    fault: which error code to answer. position: byte position in the buffer that was being read; for records inside a
    compressed batch, in its decompressed bytes. reason: for people. index: which record of the batch, None if it is
    not about one.
    """

    def __init__(self, fault: Fault, position: int, reason: str, index: int | None = None) -> None:
        super().__init__(fault, position, reason, index)
        self.fault = fault
        self.position = position
        self.reason = reason
        self.index = index

    def __str__(self) -> str:
        which = "" if self.index is None else f", record {self.index}"
        return f"{self.fault.name} at byte {self.position}{which}: {self.reason}"


class TornBatchError(RecordError):
    """The buffer ends inside a batch: usual at the end of a fetch response or of a log that a crash cut off.

    missing: how many more bytes there must be at least.
    """

    def __init__(self, position: int, reason: str, missing: int) -> None:
        super().__init__(Fault.CORRUPT_MESSAGE, position, reason)
        self.missing = missing

    def __reduce__(self) -> tuple[type[TornBatchError], tuple[int, str, int]]:
        return TornBatchError, (self.position, self.reason, self.missing)
