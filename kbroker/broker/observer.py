"""The quorum's log as this broker follows it: requests to controllers, and what is committed, told as facts.

A part of a member of a quorum's cluster. What is asked of whom, and what becomes of an answer, is decided by
`quorum/observer.py`; here are the connection, pauses, jobs for the disk and the order of what is told. Records that are
committed are read in pieces (`quorum/committed.py`) and told as `Committed`, the newest snapshot first; a long log is
read between other requests. The image is none of its business.

An error of the disk that has the metadata log ends the broker, as in Kafka: it would know nothing new.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from kbroker.log.errors import CorruptFileError, fault_of
from kbroker.log.facts import LogDirectoryFailed
from kbroker.ports import QUORUM, Endpoint, PeerAnswer, PeerFaultKind
from kbroker.quorum.committed import CommittedReader
from kbroker.quorum.facts import Committed, LeaderChanged
from kbroker.quorum.metadata_log import QuorumState, SnapshotId
from kbroker.quorum.observer import MAX_WAIT_MS
from kbroker.quorum.snapshots import SnapshotHead, snapshot_batches
from protocol.message import DecodeError
from protocol.messages.metadata_records import decode_record
from protocol.messages.quorum import KRaftVersionRecord, VotersRecord
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kbroker.broker.facts import Handler, Tell
    from kbroker.broker.jobs import Job, Owner
    from kbroker.config.quorum import QuorumSettings
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import Clock, PeerEvent
    from kbroker.quorum.metadata_log import PartialSnapshot
    from kbroker.quorum.observer import Controller, Leader, QuorumObserver
    from kbroker.timing import Scheduler, Steps
    from protocol.message import Message
    from protocol.messages.fetch import FetchResponse
    from protocol.messages.quorum import FetchSnapshotResponse

log = logging.getLogger("kbroker.quorum")

CLEAN_EVERY_MS = 60_000


class ActiveController(NamedTuple):
    """The leader of the quorum, as far as this broker knows, and where it is asked."""

    node_id: int
    endpoint: Endpoint


class Observer:
    """Follows the quorum from `start` on.

    fatal: why the broker cannot go on, else empty. published_offset: of the last record that was told, -1 before.
    """

    def __init__(
        self,
        quorum: QuorumObserver,
        settings: QuorumSettings,
        requester: Requester,
        configs: Configs,
        clock: Clock,
        scheduler: Scheduler,
        give: Callable[[Job, Owner], None],
        tell: Tell,
    ) -> None:
        self.fatal = ""
        self.published_offset = -1
        self.kraft_version = 0
        self.voters: VotersRecord | None = None
        self._quorum = quorum
        self._settings = settings
        self._requester = requester
        self._configs = configs
        self._clock = clock
        self._give = give
        self._tell = tell
        self._reader = CommittedReader(quorum.metadata_log)
        self._asked: Controller | None = None
        self._lines: set[int] = set()  # node ids with a connection
        self._told_leader: Leader | None = None
        self._written = quorum.metadata_log.state, self.kraft_version
        self._is_writing = False
        self._bytes_since_snapshot = 0  # of the log, that were told
        self._snapshot_ms = clock.now_ms()
        self._is_taking_snapshot = False
        self._scheduler = scheduler
        self._retry = scheduler.alarm(self._go_on)
        self._read_on = scheduler.alarm(self._read)
        self._clean = scheduler.alarm(self._clean_up)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """A log directory that fails may be the metadata log's."""
        return {LogDirectoryFailed: self._directory_failed}

    @property
    def leader(self) -> ActiveController | None:
        """The quorum's leader, to be asked as the controller; None while it is not known."""
        known = self._quorum.leader
        return None if known is None else ActiveController(known.controller.node_id, self._endpoint(known.controller))

    def _endpoint(self, controller: Controller) -> Endpoint:
        settings = self._settings
        return Endpoint(settings.listener, settings.security_protocol, controller.host, controller.port)

    def start(self, now_ms: int) -> None:
        """Begin: what is here and known to be committed is told, and the quorum asked for more."""
        self._clean.set(now_ms + CLEAN_EVERY_MS)
        self._read_on.soon()
        self._go_on(now_ms)

    def close(self) -> None:
        """The broker ends: make what is here durable; what cannot be is fetched again. Waits for the disk."""
        self._reader.close()
        try:
            self._quorum.metadata_log.close()
        except OSError as error:
            log.warning("the metadata log is left as it is: %s", fault_of(error, self._quorum.metadata_log.path))
            self._quorum.metadata_log.abandon()

    def abandon(self) -> None:
        """Let go of it as it lies."""
        self._reader.close()
        self._quorum.metadata_log.abandon()

    # -- asking

    def _go_on(self, now_ms: int) -> None:
        """Ask what is to be asked next, unless something is under way."""
        if self._asked is not None or self.fatal:
            return
        config = self._configs.broker
        found = self._quorum.next_request(config, now_ms)
        if found is None:
            if not self._quorum.waits_for and not self._quorum.fault:
                self._retry.set(max(self._quorum.rests_until_ms(), now_ms + 1))
            return
        controller = self._asked = found.controller
        self._lines.add(controller.node_id)
        self._requester.ask(
            self,
            controller.node_id,
            QUORUM,
            found.request,
            controller,
            endpoint=self._endpoint(controller),
            version=found.versions,
            timeout_ms=config.controller_quorum_request_timeout_ms + MAX_WAIT_MS,
        )

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """A controller has answered, or not."""
        controller, self._asked = cast("Controller", asked.token), None
        config = self._configs.broker
        try:
            if isinstance(event, PeerAnswer):
                response = cast("FetchResponse | FetchSnapshotResponse", event.response)
                self._quorum.answered(controller, response, config, now_ms, self._clock.wall_ms())
            elif event.kind is PeerFaultKind.STRANGER:
                self._quorum.is_strange(controller, config, now_ms)
            else:
                self._quorum.failed(controller, config, now_ms)
        except OSError as error:
            self._disk_failed(error)
            return
        self._settle(now_ms)

    def _settle(self, now_ms: int) -> None:
        """What an answer or a job has brought is told and carried out; then the next is asked."""
        if self._quorum.fault:
            self._end(self._quorum.fault)
            return
        for job in self._quorum.take_jobs():
            self._give(job, self)
        self._tell_leader(now_ms)
        if self._reader.has_more(self._quorum.high_watermark) and not self._read_on.pending:
            self._read(now_ms)
        self._go_on(now_ms)

    def _tell_leader(self, now_ms: int) -> None:
        leader = self._quorum.leader
        if leader != self._told_leader:
            self._told_leader = leader
            self._tell(LeaderChanged(-1 if leader is None else leader.controller.node_id, self._quorum.epoch))
            if leader is not None:  # those that were asked who leads need not be connected to any more
                for node_id in self._lines - {leader.controller.node_id}:
                    self._requester.drop(node_id, QUORUM)
                self._lines &= {leader.controller.node_id}
        self._write_state()

    def _write_state(self) -> None:
        """Have `quorum-state` say the epoch and the leader; one write at a time."""
        known = QuorumState(self._quorum.leader_id, self._quorum.epoch), self.kraft_version
        if known != self._written and not self._is_writing:
            self._is_writing, self._written = True, known
            job = self._quorum.metadata_log.write_state(*known[0], kraft_version=known[1])
            self._give(job, _Then(self._state_written))

    def _state_written(self, job: Job, error: OSError | None, now_ms: int) -> None:
        self._is_writing = False
        if error is None:
            self._write_state()
        else:
            self._disk_failed(error)

    # -- jobs

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job for the disk has ended."""
        if error is not None:
            self._disk_failed(error)
            return
        try:
            self._quorum.finished(job, now_ms, self._clock.wall_ms())
        except OSError as late:
            self._disk_failed(late)
            return
        self._settle(now_ms)

    def _clean_up(self, now_ms: int) -> None:
        """Old snapshots go, and the log before the others."""
        try:
            for job in self._quorum.metadata_log.clean(self._configs.broker, self._clock.wall_ms()):
                self._give(job, self)
        except OSError as error:
            self._disk_failed(error)
            return
        self._clean.set(now_ms + CLEAN_EVERY_MS)

    def _directory_failed(self, fact: LogDirectoryFailed, now_ms: int) -> None:
        if fact.path == self._quorum.metadata_log.path.rpartition("/")[0]:
            self._end(f"{fact.path}: the directory of the metadata log has failed")

    def _disk_failed(self, error: OSError) -> None:
        self._end(f"the metadata log has failed: {fault_of(error, self._quorum.metadata_log.path)}")

    def _end(self, why: str) -> None:
        if not self.fatal:
            log.error("%s", why)
            self.fatal = why

    # -- what is committed

    def _read(self, now_ms: int) -> None:
        """Tell the next piece; the rest has its turn behind requests that are there."""
        if self.fatal:
            return
        try:
            piece = self._reader.read(self._quorum.high_watermark)
            if piece is None:
                return
            for message in piece.control:
                self._take_control(message)
            records = [decode_record(value)[0] for value in piece.values]
        except OSError as error:
            self._disk_failed(error)
            return
        except (CorruptFileError, DecodeError) as error:
            self._end(f"the metadata log cannot be read: {error}")
            return
        if not piece.is_snapshot:
            self.published_offset = piece.offset
            self._bytes_since_snapshot += piece.size
        elif piece.is_last:
            self.published_offset = piece.offset
            self._bytes_since_snapshot, self._snapshot_ms = 0, now_ms
        self._tell(
            Committed(
                records,
                piece.offset,
                piece.epoch,
                piece.timestamp,
                piece.is_snapshot,
                piece.is_first,
                piece.is_last,
            )
        )
        if self._reader.has_more(self._quorum.high_watermark):
            self._read_on.soon()

    def _take_control(self, message: Message) -> None:
        """What the quorum says of itself: who votes, and where they are (KIP-853)."""
        if isinstance(message, KRaftVersionRecord):
            self.kraft_version = message.k_raft_version
            self._write_state()
        elif isinstance(message, VotersRecord):
            self.voters = message
            self._quorum.learn(
                (voter.voter_id, (at.host, at.port))
                for voter in message.voters
                for at in voter.endpoints
                if at.name.upper() == self._settings.listener
            )

    # -- snapshots

    @property
    def wants_snapshot(self) -> bool:
        """Whether enough has been told since the last snapshot, or that is old: by Apache's settings."""
        config = self._configs.broker
        if self._is_taking_snapshot or not self._bytes_since_snapshot or self.fatal:
            return False
        interval_ms = config.metadata_log_max_snapshot_interval_ms
        is_old = bool(interval_ms) and self._clock.now_ms() - self._snapshot_ms >= interval_ms
        return is_old or self._bytes_since_snapshot >= config.metadata_log_max_record_bytes_between_snapshots

    def take_snapshot(self, values: Iterable[bytes], committed: Committed) -> None:
        """Write a snapshot, between other requests. values: the image as of `committed`, a record in each."""
        snapshot = SnapshotId(committed.offset + 1, committed.epoch)
        head = SnapshotHead(committed.epoch, committed.timestamp, self.kraft_version, self.voters)
        self._bytes_since_snapshot, self._snapshot_ms = 0, self._clock.now_ms()
        try:
            partial = self._quorum.metadata_log.begin_snapshot(snapshot)
        except OSError as error:
            self._disk_failed(error)
            return
        if partial is not None:
            self._is_taking_snapshot = True
            self._scheduler.start_task(self, self._write_snapshot(partial, head, values))

    def _write_snapshot(self, partial: PartialSnapshot, head: SnapshotHead, values: Iterable[bytes]) -> Steps:
        try:
            for batch in snapshot_batches(head, values, self._clock.wall_ms()):
                partial.append([batch])
                yield
        except OSError as error:
            self._disk_failed(error)
            return
        log.info("snapshot %s of the metadata log is taken: %d bytes", partial.id, partial.size)
        self._give(partial.install(), _Then(self._snapshot_taken))

    def _snapshot_taken(self, job: Job, error: OSError | None, now_ms: int) -> None:
        self._is_taking_snapshot = False
        self.finished(job, error, now_ms)


class _Then(NamedTuple):
    """Who hears of the end of a job that is not the log's: see `jobs.Owner`."""

    finished: Callable[[Job, OSError | None, int], None]
