"""The share coordinator of a broker: finds the shard that keeps a share-partition's state, and asks it (KIP-932).

Each function is about one share-partition, and `call` gets a part of a response: the API handlers put together what a
request names (`api/share_group_state.py`), and a leader on this broker asks for its own (`broker/share_state.py`).
Nothing here looks into the log, the metadata or the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kbroker.coordinator import Operation
from protocol.errors import ErrorCode
from protocol.messages.share_group_state import (
    InitializeStatePartition,
    ReadStatePartition,
    ReadStatePartitionResult,
    StatePartitionResult,
    StateSummaryPartitionResult,
    WriteStatePartition,
)

if TYPE_CHECKING:
    from kbroker.coordinator import Effect, Runtime
    from kbroker.coordinator.effects import Call
    from kbroker.share.share_records import Place
    from kbroker.share.share_shard import ShareShard
    from protocol.message import Message


class ShareCoordinator:
    """All states on a broker. runtime: of __share_group_state, with a shard for each partition led here."""

    def __init__(self, runtime: Runtime[ShareShard]) -> None:
        self.runtime = runtime

    def initialize(self, place: Place, said: InitializeStatePartition, call: Call, now_ms: int) -> list[Effect]:
        """InitializeShareGroupState."""
        shard, operation = self._find(place, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(call, refused(place, shard))
        else:
            shard.initialize(operation, place, said.state_epoch, said.start_offset, call)
        return operation.effects

    def read(self, place: Place, said: ReadStatePartition, call: Call, now_ms: int) -> list[Effect]:
        """ReadShareGroupState."""
        shard, operation = self._find(place, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(call, read_refused(place, shard))
        else:
            shard.read(operation, place, said.leader_epoch, call)
        return operation.effects

    def write(self, place: Place, said: WriteStatePartition, call: Call, now_ms: int) -> list[Effect]:
        """WriteShareGroupState."""
        shard, operation = self._find(place, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(call, refused(place, shard))
        else:
            shard.write_state(operation, place, said, call)
        return operation.effects

    def delete(self, place: Place, call: Call, now_ms: int) -> list[Effect]:
        """DeleteShareGroupState."""
        shard, operation = self._find(place, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(call, refused(place, shard))
        else:
            shard.delete(operation, place, call)
        return operation.effects

    def summarize(self, place: Place, call: Call, now_ms: int) -> list[Effect]:
        """ReadShareGroupStateSummary."""
        shard, operation = self._find(place, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(call, summary_refused(place, shard))
        else:
            shard.summarize(operation, place, call)
        return operation.effects

    def _find(self, place: Place, now_ms: int) -> tuple[ShareShard | ErrorCode, Operation]:
        shard = self.runtime.find(place.coordinator_key)
        return shard, Operation(now_ms, None if isinstance(shard, ErrorCode) else shard)


def refused(place: Place, code: ErrorCode, message: str = "") -> Message:
    """What is said of a share-partition whose state was not initialized, written or deleted."""
    return cast(
        "Message",
        StatePartitionResult(partition=place.partition, error_code=code, error_message=message or code.message),
    )


def read_refused(place: Place, code: ErrorCode, message: str = "") -> Message:
    """What is said of a share-partition whose state was not read."""
    return cast(
        "Message",
        ReadStatePartitionResult(
            partition=place.partition,
            error_code=code,
            error_message=message or code.message,
            state_epoch=0,
            start_offset=0,
            state_batches=[],
        ),
    )


def summary_refused(place: Place, code: ErrorCode, message: str = "") -> Message:
    """What is said of a share-partition whose state was not summarized."""
    return cast(
        "Message",
        StateSummaryPartitionResult(
            partition=place.partition,
            error_code=code,
            error_message=message or code.message,
            state_epoch=0,
            leader_epoch=0,
            start_offset=0,
            delivery_complete_count=-1,
        ),
    )
