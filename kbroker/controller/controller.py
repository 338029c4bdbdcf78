"""The controller: every broker has one, one in the cluster is active.

Owns the queue of events and handles them one after the other, each by a procedure that runs to its end before the next
begins; so no other changes the context meanwhile, and what is read in the store is fenced when it is written. It is
told of events by the control plane (watches, answers of brokers, admin requests), stands for election through
`/controller`, and resigns when its session ends or a write meets a newer epoch. What it has to say is in `channels`.

Source: KafkaController of Apache Kafka 3.9, by behaviour; the raise of the epoch is one transaction with `/controller`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.controller import brokers, failover, leaders, reassignment, topics
from kbroker.controller.context import Context, TopicPartition
from kbroker.controller.controller_channel import ControllerChannelManager
from kbroker.controller.epoch import ControllerEpoch, ControllerMovedError
from kbroker.controller.events import (
    AlterPartition,
    BrokerModified,
    BrokersChanged,
    ControlAnswer,
    ControllerNodeChanged,
    DeletionsChanged,
    ElectLeaders,
    Event,
    InSyncChanged,
    IsrsChanged,
    LogDirsFailed,
    NewPartitionsDue,
    PartitionsChanged,
    PreferredElectionsChanged,
    Reassign,
    ReassignmentsChanged,
    Rebalance,
    Registered,
    ShutDown,
    TopicsChanged,
    UncleanElectionsDue,
)
from kbroker.metadata.configs import Configs
from kbroker.metadata.steps import Procedure, SessionLostError, Steps, StoreRefusedError
from kbroker.metadata.store import (
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PREFERRED_ELECTIONS,
    REASSIGNMENTS,
    TOPICS,
    decode_controller,
    decode_controller_epoch,
    encode_controller,
    kraft_fault,
    understood,
)
from kbroker.ports import Create, Delete, Exists, Get, Multi, NodeChanged, Random, SetData
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import (
    AlterPartitionResponse,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)

if TYPE_CHECKING:
    from kbroker.ports import Clock
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.controller")

NO_BROKER = -1
NO_BROKER_EPOCH = -1
NO_SESSION = 0

STAND_AGAIN_MS = 60_000
"""How long a broker that failed at taking over leaves it to the others; Kafka's tries again at once, without end."""

FIRST_LOOK_MS = 5_000  # at the balance of leaders, after taking over

ELECTION_ATTEMPTS = 10
"""Tries at `/controller` and its epoch before waiting for a change: each failure means that another broker won."""


