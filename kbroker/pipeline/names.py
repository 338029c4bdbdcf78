"""A topic's copy at the other end: its name and its settings, which the jobs `mirror` and `replay` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbroker.pipeline.errors import PipelineError


def check_names(names: Mapping[str, str]) -> None:
    """Raises PipelineError where two topics would be one: records have their places from one topic alone."""
    for new, count in Counter(names.values()).items():
        if count > 1:
            both = " and ".join(old for old in names if names[old] == new)
            raise PipelineError(f"{both} cannot both be {new}: give each a name of its own")


KEPT = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
"""Of a topic that is made for archived records: they are old, and keep the timestamps that they have."""
OF_CLUSTER = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.format.version",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "remote.storage.enable",
    "unclean.leader.election.enable",
)
"""Settings that are of a cluster's brokers, or would refuse or change records that another cluster has taken: the old
formats have no place for the numbers by which a record is written once."""


def carried(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of a topic's settings that a copy of it has at another cluster."""
    return {name: value for name, value in settings.items() if name not in OF_CLUSTER}
