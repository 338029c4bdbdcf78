"""Every key of server.properties that this broker honours, and those it accepts because stock files carry them.

Read by the composition root and by all that need a value (`config.num_partitions`); described to clients by
DescribeConfigs. Defaults are those of Apache Kafka 3.9.1 in ZooKeeper mode, of 4.3.0 where 3.9.1 has no such key. A key
with `unused` is shown and checked, and named once in a warning at start when it was set.

Unlike Kafka: listeners and the map of their protocols do not change while the broker runs.
"""

from __future__ import annotations

from kbroker.config.limits import PASSWORD_ITERATIONS
from kbroker.config.settings import (
    CLUSTER_WIDE,
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    NOT_TRUE,
    PER_BROKER,
    Boolean,
    Check,
    Class,
    Double,
    Int,
    List,
    Long,
    Password,
    Settings,
    Short,
    String,
    at_least,
    between,
    each_of,
    empty,
    matching,
    one_of,
    setting,
)
from protocol.records.compression import is_codec

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
MIB = 1 << 20

ONE_THREAD = "one thread serves all connections and another pool the disks"
NO_SWEEP = "finished operations leave the watch lists at once"
ONE_BY_ONE = "a request is handled as soon as it is read: none is queued"
SLICES = "groups are loaded in slices of 256 KiB, between other requests"
NO_REPLICAS = "this part of replication is not there yet"
NO_KRAFT = "there is no metadata quorum; a broker that is alone keeps its metadata beside its logs"
NO_PLUGINS = "Java classes cannot be loaded"
AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)

PASSWORD_KEY_FACTORIES = {f"PBKDF2WithHmacSHA{size}": f"sha{size}" for size in (1, 224, 256, 384, 512)}
PASSWORD_CIPHERS = ("AES/CBC/PKCS5Padding", "AES/GCM/NoPadding")
PASSWORD_KEY_BITS = (128, 192, 256)

BY_OPENSSL = "TLS is OpenSSL's here, not a JVM's"

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
STORE_TYPES = Check("one of JKS, PKCS12, PEM", lambda value: value.upper() in ("JKS", "PKCS12", "PEM"))
LOGIN_EXAMPLE = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="..." password="...";'
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # by their numbers on the wire
KNOWN_COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
COMPRESSION_TYPES = Check(
    f"one of {', '.join(KNOWN_COMPRESSION_TYPES)}",  # or a codec of the user's own, who knows its name
    lambda value: value in KNOWN_COMPRESSION_TYPES or (value != "none" and is_codec(value)),
)
SELECTORS = Check(f"{RACK_AWARE}, or empty", lambda value: value in ("", RACK_AWARE))
GZIP_LEVELS = Check("1 to 9, or -1 for zlib's choice", lambda level: level == -1 or 1 <= level <= 9)
VERSIONS = matching(r"[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?", "a Kafka version such as 3.9")


def _is_login(text: str) -> bool:
    from kbroker.config.jaas import is_login  # most brokers have none

    return is_login(text)


def _is_module(text: str) -> bool:
    from kbroker.config.jaas import read_module  # most brokers have none

    try:
        read_module(text)
    except ValueError:
        return False
    return True


CALLBACKS = matching(r"[\w.$]+(:\w+)?", "module:function, or the name of a class of Kafka's")


