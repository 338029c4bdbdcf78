"""What leaders and group coordinators ask share coordinators, here or at another broker: the state of share-partitions.

Called by `share_partitions.py` and by the group coordinator's surroundings, for one share-partition at a time; the
answer comes back as a call of `done`, never from within `ask`. The own coordinator is asked at once. Of another broker
one request of a kind is under way at a time, in which everything is that came up for the same group meanwhile. Where a
coordinator is not there, is just loading, or does not know this broker, it is asked again for a while.

Source: PersisterStateManager of Apache Kafka 4.4, by behaviour.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Any

from kbroker.broker.coordinator_types import SHARE, create_if_missing
from kbroker.broker.facts import PartialAnswer
from kbroker.ports import SHARE_STATE, PeerAnswer
from kbroker.share.share_coordinator import ShareCoordinator, read_refused, refused, summary_refused
from protocol.errors import ErrorCode
from protocol.messages import share_group_state as messages
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.coordinators import LateCoordinator
    from kbroker.broker.facts import Handler, Tell
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent
    from kbroker.share.share_records import Place
    from kbroker.timing import Scheduler
    from protocol.message import Message

    Done = Callable[[Any, int], None]
    """Takes what the share coordinator says of the share-partition, and the time."""

log = logging.getLogger("kbroker.share")

FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 50, 1_000
PATIENCE_MS = 20_000  # as long as a client waits for an acknowledgement, and the election of a coordinator takes

AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""A coordinator will be there, and may have done already what it was asked: each of these can be asked twice."""


class Operation(Enum):
    """What is asked; the value is the name of the request, and its version."""

    INITIALIZE = "InitializeShareGroupState", 0
    READ = "ReadShareGroupState", 0
    WRITE = "WriteShareGroupState", 1
    DELETE = "DeleteShareGroupState", 0
    SUMMARIZE = "ReadShareGroupStateSummary", 1


INITIALIZE, READ, WRITE = Operation.INITIALIZE, Operation.READ, Operation.WRITE
DELETE, SUMMARIZE = Operation.DELETE, Operation.SUMMARIZE

_TOPICS: Mapping[Operation, type[Any]] = {
    INITIALIZE: messages.InitializeStateData,
    READ: messages.ReadStateData,
    WRITE: messages.WriteStateData,
    DELETE: messages.DeleteStateData,
    SUMMARIZE: messages.ReadStateData,
}


class StateAnswered(NamedTuple):
    """Fact: a share coordinator has answered."""

    ask: StateAsk
    result: Any


class StateAsk(PartialAnswer):
    """One question about one share-partition. said: the partition's part of the request."""

    __slots__ = ("backoff_ms", "deadline_ms", "done", "operation", "place", "said")

    def __init__(self, operation: Operation, place: Place, said: Any, done: Done, deadline_ms: int) -> None:
        self.operation, self.place, self.said, self.done = operation, place, said, done
        self.deadline_ms = deadline_ms
        self.backoff_ms = FIRST_BACKOFF_MS

    def answered(self, response: Message | None) -> StateAnswered:
        """The own coordinator has answered."""
        return StateAnswered(self, response)

    def refused(self, code: ErrorCode) -> Any:
        """What is said of the share-partition where there is no answer."""
        make = {READ: read_refused, SUMMARIZE: summary_refused}.get(self.operation, refused)
        return make(self.place, code)


