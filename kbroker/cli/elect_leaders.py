"""`kbroker elect-leaders`: partitions led by their first replica again, or by one that is not in sync.

Options and files are those of kafka-leader-election.sh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._numbers import Number
from kbroker.cli._plans import Place, name_of, partitions_in
from kbroker.cli._tables import show_json, show_table
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

TYPES = {"preferred": 0, "unclean": 1}
EXAMPLE = '{"partitions":[{"topic":"t","partition":0}]}'


@click.command("elect-leaders")
@speaks_to_cluster
@click.option(
    "--election-type",
    type=click.Choice(list(TYPES), case_sensitive=False),
    required=True,
    help="preferred: the first replica, if it is in sync. unclean: any, where none in sync lives; records may be lost.",
)
@click.option("--topic", help="A topic, with --partition.")
@click.option("--partition", type=Number(0), help="The partition of --topic.")
@click.option("--path-to-json-file", type=click.Path(exists=True, dir_okay=False), help="A file of partitions.")
@click.option("--all-topic-partitions", is_flag=True, help="All partitions of the cluster.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def elect_leaders(cluster: Cluster, election_type: str, as_json: bool, **options: Any) -> int:
    """Have leaders elected.

    Exit code: 0 done, 1 for some partition none could be elected, 2 it could not be done.
    """
    wanted = _wanted(options)
    admin = cluster.admin()
    try:
        rows = _elected(admin, TYPES[election_type.lower()], wanted)
    finally:
        admin.close()
    if as_json:
        show_json(rows)
    else:
        show_table(("partition", "result", "error"), rows)
    return int(any(row["error"] for row in rows))


def _wanted(options: dict[str, Any]) -> list[Place] | None:
    """Which partitions; None: all. Raises: UsageError, ClickException."""
    given = (options["topic"], options["path_to_json_file"], options["all_topic_partitions"] or None)
    one_of = sum(each is not None for each in given) == 1
    if not one_of or (options["topic"] is None) != (options["partition"] is None):
        raise click.UsageError("say --topic and --partition, --path-to-json-file, or --all-topic-partitions")
    if options["topic"] is not None:
        return [(options["topic"], options["partition"])]
    if options["path_to_json_file"]:
        return list(partitions_in(options["path_to_json_file"], lambda each: None, EXAMPLE))
    return None


def _elected(admin: KafkaAdminClient, kind: int, wanted: list[Place] | None) -> list[dict[str, Any]]:
    partitions: dict[str, list[int]] | None = None if wanted is None else {}
    for topic, number in wanted or ():
        assert partitions is not None
        partitions.setdefault(topic, []).append(number)
    answer = admin.elect_leaders(kind, partitions, raise_errors=False)
    if answer.error_code:
        raise click.ClickException(said_by_broker(answer.error_code))
    rows = []
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            code = ErrorCode.of(each.error_code)
            is_fault = code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
            rows.append(
                {
                    "partition": name_of((topic.topic, each.partition_id)),
                    "result": "failed" if is_fault else "not needed" if code else "elected",
                    "error": said_by_broker(code, each.error_message) if is_fault else None,
                }
            )
    return sorted(rows, key=lambda row: str(row["partition"]))
