"""Groups of every kind: members, what each has, lag, why it does not get records; and offsets put elsewhere.

A kind of group is a row of `KINDS`: the request that describes it, and what of its answer is shown. What the protocol
has of a kind that is not served by a cluster is not asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from kbroker.console.cluster import Cluster, ConsoleError, Place, by_topic, check, said_of
from kbroker.console.offsets import EARLIEST, LATEST, committed, ends, offsets_at
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.message import DecodeError
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.stored import decode_versioned, version_of
from protocol.schema import fields

ROWS = 200
ROLES = ("active", "standby", "warmup")  # of tasks
SHARE_DESCRIBE, SHARE_OFFSETS, SHARE_RESET, STREAMS_DESCRIBE = 77, 90, 91, 89
COMMIT_BY_NAME = 9  # the last version of OffsetCommit that names topics
HOW = {
    "earliest": "to the oldest record",
    "latest": "to the end: only what is new",
    "offset": "to an offset",
    "shift": "by a number of records, back if it is negative",
    "time": "to a time",
    "ago": "to some time ago",
}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LIMIT_MS = 253402300799999  # the year 9999


def groups(cluster: Cluster, search: str = "", kind: str = "", after: str = "") -> dict[str, Any]:
    """Groups by id, some at a time. search: a part of the id. kind: classic, consumer, share, streams. after: the last
    id of the rows before."""
    found: dict[str, dict[str, Any]] = {}
    for node, answer in cluster.ask_all(ListGroupsRequest()).items():
        check(answer.error_code if answer.error_code not in (14, 15) else 0)
        for each in answer.groups:
            found[each.group_id] = {
                "group": each.group_id,
                "kind": (each.group_type or "classic").casefold(),
                "protocol": each.protocol_type,
                "state": each.group_state,
                "coordinator": node,
            }
    names = sorted(
        name
        for name, each in found.items()
        if name > after and search.casefold() in name.casefold() and kind in ("", each["kind"])
    )
    return {
        "groups": [found[name] for name in names[:ROWS]],
        "count": len(names) if not after else None,
        "next": names[ROWS - 1] if len(names) > ROWS else None,
        "kinds": sorted({each["kind"] for each in found.values()}),
    }


def group(cluster: Cluster, name: str) -> dict[str, Any]:
    """One group: its members, what each has, its offsets, how far behind they are, and what that means."""
    node = cluster.coordinator(name)
    found = _described(cluster, name, node)
    rows = _lag(cluster, found, node)
    found |= {"coordinator": node, "offsets": rows, "lag": sum(each["lag"] or 0 for each in rows)}
    found["findings"] = findings(found)
    return found


def _described(cluster: Cluster, name: str, node: int) -> dict[str, Any]:
    kind = _kind_of(cluster, name, node)
    if kind in KINDS and KINDS[kind][0] in BY_KEY:
        return KINDS[kind][1](cluster, name, node)
    (found,) = cluster.ask(DescribeGroupsRequest(groups=[name]), node).groups
    check(found.error_code, found.error_message)
    members = [
        {
            "member": each.member_id,
            "instance": each.group_instance_id,
            "client": each.client_id,
            "host": each.client_host,
            "epoch": None,
            "subscribed": _subscription(each.member_metadata),
            "has": _assignment(each.member_assignment),
        }
        for each in found.members
    ]
    return {
        "group": name,
        "kind": "classic",
        "state": found.group_state,
        "assignor": found.protocol_data,
        "protocol": found.protocol_type,
        "epoch": None,
        "members": members,
    }


def _kind_of(cluster: Cluster, name: str, node: int) -> str:
    answer = cluster.ask(ListGroupsRequest(), node)
    return next((each.group_type.casefold() for each in answer.groups if each.group_id == name), "classic")


def _consumer(cluster: Cluster, name: str, node: int) -> dict[str, Any]:
    """A group of KIP-848."""
    (found,) = cluster.ask(
        ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False), node
    ).groups
    return _of_epochs("consumer", found)


def _share(cluster: Cluster, name: str, node: int) -> dict[str, Any]:
    """A share group of KIP-932."""
    (found,) = cluster.ask(_request(SHARE_DESCRIBE, group_ids=[name]), node).groups
    return _of_epochs("share", found)


def _streams(cluster: Cluster, name: str, node: int) -> dict[str, Any]:
    """A Streams group of KIP-1071: a member has tasks, each of a subtopology and of one partition of its topics."""
    (found,) = cluster.ask(_request(STREAMS_DESCRIBE, group_ids=[name]), node).groups
    described = _of_epochs("streams", found)
    subtopologies = (found.topology.subtopologies or ()) if found.topology is not None else ()
    sources = {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in subtopologies
    }
    wanted = dict.fromkeys(topic for topics in sources.values() for topic in topics)
    partitions = {
        topic.name: {each.number for each in topic.partitions}
        for name_of_topic in wanted
        if (topic := cluster.known(name_of_topic)) is not None
    }
    for shown, member in zip(described["members"], found.members, strict=True):
        shown["subscribed"] = list(wanted)
        shown["tasks"] = {role: _tasks(getattr(member.assignment, f"{role}_tasks")) for role in ROLES}
        for task in member.assignment.active_tasks:
            for topic_name in sources.get(task.subtopology_id, ()):
                numbers = [each for each in task.partitions if each in partitions.get(topic_name, ())]
                shown["has"].setdefault(topic_name, []).extend(numbers)
    described["missing"] = [each for each in wanted if each not in partitions]
    return described


def _tasks(tasks: Iterable[Any]) -> list[str]:
    """Tasks as Kafka Streams writes them."""
    return [f"{each.subtopology_id}_{number}" for each in tasks for number in each.partitions]


KINDS: dict[str, tuple[int, Callable[[Cluster, str, int], dict[str, Any]]]] = {
    "consumer": (69, _consumer),
    "share": (SHARE_DESCRIBE, _share),
    "streams": (STREAMS_DESCRIBE, _streams),
}


def _of_epochs(kind: str, found: Any) -> dict[str, Any]:
    """What the answers about the newer kinds of groups have in common."""
    check(found.error_code, getattr(found, "error_message", None))
    members = []
    for each in found.members:
        topic_partitions = getattr(each.assignment, "topic_partitions", ())
        members.append(
            {
                "member": each.member_id,
                "instance": getattr(each, "instance_id", None),
                "client": each.client_id,
                "host": each.client_host,
                "epoch": each.member_epoch,
                "subscribed": list(getattr(each, "subscribed_topic_names", ()) or ()),
                "has": {part.topic_name: list(part.partitions) for part in topic_partitions},
            }
        )
    return {
        "group": found.group_id,
        "kind": kind,
        "state": found.group_state,
        "assignor": getattr(found, "assignor_name", ""),
        "protocol": kind,
        "epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "members": members,
    }


def _subscription(data: bytes) -> list[str]:
    found = _embedded(ConsumerProtocolSubscription, data)
    return list(found.topics) if found is not None else []


def _assignment(data: bytes) -> dict[str, list[int]]:
    found = _embedded(ConsumerProtocolAssignment, data)
    return {each.topic: list(each.partitions) for each in found.assigned_partitions} if found is not None else {}


def _embedded(kind: Any, data: bytes) -> Any:
    """What a consumer's own protocol says; None of another protocol, or of nothing."""
    try:
        version_of(data)
        return decode_versioned(kind, data, newer_as_newest=True)
    except DecodeError:
        return None


