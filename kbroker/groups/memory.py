"""How much groups hold of what their members say of themselves, and whether a client may have more held.

Asked by shard.py before a member joins. A member brings as much metadata as a request has room for, and a client makes
as many groups and members as it likes. Nothing is booked: what is there is added up now and then, by the address of the
client, so that nothing that is forgotten can stay in the account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kbroker.config.limits import GROUP_METADATA_BYTES
from kbroker.groups.group import Group, Member
from protocol.messages.groups import JoinGroupRequest

GROUP_BYTES, MEMBER_BYTES = 2_000, 1_000  # of the objects themselves
COUNT_AGAIN_MS = 1_000  # while it is too much, it is added up this often at most


class MemberMemory:
    """The account of all groups of a broker. groups: those that there are."""

    def __init__(self, groups: Callable[[], Iterable[Group]]) -> None:
        self._groups = groups
        self._by_host: Counter[str] = Counter()  # when it was added up, and what was admitted since
        self._total = 0
        self._counted_ms: int | None = None

    def admits(self, host: str, size_bytes: int, now_ms: int) -> bool:
        """Whether so much more may be held for clients of this address: it may be less than others have on average."""
        if self._total + size_bytes > GROUP_METADATA_BYTES:
            if self._counted_ms is None or now_ms >= self._counted_ms + COUNT_AGAIN_MS:
                self._count(now_ms)
            share = self._total // max(len(self._by_host), 1)
            if self._total + size_bytes > GROUP_METADATA_BYTES and self._by_host[host] + size_bytes > share:
                return False
        self._by_host[host] += size_bytes
        self._total += size_bytes
        return True

    def _count(self, now_ms: int) -> None:
        by_host = self._by_host = Counter()
        for group in self._groups():
            by_host[""] += GROUP_BYTES + len(group.group_id) + MEMBER_BYTES * len(group.pending_members)
            for member in group.members.values():
                by_host[member.client_host] += member_bytes(member)
        self._total = by_host.total()
        self._counted_ms = now_ms


def member_bytes(member: Member) -> int:
    """What a member holds."""
    said = sum(len(name) + len(metadata) for name, metadata in member.protocols)
    return MEMBER_BYTES + len(member.member_id) + len(member.instance_id or "") + len(member.assignment) + said


def join_bytes(request: JoinGroupRequest) -> int:
    """What would be held for whoever sends this."""
    said = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    return GROUP_BYTES + MEMBER_BYTES + len(request.group_id) + len(request.group_instance_id or "") + said
