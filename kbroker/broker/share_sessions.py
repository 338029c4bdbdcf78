"""Share sessions: which partitions a member of a share group fetches from here, and in which order it asks (KIP-932).

Called by `api/share_fetch.py`, once when a request begins. A session belongs to a member and to the connection that it
was opened on: when that goes, the session goes, and what the member has acquired is given back. There are at most
`group.share.max.share.sessions`; there is no eviction, so a newcomer is told to come back.

Source: ShareSessionCache and SharePartitionManager of Apache Kafka 4.4, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kbroker.config.limits import PARTITIONS_PER_SHARE_SESSION
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Key: TypeAlias = tuple[bytes, int]
    """Topic id and partition."""

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
LARGEST_EPOCH = 2**31 - 1


class ShareSession:
    """One member's partitions here, in the order in which it named them. epoch: of the next request."""

    __slots__ = ("connection", "epoch", "group_id", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection: object) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[Key, None] = {}

    def rotated(self) -> list[Key]:
        """The partitions, beginning with another one for each request: no one starves."""
        keys = list(self.partitions)
        start = self.epoch % len(keys) if keys else 0
        return keys[start:] + keys[:start]


class ShareSessions:
    """The sessions of all members that fetch here."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[object, list[ShareSession]] = {}
        self._groups: dict[str, int] = {}  # how many each has

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, group_id: str, member_id: str) -> ShareSession | None:
        """A member's session."""
        return self._sessions.get((group_id, member_id))

    def has_any(self, group_id: str) -> bool:
        """Whether some member of a group has a session here."""
        return group_id in self._groups

    def open(
        self, group_id: str, member_id: str, partitions: Iterable[Key], connection: object, most: int
    ) -> ShareSession:
        """A new session of a member, in place of the one it had. Raises: KafkaError SHARE_SESSION_LIMIT_REACHED."""
        self.close(group_id, member_id)
        if len(self._sessions) >= most:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(group_id, member_id, connection)
        _add(session, partitions)
        self._sessions[group_id, member_id] = session
        self._of_connection.setdefault(connection, []).append(session)
        self._groups[group_id] = self._groups.get(group_id, 0) + 1
        return session

    def session_for_request(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """A member's session, for its next request. epoch: FINAL_EPOCH for one that ends it.

        Raises: KafkaError SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != FINAL_EPOCH:
            if session.epoch != epoch:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session.epoch = 1 if epoch == LARGEST_EPOCH else epoch + 1
        return session

    def change(self, session: ShareSession, named: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """A request of the session names more partitions, or drops some. Raises: KafkaError INVALID_REQUEST."""
        _add(session, named)
        for key in forgotten:
            session.partitions.pop(key, None)

    def close(self, group_id: str, member_id: str) -> ShareSession | None:
        """End a member's session; it, if there was one."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is None:
            return None
        of_connection = self._of_connection[session.connection]
        of_connection.remove(session)
        if not of_connection:
            del self._of_connection[session.connection]
        self._groups[group_id] -= 1
        if not self._groups[group_id]:
            del self._groups[group_id]
        return session

    def of(self, connection: object) -> list[ShareSession]:
        """The sessions that were opened on a connection."""
        return list(self._of_connection.get(connection, ()))


def _add(session: ShareSession, partitions: Iterable[Key]) -> None:
    session.partitions |= dict.fromkeys(partitions)
    if len(session.partitions) > PARTITIONS_PER_SHARE_SESSION:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"at most {PARTITIONS_PER_SHARE_SESSION} partitions in a share session"
        )
