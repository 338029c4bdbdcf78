"""`convert`: log directories with messages of format v0 and v1, rewritten as v2. One task a segment.

Offsets, timestamps, keys, values and codecs stay; v2 batches are copied as they are. A segment's file and its indices
are written under other names and put in place whole, so that a job that is started again ends with the same files. The
source is only read; it must not be in use by a broker that writes to it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.log.names import parse_folder_name
from kbroker.pipeline.errors import PipelineError
from protocol.errors import ErrorCode
from protocol.records import Record, RecordError
from protocol.records.batch import LENGTH_OVERHEAD, MAGIC, MAGIC_AT, MAX_TIMESTAMP, check, last_offset_of, unpack_header
from protocol.records.content import build_batch
from protocol.records.legacy import check_crc, parse_message
from protocol.records.legacy import scan as scan_messages

Summary = dict[str, Any]
INDEX_BYTES = 4096
"""index.interval.bytes, as shipped."""
BATCH_BYTES = 65_536
"""Of messages that were not compressed together."""
KEPT_OF_DIRECTORY = ("meta.properties", "log-start-offset-checkpoint", "replication-offset-checkpoint")
KEPT_OF_PARTITION = ("partition.metadata", "leader-epoch-checkpoint")
CONVERTED = "path string, messages bigint, records bigint, bytes_before bigint, bytes_after bigint"
_OFFSET_ENTRY, _TIME_ENTRY = Struct(">II"), Struct(">qI")


def convert(spark: SparkSession, source: str, target: str) -> Summary:
    """Rewrite a log directory into a new folder. Raises PipelineError."""
    root, new = Path(source), Path(target)
    if not root.is_dir():
        raise PipelineError(f"{source}: there is no such folder")
    if new.resolve() == root.resolve():
        raise PipelineError("--to must be another folder than --from")
    paths = [
        str(path.relative_to(root))
        for path in sorted(root.glob("*/*.log"))
        if (found := parse_folder_name(path.parent.name)) is not None and found.state == "live"
    ]
    if not paths:
        raise PipelineError(f"{source} has no partitions: it is no log directory")
    _copy(root, new, KEPT_OF_DIRECTORY)
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        _copy(root / folder, new / folder, KEPT_OF_PARTITION)
    segments = spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths))
    total = converted(segments, str(root.resolve()), str(new.resolve())).agg(
        f.count("*").alias("segments"),
        *(f.sum(name).alias(name) for name in ("messages", "records", "bytes_before", "bytes_after")),
    )
    row = total.first()
    assert row is not None
    return {"job": "convert", "to": str(new), **row.asDict()}


def converted(segments: DataFrame, source: str, target: str) -> DataFrame:
    """Rewrite segments (a column `path`, within the folder); columns as CONVERTED. messages: those of old formats."""

    def work(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            rows = [(path, *_segment(Path(source, path), Path(target, path))) for path in frame["path"]]
            yield pd.DataFrame(rows, columns=["path", "messages", "records", "bytes_before", "bytes_after"])

    return segments.mapInPandas(work, CONVERTED)


def _copy(old: Path, new: Path, names: tuple[str, ...]) -> None:
    new.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (old / name).exists():
            shutil.copy2(old / name, new / name)


def _segment(old: Path, new: Path) -> tuple[int, int, int, int]:
    """Messages of old formats and their records, bytes before and after."""
    data = memoryview(old.read_bytes())
    index = _Indices(int(old.stem))
    messages = records = 0
    scratch = new.with_name(new.name + ".converting")
    with open(scratch, "wb") as out:
        try:
            for batch, count, many in _batches(data, may_be_torn=_is_last(old)):
                index.add_batch(batch, out.tell())
                out.write(batch)
                messages += many
                records += count
        except RecordError as error:
            raise PipelineError(f"{old}: position {error.position}: {error}") from None
        size = out.tell()
    for part, content in (("index", index.offsets), ("timeindex", index.times)):
        new.with_suffix(f".{part}").write_bytes(bytes(content))
    if old.with_suffix(".txnindex").exists():
        shutil.copy2(old.with_suffix(".txnindex"), new.with_suffix(".txnindex"))
    os.replace(scratch, new)
    return messages, records, len(data), size


def _is_last(segment: Path) -> bool:
    return segment == max(segment.parent.glob("*.log"))


def _batches(data: memoryview, *, may_be_torn: bool) -> Iterator[tuple[bytes | bytearray | memoryview, int, int]]:
    """v2 batches, in order: bytes, records, and how many old messages they were made of (0: none, it was one).

    may_be_torn: a broker that died may have left half a batch at the end, or room for more; only in a last segment.
    """
    waiting: list[Record] = []
    size = position = 0
    while position < len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        after = position + LENGTH_OVERHEAD + length
        if after > len(data) or length == 0:
            if may_be_torn:
                break
            text = f"no batch of {length} bytes is there, and other segments follow: kbroker verify-log says more"
            raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, text)
        if data[position + MAGIC_AT] == MAGIC:
            if waiting:
                yield build_batch(waiting), len(waiting), len(waiting)
                waiting, size = [], 0
            check(data, position, len(data))
            yield data[position:after], 0, 0
            position = after
            continue
        message = next(scan_messages(data, position))
        check_crc(data, message)
        found = parse_message(data, message)
        alone = message.codec_id or message.is_log_append_time
        if waiting and (alone or size + length > BATCH_BYTES):
            yield build_batch(waiting), len(waiting), len(waiting)
            waiting, size = [], 0
        if alone:
            append_time = message.timestamp if message.is_log_append_time else None
            yield build_batch(found, codec_id=message.codec_id, append_time=append_time), len(found), 1
        else:
            waiting += found
            size += length
        position = after
    if waiting:
        yield build_batch(waiting), len(waiting), len(waiting)


class _Indices:
    """The two indices of a segment, as it is written; formats as in kbroker/log/index.py."""

    def __init__(self, base: int) -> None:
        self._base, self._since = base, 0
        self._latest, self._latest_offset = -1, base
        self.offsets, self._times = bytearray(), bytearray()
        self._noted = -1

    def add_batch(self, batch: bytes | bytearray | memoryview, position: int) -> None:
        """A batch that begins at `position`."""
        header = unpack_header(batch, 0)
        last = last_offset_of(header)
        if header[MAX_TIMESTAMP] > self._latest:
            self._latest, self._latest_offset = header[MAX_TIMESTAMP], last
        if self._since > INDEX_BYTES:
            self.offsets += _OFFSET_ENTRY.pack(last - self._base, position)
            self._add_time()
            self._since = 0
        self._since += len(batch)

    def _add_time(self) -> None:
        if self._latest > self._noted:
            self._times += _TIME_ENTRY.pack(self._latest, self._latest_offset - self._base)
            self._noted = self._latest

    @property
    def times(self) -> bytearray:
        """The time index, with the largest timestamp of all at its end."""
        self._add_time()
        return self._times