def _lag(cluster: Cluster, found: dict[str, Any], node: int) -> list[dict[str, Any]]:
    """A row for each partition that the group has committed or a member has."""
    owners = {
        (topic, number): member
        for member in found["members"]
        for topic, numbers in member["has"].items()
        for number in numbers
    }
    starts_at: dict[Place, tuple[int, str]] = {}
    if found["kind"] == "share":
        starts_at = _share_offsets(cluster, found["group"], node)
    else:
        starts_at = committed(cluster, found["group"])
    subscribed = {topic for member in found["members"] for topic in member["subscribed"]}
    topics = [topic for name in subscribed if (topic := cluster.known(name)) is not None]
    places = {*starts_at, *owners} | {(topic.name, each.number) for topic in topics for each in topic.partitions}
    starts, stops = ends(cluster, places)
    stable = offsets_at(cluster, dict.fromkeys(places, LATEST), committed_only=True)
    rows = []
    for place in sorted(places):
        offset, metadata = starts_at.get(place, (None, ""))
        end, member = stops.get(place), owners.get(place)
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "offset": offset,
                "start_offset": starts.get(place),
                "end_offset": end,
                "stable_offset": stable.get(place),
                "lag": None if offset is None or end is None else max(end - offset, 0),
                "metadata": metadata,
                "member": member["member"] if member is not None else None,
                "client": member["client"] if member is not None else None,
                "host": member["host"] if member is not None else None,
            }
        )
    return rows


