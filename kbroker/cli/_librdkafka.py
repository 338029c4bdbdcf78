"""The client that carries records: confluent-kafka, which is librdkafka (docs/decisions/0015-cli-client.md).

Called by `kbroker produce`, `consume` and `perf`; questions to a cluster go through kafka-python (`_cluster.py`).
Settings are taken in either library's spelling. What goes wrong is said in one line, in Kafka's words or ours.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli._client_security import CONTEXT, TOKENAUTH
from kbroker.cli._cluster import (
    BOOTSTRAP_TIMEOUT_MS,
    LIBRDKAFKA_NAMES,
    MISSING,
    Cluster,
    given_cluster,
    no_answer,
    no_such_setting,
    said_by_broker,
)
from kbroker.cli._numbers import whole

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

Command = TypeVar("Command", bound=Callable[..., Any])
Place = tuple[str, int]

EARLIEST, LATEST = -2, -1  # what ListOffsets takes in place of a time
QUESTION_S = 0.5  # after which a refused login is looked for
ANSWER_S = 30.0
_SILENT = logging.Logger("librdkafka")
_SILENT.disabled = True
MOST_IN_FLIGHT = 5  # requests of an idempotent producer
TOPIC_S = 10.0  # for a topic that is to be made by being asked for


def carries_records(command: Command) -> Command:
    """As `speaks_to_cluster`, for a command whose records go through librdkafka."""

    @functools.wraps(command)
    def called(cluster: Cluster, **arguments: Any) -> Any:
        try:
            from confluent_kafka import KafkaException
        except ImportError:
            raise click.ClickException(MISSING) from None
        try:
            return command(cluster, **arguments)
        except KafkaException as error:
            raise click.ClickException(said(error.args[0], cluster.bootstrap)) from None

    return given_cluster(called)  # type: ignore[return-value]


def said(error: KafkaError, bootstrap: str) -> str:
    """An error in one line."""
    from confluent_kafka import KafkaError

    code: int = error.code()
    if code > 0 or code == KafkaError.UNKNOWN:  # which is the broker's own, and below 0
        return said_by_broker(code)
    if code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT):
        return no_answer(bootstrap)
    if code == KafkaError._MSG_TIMED_OUT:
        return f"the cluster at {bootstrap} did not acknowledge it in time"
    if code == KafkaError._AUTHENTICATION:
        return f"SASL_AUTHENTICATION_FAILED: {_behind_address(error.str())}"
    return _behind_address(error.str())


def why_ended(client: Producer, error: KafkaError) -> KafkaError:
    """What a call failed with; where that is that the client has ended, what ended it."""
    from confluent_kafka import KafkaException

    if error.code() == error._FATAL:
        try:
            client.poll(0)
        except KafkaException as fatal:
            reason: KafkaError = fatal.args[0]
            return reason
    return error


def _behind_address(text: str) -> str:
    """librdkafka's words without the connection that they are about, nor how long it has been open."""
    return text.rpartition("bootstrap: ")[2].partition(" (after ")[0]


class Heard:
    """What a client reports beside its calls: failed connections and logins."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.refusal: KafkaError | None = None  # of a login, or of TLS: to wait is of no use

    def __call__(self, error: KafkaError) -> None:
        """To be called by the client."""
        from confluent_kafka import KafkaError

        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self.refusal = error

    def check(self) -> None:
        """Raises: ClickException for what will not pass."""
        if self.refusal is not None:
            raise click.ClickException(said(self.refusal, self.bootstrap))


def client_of(kind: type[Any], cluster: Cluster, heard: Heard, own: Mapping[str, Any]) -> Any:
    """A client with the settings given. own: what the command has decided; a setting that is given beats it.

    Raises: ClickException that names a setting which neither library has; KafkaException.
    """
    settings = {
        "client.id": "kbroker",
        # it would write to standard error by itself, and of what is fatal at any level
        **({"log_level": 7} if "debug" in cluster.settings else {"log_level": 0, "logger": _SILENT}),
        **own,
        **_settings(cluster),
        "bootstrap.servers": _plain_addresses(cluster.bootstrap),
        "error_cb": heard,
    }
    if settings.get("enable.idempotence") is True and _is_not_idempotent(settings):
        settings["enable.idempotence"] = False
    from confluent_kafka import KafkaException

    while True:
        try:
            return kind(settings)
        except KafkaException as error:
            text = error.args[0].str()
            name = text.partition("No such configuration property: ")[2].strip('"')
            if name not in settings:
                key = next((each for each in cluster.settings if f'"{_name(each)}"' in text), None)
                given = f"{key}={'...' if 'password' in key else cluster.settings[key]}: " if key else ""
                raise click.ClickException(f"{given}{text.removeprefix('Failed to create producer: ')}") from None
            del settings[name]
            no_such_setting(next(each for each in cluster.settings if _name(each) == name))


def _is_not_idempotent(settings: Mapping[str, Any]) -> bool:
    """Whether settings that are given rule out what nothing but the command asks for: as Java's producer takes them."""

    def value(name: str, older: str) -> str:
        return str(settings.get(older, settings.get(name, "")))

    in_flight = value("max.in.flight.requests.per.connection", "max.in.flight")
    return (
        value("acks", "request.required.acks") not in ("all", "-1")
        or value("retries", "message.send.max.retries") == "0"
        or (in_flight.isdecimal() and int(in_flight) > MOST_IN_FLIGHT)
    )


