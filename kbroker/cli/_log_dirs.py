"""Log directories that a plan names for its replicas: asked for, and looked up.

Called by `kbroker reassign`. A broker that has no replica yet keeps in mind where it is to be made, and says that it
has none; that is why directories are asked for before partitions move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from kbroker.cli._cluster import fault_of, said_by_broker
from kbroker.cli._described import described_log_dirs
from kbroker.cli._plans import Place, exactly, name_of
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

ANY = "any"
EXAMPLE = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["/data","any"]}]}'
Directories = dict[tuple[str, int, int], str]
"""Where a replica is to be, by topic, partition and broker."""
_KEPT_IN_MIND = (ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def directories_of(path: str, replicas: Mapping[Place, list[int]], said: Mapping[Place, object]) -> Directories:
    """Where replicas are to be. path: of the plan. said: its log_dirs as they are there. Raises: ClickException."""
    found: Directories = {}
    for place, named in said.items():
        try:
            directories = [exactly(str, each) for each in exactly(list, named)]
        except TypeError:
            raise click.ClickException(f"{path}: allowed: {EXAMPLE}") from None
        if directories and len(directories) != len(replicas[place]):
            raise click.ClickException(f"{path}: {name_of(place)}: log_dirs: allowed: one for each replica")
        pairs = zip(replicas[place], directories, strict=False)
        found.update({(*place, broker): directory for broker, directory in pairs if directory != ANY})
    return found


def ask_for(admin: KafkaAdminClient, wanted: Directories) -> None:
    """Have replicas move there, or be made there. Raises: ClickException for one that a broker refuses."""
    for replica, kind in admin.alter_replica_log_dirs(wanted).items() if wanted else ():
        wrong = fault_of(kind)
        if wrong is not None and wrong not in _KEPT_IN_MIND:
            directory = wanted[replica.topic, replica.partition, replica.broker_id]
            name = name_of((replica.topic, replica.partition))
            raise click.ClickException(
                f"{name} on broker {replica.broker_id} into {directory}: {said_by_broker(wrong)}"
            )


def elsewhere(admin: KafkaAdminClient, wanted: Directories) -> dict[Place, str]:
    """The partitions with a replica that is not where it is to be, and whether it is on its way."""
    if not wanted:
        return {}
    is_copy = {
        (topic["name"], part["partition_index"], broker["broker"], directory["log_dir"]): part["is_future_key"]
        for broker in described_log_dirs(admin)
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        for part in topic["partitions"]
    }
    found: dict[Place, str] = {}
    for (topic, partition, broker), directory in wanted.items():
        state = is_copy.get((topic, partition, broker, directory))
        if state is not False and found.get((topic, partition)) != "not as wanted":
            found[topic, partition] = "in progress" if state else "not as wanted"
    return found
