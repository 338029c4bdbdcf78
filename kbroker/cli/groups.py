"""`kbroker groups`: groups of all kinds, members, offsets and lag. Options are those of kafka-consumer-groups.sh.

Offsets are reset for groups without members, by the specification that the options give; without --execute it is only
shown what would be done, as Apache's tool has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._actions import actions, chosen
from kbroker.cli._cluster import Cluster, fault_of, once_coordinated, said_by_broker, speaks_to_cluster
from kbroker.cli._groups import CLASSIC, DEAD, SHARE, STATES, TYPES, Group, described, share_offsets
from kbroker.cli._offsets import SPECIFICATIONS, SPECIFIED, Offsets, Reset, resets
from kbroker.cli._tables import show_json, show_table
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

Rows = list[dict[str, Any]]

ACTIONS = {
    "list": "Ids of groups.",
    "describe": "Offsets and lag of a group, or its members or state.",
    "delete": "Delete groups without members.",
    "delete-offsets": "Forget what a group has committed for --topic.",
    "reset-offsets": "Move a group to other offsets.",
}
_ONLY = {
    "names": ("describe", "delete", "delete-offsets", "reset-offsets"),
    "all_groups": ("describe", "delete", "delete-offsets", "reset-offsets"),
    "topics": ("delete-offsets", "reset-offsets"),
    "view": ("describe",),
    "state": ("list", "describe"),
    "kind": ("list",),
    "verbose": ("describe",),
    **dict.fromkeys((*SPECIFIED, "all_topics", "execute", "dry_run", "export"), ("reset-offsets",)),
}
_OFFSET_COLUMNS = (
    "group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id", "host", "client_id",
)  # fmt: skip
_EPOCH_COLUMNS = ("type", "group_epoch", "assignment_epoch")


@click.command("groups")
@speaks_to_cluster
@actions(ACTIONS)
@click.option("--group", "names", multiple=True, help="Its id; may be repeated.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,P]", help="A topic, or partitions of it.")
@click.option("--all-topics", is_flag=True, help="Every topic that the group has offsets for (--reset-offsets).")
@click.option("--offsets", "view", flag_value="offsets", default=True, help="Describe offsets and lag (the default).")
@click.option("--members", "view", flag_value="members", help="Describe members.")
@click.option(
    "--state",
    is_flag=False,
    flag_value="",
    metavar="[STATE,...]",
    help="Describe state and assignor; with --list, show states, or the groups in these alone.",
)
@click.option(
    "--type", "kind", is_flag=False, flag_value="", metavar="[TYPE,...]", help="The same of types, with --list."
)
@click.option("--verbose", is_flag=True, help="With --members: what each is assigned.")
@SPECIFICATIONS
@click.option("--execute", is_flag=True, help="Reset really.")
@click.option("--dry-run", is_flag=True, help="Only show what a reset would do (the default).")
@click.option("--export", is_flag=True, help="Show what a reset would do as CSV, for --from-file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def groups(cluster: Cluster, names: tuple[str, ...], all_groups: bool, as_json: bool, **options: Any) -> int:
    """Groups of a cluster, of all kinds: list, describe, delete, reset.

    Exit code: 0 done, 2 it could not be done.
    """
    action = chosen(ACTIONS, _ONLY)
    if action != "list" and not (names or all_groups):
        raise click.UsageError(f"--{action} wants --group, or --all-groups")
    admin = cluster.admin()
    try:
        if all_groups:
            names = tuple(sorted(each["group_id"] for each in admin.list_groups()))
        _DOES[action](admin, names, as_json, options)
    finally:
        admin.close()
    return 0


def _list(admin: KafkaAdminClient, names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    found = sorted(admin.list_groups(), key=lambda each: str(each["group_id"]))
    rows = [
        {"group": each["group_id"], "state": each.get("group_state"), "type": each.get("group_type")} for each in found
    ]
    rows = _among(_among(rows, "state", options["state"], STATES), "type", options["kind"], TYPES)
    if as_json:
        show_json(rows)
    elif options["state"] is not None or options["kind"] is not None:
        show_table(("group", "state", "type"), rows)
    elif rows:
        click.echo("\n".join(str(row["group"]) for row in rows))


def _among(rows: Rows, column: str, given: str | None, known: Sequence[str]) -> Rows:
    """Rows with one of the values that are given, in capitals or small letters; all if none is. Raises: UsageError."""
    wanted = {each.strip().lower() for each in (given or "").split(",") if each.strip()}
    for each in wanted - {each.lower() for each in known}:
        raise click.UsageError(f"--{column} {each}: allowed: {', '.join(known)}")
    return [row for row in rows if not wanted or str(row[column]).lower() in wanted]


def _describe(admin: KafkaAdminClient, names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    found = _described(admin, names)
    view, verbose = options["view"] if options["state"] is None else "state", options["verbose"]
    rows = list(_VIEWS[view](admin, found))
    if as_json:
        show_json(rows)
        return
    for group in found:
        if not group.members:
            click.echo(f"Consumer group '{group.group_id}' has no active members.", err=True)
    has_epochs = any(group.kind != CLASSIC for group in found)
    epoch, target = ("member_epoch",) if has_epochs else (), ("target_assignment",) if has_epochs else ()
    more = ("assignment", *target) if verbose else ()
    columns = {
        "offsets": _OFFSET_COLUMNS,
        "members": ("group", "consumer_id", "host", "client_id", *epoch, "partitions", *more),
        "state": ("group", "state", "assignment_strategy", "members", *(_EPOCH_COLUMNS if has_epochs else ())),
    }
    if rows:
        show_table(columns[view], rows)


def _offsets(admin: KafkaAdminClient, found: Iterable[Group]) -> Iterator[dict[str, Any]]:
    """A row for each partition that a group has committed for or is assigned.

    A share group is at its start offset, and its lag is what is not over. Its members read a partition together, so
    none is its owner.
    """
    for group in found:
        shared = share_offsets(admin, group.group_id) if group.kind == SHARE else {}
        if group.kind == SHARE:
            offsets = Offsets(admin, {place: start for place, (start, _) in shared.items()})
        else:
            offsets = Offsets.of_group(admin, group.group_id)
        owners = {place: member for member in group.members for place in member.places}
        ends = offsets.ends(set(owners))
        for topic, partition in sorted({*offsets.committed, *owners}):
            member = None if group.kind == SHARE else owners.get((topic, partition))
            current, end = offsets.committed.get((topic, partition)), ends.get((topic, partition))
            lag = None if current is None or end is None else end - current
            if group.kind == SHARE:
                lag = shared.get((topic, partition), (0, None))[1]
            yield {
                "group": group.group_id,
                "topic": topic,
                "partition": partition,
                "current_offset": current,
                "log_end_offset": end,
                "lag": lag,
                "consumer_id": None if member is None else member.member_id,
                "host": None if member is None else member.host,
                "client_id": None if member is None else member.client_id,
            }


def _members(admin: KafkaAdminClient, found: Iterable[Group]) -> Iterator[dict[str, Any]]:
    for group in found:
        for member in group.members:
            yield {
                "group": group.group_id,
                "consumer_id": member.member_id,
                "group_instance_id": member.instance_id,
                "host": member.host,
                "client_id": member.client_id,
                "member_epoch": member.epoch,
                "partitions": len(member.places),
                "assignment": member.owned,
                "target_assignment": member.target,
            }


def _states(admin: KafkaAdminClient, found: Iterable[Group]) -> Iterator[dict[str, Any]]:
    for group in found:
        yield {
            "group": group.group_id,
            "state": group.state,
            "assignment_strategy": group.assignor,
            "members": len(group.members),
            "type": group.kind,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
        }


_VIEWS: dict[str, Callable[[KafkaAdminClient, Iterable[Group]], Iterator[dict[str, Any]]]] = {
    "offsets": _offsets,
    "members": _members,
    "state": _states,
}


def _delete(admin: KafkaAdminClient, names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    for name, result in once_coordinated(lambda: admin.delete_groups(list(names))).items():
        if (wrong := fault_of(result)) is ErrorCode.GROUP_ID_NOT_FOUND:
            raise click.ClickException(f"there is no consumer group {name!r}")
        if wrong is not None:
            raise click.ClickException(f"group {name} is not deleted: {said_by_broker(wrong)}")
        if not as_json:
            click.echo(f"Deleted group {name}.")
    if as_json:
        show_json({"deleted": list(names)})


def _delete_offsets(admin: KafkaAdminClient, names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    from kafka import TopicPartition

    if not options["topics"]:
        raise click.UsageError("--delete-offsets wants --topic")
    forgotten: Rows = []
    _described(admin, names)  # says which is not there: to forget nothing of one that was mistyped is not done
    offsets = {name: once_coordinated(partial(Offsets.of_group, admin, name)) for name in names}
    for topic in options["topics"]:
        if not any(each.chosen([topic]) for each in offsets.values()):
            raise click.ClickException(f"nothing is committed for {topic} by {', '.join(names)}")
    for name in names:
        partitions = offsets[name].chosen(options["topics"])
        results = admin.delete_group_offsets(name, [TopicPartition(*each) for each in partitions])
        for partition, result in sorted(results.items()):
            if (wrong := fault_of(result)) is not None:
                place = f"{partition.topic}-{partition.partition} of {name}"
                raise click.ClickException(f"{place}: {said_by_broker(wrong)}")
        forgotten += [{"group": name, "topic": topic, "partition": partition} for topic, partition in partitions]
        if not as_json:
            click.echo(f"Forgot {len(partitions)} offsets of group {name}.")
    if as_json:
        show_json({"forgotten": forgotten})


def _reset(admin: KafkaAdminClient, names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    if options["execute"] and options["dry_run"]:
        raise click.UsageError("--execute or --dry-run, not both")
    if not (options["topics"] or options["all_topics"] or options["from_file"]):
        raise click.UsageError("--reset-offsets wants --topic, --all-topics or --from-file")
    planned: list[Reset] = []
    for group in _described(admin, names, must_exist=False):
        if group.members:
            raise click.ClickException(
                f"group {group.group_id} is {group.state}: its offsets are reset while it has no members"
            )
        planned += resets(admin, group.group_id, options)
    if options["execute"]:
        _commit(admin, planned)
    rows = [each._asdict() for each in planned]
    if as_json:
        show_json(rows)
    elif options["export"]:
        click.echo("\n".join(f'"{each.group}","{each.topic}",{each.partition},{each.new_offset}' for each in planned))
    else:
        show_table(("group", "topic", "partition", "new_offset"), rows)
        if not options["execute"]:
            click.echo("Nothing is changed yet: --execute does it.", err=True)


def _commit(admin: KafkaAdminClient, planned: Iterable[Reset]) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    by_group: dict[str, dict[Any, Any]] = {}
    for each in planned:
        place = TopicPartition(each.topic, each.partition)
        by_group.setdefault(each.group, {})[place] = OffsetAndMetadata(each.new_offset, "", -1)
    for group, offsets in by_group.items():
        for partition, result in admin.alter_group_offsets(group, offsets).items():
            if (wrong := fault_of(result)) is not None:
                place = f"{partition.topic}-{partition.partition} of {group}"
                raise click.ClickException(f"{place}: {said_by_broker(wrong)}")


_DOES: dict[str, Callable[[KafkaAdminClient, Sequence[str], bool, dict[str, Any]], None]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "delete-offsets": _delete_offsets,
    "reset-offsets": _reset,
}


def _described(admin: KafkaAdminClient, names: Sequence[str], *, must_exist: bool = True) -> list[Group]:
    found = described(admin, names)
    for group in found:
        if must_exist and group.state == DEAD:
            raise click.ClickException(f"there is no consumer group {group.group_id!r}")
    return found
