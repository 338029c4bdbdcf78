"""Groups of all kinds as a cluster describes them: classic ones, and those of Kafka 4, each by a request of its own.

Called by `kbroker groups`. Asks the cluster, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import once_coordinated, said_by_broker, said_in_text
from kbroker.cli._own_requests import ask
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka.admin import KafkaAdminClient

    from protocol.message import Message

DEAD = "Dead"  # what a broker says of a group that it does not know
TYPES = CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "NotReady", "Empty", DEAD,
)  # fmt: skip


class Member(NamedTuple):
    """A member. epoch: None of a classic group. owned, target: topics and their partitions, or subtopologies and tasks,
    as text too; places: the partitions that it reads now."""

    member_id: str
    instance_id: str | None
    host: str
    client_id: str
    epoch: int | None
    owned: list[str]
    target: list[str] | None
    places: list[tuple[str, int]]


class Group(NamedTuple):
    """A group. epoch, assignment_epoch: None of a classic one. assignor: by what it is assigned."""

    group_id: str
    kind: str
    state: str
    assignor: str
    epoch: int | None
    assignment_epoch: int | None
    members: list[Member]


def described(admin: KafkaAdminClient, names: Sequence[str]) -> list[Group]:
    """These groups, in this order. One that is not there has the state Dead. Raises: ClickException, the client's."""
    if not names:
        return []
    kinds = kinds_of(admin, names)
    found: dict[str, Group] = {}
    for kind in sorted({*kinds.values()}):
        chosen = [name for name in names if kinds[name] == kind]
        for group in _DESCRIBERS[kind](admin, chosen):
            found[group.group_id] = group
    return [found[name] for name in names]


def kinds_of(admin: KafkaAdminClient, names: Iterable[str]) -> dict[str, str]:
    """The kind of each group; classic for one that is not there, and where brokers know no others."""
    listed = {each["group_id"]: str(each.get("group_type") or CLASSIC).lower() for each in admin.list_groups()}
    return {name: kind if (kind := listed.get(name, CLASSIC)) in _DESCRIBERS else CLASSIC for name in names}


def _classic(admin: KafkaAdminClient, names: Sequence[str]) -> list[Group]:
    groups = []
    for each in once_coordinated(lambda: admin.describe_groups(list(names))).values():
        if each["error"] and each["group_state"] != DEAD:
            raise click.ClickException(f"group {each['group_id']}: {said_in_text(each['error'])}")
        members = []
        for member in each["members"]:
            assigned = {part["topic"]: part["partitions"] for part in _assigned(member)}
            instance_id, host = member["group_instance_id"], member["client_host"]
            about = member["member_id"], instance_id, host, member["client_id"]
            members.append(Member(*about, None, _texts(assigned), None, _places(assigned)))
        about_it = each["group_id"], CLASSIC, each["group_state"], each["protocol_data"]
        groups.append(Group(*about_it, None, None, members))
    return groups


def _assigned(member: dict[str, Any]) -> list[dict[str, Any]]:
    """Partitions of a member; [] where what it was given is not a consumer's assignment."""
    assignment = member.get("member_assignment")
    return assignment.get("assigned_partitions", []) if isinstance(assignment, dict) else []


def _texts(assigned: Mapping[str, Iterable[int]]) -> list[str]:
    return [f"{topic}({','.join(map(str, sorted(assigned[topic])))})" for topic in sorted(assigned)]


def _places(assigned: Mapping[str, Iterable[int]]) -> list[tuple[str, int]]:
    return [(topic, partition) for topic in sorted(assigned) for partition in sorted(assigned[topic])]


def share_offsets(admin: KafkaAdminClient, name: str) -> dict[tuple[str, int], tuple[int, int | None]]:
    """Where a share group is in each partition that it has begun with, and how many records are not over, if known."""
    from protocol.messages import share_group_offsets as wire

    asked = wire.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    request = wire.DescribeShareGroupOffsetsRequest(groups=[asked])
    (group,) = ask(admin, request, admin._manager.run(admin._find_coordinator_ids, [name])[name]).groups
    if group.error_code:
        raise click.ClickException(f"group {name}: {said_by_broker(group.error_code, group.error_message)}")
    return {
        (topic.topic_name, part.partition_index): (part.start_offset, part.lag if part.lag >= 0 else None)
        for topic in group.topics
        for part in topic.partitions
        if not part.error_code and part.start_offset >= 0
    }


