"""Who may do what: the one place that is asked for permission, whoever will say no.

Handlers ask for parts of a request (`require`); of a request that needs permission as a whole, the cluster's, its Route
says so (`needs`), and nobody has to ask. The answer is the authorizer's; without one, everybody may do everything, as
in Kafka. Operations and resources are those of Kafka's access rules, with the numbers that ACL requests and the fields
`authorized_operations` (KIP-430) use.

Unlike Kafka, what a client does with topics, groups and transactional ids is not asked for yet: there are no rules.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.broker.session import Session


log = logging.getLogger("kbroker.requests")


class Operation(IntEnum):
    """What somebody may want to do."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """What it may be done to."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of its type."""

DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT = Operation
OPERATIONS = {
    ResourceType.TOPIC: (_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    ResourceType.GROUP: (_READ, _DELETE, _DESCRIBE),
    ResourceType.CLUSTER: (_CREATE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT),
    ResourceType.TRANSACTIONAL_ID: (_WRITE, _DESCRIBE),
}
"""What can be done to each."""


class Authorizer(Protocol):
    """Whoever decides.

    has_rules: whether this is an authorizer as Kafka knows it, whose refusals show in authorized operations.
    """

    has_rules: bool

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the session's principal may do this, from where it is; as far as is known."""

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> Hashable | None:
        """A key of the purgatory that is touched once more is known, if that may change what `allows` says; else None.

        It is worth waiting once: what `allows` says then holds.
        """


class Permission:
    """A broker's answers to who may do what. authorizer: None allows everything.

    control_listener: where controllers are heard, and nowhere else; empty if that is no listener of its own.
    """

    __slots__ = ("authorizer", "control_listener")

    def __init__(self, authorizer: Authorizer | None = None, control_listener: str = "") -> None:
        self.authorizer = authorizer
        self.control_listener = control_listener

    def require_control_listener(self, session: Session) -> None:
        """Raises: KafkaError CLUSTER_AUTHORIZATION_FAILED if a controller may not speak on the session's listener."""
        if self.control_listener and session.listener != self.control_listener:
            text = f"{session!r}: controllers are heard on listener {self.control_listener} only"
            log.warning("refused: %s", text)
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether a session may do this."""
        return self.authorizer is None or self.authorizer.allows(session, operation, resource, name)

    def undecided(self, session: Session, *operations: Operation) -> Hashable | None:
        """What to wait for before `require` is asked about the cluster; None if that can be asked at once."""
        if self.authorizer is None:
            return None
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
        keys = [self.authorizer.undecided(session, each, *cluster) for each in operations]
        return None if None in keys else keys[0]

    def require(
        self,
        session: Session,
        *operations: Operation,
        resource: ResourceType = ResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Raises: KafkaError if the session may do none of these, with the code that the resource has for it."""
        if self.authorizer is None:
            return
        for each in operations:
            if self.authorizer.allows(session, each, resource, name):
                return
        wanted = " or ".join(each.name for each in operations)
        text = f"{session.principal} at {session!r} may not {wanted} {resource.name} {name}"
        log.warning("refused: %s", text)
        raise KafkaError(DENIED[resource], text)

    def operations(self, session: Session, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Everything that a session may do to a resource: a bit for each operation's number.

        All there is without access rules, as in Kafka without an authorizer.
        """
        possible = OPERATIONS[resource]
        if self.authorizer is not None and self.authorizer.has_rules:
            possible = tuple(each for each in possible if self.authorizer.allows(session, each, resource, name))
        return sum(1 << each for each in possible)
