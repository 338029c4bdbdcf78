"""What one Fetch reads: is there enough, and if so, regions of files, partition by partition.

Made by `fetch.py` for each request, and by `fetch_old.py`; a parked fetch keeps its own. It decides nothing about
waiting, but that there is no answer while the disk has to bring first what leads to records: an empty part says that
there are none. Errors are a partition's own, with the codes of `replica/partition.py` and the log. From version 16 on,
a partition that is led elsewhere, or in a newer epoch, names its leader (`leaders.py`). Requests and answers are tuples
(`protocol/flat.py`).
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.leaders import current_leader
from kbroker.broker.fetch_sessions import Wanted
from kbroker.config.limits import MANY_PARTITIONS
from kbroker.log.index_warmup import NotReadyError
from kbroker.log.isolation import TXN_COMMITTED, FetchIsolation
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import default_tuple, place
from protocol.message import ZERO_UUID
from protocol.messages.fetch import EpochEndOffset, FetchRequest, LeaderIdAndEpoch, PartitionData, SnapshotId

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import TypeAlias

    from kbroker.api.call import Call, Signal
    from kbroker.broker.fetch_sessions import FetchSession, Part
    from kbroker.log.index_warmup import Cold
    from kbroker.replica import Partition
    from protocol.flat import Flat

    Slices: TypeAlias = Generator[None, None, Flat | Signal | None]

STORAGE_ERROR_SINCE = 6  # KIP-112: older clients are told NOT_LEADER_OR_FOLLOWER, at which they ask again
ZSTD_SINCE = 10  # KIP-110
FOLLOWERS_SINCE = 11  # KIP-392
NAMES_LEADERS_SINCE = 16  # KIP-951

MIN_BYTES, MAX_BYTES = place(FetchRequest, "min_bytes"), place(FetchRequest, "max_bytes")
ISOLATION_LEVEL = place(FetchRequest, "isolation_level")
# A part of the answer: index, error_code, high_watermark, last_stable_offset, log_start_offset, diverging_epoch,
# current_leader, snapshot_id, aborted_transactions, preferred_read_replica, records.
ERROR_CODE, RECORDS = place(PartitionData, "error_code"), place(PartitionData, "records")
TOPIC = attrgetter("topic")
NO_DIVERGENCE = default_tuple(EpochEndOffset)
NO_LEADER = default_tuple(LeaderIdAndEpoch)
NO_SNAPSHOT = default_tuple(SnapshotId)
ASKED_THE_WRONG = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
EMPTY: Any = b""


class Reader:
    """One fetch: what it wants, and how much."""

    WAITS_FOR_EACH = True  # that the disk has to bring, whatever others have: an empty part may pass for the end

    __slots__ = (
        "_call",
        "_cold",
        "_denied",
        "_finds_some",
        "_gives_up",
        "_isolation",
        "_left",
        "_max_bytes",
        "_min_bytes",
        "_nodes",
        "_none_aborted",
        "_regions_left",
        "_replicas",
        "_session",
        "_wanted",
        "_whole_first",
    )
    _nodes: list[Flat]  # addresses of leaders that are named
    _cold: list[Cold]  # segments that were not ready when they were last asked

    def __init__(self, request: Flat, call: Call, session: FetchSession | None, wanted: Sequence[Wanted]) -> None:
        """request: of FetchRequest."""
        self._call, broker = call, call.broker
        self._replicas = broker.replicas
        self._session, (self._wanted, self._denied) = session, denied(wanted, call) if call.may_read else (wanted, ())
        self._isolation = FetchIsolation.of(request[ISOLATION_LEVEL])
        self._none_aborted: list[Any] | None = [] if self._isolation is TXN_COMMITTED else None
        self._max_bytes = min(request[MAX_BYTES], broker.config.fetch_max_bytes)
        # more than may be sent cannot come together; where nothing may be read there is nothing to wait for
        self._min_bytes: int = min(request[MIN_BYTES], self._max_bytes) if self._wanted else 0
        self._finds_some, self._gives_up = False, False
        self._cold = []

    @property
    def call(self) -> Call:
        """The request's surroundings."""
        return self._call

    def partitions(self) -> list[Partition]:
        """The replicas it reads from, as far as they are here."""
        here = self._replicas.partitions
        return [found for each in self._wanted if (found := here.get((each.topic or "", each.index))) is not None]

    def waits_for_disk(self) -> bool:
        """Whether there can be no answer yet: a segment is being made ready that the last reading found cold."""
        return self._lacks_some() and not self._call.broker.cold_reads.isdisjoint(self._cold)

    def _lacks_some(self) -> bool:
        """Whether what was read last is less than there is, and no answer."""
        return bool(self._cold) and (self.WAITS_FOR_EACH or not self._finds_some)

    def give_up(self) -> None:
        """From now on what the disk has still not brought is KAFKA_STORAGE_ERROR."""
        self._gives_up = True

    def may_answer(self) -> bool:
        """Whether there is enough, or an error, by a look that reads no records."""
        available = 0
        for wanted in self._wanted:
            try:
                partition = self._find(wanted)
                end = partition.readable_end(self._isolation)
                if wanted.last_fetched_epoch >= 0 and divergence(partition, wanted) is not NO_DIVERGENCE:
                    return True
            except KafkaError:
                return True
            assert partition.log is not None
            if (
                wanted.fetch_offset > partition.log.log_end_offset
                or wanted.fetch_offset < partition.log.log_start_offset
            ):
                return True
            if end > wanted.fetch_offset:
                if self._min_bytes <= 1:  # as most ask: there is a batch, and nothing to count
                    return True
                try:
                    size = partition.log.available_bytes(wanted.fetch_offset, end)
                except NotReadyError as error:
                    self._call.broker.cold_reads.warm(partition, error)
                    continue
                except KafkaError:  # it is damaged, as reading says: raised here, it would hit the other partitions
                    return True
                except OSError as error:  # raised here, it would hit the producer whose append makes us look
                    self._replicas.storage_error(partition, error)
                    return True
                available += min(size, wanted.max_bytes)
                if available >= self._min_bytes:
                    return True
        return available >= self._min_bytes

    def first_response(self) -> Flat | Signal | None:
        """`response_if_enough`, in the step in which the fetch has come."""
        return self.response_if_enough()

    def response_if_enough(self) -> Flat | Signal | None:
        """The response, if it has min_bytes of records or something else to say, and need not wait for the disk."""
        if (self._cold and self.waits_for_disk()) or (self._min_bytes > 1 and not self.may_answer()):
            return None
        response: Flat | Signal | None = self.response(may_wait=True)
        return response

    def response(self, *, may_wait: bool = False) -> Any:
        """Read now: the fields of FetchResponse, or Signal. Partitions share the bytes in the order they stand in.

        may_wait: for something to say. None: it has to, or the disk is to bring something first.
        """
        answers = self._begin()
        for wanted in self._wanted:
            self._read(wanted, answers)
        if self._cold and self._lacks_some():
            return None
        if may_wait and not self._finds_some and self._min_bytes > 0:
            return None
        return self._answer(answers)

    def response_in_slices(self) -> Slices:
        """As `response`, for many partitions; None if the disk is to bring something first, and has not by now."""
        while True:
            answers = self._begin()
            for wanted in self._wanted:
                yield
                self._read(wanted, answers)
            if not self._lacks_some():
                return (yield from self._answer_in_slices(answers))
            if self.waits_for_disk():
                return None

    def _begin(self) -> list[Part]:
        self._left, self._regions_left = self._max_bytes, self._call.broker.fetch_regions
        self._whole_first, self._finds_some, self._cold, self._nodes = True, False, [], []
        return list(self._denied)

    def _answer(self, answers: Sequence[Part]) -> Flat:
        session = self._session
        if session is None:
            return 0, 0, 0, by_topic(answers), self._nodes
        return 0, 0, session.id, by_topic(session.news(answers)), self._nodes

    def _answer_in_slices(self, answers: Sequence[Part]) -> Generator[None, None, Flat]:
        """As `_answer`, of many partitions."""
        session, topics = self._session, cast("list[Flat]", [])
        for start in range(0, len(answers) or 1, MANY_PARTITIONS):
            some, is_last = answers[start : start + MANY_PARTITIONS], start + MANY_PARTITIONS >= len(answers)
            more = by_topic(some if session is None else session.news(some, is_last=is_last))
            if topics and more:
                (name, topic_id, parts), (next_name, next_id, next_parts) = topics[-1], more[0]
                if (name, topic_id) == (next_name, next_id):
                    parts += next_parts
                    del more[0]
            topics += more
            yield
        return 0, 0, 0 if session is None else session.id, topics, self._nodes

    def _read(self, wanted: Wanted, answers: list[Part]) -> None:
        """Add one partition's part of the response, and the bytes of records in it; they count off what is left."""
        index, size, records, diverging = wanted.index, 0, EMPTY, NO_DIVERGENCE
        region, aborted = None, self._none_aborted
        try:
            partition = self._find(wanted)
            if wanted.last_fetched_epoch >= 0:
                diverging = divergence(partition, wanted)
            if diverging is NO_DIVERGENCE:
                most = min(self._left, wanted.max_bytes)
                region, aborted = partition.read(wanted.fetch_offset, most, self._isolation, self._whole_first, False)
            else:
                self._finds_some = True
        except NotReadyError as error:
            self._call.broker.cold_reads.warm(partition, error)
            if self._gives_up:
                self._call.has_errors = True
                answers.append((wanted, failed_part(index, self._known(ErrorCode.KAFKA_STORAGE_ERROR)), 0))
                return
            self._cold.append(error.segment)
        except (KafkaError, OSError) as error:
            self._call.has_errors = self._finds_some = True
            if isinstance(error, OSError):
                error = self._replicas.storage_error(partition, error)
            code = self._known(error.code)
            answers.append((wanted, failed_part(index, code, self._leader(wanted, code)), 0))
            return
        if region is not None:
            size, records = region.size, [region]
            self._whole_first, self._finds_some = False, True
            self._regions_left -= 1
            self._left = max(self._left - size, 0) if self._regions_left else 0
            if aborted:
                aborted = [(each.producer_id, each.first_offset) for each in aborted]
        log = partition.log
        assert log is not None, partition
        high, stable, start = log.high_watermark, log.last_stable_offset, log.log_start_offset
        part = (index, 0, high, stable, start, diverging, NO_LEADER, NO_SNAPSHOT, aborted, -1, records)
        answers.append((wanted, part, size))

    def _known(self, code: ErrorCode) -> ErrorCode:
        """The same error, by a code that clients of this version know."""
        is_new = code is ErrorCode.KAFKA_STORAGE_ERROR and self._call.version < STORAGE_ERROR_SINCE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_new else code

    def _leader(self, wanted: Wanted, code: ErrorCode) -> Flat:
        """What is said of the leader of a partition that failed with `code`."""
        if code not in ASKED_THE_WRONG or self._call.version < NAMES_LEADERS_SINCE:
            return NO_LEADER
        return current_leader(self._call, wanted.topic, wanted.index, self._nodes)

    def _find(self, wanted: Wanted) -> Partition:
        """The replica to read from. Raises: KafkaError."""
        topic = wanted.topic
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        replicas = self._replicas
        partition = replicas.partitions.get((topic, wanted.index)) or replicas.find(topic, wanted.index)
        if wanted.topic_id is not ZERO_UUID and partition.is_of_another(wanted.topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if wanted.current_leader_epoch >= 0:  # Kafka takes any below 0 for none in Fetch, but only -1 elsewhere
            partition.check_epoch(wanted.current_leader_epoch)
        if self._call.version < FOLLOWERS_SINCE:
            self._check_for_old(partition)
        return partition

    def _check_for_old(self, partition: Partition) -> None:
        """Older clients read from leaders only, and the oldest nothing that may be zstd."""
        log = partition.led()
        if self._call.version < ZSTD_SINCE and log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def denied(wanted: Sequence[Wanted], call: Call) -> tuple[Sequence[Wanted], Sequence[Part]]:
    """What may be read, and the parts of the answer about what may not. A topic of which there is no name passes."""
    if call.may_read is not reads_nothing and call.session.grants.readable.issuperset(map(TOPIC, wanted)):
        return wanted, ()
    may_read: dict[str | None, bool] = {None: True}
    times = Counter(map(TOPIC, wanted))
    left, refused = [], []
    for each in wanted:
        topic = each.topic
        if topic not in may_read:
            assert topic is not None, each
            may_read[topic] = call.may_read is None or call.may_read(topic, times=times[topic])
        if may_read[topic]:
            left.append(each)
        else:
            refused.append((each, failed_part(each.index, ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0))
    if call.may_read is not reads_nothing:
        call.session.grants.read(topic for topic, allowed in may_read.items() if allowed)
    call.has_errors |= bool(refused)
    return left, refused


def reads_nothing(topic: str, *, times: int = 1) -> bool:
    """Whether a replica that is no broker may read a topic."""
    return False


def failed_part(index: int, code: ErrorCode, leader: Flat = NO_LEADER) -> Flat:
    """The part of the answer about a partition that cannot be read."""
    return index, code, -1, -1, -1, NO_DIVERGENCE, leader, NO_SNAPSHOT, [], -1, EMPTY


def divergence(partition: Partition, wanted: Wanted) -> Flat:
    """Where the reader's log and ours part, if its last record is of an epoch that ended earlier here (KIP-595).

    Returns: the fields of EpochEndOffset; NO_DIVERGENCE if they agree.
    """
    log, offset, epoch = partition.log, wanted.fetch_offset, wanted.last_fetched_epoch
    if epoch < 0 or (log is not None and epoch == log.epochs.latest and offset <= log.log_end_offset):
        return NO_DIVERGENCE  # our newest epoch ends where our log ends
    end = partition.end_of_epoch(wanted.last_fetched_epoch)
    if end.epoch < 0 or end.end_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {wanted.last_fetched_epoch} is not in the log")
    if log is not None and offset < log.log_start_offset:
        return NO_DIVERGENCE  # wherever they part: reading says that it is out of range
    if end.is_before(epoch, offset):
        return end.epoch, end.end_offset
    return NO_DIVERGENCE


def by_topic(answers: Sequence[Part]) -> list[Flat]:
    """The parts of an answer as it has them. Neighbours of one topic together; the order of the partitions stays.

    Returns: the fields of each FetchableTopicResponse.
    """
    topics: list[Flat] = []
    parts: list[Flat] = []
    name, topic_id = None, b""
    for wanted, part, _ in answers:
        if wanted.topic != name or wanted.topic_id != topic_id:
            name, topic_id, parts = wanted.topic, wanted.topic_id, []
            topics.append((name or "", topic_id, parts))
        parts.append(part)
    return topics
