"""AlterReplicaLogDirs and DescribeLogDirs: which log directory holds which partition, and how large it is.

Served: AlterReplicaLogDirs 0-2, DescribeLogDirs 0-5. A directory that is offline or cannot be looked at is named with
KAFKA_STORAGE_ERROR. A replica that is on its way is in both directories; its copy says how many offsets it lacks.

Unlike Kafka 4.4: there is no cordoned.log.dirs, and no directory is said to be cordoned.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.chunks import is_break
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.logdirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Mapping

    from kbroker.api.call import Call, InSlices
    from kbroker.log.directory import LogDirectory
    from kbroker.log.log import Log
    from kbroker.log.manager import LogManager
    from kbroker.log.names import TopicPartition
    from kbroker.ports import Volume


def describe_log_dirs(request: DescribeLogDirsRequest, call: Call) -> InSlices:
    """Every directory, with the partitions asked about; without topics, with all of them."""
    wanted = (
        None
        if request.topics is None
        else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    )
    results = []
    for directory, logs in call.broker.logs.by_directory():
        volume = _volume(directory)
        if volume is None:
            results.append(
                DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path, topics=[])
            )
            continue
        topics = yield from _topics(wanted, logs, dict(directory.futures), call.broker.logs)
        results.append(
            DescribeLogDirsResult(
                error_code=0,
                log_dir=directory.path,
                topics=topics,
                total_bytes=volume.total_bytes,
                usable_bytes=volume.free_bytes,
            )
        )
    return DescribeLogDirsResponse(results=results)


def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, call: Call) -> InSlices:
    """Have replicas move; each answer says whether it has begun. Named twice, the last directory counts."""
    asked = {
        (topic.name, index): each.path for each in request.dirs for topic in each.topics for index in topic.partitions
    }
    codes: dict[tuple[str, int], ErrorCode] = {}
    for (topic_name, index), path in asked.items():
        codes[topic_name, index] = ErrorCode.NONE
        try:
            call.broker.alter_log_dirs.alter(topic_name, index, path, call.now_ms)
        except KafkaError as error:
            codes[topic_name, index] = error.code
        yield
    return _altered(codes)


def _altered(codes: Mapping[tuple[str, int], ErrorCode]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (topic, index), code in codes.items():
        result = topics.setdefault(topic, AlterReplicaLogDirTopicResult(topic_name=topic, partitions=[]))
        result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _refuse_alter(
    request: AlterReplicaLogDirsRequest, code: ErrorCode, text: str, version: int
) -> AlterReplicaLogDirsResponse:
    asked = [(topic.name, index) for each in request.dirs for topic in each.topics for index in topic.partitions]
    return _altered(dict.fromkeys(asked, code))


def _volume(directory: LogDirectory) -> Volume | None:
    """None if it is offline, or cannot be looked at; a question takes no directory offline."""
    try:
        return directory.disk.volume(directory.path) if directory.online else None
    except OSError:
        return None


def _topics(
    wanted: Container[tuple[str, int]] | None,
    present: Mapping[TopicPartition, Log],
    futures: Mapping[TopicPartition, Log],
    logs: LogManager,
) -> Generator[None, None, list[DescribeLogDirsTopic]]:
    """What is in one directory, of what was asked for (None: of all). futures: copies on their way into it."""
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    both = [(key, log, False) for key, log in present.items()] + [(key, log, True) for key, log in futures.items()]
    if wanted is not None:
        both = [each for each in both if each[0] in wanted]
    for at, ((topic, index), log, is_future) in enumerate(sorted(both, key=itemgetter(0, 2))):
        if is_break(at):
            yield
        goal = _end_of(logs, topic, index) if is_future else log.high_watermark
        topics.setdefault(topic, []).append(
            DescribeLogDirsPartition(
                partition_index=index,
                partition_size=log.size,
                offset_lag=max(goal - log.log_end_offset, 0),
                is_future_key=is_future,
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def _end_of(logs: LogManager, topic: str, index: int) -> int:
    """Where a partition's log ends; -1 if its directory is offline."""
    try:
        present = logs.get(topic, index)
    except KafkaError:
        return -1
    return -1 if present is None else present.log_end_offset


def _refuse(request: DescribeLogDirsRequest, code: ErrorCode, text: str, version: int) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code, results=[])


ROUTES = (
    Route(
        34,
        AlterReplicaLogDirsRequest,
        0,
        2,
        alter_replica_log_dirs,
        _refuse_alter,
        (cluster(Operation.ALTER),),
        elements=ELEMENTS_PER_REQUEST,
    ),
    Route(35, DescribeLogDirsRequest, 0, 5, describe_log_dirs, _refuse, (cluster(Operation.DESCRIBE),)),
)
