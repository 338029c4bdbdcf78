"""What a member of a quorum's cluster hears of the quorum, told to the other parts as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.message import Message


class Committed(NamedTuple):
    """Records of the metadata log that are committed, in order; control records are left out.

    offset, epoch: of the last record in it. A snapshot comes in pieces: with the first (is_first) a new image begins,
    its offset is that of the last record that the snapshot stands for, and what was known before counts no more until
    is_last. Of the log, each piece is a first and a last one. timestamp: ms, when the leader wrote the last of them.
    """

    records: Sequence[Message]
    offset: int
    epoch: int
    timestamp: int
    is_snapshot: bool = False
    is_first: bool = True
    is_last: bool = True


class LeaderChanged(NamedTuple):
    """Another controller leads the quorum, or its address is another. leader_id: -1 while none is known."""

    leader_id: int
    epoch: int


class Registered(NamedTuple):
    """This broker is registered, with this broker epoch."""

    broker_epoch: int


class LeftCluster(NamedTuple):
    """Nothing is led here any more, and controllers say that this broker may stop."""
