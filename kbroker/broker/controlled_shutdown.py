"""A broker that is about to stop hands its leaders over first: ControlledShutdown, asked of the controller.

Begun by the runner of the broker, which goes on serving meanwhile and stops once `is_over`. The controller answers with
the partitions that no other broker can lead; then, and when there is no answer, it is asked again after
controlled.shutdown.retry.backoff.ms, controlled.shutdown.max.retries times. What it could not move has no leader while
this broker is away.

Source: KafkaServer's stop in Apache Kafka 3.9, by behaviour. Unlike Kafka, a broker that holds no partition of several
replicas, or knows of no other broker, has nothing to hand over and does not ask.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.facts import Leave
from kbroker.controller.events import ShutDown
from kbroker.ports import TO_CONTROLLER, PeerFault
from protocol.errors import ErrorCode
from protocol.messages.control import ControlledShutdownRequest, ControlledShutdownResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.facts import Handler
    from kbroker.broker.store_plane import StorePlane
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import Clock, PeerEvent
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.cluster")


class ControlledShutdown:
    """This broker's way out. is_over: whether it may stop; True until it has begun."""

    def __init__(
        self, plane: StorePlane, replicas: ReplicaManager, requester: Requester, clock: Clock, scheduler: Scheduler
    ) -> None:
        self.is_over = True
        self._plane = plane
        self._replicas = replicas
        self._requester = requester
        self._clock = clock
        self._left = 0  # tries
        self._again = scheduler.alarm(lambda now_ms: self._ask())

    def _begin(self, fact: Leave, now_ms: int) -> None:
        """Hand over what can be handed over."""
        config = self._plane.configs.broker
        has_company = any(each != self._plane.broker_id for each in self._plane.cache.brokers)
        is_shared = any(len(each.replicas) > 1 for each in self._replicas.partitions.values())
        if not (config.controlled_shutdown_enable and has_company and is_shared and self._plane.ready):
            return
        log.info("broker %d hands its leaders over", self._plane.broker_id)
        self.is_over = False
        self._left = config.controlled_shutdown_max_retries
        self._ask()

    # -- facts

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """That this broker is about to stop."""
        return {Leave: self._begin}

    # -- asking

    def _ask(self) -> None:
        plane = self._plane
        self._left -= 1
        epoch = plane.broker_epoch
        if plane.controller.is_active:
            plane.controller.put(ShutDown(plane.broker_id, epoch, self._told))
            return
        request = ControlledShutdownRequest(broker_id=plane.broker_id, broker_epoch=epoch)
        if not self._requester.ask(self, plane.controller.active_id, TO_CONTROLLER, request):
            self._try_again("the controller is not known")

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What the controller says, if it is another broker."""
        if isinstance(event, PeerFault):
            self._try_again(f"the controller does not answer: {event.kind.value} ({event.why})")
            return
        response = event.response
        assert isinstance(response, ControlledShutdownResponse), response
        left = [(each.topic_name, each.partition_index) for each in response.remaining_partitions]
        self._told(ErrorCode.of(response.error_code), left)

    def _told(self, code: ErrorCode, left: list[tuple[str, int]]) -> None:
        if code is not ErrorCode.NONE:
            self._try_again(f"the controller refuses: {code.name}")
        elif left:
            topic, index = left[0]
            self._try_again(f"no other can lead {topic}-{index}" + (f" and {len(left) - 1} more" * (len(left) > 1)))
        else:
            self.is_over = True

    def _try_again(self, why: str) -> None:
        if self._left <= 0:
            log.warning("broker %d stops with leaders that it could not hand over: %s", self._plane.broker_id, why)
            self.is_over = True
            return
        self._again.set(self._clock.now_ms() + self._plane.configs.broker.controlled_shutdown_retry_backoff_ms)
        log.info("leaders cannot be handed over yet: %s", why)
