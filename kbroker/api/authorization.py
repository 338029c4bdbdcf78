"""Authorization: what a request needs, part by part, and what is answered to the parts that the session may not have.

Each `Route` names its needs: operations on types of resources. With an authorizer that has rules, connections are given
the table `AUTHORIZED`, where each handler is called with what is left of its request once every need has been asked
for; the answer is completed with the refused parts where it is encoded, whenever that is. Without rules connections use
`ROUTES`, where nothing is asked: an authorizer that goes by addresses (`brokers_only.py`) decides who may do
CLUSTER_ACTION, and nothing else.

Such an authorizer may leave it open for now: the request waits for that, and is neither handled nor refused before. A
controller that was elected a moment ago, whom this broker does not know yet, would otherwise lose what it says first;
and the peers of a broker that has just started would be refused until it knows them. Questions about the cluster wait
the same way for a broker to be told of it (`metadata.py`).

Source: KafkaApis and AuthHelper of Apache Kafka 3.9, by behaviour. Unlike Kafka: a right is asked for before anything
else of a request is looked at, but for who the controller is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import copy
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

from kbroker.broker.authorizer import CLUSTER_NAME, DENIED, Operation, ResourceType
from kbroker.config.limits import PERMISSION_PATIENCE_MS
from protocol.errors import ErrorCode, KafkaError
from protocol.message import Message
from protocol.namedtuple import NamedTuple
from protocol.schema import fields_at

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
    from typing import Protocol, TypeAlias

    from kbroker.api.call import Answer, Call, InSlices, Result, Signal
    from kbroker.api.routes import Route

    Handle: TypeAlias = Callable[[Any, Any], Result]
    Refuse: TypeAlias = Callable[[Any, ErrorCode, str, int], Result]
    Change: TypeAlias = Callable[[Any], Answer]
    Left: TypeAlias = Generator[None, None, Any]
    """Comes to what is left of a request; None if that is nothing, and it is answered already."""

    class Need(Protocol):
        """Something that a request needs. rights: of which one is enough."""

        @property
        def rights(self) -> tuple[Right, ...]:
            """For who looks at the table."""

        def ask(self, request: Any, asking: Asking) -> Left:
            """Ask for it, for each part of the request. Raises: KafkaError that refuses it as a whole."""


NAMES_AT_ONCE = 32  # asked about without a break


class Right(NamedTuple):
    """An operation on a type of resource."""

    operation: Operation
    resource: ResourceType = ResourceType.CLUSTER


class Asking:
    """One request on its way through the needs of its route. signal: what is said instead of an answer, if anything."""

    __slots__ = ("_changes", "_said", "call", "route", "signal")

    def __init__(self, route: Route, call: Call) -> None:
        self.route = route
        self.call = call
        self.signal: Signal | None = None
        self._changes: list[Change] = []
        self._said: list[tuple[Answer, str | int]] = []

    def allows(
        self,
        operation: Operation,
        resource: ResourceType = ResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
        *,
        times: int = 1,
        hidden: bool = False,
    ) -> bool:
        """Whether the session may do this. times, hidden: as `AuthHelper.allows` has them."""
        helper = self.call.broker.auth_helper
        return helper.allows(self.call.session, operation, resource, name, times=times, hidden=hidden)

    def refuse(self, part: Any, code: ErrorCode, into: str | int, text: str = "", by: Refuse | None = None) -> None:
        """Refuse a part of the request. into: the answer's list that is added to. by: in place of the route's."""
        self.call.has_errors = True
        refused = (by or self.route.refuse)(part, code, text, self.call.version)
        if isinstance(refused, tuple | Message):
            self.say(refused, into)
        else:
            self.signal = cast("Signal", refused)

    def say(self, answer: Answer, into: str | int = "") -> None:
        """Have the answer completed with the list of another; which is the answer itself if nothing is left."""
        self._said.append((answer, into))
        self._changes.append(lambda whole: _added(whole, answer, into))

    def then(self, change: Change) -> None:
        """Have the answer changed before it is encoded."""
        self._changes.append(change)

    def complete(self, left: Any) -> None:
        """The needs have been asked for: from now on what is answered is completed. left: of the request."""
        if self._changes:
            for answer, _ in self._said:
                self.call.broker.counters.note_errors(self.route.api, answer, self.route.flat)
            self.call.route = self.route.completed(self._changes, left)

    def response(self) -> Answer | Signal:
        """What is said where nothing is left to handle."""
        if self.signal is not None:
            return self.signal
        (answer, _), *others = self._said
        for other, into in others:
            answer = _added(answer, other, into)
        if getattr(answer, "error_code", 0) in DENIED.values():
            cast("Any", answer).error_code = ErrorCode.NONE  # each part has its own
        return answer


def _added(answer: Any, other: Any, into: str | int) -> Answer:
    if isinstance(into, int):
        return (*answer[:into], [*answer[into], *other[into]], *answer[into + 1 :])
    setattr(answer, into, [*getattr(answer, into), *getattr(other, into)])
    return cast("Answer", answer)


def with_items(request: Any, of: str | int, items: Any) -> Any:
    """The same request, or answer, with another list. of: its field, or its place in a tuple."""
    if isinstance(of, int):
        return (*request[:of], items, *request[of + 1 :])
    changed = copy(request)
    setattr(changed, of, items)
    return changed


# -- needs


class Whole(NamedTuple):
    """One of some operations on one resource, else the request is refused as a whole.

    name: of the resource, from the request; None if it names none. when: whether a request and its call need this.
    """

    operations: tuple[Operation, ...]
    resource: ResourceType
    name: Callable[[Any], str | None]
    when: Callable[[Any, Call], bool] | None = None

    @property
    def rights(self) -> tuple[Right, ...]:
        """See Need."""
        return tuple(Right(each, self.resource) for each in self.operations)

    def ask(self, request: Any, asking: Asking) -> Left:
        """See Need."""
        yield from ()
        name = self.name(request)
        if name is not None and (self.when is None or self.when(request, asking.call)):
            helper = asking.call.broker.auth_helper
            helper.require(asking.call.session, *self.operations, resource=self.resource, name=name)
        return request


def cluster(*operations: Operation, when: Callable[[Any, Call], bool] | None = None) -> Whole:
    """One of these on the cluster."""
    return Whole(operations, ResourceType.CLUSTER, lambda request: CLUSTER_NAME, when)


class Each(NamedTuple):
    """An operation on what each item of a list names; items that are refused have the code of their resource type.

    of, into: the request's list, and the answer's that has the same items; fields, or places in tuples. what: the type
    and the name of an item's resource; None if it names none that is there. unless: on the cluster, one of which does,
    too. when: whether a request needs this. text, by: of the refusals (`Asking.refuse`).
    """

    operation: Operation
    resource: ResourceType
    of: str | int
    into: str | int
    what: Callable[[Any, Call], tuple[ResourceType, str | None] | None]
    unless: tuple[Operation, ...] = ()
    when: Callable[[Any, Call], bool] | None = None
    text: str = ""
    by: Refuse | None = None

    @property
    def rights(self) -> tuple[Right, ...]:
        """See Need."""
        return Right(self.operation, self.resource), *map(Right, self.unless)

    def ask(self, request: Any, asking: Asking) -> Left:
        """See Need."""
        call = asking.call
        if (self.when is not None and not self.when(request, call)) or any(
            asking.allows(each, hidden=True) for each in self.unless
        ):
            return request
        items = (request[self.of] if isinstance(self.of, int) else getattr(request, self.of)) or ()
        named = []
        for at, item in enumerate(items):
            if at % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                yield
            named.append(self.what(item, call) or (self.resource, None))
        times, allowed = Counter(named), {}
        left, refused = [], defaultdict(list)
        for at, (item, what) in enumerate(zip(items, named, strict=True)):
            if at % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                yield
            resource, name = what
            if what not in allowed:
                allowed[what] = name is None or asking.allows(self.operation, resource, name, times=times[what])
            if allowed[what]:
                left.append(item)
            else:
                refused[DENIED[resource]].append(item)
        for code, some in refused.items():
            asking.refuse(with_items(request, self.of, some), code, self.into, self.text, self.by)
        if not refused:
            return request
        return with_items(request, self.of, left) if left else None


def for_each(
    operation: Operation,
    resource: ResourceType,
    of: str | int,
    into: str | int,
    name: Callable[[Any, Call], str | None],
    **also: Any,
) -> Each:
    """The same, of items whose resources are all of one type. name: of an item's. also: fields of `Each`."""
    return Each(operation, resource, of, into, lambda item, call: (resource, name(item, call)), **also)


