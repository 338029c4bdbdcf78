"""`kbroker reassign`: move partitions between brokers. Options and files are those of kafka-reassign-partitions.sh."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, fault_of, said_by_broker, speaks_to_cluster
from kbroker.cli._log_dirs import ask_for, directories_of, elsewhere
from kbroker.cli._numbers import Number, whole
from kbroker.cli._plans import Place, exactly, json_in, partitions_in
from kbroker.cli._plans import name_of as _name
from kbroker.cli._tables import show_done, show_json, show_table
from kbroker.cli._throttle import Throttle

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ACTIONS = {
    "generate": "Propose where partitions could go, for --execute.",
    "execute": "Begin to move them.",
    "verify": "Say how far they are.",
    "list": "What is being moved now.",
    "cancel": "Stop moving what a file names.",
}
_ONLY = {
    "topics_to_move_json_file": ("generate",),
    "broker_list": ("generate",),
    "reassignment_json_file": ("execute", "verify", "cancel"),
    "throttle": ("execute",),
    "additional": ("execute",),
    "preserve_throttles": ("verify", "cancel"),
}
EXAMPLE = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'


@click.command("reassign")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--topics-to-move-json-file", type=click.Path(exists=True, dir_okay=False), help="For --generate.")
@click.option("--broker-list", metavar="ID,ID", help="Where partitions may go (--generate).")
@click.option("--reassignment-json-file", type=click.Path(exists=True, dir_okay=False), help="Which goes where.")
@click.option("--throttle", type=Number(1), metavar="BYTES", help="With --execute: bytes a second between brokers.")
@click.option("--additional", is_flag=True, help="With --execute: beside what is being moved already.")
@click.option("--preserve-throttles", is_flag=True, help="--verify and --cancel leave the limits as they are.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def reassign(cluster: Cluster, as_json: bool, **options: Any) -> int:
    """Partitions from broker to broker: generate, execute, verify, list, cancel.

    Exit code: 0 done, 1 --verify found partitions that are not where they should be, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    admin = cluster.admin()
    try:
        return _DOES[action](admin, options, as_json)
    finally:
        admin.close()


def _generate(admin: KafkaAdminClient, options: dict[str, Any], as_json: bool) -> int:
    if not (options["topics_to_move_json_file"] and options["broker_list"]):
        raise click.UsageError("--generate wants --topics-to-move-json-file and --broker-list")
    brokers = _broker_ids(options["broker_list"])
    topics = _topics_in(options["topics_to_move_json_file"])
    _check_brokers(admin, ((each, "which --broker-list names") for each in brokers))
    current = _replicas(admin, topics)
    for missing in sorted(set(topics) - {topic for topic, _ in current}):
        raise click.ClickException(f"there is no topic {missing!r}")
    proposed = _spread(current, brokers)
    if as_json:
        show_json({"current": _document(current), "proposed": _document(proposed)})
        return 0
    click.echo("Current partition replica assignment")
    click.echo(_plan(current) + "\n")
    click.echo("Proposed partition reassignment configuration")
    click.echo(_plan(proposed))
    return 0


def _spread(current: dict[Place, list[int]], brokers: list[int]) -> dict[Place, list[int]]:
    """As many replicas as now, round robin over the brokers: leaders take turns, and so do followers."""
    proposed: dict[Place, list[int]] = {}
    for at, (place, replicas) in enumerate(sorted(current.items())):
        if len(replicas) > len(brokers):
            raise click.ClickException(
                f"{_name(place)} has {len(replicas)} replicas, and there are {len(brokers)} brokers"
            )
        proposed[place] = [brokers[(at + step) % len(brokers)] for step in range(len(replicas))]
    return proposed


def _execute(admin: KafkaAdminClient, options: dict[str, Any], as_json: bool) -> int:
    wanted, log_dirs = _wanted(options)
    current = _replicas(admin, sorted({topic for topic, _ in wanted}))
    for place in wanted:
        if place not in current:
            raise click.ClickException(f"there is no partition {_name(place)}")
    goals = ((broker, f"where {_name(place)} is to go") for place in sorted(wanted) for broker in wanted[place])
    _check_brokers(admin, goals)
    if (moving := _moving(admin)) and not options["additional"]:
        count = f"{len(moving)} partition{'s are' if len(moving) != 1 else ' is'}"
        raise click.ClickException(f"{count} being moved already (--list): --additional moves these, too")
    directories = directories_of(options["reassignment_json_file"], wanted, log_dirs)
    before, limit = {place: current[place] for place in wanted}, options["throttle"]
    say = (lambda line: None) if as_json else click.echo
    say("Current partition replica assignment, to be kept for a way back:")
    say(_plan(before) + "\n")  # before anything moves: it is the way back
    if limit:
        Throttle(admin).set(limit, before, wanted)
        say(f"The inter-broker throttle is {limit} B/s until --verify finds all of it done.")
    ask_for(admin, directories)
    _alter(admin, dict(wanted))
    say(f"Started moving {len(wanted)} partition{'s' * (len(wanted) != 1)}; --verify says when it is done.")
    if as_json:
        facts = {"before": _document(before), "moving": sorted(map(_name, wanted))}
        show_json({**facts, "throttle": limit} if limit else facts)
    return 0


def _check_brokers(admin: KafkaAdminClient, named: Iterable[tuple[int, str]]) -> None:
    """Raises: ClickException for a broker that is not there. named: each with what names it."""
    there = {each["broker_id"] for each in admin.describe_cluster()["brokers"]}
    for broker, where in named:
        if broker not in there:
            known = ", ".join(map(str, sorted(there)))
            raise click.ClickException(f"there is no broker {broker}, {where}: there are {known}")