def _share_offsets(cluster: Cluster, name: str, node: int) -> dict[Place, tuple[int, str]]:
    if SHARE_OFFSETS not in BY_KEY:
        return {}
    kind: Any = _element(BY_KEY[SHARE_OFFSETS].request, "groups")
    answer = cluster.ask(_request(SHARE_OFFSETS, groups=[kind(group_id=name, topics=None)]), node)
    return {
        (topic.topic_name, part.partition_index): (part.start_offset, "")
        for each in answer.groups
        for topic in each.topics
        for part in topic.partitions
        if part.start_offset >= 0
    }


def _element(kind: Any, name: str) -> Any:
    """The class of an array's elements."""
    (field,) = (each for each in fields(kind) if each.name == name)
    return field.type.element.struct if field.type.element is not None else None


def _request(key: int, **given: Any) -> Any:
    """A request of an API that not every release of the protocol has, whatever else is in it at its default."""
    kind: Any = BY_KEY[key].request
    return kind(**{each.name: each.default_value() for each in fields(kind)} | given)


# ---- what it means


def findings(found: dict[str, Any]) -> list[dict[str, str]]:
    """Why a group gets no records, or is behind, in sentences. level: bad, odd or good."""
    told: list[tuple[str, str]] = [*_of_members(found)]
    for row in found["offsets"]:
        told += _of_partition(found, row)
    if not told and found["offsets"] and all(row["lag"] == 0 for row in found["offsets"]):
        told.append(("good", "Every partition is read to its end."))
    return [{"level": level, "text": text} for level, text in told[:50]]


def _of_members(found: dict[str, Any]) -> Iterable[tuple[str, str]]:
    members, state = found["members"], found["state"]
    if not members:
        yield "bad", "The group has no member: no client reads for it now. Start a consumer with this group.id."
    elif state == "NotReady":
        missing = [f"topic {each} does not exist" for each in found.get("missing", ())]
        why = "; ".join(missing) or "topics that it makes for itself are not there yet"
        yield "bad", f"The group cannot begin: {why}. Its members get tasks once they are all there."
    elif state == "PreparingRebalance":
        yield "odd", "The group rebalances: members join, and until all have, none of them gets records."
    elif state == "Assigning":
        yield "odd", "The group rebalances: its coordinator works out who gets what."
    elif state in ("CompletingRebalance", "Reconciling"):
        yield "odd", "The group rebalances: members are told which partitions they have."
    without = [each for each in members if not each["has"]]
    if members and state in ("Stable", "Reconciling") and without and len(without) < len(members) + 1:
        wanted = [each for each in without if each["subscribed"] or found["kind"] != "classic"]
        if wanted and found["kind"] != "share":
            names = ", ".join(each["client"] or each["member"] for each in wanted[:3])
            yield (
                "odd",
                (
                    f"{len(wanted)} of {len(members)} members have no partition ({names}): there are more members than "
                    "partitions. Give the topic more partitions, or run fewer members."
                ),
            )


