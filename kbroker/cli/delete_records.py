"""`kbroker delete-records`: forget the records before an offset. Files are those of kafka-delete-records.sh.

Beside its file, one topic may be named in the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster, said_by_broker, said_by_client, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._plans import Place, exactly, name_of, partitions_in
from kbroker.cli._tables import show_json, show_table

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

HIGH_WATERMARK = -1  # in place of an offset: all records there are
EXAMPLE = '{"version":1,"partitions":[{"topic":"t","partition":0,"offset":5}]}'


@click.command("delete-records")
@speaks_to_cluster
@click.option("--offset-json-file", type=click.Path(exists=True, dir_okay=False), help="Partitions and their offsets.")
@click.option("--topic", help="Instead of a file: a topic, with --offset.")
@click.option("--partition", "partitions", type=Number(0), multiple=True, help="Only this partition; may be repeated.")
@click.option("--offset", type=Number(HIGH_WATERMARK), metavar="N", help="The first to be kept; -1 keeps none.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def delete_records(cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Delete the records before an offset, for good.

    Exit code: 0 done, 1 some partition refused it, 2 it could not be done.
    """
    by_name = [options["topic"] is not None, options["offset"] is not None]
    if (options["offset_json_file"] is None) != all(by_name) or any(by_name) != all(by_name):
        raise click.UsageError("say --offset-json-file; or --topic and --offset")
    admin = cluster.admin()
    try:
        if options["offset_json_file"]:
            wanted = partitions_in(options["offset_json_file"], lambda each: exactly(int, each["offset"]), EXAMPLE)
        else:
            places = _partitions(admin, options["topic"], options["partitions"])
            wanted = dict.fromkeys(places, options["offset"])
        _check(admin, wanted)
        rows = [_deleted(cluster, admin, place, offset) for place, offset in sorted(wanted.items())]
    finally:
        admin.close()
    if as_json:
        show_json(rows)
    else:
        show_table(("partition", "low_watermark", "error"), rows)
    return int(any(row["error"] for row in rows))


def _partitions(admin: KafkaAdminClient, topic: str, only: tuple[int, ...]) -> list[Place]:
    (found,) = admin.describe_topics([topic])
    there = [each["partition_index"] for each in found["partitions"]]
    if not there:
        raise click.ClickException(f"there is no topic {topic!r}")
    return [(topic, number) for number in only or there]


def _check(admin: KafkaAdminClient, wanted: dict[Place, int]) -> None:
    """Raises: ClickException for a partition that is not there, before any record is deleted."""
    topics = sorted({topic for topic, _ in wanted})
    there = {
        (found["name"], part["partition_index"])
        for found in (admin.describe_topics(topics) if topics else ())
        for part in found["partitions"]
    }
    for place in sorted(wanted.keys() - there):
        raise click.ClickException(f"there is no partition {name_of(place)}")


def _deleted(cluster: Cluster, admin: KafkaAdminClient, place: Place, offset: int) -> dict[str, Any]:
    from kafka import TopicPartition, errors

    row: dict[str, Any] = {"partition": name_of(place), "low_watermark": None, "error": None}
    partition = TopicPartition(*place)
    try:
        row["low_watermark"] = admin.delete_records({partition: offset})[partition]["low_watermark"]
    except errors.BrokerResponseError as error:
        is_named = error.errno is not None
        row["error"] = said_by_broker(error.errno) if is_named else said_by_client(error, cluster.bootstrap)
    return row
