"""Users, rules of access and quotas of a cluster with logins."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.console.cluster import Cluster, ConsoleError, check
from kbroker.security.scram import HASHES
from protocol.messages.quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)
from protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
PATTERNS = {3: "literal", 4: "prefixed"}
PERMISSIONS = {2: "deny", 3: "allow"}
ANY = 1
ITERATIONS = 8192
SALT_BYTES = 16
OPERATIONS = {2: "all", **{int(each): each.name.casefold() for each in Operation}}
RESOURCES = {int(each): each.name.casefold() for each in ResourceType}


def access(cluster: Cluster) -> dict[str, Any]:
    """Users with SCRAM credentials, rules of access, quotas. A part that this user may not see says why."""
    found: dict[str, Any] = {"user": cluster.user}
    for name, ask in (("users", _users), ("rules", _rules), ("quotas", _quotas)):
        try:
            found[name] = ask(cluster)
        except ConsoleError as error:
            found[name] = []
            found[f"{name}_error"] = str(error)
    return found


def _users(cluster: Cluster) -> list[dict[str, Any]]:
    answer = cluster.ask(DescribeUserScramCredentialsRequest(users=None), cluster.controller())
    check(answer.error_code, answer.error_message)
    return [
        {
            "user": each.user,
            "credentials": [
                {"mechanism": MECHANISMS.get(info.mechanism, str(info.mechanism)), "iterations": info.iterations}
                for info in each.credential_infos
            ],
        }
        for each in sorted(answer.results, key=lambda each: each.user)
        if not each.error_code
    ]


def _rules(cluster: Cluster) -> list[dict[str, Any]]:
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    answer = cluster.ask(request)
    check(answer.error_code, answer.error_message)
    return [
        {
            "resource": RESOURCES.get(each.resource_type, str(each.resource_type)),
            "name": each.resource_name,
            "pattern": PATTERNS.get(each.pattern_type, str(each.pattern_type)),
            "principal": rule.principal,
            "host": rule.host,
            "operation": OPERATIONS.get(rule.operation, str(rule.operation)),
            "permission": PERMISSIONS.get(rule.permission_type, str(rule.permission_type)),
        }
        for each in answer.resources
        for rule in each.acls
    ]


def _quotas(cluster: Cluster) -> list[dict[str, Any]]:
    answer = cluster.ask(DescribeClientQuotasRequest(components=[], strict=False))
    check(answer.error_code, answer.error_message)
    return [
        {
            "entity": {part.entity_type: part.entity_name for part in each.entity},
            "limits": {value.key: value.value for value in each.values},
        }
        for each in answer.entries or ()
    ]


# ---- to change


def _number_of(names: dict[int, str], text: str, what: str) -> int:
    found = next((number for number, name in names.items() if name == text.casefold()), None)
    if found is None:
        raise ConsoleError(f"{what}={text}: allowed: {', '.join(names.values())}")
    return found


def add_rule(
    cluster: Cluster,
    principal: str,
    resource: str,
    name: str,
    operation: str,
    permission: str = "allow",
    pattern: str = "literal",
    host: str = "*",
) -> dict[str, Any]:
    """Make a rule. principal: User:alice. resource: topic, group, cluster... operation: read, write, all..."""
    creation = AclCreation(
        resource_type=_number_of(RESOURCES, resource, "resource"),
        resource_name=name,
        resource_pattern_type=_number_of(PATTERNS, pattern, "pattern"),
        principal=principal,
        host=host,
        operation=_number_of(OPERATIONS, operation, "operation"),
        permission_type=_number_of(PERMISSIONS, permission, "permission"),
    )
    (answer,) = cluster.ask(CreateAclsRequest(creations=[creation]), cluster.controller()).results
    check(answer.error_code, answer.error_message)
    return {"principal": principal, "resource": resource, "name": name, "operation": operation}


def remove_rule(
    cluster: Cluster,
    principal: str,
    resource: str,
    name: str,
    operation: str,
    permission: str,
    pattern: str,
    host: str,
) -> dict[str, Any]:
    """Take back the one rule that is exactly this."""
    wanted = DeleteAclsFilter(
        resource_type_filter=_number_of(RESOURCES, resource, "resource"),
        resource_name_filter=name,
        pattern_type_filter=_number_of(PATTERNS, pattern, "pattern"),
        principal_filter=principal,
        host_filter=host,
        operation=_number_of(OPERATIONS, operation, "operation"),
        permission_type=_number_of(PERMISSIONS, permission, "permission"),
    )
    (answer,) = cluster.ask(DeleteAclsRequest(filters=[wanted]), cluster.controller()).filter_results
    check(answer.error_code, answer.error_message)
    return {"removed": len(answer.matching_acls)}


def put_user(cluster: Cluster, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    """Make a user, or give one another password. What leaves this process is salted and hashed."""
    number = _number_of({key: name.casefold() for key, name in MECHANISMS.items()}, mechanism, "mechanism")
    if not user or not password:
        raise ConsoleError("a user has a name and a password: fill in both")
    salt = os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(HASHES[MECHANISMS[number]], password.encode(), salt, ITERATIONS)
    change = ScramCredentialUpsertion(
        name=user, mechanism=number, iterations=ITERATIONS, salt=salt, salted_password=salted
    )
    return _alter_user(cluster, AlterUserScramCredentialsRequest(deletions=[], upsertions=[change]))


def remove_user(cluster: Cluster, user: str, mechanism: str) -> dict[str, Any]:
    """Take a user's credential away."""
    number = _number_of({key: name.casefold() for key, name in MECHANISMS.items()}, mechanism, "mechanism")
    deletion = ScramCredentialDeletion(name=user, mechanism=number)
    return _alter_user(cluster, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter_user(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> dict[str, Any]:
    (answer,) = cluster.ask(request, cluster.controller()).results
    check(answer.error_code, answer.error_message)
    return {"user": answer.user}


def put_quota(
    cluster: Cluster, key: str, value: str = "", user: str = "", client_id: str = "", ip: str = ""
) -> dict[str, Any]:
    """Set a quota, or take it back where value is empty. user, client_id, ip: whose; `<default>` for all others."""
    entity = [
        EntityData(entity_type=kind, entity_name=None if name == "<default>" else name)
        for kind, name in (("user", user), ("client-id", client_id), ("ip", ip))
        if name
    ]
    if not entity:
        raise ConsoleError("a quota is of a user, a client id or an address: fill in one")
    try:
        number = float(value) if value else 0.0
    except ValueError:
        raise ConsoleError(f"value={value}: write a number, or nothing to take the quota back") from None
    change = OpData(key=key, value=number, remove=not value)
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasEntry(entity=entity, ops=[change])], validate_only=False
    )
    (answer,) = cluster.ask(request, cluster.controller()).entries
    check(answer.error_code, answer.error_message)
    return {"key": key, "value": None if not value else number}
