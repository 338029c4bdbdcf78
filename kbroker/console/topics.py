"""Topics: what there is of each, made and changed. What every function gives is a page's values and a script's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kbroker.console.cluster import Cluster, ConsoleError, Topic, check
from kbroker.console.offsets import committed_by_groups, ends, stored
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.groups import ListGroupsRequest
from protocol.messages.offsets import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

ROWS = 100  # of a page that goes on below
MOST_GROUPS = 500  # whose offsets are looked at for one topic
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
TIMEOUT_MS = 10_000
NAMES_LAST = 5  # version of DeleteTopics
SOURCES = {
    1: "topic",
    2: "broker (dynamic)",
    3: "cluster (dynamic)",
    4: "broker (file)",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
TYPES = {1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class", 9: "password"}


def topics(
    cluster: Cluster, search: str = "", internal: bool = False, after: str = "", fresh: bool = False
) -> dict[str, Any]:
    """Topics by name, some at a time: how many partitions, replicas, records and bytes.

    search: a part of the name. after: the last name of the rows before. fresh: as they are now; else as they were a
    few seconds ago at most.
    """
    every = cluster.described(fresh=fresh).topics
    names = sorted(
        name
        for name, topic in every.items()
        if name > after and search.casefold() in name.casefold() and (internal or not topic.is_internal)
    )
    shown = names[:ROWS]
    places = [(name, each.number) for name in shown for each in every[name].partitions]
    starts, stops = ends(cluster, places)
    sizes = _sizes(cluster, shown)
    rows = [
        {
            "name": name,
            "internal": every[name].is_internal,
            "partitions": len(every[name].partitions),
            "replicas": max((len(each.replicas) for each in every[name].partitions), default=0),
            "healthy": every[name].is_healthy,
            "records": sum(
                stops[name, each.number] - starts.get((name, each.number), 0)
                for each in every[name].partitions
                if (name, each.number) in stops
            ),
            "bytes": sizes.get(name),
        }
        for name in shown
    ]
    return {
        "topics": rows,
        "count": len(names) if not after else None,
        "all": len(every),
        "next": shown[-1] if len(names) > ROWS else None,
    }


def _sizes(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    """Bytes of topics, all replicas together; nothing where this user may not see log directories."""
    try:
        replicas, _ = stored(cluster, names)
    except ConsoleError:
        return {}
    found = dict.fromkeys(names, 0)
    for each in replicas:
        found[each.place[0]] += each.size
    return found


def topic(cluster: Cluster, name: str) -> dict[str, Any]:
    """One topic: its partitions with leaders, replicas, offsets and sizes, and its settings, with documentation."""
    found = cluster.topic(name)
    places = [(name, each.number) for each in found.partitions]
    starts, stops = ends(cluster, places)
    sizes: dict[int, dict[int, int]] | None = None
    with suppress(ConsoleError):
        sizes = _sizes_by_broker(cluster, name)
    rows = []
    for part in found.partitions:
        start, end = starts.get((name, part.number)), stops.get((name, part.number))
        rows.append(
            {
                "partition": part.number,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": part.replicas,
                "in_sync": part.in_sync,
                "offline": part.offline,
                "start_offset": start,
                "end_offset": end,
                "records": None if start is None or end is None else end - start,
                "bytes": None if sizes is None else sizes.get(part.number, {}),
            }
        )
    return {
        "name": name,
        "internal": found.is_internal,
        "healthy": found.is_healthy,
        "partitions": rows,
        "records": sum(each["records"] or 0 for each in rows),
        "bytes": None if sizes is None else sum(sum(each.values()) for each in sizes.values()),
        "settings": settings_of(cluster, TOPIC, name),
    }


def _sizes_by_broker(cluster: Cluster, name: str) -> dict[int, dict[int, int]]:
    found: dict[int, dict[int, int]] = {}
    for each in stored(cluster, [name])[0]:
        found.setdefault(each.place[1], {})[each.node] = each.size
    return found


def topic_groups(cluster: Cluster, name: str) -> dict[str, Any]:
    """Groups that have committed offsets of a topic, and how far behind its end they are."""
    found = cluster.topic(name)
    listed = sorted(
        {each.group_id for answer in cluster.ask_all(ListGroupsRequest()).values() for each in answer.groups}
    )
    _, stops = ends(cluster, [(name, each.number) for each in found.partitions])
    rows = []
    for group, offsets in committed_by_groups(cluster, listed[:MOST_GROUPS]).items():
        mine = {place: offset for place, offset in offsets.items() if place in stops}
        if mine:
            lag = sum(max(stops[place] - offset, 0) for place, offset in mine.items())
            rows.append({"group": group, "partitions": len(mine), "lag": lag})
    return {"topic": name, "groups": rows, "groups_not_looked_at": max(len(listed) - MOST_GROUPS, 0)}


def settings_of(cluster: Cluster, kind: int, name: str) -> list[dict[str, Any]]:
    """Settings of a topic or a broker, those that were set first. Raises: ConsoleError."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    node = int(name) if kind == BROKER else None
    with cluster.connection(node) as (connection, where):
        from kbroker.console.cluster import asked

        if connection.protocol.served.get(32, (0, 0))[1] < 3:
            request = DescribeConfigsRequest(resources=[resource])
        (found,) = asked(connection, request, where).results
    check(found.error_code, found.error_message)
    rows = [
        {
            "name": each.name,
            "value": None if each.is_sensitive else each.value,
            "sensitive": each.is_sensitive,
            "read_only": each.read_only,
            "default": next((same.value for same in each.synonyms if same.source == 5), None),
            "is_default": each.is_default or each.config_source == 5,
            "source": SOURCES.get(each.config_source, "default" if each.is_default else "set"),
            "set_here": each.config_source == (1 if kind == TOPIC else 2),
            "type": TYPES.get(each.config_type, ""),
            "documentation": each.documentation or "",
        }
        for each in found.configs
    ]
    return sorted(rows, key=lambda each: (not each["set_here"], each["is_default"], each["name"]))


