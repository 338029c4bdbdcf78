"""What becomes of this broker's replicas, told to the parts whose state depends on leading a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition


class RoleChanged(NamedTuple):
    """A partition that this broker leads, follows or has given up as of now: for coordinators to load or unload.

    is_leader: also told when it was so before, in an older leader epoch. False too when its log directory went offline.
    """

    partition: Partition
    leader_epoch: int
    is_leader: bool


class InSyncProposed(NamedTuple):
    """A partition led here wants another in-sync set: `partition.proposal`, for the controller."""

    partition: Partition
