"""Requests that need permission as a whole: handled once the caller may do what they need, or refused.

Used by `routes.py` for routes that say what they need, and by handlers whose requests only sometimes need it (Fetch of
a follower, AddPartitionsToTxn of a broker). An authorizer that has to ask the metadata store leaves it open for now:
the request waits for that, and is neither handled nor refused before. A controller that was elected a moment ago, whom
this broker does not know yet, would otherwise lose what it says first; and the peers of a broker that has just started
would be refused until it knows them. Questions about the cluster wait the same way for a broker to be told of it
(`metadata.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.config.limits import PERMISSION_PATIENCE_MS
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from kbroker.api.call import Call, Result
    from kbroker.broker.permission import Operation
    from protocol.message import Message

    Handle = Callable[[Any, Any], Result]
    Refuse = Callable[[Any, ErrorCode, str, int], Result]


def permitted(handle: Handle, needs: tuple[Operation, ...], refuse: Refuse) -> Handle:
    """The handler, once the caller may do one of these to the cluster."""

    def ask_first(request: Message, call: Call) -> Result:
        return with_permission(request, call, needs, handle, refuse)

    return ask_first


def with_permission(request: Any, call: Call, needs: tuple[Operation, ...], handle: Handle, refuse: Refuse) -> Result:
    """What the handler makes of a request, once its caller may do one of these to the cluster.

    Raises: KafkaError CLUSTER_AUTHORIZATION_FAILED if it may not, and that is decided.
    """
    permission = call.broker.permission

    def allowed(request: Any, call: Call) -> Result:
        permission.require(call.session, *needs)
        return handle(request, call)

    awaited = permission.undecided(call.session, *needs)
    return allowed(request, call) if awaited is None else once_touched(awaited, request, call, allowed, refuse)


def once_touched(key: Hashable, request: Any, call: Call, handle: Handle, refuse: Refuse) -> Undecided:
    """A request that is handled once a key is touched, or PERMISSION_PATIENCE_MS have passed."""

    def decided() -> Result:
        try:
            return handle(request, call)
        except KafkaError as error:
            return refuse(request, error.code, error.message, call.version)

    return Undecided(key, call.now_ms + PERMISSION_PATIENCE_MS, decided)


class Undecided:
    """A request that waits until it is known what to do with it. keys: what is touched then."""

    __slots__ = ("_decided", "deadline_ms", "keys")

    def __init__(self, awaited: Hashable, deadline_ms: int, decided: Callable[[], Result]) -> None:
        self.keys: Sequence[Hashable] = (awaited,)
        self.deadline_ms = deadline_ms
        self._decided = decided

    def answer(self, now_ms: int) -> Result:
        """It is known now: handled, or refused."""
        return self._decided()

    def expired(self, now_ms: int) -> Result:
        """The metadata store does not answer: as far as is known."""
        return self._decided()
