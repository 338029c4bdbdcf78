"""A replica fetcher: what a follower asks one leader next, and what it does with the answer.

Made and driven by `broker/replica_fetchers.py`, which carries requests to the leader and answers back: one request is
under way at a time. Owns, for each partition it follows, whether it may be asked for now, and the fetch session with
the leader, so that a request names only what changed (KIP-227). It reads no clock and knows no socket.

    fetching --diverging--> truncating --LogTruncated--> fetching
       |  ^--- replica.fetch.backoff.ms --- error
       +-- out of range --> looking for the leader's end, then its start --> truncating, or fetching

Where to fetch from is no state of its own: the end of the log. The epoch of what lies before it goes along, and a
leader whose log differs says where to cut (KIP-595); the high watermark decides nothing but in logs without epochs.
Batches are appended as they came, and the records are not looked at. What LeaderAndIsr changes ends what was under way:
an answer counts only if it is to what would be asked again. Requests and answers are tuples (`protocol/flat.py`).

Source: AbstractFetcherThread and ReplicaFetcherThread of Apache Kafka 3.9, by behaviour; KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kbroker.log.append import UnexpectedOffsetError
from kbroker.ports import FlatRequest
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import place
from protocol.message import ZERO_UUID
from protocol.messages.fetch import FetchRequest, PartitionData
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.config import BrokerConfig
    from kbroker.log.log import Log
    from kbroker.replica.manager import ReplicaManager
    from kbroker.replica.partition import Partition
    from protocol.flat import Flat
    from protocol.messages.offsets import ListOffsetsResponse

log = logging.getLogger("kbroker.replicas")

WITH_IDS_VERSION, WITH_NAMES_VERSION = 17, 12
LIST_OFFSETS_VERSION = 7
INDEX, ERROR_CODE = place(PartitionData, "partition_index"), place(PartitionData, "error_code")
HIGH_WATERMARK, LOG_START_OFFSET = place(PartitionData, "high_watermark"), place(PartitionData, "log_start_offset")
DIVERGING_EPOCH, RECORDS = place(PartitionData, "diverging_epoch"), place(PartitionData, "records")
NO_SESSION, INITIAL_EPOCH = 0, 0
LARGEST_EPOCH = 2**31 - 1
CONSUMER = (-1, -1)  # the replica state of who says otherwise that it is a follower
NO_DIRECTORY, UNTOLD = ZERO_UUID, 2**63 - 1  # of a partition, where the follower does not say
LATEST, EARLIEST = -1, -2
UNDEFINED = -1

_QUIET = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What a leader says while it, or this broker, has not heard yet how things are."""


Key: TypeAlias = "tuple[bytes | str, int]"
"""A partition in a session: topic id, or name where there is none, and index."""


class Asked(NamedTuple):
    """What is asked of a partition: with it, what is asked of it next is told from what was."""

    offset: int
    leader_epoch: int
    last_epoch: int  # of the records before the offset


