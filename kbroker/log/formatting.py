"""Log directories of a member of a quorum's cluster: made by `kbroker storage format`, and looked at before a start.

A member is told its cluster by its directories alone: each has a meta.properties of version 1, with the cluster's id,
the node's and its own. Apache's kafka-storage makes the same. Nothing is changed before it is known that all
directories may be taken.

Source: Formatter, MetaPropertiesEnsemble and KafkaRaftServer of Apache Kafka 4.3, by behaviour; KIP-631, KIP-858.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.log.checkpoints import format_uuid, parse_clean_shutdown, read_text, replace_file
from kbroker.log.directory import DirectoryRefusedError, DirectoryUnusableError
from kbroker.log.errors import CorruptFileError, fault_of
from kbroker.log.folder import make_dirs
from kbroker.log.log_loader import whose
from kbroker.log.metaproperties import (
    RESERVED_DIRECTORY_IDS,
    MetaProperties,
    check_agreement,
    format_meta_properties,
)
from kbroker.log.names import CLEAN_SHUTDOWN, META_PROPERTIES
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.ports import Disk, Random

NO_EPOCH = -1
FORMAT_IT = "kbroker storage format makes it, or Apache's kafka-storage.sh"


class Formatted(NamedTuple):
    """What formatted directories say. directory_ids: 16 bytes each, by path; of those that can be read."""

    cluster_id: str
    directory_ids: dict[str, bytes]


def format_directories(
    disk: Disk, random: Random, paths: Sequence[str], cluster_id: str, node_id: int, *, ignore_formatted: bool
) -> list[str]:
    """Format the directories that are empty; a line for each. Raises: DirectoryRefusedError, OSError.

    ignore_formatted: leave those alone that are formatted already, for the same cluster and node; else none may be.
    """
    metas, failed = whose(disk, paths)
    fault = check_agreement(metas, cluster_id=cluster_id, node_id=node_id)
    if fault is not None:
        raise DirectoryRefusedError(str(fault))
    done = [path for path, meta in metas.items() if meta != MetaProperties()]
    if done and not ignore_formatted:
        raise DirectoryRefusedError(
            f"Log directory {done[0]} is already formatted. Use --ignore-formatted to ignore this directory and format "
            "the others."
        )
    lines = [
        f"I/O error trying to read log directory {path}. Ignoring... ({fault_of(failed[path], path)})"
        for path in failed
    ]
    empty = [path for path in metas if path not in done]
    if failed and not metas:
        raise DirectoryUnusableError("No available log directories to format.")
    if not empty:
        return [*lines, "All of the log directories are already formatted."]
    for path in empty:
        make_dirs(disk, path)
        _write(disk, path, MetaProperties(1, cluster_id, node_id, new_directory_id(random)))
        lines.append(f"Formatting data directory {path} with cluster.id {cluster_id}, node.id {node_id}.")
    return lines


def take_formatted(disk: Disk, random: Random, paths: Sequence[str], node_id: int, metadata_path: str) -> Formatted:
    """What the directories of a member say, before it starts. Raises: DirectoryRefusedError.

    The metadata log's must be formatted, and be readable. Another that is empty is one that was added, or replaced: it
    is formatted now. One without an id of its own, of an older Kafka, gets one.
    """
    metas, failed = whose(disk, dict.fromkeys([*paths, metadata_path]))
    if metadata_path in failed:
        raise DirectoryUnusableError(fault_of(failed[metadata_path], metadata_path))
    fault = check_agreement(metas, node_id=node_id)
    if fault is not None:
        raise DirectoryRefusedError(str(fault))
    for path, meta in metas.items():
        if meta.version == 0 and meta != MetaProperties():
            where = f"{path}/{META_PROPERTIES}"
            raise DirectoryRefusedError(f"{where}: has version 0: it is that of a broker without process.roles=broker")
    cluster_id = metas[metadata_path].cluster_id
    if cluster_id is None:
        where = f"{metadata_path}/{META_PROPERTIES}"
        raise DirectoryRefusedError(f"{where}: there is none with a cluster.id: {FORMAT_IT}")
    found = Formatted(cluster_id, {})
    for path, meta in metas.items():
        whole = meta._replace(
            version=1,
            cluster_id=cluster_id,
            node_id=node_id,
            directory_id=meta.directory_id or new_directory_id(random),
        )
        try:
            if whole != meta:
                make_dirs(disk, path)
                _write(disk, path, whole)
        except OSError as error:
            if path == metadata_path:
                raise DirectoryUnusableError(fault_of(error, path)) from None
            continue  # it is found to be offline when it is taken
        assert whole.directory_id is not None
        found.directory_ids[path] = whole.directory_id
    return found


def previous_broker_epoch(disk: Disk, paths: Sequence[str]) -> int:
    """The broker epoch of the life before, if that ended with a clean stop in every directory; else -1 (KIP-966).

    To be asked before the logs are loaded: that takes the markers away.
    """
    epochs = set()
    for path in paths:
        try:
            text = read_text(disk, path, CLEAN_SHUTDOWN)
        except (OSError, CorruptFileError):
            return NO_EPOCH
        epoch = None if text is None else parse_clean_shutdown(text).broker_epoch
        epochs.add(NO_EPOCH if epoch is None else epoch)
    return epochs.pop() if len(epochs) == 1 else NO_EPOCH


def new_directory_id(random: Random) -> bytes:
    """An id for a directory; as Kafka, none that looks like an option of a command."""
    while True:
        found = random.token(16)
        if found not in RESERVED_DIRECTORY_IDS and not format_uuid(found).startswith("-"):
            return found


def _write(disk: Disk, path: str, meta: MetaProperties) -> None:
    replace_file(disk, path, META_PROPERTIES, format_meta_properties(meta).encode())