# --- those of Kafka 4


def _consumer(admin: KafkaAdminClient, names: Sequence[str]) -> list[Group]:
    from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

    return [_modern(CONSUMER, each) for each in _answers(admin, names, ConsumerGroupDescribeRequest)]


def _share(admin: KafkaAdminClient, names: Sequence[str]) -> list[Group]:
    from protocol.messages.share_groups import ShareGroupDescribeRequest

    return [_modern(SHARE, each) for each in _answers(admin, names, ShareGroupDescribeRequest)]


def _modern(kind: str, group: Any) -> Group:
    members = []
    for member in group.members:
        owned = {part.topic_name: part.partitions for part in member.assignment.topic_partitions}
        target = None
        if kind == CONSUMER:
            target = _texts({part.topic_name: part.partitions for part in member.target_assignment.topic_partitions})
        instance_id = member.instance_id if kind == CONSUMER else None
        about = member.member_id, instance_id, member.client_host, member.client_id, member.member_epoch
        members.append(Member(*about, _texts(owned), target, _places(owned)))
    return _group(kind, group, members)


def _streams(admin: KafkaAdminClient, names: Sequence[str]) -> list[Group]:
    from protocol.messages.streams_groups import StreamsGroupDescribeRequest

    groups = []
    for group in _answers(admin, names, StreamsGroupDescribeRequest):
        parts = () if group.topology is None else group.topology.subtopologies or ()
        sources = {
            part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
            for part in parts
        }
        members = []
        for member in group.members:
            active = {each.subtopology_id: each.partitions for each in member.assignment.active_tasks}
            places = [
                (topic, partition)
                for subtopology, partitions in active.items()
                for topic in sources.get(subtopology, ())
                for partition in partitions
            ]
            owned, target = _tasks(member.assignment), _tasks(member.target_assignment)
            about = member.member_id, member.instance_id, member.client_host, member.client_id, member.member_epoch
            members.append(Member(*about, owned, target, sorted(places)))
        groups.append(_group(STREAMS, group, members))
    return groups


def _tasks(tasks: Any) -> list[str]:
    """Tasks as text: those that are not active say what they are."""
    roles = ("", tasks.active_tasks), (" standby", tasks.standby_tasks), (" warm-up", tasks.warmup_tasks)
    return [
        text + role for role, ids in roles for text in _texts({each.subtopology_id: each.partitions for each in ids})
    ]


def _group(kind: str, group: Any, members: list[Member]) -> Group:
    assignor = group.assignor_name or ""
    return Group(
        group.group_id, kind, group.group_state or DEAD, assignor, group.group_epoch, group.assignment_epoch, members
    )


_DESCRIBERS: dict[str, Callable[[KafkaAdminClient, Sequence[str]], list[Group]]] = {
    CLASSIC: _classic,
    CONSUMER: _consumer,
    SHARE: _share,
    STREAMS: _streams,
}


def _answers(admin: KafkaAdminClient, names: Sequence[str], request: type[Message]) -> list[Any]:
    """What the coordinator of each group says of it. Raises: ClickException."""
    return [once_coordinated(partial(_answer, admin, name, request)) for name in names]


def _answer(admin: KafkaAdminClient, name: str, request: type[Message]) -> Any:
    from kafka import errors

    coordinator = admin._manager.run(admin._find_coordinator_ids, [name])[name]
    asked = request(group_ids=[name], include_authorized_operations=False)  # type: ignore[call-arg]
    (group,) = ask(admin, asked, coordinator).groups
    if group.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        raise errors.NotCoordinatorError
    if group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        raise errors.CoordinatorLoadInProgressError
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise click.ClickException(f"group {name}: {said_by_broker(group.error_code, group.error_message)}")
    return group
