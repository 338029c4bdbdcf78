"""The topics of a simulated world, as clients and checks know them before they ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.namedtuple import NamedTuple


class Topic(NamedTuple):
    """A topic that a world has from its beginning. configs: topic settings as an operator writes them."""

    name: str
    partitions: int
    configs: Mapping[str, str] = {}
    mortal: bool = False  # whether an admin may delete it, and make it again
    replicas: int = 1
    assignment: Sequence[Sequence[int]] = ()  # broker ids of each partition; (): the controller chooses

    @property
    def forgets(self) -> bool:
        """Whether retention may take records away."""
        return self.configs.get("retention.bytes", "-1") != "-1" or self.configs.get("retention.ms", "-1") != "-1"

    @property
    def is_compacted(self) -> bool:
        """Whether of each key the last record stays, and DeleteRecords is refused."""
        return self.configs.get("cleanup.policy") == "compact"

    @property
    def is_flushed_first(self) -> bool:
        """Whether no client is told of a record before it is durable."""
        return self.configs.get("flush.messages") == "1"

    @property
    def tunable(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Settings that an admin may change, and to what."""
        flushes = () if self.is_flushed_first else WHERE_FLUSHED_LATER
        return [*ANYWHERE, *flushes, *(WHERE_FORGOTTEN if self.forgets else ())]


ANYWHERE = (
    ("segment.bytes", ("1000", "2000", "20000", "1000000")),
    ("message.timestamp.type", ("CreateTime", "LogAppendTime")),
)
WHERE_FLUSHED_LATER = (("flush.messages", ("1", "10", "9223372036854775807")),)
WHERE_FORGOTTEN = (("retention.bytes", ("1", "3000", "-1")), ("retention.ms", ("1", "5000", "-1")))