def _of_partition(found: dict[str, Any], row: dict[str, Any]) -> Iterable[tuple[str, str]]:
    name = f"{row['topic']}-{row['partition']}"
    offset, start, end, stable = row["offset"], row["start_offset"], row["end_offset"], row["stable_offset"]
    if end is None:
        yield "bad", f"{name} has no leader, or is gone: it can be neither read nor written."
        return
    if offset is None:
        if found["kind"] == "share":
            yield (
                "odd",
                (
                    f"{name}: no record was given out yet. Where the group begins is said by its setting "
                    "share.auto.offset.reset: with latest, records that were there before it came are passed over."
                ),
            )
        elif row["member"]:
            yield (
                "odd",
                (
                    f"{name}: nothing is committed yet. Where its reader begins is said by auto.offset.reset: with "
                    "latest, records that were there before it came are passed over."
                ),
            )
        return
    if start is not None and offset < start:
        yield (
            "bad",
            (
                f"{name}: the committed offset {offset} is before the log's start {start}: retention has deleted what "
                "comes next. The reader goes on where auto.offset.reset says."
            ),
        )
    elif offset > end:
        yield (
            "bad",
            (
                f"{name}: the committed offset {offset} is behind the log's end {end}: the topic was made again, or "
                "truncated. The reader goes on where auto.offset.reset says."
            ),
        )
    if stable is not None and stable < end and offset >= stable:
        yield (
            "bad",
            (
                f"{name}: an open transaction begins at {stable}. Consumers with isolation.level=read_committed "
                f"wait there until it ends; {end - stable} records are behind it. See Transactions."
            ),
        )
    elif row["lag"] and found["members"]:
        if row["member"]:
            yield "odd", f"{name}: {row['lag']:,} records behind. {row['client'] or row['member']} reads it."
        elif found["kind"] != "share":
            yield "bad", f"{name}: {row['lag']:,} records behind, and no member has this partition."
    elif row["lag"]:
        yield "odd", f"{name}: {row['lag']:,} records wait for a member."


# ---- to change


def reset_group(
    cluster: Cluster,
    group: str,
    topic: str,
    how: str,
    value: str = "",
    partitions: str = "",
    dry_run: bool = True,
) -> dict[str, Any]:
    """Put a group's offsets elsewhere; it must have no members. how: earliest, latest, offset, shift, time, ago.

    value: an offset, a number of records, a time (2026-01-31T12:00, UTC), or how long ago (90m, 1d). partitions: with
    commas, all without. dry_run: only say where it would go, which is what happens unless it is false.
    """
    if how not in HOW:
        raise ConsoleError(f"how={how}: allowed: {', '.join(HOW)}")
    numbers = _numbers(partitions)
    places = [(topic, each.number) for each in cluster.topic(topic).partitions if not numbers or each.number in numbers]
    starts, stops = ends(cluster, places)
    node = cluster.coordinator(group)
    is_share = _kind_of(cluster, group, node) == "share"
    now = _share_offsets(cluster, group, node) if is_share else committed(cluster, group)
    targets = _targets(cluster, how, value, places, {place: each[0] for place, each in now.items()}, starts, stops)
    rows: list[dict[str, Any]] = []
    for place in places:
        if place in stops and place in starts:
            target = min(max(targets[place], starts[place]), stops[place])
            before = now[place][0] if place in now else None
            rows.append(
                {
                    "topic": topic,
                    "partition": place[1],
                    "before": before,
                    "after": target,
                    "start_offset": starts[place],
                    "end_offset": stops[place],
                    "records_again": None if before is None else before - target,
                    "lag": stops[place] - target,
                }
            )
    if not dry_run:
        (_commit_shared if is_share else _commit)(cluster, group, targets_of(topic, rows))
    return {"group": group, "topic": topic, "how": HOW[how], "value": value, "offsets": rows, "dry_run": dry_run}


def targets_of(topic: str, rows: Sequence[dict[str, Any]]) -> dict[Place, int]:
    """Where the rows of a reset put each partition."""
    return {(topic, each["partition"]): each["after"] for each in rows}


def _numbers(text: str) -> set[int]:
    try:
        return {int(each) for each in text.split(",") if each.strip()}
    except ValueError:
        raise ConsoleError(f"partitions={text}: write numbers with commas, as 0,2") from None


