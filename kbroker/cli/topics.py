"""`kbroker topics`: list, describe, create, change and delete topics. Options are those of Apache's kafka-topics.sh."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, said_by_broker, speaks_to_cluster
from kbroker.cli._described import described_configs
from kbroker.cli._numbers import Number, whole
from kbroker.cli._offsets import EARLIEST, LATEST, offsets_of
from kbroker.cli._tables import show_done, show_json, show_table
from kbroker.cli._times import TIMES, time_or_mark
from kbroker.metadata.store import encode_uuid

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

Topic = dict[str, Any]
Partition = dict[str, Any]

_INTERNAL = "__"  # how the names of topics begin that brokers keep for themselves
_NO_LEADER = -1
_LEAST = "min.insync.replicas"
WHEN = f"earliest, latest, max-timestamp, MILLISECONDS, {TIMES}"
_UNKNOWN_TOPIC = 3
_DETAILS = ("partition", "leader", "replicas", "isr", "offline")


ACTIONS = {
    "list": "Names of topics.",
    "describe": "Partitions, leaders and replicas.",
    "create": "Make a topic.",
    "alter": "Give a topic more partitions.",
    "delete": "Delete topics.",
    "offsets": "Where each partition begins and ends, how many records that is, and offsets by time.",
}

_ONLY = {
    "when": ("offsets",),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "configs": ("create", "alter"),
    "if_exists": ("describe", "alter", "delete", "offsets"),
    "if_not_exists": ("create",),
    "include_internal": ("list", "describe", "delete", "offsets"),
    "exclude_internal": ("list", "describe", "delete", "offsets"),
    "topics_with_overrides": ("describe",),
    "narrow": ("describe",),
    "topic_id": ("describe",),
}


@click.command("topics")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--topic", help="Its name; a regular expression for --list, --describe, --offsets and --delete.")
@click.option("--time", "when", metavar="WHEN", help=f"With --offsets, of the first record since: {WHEN}.")
@click.option("--partitions", type=Number(1), help="How many (--create, --alter).")
@click.option("--replication-factor", type=Number(1), help="Replicas of each partition (--create).")
@click.option("--replica-assignment", metavar="1:2,2:3", help="Brokers of each partition instead of the two above.")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the new topic.")
@click.option("--if-exists", is_flag=True, help="It is no error if there is no such topic.")
@click.option("--if-not-exists", is_flag=True, help="It is no error if there is such a topic already.")
@click.option("--include-internal", is_flag=True, help="With __consumer_offsets and the like; or name them.")
@click.option("--exclude-internal", is_flag=True, help="Without those, as without the option before.")
@click.option("--topics-with-overrides", is_flag=True, help="Describe only topics with settings of their own.")
@click.option("--under-replicated-partitions", "narrow", flag_value="under-replicated", help="Describe only these.")
@click.option(
    "--unavailable-partitions", "narrow", flag_value="unavailable", help="Describe only those with no leader."
)
@click.option("--under-min-isr-partitions", "narrow", flag_value="under-min-isr", help="Only with fewer in sync.")
@click.option("--at-min-isr-partitions", "narrow", flag_value="at-min-isr", help="Only with just so many in sync.")
@click.option("--topic-id", help="Describe the topic of this id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def topics(cluster: Cluster, topic: str | None, as_json: bool, **options: Any) -> int:
    """Topics of a cluster: list, describe, create, alter, delete.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    if action in ("create", "alter", "delete") and topic is None:
        raise click.UsageError(f"--{action} wants --topic")
    admin = cluster.admin()
    try:
        _DOES[action](admin, topic, as_json, options)
    finally:
        admin.close()
    return 0


def _list(admin: KafkaAdminClient, topic: str | None, as_json: bool, options: dict[str, Any]) -> None:
    names = [each["name"] for each in _matching(admin, topic, options)]
    if as_json:
        show_json(names)
    elif names:
        click.echo("\n".join(names))


