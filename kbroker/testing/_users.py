"""Requests about who may do what, as a test of a secured broker words them: a user, a rule."""

from __future__ import annotations

import hashlib
import secrets

from kbroker.broker.authorizer import CLUSTER_NAME, OPERATIONS, ResourceType
from kbroker.usage import UsageError
from protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    ScramCredentialUpsertion,
)

LITERAL, ALLOW, SCRAM_SHA_512 = 3, 3, 2
ITERATIONS, SALT_BYTES = 4096, 16
ALL = 2  # of operations


def user_request(name: str, password: str) -> AlterUserScramCredentialsRequest:
    """Have a user that logs in by SCRAM-SHA-512."""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    user = ScramCredentialUpsertion(
        name=name, mechanism=SCRAM_SHA_512, iterations=ITERATIONS, salt=salt, salted_password=salted
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[user])


def rule_request(user: str, operation: str, *, topic: str | None, group: str | None) -> CreateAclsRequest:
    """Have a rule that allows something. Raises: UsageError for an operation that there is not."""
    kind, name = ResourceType.CLUSTER, CLUSTER_NAME
    if topic is not None and group is not None:
        raise UsageError("write topic= or group=, one at a time")
    if topic is not None:
        kind, name = ResourceType.TOPIC, topic
    elif group is not None:
        kind, name = ResourceType.GROUP, group
    known = {"ALL": ALL, **{each.name: int(each) for each in OPERATIONS[kind]}}
    wanted = operation.upper()
    if wanted not in known:
        raise UsageError(f"operation {operation!r}: allowed for a {kind.name.lower()}: {', '.join(known)}")
    rule = AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=known[wanted],
        permission_type=ALLOW,
    )
    return CreateAclsRequest(creations=[rule])
