"""The one error that everything under protocol.records raises about bytes it was handed.

It is a KafkaError, so what it says reaches the client that sent the bytes without being translated. What a caller
of ours does wrong (a negative position, a value that no client chose) is an assert or a ValueError instead.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError


class RecordError(KafkaError):
    """Records that cannot be accepted, and where.

    code: CORRUPT_MESSAGE for sizes, magic, checksums and compressed bytes that cannot be what was sent; INVALID_RECORD
    for content that does not parse; INVALID_TIMESTAMP; UNSUPPORTED_COMPRESSION_TYPE; UNSUPPORTED_FOR_MESSAGE_FORMAT for
    a format other than the one asked for; MESSAGE_TOO_LARGE for what would decompress past its limit.
    position: byte in the buffer that was being read, or in the decompressed bytes of a compressed batch.
    reason: for people. index: which record of the batch, None if it is not about one.
    """

    def __init__(self, code: ErrorCode, position: int, reason: str, index: int | None = None) -> None:
        which = "" if index is None else f", record {index}"
        super().__init__(code, f"{reason} (at byte {position}{which})")
        self.position = position
        self.reason = reason
        self.index = index

    def __reduce__(self) -> tuple[type[RecordError], tuple[ErrorCode, int, str, int | None]]:
        return RecordError, (self.code, self.position, self.reason, self.index)


class TornBatchError(RecordError):
    """The buffer ends inside a batch: usual at the end of a fetch response or of a log that a crash cut off.

    missing: how many more bytes there must be at least.
    """

    def __init__(self, position: int, reason: str, missing: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, position, reason)
        self.missing = missing

    def __reduce__(self) -> tuple[type[TornBatchError], tuple[int, str, int]]:  # type: ignore[override]
        return TornBatchError, (self.position, self.reason, self.missing)