def _describe(admin: KafkaAdminClient, topic: str | None, as_json: bool, options: dict[str, Any]) -> None:
    wanted_id = options["topic_id"]
    found = list(_matching(admin, topic, {**options, "include_internal": options["include_internal"] or wanted_id}))
    if wanted_id is not None:
        found = [each for each in found if wanted_id in (_id(each), str(each["topic_id"]))]
    if (topic or wanted_id) is not None and not found and not options["if_exists"]:
        raise click.ClickException(f"there is no topic {wanted_id or topic!r}")
    configs = _settings(admin, [each["name"] for each in found])
    own = {name: {key: value for key, (value, is_own) in each.items() if is_own} for name, each in configs.items()}
    if options["topics_with_overrides"]:
        found = [each for each in found if own[each["name"]]]
    narrow = options["narrow"]
    described = []
    for each in found:
        name = each["name"]
        least = _least_in_sync(name, configs[name]) if narrow in _BY_LEAST else 0
        wanted = [part for part in each["partitions"] if _NARROW[narrow](part, least)]
        described.append(_described(each, own[name], wanted))
    described = [each for each in described if each["partitions"]]
    if as_json:
        show_json(described)
        return
    for each in described:
        settings = ",".join(f"{key}={value}" for key, value in each["configs"].items()) or "none of its own"
        count, factor = each["partition_count"], each["replication_factor"]
        spread = f"{count} partition{'s' * (count != 1)} x {factor} replica{'s' * (factor != 1)}"
        click.echo(f"{each['topic']}  id {each['topic_id']}, {spread}, settings: {settings}")
        show_table(_DETAILS, each["partitions"])
        click.echo()


def _described(topic: Topic, configs: dict[str, str], wanted: list[Partition]) -> dict[str, Any]:
    partitions = topic["partitions"]
    return {
        "topic": topic["name"],
        "topic_id": _id(topic),
        "partition_count": len(partitions),
        "replication_factor": max((len(each["replica_nodes"]) for each in partitions), default=0),
        "configs": configs,
        "partitions": [
            {
                "partition": each["partition_index"],
                "leader": None if each["leader_id"] == _NO_LEADER else each["leader_id"],
                "replicas": each["replica_nodes"],
                "isr": each["isr_nodes"],
                "offline": each["offline_replicas"],
            }
            for each in sorted(wanted, key=lambda each: int(each["partition_index"]))
        ],
    }


def _id(topic: Topic) -> str:
    """As Kafka's tools write it, and `partition.metadata` has it."""
    return encode_uuid(uuid.UUID(str(topic["topic_id"])).bytes)


def _least_in_sync(topic: str, settings: dict[str, tuple[str, bool]]) -> int:
    if _LEAST not in settings:
        raise click.ClickException(f"{_LEAST} of topic {topic} is not told: is DescribeConfigs allowed?")
    return int(settings[_LEAST][0])


_BY_LEAST = ("under-min-isr", "at-min-isr")
_NARROW: dict[str | None, Callable[[Partition, int], bool]] = {
    None: lambda _, __: True,
    "under-replicated": lambda each, _: len(each["isr_nodes"]) < len(each["replica_nodes"]),
    "unavailable": lambda each, _: bool(each["leader_id"] == _NO_LEADER),
    "under-min-isr": lambda each, least: len(each["isr_nodes"]) < least,
    "at-min-isr": lambda each, least: len(each["isr_nodes"]) == least,
}
"""Which partitions are described; the number is that of min.insync.replicas."""


def _offsets(admin: KafkaAdminClient, topic: str | None, as_json: bool, options: dict[str, Any]) -> None:
    when = options["when"]
    at = None if when is None else time_or_mark(when)
    if when is not None and at is None:
        raise click.UsageError(f"--time {when}: allowed: {WHEN}")
    found = list(_matching(admin, topic, options))
    if topic is not None and not found and not options["if_exists"]:
        raise click.ClickException(f"there is no topic {topic!r}")
    places = {(each["name"], part["partition_index"]): part for each in found for part in each["partitions"]}
    led = [place for place, part in places.items() if part["leader_id"] != _NO_LEADER]
    earliest, latest = offsets_of(admin, dict.fromkeys(led, EARLIEST)), offsets_of(admin, dict.fromkeys(led, LATEST))
    by_time = offsets_of(admin, dict.fromkeys(led, at)) if at is not None else {}
    rows = []
    for place in sorted(places):
        begin, end = earliest.get(place), latest.get(place)
        row: dict[str, Any] = {
            "topic": place[0],
            "partition": place[1],
            "earliest": begin.offset if begin else None,
            "latest": end.offset if end else None,
            "count": end.offset - begin.offset if begin and end else None,
        }
        if at is not None:
            match = by_time.get(place)
            is_there = match is not None and match.offset >= 0
            row["offset"] = match.offset if match is not None and is_there else None
            row["timestamp"] = match.timestamp if match is not None and is_there and match.timestamp >= 0 else None
        rows.append(row)
    if as_json:
        show_json(rows)
    elif rows:
        show_table(tuple(rows[0]), rows)


