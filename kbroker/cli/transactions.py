"""`kbroker transactions`: producers and their transactions. Commands and options are those of kafka-transactions.sh.

A transaction hangs where a partition has one open that no coordinator knows of: it will never end by itself, and holds
readers of committed records back for ever. `find-hanging` looks for such, `abort` ends one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster, once_coordinated, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._tables import show_done, show_json, show_table

if TYPE_CHECKING:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

Rows = list[dict[str, Any]]

AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
TOPIC = click.option("--topic", required=True, help="A topic.")
PARTITION = click.option("--partition", type=Number(min=0), required=True, help="One of its partitions.")
NEVER = -1
_LIST_COLUMNS = ("transactional_id", "coordinator", "producer_id", "transaction_state")
_DESCRIBE_COLUMNS = (
    "coordinator_id", "transactional_id", "producer_id", "producer_epoch", "transaction_state",
    "transaction_timeout_ms", "current_transaction_start_time_ms", "transaction_duration_ms", "topic_partitions",
)  # fmt: skip
_PRODUCER_COLUMNS = (
    "producer_id", "producer_epoch", "latest_coordinator_epoch", "last_sequence", "last_timestamp",
    "current_transaction_start_offset",
)  # fmt: skip
_HANGING_COLUMNS = (
    "topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch", "start_offset", "last_timestamp",
    "duration_min",
)  # fmt: skip


@click.group("transactions")
def transactions() -> None:
    """Transactions of a cluster: list, describe, find those that hang, abort one.

    Exit code: 0 done, 2 it could not be done.
    """


@transactions.command("list")
@speaks_to_cluster
@click.option("--duration-filter", type=Number(), default=-1, help="Only those open for longer than so many ms.")
@AS_JSON
def list_transactions(cluster: Cluster, duration_filter: int, as_json: bool) -> int:
    """All transactional ids, and where each stands."""
    admin = cluster.admin()
    try:
        found = admin.list_transactions()
        rows = [
            {
                "transactional_id": each.transactional_id,
                "coordinator": broker,
                "producer_id": each.producer_id,
                "transaction_state": each.state.value,
            }
            for broker, listed in found.items()
            for each in listed
        ]
        if duration_filter >= 0:
            described = _described(admin, [row["transactional_id"] for row in rows])
            rows = [row for row in rows if _duration_ms(described[row["transactional_id"]]) > duration_filter]
    finally:
        admin.close()
    _show(_LIST_COLUMNS, sorted(rows, key=lambda row: str(row["transactional_id"])), as_json=as_json)
    return 0


@transactions.command("describe")
@speaks_to_cluster
@click.option("--transactional-id", required=True, help="Which.")
@AS_JSON
def describe(cluster: Cluster, transactional_id: str, as_json: bool) -> int:
    """One transactional id in detail."""
    admin = cluster.admin()
    try:
        found = _described(admin, [transactional_id])[transactional_id]
    finally:
        admin.close()
    is_open = found.transaction_start_time_ms != NEVER
    row = {
        "coordinator_id": found.coordinator_id,
        "transactional_id": transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "transaction_state": found.state.value,
        "transaction_timeout_ms": found.transaction_timeout_ms,
        "current_transaction_start_time_ms": found.transaction_start_time_ms if is_open else None,
        "transaction_duration_ms": _duration_ms(found) if is_open else None,
        "topic_partitions": ",".join(f"{each.topic}-{each.partition}" for each in sorted(found.topic_partitions)),
    }
    _show(_DESCRIBE_COLUMNS, [row], as_json=as_json)
    return 0


@transactions.command("describe-producers")
@speaks_to_cluster
@click.option("--broker-id", type=Number(), help="Ask this replica instead of the leader.")
@TOPIC
@PARTITION
@AS_JSON
def describe_producers(cluster: Cluster, broker_id: int | None, topic: str, partition: int, as_json: bool) -> int:
    """The producers that a partition remembers."""
    admin = cluster.admin()
    try:
        _check_broker(admin, broker_id)
        rows = [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "latest_coordinator_epoch": each.coordinator_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "current_transaction_start_offset": _or_none(each.current_transaction_start_offset),
            }
            for each in _producers(admin, [(topic, partition)], broker_id)[topic, partition]
        ]
    finally:
        admin.close()
    _show(_PRODUCER_COLUMNS, rows, as_json=as_json)
    return 0


@transactions.command("find-hanging")
@speaks_to_cluster
@click.option("--broker-id", type=Number(), help="Look at the partitions that this broker has.")
@click.option(
    "--max-transaction-timeout", type=Number(), default=15, show_default=True, help="Minutes that one may be open."
)
@click.option("--topic", help="Look at this topic alone.")
@click.option("--partition", type=Number(min=0), help="With --topic: at this partition alone.")
@AS_JSON
def find_hanging(
    cluster: Cluster,
    broker_id: int | None,
    max_transaction_timeout: int,
    topic: str | None,
    partition: int | None,
    as_json: bool,
) -> int:
    """Transactions that are open in a partition and that no coordinator knows of."""
    if topic is None and broker_id is None:
        raise click.UsageError("find-hanging wants --topic or --broker-id")
    if partition is not None and topic is None:
        raise click.UsageError("--partition wants --topic")
    admin = cluster.admin()
    try:
        _check_broker(admin, broker_id)
        places = [(topic, partition)] if topic and partition is not None else _places(admin, topic, broker_id)
        now_ms = int(time.time() * 1000)
        candidates = [
            (place, each)
            for place, producers in _producers(admin, places, broker_id).items()
            for each in producers
            if each.current_transaction_start_offset >= 0
            and now_ms - each.last_timestamp > max_transaction_timeout * 60_000
        ]
        known = _known(admin, {each.producer_id for _, each in candidates})
    finally:
        admin.close()
    rows = [
        {
            "topic": place[0],
            "partition": place[1],
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.current_transaction_start_offset,
            "last_timestamp": each.last_timestamp,
            "duration_min": (now_ms - each.last_timestamp) // 60_000,
        }
        for place, each in candidates
        if place not in known.get(each.producer_id, ())
    ]
    _show(_HANGING_COLUMNS, rows, as_json=as_json)
    return 0


@transactions.command("abort")
@speaks_to_cluster
@TOPIC
@PARTITION
@click.option("--start-offset", type=Number(min=0), help="Where the transaction begins.")
@click.option("--producer-id", type=Number(), help="Instead of --start-offset, with the next two.")
@click.option("--producer-epoch", type=Number())
@click.option("--coordinator-epoch", type=Number())
@AS_JSON
def abort(
    cluster: Cluster,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    as_json: bool,
) -> int:
    """Abort a transaction that hangs in one partition. One that a coordinator knows of ends by itself."""
    from kafka import TopicPartition
    from kafka.admin._transactions import AbortTransactionSpec

    given = producer_id, producer_epoch, coordinator_epoch
    if start_offset is None and None in given:
        raise click.UsageError("say --start-offset; or --producer-id, --producer-epoch and --coordinator-epoch")
    admin = cluster.admin()
    try:
        if start_offset is not None:
            given = _open_at(admin, (topic, partition), start_offset)
        who, epoch, coordinator = given
        place = TopicPartition(topic, partition)
        admin.abort_transaction(AbortTransactionSpec(place, who, epoch, max(coordinator or 0, 0)))
    finally:
        admin.close()
    sentence = f"Aborted the transaction of producer {given[0]} in {topic}-{partition}."
    facts = {"aborted": [{"producer_id": given[0], "topic": topic, "partition": partition}]}
    show_done(sentence, facts, as_json=as_json)
    return 0


def _open_at(admin: KafkaAdminClient, place: tuple[str, int], offset: int) -> tuple[int, int, int]:
    """Producer id, epoch and coordinator epoch of the transaction that begins at an offset. Raises: ClickException."""
    for each in _producers(admin, [place], None)[place]:
        if each.current_transaction_start_offset == offset:
            return each.producer_id, each.producer_epoch, each.coordinator_epoch
    raise click.ClickException(f"no transaction is open from offset {offset} of {place[0]}-{place[1]} on")


def _producers(
    admin: KafkaAdminClient, places: Iterable[tuple[str, int]], broker_id: int | None
) -> dict[tuple[str, int], list[Any]]:
    from kafka import TopicPartition

    found = admin.describe_producers([TopicPartition(*place) for place in places], broker_id)
    return {(place.topic, place.partition): state.active_producers for place, state in found.items()}


def _places(admin: KafkaAdminClient, topic: str | None, broker_id: int | None) -> list[tuple[str, int]]:
    """The partitions of a topic, or of all, that a broker has, or any. Raises: ClickException if there is no topic."""
    topics = admin.describe_topics([topic] if topic else None)
    if topic and not any(found["partitions"] for found in topics):
        raise click.ClickException(f"there is no topic {topic!r}")
    return [
        (found["name"], part["partition_index"])
        for found in topics
        for part in found["partitions"]
        if broker_id is None or broker_id in part["replica_nodes"]
    ]


def _check_broker(admin: KafkaAdminClient, broker_id: int | None) -> None:
    if broker_id is not None and broker_id not in {each["broker_id"] for each in admin.describe_cluster()["brokers"]}:
        raise click.ClickException(f"there is no broker {broker_id}")


def _known(admin: KafkaAdminClient, producer_ids: set[int]) -> dict[int, set[TopicPartition]]:
    """The partitions that coordinators know each producer's transaction to be in."""
    if not producer_ids:
        return {}
    listed = [each for found in admin.list_transactions().values() for each in found]
    names = [each.transactional_id for each in listed if each.producer_id in producer_ids]
    known: dict[int, set[TopicPartition]] = {}
    for each in admin.describe_transactions(names).values() if names else ():
        known.setdefault(each.producer_id, set()).update(each.topic_partitions)
    return known


def _described(admin: KafkaAdminClient, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = once_coordinated(lambda: admin.describe_transactions(names))
    return found


def _duration_ms(described: Any) -> int:
    start_ms: int = described.transaction_start_time_ms
    return NEVER if start_ms == NEVER else int(time.time() * 1000) - start_ms


def _or_none(offset: int) -> int | None:
    return None if offset < 0 else offset


def _show(columns: tuple[str, ...], rows: Rows, *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
    elif rows:
        show_table(columns, rows)