def topic_name(item: Any, call: Call) -> str | None:
    """The name of a topic that an item names, or that has the id that it gives; None if there is none of that id."""
    topic_id = getattr(item, "topic_id", None)
    if topic_id and any(topic_id):
        return call.broker.plane.cache.topic_name(topic_id)
    if item.name or topic_id is None or any(each.name == "name" for each in fields_at(type(item), call.version)):
        return cast("str | None", item.name)
    return None  # an id alone, and it is none


class Hides(NamedTuple):
    """An operation on each item of the answer: it has no item that the session may not know of, and does not say so.

    field: the answer's list. name: of an item's resource. unless: on the cluster, one of which lets it see all.
    """

    operation: Operation
    resource: ResourceType
    field: str
    name: Callable[[Any], str]
    unless: tuple[Operation, ...] = ()

    @property
    def rights(self) -> tuple[Right, ...]:
        """See Need."""
        return Right(self.operation, self.resource), *map(Right, self.unless)

    def ask(self, request: Any, asking: Asking) -> Left:
        """See Need."""
        yield from ()
        if not any(map(asking.allows, self.unless)):
            asking.then(lambda answer: with_items(answer, self.field, self.seen(getattr(answer, self.field), asking)))
        return request

    def seen(self, items: Iterable[Any], asking: Asking) -> list[Any]:
        """Those of some items that the session may know of."""
        return [item for item in items if asking.allows(self.operation, self.resource, self.name(item), hidden=True)]