def _targets(
    cluster: Cluster,
    how: str,
    value: str,
    places: Sequence[Place],
    now: dict[Place, int],
    starts: dict[Place, int],
    stops: dict[Place, int],
) -> dict[Place, int]:
    if how == "earliest":
        return {place: starts.get(place, 0) for place in places}
    if how == "latest":
        return {place: stops.get(place, 0) for place in places}
    if how in ("offset", "shift"):
        try:
            number = int(value)
        except ValueError:
            raise ConsoleError(f"value={value}: write a whole number") from None
        if how == "offset":
            return dict.fromkeys(places, number)
        return {place: now.get(place, stops.get(place, 0)) + number for place in places}
    at_ms = time_of(value) if how == "time" else int(time.time() * 1000) - ago_ms(value)
    found = offsets_at(cluster, dict.fromkeys(places, max(at_ms, 0)))
    return {place: found[place] if found.get(place, -1) >= 0 else stops.get(place, 0) for place in places}


def time_of(text: str) -> int:
    """A time that a person has written, in ms since 1970; UTC unless it says another zone. Raises: ConsoleError."""
    try:
        found = datetime.fromisoformat(text.strip())
        at_ms = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConsoleError(f"{text!r} is no time: write it as 2026-01-31T12:00 (UTC)") from None
    return min(max(at_ms, 0), _LIMIT_MS)


def ago_ms(text: str) -> int:
    """How long ago, in ms: 30s, 90m, 1h, 1d, 2w. Raises: ConsoleError."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise ConsoleError(f"{text!r} is no time: write how long ago as 30s, 90m, 1h, 1d or 2w")
    return int(min(float(found[1]) * _SECONDS[found[2]] * 1000, _LIMIT_MS))


def _commit(cluster: Cluster, group: str, targets: dict[Place, int]) -> None:
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=at, committed_offset=targets[name, at], committed_metadata=""
                )
                for at in numbers
            ],
        )
        for name, numbers in by_topic(targets).items()
    ]
    answer = cluster.ask(OffsetCommitRequest(group_id=group, topics=topics), cluster.coordinator(group), COMMIT_BY_NAME)
    codes = {part.error_code for topic in answer.topics for part in topic.partitions} - {0}
    for code in codes:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            raise ConsoleError(f"group {group} has members, who would overwrite it: stop its consumers first")
        raise ConsoleError(said_of(code))


def _commit_shared(cluster: Cluster, group: str, targets: dict[Place, int]) -> None:
    of_topics: Any = _element(BY_KEY[SHARE_RESET].request, "topics")
    of_partitions: Any = _element(of_topics, "partitions")
    topics = [
        of_topics(
            topic_name=name,
            partitions=[of_partitions(partition_index=at, start_offset=targets[name, at]) for at in numbers],
        )
        for name, numbers in by_topic(targets).items()
    ]
    answer = cluster.ask(_request(SHARE_RESET, group_id=group, topics=topics), cluster.coordinator(group))
    check(answer.error_code, answer.error_message)
    for part in (part for each in answer.responses for part in each.partitions):
        check(part.error_code, part.error_message)


def delete_group(cluster: Cluster, group: str, typed: str) -> dict[str, Any]:
    """Forget a group and its offsets; it must have no members. typed: its id once more."""
    if typed != group:
        raise ConsoleError(f"nothing is deleted: type the group's id, {group}, to delete it")
    (answer,) = cluster.ask(DeleteGroupsRequest(groups_names=[group]), cluster.coordinator(group)).results
    check(answer.error_code)
    return {"group": group, "deleted": True}


def forget_offsets(cluster: Cluster, group: str, topic: str) -> dict[str, Any]:
    """Forget what a group has committed for a topic."""
    places = [place for place in committed(cluster, group) if place[0] == topic]
    parts = [OffsetDeleteRequestPartition(partition_index=at) for _, at in places]
    request = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=parts)])
    answer = cluster.ask(request, cluster.coordinator(group))
    check(answer.error_code)
    for part in (part for each in answer.topics for part in each.partitions):
        check(part.error_code)
    return {"group": group, "topic": topic, "partitions": len(parts)}


__all__ = ["EARLIEST", "HOW", "LATEST", "delete_group", "forget_offsets", "group", "groups", "reset_group"]