class PartitionFetchState:
    """One partition on its way. due_ms: not to be asked for before. look: LATEST or EARLIEST while that is looked for.

    begins: before it is asked for, its log is to be cut to its high watermark. is_cut: its log is being cut back.
    is_caught_up: has all that was committed when it was last answered. held: records that wait for the end of a cut.
    told_start: where its log starts, as the leader was told last.
    """

    __slots__ = (
        "asked",
        "begins",
        "due_ms",
        "held",
        "is_caught_up",
        "is_cut",
        "leader_end",
        "look",
        "partition",
        "told_start",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.asked: Asked | None = None  # in the session, or in the request under way
        self.due_ms = 0
        self.is_caught_up = False
        self.look = 0
        self.leader_end = 0
        self.told_start = 0
        self.is_cut = partition.log is not None and partition.log.cuts_under_way > 0  # since an older epoch
        self.begins = False
        self.held: bytes | None = None

    def __repr__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"


class Fetcher:
    """What one leader is asked for. leader_id: its node id. purpose: of the line that this goes over."""

    def __init__(self, leader_id: int, purpose: str, broker_id: int, replicas: ReplicaManager) -> None:
        self.leader_id = leader_id
        self.purpose = purpose
        self._broker_id = broker_id
        self._replicas = replicas
        self._following: dict[Partition, PartitionFetchState] = {}
        self._without_ids: dict[Partition, None] = {}
        self._changed: dict[PartitionFetchState, None] = {}  # to be named by the next request, or forgotten
        self._resting: dict[PartitionFetchState, None] = {}  # with a due_ms that has not come
        self._looking: dict[PartitionFetchState, None] = {}
        self._named: dict[Key, PartitionFetchState] = {}  # of the session
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self._uses_ids = True

    def __len__(self) -> int:
        return len(self._following)

    def __repr__(self) -> str:
        return f"<{self.purpose} of broker {self.leader_id}, {len(self)} partitions>"

    # -- what is followed

    def follow(self, partition: Partition, *, is_new_epoch: bool = True) -> None:
        """Begin with a partition, or start over with it: its leader has begun another epoch.

        Else another fetcher has followed it in this one, and what the log has is the leader's.
        """
        self.leave(partition)
        following = self._following[partition] = PartitionFetchState(partition)
        if partition.topic_id == ZERO_UUID:
            self._without_ids[partition] = None
        self._changed[following] = None
        own = partition.log
        if not is_new_epoch or own is None or own.epochs.latest != UNDEFINED:
            return
        following.begins = own.log_end_offset > own.high_watermark
        if following.begins:
            self._begin(following, 0)

    def _begin(self, following: PartitionFetchState, retry_ms: int) -> None:
        """No epoch says how far a log agrees with the leader's: what is committed does."""
        own = following.partition.log
        if own is not None:
            following.begins = not self._truncate(following, own.high_watermark, retry_ms)

    def leave(self, partition: Partition) -> None:
        """Follow a partition no more."""
        following = self._following.pop(partition, None)
        self._without_ids.pop(partition, None)
        if following is not None:
            self._resting.pop(following, None)
            self._looking.pop(following, None)
            self._changed[following] = None

    def truncated(self, partition: Partition, now_ms: int, wall_ms: int) -> None:
        """A cut is durable: appends may go on."""
        following = self._following.get(partition)
        if following is None or not following.is_cut:
            return
        following.is_cut = False
        self._changed[following] = None
        held, following.held = following.held, None
        if held is not None:
            self._append(following, memoryview(held), now_ms, wall_ms)

    def flushed(self, partition: Partition) -> None:
        """What flush.messages asked for is durable: the leader may be told."""
        following = self._following.get(partition)
        if following is not None:
            self._changed[following] = None

    # -- asking

    def next_due_ms(self) -> int | None:
        """When a partition's pause ends."""
        return min((each.due_ms for each in self._resting), default=None)

    def request(self, config: BrokerConfig, broker_epoch: int, now_ms: int) -> tuple[FlatRequest, int] | None:
        """The next fetch and its version; None if there is nothing to ask for."""
        for following in [each for each in self._resting if each.due_ms <= now_ms]:
            del self._resting[following]
            self._changed[following] = None
            if following.begins:
                self._begin(following, now_ms + config.replica_fetch_backoff_ms)
        self._hold_back(now_ms, config.replica_fetch_backoff_ms)
        uses_ids = not self._without_ids
        if uses_ids is not self._uses_ids:
            self._uses_ids = uses_ids
            self.begin_session()
        topics, forgotten = self._news(config.replica_fetch_max_bytes)
        if not self._named:
            self.begin_session()  # what was to be forgotten is forgotten with it
            return None
        version = WITH_IDS_VERSION if uses_ids else WITH_NAMES_VERSION
        replica_id, state = (-1, (self._broker_id, broker_epoch)) if uses_ids else (self._broker_id, CONSUMER)
        request: Flat = (
            None,
            replica_id,
            state,
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            0,
            self._session_id,
            self._session_epoch,
            topics,
            forgotten,
            "",
        )
        return FlatRequest(FetchRequest, request), version

    def _hold_back(self, now_ms: int, most_ms: int) -> None:
        """Those that are throttled rest while they have taken more than they may, but for those in sync.

        For so many ms at most: then the limit may be another one, or none.
        """
        free_ms = self._replicas.throttles.followers.free_ms()
        if free_ms > now_ms:
            throttled = [
                each
                for each in self._following.values()
                if each.partition.is_throttled_follower and not each.is_caught_up and each not in self._resting
            ]
            self._rest(throttled, min(free_ms, now_ms + most_ms))

    def _news(self, max_bytes: int) -> tuple[list[Flat], list[Flat]]:
        """What the session has to be told: the fields of FetchTopic, and of ForgottenTopic."""
        topics: list[Flat] = []
        forget: dict[Key, Partition] = {}
        changed, self._changed = self._changed, {}
        for following in changed:
            partition, own = following.partition, following.partition.log
            key = (partition.topic_id if self._uses_ids else partition.topic, partition.index)
            is_over = own is None or self._following.get(partition) is not following
            if is_over or self._must_wait(following):
                if self._named.get(key) is following:
                    del self._named[key]
                    forget[key] = partition
                continue
            assert own is not None, following
            index, epoch, offset, last_epoch = (
                partition.index,
                partition.leader_epoch,
                own.log_end_offset,
                own.epochs.latest,
            )
            following.asked = Asked(offset, epoch, last_epoch)
            following.told_start = own.log_start_offset
            self._named[key] = following
            forget.pop(key, None)
            self._parts_of(partition, topics).append(
                (index, epoch, offset, last_epoch, own.log_start_offset, max_bytes, NO_DIRECTORY, UNTOLD)
            )
        return topics, self._forgotten(forget.values()) if self._session_epoch != INITIAL_EPOCH else []

    def _forgotten(self, partitions: Iterable[Partition]) -> list[Flat]:
        topics: list[Flat] = []
        for partition in partitions:
            self._parts_of(partition, topics).append(partition.index)
        return topics

    def _parts_of(self, partition: Partition, topics: list[Flat]) -> list[Any]:
        """Where a partition is named next in a request: with those of its topic just before it, as order counts."""
        name, topic_id = ("", partition.topic_id) if self._uses_ids else (partition.topic, ZERO_UUID)
        last_name, last_id, parts = topics[-1] if topics else (None, None, [])
        if last_name != name or last_id != topic_id:
            parts = []
            topics.append((name, topic_id, parts))
        return cast("list[Any]", parts)

    def _must_wait(self, following: PartitionFetchState) -> bool:
        """Also for an fsync that flush.messages asks for: the next fetch says that the follower has what came."""
        own = following.partition.log
        is_written = own is None or not own.awaits_flush
        return following.is_cut or not is_written or following in self._resting or following in self._looking

    def begin_session(self) -> None:
        """The leader is to be told everything again: it is unknown what it knows.

        The next request names the session that is over, so that the leader forgets it.
        """
        self._session_epoch = INITIAL_EPOCH
        self._named = {}
        self._changed = dict.fromkeys(self._following.values())

    # -- answers

    def failed(self) -> None:
        """There is no answer."""
        self.begin_session()

    def pause(self, due_ms: int) -> None:
        """Ask for nothing before a time."""
        self._rest(list(self._following.values()), due_ms)

    def answered(self, response: Flat, now_ms: int, wall_ms: int, backoff_ms: int) -> None:
        """Append what came, cut what diverges, note what failed. response: the fields of FetchResponse."""
        _throttle_time_ms, error_code, session_id, topics, _node_endpoints = response
        if error_code != ErrorCode.NONE:
            log.info("%r: the session is over: %s", self, ErrorCode.of(error_code).name)
            self.begin_session()
            if error_code not in _SESSION_ERRORS:
                self._rest(self._following.values(), now_ms + backoff_ms)
            return
        named = self._named
        self._continue(session_id)
        is_missed = False
        for topic, topic_id, parts in topics:
            named_by = topic_id if self._uses_ids else topic
            for data in parts:
                following = named.get((named_by, data[INDEX]))
                if following is not None and self._is_answer(following):
                    self._process_partition_data(following, data, now_ms, wall_ms, backoff_ms)
                    is_missed |= following.is_cut  # what it says of the high watermark is for what comes after the cut
                elif following is not None:
                    self._changed[following] = None
                    is_missed |= self._is_not_told_again(following.partition, data)
        if is_missed:
            self.begin_session()

    def _continue(self, session_id: int) -> None:
        """A session goes on; a leader that keeps none is told everything with each request."""
        self._session_id = session_id
        if session_id == NO_SESSION:
            self.begin_session()
        else:
            self._session_epoch = 1 if self._session_epoch == LARGEST_EPOCH else self._session_epoch + 1

    def _is_answer(self, following: PartitionFetchState) -> bool:
        """Whether what was asked would be asked again: else the log, or the epoch, was changed meanwhile."""
        partition, own = following.partition, following.partition.log
        if self._following.get(partition) is not following or own is None or self._must_wait(following):
            return False
        return following.asked == Asked(own.log_end_offset, partition.leader_epoch, own.epochs.latest)

    def _is_not_told_again(self, partition: Partition, data: Flat) -> bool:
        """Whether an answer that does not count has bounds that the session takes for told from now on."""
        own = partition.log
        if own is None or partition not in self._following:
            return False
        is_new: bool = data[HIGH_WATERMARK] > own.high_watermark or data[LOG_START_OFFSET] > own.log_start_offset
        return is_new and not data[RECORDS]

    def _process_partition_data(
        self, following: PartitionFetchState, data: Flat, now_ms: int, wall_ms: int, backoff_ms: int
    ) -> None:
        """data: the fields of PartitionData."""
        code, (epoch, end_offset), records = ErrorCode.of(data[ERROR_CODE]), data[DIVERGING_EPOCH], data[RECORDS]
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            following.look = LATEST
            self._looking[following] = self._changed[following] = None
        elif code is not ErrorCode.NONE:
            level = logging.DEBUG if code in _QUIET else logging.WARNING
            log.log(level, "%r: its leader %d answers %s", following, self.leader_id, code.name)
            self._rest([following], now_ms + backoff_ms)
        elif epoch >= 0 or end_offset >= 0:
            self._diverged(following, epoch, end_offset, now_ms + backoff_ms)
        else:
            try:
                if records is not None and len(records):
                    self._append_answer(following, records, now_ms, wall_ms)
                self._follow_bounds(following, data[HIGH_WATERMARK], data[LOG_START_OFFSET])
            except UnexpectedOffsetError as error:
                self._begin_within_a_batch(following, error.first_offset, records, now_ms + backoff_ms)
            except KafkaError as error:
                log.error("%r: what its leader %d sent is refused: %s", following, self.leader_id, error)
                self._rest([following], now_ms + backoff_ms)

    def _append_answer(self, following: PartitionFetchState, records: memoryview, now_ms: int, wall_ms: int) -> None:
        partition = following.partition
        self._replicas.append_as_follower(partition, records, wall_ms)
        self._name_last(following)
        if partition.is_throttled_follower:
            self._replicas.throttles.followers.record(len(records), now_ms)

    def _name_last(self, following: PartitionFetchState) -> None:
        """Of who had records: without a session, a leader fills each answer in the order of the request."""
        self._changed.pop(following, None)
        self._changed[following] = None
        self._following[following.partition] = self._following.pop(following.partition)

    def _follow_bounds(self, following: PartitionFetchState, high_watermark: int, log_start_offset: int) -> None:
        own = following.partition.log
        assert own is not None, following
        following.is_caught_up = own.log_end_offset >= high_watermark
        self._replicas.follow_bounds(following.partition, high_watermark, log_start_offset)
        if own.log_start_offset != following.told_start:  # DeleteRecords waits for all replicas to say so
            self._changed[following] = None

    def _append(self, following: PartitionFetchState, records: memoryview, now_ms: int, wall_ms: int) -> None:
        """What was held while the log was emptied."""
        try:
            self._replicas.append_as_follower(following.partition, records, wall_ms)
        except KafkaError as error:
            log.error("%r: %s", following, error)
            self._rest([following], now_ms + 1)

    def _rest(self, those: Iterable[PartitionFetchState], due_ms: int) -> None:
        """Do not ask for these before a time."""
        for following in those:
            following.due_ms = due_ms
            self._resting[following] = None
            self._changed[following] = None

    # -- cutting

    def _diverged(self, following: PartitionFetchState, epoch: int, end_offset: int, retry_ms: int) -> None:
        """Cut to where the leader's log and ours can agree; the next fetch says whether they do.

        epoch, end_offset: the leader's, of the last epoch that both know.
        """
        own = following.partition.log
        assert own is not None, following
        offset = where_to_cut(own, epoch, end_offset)
        log.info(
            "%r: cut at %d of %d, its leader %d has epoch %d up to %d",
            following,
            offset,
            own.log_end_offset,
            self.leader_id,
            epoch,
            end_offset,
        )
        self._truncate(following, offset, retry_ms)

    def _truncate(
        self,
        following: PartitionFetchState,
        offset: int,
        retry_ms: int,
        *,
        start_over: bool = False,
        log_start_offset: int | None = None,
    ) -> bool:
        """Whether it is cut; else it rests, and what its leader says then is that it is to be cut."""
        following.is_caught_up = False
        self._changed[following] = None
        following.is_cut = self._replicas.truncate(
            following.partition, offset, start_over=start_over, log_start_offset=log_start_offset
        )
        if not following.is_cut:
            following.held = None
            self._rest([following], retry_ms)
        return following.is_cut

    def _begin_within_a_batch(
        self, following: PartitionFetchState, first_offset: int, records: memoryview, retry_ms: int
    ) -> None:
        """The leader's log starts within the batch that it sent: an empty log may start there, too (DeleteRecords)."""
        own = following.partition.log
        assert own is not None, following
        if own.log_end_offset > own.log_start_offset:
            log.error("%r: its leader %d sent offset %d again", following, self.leader_id, first_offset)
            self._rest([following], retry_ms)
            return
        following.held = bytes(records)  # the view goes with the answer
        self._truncate(following, first_offset, retry_ms, start_over=True, log_start_offset=own.log_end_offset)

    # -- out of range

    def look_up(self, now_ms: int) -> tuple[ListOffsetsRequest, int] | None:
        """What is to be asked about partitions whose offset is out of the leader's range, if they do not rest.

        None if there are none.
        """
        wanted = [each for each in self._looking if each.due_ms <= now_ms]
        if not wanted:
            return None
        topics: dict[str, ListOffsetsTopic] = {}
        for following in wanted:
            partition = following.partition
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition.index,
                    current_leader_epoch=partition.leader_epoch,
                    timestamp=following.look,
                )
            )
        request = ListOffsetsRequest(replica_id=self._broker_id, isolation_level=0, topics=list(topics.values()))
        return request, LIST_OFFSETS_VERSION

    def looked_up(self, response: ListOffsetsResponse, now_ms: int, backoff_ms: int) -> None:
        """Where the leaders' logs end, or begin."""
        found = {(topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions}
        for following in list(self._looking):
            partition, own = following.partition, following.partition.log
            part = found.get((partition.topic, partition.index))
            if part is None or part.error_code != ErrorCode.NONE or own is None:
                del self._looking[following]
                self._rest([following], now_ms + backoff_ms)
            elif following.look == LATEST and part.offset >= own.log_end_offset:
                following.leader_end, following.look = part.offset, EARLIEST
            else:
                del self._looking[following]
                self._back_in_range(following, own, part.offset, now_ms + backoff_ms)

    def _back_in_range(self, following: PartitionFetchState, own: Log, offset: int, retry_ms: int) -> None:
        """offset: where the leader's log ends, if that is before our end; else where it begins."""
        is_behind_us = following.look == LATEST
        if is_behind_us:
            log.warning("%r: its leader's log ends at %d, ours at %d: cut", following, offset, own.log_end_offset)
            self._truncate(following, offset, retry_ms)
        elif offset > own.log_end_offset:
            log.warning(
                "%r: its leader's log begins at %d: emptied, it ended at %d", following, offset, own.log_end_offset
            )
            self._truncate(following, offset, retry_ms, start_over=True)
        else:
            self._rest([following], retry_ms)


_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Of a whole fetch: begin another session, at once."""


def where_to_cut(own: Log, epoch: int, end_offset: int) -> int:
    """The offset at which a follower cuts its log, so that it agrees with its leader's, or comes nearer to that.

    epoch, end_offset: the leader's largest epoch that is not above our last one, and where it ends there; -1 unknown.
    Source: KIP-279; AbstractFetcherThread.getOffsetTruncationState.
    """
    if end_offset == UNDEFINED:
        return min(own.high_watermark, own.log_end_offset)
    ours = own.last_offset_of_epoch(epoch)
    if epoch == UNDEFINED or ours.epoch == UNDEFINED:
        return min(end_offset, own.log_end_offset)
    if ours.epoch != epoch:  # an epoch that we never had: back to the one before it, and ask again
        return min(ours.end_offset, own.log_end_offset)
    return min(ours.end_offset, end_offset, own.log_end_offset)


def fetcher_number(topic: str, index: int, count: int) -> int:
    """Which of a leader's fetchers a partition belongs to, as in Kafka: by Java's hash of the topic's name."""
    hashed = 0
    for unit in topic.encode("ascii"):  # names of topics are
        hashed = 31 * hashed + unit & 0xFFFFFFFF
    mixed = 31 * hashed + index & 0xFFFFFFFF
    if mixed >= 1 << 31:
        mixed = (1 << 32) - mixed  # Java's abs
    return (mixed if mixed < 1 << 31 else 0) % count  # of the smallest integer, Kafka's abs is 0
