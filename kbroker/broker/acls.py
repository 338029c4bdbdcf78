"""Access rules (ACLs) as values: what they say, what they decide together, and how the metadata store has them.

Used by `acl_authorizer.py`, which keeps the rules of the cluster; by the handlers of ACL requests, and by `kbroker
acls`. It reads no store and no clock.

A rule allows or denies a principal an operation, from a host, on the resources of a pattern: those of one name, all of
a type (the literal `*`), or those whose names begin so (prefixed). Of all rules that match, a denying one wins; without
an allowing one the answer is no. To allow READ, WRITE, DELETE or ALTER is to allow DESCRIBE, and to allow ALTER_CONFIGS
is to allow DESCRIBE_CONFIGS; to deny implies nothing.

| path | content |
|---|---|
| `/kafka-acl/Topic/NAME` | the rules of a literal pattern |
| `/kafka-acl-extended/prefixed/Topic/NAME` | those of a prefix |
| `/kafka-acl-changes/acl_changes_N` | `TOPIC:NAME`: these rules have changed |
| `/kafka-acl-extended-changes/acl_changes_N` | the same of a prefix, as JSON |

Source: AclAuthorizer, AclEntry and ZkData of Apache Kafka 3.9, by behaviour; KIP-290,
KIP-679, KIP-1276 (hosts as CIDR).

Unlike Kafka 3.9: a host like `10.0.0.0/8` means the addresses in it, as in 4.3. Rules of the metadata store that make
no sense deny everything on their pattern, where Kafka does not start, or passes by those whose words it does not know.
"""

from __future__ import annotations

import json
from collections import defaultdict
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from kbroker.broker.authorizer import Operation, ResourceType
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from ipaddress import IPv4Network, IPv6Network

ANY = 1
"""Of a filter, in each of its numbers: all there are."""

ALL = 2
"""The operation of a rule that is about every operation."""

WILDCARD = "*"
EVERYONE = "User:*"

ACLS = "/kafka-acl"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
ACL_CHANGES = "/kafka-acl-changes"
PREFIXED_ACL_CHANGES = "/kafka-acl-extended-changes"


