"""What travels as plain bytes inside other messages: the consumer protocol, and the principal in an Envelope.

Consumers put a ConsumerProtocolSubscription into the metadata of JoinGroup, and their leader a
ConsumerProtocolAssignment into SyncGroup, where the group's protocol_type is "consumer". A broker passes both on
unread, except to find out which topics a group subscribes to. A broker that wraps a client's request in an Envelope
adds a DefaultPrincipalData, to say who sent it.

All have their version in front, an int16: see `encode_versioned` and `decode_versioned` in stored.py. The two of
consumers are never flexible, and a newer version only ever adds fields at the end, so that one who does not know it
reads it as the newest that he knows.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Bytes, Int32, Message, String, Struct, plain, since


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    """What a member would like to be given.

    Versions:
      0  topics and user_data
      1  owned_partitions, for rebalancing without revoking everything (KIP-429)
      2  generation_id, to tell claims that are out of date (KIP-792)
      3  rack_id (KIP-881)
    """

    topics: Array[String]  # names, sorted by Java's client
    user_data: Bytes | None = plain(default=None)  # what the assignor adds for itself; None: nothing
    owned_partitions: Array[TopicPartition] = since(1, default=[], ignorable=True)  # what it has now and would keep
    generation_id: Int32 = since(2, default=-1, ignorable=True)  # in which it was given those; -1 unknown
    rack_id: String | None = since(3, default=None, ignorable=True)  # the member's client.rack; None: unknown


class TopicPartition(Struct):
    """Some partitions of one topic."""

    topic: String
    partitions: Array[Int32]  # indexes


class ConsumerProtocolAssignment(Message, versions="0-3", flexible="none"):
    """What a member is given.

    Versions:
      0    assigned_partitions and user_data
      1-3  as 0; rises along with the subscription's
    """

    assigned_partitions: Array[TopicPartition]  # empty: the member has nothing to do
    user_data: Bytes | None = plain(default=None)  # what the assignor adds for itself; None: nothing


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """Who sent a request, as Kafka's default principal builder writes it.

    Versions:
      0  introduced by KIP-590, flexible from the start
    """

    type: String  # "User", as a rule
    name: String
    token_authenticated: Bool  # True: logged in with a delegation token, so may not ask for another
