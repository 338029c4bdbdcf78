"""A lone broker's metadata rebuilt from its log directories: which topics there are, their ids and partitions.

Called by `kbroker metadata`. The logs are opened as a broker opens them (recovered, if need be) and closed in order.
What the directories do not say is taken from the metadata file that is replaced, as far as its rows are whole: topics'
and brokers' settings, how far producer ids were handed out. A directory of Apache's broker, with ZooKeeper or KRaft, is
read like one of ours; KRaft's own log is not, so settings of its topics are to be made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress

from kbroker.broker.coordinator_types import BY_TOPIC, topic_on_demand
from kbroker.config import ONE_BROKER, BrokerLayers, resolve_broker
from kbroker.log.checkpoints import format_partition_metadata, format_uuid, read_topic_id, replace_file
from kbroker.log.config import LogConfig
from kbroker.log.facts import Notice
from kbroker.log.folder import free_name
from kbroker.log.log import Log
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.log_loader import LoadProgress, stored_identity
from kbroker.log.manager import LogManager, open_logs
from kbroker.log.names import PARTITION_METADATA, TopicPartition
from kbroker.metadata.store import (
    CLUSTER_ID,
    PRODUCER_ID_BLOCK,
    Assignment,
    LeaderIsr,
    TopicInfo,
    config_path,
    decode_producer_id_block,
    encode_cluster_id,
    encode_config,
    encode_producer_id_block,
    encode_state,
    encode_topic,
    state_path,
    topic_path,
)
from kbroker.metadata.tree import NO_SESSION, ancestors
from kbroker.ports import Clock, Create, Disk, Random
from kbroker.runtime.store_file import STORE_FILE
from kbroker.runtime.tree_file import TreeFile, whole_nodes
from kbroker.timing import Scheduler
from protocol.namedtuple import NamedTuple

FIRST_NODE_ID = 1
COMPACTED = tuple(BY_TOPIC)


class Rebuilt(NamedTuple):
    """What was made. path: of the file. kept: the name that the old one has now, or empty. lines: for the operator."""

    path: str
    topics: int
    partitions: int
    kept: str
    lines: list[str]


def rebuild(
    disk: Disk,
    clock: Clock,
    random: Random,
    paths: Sequence[str],
    progress: Callable[[LoadProgress], None] | None = None,
) -> Rebuilt:
    """Rebuild the metadata file of these log directories, in the first that has one, or in the first.

    Raises: DirectoryRefusedError if a directory cannot be used (a broker runs, say); OSError.
    """
    identity = stored_identity(disk, paths)
    node_id = FIRST_NODE_ID if identity.node_id is None else identity.node_id
    cluster_id = identity.cluster_id or format_uuid(random.token(16))
    told: list[object] = []
    logs = _open(disk, clock, random, paths, cluster_id, node_id, told.append, progress)
    try:
        home = next((path for path in paths if disk.stat(f"{path}/{STORE_FILE}") is not None), paths[0])
        path = f"{home}/{STORE_FILE}"
        salvaged = whole_nodes(path)
        lines = [fact.text for fact in told if isinstance(fact, Notice)]
        topics = _topics(disk, random, logs, lines)
        nodes = dict(_nodes(node_id, cluster_id, logs, topics, salvaged))
        lost = [topic for topic in topics if config_path("topics", topic) not in nodes]
        if lost and not salvaged:
            lines.append("settings of topics are not in the log directories: all have the broker's own now")
        _write(f"{path}.new", nodes)
        kept = _put_aside(disk, home)  # not before: what is salvaged is nowhere else
        os.rename(f"{path}.new", path)
        disk.sync_dir(home)
    finally:
        logs.close()
    return Rebuilt(path, len(topics), sum(map(len, topics.values())), kept, lines)


class _Topic(dict[int, Log]):
    """The logs of a topic by partition. id: 16 bytes."""

    id: bytes


def _open(
    disk: Disk,
    clock: Clock,
    random: Random,
    paths: Sequence[str],
    cluster_id: str,
    node_id: int,
    tell: Callable[[object], None],
    progress: Callable[[LoadProgress], None] | None,
) -> LogManager:
    config = LogConfig()
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    return open_logs(
        disk,
        random,
        paths,
        config_of=lambda topic: compacted if topic in COMPACTED else config,
        cluster_id=cluster_id,
        node_id=node_id,
        config=ManagerConfig(),
        now_ms=clock.now_ms(),
        wall_ms=clock.wall_ms(),
        tell=tell,
        alarm=Scheduler().alarm(lambda now_ms: None),
        progress=progress,
    )


def _put_aside(disk: Disk, home: str) -> str:
    """Rename the old file and its log; the file's new name, empty if there was none."""
    if disk.stat(f"{home}/{STORE_FILE}") is None and disk.stat(f"{home}/{STORE_FILE}-wal") is None:
        return ""
    kept = free_name(disk, home, f"{STORE_FILE}.old")
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            disk.rename(f"{home}/{STORE_FILE}{suffix}", f"{home}/{kept}{suffix}")
    disk.sync_dir(home)
    return kept