class ShareStateRequests:
    """Questions to share coordinators. A part of the broker. coordinator: this broker's own."""

    def __init__(
        self,
        broker_id: int,
        coordinator: LateCoordinator,
        plane: ControlPlane,
        requester: Requester,
        scheduler: Scheduler,
        tell: Tell,
    ) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._plane = plane
        self._requester = requester
        self._tell = tell
        self._waiting: dict[int, list[StateAsk]] = {}  # by coordinator
        self._again: dict[StateAsk, int] = {}  # when
        self._alarm = scheduler.alarm(self._ask_again)

    def ask(self, operation: Operation, place: Place, said: Any, done: Done, now_ms: int) -> None:
        """Ask; `done` is called later."""
        self._ask(StateAsk(operation, place, said, done, now_ms + PATIENCE_MS), now_ms)

    def _ask(self, ask: StateAsk, now_ms: int) -> None:
        runtime = self._coordinator.runtime
        key = ask.place.coordinator_key
        if runtime.find(key) is not ErrorCode.NOT_COORDINATOR:
            self._ask_here(ask, now_ms)
            return
        create_if_missing(SHARE.topic, self._plane)
        state = self._plane.cache.partition(SHARE.topic, runtime.partition_of(key))
        if state is None or state.leader < 0 or state.leader == self._broker_id:
            self._tell(StateAnswered(ask, ask.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
            return
        self._waiting.setdefault(state.leader, []).append(ask)
        self._ask_next(state.leader)

    def _ask_here(self, ask: StateAsk, now_ms: int) -> None:
        coordinator: ShareCoordinator = self._coordinator.coordinator
        place, said = ask.place, ask.said
        if ask.operation is INITIALIZE:
            effects = coordinator.initialize(place, said, ask, now_ms)
        elif ask.operation is READ:
            effects = coordinator.read(place, said, ask, now_ms)
        elif ask.operation is WRITE:
            effects = coordinator.write(place, said, ask, now_ms)
        elif ask.operation is DELETE:
            effects = coordinator.delete(place, ask, now_ms)
        else:
            effects = coordinator.summarize(place, ask, now_ms)
        coordinator.runtime.carry_out(effects, now_ms)

    # --- other brokers

    def _ask_next(self, broker_id: int) -> None:
        """All that is of a kind and of one group, unless a request is under way."""
        if self._requester.is_asking(broker_id, SHARE_STATE):
            return
        waiting = self._waiting.pop(broker_id, [])
        if not waiting:
            return
        operation, group_id = waiting[0].operation, waiting[0].place.group_id
        chosen: dict[Place, StateAsk] = {}
        later: list[StateAsk] = []
        for ask in waiting:
            fits = ask.operation is operation and ask.place.group_id == group_id and ask.place not in chosen
            if fits and not any(each.place == ask.place for each in later):
                chosen[ask.place] = ask
            else:
                later.append(ask)
        name, version = operation.value
        topics: dict[bytes, Any] = {}
        for place, ask in chosen.items():
            topic = topics.setdefault(place.topic_id, _TOPICS[operation](topic_id=place.topic_id, partitions=[]))
            topic.partitions.append(ask.said)
        request = getattr(messages, f"{name}Request")(group_id=group_id, topics=list(topics.values()))
        if later:
            self._waiting[broker_id] = later
        if not self._requester.ask(self, broker_id, SHARE_STATE, request, chosen, version=version):
            for ask in (*chosen.values(), *self._waiting.pop(broker_id, ())):
                self._tell(StateAnswered(ask, ask.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)))

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What a coordinator says, or nothing."""
        chosen: dict[Place, StateAsk] = dict(asked.token)  # type: ignore[call-overload]
        if isinstance(event, PeerAnswer):
            response: Any = event.response
            places = {(place.topic_id, place.partition): place for place in chosen}
            for topic in response.results:
                for result in topic.partitions:
                    place = places.get((bytes(topic.topic_id), result.partition))
                    ask = None if place is None else chosen.pop(place, None)
                    if ask is None:
                        continue
                    if result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # of this broker, not of the client
                        log.warning("broker %d refuses: %s", asked.broker_id, result.error_message)
                        result = ask.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    self._tell(StateAnswered(ask, result))
        for ask in chosen.values():
            self._tell(StateAnswered(ask, ask.refused(ErrorCode.NETWORK_EXCEPTION)))
        self._ask_next(asked.broker_id)

    # --- answers

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Answers, for who asked."""
        return {StateAnswered: self._answered}

    def _answered(self, fact: StateAnswered, now_ms: int) -> None:
        ask, result = fact
        if result.error_code in AGAIN and now_ms + ask.backoff_ms < ask.deadline_ms:
            self._again[ask] = now_ms + ask.backoff_ms
            self._alarm.by(now_ms + ask.backoff_ms, now_ms)
            ask.backoff_ms = min(2 * ask.backoff_ms, LONGEST_BACKOFF_MS)
        else:
            ask.done(result, now_ms)

    def _ask_again(self, now_ms: int) -> None:
        due = [ask for ask, at_ms in self._again.items() if at_ms <= now_ms]
        for ask in due:
            del self._again[ask]
        for ask in due:
            self._ask(ask, now_ms)
        if self._again:
            self._alarm.by(min(self._again.values()), now_ms)
