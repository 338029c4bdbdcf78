"""Settings that Kafka's clients have: what `kafka.NAME` of a source, and `--option`, may be.

A name or a value that is none would be passed over in silence, and the default of what was meant would count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from kbroker.pipeline.errors import PipelineError

_COMMON = """
bootstrap.controllers bootstrap.servers client.dns.lookup client.id client.rack config.providers connections.max.idle.ms
default.api.timeout.ms enable.metrics.push metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms auto.include.jmx.reporter
"""
_SECURITY = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
value.deserializer
"""
_PRODUCER = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
value.serializer
"""
NAMES = frozenset(" ".join([_COMMON, _SECURITY, _CONSUMER, _PRODUCER]).split())

REFUSED = {
    "auto.offset.reset": "say where to begin by startingOffsets",
    "enable.auto.commit": "nothing is ever committed",
    "key.deserializer": "keys are bytes: cast the column",
    "value.deserializer": "values are bytes: cast the column",
    "key.serializer": "keys are bytes or text: cast the column",
    "value.serializer": "values are bytes or text: cast the column",
    "interceptor.classes": "nothing of Java's is called",
    "transactional.id": "rows are written without transactions",
}
"""Settings that Spark's Kafka source and sink refuse, and what to do instead."""


_FLAG = ("true", "false")
_WORDS = {
    "acks": ("all", "-1", "0", "1"),
    "allow.auto.create.topics": _FLAG,
    "check.crcs": _FLAG,
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "enable.idempotence": _FLAG,
    "isolation.level": ("read_uncommitted", "read_committed"),
}
"""Settings that are one of a few words."""
_NUMBER = re.compile(r".*\.(ms|bytes|records|samples)|batch\.size|buffer\.memory|retries|max\.in\.flight\..*")
_MAY_BE_NEGATIVE = ("connections.max.idle.ms", "receive.buffer.bytes", "send.buffer.bytes")
"""Numbers of which -1 says that there is no limit, or that the operating system knows."""


def check_settings(given: Mapping[str, str], shown_as: str = "{}") -> None:
    """Raises PipelineError for a setting that no client of Kafka's has, or takes. shown_as: how its user has written
    its name."""
    for name, value in given.items():
        shown = shown_as.format(name)
        if name not in NAMES:
            near = get_close_matches(name.removeprefix("kafka."), NAMES, 1)
            meant = f"; is it {near[0]}?" if near else ""
            raise PipelineError(f"{shown}: Kafka's clients have no such setting{meant}")
        if name in _WORDS and value.strip().lower() not in _WORDS[name]:
            raise PipelineError(f"{shown}: {value!r} is none of {', '.join(_WORDS[name])}")
        is_unbounded = name in _MAY_BE_NEGATIVE and value.strip() == "-1"
        if _NUMBER.fullmatch(name) and not is_unbounded and not re.fullmatch(r"\s*[0-9]{1,19}\s*", value):
            raise PipelineError(f"{shown}: {value!r} is no number that it may be")


def check_usable(names: Iterable[str]) -> None:
    """Raises PipelineError for a setting that has no meaning to Spark's readers and writers."""
    for name in names:
        if name in REFUSED:
            raise PipelineError(f"option kafka.{name} is not taken: {REFUSED[name]}")
