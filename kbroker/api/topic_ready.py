"""When a new topic is ready for clients: every live broker knows it, and its leaders lead.

Called by what makes topics: CreateTopics, CreatePartitions, a Metadata that creates, FindCoordinator. The controller
has put LeaderAndIsr and UpdateMetadata into the line of each broker by the time that the topic shows in its own image.
Once each line has answered what was in it then, no broker says UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE or
NOT_LEADER_OR_FOLLOWER of the topic for being behind. A broker that dies meanwhile has no line, and is not waited for.

Unlike Kafka, whose controller answers when the topic is in its own image: a client that asks another broker then may
have to try again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.api.call import Result
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.controller.admin import Made, Pending
    from kbroker.controller.controller_channel import AnsweredKey, ControllerChannelManager


MAY_BE_THERE = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)


def why_not_made(name: str, creation: Pending[Made]) -> KafkaError | None:
    """Why a topic will not be there; that another client has just made it, or may have, is no reason."""
    made = creation.error or (creation.value[name] if creation.value else None)
    return made if isinstance(made, KafkaError) and made.code not in MAY_BE_THERE else None


def once_all_know(plane: ControlPlane, deadline_ms: int, now_ms: int, answer: Callable[[], Result]) -> Result:
    """The answer, once all brokers have obeyed what this controller has told them so far, or at the deadline.

    At once where this broker is not the controller.
    """
    if plane.controller is None or now_ms >= deadline_ms:
        return answer()
    channels = plane.controller.channels
    keys = channels.unanswered()
    return AwaitBrokers(channels, keys, deadline_ms, answer) if keys else answer()


class AwaitBrokers:
    """An answer that waits until brokers have obeyed. keys: the last request that each of them was told."""

    __slots__ = ("_answer", "_channels", "_keys", "deadline_ms")

    def __init__(
        self,
        channels: ControllerChannelManager,
        keys: Sequence[AnsweredKey],
        deadline_ms: int,
        answer: Callable[[], Result],
    ) -> None:
        self._channels = channels
        self._keys = keys
        self._answer = answer
        self.deadline_ms = deadline_ms

    @property
    def keys(self) -> Sequence[Hashable]:
        """What each broker has to answer."""
        return self._keys

    def answer(self, now_ms: int) -> Result | None:
        """Once the last of them has."""
        return self._answer() if all(map(self._channels.is_answered, self._keys)) else None

    def expired(self, now_ms: int) -> Result:
        """The topic is there; a broker that hangs hears of it later."""
        return self._answer()