def setting(cluster: Cluster, name: str) -> str | None:
    """One of the settings given, in either spelling. name: librdkafka's."""
    return next((value for key, value in cluster.settings.items() if _name(key) == name), None)


def _settings(cluster: Cluster) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if TOKENAUTH in cluster.settings:
        why = "records are carried by librdkafka, which does not log in by delegation tokens"
        raise click.ClickException(f'sasl.jaas.config with tokenauth="true": {why}; allowed: a user of PLAIN or SCRAM')
    for key, value in cluster.settings.items():
        name = _name(key)
        if name == "ssl.check.hostname":
            settings["ssl.endpoint.identification.algorithm"] = "https" if value.lower() == "true" else "none"
        elif name not in ("bootstrap.timeout.ms", CONTEXT):
            settings[name] = value
    if "security.protocol" in settings:
        settings["security.protocol"] = settings["security.protocol"].upper()
    return settings


def _name(key: str) -> str:
    dotted = key.replace("_", ".").replace("-", ".")
    return LIBRDKAFKA_NAMES.get(dotted, dotted)


def _plain_addresses(bootstrap: str) -> str:
    return ",".join(each.strip().rpartition("://")[2] for each in bootstrap.split(","))


def metadata(client: Consumer | Producer, cluster: Cluster, heard: Heard, topic: str | None = None) -> ClusterMetadata:
    """What the cluster says of itself, and of a topic. Raises: ClickException where no broker answers in time."""
    from confluent_kafka import KafkaException

    patience_ms = setting(cluster, "bootstrap.timeout.ms")
    end_s = time.monotonic() + (BOOTSTRAP_TIMEOUT_MS if patience_ms is None else whole(patience_ms)) / 1000
    while True:
        left_s = end_s - time.monotonic()
        try:
            return client.list_topics(topic, timeout=min(QUESTION_S, max(left_s, 0.01)))
        except KafkaException as error:
            client.poll(0)  # which calls `heard`
            heard.check()
            if left_s <= 0:
                raise click.ClickException(said(error.args[0], cluster.bootstrap)) from None


def topic_of(
    client: Consumer | Producer, cluster: Cluster, heard: Heard, topic: str, *, patience_s: float = 0.0
) -> TopicMetadata | None:
    """A topic as the cluster describes it; None if there is none, and none is made within patience_s.

    Raises: ClickException.
    """
    from confluent_kafka import KafkaError, KafkaException

    passing = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
    end_s = time.monotonic() + patience_s
    while True:
        found = metadata(client, cluster, heard, topic).topics[topic]
        if found.error is None and found.partitions:
            return found
        if found.error is not None and found.error.code() not in passing:
            raise KafkaException(found.error)
        if time.monotonic() >= end_s:
            return None
        client.poll(0.05)


def offsets_at(consumer: Consumer, places: Iterable[Place], timestamp: int) -> dict[Place, int]:
    """Offsets of the first records that are not older, -1 for none; or EARLIEST, LATEST. Raises: KafkaException."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(*place, timestamp) for place in places]
    answers = consumer.offsets_for_times(asked, timeout=ANSWER_S) if asked else []
    for each in answers:
        if each.error is not None:
            raise KafkaException(each.error)
    return {(each.topic, each.partition): each.offset for each in answers}
