"""What this broker's controller says to other brokers: the head of each line of its outbox, over a line of control.

A part of the broker: told by the outbox that a line has another head, or is gone, and by `Peers` what became of a
request. A request that got no answer is sent again, for as long as its broker is alive and the epoch lasts; the broker
may have obeyed it before, and obeying twice does no harm: its epochs say so. Requests for the own broker never come
here (`control_plane.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.controller.events import ControlAnswer
from kbroker.controller.outbox import (
    LEADER_AND_ISR_VERSION,
    STOP_REPLICA_VERSION,
    UPDATE_METADATA_VERSION,
    ControlLineClosed,
    ControlRequest,
    ControlRequestDue,
)
from kbroker.ports import CONTROL, PeerAddress, PeerAnswer, PeerFault, PeerFaultKind
from protocol.messages.control import LeaderAndIsrRequest, StopReplicaRequest
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.facts import Handler, Tell
    from kbroker.controller import Controller
    from kbroker.metadata.configs import Configs
    from kbroker.ports import Peers

log = logging.getLogger("kbroker.controller")


class Sent(NamedTuple):
    """The token of a request on a line of control."""

    broker_id: int
    request: ControlRequest


class ControlSender:
    """The outbox's way to other brokers. listener: over which brokers speak to each other."""

    def __init__(
        self, broker_id: int, controller: Controller, configs: Configs, peers: Peers, listener: str, tell: Tell
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._configs = configs
        self._peers = peers
        self._listener = listener
        self._tell = tell

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What the outbox has to say, and what came of it."""
        return {
            ControlRequestDue: self._due,
            ControlLineClosed: self._closed,
            PeerAnswer: self._answered,
            PeerFault: self._failed,
        }

    def _due(self, due: ControlRequestDue, now_ms: int) -> None:
        self._send(due.broker_id)

    def _send(self, broker_id: int) -> None:
        """Send the head of a broker's line, if there is one and the broker can be reached at all."""
        outbox, epoch = self._controller.outbox, self._controller.epoch
        request = outbox.head(broker_id)
        if request is None or epoch is None or broker_id == self._broker_id:
            return
        address = self._address(broker_id)
        if address is None:
            log.error(
                "broker %d has no listener %s: it cannot be told what it leads", broker_id, self._control_listener
            )
            return
        timeout_ms = self._configs.broker.controller_socket_timeout_ms
        token = Sent(broker_id, request)
        self._peers.send(broker_id, address, CONTROL, request, _version(request), token, timeout_ms)

    @property
    def _control_listener(self) -> str:
        return (self._configs.broker.control_plane_listener_name or self._listener).upper()

    def _address(self, broker_id: int) -> PeerAddress | None:
        assert self._controller.epoch is not None
        broker = self._controller.epoch.context.brokers.get(broker_id)
        return broker.peer_address(self._control_listener) if broker is not None else None

    def _closed(self, fact: ControlLineClosed, now_ms: int) -> None:
        """A broker is gone, or the epoch is over: nobody wants to hear what came of it."""
        self._peers.drop(fact.broker_id, CONTROL)

    def _answered(self, answer: PeerAnswer, now_ms: int) -> None:
        if isinstance(answer.token, Sent):
            broker_id, request = answer.token
            self._tell(ControlAnswer(broker_id, request, answer.response))  # type: ignore[arg-type]  # as it was asked

    def _failed(self, fault: PeerFault, now_ms: int) -> None:
        if not isinstance(fault.token, Sent):
            return
        broker_id, request = fault.token
        what = f"{type(request).__name__} to broker {broker_id} failed: {fault.kind.value} ({fault.why})"
        if fault.kind is PeerFaultKind.UNSUPPORTED:  # sending it again would end no better
            log.error("%s; it is left out", what)
            self._controller.outbox.answered(broker_id, request)
            return
        log.debug("%s", what)  # the line has said that the broker cannot be reached
        if self._controller.outbox.head(broker_id) is request:
            self._send(broker_id)


def _version(request: ControlRequest) -> int:
    if isinstance(request, LeaderAndIsrRequest):
        return LEADER_AND_ISR_VERSION
    return STOP_REPLICA_VERSION if isinstance(request, StopReplicaRequest) else UPDATE_METADATA_VERSION