class PatternType(IntEnum):
    """How the name of a pattern is meant. MATCH: of a filter: the patterns that apply to a name."""

    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a rule says."""

    DENY = 2
    ALLOW = 3


class Pattern(NamedTuple):
    """Which resources a rule is about."""

    resource: ResourceType
    name: str
    kind: PatternType

    def __str__(self) -> str:
        return f"{_pascal(self.resource.name)}:{self.kind.name}:{self.name}"


class Rule(NamedTuple):
    """What a principal may do, or may not. principal: as `User:alice`. operation: an `Operation`, or ALL."""

    principal: str
    host: str
    operation: int
    permission: Permission


class Filter(NamedTuple):
    """Which rules are meant. Numbers: ANY for all. Texts: None for all. kind: a `PatternType`, or ANY."""

    resource: int
    name: str | None
    kind: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def fits_pattern(self, pattern: Pattern) -> bool:
        """Whether rules of this pattern may be meant."""
        if self.resource not in (ANY, pattern.resource) or self.kind not in (ANY, PatternType.MATCH, pattern.kind):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.kind != PatternType.MATCH:
            return False
        return pattern.name == WILDCARD if pattern.kind is PatternType.LITERAL else self.name.startswith(pattern.name)

    def fits_rule(self, rule: Rule) -> bool:
        """Whether a rule, of a pattern that fits, is meant."""
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (ANY, rule.operation)
            and self.permission in (ANY, rule.permission)
        )

    def patterns(self) -> Iterator[Pattern]:
        """The patterns that it names itself, which may have rules that are not known yet."""
        if self.name is None or self.resource not in set(ResourceType):
            return
        for kind in (PatternType.LITERAL, PatternType.PREFIXED):
            if self.kind in (ANY, kind):
                yield Pattern(ResourceType(self.resource), self.name, kind)


# -- what rules decide

_IMPLIED_BY = {
    Operation.DESCRIBE: (
        Operation.DESCRIBE,
        Operation.READ,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
    ),
    Operation.DESCRIBE_CONFIGS: (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
}

DENIES_ALL = frozenset([Rule(EVERYONE, WILDCARD, ALL, Permission.DENY)])
"""What stands for rules that make no sense; listed as such, and gone once it is removed."""


class Rules:
    """All rules of a cluster. super_users: principals that may do everything. open: so may each where no rule is."""

    def __init__(self, super_users: Collection[str] = (), *, is_open: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self.is_open = is_open
        self.by_pattern: dict[Pattern, frozenset[Rule]] = {}
        self._prefix_sizes: dict[ResourceType, dict[int, int]] = {each: {} for each in ResourceType}  # how many have it

    def put(self, pattern: Pattern, rules: frozenset[Rule]) -> None:
        """These are the rules of a pattern now; none takes it away."""
        had = self.by_pattern.pop(pattern, None)
        if rules:
            self.by_pattern[pattern] = rules
        if pattern.kind is PatternType.PREFIXED and bool(had) != bool(rules):
            sizes, size = self._prefix_sizes[pattern.resource], len(pattern.name)
            sizes[size] = sizes.get(size, 0) + (1 if rules else -1)
            if not sizes[size]:
                del sizes[size]

    def allow(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether a principal may do this to the resource of this name. host: an address, as Java writes it."""
        if principal in self.super_users:
            return True
        rules = list(self._about(resource, name))
        if not rules:
            return self.is_open
        mine = [rule for each in rules for rule in each if _is_about(rule, principal, host)]
        if any(rule.permission is Permission.DENY and rule.operation in (operation, ALL) for rule in mine):
            return False
        enough = (*_IMPLIED_BY.get(operation, (operation,)), ALL)
        return any(rule.permission is Permission.ALLOW and rule.operation in enough for rule in mine)

    def _about(self, resource: ResourceType, name: str) -> Iterator[frozenset[Rule]]:
        sizes = self._prefix_sizes[resource]
        patterns = [Pattern(resource, name[:size], PatternType.PREFIXED) for size in sizes if size <= len(name)]
        patterns.append(Pattern(resource, WILDCARD, PatternType.LITERAL))
        if name != WILDCARD:
            patterns.append(Pattern(resource, name, PatternType.LITERAL))
        return (self.by_pattern[each] for each in patterns if each in self.by_pattern)

    def allow_any(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether there may be a resource of this type to which a principal may do this; nothing is implied."""
        if principal in self.super_users:
            return True
        said: dict[tuple[Permission, PatternType], set[str]] = defaultdict(set)
        for pattern, rules in self.by_pattern.items():
            if pattern.resource is resource:
                for rule in rules:
                    if rule.operation in (operation, ALL) and _is_about(rule, principal, host):
                        said[rule.permission, pattern.kind].add(pattern.name)
        denied = said[Permission.DENY, PatternType.LITERAL]
        if WILDCARD in denied:
            return False
        if self.is_open:
            return True
        denied_prefixes = said[Permission.DENY, PatternType.PREFIXED]
        allowed = said[Permission.ALLOW, PatternType.LITERAL]
        return (
            WILDCARD in allowed
            or any(not _has_prefix(name, denied_prefixes) for name in said[Permission.ALLOW, PatternType.PREFIXED])
            or any(name not in denied and not _has_prefix(name, denied_prefixes) for name in allowed)
        )

    def found_by(self, wanted: Filter) -> Iterator[tuple[Pattern, list[Rule]]]:
        """The rules that a filter means, by pattern."""
        for pattern, rules in self.by_pattern.items():
            if wanted.fits_pattern(pattern):
                found = [rule for rule in rules if wanted.fits_rule(rule)]
                if found:
                    yield pattern, found


def _has_prefix(name: str, prefixes: Collection[str]) -> bool:
    return any(map(name.startswith, prefixes))


def _is_about(rule: Rule, principal: str, host: str) -> bool:
    return rule.principal in (principal, EVERYONE) and (
        rule.host in (host, WILDCARD) or ("/" in rule.host and _is_in(host, rule.host))
    )


# -- hosts


def java_host(address: str) -> str:
    """An address as Java's InetAddress writes it, and rules have it: IPv6 with all of its eight numbers."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address

    number, percent, scope = address.partition("%")
    try:
        parsed = IPv6Address(number)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":")) + percent + scope


@lru_cache(maxsize=1000)
def _network(text: str) -> IPv4Network | IPv6Network | None:
    from ipaddress import ip_network

    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def host_fault(host: str) -> str:
    """Why a rule cannot have this host; empty if it can."""
    if "/" in host and (not host.rpartition("/")[2].isdecimal() or _network(host) is None):
        return f"Invalid CIDR notation in ACL host: {host}"
    return ""


def _is_in(host: str, network: str) -> bool:
    from ipaddress import ip_address

    known = _network(network)
    try:
        return known is not None and ip_address(host.partition("%")[0]) in known
    except ValueError:
        return False


# -- principals and names


