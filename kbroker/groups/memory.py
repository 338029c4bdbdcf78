"""How much groups hold: what their members say of themselves, and the offsets that are committed for them.

Asked by shard.py before a member joins or offsets are written. A member brings as much metadata as a request has room
for, a commit as much text, and a client makes as many groups as it likes. Nothing is booked: what is there is added up
now and then, by the address of the client, so that nothing that is forgotten can stay in the account. Offsets are their
last committer's; those that were read from the log have no known owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kbroker.config import BrokerConfig
from kbroker.config.limits import GROUP_METADATA_BYTES, GROUP_SHARE
from kbroker.groups.classic_group import GROUP_BYTES, MEMBER_BYTES, ClassicGroup, Member
from kbroker.groups.group import Group
from kbroker.groups.offsets import Commit, GroupOffsets, TopicPartition
from protocol.messages.groups import JoinGroupRequest

OFFSET_BYTES = 400  # of the object itself
COUNT_AGAIN_MS = 1_000  # while it is too much, it is added up this often at most


class GroupMemory:
    """The account of all groups of a broker. groups: those that there are. held_bytes: by all of them, about."""

    def __init__(self, groups: Callable[[], Iterable[Group]], config: BrokerConfig) -> None:
        self._groups = groups
        self._most_bytes = max(GROUP_METADATA_BYTES, config.queued_max_request_bytes // GROUP_SHARE)
        self._by_host: Counter[str] = Counter()  # when it was added up, and what was admitted since
        self._counted_ms: int | None = None
        self.held_bytes = 0

    def admits(self, host: str, size_bytes: int, now_ms: int) -> bool:
        """Whether so much more may be held for clients of this address: it may be less than others have on average."""
        if size_bytes and self.held_bytes + size_bytes > self._most_bytes:
            if self._counted_ms is None or now_ms >= self._counted_ms + COUNT_AGAIN_MS:
                self._count(now_ms)
            share = self.held_bytes // max(len(self._by_host), 1)
            if self.held_bytes + size_bytes > self._most_bytes and self._by_host[host] + size_bytes > share:
                return False
        self._by_host[host] += size_bytes
        self.held_bytes += size_bytes
        return True

    def _count(self, now_ms: int) -> None:
        by_host = self._by_host = Counter()
        for group in self._groups():
            by_host[group.committed_from] += offset_bytes(group.offsets)
            for host, size_bytes in group.held():
                by_host[host] += size_bytes
        self.held_bytes = by_host.total()
        self._counted_ms = now_ms


def join_bytes(group: ClassicGroup | None, request: JoinGroupRequest) -> int:
    """What would be held for the sender of this beyond what is. A member that joins again takes its own place."""
    said = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    before = None if group is None else _member_of(group, request)
    if before is not None:
        return max(said - before.said_bytes, 0)
    return GROUP_BYTES + MEMBER_BYTES + len(request.group_id) + len(request.group_instance_id or "") + said


def _member_of(group: ClassicGroup, request: JoinGroupRequest) -> Member | None:
    """The member that sends this; a static one comes back without its id."""
    return group.members.get(request.member_id or group.member_of(request.group_instance_id) or "")


def offset_bytes(offsets: GroupOffsets) -> int:
    """What a group's offsets hold, with those that are on their way."""
    return sum(OFFSET_BYTES + len(commit.metadata) for commit in offsets.all())


def commit_bytes(group: Group | None, group_id: str, commits: Mapping[TopicPartition, Commit]) -> int:
    """What would be held for a commit beyond what is. An offset that is there takes the place of an older one."""
    size = 0 if group is not None else GROUP_BYTES + len(group_id)
    before = {} if group is None else group.offsets.committed
    for where, commit in commits.items():
        old = before.get(where)
        if old is None:
            size += OFFSET_BYTES + len(commit.metadata)
        else:
            size += max(len(commit.metadata) - len(old.metadata), 0)
    return size