# ---- to change


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    replicas: int = -1,
    cleanup_policy: str = "",
    settings: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Make a topic. replicas: -1 for the cluster's default. settings: a line for each, name=value."""
    given = parse_settings(settings)
    if cleanup_policy:
        given["cleanup.policy"] = cleanup_policy
    if not name:
        raise ConsoleError("a topic has a name: fill it in")
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in given.items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=dry_run)
    (answer,) = cluster.ask(request, cluster.controller()).topics
    check(answer.error_code, answer.error_message)
    if not dry_run:
        cluster.described(fresh=True)
    return {"topic": name, "partitions": partitions, "settings": given, "dry_run": dry_run}


def delete_topic(cluster: Cluster, name: str, typed: str) -> dict[str, Any]:
    """Delete a topic and all its records. typed: its name once more."""
    if typed != name:
        raise ConsoleError(f"nothing is deleted: type the topic's name, {name}, to delete it")
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
    (answer,) = cluster.ask(request, cluster.controller(), NAMES_LAST).responses
    check(answer.error_code, answer.error_message)
    cluster.described(fresh=True)
    return {"topic": name, "deleted": True}


def empty_topic(cluster: Cluster, name: str, typed: str) -> dict[str, Any]:
    """Delete the records of a topic, and leave it. typed: its name once more."""
    if typed != name:
        raise ConsoleError(f"nothing is deleted: type the topic's name, {name}, to delete its records")
    found = cluster.topic(name)
    for leader, places in cluster.leaders((name, each.number) for each in found.partitions).items():
        parts = [DeleteRecordsPartition(partition_index=at, offset=-1) for _, at in places]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=parts)], timeout_ms=TIMEOUT_MS)
        for each in cluster.ask(request, leader).topics[0].partitions:
            check(each.error_code)
    return {"topic": name, "emptied": True}


def add_partitions(cluster: Cluster, name: str, count: int) -> dict[str, Any]:
    """Give a topic more partitions. count: how many it has then."""
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=False)
    (answer,) = cluster.ask(request, cluster.controller()).results
    check(answer.error_code, answer.error_message)
    return {"topic": name, "partitions": count}


def change_setting(
    cluster: Cluster, kind: str, of: str, setting: str, value: str = "", unset: bool = False
) -> dict[str, Any]:
    """Set a setting, or take it back. kind: topic or broker. of: the topic, or the broker's id."""
    types = {"topic": TOPIC, "broker": BROKER}
    if kind not in types:
        raise ConsoleError(f"kind={kind}: allowed: {', '.join(types)}")
    change = IncrementalAlterableConfig(
        name=setting, config_operation=DELETE if unset else SET, value=None if unset else value
    )
    resource = IncrementalAlterConfigsResource(resource_type=types[kind], resource_name=of, configs=[change])
    node = int(of) if kind == "broker" and of else None
    (answer,) = cluster.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), node).responses
    check(answer.error_code, answer.error_message)
    return {"kind": kind, "of": of, "setting": setting, "value": None if unset else value}


def parse_settings(text: str) -> dict[str, str]:
    """Lines of name=value. Raises: ConsoleError."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConsoleError(f"{line}: write a setting as name=value, one a line")
        found[key.strip()] = value.strip()
    return found


def partitions_of(found: Topic) -> Mapping[int, int]:
    """Leaders by partition."""
    return {each.number: each.leader for each in found.partitions}
