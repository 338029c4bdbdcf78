"""Requests about quotas, in a line."""

from __future__ import annotations

from protocol.messages.quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)

PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTION = "controller_mutation_rate", "connection_creation_rate"
Parts = dict[str, str | None]


def altered(parts: Parts, **quotas: float | None) -> AlterClientQuotasEntry:
    """An entity (user, client-id, ip) and its quotas; None removes one."""
    return AlterClientQuotasEntry(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )


def alter(*entries: AlterClientQuotasEntry, validate_only: bool = False) -> AlterClientQuotasRequest:
    """Changes of some entities."""
    return AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)


def describe(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    """components: type, how it matches (0 exactly, 1 the default, 2 any), and what."""
    return DescribeClientQuotasRequest(
        components=[ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
        strict=strict,
    )


def described(answer: DescribeClientQuotasResponse) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """Quotas by entity."""
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }
