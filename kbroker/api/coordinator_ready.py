"""When a coordinator is ready for its clients: its topic is there, its partitions are counted, its shard is loaded.

Called by the requests with which clients begin: FindCoordinator, for whose first sender the topic is made; JoinGroup,
OffsetFetch and the transactional InitProducerId, which may come while a shard is being loaded.

Unlike Kafka: these wait, READY_WAIT_MS at most, for what Kafka answers at once with COORDINATOR_NOT_AVAILABLE,
NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS, so that a client's first join or transaction need not wait out its
retry backoff. What takes longer, as a large shard does, is answered as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.api.call import mutation_charge
from kbroker.api.topic_ready import once_all_know, why_not_made
from kbroker.broker.coordinator_types import auto_create
from kbroker.broker.coordinators import CoordinatorKey
from kbroker.metadata.cache import TopicKey
from protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.api.authorization import Handle, Refuse
    from kbroker.api.call import Call, Result
    from kbroker.broker.coordinator_types import CoordinatorType
    from kbroker.controller.admin import Made, Pending
    from kbroker.coordinator import Runtime
    from protocol.message import Message

KEYS_WAITED_FOR = 100  # of one request: whether their shards are loaded is looked up at each news of them
READY_WAIT_MS = 5_000  # of a machine that is busy with other things, to make 50 partitions


def once_there(kind: CoordinatorType, keys: Sequence[str], call: Call, answer: Callable[[], Result]) -> Result:
    """The answer to who coordinates these keys, once their coordinator's topic is there, and shards of it here loaded.

    At once where it has been there all along.
    """
    plane = call.broker.plane
    kind.prepare(plane)
    runtime = call.broker.coordinators[kind.key_type].runtime
    if kind.topic in plane.cache.topics and runtime.partitions:
        return answer()
    creation = None if kind.topic in plane.cache.topics else auto_create(kind.topic, plane, mutation_charge(call))
    waiting = AwaitCoordinator(kind, keys[:KEYS_WAITED_FOR], call, creation, answer)
    return waiting.answer(call.now_ms) or waiting


class AwaitCoordinator:
    """A FindCoordinator whose topic is being made or counted. creation: None if it is there."""

    __slots__ = ("_answer", "_call", "_creation", "_kind", "_names", "deadline_ms")

    def __init__(
        self,
        kind: CoordinatorType,
        names: Sequence[str],
        call: Call,
        creation: Pending[Made] | None,
        answer: Callable[[], Result],
    ) -> None:
        self._kind = kind
        self._names = names
        self._call = call
        self._creation = creation
        self._answer = answer
        self.deadline_ms = call.now_ms + READY_WAIT_MS

    @property
    def keys(self) -> Sequence[Hashable]:
        """The store's answer, and news of the topic and of its shards."""
        topic = self._kind.topic
        made = () if self._creation is None else (self._creation,)
        return [*made, TopicKey(topic), CoordinatorKey(topic)]

    def answer(self, now_ms: int) -> Result | None:
        """Once all brokers know the topic, and the shards of these keys, if they are here, are loaded."""
        plane, creation = self._call.broker.plane, self._creation
        runtime = self._call.broker.coordinators[self._kind.key_type].runtime
        if creation is not None:
            if not creation.is_over:
                return None
            if why_not_made(self._kind.topic, creation) and self._kind.topic not in plane.cache.topics:
                return self._answer()  # for want of brokers, perhaps
        topic = plane.cache.topics.get(self._kind.topic)
        if topic is None or not runtime.partitions:
            return None
        if any(state.leader < 0 for state in topic.partitions.values()) or any(map(runtime.is_loading, self._names)):
            return None
        return once_all_know(plane, self.deadline_ms, now_ms, self._answer)

    def expired(self, now_ms: int) -> Result:
        """What is known now."""
        return self._answer()


def once_loaded(kind: CoordinatorType, name_of: Callable[[Any], str | None]) -> Callable[[Handle, Refuse], Handle]:
    """For a route's `before`: its requests wait until the shard of their key is loaded.

    name_of: the group or transactional id of a request; None where it has none.
    """

    def before(handle: Handle, refuse: Refuse) -> Handle:
        def wait_first(request: Message, call: Call) -> Result:
            name = name_of(request)
            if name is None or not (runtime := call.broker.coordinators[kind.key_type].runtime).is_loading(name):
                return handle(request, call)
            return AwaitShard(runtime, name, request, call, handle, refuse)

        return wait_first

    return before


class AwaitShard:
    """A request that waits for a shard to be loaded. keys: what is touched then."""

    __slots__ = ("_call", "_handle", "_name", "_refuse", "_request", "_runtime", "deadline_ms", "keys")

    def __init__(
        self, runtime: Runtime[Any], name: str, request: Message, call: Call, handle: Handle, refuse: Refuse
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._request = request
        self._call = call
        self._handle = handle
        self._refuse = refuse
        self.keys: Sequence[Hashable] = (CoordinatorKey(runtime.topic),)
        self.deadline_ms = call.now_ms + READY_WAIT_MS

    def answer(self, now_ms: int) -> Result | None:
        """Once it is loaded, or another broker's."""
        return None if self._runtime.is_loading(self._name) else self.expired(now_ms)

    def expired(self, now_ms: int) -> Result:
        """As the shard is now."""
        try:
            return self._handle(self._request, self._call)
        except KafkaError as error:
            return self._refuse(self._request, error.code, error.message, self._call.version)