def principal_fault(principal: str) -> str:
    """Why this is no principal; empty if it is one."""
    if ":" in principal:
        return ""
    return f"expected a string in format principalType:principalName but got {principal}"


def super_users(text: str) -> list[str]:
    """Those of the setting `super.users`."""
    return [each.strip() for each in text.split(";") if each]


def _pascal(name: str) -> str:
    return name.title().replace("_", "")


def _names(numbers: Mapping[str, int]) -> tuple[dict[int, str], dict[str, int]]:
    """By number as Kafka writes it, and by name in capitals, as it may be written as well."""
    written = {number: _pascal(name) for name, number in numbers.items()}
    return written, {name.upper(): number for number, name in written.items()}


RESOURCE_NAMES, _RESOURCES = _names(ResourceType.__members__)
OPERATION_NAMES, _OPERATIONS = _names({"ALL": ALL, **Operation.__members__})
PERMISSION_NAMES, _PERMISSIONS = _names(Permission.__members__)


# -- in the metadata store

_KIND_OF_ROOT = {ACLS: PatternType.LITERAL, PREFIXED_ACLS: PatternType.PREFIXED}
_ROOTS = {kind: root for root, kind in _KIND_OF_ROOT.items()}
FOLDERS = tuple(f"{root}/{name}" for root in _KIND_OF_ROOT for name in RESOURCE_NAMES.values())
"""The parents of all patterns."""


def pattern_path(pattern: Pattern) -> str:
    """The node of a pattern's rules."""
    return f"{_ROOTS[pattern.kind]}/{RESOURCE_NAMES[pattern.resource]}/{pattern.name}"


def pattern_at(folder: str, name: str) -> Pattern:
    """The pattern of a node. folder: one of FOLDERS."""
    root, _, resource = folder.rpartition("/")
    return Pattern(ResourceType(_RESOURCES[resource.upper()]), name, _KIND_OF_ROOT[root])


def name_fault(name: str) -> str:
    """Why the metadata store can have no pattern of this name; empty if it can."""
    if name in (".", "..") or any(
        char <= "\x1f" or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\uf8ff" or char >= "\ufff0" for char in name
    ):
        return f"there can be no node for {name!r:.50}"
    return ""


def encode_rules(rules: Iterable[Rule]) -> bytes:
    """Content of a pattern's node."""
    acls = [
        {
            "principal": rule.principal,
            "permissionType": PERMISSION_NAMES[rule.permission],
            "operation": OPERATION_NAMES[rule.operation],
            "host": rule.host,
        }
        for rule in sorted(rules)
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":"), ensure_ascii=False).encode()


def decode_rules(data: bytes) -> frozenset[Rule]:
    """The rules of a node. Raises: ValueError if one of them makes no sense."""
    if not data:
        return frozenset()
    try:
        content = json.loads(data)
        if type(content["version"]) is not int or content["version"] != 1:
            raise ValueError(f"version {content['version']!r:.20}")
        return frozenset(map(_rule, content["acls"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no rules: {error!r:.100}") from None


def _rule(content: Mapping[str, str]) -> Rule:
    principal, host = content["principal"], content["host"]
    if not isinstance(principal, str) or not isinstance(host, str):
        raise ValueError("a principal or host that is no text")
    if fault := principal_fault(principal) or host_fault(host):
        raise ValueError(fault)
    operation, permission = _OPERATIONS[content["operation"].upper()], _PERMISSIONS[content["permissionType"].upper()]
    return Rule(principal, host, operation, Permission(permission))


def change_of(pattern: Pattern) -> tuple[str, bytes]:
    """Path and content of the notice that a pattern's rules have changed."""
    if pattern.kind is PatternType.LITERAL:
        return f"{ACL_CHANGES}/acl_changes_", f"{pattern.resource.name}:{pattern.name}".encode()
    content = {
        "version": 1,
        "resourceType": pattern.resource.name,
        "name": pattern.name,
        "patternType": pattern.kind.name,
    }
    return f"{PREFIXED_ACL_CHANGES}/acl_changes_", json.dumps(
        content, separators=(",", ":"), ensure_ascii=False
    ).encode()


def decode_change(data: bytes) -> Pattern:
    """The pattern of a notice. Raises: ValueError, KeyError, TypeError."""
    if not data.startswith(b"{"):
        resource, colon, name = data.decode().partition(":")
        if not colon:
            raise ValueError("no pattern")
        return Pattern(ResourceType[resource], name, PatternType.LITERAL)
    content = json.loads(data)
    return Pattern(ResourceType[content["resourceType"]], str(content["name"]), PatternType[content["patternType"]])