class Controller:
    """This broker's controller.

    active_id: the controller as far as is known, -1 none. epoch: None while it is not this one. is_taking_over: it
    has still to say who leads what.
    """

    def __init__(
        self,
        broker_id: int,
        steps: Steps,
        configs: Configs,
        random: Random,
        clock: Clock,
        scheduler: Scheduler,
        listener: str,
        tell: Callable[[object], None],
    ) -> None:
        """listener: the one over which brokers speak to each other."""
        self.active_id = NO_BROKER
        self.epoch: ControllerEpoch | None = None
        self.is_taking_over = False
        self.channels = ControllerChannelManager(tell)
        self.broker_id = self._broker_id = broker_id
        self._steps = steps
        self._configs = configs
        self._random = random
        self._clock = clock
        self._listener = listener
        self._tell = tell
        self._queue: deque[Event] = deque()
        self._is_working = False
        self._are_partitions_due = False  # that event is in the queue
        self._session = NO_SESSION  # in which this broker is registered: without one it does not stand for election
        self._is_unfit = False  # its last attempt to be controller failed: not a candidate for a while
        self._rebalance_at = scheduler.alarm(self._rebalance)
        self._stand_again_at = scheduler.alarm(self._stand_again)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        return self.epoch is not None

    @property
    def is_idle(self) -> bool:
        """Whether every event is dealt with."""
        is_making = self.epoch is not None and bool(self.epoch.context.unmade)
        return not self._queue and not self._is_working and not is_making

    def is_to_be_deleted(self, topic: str) -> bool:
        """Whether a topic is to be deleted, as the active controller knows."""
        return self.epoch is not None and topic in self.epoch.context.to_delete

    def is_being_deleted(self, topic: str) -> bool:
        """The same, but for topics of which only brokers that cannot be reached have something left."""
        return self.is_to_be_deleted(topic) and self.epoch is not None and topic not in self.epoch.context.undeletable

    def waits_for_reassignment(self, topic: str) -> bool:
        """Whether a topic is to be deleted, and its partitions are being reassigned first."""
        return self.is_to_be_deleted(topic) and self.epoch is not None and self.epoch.context.is_moving(topic)

    # -- what happens

    def put(self, event: Event) -> None:
        """An event for the queue; handled at once if nothing else is."""
        self._queue.append(event)
        self._work()

    def session_ended(self) -> None:
        """The epoch is over now, whatever is in the queue: what was to be done in it is not done any more."""
        self._session = NO_SESSION
        self._resign()
        while self._queue:
            self._refuse(self._queue.popleft())
        self._are_partitions_due = False

    def node_changed(self, change: NodeChanged) -> None:
        """A watch has fired: an event, if it is one of the controller's."""
        event = _event_of(change)
        if event is not None:
            self.put(event)

    def _rebalance(self, now_ms: int) -> None:
        """The balance of leaders is due for a look."""
        self._rebalance_at.set(now_ms + 1000 * self._configs.broker.leader_imbalance_check_interval_seconds)
        self.put(Rebalance())

    def _stand_again(self, now_ms: int) -> None:
        """It may stand for election again."""
        self._is_unfit = False
        self.put(ControllerNodeChanged())

    # -- the queue

    def _work(self) -> None:
        while not self._is_working:
            self._let_new_partitions_in()
            if not self._queue:
                return
            event = self._queue.popleft()
            self._is_working = True
            self._steps.start(self._handle(event), self._done, lambda error, event=event: self._failed(event, error))  # type: ignore[misc]

    def _let_new_partitions_in(self) -> None:
        """Of topics with many some are made, behind what waits now; not before a broker has obeyed the last ones."""
        epoch = self.epoch
        if epoch is None or not epoch.context.unmade or self._are_partitions_due or not self.channels.is_followed:
            return
        self._are_partitions_due = True
        self._queue.append(NewPartitionsDue())

    def _done(self, _: object) -> None:
        self._is_working = False
        self._work()

    def _failed(self, event: Event, error: Exception) -> None:
        """A procedure ended in the middle. A lost epoch is normal; anything else must not stop the queue."""
        self._is_working = False
        self._refuse(event)
        if isinstance(error, ControllerMovedError | SessionLostError):
            log.info("no longer controller: %s", error or "the session is over")
            self._resign()
            if isinstance(error, ControllerMovedError):
                self._queue.appendleft(ControllerNodeChanged())
            self._work()
            return
        if isinstance(event, Registered | ControllerNodeChanged) and not self._is_unfit:
            log.error("not a controller for %d s: %s", STAND_AGAIN_MS // 1000, error)
            self._resign()  # what is known is half of it; another may fare better
            self._is_unfit = True
            self._stand_again_at.set(self._clock.now_ms() + STAND_AGAIN_MS)
            self._queue.appendleft(ControllerNodeChanged())
            if isinstance(error, StoreRefusedError):
                self._work()
                return
        self._work()
        raise error

    def _handle(self, event: Event) -> Procedure[None]:
        if isinstance(event, NewPartitionsDue):
            self._are_partitions_due = False
        if isinstance(event, Registered):
            self._session = event.session
            self._is_unfit = False
            self._stand_again_at.cancel()
            yield from self._elect()
        elif isinstance(event, ControllerNodeChanged):
            if self._session != NO_SESSION:
                yield from self._elect()
        elif self.epoch is None:
            self._refuse(event)
        else:
            yield from self._handle_in_epoch(self.epoch, event)

    def _handle_in_epoch(self, epoch: ControllerEpoch, event: Event) -> Procedure[None]:
        match event:
            case BrokersChanged():
                yield from brokers.brokers_changed(epoch)
            case BrokerModified(broker_id):
                yield from brokers.broker_modified(epoch, broker_id)
            case TopicsChanged():
                yield from topics.topics_changed(epoch)
            case PartitionsChanged(topic):
                yield from topics.partitions_changed(epoch, topic)
            case NewPartitionsDue():
                yield from topics.make_next(epoch)
            case DeletionsChanged():
                yield from topics.deletions_changed(epoch)
            case IsrsChanged():
                yield from reassignment.complete(epoch, (yield from leaders.isrs_changed(epoch)))
            case LogDirsFailed():
                yield from brokers.log_dirs_failed(epoch)
            case ControlAnswer():
                yield from self._answered(epoch, event)
            case ElectLeaders(partitions, kind, reply):
                reply(*(yield from leaders.elect(epoch, partitions, kind)))
            case ShutDown():
                yield from self._shut_down(epoch, event)
            case AlterPartition(request, version, answer):
                from kbroker.controller import in_sync  # a broker that is alone never gets this request

                response = yield from in_sync.alter_partition(epoch, request, version)
                answer(response)  # what follows has no answer left if it fails
                self._queue.appendleft(InSyncChanged(in_sync.granted(epoch.context, response)))
            case InSyncChanged(partitions):
                yield from reassignment.complete(epoch, partitions)
            case Reassign(targets, reply, may_resize):
                reply((yield from reassignment.asked(epoch, targets, may_resize=may_resize)))
            case ReassignmentsChanged():
                yield from reassignment.requests_changed(epoch)
            case PreferredElectionsChanged():
                yield from leaders.preferred_elections_changed(epoch)
            case UncleanElectionsDue():
                yield from brokers.elect_offline_partitions(epoch)
            case Rebalance():
                yield from leaders.rebalance(epoch)

    def _answered(self, epoch: ControllerEpoch, answer: ControlAnswer) -> Procedure[None]:
        """Look at a broker's answer for disks that failed and replicas that are deleted."""
        broker, request, response = answer
        if isinstance(response, LeaderAndIsrResponse):
            failed, good = _by_disk(epoch.context, response)
            if failed or epoch.context.failed_disks.get(broker):
                yield from brokers.disk_answers(epoch, broker, failed, good)
        elif isinstance(response, StopReplicaResponse):
            assert isinstance(request, StopReplicaRequest), request
            yield from topics.replicas_stopped(epoch, broker, request, response)

    def _shut_down(self, epoch: ControllerEpoch, event: ShutDown) -> Procedure[None]:
        known = epoch.context.brokers.get(event.broker_id)
        if known is None:
            event.done(ErrorCode.BROKER_NOT_AVAILABLE, [])
        elif event.broker_epoch != NO_BROKER_EPOCH and event.broker_epoch < known.epoch:
            event.done(ErrorCode.STALE_BROKER_EPOCH, [])
        else:
            event.done(ErrorCode.NONE, (yield from brokers.shut_down(epoch, event.broker_id)))

    def _refuse(self, event: Event) -> None:
        """Tell who waits for an event that this broker is not the controller."""
        match event:
            case ElectLeaders(partitions, _, reply):
                reply(dict.fromkeys(partitions, ErrorCode.NOT_CONTROLLER), {})
            case ShutDown(_, _, reply):
                reply(ErrorCode.NOT_CONTROLLER, [])
            case Reassign(targets, reply):
                reply({partition: KafkaError(ErrorCode.NOT_CONTROLLER) for partition in targets})
            case AlterPartition(_, _, answer):
                answer(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER, topics=[]))
            case _:
                pass

    # -- epochs

    def _elect(self) -> Procedure[None]:
        """See who is controller; if there is none, try to be. Always leaves a watch on `/controller`."""
        if self._is_unfit:
            yield from self._stand_aside()
            return
        for _ in range(ELECTION_ATTEMPTS):
            (found,) = yield [Get(CONTROLLER)]
            if found.fault is None:
                break
            last = yield from self._last_epoch()
            if last is None:
                return
            epoch = yield from self._stand(*last)
            if epoch is not None:
                yield from self._serve(epoch)
                return
        yield from self._follow()

    def _stand_aside(self) -> Procedure[None]:
        """See who is controller; it shall not be this broker."""
        (found,) = yield [Exists(CONTROLLER, watch=True)]
        if found.stat is not None:
            yield from self._follow()

    def _last_epoch(self) -> Procedure[tuple[int, int] | None]:
        """Number of the last election, and the node's version; None if it has to be rewritten before the next."""
        (made, found) = yield [Create(CONTROLLER_EPOCH, b"0"), Get(CONTROLLER_EPOCH)]
        assert found.stat is not None, (made, found)
        try:
            return decode_controller_epoch(found.data), found.stat.version
        except ValueError:
            log.error(
                "no broker can become controller: %s is no number (%.100r); write the last epoch into it",
                CONTROLLER_EPOCH,
                found.data,
            )
        taken, watched = yield [Exists(CONTROLLER, watch=True), Get(CONTROLLER_EPOCH, watch=True)]
        if taken.stat is not None or watched.data != found.data:
            self._queue.appendleft(ControllerNodeChanged())  # between two looks
        return None

    def _stand(self, last: int, version: int) -> Procedure[ControllerEpoch | None]:
        """Take `/controller` and raise the epoch, both or neither. Returns: None if another broker was faster."""
        content = encode_controller(self._broker_id, self._clock.wall_ms())
        (taken,) = yield [
            Multi(
                (
                    Create(CONTROLLER, content, ephemeral=True),
                    SetData(CONTROLLER_EPOCH, str(last + 1).encode(), version),
                )
            )
        ]
        if taken.fault is not None:
            return None
        context = Context(last + 1, version + 1)
        return ControllerEpoch(
            self._broker_id, context, self.channels, self._configs, self._random, self._listener, self._tell
        )

    def _serve(self, epoch: ControllerEpoch) -> Procedure[None]:
        """Begin an epoch: know the cluster, then let the brokers know."""
        log.info("broker %d is controller, epoch %d", self._broker_id, epoch.context.epoch)
        self._resign()
        self.epoch = epoch
        if self._configs.broker.auto_leader_rebalance_enable:
            self._rebalance_at.set(self._clock.now_ms() + FIRST_LOOK_MS)
        self.active_id = self._broker_id
        yield [Get(CONTROLLER, watch=True)]
        self.is_taking_over = True
        try:
            yield from failover.take_over(epoch)
        finally:
            self.is_taking_over = False
        yield from failover.resume(epoch)

    def _follow(self) -> Procedure[None]:
        """Read which broker is controller. This broker may find that it is not any more."""
        (found,) = yield [Get(CONTROLLER, watch=True)]
        if found.fault is not None:
            self._queue.appendleft(ControllerNodeChanged())  # gone between two looks: stand again
            return
        is_ours = found.stat is not None and found.stat.session == self._session
        if is_ours and self.epoch is None:
            yield [Delete(CONTROLLER)]  # an epoch that failed halfway: begin another one
            return
        if not is_ours:
            self._resign()
        active_id = understood(CONTROLLER, found.data, decode_controller)
        self.active_id = NO_BROKER if active_id is None else active_id
        fault = kraft_fault(found.data)
        if fault:
            log.error("%s: a broker of ZooKeeper mode takes no part in it; move its partitions away, or end it", fault)

    def _resign(self) -> None:
        self.epoch = None
        self._rebalance_at.cancel()
        self.active_id = NO_BROKER
        self.channels.clear()


