"""Settings of Apache's broker for parts that this broker does not have: what may be changed at run time, and what not.

Tools set them on any broker, so AlterConfigs takes what Apache Kafka 3.9.1 takes, checks it as far as its type goes and
keeps it; DescribeConfigs says that it has no effect. Never resolved, never acted on. What a file says of them is in
`broker.py`: a warning at start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.config.broker import FOREIGN_KEYS, NO_PLUGINS, BrokerConfig
from kbroker.config.settings import (
    CLUSTER_WIDE,
    LONG_MAX,
    PER_BROKER,
    Class,
    Double,
    Int,
    Long,
    Setting,
    Settings,
    Short,
    String,
    setting,
)

NO_REFRESH = "the broker takes tickets by its keytab, and has no login of Java's to refresh"
NO_TIERS = "there is no tiered storage"

_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")


class ForeignConfig(Settings):
    """What may change while the broker runs. Types and defaults: Apache Kafka 3.9.1."""

    log_local_retention_bytes: Long = setting(
        -2, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Bytes kept locally of a tiered log."
    )
    log_local_retention_ms: Long = setting(
        -2, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Age kept locally of a tiered log."
    )
    principal_builder_class: Class = setting(
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        dynamic=PER_BROKER,
        unused=NO_PLUGINS,
        doc="Class that tells who a client is.",
    )
    remote_fetch_max_wait_ms: Int = setting(
        500, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Longest wait for tiered records."
    )
    remote_log_index_file_cache_total_size_bytes: Long = setting(
        1_073_741_824, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Room for indices of tiered segments."
    )
    remote_log_manager_copy_max_bytes_per_second: Long = setting(
        LONG_MAX, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Most bytes copied to the tier a second."
    )
    remote_log_manager_fetch_max_bytes_per_second: Long = setting(
        LONG_MAX, dynamic=CLUSTER_WIDE, unused=NO_TIERS, doc="Most bytes read from the tier a second."
    )
    sasl_kerberos_kinit_cmd: String = setting(
        "/usr/bin/kinit", dynamic=PER_BROKER, unused=NO_REFRESH, doc="Path of kinit."
    )
    sasl_kerberos_min_time_before_relogin: Long = setting(
        60_000, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Time between two refreshes of a ticket."
    )
    sasl_kerberos_ticket_renew_jitter: Double = setting(
        0.05, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Share of chance in the time of a renewal."
    )
    sasl_kerberos_ticket_renew_window_factor: Double = setting(
        0.8, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Share of a ticket's life after which it is renewed."
    )
    sasl_login_refresh_buffer_seconds: Short = setting(
        300, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Time before its end in which a login is not refreshed."
    )
    sasl_login_refresh_min_period_seconds: Short = setting(
        60, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Least time between two refreshes of a login."
    )
    sasl_login_refresh_window_factor: Double = setting(
        0.8, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Share of a login's life after which it is refreshed."
    )
    sasl_login_refresh_window_jitter: Double = setting(
        0.05, dynamic=PER_BROKER, unused=NO_REFRESH, doc="Share of chance in the time of a refresh."
    )


PER_LISTENER = frozenset((
    "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location",
    "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location",
    "ssl.truststore.password", "ssl.truststore.type",
))  # fmt: skip
"""Keys and certificates: a listener's own (`listener.name.NAME.` before the key), or in the file."""

FOR_ALL_LISTENERS = ("max.connections", "max.connection.creation.rate", "num.network.threads")
"""What may be set for a listener on all brokers at once."""

FIXED = frozenset((
    "auto.include.jmx.reporter",
    "client.quota.callback.class",
    "controller.quorum.append.linger.ms", "controller.quorum.election.backoff.max.ms",
    "controller.quorum.election.timeout.ms",
    "early.start.listeners",
    "eligible.leader.replicas.enable",
    "group.coordinator.append.linger.ms", "group.coordinator.threads",
    "group.share.max.groups",
    "kafka.metrics.polling.interval.secs", "kafka.metrics.reporters",
    "metadata.max.idle.interval.ms",
    "metrics.num.samples", "metrics.recording.level",
    "metrics.sample.window.ms", "num.replica.alter.log.dirs.threads",
    "remote.log.manager.copier.thread.pool.size", "remote.log.manager.copy.quota.window.num",
    "remote.log.manager.copy.quota.window.size.seconds", "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.fetch.quota.window.num", "remote.log.manager.fetch.quota.window.size.seconds",
    "remote.log.manager.task.interval.ms", "remote.log.manager.thread.pool.size",
    "remote.log.metadata.custom.metadata.max.bytes", "remote.log.metadata.manager.class.name",
    "remote.log.metadata.manager.class.path", "remote.log.metadata.manager.impl.prefix",
    "remote.log.metadata.manager.listener.name", "remote.log.reader.max.pending.tasks", "remote.log.reader.threads",
    "remote.log.storage.manager.class.name", "remote.log.storage.manager.class.path",
    "remote.log.storage.manager.impl.prefix", "remote.log.storage.system.enable",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class", "sasl.login.class", "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms", "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.token.endpoint.url", "security.providers",
    "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms", "telemetry.max.bytes",
    "zookeeper.metadata.migration.enable",
))  # fmt: skip
"""Only a file may set these, not a client while the broker runs."""

KNOWN: Mapping[str, Setting] = {**BrokerConfig.KEYS, **ForeignConfig.KEYS}
"""Every key of a broker that has a type here."""


ALL = KNOWN.keys() | FOREIGN_KEYS | FIXED
"""Every key of Apache's broker, and ours."""


def base_of(key: str) -> str:
    """The key without the listener that it may be for."""
    found = _LISTENER.fullmatch(key)
    return found[1] if found else key
