"""What is wrong with a lone broker's metadata, and where it and the log directories contradict each other.

Called by `kbroker metadata check`. Changes nothing: the file is read as a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from kbroker.log.checkpoints import read_topic_id
from kbroker.log.names import NOT_OURS, TopicPartition, parse_folder_name
from kbroker.metadata.store import TOPICS, TopicInfo, decode_topic
from kbroker.ports import Disk
from kbroker.runtime.store_file import StoreMissingError, find_store
from kbroker.runtime.tree_file import DamagedError, TreeFile, copied


def check(disk: Disk, paths: Sequence[str]) -> Iterator[str]:
    """A line for each fault. paths: all log directories of the broker, absolute. Raises: OSError."""
    try:
        path = find_store(disk, paths)
    except StoreMissingError as error:
        yield str(error)
        return
    if disk.stat(path) is None and disk.stat(f"{path}-wal") is None:
        yield f"{path}: there is none"
        return
    with copied(path) as copy:
        try:
            file = TreeFile(copy, is_copy=True)
        except DamagedError as error:
            yield str(error).replace(copy, path)
            return
        with closing(file):
            nodes = {name: node.data for name, node in file.tree.nodes.items()}
    topics: dict[str, TopicInfo] = {}
    for name, data in nodes.items():
        parent, _, topic = name.rpartition("/")
        if parent == TOPICS:
            try:
                topics[topic] = decode_topic(data)
            except (ValueError, KeyError, TypeError, AttributeError):
                yield f"{path}: {name}: is no topic"
    yield from _compare(disk, paths, path, topics)


def _compare(disk: Disk, paths: Sequence[str], store: str, topics: Mapping[str, TopicInfo]) -> Iterator[str]:
    """Folders without a topic, and partitions without a folder."""
    found: set[TopicPartition] = set()
    for path in paths:
        for entry in sorted(disk.list(path)):
            folder = parse_folder_name(entry.name) if entry.is_dir and entry.name not in NOT_OURS else None
            if folder is None or folder.state != "live":
                continue
            partition, where = folder.topic_partition, f"{path}/{entry.name}"
            found.add(partition)
            topic = topics.get(partition.topic)
            if topic is None or partition.partition not in topic.partitions:
                yield f"{where}: no topic in {store} has this partition"
                continue
            lines: list[str] = []
            topic_id = read_topic_id(disk, where, lines.append)
            yield from lines
            if None not in (topic_id, topic.topic_id) and topic_id != topic.topic_id:
                yield f"{where}: is of another topic of that name"
    for name, topic in sorted(topics.items()):
        for index in topic.partitions:
            if (name, index) not in found:
                yield f"{store}: partition {index} of {name} has no folder"