class BrokerConfig(Settings):
    """The broker's settings, resolved."""

    # --- identity and addresses
    broker_id: Int = setting(
        -1,
        at_least(-1),
        fallbacks=(("node.id", 1),),
        doc="Number of this broker in its cluster; -1 takes it from meta.properties, or picks one.",
    )
    node_id: Int = setting(-1, at_least(-1), doc="The newer name of broker.id; if both are set they must agree.")
    broker_id_generation_enable: Boolean = setting(
        True, doc="Whether broker.id -1 takes the next free number of the cluster."
    )
    cluster_id: String | None = setting(
        None,
        matching("[A-Za-z0-9_-]{22}", "22 letters of base64url, as kafka-storage random-uuid makes them"),
        doc="Id of a cluster that is new; one that there is keeps its own.",
    )
    reserved_broker_max_id: Int = setting(
        1000,
        at_least(0),
        doc="Numbers picked by the broker itself lie above this, so that none collides with a set one.",
    )
    broker_rack: String | None = setting(
        None, doc="Where the broker stands; replicas of a partition are spread over racks."
    )
    listeners: String = setting(
        "PLAINTEXT://:9092",
        doc="Where to listen: NAME://host:port, comma-separated; no host is every interface, port 0 any free one.",
    )
    advertised_listeners: String | None = setting(
        None,
        dynamic=PER_BROKER,
        doc="The addresses that clients are told, by listener name; without it those of listeners.",
    )
    listener_security_protocol_map: String = setting(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        doc="Which security protocol each listener name speaks: NAME:PROTOCOL, comma-separated.",
    )
    inter_broker_listener_name: String | None = setting(
        None, doc="The listener over which brokers speak to each other; else the one of security.inter.broker.protocol."
    )
    security_inter_broker_protocol: String = setting(
        "PLAINTEXT", one_of(*SECURITY_PROTOCOLS), doc="The security protocol between brokers, if no listener is named."
    )
    control_plane_listener_name: String | None = setting(
        None, doc="A listener of its own for requests of the controller, so that they never queue behind data."
    )

    kbroker_metrics_listener: String = setting(
        "",
        matching(r"|(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z\-._]*):[0-9]{1,5}", "host:port, or empty for none"),
        doc="Where /metrics (for Prometheus) and /health are served: host:port, without a host on every interface.",
    )
    console_listener: String = setting(
        "",
        matching(r"|(\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z\-._]+):[0-9]{1,5}", "host:port, or empty for none"),
        doc="Where the console is, for a browser: host:port.",
    )
    console_read_only: Boolean = setting(False, doc="Whether the console changes nothing, and arms no faults.")
    console_names: List = setting(
        (), doc="Other names than console.listener's own by which browsers may ask for the console, comma-separated."
    )
    console_client_config: String | None = setting(
        None, doc="A properties file of client settings for the console's connections: whom it trusts (ssl.*)."
    )
    console_schema_registry_url: String | None = setting(
        None, doc="A schema registry that the console asks for what values in Avro and Protobuf are."
    )

    # --- connections
    connections_max_idle_ms: Long = setting(600_000, doc="A connection without requests for this long is closed.")
    max_connections: Int = setting(
        INT_MAX, at_least(0), dynamic=CLUSTER_WIDE, doc="Most connections at once over all listeners."
    )
    max_connections_per_ip: Int = setting(
        INT_MAX, at_least(0), dynamic=CLUSTER_WIDE, doc="Most connections at once from one address."
    )
    max_connections_per_ip_overrides: String = setting(
        "",
        matching(r"(\s*[^,]+:[0-9]+\s*(,\s*[^,]+:[0-9]+\s*)*)?", "address:count, comma-separated"),
        dynamic=CLUSTER_WIDE,
        doc="Other limits than max.connections.per.ip for some addresses: address:count, comma-separated.",
    )
    max_connection_creation_rate: Int = setting(
        INT_MAX, at_least(0), dynamic=CLUSTER_WIDE, doc="Most new connections a second; more wait."
    )
    socket_request_max_bytes: Int = setting(
        104_857_600, at_least(1), doc="Largest request; a connection that announces a larger one is closed."
    )
    socket_send_buffer_bytes: Int = setting(102_400, at_least(-1), doc="SO_SNDBUF of connections; -1 is the system's.")
    socket_receive_buffer_bytes: Int = setting(
        102_400, at_least(-1), doc="SO_RCVBUF of connections; -1 is the system's."
    )
    socket_listen_backlog_size: Int = setting(50, at_least(1), doc="Connections that may wait to be accepted.")
    queued_max_requests: Int = setting(
        500, at_least(1), unused=ONE_BY_ONE, doc="Requests waiting for a thread before sockets are left unread."
    )
    queued_max_request_bytes: Long = setting(
        -1,
        doc="Bytes held for clients together: unfinished and waiting requests, unread answers. Beyond it the holder of"
        " most is disconnected. -1: 256 MB, or two requests of socket.request.max.bytes if that is more.",
    )
    request_timeout_ms: Int = setting(30_000, doc="How long a request to another broker may take.")

    # --- topics
    auto_create_topics_enable: Boolean = setting(True, doc="Whether asking for an unknown topic creates it.")
    delete_topic_enable: Boolean = setting(True, doc="Whether topics may be deleted.")
    num_partitions: Int = setting(1, at_least(1), doc="Partitions of a topic created without a number.")
    default_replication_factor: Int = setting(1, doc="Replicas of a topic created without a number.")
    min_insync_replicas: Int = setting(
        1, at_least(1), dynamic=CLUSTER_WIDE, doc="Replicas that must be in sync for a write with acks=all."
    )
    unclean_leader_election_enable: Boolean = setting(
        False,
        dynamic=CLUSTER_WIDE,
        doc="Whether a replica that is behind may lead when no other is left; loses records.",
    )
    message_max_bytes: Int = setting(1_048_588, at_least(0), dynamic=CLUSTER_WIDE, doc="Largest batch of records.")
    compression_type: String = setting(
        "producer", COMPRESSION_TYPES, dynamic=CLUSTER_WIDE, doc="Codec in the log; producer keeps what arrives."
    )
    compression_gzip_level: Int = setting(
        -1,
        GZIP_LEVELS,
        dynamic=CLUSTER_WIDE,
        doc="Level of gzip where the broker compresses: 1 to 9, or -1 for zlib's choice.",
    )
    compression_lz4_level: Int = setting(
        9, between(1, 17), dynamic=CLUSTER_WIDE, doc="Level of lz4 where the broker compresses."
    )
    compression_zstd_level: Int = setting(
        3, between(-131_072, 22), dynamic=CLUSTER_WIDE, doc="Level of zstd where the broker compresses."
    )
    max_request_partition_size_limit: Int = setting(
        2000, at_least(1), doc="Most partitions in one answer to DescribeTopicPartitions."
    )

    # --- log
    log_dir: String = setting("/tmp/kafka-logs", doc="The directory of the logs, where log.dirs is not set.")
    log_dirs: List = setting(
        None, fallbacks=(("log.dir", 1),), doc="The directories of the logs; a new partition goes to the emptiest."
    )
    log_dir_failure_timeout_ms: Long = setting(
        30_000, at_least(1), doc="How long a member of a quorum's cluster lives that cannot report a failed directory."
    )
    log_segment_bytes: Int = setting(
        1_073_741_824, at_least(14), dynamic=CLUSTER_WIDE, doc="Size at which a segment is full."
    )
    log_roll_ms: Long = setting(
        None, fallbacks=(("log.roll.hours", HOUR_MS),), dynamic=CLUSTER_WIDE, doc="Age at which a segment is closed."
    )
    log_roll_hours: Int = setting(168, at_least(1), doc="log.roll.ms in hours.")
    log_roll_jitter_ms: Long = setting(
        None,
        fallbacks=(("log.roll.jitter.hours", HOUR_MS),),
        dynamic=CLUSTER_WIDE,
        doc="Most that a segment's age limit is shortened by chance, so that segments do not all roll at once.",
    )
    log_roll_jitter_hours: Int = setting(0, at_least(0), doc="log.roll.jitter.ms in hours.")
    log_retention_bytes: Long = setting(
        -1, dynamic=CLUSTER_WIDE, doc="Size of a partition above which old segments are deleted; -1 for no bound."
    )
    log_retention_ms: Long = setting(
        None,
        fallbacks=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
        dynamic=CLUSTER_WIDE,
        doc="Age at which records are deleted; -1 keeps them for ever.",
    )
    log_retention_minutes: Int | None = setting(None, doc="log.retention.ms in minutes.")
    log_retention_hours: Int = setting(168, doc="log.retention.ms in hours.")
    log_retention_check_interval_ms: Long = setting(
        300_000, at_least(1), doc="How often logs are looked through for segments to delete."
    )
    log_cleanup_policy: List = setting(
        ("delete",),
        each_of("compact", "delete"),
        dynamic=CLUSTER_WIDE,
        doc="delete drops old segments, compact keeps the last record of each key; both may be given.",
    )
    log_index_size_max_bytes: Int = setting(
        10_485_760, at_least(4), dynamic=CLUSTER_WIDE, doc="Space set aside for the index of the active segment."
    )
    log_index_interval_bytes: Int = setting(
        4096, at_least(0), dynamic=CLUSTER_WIDE, doc="Bytes of log between two entries of an index."
    )
    log_flush_interval_messages: Long = setting(
        LONG_MAX, at_least(1), dynamic=CLUSTER_WIDE, doc="Records in a partition after which it is synced to disk."
    )
    log_flush_interval_ms: Long = setting(
        None,
        fallbacks=(("log.flush.scheduler.interval.ms", 1),),
        dynamic=CLUSTER_WIDE,
        doc="Longest that a record stays unsynced.",
    )
    log_flush_scheduler_interval_ms: Long = setting(
        LONG_MAX, doc="How often logs are looked through for overdue syncs."
    )
    log_flush_offset_checkpoint_interval_ms: Int = setting(
        60_000, at_least(0), doc="How often recovery points are written down."
    )
    log_flush_start_offset_checkpoint_interval_ms: Int = setting(
        60_000, at_least(0), doc="How often log start offsets are written down."
    )
    log_segment_delete_delay_ms: Long = setting(
        60_000, at_least(0), dynamic=CLUSTER_WIDE, doc="How long a deleted segment's files remain, for readers inside."
    )
    log_initial_task_delay_ms: Long = setting(
        30_000, at_least(0), internal=True, doc="How long after the start the log's periodic work begins."
    )
    log_preallocate: Boolean = setting(
        False, dynamic=CLUSTER_WIDE, doc="Whether a new segment's file gets its whole size at once."
    )
    log_message_timestamp_type: String = setting(
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER_WIDE,
        doc="Whether a record's timestamp is its producer's or the time of its append.",
    )
    log_message_timestamp_before_max_ms: Long = setting(
        LONG_MAX,
        at_least(0),
        fallbacks=(("log.message.timestamp.difference.max.ms", 1),),
        dynamic=CLUSTER_WIDE,
        doc="Most that a producer's timestamp may lie behind the broker's clock.",
    )
    log_message_timestamp_after_max_ms: Long = setting(
        LONG_MAX,
        at_least(0),
        fallbacks=(("log.message.timestamp.difference.max.ms", 1),),
        dynamic=CLUSTER_WIDE,
        doc="Most that a producer's timestamp may lie ahead of the broker's clock.",
    )
    log_message_timestamp_difference_max_ms: Long = setting(
        LONG_MAX, at_least(0), dynamic=CLUSTER_WIDE, doc="Older name of both timestamp limits, before and after."
    )
    log_message_format_version: String = setting(
        "3.0-IV1",
        VERSIONS,
        doc="Version of Kafka whose format logs are to have; heeded if inter.broker.protocol.version is below 3.0.",
    )
    log_message_downconversion_enable: Boolean = setting(
        True,
        dynamic=CLUSTER_WIDE,
        doc="Whether clients too old for v2 batches are served converted ones.",
    )
    num_recovery_threads_per_data_dir: Int = setting(
        1,
        at_least(1),
        dynamic=CLUSTER_WIDE,
        doc="Threads per directory that make logs durable at a clean stop, 16 at least; loading takes one.",
    )

    # --- fetch
    fetch_max_bytes: Int = setting(57_671_680, at_least(1024), doc="Most bytes in one answer to Fetch.")
    max_incremental_fetch_session_cache_slots: Int = setting(
        1000, at_least(0), doc="Fetch sessions kept; beyond it the least used gives way."
    )

    # --- groups
    group_min_session_timeout_ms: Int = setting(6000, doc="Shortest session timeout that a group's member may ask for.")
    group_max_session_timeout_ms: Int = setting(
        1_800_000, doc="Longest session timeout that a group's member may ask for."
    )
    group_initial_rebalance_delay_ms: Int = setting(
        3000, doc="How long an empty group waits for more members before its first generation."
    )
    group_max_size: Int = setting(INT_MAX, at_least(1), doc="Most members in one group.")
    group_streams_session_timeout_ms: Int = setting(
        45_000,
        at_least(1),
        doc="How long a member of a streams group (KIP-1071) may be silent; a group may have its own.",
    )
    group_streams_min_session_timeout_ms: Int = setting(
        45_000, at_least(1), doc="Shortest session timeout that may be set for a streams group."
    )
    group_streams_max_session_timeout_ms: Int = setting(
        60_000, at_least(1), doc="Longest session timeout that may be set for a streams group."
    )
    group_streams_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="How often members of a streams group send heartbeats; a group may have its own."
    )
    group_streams_min_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="Shortest heartbeat interval that may be set for a streams group."
    )
    group_streams_max_heartbeat_interval_ms: Int = setting(
        15_000, at_least(1), doc="Longest heartbeat interval that may be set for a streams group."
    )
    group_streams_max_size: Int = setting(INT_MAX, at_least(1), doc="Most members in one streams group.")
    group_streams_num_standby_replicas: Int = setting(
        0, at_least(0), doc="Standby tasks of each task with state, in streams groups; a group may have its own."
    )
    group_streams_max_standby_replicas: Int = setting(
        2, at_least(0), doc="Most standby tasks of each task that may be set for a streams group."
    )
    group_streams_initial_rebalance_delay_ms: Int = setting(
        3000, at_least(0), doc="How long an empty streams group waits for more members before tasks are assigned."
    )
    group_streams_assignment_interval_ms: Int = setting(
        1000,
        at_least(0),
        doc="Shortest time between two target assignments of a streams group; a group may have its own.",
    )
    group_streams_min_assignment_interval_ms: Int = setting(
        0, at_least(0), doc="Shortest assignment interval that may be set for a streams group."
    )
    group_streams_max_assignment_interval_ms: Int = setting(
        15_000, at_least(0), doc="Longest assignment interval that may be set for a streams group."
    )
    group_streams_rack_aware_assignment_tags: List = setting(
        (), doc="Client tags that members of streams groups are asked for; those that lack one are told."
    )
    group_streams_task_offset_interval_ms: Int = setting(
        60_000, at_least(1), doc="How often members of a streams group tell how far they have restored their tasks."
    )
    group_streams_min_task_offset_interval_ms: Int = setting(
        15_000, at_least(1), doc="Shortest task offset interval that may be set for a streams group."
    )
    group_streams_acceptable_recovery_lag: Long = setting(
        10_000, at_least(0), doc="Offsets that a restored task may lack and counts as caught up, in streams groups."
    )
    group_coordinator_rebalance_protocols: List = setting(
        ("classic", "consumer", "streams"),
        each_of("classic", "consumer", "share", "streams"),
        doc="Kinds of groups that are served, where the cluster has finalized their features; classic always is.",
    )
    group_consumer_session_timeout_ms: Int = setting(
        45_000,
        at_least(1),
        doc="How long a member of a consumer group (KIP-848) may be silent; a group may have its own.",
    )
    group_consumer_min_session_timeout_ms: Int = setting(
        45_000, at_least(1), doc="Shortest session timeout that may be set for a consumer group."
    )
    group_consumer_max_session_timeout_ms: Int = setting(
        60_000, at_least(1), doc="Longest session timeout that may be set for a consumer group."
    )
    group_consumer_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="How often members of a consumer group send heartbeats; a group may have its own."
    )
    group_consumer_min_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="Shortest heartbeat interval that may be set for a consumer group."
    )
    group_consumer_max_heartbeat_interval_ms: Int = setting(
        15_000, at_least(1), doc="Longest heartbeat interval that may be set for a consumer group."
    )
    group_consumer_max_size: Int = setting(INT_MAX, at_least(1), doc="Most members in one consumer group.")
    group_consumer_assignors: List = setting(
        ("uniform", "range"),
        doc="Assignors of consumer groups: uniform, range, or entry points kbroker.group_assignors; the first is the "
        "default.",
    )
    group_consumer_migration_policy: String = setting(
        "bidirectional",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        doc="Whether groups become consumer groups, and classic ones again, while their members run.",
    )
    group_consumer_assignment_interval_ms: Int = setting(
        1000,
        at_least(0),
        dynamic=CLUSTER_WIDE,
        doc="Shortest time between two target assignments of a consumer group; a group may have its own.",
    )
    group_consumer_min_assignment_interval_ms: Int = setting(
        0, at_least(0), doc="Shortest assignment interval that may be set for a consumer group."
    )
    group_consumer_max_assignment_interval_ms: Int = setting(
        15_000, at_least(0), doc="Longest assignment interval that may be set for a consumer group."
    )
    group_consumer_regex_refresh_interval_ms: Int = setting(
        600_000,
        at_least(10_000),
        internal=True,
        doc="How often it is looked up which topics the regular expressions of a consumer group match.",
    )
    offset_metadata_max_bytes: Int = setting(4096, doc="Longest text that may be committed beside an offset.")
    offsets_topic_num_partitions: Int = setting(50, at_least(1), doc="Partitions of __consumer_offsets when created.")
    offsets_topic_replication_factor: Short = setting(
        3, at_least(1), doc="Replicas of __consumer_offsets when created."
    )
    offsets_topic_segment_bytes: Int = setting(104_857_600, at_least(1), doc="Segment size of __consumer_offsets.")
    offsets_topic_compression_codec: Int = setting(
        0, between(0, 4), doc="Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    )
    offsets_load_buffer_size: Int = setting(
        5_242_880,
        at_least(1),
        unused=SLICES,
        doc="Bytes of __consumer_offsets read at a time when groups are loaded.",
    )
    offsets_retention_minutes: Int = setting(
        10_080, at_least(1), doc="How long offsets outlive the last member of their group, or their topic's last use."
    )
    offsets_retention_check_interval_ms: Long = setting(
        600_000, at_least(1), doc="How often groups are looked through for offsets to forget."
    )
    offsets_commit_timeout_ms: Int = setting(
        5000,
        at_least(1),
        doc="How long a commit or a group's record may wait for its replicas.",
    )
    offsets_commit_required_acks: Short = setting(
        -1, between(-1, -1), doc="Acknowledgement that a commit waits for; only all replicas (-1)."
    )

    # --- producers and transactions
    producer_id_expiration_ms: Int = setting(
        86_400_000,
        at_least(1),
        dynamic=CLUSTER_WIDE,
        doc="How long a silent producer's sequence numbers are remembered.",
    )
    producer_id_expiration_check_interval_ms: Int = setting(
        600_000, at_least(1), internal=True, doc="How often silent producers are looked for."
    )
    transactional_id_expiration_ms: Int = setting(
        604_800_000, at_least(1), doc="How long an unused transactional id is remembered."
    )
    transaction_max_timeout_ms: Int = setting(
        900_000, at_least(1), doc="Longest timeout that a transaction may ask for."
    )
    transaction_partition_verification_enable: Boolean = setting(
        True,
        dynamic=CLUSTER_WIDE,
        doc="Whether a transactional write is checked with its coordinator first.",
    )
    transaction_state_log_num_partitions: Int = setting(
        50, at_least(1), doc="Partitions of __transaction_state when created."
    )
    transaction_state_log_replication_factor: Short = setting(
        3, at_least(1), doc="Replicas of __transaction_state when created."
    )
    transaction_state_log_min_isr: Int = setting(2, at_least(1), doc="min.insync.replicas of __transaction_state.")
    transaction_state_log_segment_bytes: Int = setting(
        104_857_600, at_least(1), doc="Segment size of __transaction_state."
    )
    transaction_state_log_load_buffer_size: Int = setting(
        5_242_880,
        at_least(1),
        unused="loaded in slices of a fixed size",
        doc="Bytes of __transaction_state read at a time when loading.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Int = setting(
        10_000, at_least(1), doc="How often overdue transactions are looked for."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: Int = setting(
        3_600_000, at_least(1), doc="How often unused transactional ids are looked for."
    )

    # --- replication and control
    replica_lag_time_max_ms: Long = setting(
        30_000, doc="A follower that has not caught up for this long leaves the in-sync replicas."
    )
    replica_fetch_min_bytes: Int = setting(1, doc="Least bytes that a follower's fetch waits for.")
    replica_fetch_max_bytes: Int = setting(1_048_576, at_least(0), doc="Bytes a follower asks for per partition.")
    replica_fetch_response_max_bytes: Int = setting(
        10_485_760, at_least(0), doc="Bytes a follower asks for in one fetch."
    )
    replica_fetch_wait_max_ms: Int = setting(500, doc="How long a follower's fetch may wait.")
    replica_fetch_backoff_ms: Int = setting(
        1000, at_least(0), doc="How long a partition that failed is left out of fetches."
    )
    replica_socket_timeout_ms: Int = setting(30_000, doc="How long a follower waits for an answer.")
    replica_socket_receive_buffer_bytes: Int = setting(
        65_536, unused=NO_REPLICAS, doc="SO_RCVBUF of a follower's socket."
    )
    replica_high_watermark_checkpoint_interval_ms: Long = setting(
        5000, doc="How often high watermarks are written down."
    )
    replica_selector_class: String | None = setting(
        None,
        SELECTORS,
        doc="Rule by which consumers are sent to a nearer replica: by client.rack and broker.rack, or not at all.",
    )
    num_replica_fetchers: Int = setting(
        1, at_least(1), dynamic=CLUSTER_WIDE, doc="Connections over which a follower fetches from one leader."
    )
    controlled_shutdown_enable: Boolean = setting(True, doc="Whether a stopping broker hands its leaders over first.")
    controlled_shutdown_max_retries: Int = setting(3, doc="Tries at handing leaders over.")
    controlled_shutdown_retry_backoff_ms: Long = setting(5000, doc="Pause between two tries at handing leaders over.")
    controller_socket_timeout_ms: Int = setting(30_000, doc="How long the controller waits for a broker's answer.")
    auto_leader_rebalance_enable: Boolean = setting(
        True, doc="Whether leadership goes back to the preferred replicas by itself."
    )
    leader_imbalance_check_interval_seconds: Long = setting(
        300, at_least(1), doc="How often preferred leadership is looked at."
    )
    leader_imbalance_per_broker_percentage: Int = setting(
        10, doc="Share of a broker's partitions led elsewhere above which leaders are moved."
    )
    inter_broker_protocol_version: String = setting(
        "3.9-IV0",
        VERSIONS,
        doc="Below 3.0, message.format.version is heeded. Among themselves brokers speak 3.9 whatever it says.",
    )
    leader_replication_throttled_rate: Long = setting(
        LONG_MAX,
        at_least(0),
        dynamic=CLUSTER_WIDE,
        internal=True,
        doc="Most bytes/s that leaders send to followers that are throttled, and not in sync.",
    )
    follower_replication_throttled_rate: Long = setting(
        LONG_MAX,
        at_least(0),
        dynamic=CLUSTER_WIDE,
        internal=True,
        doc="Most bytes/s that followers take that are throttled, and not in sync.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: Long = setting(
        LONG_MAX,
        at_least(0),
        dynamic=CLUSTER_WIDE,
        internal=True,
        doc="Most bytes/s that replicas moving between log directories copy.",
    )
    quota_window_num: Int = setting(11, at_least(1), doc="Windows over which the rates of clients' quotas are taken.")
    quota_window_size_seconds: Int = setting(1, at_least(1), doc="Length of each such window.")
    controller_quota_window_num: Int = setting(
        11, at_least(1), doc="Windows whose worth of partitions may be made and deleted at once under a quota."
    )
    controller_quota_window_size_seconds: Int = setting(1, at_least(1), doc="Length of each such window.")
    replication_quota_window_num: Int = setting(
        11, at_least(1), doc="Windows over which the rates of throttled replication are taken."
    )
    replication_quota_window_size_seconds: Int = setting(1, at_least(1), doc="Length of each such window.")
    alter_log_dirs_replication_quota_window_num: Int = setting(
        11, at_least(1), doc="Windows over which the rate of moves between log directories is taken."
    )
    alter_log_dirs_replication_quota_window_size_seconds: Int = setting(
        1, at_least(1), doc="Length of each such window."
    )
    zookeeper_connect: String | None = setting(
        None, doc="The ensemble: host:port, comma-separated, and a path under which all nodes lie."
    )
    zookeeper_session_timeout_ms: Int = setting(
        18_000, doc="Silence after which the ensemble takes the broker for dead."
    )
    zookeeper_connection_timeout_ms: Int | None = setting(
        None, doc="How long a first connection to the ensemble may take."
    )
    zookeeper_max_in_flight_requests: Int = setting(
        10, at_least(1), doc="Requests sent to the ensemble before its answers are awaited."
    )
    zookeeper_ssl_client_enable: Boolean = setting(False, doc="Whether the ensemble is spoken to by TLS.")
    zookeeper_ssl_keystore_location: String | None = setting(
        None, doc="PEM file with the key and the certificates that the ensemble is shown."
    )
    zookeeper_ssl_keystore_password: Password | None = setting(None, doc="Password of the key in that file.")
    zookeeper_ssl_keystore_type: String | None = setting(None, one_of("PEM"), doc="Format of that file.")
    zookeeper_ssl_truststore_location: String | None = setting(
        None, doc="PEM file with the certificates that vouch for the ensemble; without it, the system's."
    )
    zookeeper_ssl_truststore_password: Password | None = setting(
        None, unused="certificates in a PEM file are for everybody", doc="Password of that file."
    )
    zookeeper_ssl_truststore_type: String | None = setting(None, one_of("PEM"), doc="Format of that file.")
    zookeeper_ssl_endpoint_identification_algorithm: String = setting(
        "HTTPS",
        one_of("HTTPS", "https", ""),
        doc="Whether the ensemble's certificate must be that of the address; empty for no.",
    )
    zookeeper_ssl_protocol: String = setting(
        "TLSv1.2", one_of(*TLS_VERSIONS), doc="Version of TLS with the ensemble, unless a list of them is given."
    )
    zookeeper_ssl_enabled_protocols: List | None = setting(
        None, each_of(*TLS_VERSIONS), doc="Versions of TLS with the ensemble."
    )
    zookeeper_ssl_cipher_suites: List | None = setting(
        None, empty("OpenSSL chooses, as the system is set up"), doc="Ciphers of TLS; must not be set."
    )
    zookeeper_ssl_crl_enable: Boolean = setting(
        False, NOT_TRUE, doc="Whether lists of revoked certificates are asked for; must be false."
    )
    zookeeper_ssl_ocsp_enable: Boolean = setting(
        False, NOT_TRUE, doc="Whether a certificate's state is asked for; must be false."
    )
    zookeeper_clientCnxnSocket: String | None = setting(  # noqa: N815  # Kafka's name
        None, unused="TLS needs no other client here", doc="Java class of the connection to the ensemble."
    )
    zookeeper_set_acl: Boolean = setting(
        False, doc="Whether nodes are made so that only the brokers may change them; needs a login or a certificate."
    )
    kbroker_zookeeper_sasl_jaas_config: Password | None = setting(
        None,
        Check(LOGIN_EXAMPLE, _is_login),
        doc="Login at the ensemble, in the format of sasl.jaas.config. Apache's brokers have it in a JAAS file.",
    )

    # --- TLS: of all listeners that speak it, unless one has its own (listener.name.NAME. before the key)
    ssl_keystore_type: String = setting(
        "JKS", STORE_TYPES, dynamic=PER_BROKER, doc="Format of the key store: JKS, PKCS12 or PEM."
    )
    ssl_keystore_location: String | None = setting(
        None, dynamic=PER_BROKER, doc="File with the broker's private key and its certificates."
    )
    ssl_keystore_password: Password | None = setting(
        None, dynamic=PER_BROKER, doc="Password of that file; a PEM file has none."
    )
    ssl_key_password: Password | None = setting(
        None, dynamic=PER_BROKER, doc="Password of the private key, where it is not the file's."
    )
    ssl_keystore_key: Password | None = setting(
        None, dynamic=PER_BROKER, doc="The private key itself, in PEM, instead of a file."
    )
    ssl_keystore_certificate_chain: Password | None = setting(
        None, dynamic=PER_BROKER, doc="The certificates of that key, in PEM, the broker's own first."
    )
    ssl_truststore_type: String = setting(
        "JKS", STORE_TYPES, dynamic=PER_BROKER, doc="Format of the trust store: JKS, PKCS12 or PEM."
    )
    ssl_truststore_location: String | None = setting(
        None, dynamic=PER_BROKER, doc="File with certificates that vouch for others; without it, the system's."
    )
    ssl_truststore_password: Password | None = setting(
        None, dynamic=PER_BROKER, doc="Password of that file; a PEM file has none."
    )
    ssl_truststore_certificates: Password | None = setting(
        None, dynamic=PER_BROKER, doc="Those certificates themselves, in PEM, instead of a file."
    )
    ssl_client_auth: String = setting(
        "none",
        one_of("required", "requested", "none"),
        dynamic=PER_BROKER,
        doc="Whether clients show a certificate. A listener of SASL_SSL heeds its own value alone (KIP-684).",
    )
    ssl_enabled_protocols: List = setting(
        TLS_VERSIONS,
        each_of(*TLS_VERSIONS),
        Check("not empty", bool),
        dynamic=PER_BROKER,
        doc="Versions of TLS that are spoken.",
    )
    ssl_protocol: String = setting(
        "TLSv1.3",
        one_of(*TLS_VERSIONS, "TLS"),
        dynamic=PER_BROKER,
        unused="ssl.enabled.protocols says which versions are spoken",
        doc="Version of TLS preferred.",
    )
    ssl_cipher_suites: List = setting(
        (), dynamic=PER_BROKER, doc="Cipher suites that may be used, by Java's names; empty for OpenSSL's choice."
    )
    ssl_endpoint_identification_algorithm: String = setting(
        "https",
        one_of("https", "HTTPS", ""),
        dynamic=PER_BROKER,
        doc="Whether another broker's certificate must be that of its address; empty for no.",
    )
    ssl_principal_mapping_rules: String = setting(
        "DEFAULT",
        doc="How the name in a client's certificate becomes a user's: DEFAULT, RULE:pattern/replacement/[LU].",
    )
    ssl_allow_dn_changes: Boolean = setting(
        False, doc="Whether a certificate may be replaced by one with another name while the broker runs."
    )
    ssl_allow_san_changes: Boolean = setting(
        False, doc="Whether it may be replaced by one that lacks some of its other names."
    )
    ssl_provider: String | None = setting(
        None, dynamic=PER_BROKER, unused=BY_OPENSSL, doc="Security provider of the JVM."
    )
    ssl_keymanager_algorithm: String = setting(
        "SunX509", dynamic=PER_BROKER, unused=BY_OPENSSL, doc="Algorithm of the JVM's key manager."
    )
    ssl_trustmanager_algorithm: String = setting(
        "PKIX", dynamic=PER_BROKER, unused=BY_OPENSSL, doc="Algorithm of the JVM's trust manager."
    )
    ssl_secure_random_implementation: String | None = setting(
        None, dynamic=PER_BROKER, unused=BY_OPENSSL, doc="Random numbers of the JVM."
    )
    ssl_engine_factory_class: Class | None = setting(
        None, empty(NO_PLUGINS), dynamic=PER_BROKER, doc="Class that makes TLS engines; must not be set."
    )

    kbroker_tls_kernel: Boolean = setting(
        False, doc="Whether the kernel enciphers what leaves and comes, where it and Python (3.12) have that."
    )

    # --- compaction
    log_cleaner_enable: Boolean = setting(True, doc="Whether compaction runs.")
    log_cleaner_threads: Int = setting(1, at_least(0), dynamic=CLUSTER_WIDE, doc="Logs compacted at the same time.")
    log_cleaner_backoff_ms: Long = setting(
        15_000, at_least(0), dynamic=CLUSTER_WIDE, doc="Pause when there was nothing to compact."
    )
    log_cleaner_dedupe_buffer_size: Long = setting(
        134_217_728, dynamic=CLUSTER_WIDE, doc="Memory for the keys of a compaction."
    )
    log_cleaner_io_buffer_size: Int = setting(
        524_288, at_least(0), dynamic=CLUSTER_WIDE, doc="Memory for reading and writing segments."
    )
    log_cleaner_io_buffer_load_factor: Double = setting(
        0.9, dynamic=CLUSTER_WIDE, doc="How full the table of keys may get."
    )
    log_cleaner_io_max_bytes_per_second: Double = setting(
        DOUBLE_MAX, dynamic=CLUSTER_WIDE, doc="Most bytes a second that compaction reads and writes."
    )
    log_cleaner_delete_retention_ms: Long = setting(
        86_400_000,
        at_least(0),
        dynamic=CLUSTER_WIDE,
        doc="How long a deleted key's tombstone stays.",
    )
    log_cleaner_min_compaction_lag_ms: Long = setting(
        0, at_least(0), dynamic=CLUSTER_WIDE, doc="Age below which a record is left alone."
    )
    log_cleaner_max_compaction_lag_ms: Long = setting(
        LONG_MAX, at_least(1), dynamic=CLUSTER_WIDE, doc="Age at which a record must be compacted."
    )
    log_cleaner_min_cleanable_ratio: Double = setting(
        0.5, between(0, 1), dynamic=CLUSTER_WIDE, doc="Uncompacted share of a log that starts work."
    )

    # --- who may do what
    authorizer_class_name: String = setting(
        "",
        Check(f"empty, {AUTHORIZERS[0]}, or {AUTHORIZERS[1]}", lambda value: value in ("", *AUTHORIZERS)),
        doc="Class that decides who may do what, by access rules; without one each client may do everything.",
    )
    super_users: String = setting(
        "",
        Check(
            "principals like User:admin, with a ; between two",
            lambda value: not value or all(":" in each for each in value.rstrip(";").split(";")),
        ),
        doc="Principals that may do everything, also what access rules deny; the brokers should be among them.",
    )
    allow_everyone_if_no_acl_found: Boolean = setting(
        False, doc="Whether all clients may do everything with a resource that no access rule is about."
    )

    # --- share groups (KIP-932)
    group_share_max_size: Int = setting(200, between(1, 1000), doc="Most members in one share group.")
    group_share_initialize_retry_interval_ms: Int = setting(
        30_000, at_least(1), doc="After how long the share coordinator is asked again to begin with partitions."
    )
    group_share_session_timeout_ms: Int = setting(
        45_000, at_least(1), doc="How long a member of a share group may be silent."
    )
    group_share_min_session_timeout_ms: Int = setting(
        45_000, at_least(1), doc="Shortest session timeout that may be set for a share group."
    )
    group_share_max_session_timeout_ms: Int = setting(
        60_000, at_least(1), doc="Longest session timeout that may be set for a share group."
    )
    group_share_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="How often members of share groups are told to send heartbeats."
    )
    group_share_min_heartbeat_interval_ms: Int = setting(
        5000, at_least(1), doc="Shortest heartbeat interval that may be set for a share group."
    )
    group_share_max_heartbeat_interval_ms: Int = setting(
        15_000, at_least(1), doc="Longest heartbeat interval that may be set for a share group."
    )
    group_share_max_share_sessions: Int = setting(2000, at_least(1), doc="Share sessions that the broker remembers.")
    group_share_partition_max_record_locks: Int = setting(
        2000, between(100, 10_000), doc="Records of a partition in flight, for a share group that sets none."
    )
    group_share_min_partition_max_record_locks: Int = setting(
        100, between(100, 2000), doc="Fewest record locks that may be set for a share group."
    )
    group_share_max_partition_max_record_locks: Int = setting(
        4000, between(2000, 10_000), doc="Most record locks that may be set for a share group."
    )
    group_share_delivery_count_limit: Int = setting(
        5, between(2, 10), doc="How often a record is delivered, for a share group that sets no limit."
    )
    group_share_min_delivery_count_limit: Int = setting(
        2, between(2, 5), doc="Lowest limit of deliveries that may be set for a share group."
    )
    group_share_max_delivery_count_limit: Int = setting(
        10, between(5, 25), doc="Highest limit of deliveries that may be set for a share group."
    )
    group_share_record_lock_duration_ms: Int = setting(
        30_000, between(1000, HOUR_MS), doc="How long a record is a member's, for a share group that sets no time."
    )
    group_share_min_record_lock_duration_ms: Int = setting(
        15_000, between(1000, 30_000), doc="Shortest lock that may be set for a share group."
    )
    group_share_max_record_lock_duration_ms: Int = setting(
        60_000, between(30_000, HOUR_MS), doc="Longest lock that may be set for a share group."
    )
    share_fetch_purgatory_purge_interval_requests: Int = setting(
        1000, unused=NO_SWEEP, doc="Sweep of parked share fetches."
    )
    share_coordinator_state_topic_num_partitions: Int = setting(
        50, at_least(1), doc="Partitions of __share_group_state when created."
    )
    share_coordinator_state_topic_replication_factor: Short = setting(
        3, at_least(1), doc="Replicas of __share_group_state when created."
    )
    share_coordinator_state_topic_min_isr: Short = setting(
        2, at_least(1), doc="min.insync.replicas of __share_group_state."
    )
    share_coordinator_state_topic_segment_bytes: Int = setting(
        104_857_600, at_least(1), doc="Segment size of __share_group_state."
    )
    share_coordinator_state_topic_compression_codec: Int = setting(
        0, between(0, 4), doc="Codec of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    )
    share_coordinator_state_topic_prune_interval_ms: Int = setting(
        5 * MINUTE_MS, at_least(1), doc="How often what is of no use any more goes from __share_group_state."
    )
    share_coordinator_cold_partition_snapshot_interval_ms: Int = setting(
        5 * MINUTE_MS, at_least(1), doc="After how long a quiet share-partition gets a new snapshot."
    )
    share_coordinator_snapshot_update_records_per_snapshot: Int = setting(
        500, between(0, 500), doc="Updates of a share-partition between two snapshots."
    )
    share_coordinator_write_timeout_ms: Int = setting(
        5000, at_least(1), doc="How long a write of a share-partition's state may wait for its replicas."
    )
    share_coordinator_load_buffer_size: Int = setting(
        5_242_880, at_least(1), unused=SLICES, doc="Bytes of __share_group_state read at a time when loading."
    )
    share_coordinator_threads: Int = setting(1, at_least(1), unused=ONE_THREAD, doc="Threads of the share coordinator.")
    share_coordinator_append_linger_ms: Int = setting(
        -1, at_least(-1), unused="a write is appended at once", doc="How long writes are gathered."
    )
    errors_deadletterqueue_topic_name_prefix: String = setting(
        "dlq.", dynamic=CLUSTER_WIDE, doc="What the names of dead letter queues' topics begin with (KIP-1191)."
    )
    errors_deadletterqueue_auto_create_topics_enable: Boolean = setting(
        False, dynamic=CLUSTER_WIDE, doc="Whether dead letter queues' topics are made when they are needed."
    )

    # --- a member of a metadata quorum's cluster (KRaft), beside Apache's brokers and controllers: config/quorum.py
    process_roles: List = setting(
        (), each_of("broker", "controller"), doc="broker: a member of the cluster of a metadata quorum (KRaft)."
    )
    controller_listener_names: List = setting(
        (), doc="Listeners of the quorum's controllers: the first is spoken to. In listeners they are left out."
    )
    sasl_mechanism_controller_protocol: String = setting(
        "GSSAPI", doc="How this broker logs in to the quorum's controllers, where their listener speaks SASL."
    )
    controller_quorum_voters: List = setting((), doc="Controllers with a vote: id@host:port, comma-separated.")
    controller_quorum_bootstrap_servers: List = setting(
        (), doc="Controllers that are asked who leads the quorum: host:port, comma-separated."
    )
    controller_quorum_request_timeout_ms: Int = setting(
        2000, at_least(1), doc="How long a controller's answer is waited for."
    )
    controller_quorum_retry_backoff_ms: Int = setting(
        20, at_least(0), doc="Pause after a controller has not answered, or could not."
    )
    controller_quorum_fetch_timeout_ms: Int = setting(
        2000, at_least(1), doc="Without an answer of the quorum's leader for so long, others are asked who leads."
    )
    controller_quorum_fetch_max_bytes: Int = setting(
        MIB, at_least(1), doc="Most bytes of the metadata log in one answer."
    )
    controller_quorum_fetch_snapshot_max_bytes: Int = setting(
        MIB, at_least(1), doc="Most bytes of a snapshot of it in one answer."
    )
    broker_heartbeat_interval_ms: Int = setting(
        2000, at_least(1), doc="How often the quorum's leader is told that this broker lives."
    )
    broker_session_timeout_ms: Int = setting(
        9000, at_least(1), doc="Silence after which controllers fence a broker; an answer is waited for half as long."
    )
    initial_broker_registration_timeout_ms: Int = setting(
        60_000, at_least(1), doc="A start ends that could not register the broker in the quorum for so long."
    )
    metadata_log_dir: String | None = setting(
        None, doc="The directory of the metadata log; without it the first of log.dirs."
    )
    metadata_log_segment_bytes: Int = setting(
        1_073_741_824, at_least(12), doc="Size at which a segment of the metadata log is full."
    )
    metadata_log_segment_ms: Long = setting(
        7 * 24 * HOUR_MS, at_least(0), doc="Age at which a segment of the metadata log is closed."
    )
    metadata_log_max_record_bytes_between_snapshots: Long = setting(
        20_971_520, at_least(1), doc="Bytes of the metadata log after which a snapshot is taken."
    )
    metadata_log_max_snapshot_interval_ms: Long = setting(
        HOUR_MS, at_least(0), doc="Age of the last snapshot after which one is taken; 0: only by bytes."
    )
    metadata_max_retention_bytes: Long = setting(
        104_857_600, doc="Bytes of metadata log and snapshots above which the oldest snapshot goes; below 0: never."
    )
    metadata_max_retention_ms: Long = setting(
        7 * 24 * HOUR_MS, doc="Age of a snapshot at which it goes, if there is a newer one; below 0: never."
    )

    # --- accepted: Java's threads, sweeps, plugins
    num_network_threads: Int = setting(
        3, at_least(1), dynamic=CLUSTER_WIDE, unused=ONE_THREAD, doc="Threads for the network."
    )
    num_io_threads: Int = setting(8, at_least(1), dynamic=CLUSTER_WIDE, unused=ONE_THREAD, doc="Threads for requests.")
    background_threads: Int = setting(
        10, at_least(1), dynamic=CLUSTER_WIDE, unused=ONE_THREAD, doc="Threads for other work."
    )
    fetch_purgatory_purge_interval_requests: Int = setting(1000, unused=NO_SWEEP, doc="Sweep of parked fetches.")
    producer_purgatory_purge_interval_requests: Int = setting(1000, unused=NO_SWEEP, doc="Sweep of parked produces.")
    delete_records_purgatory_purge_interval_requests: Int = setting(1, unused=NO_SWEEP, doc="Sweep of parked deletes.")
    metric_reporters: List = setting(
        (), dynamic=CLUSTER_WIDE, unused=NO_PLUGINS, doc="Classes that are told of metrics."
    )
    create_topic_policy_class_name: Class | None = setting(
        None, empty(NO_PLUGINS), doc="Class that checks new topics; must not be set."
    )
    alter_config_policy_class_name: Class | None = setting(
        None, empty(NO_PLUGINS), doc="Class that checks changed configs; must not be set."
    )

    # --- SASL: of all listeners that speak it, unless one has its own (listener.name.NAME. before the key)
    sasl_enabled_mechanisms: List = setting(
        ("GSSAPI",), dynamic=PER_BROKER, doc="Ways to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI."
    )
    sasl_jaas_config: Password | None = setting(
        None,
        Check('a login module as Java writes it: MODULE required NAME="VALUE" ...;', _is_module),
        dynamic=PER_BROKER,
        doc="Login module: whom PLAIN lets in (user_NAME), and as whom the broker logs in to others.",
    )
    sasl_mechanism_inter_broker_protocol: String = setting(
        "GSSAPI", dynamic=PER_BROKER, doc="How brokers log in to each other."
    )
    sasl_server_callback_handler_class: Class | None = setting(
        None, CALLBACKS, doc="Function that checks a password or a token, as module:function, or Kafka's class for it."
    )
    sasl_login_callback_handler_class: Class | None = setting(
        None,
        CALLBACKS,
        doc="Function that gives the broker a token to log in with (OAUTHBEARER), as module:function.",
    )
    sasl_server_max_receive_size: Int = setting(
        524_288, at_least(1), doc="Largest frame that is taken of a client that has not logged in."
    )
    connections_max_reauth_ms: Long = setting(
        0, at_least(0), doc="After this time a client has to log in again on its connection; 0: it need not."
    )
    connection_failed_authentication_delay_ms: Int = setting(
        100, at_least(0), doc="How long a failed login waits for its answer, and for the end of its connection."
    )
    sasl_oauthbearer_jwks_endpoint_url: String | None = setting(
        None,
        matching(r"(https?|file)://.+|file:/.+", "https://..., http://... or file:/..."),
        doc="Where the keys are that sign tokens, as a JSON Web Key Set.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long = setting(
        HOUR_MS, at_least(1), doc="How often those keys are fetched."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Long = setting(
        100, at_least(1), doc="Pause after those keys could not be fetched."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Long = setting(10_000, at_least(1), doc="Longest such pause.")
    sasl_oauthbearer_expected_audience: List = setting((), doc="One of these a token must be for; empty: any.")
    sasl_oauthbearer_expected_issuer: String | None = setting(None, doc="Who must have issued a token.")
    sasl_oauthbearer_clock_skew_seconds: Int = setting(
        30, at_least(0), doc="How far the clocks of brokers and of the issuer may be apart."
    )
    sasl_oauthbearer_scope_claim_name: String = setting("scope", doc="The claim of a token that holds its scopes.")
    sasl_oauthbearer_sub_claim_name: String = setting("sub", doc="The claim of a token that holds the user's name.")

    sasl_kerberos_service_name: String | None = setting(
        None, dynamic=PER_BROKER, doc="Kerberos' name of the brokers: what stands first in their principals."
    )
    sasl_kerberos_principal_to_local_rules: List = setting(
        ("DEFAULT",), dynamic=PER_BROKER, doc="Rules by which a principal of Kerberos becomes a user."
    )

    # --- delegation tokens
    delegation_token_secret_key: Password | None = setting(
        None,
        fallbacks=(("delegation.token.master.key", 1),),
        doc="Secret that all brokers sign delegation tokens with; without it there are none.",
    )
    delegation_token_master_key: Password | None = setting(None, doc="The older name of delegation.token.secret.key.")
    delegation_token_max_lifetime_ms: Long = setting(
        7 * 24 * HOUR_MS,
        at_least(1),
        doc="Longest life of a delegation token, however often it is renewed.",
    )
    delegation_token_expiry_time_ms: Long = setting(
        24 * HOUR_MS, at_least(1), doc="How long a delegation token lives unless it is renewed."
    )
    delegation_token_expiry_check_interval_ms: Long = setting(
        HOUR_MS, at_least(1), doc="How often expired delegation tokens are removed."
    )

    # --- passwords that are set at run time, and kept in the metadata store
    password_encoder_secret: Password | None = setting(
        None, doc="Secret that passwords set at run time are enciphered with; without it none can be set."
    )
    password_encoder_old_secret: Password | None = setting(
        None, doc="The secret of before, for a start at which passwords are enciphered again with the new one."
    )
    password_encoder_keyfactory_algorithm: String | None = setting(
        None,
        one_of(*PASSWORD_KEY_FACTORIES),
        doc="How the key is made of the secret; PBKDF2WithHmacSHA512 if it is not set.",
    )
    password_encoder_cipher_algorithm: String = setting(
        PASSWORD_CIPHERS[0],
        one_of(*PASSWORD_CIPHERS),
        doc="The cipher of passwords to be set; those that are there say theirs.",
    )
    password_encoder_key_length: Int = setting(
        128, Check("one of 128, 192, 256", lambda value: value in PASSWORD_KEY_BITS), doc="Bits of the key."
    )
    password_encoder_iterations: Int = setting(
        4096, between(1024, PASSWORD_ITERATIONS), doc="Rounds by which the key is made of the secret."
    )


OF_A_MEMBER = frozenset({
    "process.roles", "log.dir.failure.timeout.ms", "initial.broker.registration.timeout.ms",
    *(key for key in BrokerConfig.KEYS if key.startswith(("controller.quorum.", "metadata.", "broker.heartbeat.",
                                                          "broker.session."))),
})  # fmt: skip
"""What has an effect where a broker is a member of a metadata quorum's cluster (config/quorum.py)."""

# Keys of Apache's broker for parts that this broker does not have; named once at start, not shown to clients.
FOREIGN_PREFIXES = (
    "sasl.", "listener.name.", "zookeeper.", "controller.quorum.", "metadata.", "remote.", "rlmm.", "rsm.",
    "group.streams.", "group.coordinator.", "kafka.metrics.", "metrics.",
    "internal.metadata.", "log.local.retention.", "telemetry.", "confluent.",
)  # fmt: skip
FOREIGN_KEYS = frozenset((
    "add.partitions.to.txn.retry.backoff.max.ms", "add.partitions.to.txn.retry.backoff.ms",
    "auto.include.jmx.reporter",
    "client.quota.callback.class", "config.providers", "cordoned.log.dirs",
    "early.start.listeners", "eligible.leader.replicas.enable",
    "follower.fetch.last.tiered.offset.enable",
    "num.replica.alter.log.dirs.threads", "principal.builder.class", "security.providers",
    "server.max.startup.time.ms", "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms",
    "transaction.two.phase.commit.enable", "unclean.leader.election.interval.ms", "unstable.api.versions.enable",
    "unstable.feature.versions.enable", "controller.performance.always.log.threshold.ms",
    "controller.performance.sample.period.ms",
))  # fmt: skip


OF_A_SHARE_GROUP = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.max.record.locks",
    "delivery.count.limit",
    "record.lock.duration.ms",
)
"""What may be set for a share group, between a minimum and a maximum that the broker has."""


def contradictions(config: BrokerConfig) -> list[str]:
    """Values that are legal alone and not together, a line each. Source: the rules of Apache Kafka 3.9.

    Unlike Kafka: max.connections=0 is refused, which there shuts all clients out until the broker's file is changed.
    """
    rules = [
        (
            config.node_id in (-1, config.broker_id),
            f"node.id={config.node_id}: allowed: the value of broker.id ({config.broker_id})",
        ),
        (config.log_roll_ms >= 1, f"log.roll.ms={config.log_roll_ms}: allowed: at least 1"),
        (config.log_roll_jitter_ms >= 0, f"log.roll.jitter.ms={config.log_roll_jitter_ms}: allowed: at least 0"),
        (
            config.log_retention_ms >= 1 or config.log_retention_ms == -1,
            f"log.retention.ms={config.log_retention_ms}: allowed: -1 (for ever) or at least 1",
        ),
        (
            config.log_cleaner_min_compaction_lag_ms <= config.log_cleaner_max_compaction_lag_ms,
            f"log.cleaner.min.compaction.lag.ms={config.log_cleaner_min_compaction_lag_ms}: allowed: at most "
            f"log.cleaner.max.compaction.lag.ms ({config.log_cleaner_max_compaction_lag_ms})",
        ),
        (
            config.log_cleaner_threads >= 1,
            f"log.cleaner.threads={config.log_cleaner_threads}: allowed: at least 1 (log.cleaner.enable=false in the "
            "broker's file stops compaction)",
        ),
        (
            config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads) > MIB,
            f"log.cleaner.dedupe.buffer.size={config.log_cleaner_dedupe_buffer_size}: allowed: above 1 MB ({MIB}) for "
            f"each of log.cleaner.threads ({config.log_cleaner_threads})",
        ),
        (
            not config.zookeeper_set_acl
            or bool(config.kbroker_zookeeper_sasl_jaas_config)
            or (config.zookeeper_ssl_client_enable and bool(config.zookeeper_ssl_keystore_location)),
            "zookeeper.set.acl=true: allowed: with a login (kbroker.zookeeper.sasl.jaas.config) or a certificate "
            "(zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location)",
        ),
        (any(config.log_dirs), "log.dirs=: allowed: at least one directory"),
        (
            config.queued_max_request_bytes <= 0 or config.queued_max_request_bytes >= config.socket_request_max_bytes,
            f"queued.max.request.bytes={config.queued_max_request_bytes}: allowed: -1, or at least "
            f"socket.request.max.bytes ({config.socket_request_max_bytes})",
        ),
        (
            config.max_connections_per_ip > 0 or bool(config.max_connections_per_ip_overrides),
            "max.connections.per.ip=0: allowed: above 0, or 0 with max.connections.per.ip.overrides",
        ),
        (
            config.max_connections > 0,
            "max.connections=0: allowed: at least 1; no client could connect, to change it either",
        ),
        (
            config.group_min_session_timeout_ms <= config.group_max_session_timeout_ms,
            f"group.min.session.timeout.ms={config.group_min_session_timeout_ms}: allowed: at most "
            f"group.max.session.timeout.ms ({config.group_max_session_timeout_ms})",
        ),
        *_of_consumer_groups(config),
        *_of_share_groups(config),
        (
            config.replica_fetch_wait_max_ms <= min(config.replica_socket_timeout_ms, config.replica_lag_time_max_ms),
            f"replica.fetch.wait.max.ms={config.replica_fetch_wait_max_ms}: allowed: at most replica.socket.timeout.ms "
            f"({config.replica_socket_timeout_ms}) and replica.lag.time.max.ms ({config.replica_lag_time_max_ms})",
        ),
    ]
    return [line for holds, line in rules if not holds]


def _of_share_groups(config: BrokerConfig) -> list[tuple[bool, str]]:
    return [
        (
            config.group_share_max_share_sessions >= config.group_share_max_size,
            f"group.share.max.share.sessions={config.group_share_max_share_sessions}: allowed: at least "
            f"group.share.max.size ({config.group_share_max_size})",
        ),
        *(rule for name in OF_A_SHARE_GROUP for rule in _within(config, "group.share", name)),
    ]


def _of_consumer_groups(config: BrokerConfig) -> list[tuple[bool, str]]:
    protocols = config.group_coordinator_rebalance_protocols
    return [
        *_within(config, "group.consumer", "session.timeout.ms"),
        *_within(config, "group.consumer", "heartbeat.interval.ms"),
        *_within(config, "group.consumer", "assignment.interval.ms"),
        (
            config.group_consumer_heartbeat_interval_ms < config.group_consumer_session_timeout_ms,
            f"group.consumer.heartbeat.interval.ms={config.group_consumer_heartbeat_interval_ms}: allowed: below "
            f"group.consumer.session.timeout.ms ({config.group_consumer_session_timeout_ms})",
        ),
        (bool(config.group_consumer_assignors), "group.consumer.assignors=: allowed: at least one"),
        (
            "classic" in protocols,
            f"group.coordinator.rebalance.protocols={','.join(protocols)}: allowed: a list with classic in it",
        ),
    ]


def _within(config: BrokerConfig, family: str, name: str) -> list[tuple[bool, str]]:
    """That a group's own value may be between a minimum and a maximum, and the broker's is."""

    def value(key: str) -> int:
        found: int = getattr(config, key.replace(".", "_"))
        return found

    least, given, most = (value(f"{family}.{bound}{name}") for bound in ("min.", "", "max."))
    return [
        (least <= most, f"{family}.max.{name}={most}: allowed: at least {family}.min.{name} ({least})"),
        (least <= given <= most, f"{family}.{name}={given}: allowed: {least} to {most}"),
    ]
