"""Access rules and delegation tokens as a metadata quorum has them.

Called by `quorum_plane.py` with the image of the cluster and what has changed of it; asked as the ones of a metadata
store are (`acl_authorizer.py`, `delegation_tokens.py`). They are changed by the controllers alone. A broker lets
clients in only once it has been told of all of them.

Source: StandardAuthorizer, AclPublisher and DelegationTokenPublisher of Apache Kafka 4.3, by behaviour; KIP-801,
KIP-900.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.acl_authorizer import RulesAuthorizer
from kbroker.broker.acls import Pattern, PatternType, Permission, Rule
from kbroker.broker.authorizer import ResourceType
from kbroker.broker.delegation_tokens import Token, Tokens
from kbroker.broker.session import Principal

if TYPE_CHECKING:
    from kbroker.quorum.image import MetadataDelta, MetadataImage
    from protocol.messages.metadata_records import AccessControlEntryRecord, DelegationTokenRecord


class PublishedRules(RulesAuthorizer):
    """The rules of the metadata log."""

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Rules have come, or gone: those of their patterns are put together again from all there are."""
        changed = {_pattern(record) for record in delta.acls.values() if record is not None}
        changed |= {_pattern(image.acls[each]) for each in delta.acls if each in image.acls}
        if not changed:
            return
        rules: dict[Pattern, set[Rule]] = {each: set() for each in changed}
        for record in image.acls.values():
            found = rules.get(_pattern(record))
            if found is not None:
                found.add(_rule(record))
        for pattern, some in rules.items():
            self.put(pattern, frozenset(some))


class PublishedTokens(Tokens):
    """The delegation tokens of the metadata log."""

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Tokens have been made, put off, or ended."""
        for token_id in delta.delegation_tokens:
            record = image.delegation_tokens.get(token_id)
            self.put(token_id, None if record is None else _token(record))


def _pattern(record: AccessControlEntryRecord) -> Pattern:
    return Pattern(ResourceType(record.resource_type), record.resource_name, PatternType(record.pattern_type))


def _rule(record: AccessControlEntryRecord) -> Rule:
    return Rule(record.principal, record.host, record.operation, Permission(record.permission_type))


def _token(record: DelegationTokenRecord) -> Token:
    return Token(
        record.token_id,
        _principal(record.owner),
        _principal(record.requester),
        tuple(map(_principal, record.renewers)),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )


def _principal(text: str) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind, name)
