"""meta.properties: to whom a log directory belongs, and whether several directories agree on it.

Called by the log manager at start and by verification. Pure: text and values in, values out.

| key | version 0 | version 1 |
|---|---|---|
| version | "0", or missing | "1" |
| cluster.id | may be missing | required |
| broker.id | may be missing | - |
| node.id | - | required |
| directory.id | may be missing | may be missing |

Version 0 is what brokers with ZooKeeper write, version 1 what KRaft writes; we read both and write 0 into a new
directory. Source: KIP-631, KIP-858.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.log.checkpoints import format_uuid, parse_uuid
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.names import META_PROPERTIES
from kbroker.properties import format_properties, parse_properties
from protocol.namedtuple import NamedTuple

RESERVED_DIRECTORY_IDS = frozenset(number.to_bytes(16, "big") for number in range(100))
"""Ids below 100 mean "unassigned", "lost", "migrating" and the like, and never a directory (KIP-858)."""

_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,10}\s*", re.ASCII)


class MetaProperties(NamedTuple):
    """What one directory's meta.properties says. directory_id: 16 bytes."""

    version: int = 0
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: bytes | None = None


def parse_meta_properties(text: str) -> MetaProperties:
    """Raises NewerFormatError for a version above 1, CorruptFileError for a key that is missing or makes no sense."""
    try:
        values = parse_properties(text)
    except ValueError as error:
        raise CorruptFileError(str(error)) from None
    version = _number(values, "version") if "version" in values else 0
    if version > 1:
        raise NewerFormatError(f"has version {version}, this program knows versions 0 and 1", where="version")
    if version < 0:
        raise CorruptFileError(f"has version {version}", where="version")
    id_key = "broker.id" if version == 0 else "node.id"
    for required in ("cluster.id", "node.id") if version == 1 else ():
        if required not in values:
            raise CorruptFileError("is missing, and version 1 requires it", where=required)
    directory_id = parse_uuid(values["directory.id"]) if "directory.id" in values else None
    if "directory.id" in values and (directory_id is None or directory_id in RESERVED_DIRECTORY_IDS):
        raise CorruptFileError(f"is no directory's id: {values['directory.id']!r}", where="directory.id")
    node_id = _number(values, id_key) if id_key in values else None
    if node_id is not None and node_id < 0:
        raise CorruptFileError(f"is no broker's number: {node_id}", where=id_key)
    if values.get("cluster.id") == "":
        raise CorruptFileError("is empty", where="cluster.id")
    return MetaProperties(version, values.get("cluster.id"), node_id, directory_id)


def format_meta_properties(meta: MetaProperties) -> str:
    """The text of meta.properties. Version 1 needs cluster_id and node_id."""
    assert meta.version == 0 or (meta.cluster_id is not None and meta.node_id is not None), meta
    values = {"version": str(meta.version)}
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    if meta.node_id is not None:
        values["broker.id" if meta.version == 0 else "node.id"] = str(meta.node_id)
    if meta.directory_id is not None:
        values["directory.id"] = format_uuid(meta.directory_id)
    return format_properties(values)


def check_agreement(
    directories: Mapping[str, MetaProperties], *, cluster_id: str | None = None, node_id: int | None = None
) -> CorruptFileError | None:
    """The first disagreement among directories, or between one and the broker's own ids; None if they agree.

    directories: by path. cluster_id, node_id: what the broker is, as far as it is known.
    """
    source_of: dict[bytes, str] = {}
    cluster_source = node_source = "this broker's configuration"
    for path, meta in directories.items():
        file = f"{path}/{META_PROPERTIES}"
        if meta.cluster_id is not None:
            if cluster_id is None:
                cluster_id, cluster_source = meta.cluster_id, file
            elif cluster_id != meta.cluster_id:
                return CorruptFileError(
                    f"cluster id {meta.cluster_id} differs from {cluster_id} of {cluster_source}", path=file
                )
        if meta.node_id is not None:
            if node_id is None:
                node_id, node_source = meta.node_id, file
            elif node_id != meta.node_id:
                return CorruptFileError(f"broker id {meta.node_id} differs from {node_id} of {node_source}", path=file)
        if meta.directory_id is not None and (other := source_of.setdefault(meta.directory_id, path)) != path:
            return CorruptFileError(f"has the directory id of {other}", path=file)
    return None


def _number(values: Mapping[str, str], key: str) -> int:
    if _NUMBER.fullmatch(values[key]) is None or abs(int(values[key])) >= 2**31:
        raise CorruptFileError(f"is not a number: {values[key]!r}", where=key)
    return int(values[key])
