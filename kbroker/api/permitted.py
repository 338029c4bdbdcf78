"""Requests that need permission as a whole: handled once the caller may do what they need, or refused.

Used by `routes.py` for routes that say what they need. An authorizer that has to ask somebody first leaves it open for
a while: the request waits for that, and is neither handled nor refused before. A controller that was elected a moment
ago, whom this broker does not know yet, would otherwise lose what it says first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kbroker.config.limits import PERMISSION_PATIENCE_MS
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from kbroker.api.call import Answer, Call, InSlices, Result, Signal
    from kbroker.broker.permission import Operation
    from protocol.message import Message

    Handle = Callable[[Any, Any], Result]
    Refuse = Callable[[Any, ErrorCode, str, int], Result]


def permitted(handle: Handle, needs: tuple[Operation, ...], refuse: Refuse) -> Handle:
    """The handler, once the caller may do one of these to the cluster."""

    def ask_first(request: Message, call: Call) -> Result:
        awaited = call.broker.permission.undecided(call.session, *needs)
        if awaited is not None:
            return Undecided(request, call, awaited, decided, refuse)
        return decided(request, call)

    def decided(request: Message, call: Call) -> Result:
        call.broker.permission.require(call.session, *needs)
        return handle(request, call)

    return ask_first


class Undecided:
    """A request that waits until it is known whether its sender may do what it wants. keys: what is touched then."""

    __slots__ = ("_call", "_handle", "_refuse", "_request", "deadline_ms", "keys")

    def __init__(self, request: Message, call: Call, awaited: Hashable, handle: Handle, refuse: Refuse) -> None:
        self.deadline_ms = call.now_ms + PERMISSION_PATIENCE_MS
        self.keys: Sequence[Hashable] = (awaited,)
        self._request = request
        self._call = call
        self._handle = handle
        self._refuse = refuse

    def answer(self, now_ms: int) -> Answer | Signal | InSlices | None:
        """It is known now: handled, or refused."""
        try:
            result = self._handle(self._request, self._call)
        except KafkaError as error:
            result = self._refuse(self._request, error.code, error.message, self._call.version)
        return cast("Answer | Signal | InSlices", result)

    def expired(self, now_ms: int) -> Answer | Signal | InSlices:
        """Whoever was asked does not answer: as far as is known."""
        return cast("Answer | Signal | InSlices", self.answer(now_ms))