class Special(NamedTuple):
    """What a request needs in its own way. asks: see `Need.ask`."""

    rights: tuple[Right, ...]
    asks: Callable[[Any, Asking], Left]

    def ask(self, request: Any, asking: Asking) -> Left:
        """See Need."""
        return self.asks(request, asking)


# -- handlers


class Known(NamedTuple):
    """How a route knows at once that all of a request is allowed, as most of those that carry records are.

    is_all: whether it is, or is asked for by the handler. on_allowed: a request was allowed just now, as a whole.
    """

    is_all: Callable[[Any, Call], bool]
    on_allowed: Callable[[Any, Call], None] = lambda request, call: None


def authorized(route: Route) -> Handle:
    """The route's handler, of what the session may have."""
    if route.known is None:
        return _asking(route)
    is_all, serve, ask = route.known.is_all, route.serve, _asking(route)

    def handle_known(request: Any, call: Call) -> Result:
        return serve(request, call) if is_all(request, call) else ask(request, call)

    return handle_known


def _asking(route: Route) -> Handle:
    name = route.name

    def handle(request: Any, call: Call) -> InSlices:
        asking = Asking(route, call)
        call.session.request = name
        for need in route.needs:
            request = yield from need.ask(request, asking)
            if request is None:
                return asking.response()
        asking.complete(request)
        if route.known is not None and not call.has_errors:
            route.known.on_allowed(request, call)
        result = route.serve(request, call)
        if isinstance(result, GeneratorType):
            result = yield from result
        return asking.signal or cast("Any", result)

    return handle


def by_address(handle: Handle, needs: Iterable[Need], refuse: Refuse) -> Handle:
    """The handler for a broker without rules: once the caller may do CLUSTER_ACTION, if that is needed."""
    for need in needs:
        if isinstance(need, Whole) and Operation.CLUSTER_ACTION in need.operations:
            return _asking_first(handle, need, refuse)
    return handle


def _asking_first(handle: Handle, need: Whole, refuse: Refuse) -> Handle:
    def ask_first(request: Any, call: Call) -> Result:
        if need.when is not None and not need.when(request, call):
            return handle(request, call)
        return with_permission(request, call, need.operations, handle, refuse)

    return ask_first


def with_permission(request: Any, call: Call, needs: tuple[Operation, ...], handle: Handle, refuse: Refuse) -> Result:
    """What the handler makes of a request, once its caller may do one of these to the cluster.

    Raises: KafkaError CLUSTER_AUTHORIZATION_FAILED if it may not, and that is decided.
    """
    helper = call.broker.auth_helper

    def allowed(request: Any, call: Call) -> Result:
        helper.require(call.session, *needs)
        return handle(request, call)

    awaited = helper.undecided(call.session, *needs)
    return (
        allowed(request, call)
        if awaited is None
        else once_touched(awaited, PERMISSION_PATIENCE_MS, request, call, allowed, refuse)
    )


def once_touched(
    key: Hashable, patience_ms: int, request: Any, call: Call, handle: Handle, refuse: Refuse
) -> UntilTouched:
    """A request that is handled once a key is touched, or so many ms have passed."""

    def decided() -> Result:
        try:
            return handle(request, call)
        except KafkaError as error:
            return refuse(request, error.code, error.message, call.version)

    return UntilTouched(key, call.now_ms + patience_ms, decided)


class UntilTouched:
    """A request that waits until what it needs is known. keys: what is touched then."""

    __slots__ = ("_decided", "deadline_ms", "keys")

    def __init__(self, awaited: Hashable, deadline_ms: int, decided: Callable[[], Result]) -> None:
        self.keys: Sequence[Hashable] = (awaited,)
        self.deadline_ms = deadline_ms
        self._decided = decided

    def answer(self, now_ms: int) -> Result:
        """It is known now: handled, or refused."""
        return self._decided()

    def expired(self, now_ms: int) -> Result:
        """Nothing has come: as far as is known."""
        return self._decided()