def _create(admin: KafkaAdminClient, topic: str, as_json: bool, options: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"configs": dict(_pair(each) for each in options["configs"])}
    assignment = options["replica_assignment"]
    if assignment and (options["partitions"] or options["replication_factor"]):
        raise click.UsageError("--replica-assignment goes without --partitions and --replication-factor")
    if assignment:
        wanted["assignments"] = dict(enumerate(_assignment(assignment)))  # partition by partition
    else:
        wanted["num_partitions"] = options["partitions"] or -1
        wanted["replication_factor"] = options["replication_factor"] or -1
    if options["if_not_exists"] and topic in admin.list_topics():
        if as_json:
            show_json({"created": []})
        return
    (answer,) = admin.create_topics({topic: wanted}, raise_errors=False)["topics"]
    _raise_for(answer)
    show_done(f"Created topic {topic}.", {"created": [topic]}, as_json=as_json)


def _alter(admin: KafkaAdminClient, topic: str, as_json: bool, options: dict[str, Any]) -> None:
    if options["configs"]:
        raise click.UsageError("settings of a topic that is there: kbroker configs --alter --topic T --add-config ...")
    if options["partitions"] is None:
        raise click.UsageError("--alter wants --partitions")
    if options["if_exists"] and topic not in admin.list_topics():
        if as_json:
            show_json({"altered": []})
        return
    change: Any = options["partitions"]
    if options["replica_assignment"]:
        change = {"count": change, "assignments": _assignment(options["replica_assignment"])}
    (answer,) = admin.create_partitions({topic: change}, raise_errors=False).results
    _raise_for({"error_code": answer.error_code, "error_message": answer.error_message})
    count = options["partitions"]
    facts = {"altered": [{"topic": topic, "partition_count": count}]}
    show_done(f"Topic {topic} has {count} partitions now.", facts, as_json=as_json)


def _delete(admin: KafkaAdminClient, topic: str, as_json: bool, options: dict[str, Any]) -> None:
    names = [each["name"] for each in _matching(admin, topic, options)]
    if not names and not options["if_exists"]:
        raise click.ClickException(f"there is no topic {topic!r}")
    answers = admin.delete_topics(names, raise_errors=False) if names else {"topics": []}
    deleted: list[str] = []
    for answer in answers["responses" if "responses" in answers else "topics"]:
        _raise_for(answer)
        deleted.append(answer["name"])
        if not as_json:
            click.echo(f"Deleted topic {answer['name']}.")
    if as_json:
        show_json({"deleted": deleted})


_DOES: dict[str, Callable[[KafkaAdminClient, Any, bool, dict[str, Any]], None]] = {
    "list": _list,
    "describe": _describe,
    "offsets": _offsets,
    "create": _create,
    "alter": _alter,
    "delete": _delete,
}


def _matching(admin: KafkaAdminClient, topic: str | None, options: dict[str, Any]) -> Iterator[Topic]:
    """Topics by name in order. topic: a regular expression that the whole name matches, as Apache's tool has it."""
    try:
        pattern = re.compile(topic if topic is not None else ".*")
    except re.error as error:
        raise click.UsageError(f"--topic {topic}: not a regular expression: {error}") from None
    names = sorted(name for name in admin.list_topics() if pattern.fullmatch(name))
    asked_for = options["include_internal"] or (topic or "").startswith(_INTERNAL)
    for each in admin.describe_topics(names) if names else []:
        is_hidden = each["is_internal"] and (options["exclude_internal"] or not asked_for)
        if each["error_code"] == _UNKNOWN_TOPIC or is_hidden:
            continue
        _raise_for(each)
        yield each


def _settings(admin: KafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, tuple[str, bool]]]:
    """Settings of topics, and whether each is the topic's own."""
    from kafka.admin import ConfigResource

    resources = [ConfigResource("TOPIC", name) for name in names]
    if not resources:
        return {}
    found = described_configs(admin, resources).get("topic", {})
    return {
        each.name: {
            key: (data["value"], data["config_source"] == "DYNAMIC_TOPIC_CONFIG")
            for key, data in found.get(each.name, {}).items()
        }
        for each in resources
    }


def _raise_for(answer: dict[str, Any]) -> None:
    if answer["error_code"]:
        raise click.ClickException(said_by_broker(answer["error_code"], answer.get("error_message")))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--config {text}: write it as KEY=VALUE")
    return key, value


def _assignment(text: str) -> list[list[int]]:
    try:
        return [[whole(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment {text}: broker ids, as in 1:2,2:3,3:1") from None
