"""A broker that is about to stop hands its leaders over first: ControlledShutdown, asked of the controller.

Begun by whoever runs the broker, which goes on serving meanwhile and stops once `is_over`. The controller answers with
the partitions that nobody else can lead; then, and when there is no answer, it is asked again after
controlled.shutdown.retry.backoff.ms, controlled.shutdown.max.retries times. What it could not move has no leader while
this broker is away.

Source: KafkaServer's stop in Apache Kafka 3.9, by behaviour. Unlike Kafka, a broker that holds no partition of several
replicas, or knows of no other broker, has nothing to hand over and asks nobody.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.facts import Leave
from kbroker.controller.events import ShutDown
from kbroker.ports import TO_CONTROLLER, PeerAnswer, PeerFault
from protocol.errors import ErrorCode
from protocol.messages.control import ControlledShutdownRequest, ControlledShutdownResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.facts import Handler
    from kbroker.ports import Clock, Peers
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.cluster")

VERSION = 3


class ControlledShutdown:
    """This broker's way out. is_over: whether it may stop; True until it has begun."""

    def __init__(
        self, plane: ControlPlane, replicas: ReplicaManager, peers: Peers, clock: Clock, scheduler: Scheduler
    ) -> None:
        self.is_over = True
        self._plane = plane
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._left = 0  # tries
        self._again = scheduler.alarm(lambda now_ms: self._ask())
        self._asked: object | None = None  # the token of the request that is under way

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
        """That this broker is about to stop, and what the controller says to it, if it is another broker."""
        return {Leave: self._begin, PeerAnswer: self._answered, PeerFault: self._failed}

    # -- asking

    def _ask(self) -> None:
        plane = self._plane
        self._left -= 1
        epoch = plane.control_requests.broker_epoch
        if plane.controller.is_active:
            plane.controller.put(ShutDown(plane.broker_id, epoch, self._told))
            return
        address = plane.cache.peer_address(plane.controller.active_id, plane.listener)
        if address is None:
            self._try_again("the controller is not known")
            return
        self._asked = object()
        self._peers.send(
            plane.controller.active_id,
            address,
            TO_CONTROLLER,
            ControlledShutdownRequest(broker_id=plane.broker_id, broker_epoch=epoch),
            VERSION,
            self._asked,
            plane.configs.broker.controller_socket_timeout_ms,
        )

    def _answered(self, answer: PeerAnswer, now_ms: int) -> None:
        if self._asked is None or answer.token is not self._asked:
            return
        self._asked = None
        response = answer.response
        assert isinstance(response, ControlledShutdownResponse), response
        left = [(each.topic_name, each.partition_index) for each in response.remaining_partitions]
        self._told(ErrorCode.of(response.error_code), left)

    def _failed(self, fault: PeerFault, now_ms: int) -> None:
        if self._asked is not None and fault.token is self._asked:
            self._asked = None
            self._try_again(f"the controller does not answer: {fault.kind.value} ({fault.why})")

    def _told(self, code: ErrorCode, left: list[tuple[str, int]]) -> None:
        if code is not ErrorCode.NONE:
            self._try_again(f"the controller refuses: {code.name}")
        elif left:
            topic, index = left[0]
            self._try_again(f"nobody else can lead {topic}-{index}" + (f" and {len(left) - 1} more" * (len(left) > 1)))
        else:
            self.is_over = True

    def _try_again(self, why: str) -> None:
        if self._left <= 0:
            log.warning("broker %d stops with leaders that it could not hand over: %s", self._plane.broker_id, why)
            self.is_over = True
            return
        self._again.set(self._clock.now_ms() + self._plane.configs.broker.controlled_shutdown_retry_backoff_ms)
        log.info("leaders cannot be handed over yet: %s", why)