def _verify(admin: KafkaAdminClient, options: dict[str, Any], as_json: bool) -> int:
    wanted, log_dirs = _wanted(options)
    current = _replicas(admin, sorted({topic for topic, _ in wanted}))
    moving = _moving(admin)
    not_placed = elsewhere(admin, directories_of(options["reassignment_json_file"], wanted, log_dirs))
    rows = [
        {
            "partition": _name(place),
            "state": "in progress"
            if place in moving
            else not_placed.get(place, "done")
            if current.get(place) == replicas
            else "not as wanted",
            "wanted": replicas,
            "replicas": current.get(place),
        }
        for place, replicas in sorted(wanted.items())
    ]
    cleared = [] if moving or options["preserve_throttles"] else Throttle(admin).clear(wanted)
    if as_json:
        show_json(rows)
    else:
        show_table(("partition", "state", "wanted", "replicas"), rows)
        for line in cleared:
            click.echo(line, err=True)
    return 0 if all(row["state"] == "done" for row in rows) else 1


def _list(admin: KafkaAdminClient, options: dict[str, Any], as_json: bool) -> int:
    rows = [
        {
            "partition": _name(place),
            "replicas": each["replicas"],
            "adding": each["adding_replicas"],
            "removing": each["removing_replicas"],
        }
        for place, each in sorted(_moving(admin).items())
    ]
    if as_json:
        show_json(rows)
    elif rows:
        show_table(("partition", "replicas", "adding", "removing"), rows)
    else:
        click.echo("No partition reassignments found.", err=True)
    return 0


def _cancel(admin: KafkaAdminClient, options: dict[str, Any], as_json: bool) -> int:
    (wanted, _), moving = _wanted(options), _moving(admin)
    named = [place for place in wanted if place in moving]
    _alter(admin, dict.fromkeys(named))
    if not options["preserve_throttles"]:
        Throttle(admin).clear(wanted)
    sentence = f"Cancelled {len(named)} partition reassignment{'s' * (len(named) != 1)}."
    show_done(sentence, {"cancelled": sorted(map(_name, named))}, as_json=as_json)
    return 0


_DOES: dict[str, Callable[[KafkaAdminClient, dict[str, Any], bool], int]] = {
    "generate": _generate,
    "execute": _execute,
    "verify": _verify,
    "list": _list,
    "cancel": _cancel,
}


def _alter(admin: KafkaAdminClient, wanted: dict[Place, list[int] | None]) -> None:
    from kafka import TopicPartition

    if not wanted:
        return
    answers = admin.alter_partition_reassignments({TopicPartition(*place): to for place, to in wanted.items()})
    for partition, result in answers.items():
        if (wrong := fault_of(result)) is not None:
            raise click.ClickException(f"{partition.topic}-{partition.partition}: {said_by_broker(wrong)}")


def _moving(admin: KafkaAdminClient) -> dict[Place, dict[str, Any]]:
    return {(each.topic, each.partition): data for each, data in admin.list_partition_reassignments().items()}


def _replicas(admin: KafkaAdminClient, topics: list[str]) -> dict[Place, list[int]]:
    return {
        (topic["name"], part["partition_index"]): part["replica_nodes"]
        for topic in (admin.describe_topics(topics) if topics else [])
        for part in topic["partitions"]
    }


def _wanted(options: dict[str, Any]) -> tuple[dict[Place, list[int]], dict[Place, object]]:
    """What --reassignment-json-file says: replicas by partition, and log_dirs. It may be a pipe: it is read once."""
    path = options["reassignment_json_file"]
    if path is None:
        raise click.UsageError("this wants --reassignment-json-file")
    found = partitions_in(path, _entry, EXAMPLE)
    wanted = {place: replicas for place, (replicas, _) in found.items()}
    for place, replicas in wanted.items():
        if len(set(replicas)) < len(replicas):
            raise click.ClickException(f"{path}: {_name(place)}: a partition, and each of its replicas, once")
        if not replicas:
            raise click.ClickException(f"{path}: {_name(place)}: replicas: allowed: at least one broker")
    return wanted, {place: log_dirs for place, (_, log_dirs) in found.items()}


def _entry(each: Mapping[str, Any]) -> tuple[list[int], object]:
    return [exactly(int, broker) for broker in each["replicas"]], each.get("log_dirs", [])


def _topics_in(path: str) -> list[str]:
    try:
        return sorted({exactly(str, each["topic"]) for each in json_in(path)["topics"]})
    except (KeyError, TypeError):
        raise click.ClickException(f'{path}: allowed: {{"version":1,"topics":[{{"topic":"t"}}]}}') from None


def _broker_ids(text: str) -> list[int]:
    try:
        brokers = [whole(each) for each in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--broker-list {text}: broker ids, as in 1,2,3") from None
    if len(set(brokers)) < len(brokers):  # a partition would have two replicas on one
        raise click.UsageError(f"--broker-list {text}: each broker once")
    return brokers


def _document(assignment: dict[Place, list[int]]) -> dict[str, Any]:
    """In the form that --execute and Apache's tool read."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": replicas, "log_dirs": ["any"] * len(replicas)}
        for (topic, partition), replicas in sorted(assignment.items())
    ]
    return {"version": 1, "partitions": partitions}


def _plan(assignment: dict[Place, list[int]]) -> str:
    """The same on one line."""
    return json.dumps(_document(assignment), separators=(",", ":"))
