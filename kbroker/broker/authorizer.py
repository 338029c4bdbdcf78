"""The authorizer's place: who may do what to which resource, and the numbers of Kafka's access rules.

`AuthHelper` is asked by the table of routes (`api/authorization.py`), which knows what each request needs. It asks the
`Authorizer`; without one, each session may do everything, as in Kafka. Operations and resource types have the numbers
that ACL requests and the fields `authorized_operations` (KIP-430) use.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, cast

from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.broker.session import Session


log = logging.getLogger("kbroker.requests")
audit_log = logging.getLogger("kafka.authorizer.logger")


class Operation(IntEnum):
    """What a client may want to do."""

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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15  # KIP-939: a right that may be given, of what no release of Kafka serves yet


class ResourceType(IntEnum):
    """What it may be done to."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of its type."""

DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT = list(
    Operation
)[:10]
OPERATIONS = {
    ResourceType.TOPIC: (_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    ResourceType.GROUP: (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    ResourceType.CLUSTER: (_CREATE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT),
    ResourceType.TRANSACTIONAL_ID: (_WRITE, _DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""What can be done to each."""


class Authorizer(Protocol):
    """What decides.

    has_rules: whether this is an authorizer as Kafka knows it: it has access rules, each request asks for every right
    that it needs, and refusals show in authorized operations. One without rules is asked for CLUSTER_ACTION alone.
    """

    has_rules: bool

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the session's principal may do this, from where it is; as far as is known."""

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        """Whether there may be a resource of this type to which the session may do this (KIP-679)."""

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> Hashable | None:
        """A key of the purgatory that is touched once more is known, if that may change what `allows` says; else None.

        It is worth waiting once: what `allows` says then holds. One with rules knows them, and is not asked this.
        """


def _note(
    session: Session, operation: Operation, resource: ResourceType, name: str, times: int = 1, *, allowed: bool
) -> None:
    from kbroker.broker.audit import log_decision  # loaded by brokers with rules

    log_decision(session, operation, resource, name, times, allowed=allowed)


class AuthHelper:
    """A broker's way to its authorizer. authorizer: None allows everything.

    control_listener: where controllers are heard, and nowhere else; empty if that is no listener of its own.
    """

    __slots__ = ("authorizer", "control_listener")

    def __init__(self, authorizer: Authorizer | None = None, control_listener: str = "") -> None:
        self.authorizer = authorizer
        self.control_listener = control_listener

    @property
    def has_rules(self) -> bool:
        """Whether requests are to ask for every right that they need."""
        return self.authorizer is not None and self.authorizer.has_rules

    def require_control_listener(self, session: Session) -> None:
        """Raises: KafkaError CLUSTER_AUTHORIZATION_FAILED if a controller may not speak on the session's listener."""
        if self.control_listener and session.listener != self.control_listener:
            text = f"{session!r}: controllers are heard on listener {self.control_listener} only"
            log.warning("refused: %s", text)
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)

    def allows(
        self,
        session: Session,
        operation: Operation,
        resource: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        times: int = 1,
        hidden: bool = False,
    ) -> bool:
        """Whether a session may do this. Every question goes through here.

        times: how many parts of its request are about this, for the audit log.
        hidden: it has not asked for this by itself, so the audit log has no line if it may not.
        """
        if self.authorizer is None:
            return True
        allowed = self.authorizer.allows(session, operation, resource, name)
        if (audit_log.isEnabledFor(logging.DEBUG) if allowed else not hidden) and self.authorizer.has_rules:
            _note(session, operation, resource, name, times, allowed=allowed)
        return allowed

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        """Whether a session may do this to any resource of a type."""
        if self.authorizer is None:
            return True
        allowed = self.authorizer.allows_any(session, operation, resource)
        if not allowed and self.authorizer.has_rules:
            _note(session, operation, resource, "NONE", allowed=False)
        return allowed

    def undecided(self, session: Session, *operations: Operation) -> Hashable | None:
        """What to wait for before `require` is asked about the cluster; None if that can be asked at once."""
        if self.authorizer is None or self.authorizer.has_rules:
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
        """Raises: KafkaError if the session may do none of these, with the code that the resource type has for it."""
        if any(self.allows(session, each, resource, name) for each in operations):
            return
        wanted = " or ".join(each.name for each in operations)
        text = f"{session.principal} at {session!r} may not {wanted} {resource.name} {name}"
        if not self.has_rules:  # else it is in the audit log
            log.warning("refused: %s", text)
        raise KafkaError(DENIED[resource], text)

    def operations(self, session: Session, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Everything that a session may do to a resource: a bit for each operation's number.

        All there is without access rules, as in Kafka without an authorizer. With rules it takes DESCRIBE to be told of
        the cluster's; who asks for those of a topic or a group has been asked for that.
        """
        possible = OPERATIONS[resource]
        if self.has_rules:
            authorizer = cast("Authorizer", self.authorizer)
            possible = tuple(each for each in possible if authorizer.allows(session, each, resource, name))
            if resource is ResourceType.CLUSTER and Operation.DESCRIBE not in possible:
                return 0
        return sum(1 << each for each in possible)
