"""Every error code of the Kafka protocol, and the one exception that carries one.

Owns the numbers and names (up to Kafka 4.3), whether a client may send the same request again, and a sentence
for people. Raised and returned by every handler; turned into bytes by the builder of the answer. It never decides
which code a situation deserves.

A code travels as an int16. The names are Kafka's, so that logs of both kinds of broker can be read side by side.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ErrorCode", "KafkaError", "shortened"]

MOST_CHARACTERS = 1_000  # of a text for people: it may quote a name of 32 KB, and no answer has room for more than that

_RETRY = True  # the same request may succeed later, perhaps after a look at fresh metadata


class ErrorCode(IntEnum):
    """What an answer says about a request, or about one topic, partition or group of it.

    message: a sentence for people, never parsed. retriable: a client may send the request again as it was;
    stock clients do so by themselves until their own timeout. Source: Kafka protocol guide, "Error Codes".
    """

    _value_: int
    message: str
    retriable: bool

    def __new__(cls, code: int, message: str, retriable: bool = False) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retriable = retriable
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """The member for a code read from a peer; a code from a newer Kafka is an UNKNOWN_SERVER_ERROR."""
        return cls._value2member_map_.get(code, cls.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]

    UNKNOWN_SERVER_ERROR = -1, "The broker failed in a way it did not foresee."
    NONE = 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, "The offset lies before the log start offset or past the end of the log."
    CORRUPT_MESSAGE = 2, "A batch or record is damaged: wrong checksum or size, or no key on a compacted topic.", _RETRY
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker has no such topic or partition.", _RETRY
    INVALID_FETCH_SIZE = 4, "The size asked for in a fetch makes no sense."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment; one may be about to be elected.", _RETRY
    NOT_LEADER_OR_FOLLOWER = 6, "This broker is not the leader, or holds no replica, of the partition.", _RETRY
    REQUEST_TIMED_OUT = 7, "The request's own timeout passed before it was done; it may still take effect.", _RETRY
    BROKER_NOT_AVAILABLE = 8, "The broker that has to answer is not alive."
    REPLICA_NOT_AVAILABLE = 9, "The replica asked for is not on this broker now.", _RETRY
    MESSAGE_TOO_LARGE = 10, "A batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, "The request comes from a controller that has been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, "The text beside a committed offset is longer than offset.metadata.max.bytes."
    NETWORK_EXCEPTION = 13, "The connection broke before an answer came.", _RETRY
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still reading its state from the log.", _RETRY
    COORDINATOR_NOT_AVAILABLE = 15, "There is no coordinator for this key yet.", _RETRY
    NOT_COORDINATOR = 16, "Another broker coordinates this group or transactional id.", _RETRY
    INVALID_TOPIC_EXCEPTION = 17, "The topic name is not legal, or the topic may not be used in this way."
    RECORD_LIST_TOO_LARGE = 18, "The batches of one partition are together larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than min.insync.replicas; nothing was written.", _RETRY
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "Written by the leader, then too few replicas stayed in sync.", _RETRY
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The member speaks of a generation that is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member has no assignor, or no protocol type, in common with its group."
    INVALID_GROUP_ID = 24, "The group id is empty or otherwise not legal here."
    UNKNOWN_MEMBER_ID = 25, "The group has no member of this id."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside what this broker allows."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; the member has to join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The committed offset cannot be stored: its record would be too large."
    TOPIC_AUTHORIZATION_FAILED = 29, "The principal may not do this with the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "The principal may not do this with the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "The principal may not do this to the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is too far from the broker's clock for this topic."
    UNSUPPORTED_SASL_MECHANISM = 33, "The SASL mechanism is not enabled on this listener."
    ILLEGAL_SASL_STATE = 34, "The request came at the wrong moment of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "This version of the request, or something only it can express, is not supported."
    TOPIC_ALREADY_EXISTS = 36, "There is already a topic of this name."
    INVALID_PARTITIONS = 37, "The number of partitions is below 1, or not above the present one."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of live brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The list of replicas is empty, uneven, repeats a broker or names an unknown one."
    INVALID_CONFIG = 40, "A configuration has an unknown name or a value that is not legal."
    NOT_CONTROLLER = 41, "Another broker is the controller.", _RETRY
    INVALID_REQUEST = 42, "The request contradicts itself or cannot be understood."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The topic's message format is too old for what is asked."
    POLICY_VIOLATION = 44, "A policy of this cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The batch's sequence number does not follow the producer's last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The batch was appended before, too long ago to say where."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than the one last seen."
    INVALID_TXN_STATE = 48, "The transaction's state does not allow this step."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, "An earlier step of this transactional id is still being carried out.", _RETRY
    TRANSACTION_COORDINATOR_FENCED = 52, "The transaction marker comes from a coordinator that has been replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "The principal may not use the transactional id."
    SECURITY_DISABLED = 54, "No authorizer is configured, so there are no access rules to read or change."
    OPERATION_NOT_ATTEMPTED = 55, "Not tried, because another part of the same request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk that holds the log failed.", _RETRY
    LOG_DIR_NOT_FOUND = 57, "The directory is not one of the broker's log.dirs."
    SASL_AUTHENTICATION_FAILED = 58, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, "The broker no longer knows the producer; its records may have expired."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being moved to other replicas."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled on this cluster."
    DELEGATION_TOKEN_NOT_FOUND = 62, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal is neither the token's owner nor one of its renewers."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Tokens are not handed out over this kind of connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "The principal may not do this with the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The type of principal is not supported here."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session is not in the broker's cache; start a new one.", _RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch does not follow the last one of its session.", _RETRY
    LISTENER_NOT_FOUND = 72, "The leader has no listener of the name this request came in by.", _RETRY
    TOPIC_DELETION_DISABLED = 73, "delete.topic.enable is off on this cluster."
    FENCED_LEADER_EPOCH = 74, "The sender's leader epoch is older than the broker's.", _RETRY
    UNKNOWN_LEADER_EPOCH = 75, "The sender's leader epoch is newer than the broker's.", _RETRY
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The version of the request cannot carry the codec of the data."
    STALE_BROKER_EPOCH = 77, "The broker has registered again since this request was made."
    OFFSET_NOT_AVAILABLE = 78, "The new leader's high watermark has yet to reach what was known before.", _RETRY
    MEMBER_ID_REQUIRED = 79, "A new member has to join again with the id in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The first replica is dead or not in sync, so it cannot lead.", _RETRY
    GROUP_MAX_SIZE_REACHED = 81, "The group has as many members as group.max.size allows."
    FENCED_INSTANCE_ID = 82, "Another member has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica of the partition may become its leader now.", _RETRY
    ELECTION_NOT_NEEDED = 84, "The partition already has the leader that the election would choose.", _RETRY
    NO_REASSIGNMENT_IN_PROGRESS = 85, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "A live group still subscribes to the topic, so its offsets stay."
    INVALID_RECORD = 87, "A record breaks a rule of its topic or of its format."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction that commits these offsets is still open.", _RETRY
    THROTTLING_QUOTA_EXCEEDED = 89, "The client has used up its quota of changes for now.", _RETRY
    PRODUCER_FENCED = 90, "A newer producer of the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, "There is no such resource."
    DUPLICATE_RESOURCE = 92, "The same resource appears twice in one request."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential is too weak or malformed."
    INCONSISTENT_VOTER_SET = 94, "Sender and receiver disagree about who votes in the quorum."
    INVALID_UPDATE_VERSION = 95, "The feature cannot be set to this level."
    FEATURE_UPDATE_FAILED = 96, "The controller could not store the new feature levels."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "This broker has no topic of this id.", _RETRY
    DUPLICATE_BROKER_REGISTRATION = 101, "A live broker already uses this id."
    BROKER_ID_NOT_REGISTERED = 102, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic's id in the request is not the one in the log's folder.", _RETRY
    INCONSISTENT_CLUSTER_ID = 104, "The request names another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes topics with and without ids.", _RETRY
    INELIGIBLE_REPLICA = 107, "The proposed set of in-sync replicas has one that may not be in it."
    NEW_LEADER_ELECTED = 108, "The change was stored, and the partition got another leader by it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The records at this offset are only in remote storage now."
    FENCED_MEMBER_EPOCH = 110, "The member was fenced: it gives up its partitions and joins afresh."
    UNRELEASED_INSTANCE_ID = 111, "Another member still holds this instance id and has to leave first."
    UNSUPPORTED_ASSIGNOR = 112, "The broker has no assignor of this name, or not in this version."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is old; its next heartbeat brings the new one."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request is meant for the other kind of listener: broker or controller."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This kind of listener is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "No controller of this id is known."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The client's metrics subscription is gone or out of date."
    TELEMETRY_TOO_LARGE = 118, "The pushed metrics are larger than telemetry.max.bytes."
    INVALID_REGISTRATION = 119, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = 120, "The transaction cannot go on, but the producer can after aborting it."
    INVALID_RECORD_STATE = 121, "The records can no longer be acknowledged in this way."
    SHARE_SESSION_NOT_FOUND = 122, "There is no such share session.", _RETRY
    INVALID_SHARE_SESSION_EPOCH = 123, "The request does not follow the last one of its share session.", _RETRY
    FENCED_STATE_EPOCH = 124, "The share group's state has been taken over at a newer epoch."
    INVALID_VOTER_KEY = 125, "The voter's key is not the one of the replica that received the request."
    DUPLICATE_VOTER = 126, "The voter is already in the set."
    VOTER_NOT_FOUND = 127, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is malformed."
    REBOOTSTRAP_REQUIRED = 129, "What the client knows of the cluster is useless; it starts again from its bootstrap."
    STREAMS_INVALID_TOPOLOGY = 130, "The Streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The epoch of the Streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The Streams topology is older than the group's."
    SHARE_SESSION_LIMIT_REACHED = 133, "The broker holds as many share sessions as it may.", _RETRY
    GROUP_DELETION_FAILED = 134, "The group could not be deleted; the message beside the code says why."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The description of the Streams topology could not be taken."
    CONTROLLER_ID_NOT_REGISTERED = 136, "No controller of this id is registered."


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text of any length without its middle: who and what it is about stand first, why stands last."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail]}... ({len(text) - most} more) ...{text[-tail:]}"


class KafkaError(Exception):
    """A failure that a client or a peer can cause, and that it is told of by its code.

    code: what travels. message: what people read, in logs and in answers that carry text, shortened; the code's own
    sentence if none is given.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        assert code is not ErrorCode.NONE, message
        self.code = code
        self.message = code.message if message is None else shortened(message)
        super().__init__(code, self.message)  # both, so that the exception survives pickling

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"
