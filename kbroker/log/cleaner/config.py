"""The cleaner's settings, as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

_LEAST_CHUNK_BYTES = 64 << 10  # of a segment, read at once: less only makes more calls


class CleanerConfig(NamedTuple):
    """Broker settings of the same meaning, log.cleaner.*; defaults as in Apache Kafka 3.9."""

    enable: bool = True
    threads: int = 1
    backoff_ms: int = 15_000
    dedupe_buffer_size: int = 128 << 20  # bytes, all threads together
    io_buffer_size: int = 512 << 10  # bytes, all threads together
    load_factor: float = 0.9  # log.cleaner.io.buffer.load.factor
    max_bytes_per_second: float = float("inf")

    @classmethod
    def of(cls, broker: BrokerConfig) -> CleanerConfig:
        """The same from a broker's resolved settings."""
        return cls(
            enable=broker.log_cleaner_enable,
            threads=broker.log_cleaner_threads,
            backoff_ms=broker.log_cleaner_backoff_ms,
            dedupe_buffer_size=broker.log_cleaner_dedupe_buffer_size,
            io_buffer_size=broker.log_cleaner_io_buffer_size,
            load_factor=broker.log_cleaner_io_buffer_load_factor,
            max_bytes_per_second=broker.log_cleaner_io_max_bytes_per_second,
        )

    @property
    def map_bytes(self) -> int:
        """Memory for the keys of one log."""
        return self.dedupe_buffer_size // max(1, self.threads)

    @property
    def chunk_bytes(self) -> int:
        """How much of a segment is read at once."""
        return max(_LEAST_CHUNK_BYTES, self.io_buffer_size // max(1, self.threads))
