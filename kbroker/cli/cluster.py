"""`kbroker cluster`: what kafka-cluster.sh, kafka-log-dirs.sh and kafka-broker-api-versions.sh tell, in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, speaks_to_cluster
from kbroker.cli._described import described_log_dirs
from kbroker.cli._own_requests import ask
from kbroker.cli._tables import show_done, show_json, show_table
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.messages.handshake import ApiVersionsRequest

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {
    "describe": "Brokers and controller.",
    "cluster-id": "The cluster's id alone.",
    "log-dirs": "Log directories of each broker, their size and space.",
    "api-versions": "What the brokers serve, by API.",
}
_ONLY = {"topics": ("log-dirs",)}


@click.command("cluster")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--topic", "topics", multiple=True, help="With --log-dirs: the partitions of this topic.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def cluster(cluster: Cluster, topics: tuple[str, ...], as_json: bool) -> int:
    """The cluster itself: brokers, log directories, API versions.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    admin = cluster.admin()
    try:
        if action == "cluster-id":
            cluster_id = admin.describe_cluster()["cluster_id"]
            show_done(cluster_id, {"cluster_id": cluster_id}, as_json=as_json)
        elif action == "describe":
            _describe(admin.describe_cluster(), as_json=as_json)
        elif action == "log-dirs":
            _log_dirs(admin, topics, as_json=as_json)
        else:
            _api_versions(admin, as_json=as_json)
    finally:
        admin.close()
    return 0


def _describe(found: dict[str, Any], *, as_json: bool) -> None:
    rows = [
        {
            "broker": each["broker_id"],
            "host": each["host"],
            "port": each["port"],
            "rack": each["rack"],
            "role": "controller" if each["broker_id"] == found["controller_id"] else None,
        }
        for each in sorted(found["brokers"], key=lambda each: each["broker_id"])
    ]
    if as_json:
        show_json({"cluster_id": found["cluster_id"], "controller": found["controller_id"], "brokers": rows})
        return
    click.echo(f"Cluster {found['cluster_id']}, {len(rows)} broker{'s' * (len(rows) != 1)}")
    show_table(("broker", "host", "port", "rack", "role"), rows)


def _log_dirs(admin: KafkaAdminClient, topics: tuple[str, ...], *, as_json: bool) -> None:
    brokers = described_log_dirs(admin)
    rows = [
        {
            "broker": broker["broker"],
            "log_dir": directory["log_dir"],
            "topic": topic["name"],
            "partition": part["partition_index"],
            "bytes": part["partition_size"],
            "offset_lag": part["offset_lag"],
            "is_future": part["is_future_key"],
        }
        for broker in brokers
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        for part in topic["partitions"]
        if not topics or topic["name"] in topics
    ]
    for missing in sorted(set(topics) - {row["topic"] for row in rows}):
        raise click.ClickException(f"there is no topic {missing!r}")
    rows.sort(key=lambda row: (row["broker"], row["log_dir"], row["topic"], row["partition"]))
    if as_json:
        if not topics:  # directories without partitions, too, and those that have failed
            rows += [each for each in _directories(brokers) if not each["partitions"]]
        show_json(rows)
    elif topics:
        show_table(tuple(rows[0]) if rows else (), rows)
    else:
        show_table(("broker", "log_dir", "partitions", "bytes", "free_bytes", "state"), _directories(brokers))


def _directories(brokers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each directory, those with no partitions and those that have failed among them."""
    rows = []
    for broker in brokers:
        for directory in broker["log_dirs"]:
            sizes = [part["partition_size"] for topic in directory["topics"] for part in topic["partitions"]]
            free, code = directory.get("usable_bytes", -1), directory["error_code"]
            rows.append(
                {
                    "broker": broker["broker"],
                    "log_dir": directory["log_dir"],
                    "partitions": len(sizes),
                    "bytes": sum(sizes),
                    "free_bytes": None if free < 0 else free,
                    "state": ErrorCode.of(code).name if code else "online",
                }
            )
    return sorted(rows, key=lambda row: (row["broker"], row["log_dir"]))


def _api_versions(admin: KafkaAdminClient, *, as_json: bool) -> None:
    served = ask(admin, ApiVersionsRequest(client_software_name="kbroker", client_software_version="1")).api_keys
    rows = [
        {"key": each.api_key, "api": _name(each.api_key), "min": each.min_version, "max": each.max_version}
        for each in sorted(served, key=lambda each: each.api_key)
    ]
    if as_json:
        show_json(rows)
    else:
        show_table(("key", "api", "min", "max"), rows)


def _name(api_key: int) -> str:
    """An API's name; its number where it is of a Kafka newer than what is known here."""
    return BY_KEY[api_key].name if api_key in BY_KEY else str(api_key)
