"""DescribeLogDirs: which log directory holds which partition, and how large it is.

Served: DescribeLogDirs 0-4. A directory that is offline or cannot be looked at is named with KAFKA_STORAGE_ERROR.
Unlike Kafka, replicas are never moved between directories, so there are no future replicas; AlterReplicaLogDirs is not
served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.routes import Route
from kbroker.broker.permission import Operation
from protocol.errors import ErrorCode
from protocol.messages.logdirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.api.call import Call
    from kbroker.log import Log
    from kbroker.log.directory import LogDirectory
    from kbroker.ports import Volume


def describe_log_dirs(request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
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
        results.append(
            DescribeLogDirsResult(
                error_code=0,
                log_dir=directory.path,
                topics=_topics({key: log for key, log in logs.items() if wanted is None or key in wanted}),
                total_bytes=volume.total_bytes,
                usable_bytes=volume.free_bytes,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _volume(directory: LogDirectory) -> Volume | None:
    """None if it is offline, or cannot be looked at; a question takes no directory offline."""
    try:
        return directory.disk.volume(directory.path) if directory.online else None
    except OSError:
        return None


def _topics(logs: Mapping[tuple[str, int], Log]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (topic, index), log in sorted(logs.items()):
        lag = max(log.high_watermark - log.log_end_offset, 0)
        topics.setdefault(topic, []).append(
            DescribeLogDirsPartition(
                partition_index=index, partition_size=log.size, offset_lag=lag, is_future_key=False
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def _refuse(request: DescribeLogDirsRequest, code: ErrorCode, text: str) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code, results=[])


ROUTES = (Route(35, DescribeLogDirsRequest, 0, 4, describe_log_dirs, _refuse, (Operation.DESCRIBE,)),)
