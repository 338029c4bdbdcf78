"""Fetch 0-3: what the log has, in the formats that clients knew before v2 batches.

Versions 0 and 1 are told messages of format v0, 2 and 3 of v1. The log is read as for anybody else, and a job
converts what was found (`log/down_convert.py`); the answer follows it. Before v3 a first batch that is larger than
the client allows does not come whole: the client is given the beginning of some message that its buffer cannot hold,
by which it knows. Markers and what old formats cannot tell are left out; where nothing else was found, reading goes
on behind it, since a client that gets nothing would ask for the same again.

Unlike Kafka: what was converted is sent with its exact size, and about a megabyte at a time. Aborted records are
given to these clients there as well.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Any

from kbroker.api.call import LATER
from kbroker.api.fetch_reader import EMPTY, ERROR_CODE, RECORDS, Reader, failed_part
from kbroker.broker.facts import Reply
from kbroker.log.down_convert import DownConvertJob, Piece
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.call import Call, Signal
    from kbroker.api.fetch_reader import Slices
    from kbroker.broker.fetch_sessions import Part, Wanted
    from kbroker.broker.jobs import Job
    from kbroker.ports import Buffer
    from kbroker.replica import Partition
    from protocol.flat import Flat

log = logging.getLogger("kbroker.requests")

V1_SINCE = 2
WHOLE_FIRST_SINCE = 3  # KIP-74
TOO_LARGE = Struct(">qi").pack(-1, 2**31 - 1)
"""Offset and size of a message that no buffer holds."""


class Found(NamedTuple):
    """A piece on its way through the job, and whose it is. at: of its part of the answer. limit: bytes allowed."""

    piece: Piece
    partition: Partition
    at: int
    limit: int


class OldReader(Reader):
    """One fetch of an old client; it owns the job that converts what was found."""

    __slots__ = ("_answers", "_found")

    def __init__(self, request: Flat, call: Call, wanted: Sequence[Wanted]) -> None:
        super().__init__(request, call, None, wanted)
        self._answers: list[Part] = []
        self._found: list[Found] = []

    def response(self, *, may_wait: bool = False) -> Any:
        """Read now, None as for others; LATER if there is anything to convert."""
        if may_wait and not self.may_answer():
            return None
        self._answers, self._found = self._begin(), []
        self._whole_first = self._call.version >= WHOLE_FIRST_SINCE
        for wanted in self._wanted:
            limit = min(self._left, wanted.max_bytes)
            self._read(wanted, self._answers)
            at = len(self._answers) - 1
            _, part, size = self._answers[at]
            if size:
                (region,) = part[RECORDS]
                self._found.append(Found(Piece(region, wanted.fetch_offset), self._find(wanted), at, limit))
            elif 0 < limit == wanted.max_bytes and part[ERROR_CODE] == 0 and not self._cold:
                self._tell_if_too_large(wanted, at)
        if self._lacks_some():
            return None
        if not self._found:
            return self._answer(self._answers)
        self._give(self._found)
        return LATER

    def response_in_slices(self) -> Slices:
        """Read in one go: clients of many partitions are not of this age."""
        yield
        response: Flat | Signal | None = self.response()
        return response

    def _find(self, wanted: Wanted) -> Partition:
        partition = super()._find(wanted)
        if partition.log is not None and not partition.log.config.message_downconversion_enable:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{partition} is not converted for old clients")
        return partition

    def _tell_if_too_large(self, wanted: Wanted, at: int) -> None:
        """Nothing came although there is something: its first batch is larger than the client allows."""
        if self._call.version < WHOLE_FIRST_SINCE and self._has_some(wanted):
            self._put(at, TOO_LARGE[: wanted.max_bytes])

    def _has_some(self, wanted: Wanted) -> bool:
        """Not where compaction left nothing up to the end."""
        partition = self._find(wanted)
        end = partition.readable_end(self._isolation)
        return partition.led().available_bytes(wanted.fetch_offset, end) > 0

    def _put(self, at: int, records: Buffer | list[Buffer]) -> None:
        """Records into a part of the answer."""
        wanted, part, size = self._answers[at]
        self._answers[at] = wanted, (*part[:RECORDS], records), size

    def _fail(self, at: int, code: ErrorCode) -> None:
        """An error in place of a part of the answer."""
        wanted, _part, _size = self._answers[at]
        self._answers[at] = wanted, failed_part(wanted.index, code), 0

    # -- the job

    def _give(self, found: list[Found]) -> None:
        magic = 1 if self._call.version >= V1_SINCE else 0
        self._found = found
        job = DownConvertJob(magic, [each.piece for each in found])
        self._call.broker.decompression.add(self._call.session.peer_host, job, self)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """The job has ended: answer, or look further where there was nothing for the client.

        error: an unexpected one.
        """
        further = [again for each in self._found if (again := self._put_piece(each, error)) is not None]
        if further:
            self._give(further)
        else:
            self._call.broker.tell(Reply(self._call.ticket, self._answer(self._answers)))

    def _put_piece(self, found: Found, error: OSError | None) -> Found | None:
        """One piece's outcome into the answer, or where to go on looking. error: of the whole job."""
        piece, partition, at, limit = found
        self._put(at, EMPTY)
        fault = error or piece.error
        if fault is not None:
            self._could_not_read(at, partition, fault)
        elif piece.records:
            self._put(at, piece.records)
        elif piece.next_offset >= 0:
            return self._behind(found)
        elif self._call.version < WHOLE_FIRST_SINCE:
            self._put(at, TOO_LARGE[: max(limit, 0)])
        return None

    def _behind(self, found: Found) -> Found | None:
        """Read on behind batches that the client may not see."""
        piece, partition, at, limit = found
        try:
            fetched = partition.read(piece.next_offset, limit, self._isolation, whole_first_batch=True)
        except (KafkaError, OSError) as error:
            self._could_not_read(at, partition, error)
            return None
        if fetched.region is None:
            return None
        return found._replace(piece=Piece(fetched.region, piece.next_offset))

    def _could_not_read(self, at: int, partition: Partition, error: KafkaError | OSError) -> None:
        is_too_old = isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        level = logging.DEBUG if is_too_old else logging.ERROR  # what a client lacks is no fault of ours
        log.log(level, "%s-%d cannot be read for an old client: %s", partition.topic, partition.index, error)
        if isinstance(error, OSError):
            error = self._replicas.storage_error(partition, error)
        self._call.has_errors = True
        self._fail(at, self._known(error.code))