def _by_disk(context: Context, response: LeaderAndIsrResponse) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions of an answer, in failed log directories and in good ones."""
    failed: list[TopicPartition] = []
    good: list[TopicPartition] = []
    for topic in response.topics:
        name = context.names.get(topic.topic_id)
        for each in topic.partition_errors if name is not None else ():
            assert name is not None
            if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.append((name, each.partition_index))
            elif each.error_code == ErrorCode.NONE:
                good.append((name, each.partition_index))
    return failed, good


_EVENTS: dict[str, Event] = {
    CONTROLLER: ControllerNodeChanged(),
    CONTROLLER_EPOCH: ControllerNodeChanged(),  # one that made no sense was rewritten
    BROKER_IDS: BrokersChanged(),
    TOPICS: TopicsChanged(),
    DELETE_TOPICS: DeletionsChanged(),
    ISR_CHANGES: IsrsChanged(),
    LOG_DIR_EVENTS: LogDirsFailed(),
    REASSIGNMENTS: ReassignmentsChanged(),
    PREFERRED_ELECTIONS: PreferredElectionsChanged(),
}


def _event_of(change: NodeChanged) -> Event | None:
    path, kind = change
    if path in _EVENTS:
        return _EVENTS[path]
    parent, _, name = path.rpartition("/")
    if kind != "set":
        return None
    if parent == BROKER_IDS:
        return BrokerModified(int(name))
    return PartitionsChanged(name) if parent == TOPICS else None
