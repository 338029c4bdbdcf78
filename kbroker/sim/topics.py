"""The topics of a simulated world, as clients and checks know them before they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Topic(NamedTuple):
    """A topic that a world has from its beginning. configs: topic settings as an operator writes them."""

    name: str
    partitions: int
    configs: Mapping[str, str] = {}

    @property
    def forgets(self) -> bool:
        """Whether retention may take records away."""
        return any(key.startswith("retention.") for key in self.configs)

    @property
    def is_flushed_first(self) -> bool:
        """Whether nobody is told of a record before it is durable."""
        return self.configs.get("flush.messages") == "1"
