"""What this broker's controller says to other brokers: the head of each line that its channel manager keeps.

A part of the broker: told by that manager that a line has another head, or is gone. A request without an answer is sent
again, for as long as its broker is alive and the epoch lasts; the broker may have obeyed it before, and obeying twice
does no harm: its epochs say so. Requests for the own broker never come here (`store_plane.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.controller.controller_channel import ControlLineClosed, ControlRequestDue
from kbroker.controller.events import ControlAnswer
from kbroker.ports import CONTROL, PeerAnswer, PeerFaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.facts import Handler, Tell
    from kbroker.controller import Controller
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent


class ControlSender:
    """The way of the lines to other brokers."""

    def __init__(self, controller: Controller, requester: Requester, tell: Tell) -> None:
        self._controller = controller
        self._requester = requester
        self._tell = tell

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What lines there are to say; of a line that is gone it is of no interest what came of it."""
        return {
            ControlRequestDue: lambda due, now_ms: self._send(due.broker_id),
            ControlLineClosed: lambda fact, now_ms: self._requester.drop(fact.broker_id, CONTROL),
        }

    def _send(self, broker_id: int) -> None:
        """Send the head of a broker's line, if there is one and the broker can be reached at all."""
        request, epoch = self._controller.channels.head(broker_id), self._controller.epoch
        if request is not None and epoch is not None:
            endpoint = self._requester.endpoint(broker_id, CONTROL, epoch.context.brokers)
            if endpoint is not None:
                self._requester.ask(self, broker_id, CONTROL, request, endpoint=endpoint)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """An answer is the controller's; one that will never come lets the next request go."""
        broker_id, request, channels = asked.broker_id, asked.request, self._controller.channels
        if isinstance(event, PeerAnswer):
            self._tell(ControlAnswer(broker_id, request, event.response))  # type: ignore[arg-type]  # as it was asked
        elif event.kind is PeerFaultKind.UNSUPPORTED:  # sending it again would end no better
            channels.answered(broker_id, request)  # type: ignore[arg-type]
        elif channels.head(broker_id) is request:
            self._send(broker_id)
