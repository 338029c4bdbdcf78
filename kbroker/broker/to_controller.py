"""Requests of this broker to the controller of its quorum: its own, or a client's in an Envelope (KIP-590).

A part of a broker whose cluster has a quorum. A request waits while no leader is known. It is asked again, of the
leader of that time, when there is no answer, or the answer is that another one leads; until its time is up. So a
controller may be asked twice, as Kafka's brokers do: who makes a topic twice is told that it is there. In-sync sets
have a sender of their own (`alter_partition.py`), and so has the life of the broker.

Source: NodeToControllerChannelManagerImpl of Apache Kafka 4.3, by behaviour.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from kbroker.config.limits import REQUESTS_TO_CONTROLLER
from kbroker.ports import TO_CONTROLLER, PeerFault, PeerFaultKind
from kbroker.quorum.facts import LeaderChanged
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.facts import Handler
    from kbroker.broker.observer import ActiveController
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import Clock, PeerEvent, Versions
    from kbroker.timing import Scheduler
    from protocol.message import Message

log = logging.getLogger("kbroker.cluster")

RETRY_MS = 100  # as retry.backoff.ms of Kafka's clients


class _Waiting(NamedTuple):
    """A request on its way. done: gets the response; failed: gets why there is none."""

    request: Message
    versions: Versions
    deadline_ms: int
    done: Callable[[Any], None]
    failed: Callable[[KafkaError], None]


class ToController:
    """Requests on their way. leader: looks up who is asked."""

    def __init__(
        self, requester: Requester, leader: Callable[[], ActiveController | None], clock: Clock, scheduler: Scheduler
    ) -> None:
        self._requester = requester
        self._leader = leader
        self._clock = clock
        self._waiting: list[_Waiting] = []  # for a leader, or for the end of a pause
        self._under_way = 0
        self._again = scheduler.alarm(self._ask_all)

    def ask(
        self,
        request: Message,
        versions: Versions,
        timeout_ms: int,
        done: Callable[[Any], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Ask the leader something, within so many ms. done: gets the response. failed: gets why there is none.

        A response whose error_code is NOT_CONTROLLER is none. Either is called once, perhaps at once.
        """
        if len(self._waiting) + self._under_way >= REQUESTS_TO_CONTROLLER:
            failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many requests wait for the controller"))
            return
        now_ms = self._clock.now_ms()
        self._ask(_Waiting(request, versions, now_ms + timeout_ms, done, failed), now_ms)

    # -- facts

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """That another one leads."""
        return {LeaderChanged: lambda fact, now_ms: self._ask_all(now_ms)}

    # -- asking

    def _ask(self, waiting: _Waiting, now_ms: int) -> None:
        left_ms, leader = waiting.deadline_ms - now_ms, self._leader()
        if left_ms <= 0:
            waiting.failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller has answered in time"))
        elif leader is None:
            self._wait(waiting, now_ms)
        else:
            self._under_way += 1
            self._requester.ask(
                self,
                leader.node_id,
                TO_CONTROLLER,
                waiting.request,
                waiting,
                endpoint=leader.endpoint,
                version=waiting.versions,
                timeout_ms=left_ms,
            )

    def _wait(self, waiting: _Waiting, now_ms: int) -> None:
        self._waiting.append(waiting)
        self._again.by(now_ms + RETRY_MS, now_ms)

    def _ask_all(self, now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._ask(each, now_ms)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """A controller has answered, or not."""
        self._under_way -= 1
        waiting = cast("_Waiting", asked.token)
        if isinstance(event, PeerFault):
            if event.kind is PeerFaultKind.UNSUPPORTED:
                waiting.failed(KafkaError(ErrorCode.UNSUPPORTED_VERSION, event.why))
            else:
                self._wait(waiting, now_ms)
        elif getattr(event.response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
            self._wait(waiting, now_ms)
        else:
            waiting.done(event.response)
