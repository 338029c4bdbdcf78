"""How much a client may do: DescribeClientQuotas (key 48) and AlterClientQuotas (49).

Sent by admin clients to any broker (KIP-546). A quota is a number under a key, for an entity: a user, a client id, a
user together with a client id, or an address. `entity_type` is "user", "client-id" or "ip"; `entity_name` None stands
for the default of that type, which holds for those without a quota of their own. Keys: "producer_byte_rate" and
"consumer_byte_rate" (bytes a second), "request_percentage" (of one thread's time, KIP-124), "controller_mutation_rate"
(partitions made or deleted a second, KIP-599), "connection_creation_rate" (a second, for "ip" alone, KIP-612).
"""

from __future__ import annotations

from protocol.message import Array, Bool, Float64, Int8, Int16, Int32, Message, String, Struct, plain


class DescribeClientQuotasRequest(Message, api=48, versions="0-1", flexible="1+"):
    """Asks for the quotas of the entities that fit.

    Versions:
      0  introduced by KIP-546
      1  flexible (KIP-482)
    """

    components: Array[ComponentData]  # an entity has to fit all of them; empty: every entity fits
    strict: Bool  # True: entities with parts of other types do not fit


class ComponentData(Struct):
    """What one part of the entity has to be."""

    entity_type: String
    match_type: Int8  # 0 the name in `match`, 1 the default of the type, 2 any name
    match: String | None  # None unless match_type is 0


class DescribeClientQuotasResponse(Message, api=48, versions="0-1", flexible="1+"):
    """The quotas of each entity.

    Versions:
      0  introduced by KIP-546
      1  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None  # None: no error
    entries: Array[DescribeClientQuotasEntry] | None  # None on error


class DescribeClientQuotasEntry(Struct):
    """An entity and its quotas."""

    entity: Array[EntityData]
    values: Array[ValueData]


class EntityData(Struct):
    """One part of an entity."""

    entity_type: String  # "user", "client-id" or "ip"
    entity_name: String | None  # None: the default of the type


class ValueData(Struct):
    """One quota."""

    key: String
    value: Float64


class AlterClientQuotasRequest(Message, api=49, versions="0-1", flexible="1+"):
    """Quotas to be set or removed.

    Versions:
      0  introduced by KIP-546
      1  flexible (KIP-482)
    """

    entries: Array[AlterClientQuotasEntry]
    validate_only: Bool  # True: check everything, change nothing


class AlterClientQuotasEntry(Struct):
    """An entity and the changes to its quotas."""

    entity: Array[EntityData]
    ops: Array[OpData]


class OpData(Struct):
    """One change; keys that are not named stay as they are."""

    key: String
    value: Float64  # without meaning if `remove` is True
    remove: Bool


class AlterClientQuotasResponse(Message, api=49, versions="0-1", flexible="1+"):
    """What became of each entity.

    Versions:
      0  introduced by KIP-546
      1  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    entries: Array[AlterClientQuotasResult]


class AlterClientQuotasResult(Struct):
    """The outcome for one entity: all changes, or none."""

    error_code: Int16
    error_message: String | None  # None: no error
    entity: Array[EntityData]