def _topics(disk: Disk, random: Random, logs: LogManager, lines: list[str]) -> dict[str, _Topic]:
    """The topics that the folders show, each with an id; a folder without one gets it written down."""
    topics: dict[str, _Topic] = {}
    ids: dict[TopicPartition, bytes | None] = {}
    for partition, log in sorted(logs.logs(), key=lambda each: each[0]):
        topics.setdefault(partition.topic, _Topic())[partition.partition] = log
        ids[partition] = read_topic_id(disk, log.folder.path, lines.append)
    for name, topic in topics.items():
        known = [ids[TopicPartition(name, index)] for index in topic]
        topic.id = next((each for each in known if each is not None), None) or random.token(16)
        for index, log in list(topic.items()):
            found = ids[TopicPartition(name, index)]
            if found is None:
                replace_file(disk, log.folder.path, PARTITION_METADATA, format_partition_metadata(topic.id).encode())
            elif found != topic.id:
                lines.append(f"{log.folder.path}: has another topic id than the rest of {name}: left out")
                del topic[index]
        missing = [str(index) for index in range(max(topic)) if index not in topic]
        if missing:
            lines.append(
                f"{name}: there is no folder of partition {', '.join(missing)}: the next start makes it, empty"
            )
    return topics


def _nodes(
    node_id: int, cluster_id: str, logs: LogManager, topics: dict[str, _Topic], salvaged: dict[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    """The nodes of the new tree, but for those above them."""
    yield CLUSTER_ID, encode_cluster_id(cluster_id)
    yield from ((path, data) for path, data in salvaged.items() if path.startswith("/config/") and path.count("/") == 3)
    config = resolve_broker(BrokerLayers(alone=ONE_BROKER))
    for name, topic in topics.items():
        assignments = {index: Assignment((node_id,)) for index in range(max(topic) + 1)}
        yield topic_path(name), encode_topic(TopicInfo(topic.id, assignments))
        for index, log in topic.items():
            state = LeaderIsr(node_id, max(log.epochs.latest, 0), (node_id,), 0)
            yield state_path(name, index), encode_state(state)
        settings = dict(topic_on_demand(name, config).configs)
        path = config_path("topics", name)
        if settings and path not in salvaged:
            yield path, encode_config(settings)
    last = max((producer_id for _, log in logs.logs() for producer_id, _ in log.producers.items()), default=-1)
    handed_out = max(last, decode_producer_id_block(salvaged.get(PRODUCER_ID_BLOCK, b""))[2])
    if handed_out >= 0:
        yield PRODUCER_ID_BLOCK, encode_producer_id_block(node_id, 0, handed_out)


def _write(path: str, nodes: dict[str, bytes]) -> None:
    """Fill a new file, in place of what an attempt before has left."""
    for left in (path, f"{path}-wal"):
        with suppress(FileNotFoundError):
            os.remove(left)
    with closing(TreeFile(path)) as file:
        for node, data in sorted(nodes.items()):
            for above in ancestors(node):
                file.tree.apply(Create(above), NO_SESSION)  # it may be there
            outcome = file.tree.apply(Create(node, data), NO_SESSION)
            assert outcome.fault is None, (node, outcome)
        file.save(0)
