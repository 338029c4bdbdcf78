"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics, brokers, groups.

Served: DescribeConfigs 0-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1, ListConfigResources 0-1. Resources are
topics (2), brokers (4) and groups (32); the broker with the empty name stands for all brokers. What concerns one broker
is asked of that broker. A change is written to the metadata store, applied here before it is answered, and reaches the
other brokers by a notice. All changes of one resource are made, or none.

Unlike Kafka: a resource of an unknown type is refused by itself, not the whole request with it. Brokers' loggers (8)
are an empty list, and their levels cannot be set (INVALID_REQUEST); subscriptions to client metrics (16) are refused,
since there is no telemetry. A value that is not legal is INVALID_CONFIG for brokers, too, where Kafka answers
INVALID_REQUEST. A broker keeps keys of Kafka's that have no effect here, and unknown ones as Kafka's does; their
documentation says so. Append and subtract start from the value in force. Version 0 tells which values are defaults,
where Kafka calls none so. A topic's own message.timestamp.difference.max.ms counts before the limits that the broker
sets, and shows as the value of both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from kbroker.api.authorization import NAMES_AT_ONCE, Each, cluster
from kbroker.api.chunks import is_break
from kbroker.api.routes import Route
from kbroker.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from kbroker.config import (
    BrokerConfig,
    ConfigType,
    Entry,
    Setting,
    Source,
    TopicConfig,
    check_group,
    check_topic,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from kbroker.config.limits import ELEMENTS_AT_ONCE, ELEMENTS_PER_REQUEST
from kbroker.log.names import topic_name_fault
from kbroker.metadata.entities import GROUPS, group_node
from kbroker.metadata.store import ALL_BROKERS
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.api.call import Call, InSlices, Result
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.store_plane import StorePlane
    from kbroker.controller.admin import Change, Pending
    from protocol.message import Message

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
LISTED = GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC
"""By ListConfigResources, in Kafka's order."""
SET, DELETE, APPEND, SUBTRACT = range(4)

STORE_PATIENCE_MS = 30_000
"""These requests have no timeout of their own: how long they wait for the metadata store."""

MANY_SETTINGS = 10 * ELEMENTS_AT_ONCE  # resources are changed in slices; of one there may be ELEMENTS_AT_ONCE

MAX_STRING_BYTES, UTF8_BYTES = 0x7FFF, 4  # of a text on the wire; of a character, at most

TYPES_SINCE = 1  # ListConfigResources: before, only subscriptions to client metrics
SOURCES_SINCE = 1  # DescribeConfigs: before, only whether a value is the default

Answer = TypeVar("Answer", bound="Message | InSlices")
Entity: TypeAlias = tuple[str, str]  # kind and name in the metadata store
Resource: TypeAlias = AlterConfigsResource | IncrementalAlterConfigsResource


class AwaitStore(Generic[Answer]):
    """A request that waits for the metadata store alone."""

    __slots__ = ("_answer_with", "_pending", "deadline_ms")

    def __init__(self, pending: Pending[Any], answer_with: Callable[[], Answer], now_ms: int) -> None:
        self._pending = pending
        self._answer_with = answer_with
        self.deadline_ms = now_ms + STORE_PATIENCE_MS

    @property
    def keys(self) -> Sequence[Hashable]:
        """The store's answer."""
        return [self._pending]

    def answer(self, now_ms: int) -> Answer | None:
        """Once the store has answered."""
        return self._answer_with() if self._pending.is_over else None

    def expired(self, now_ms: int) -> Answer:
        """Without it."""
        return self._answer_with()


def value_of(pending: Pending[dict[Entity, object]], entity: Entity) -> object:
    """What the store said about an entity. Raises: KafkaError, REQUEST_TIMED_OUT if it has not said anything."""
    if pending.error is not None:
        raise pending.error
    if pending.value is None:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    return pending.value[entity]


# -- DescribeConfigs


def describe_configs(request: DescribeConfigsRequest, call: Call) -> Result:
    """Tell the settings of topics and brokers, where each comes from, and what it means."""
    plane = call.broker.plane
    known = list(
        dict.fromkeys(
            _entity(each)
            for each in request.resources
            if (each.resource_type == TOPIC and each.resource_name in plane.cache.topics)
            or (each.resource_type == GROUP and each.resource_name)
        )
    )
    if not known:
        return _describe_all(request, call, {})
    pending = plane.read_configs(known)

    def answer_with() -> InSlices:
        found: Mapping[Entity, Mapping[str, str]] | KafkaError
        found = pending.error or pending.value or KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return _describe_all(request, call, found)

    waiting = AwaitStore(pending, answer_with, call.now_ms)
    return waiting.answer(call.now_ms) or waiting


def _describe_all(
    request: DescribeConfigsRequest, call: Call, overrides: Mapping[Entity, Mapping[str, str]] | KafkaError
) -> InSlices:
    """Each resource once, however often it is named."""
    results = []
    for resource in {(each.resource_type, each.resource_name): each for each in request.resources}.values():
        results.append(_describe(resource, request, call, overrides))
        yield
    return DescribeConfigsResponse(results=results)


def _describe(
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    call: Call,
    overrides: Mapping[Entity, Mapping[str, str]] | KafkaError,
) -> DescribeConfigsResult:
    """One resource. overrides: what is set for topics and groups, or why that is not known."""
    try:
        entries = _entries(resource, call.broker.plane, overrides)
    except KafkaError as error:
        return _not_described(resource, error.code, error.message)
    wanted = set(resource.configuration_keys or ())
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_line(entry, request, call.version) for entry in entries if not wanted or entry.name in wanted],
    )


def _entries(
    resource: DescribeConfigsResource,
    plane: ControlPlane,
    overrides: Mapping[Entity, Mapping[str, str]] | KafkaError,
) -> list[Entry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        _check_topic_name(name)
        found = overrides if isinstance(overrides, KafkaError) else overrides.get(("topics", name))
        if name not in plane.cache.topics or found is None:  # not there, or only since its settings were asked for
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        if isinstance(found, KafkaError):
            raise found
        return describe_topic(plane.configs.sound(found), plane.configs.layers, plane.configs.broker)
    if resource.resource_type == BROKER:
        if not name:
            return describe_all_brokers(plane.configs.layers)
        _check_broker_name(name, plane)
        return describe_broker(plane.configs.layers)
    if resource.resource_type == BROKER_LOGGER:
        _check_broker_name(name, plane)
        return []
    if resource.resource_type == GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        found = overrides if isinstance(overrides, KafkaError) else overrides.get(_entity(resource), {})
        if isinstance(found, KafkaError):
            raise found
        return describe_group(plane.configs.sound_of_group(found), plane.configs.layers, plane.configs.broker)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here")


def _line(entry: Entry, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResourceResult:
    """One setting."""
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source is Source.DEFAULT_CONFIG if version < SOURCES_SINCE else False,
        config_source=entry.source.wire,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source.wire)
            for each in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.type.value,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _not_described(resource: DescribeConfigsResource, code: ErrorCode, text: str) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


def _refuse_describe(
    request: DescribeConfigsRequest, code: ErrorCode, text: str, version: int
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_not_described(each, code, text) for each in request.resources])


# -- AlterConfigs, IncrementalAlterConfigs


def alter_configs(request: AlterConfigsRequest, call: Call) -> Result:
    """Replace all that is set for some resources."""

    def respond(results: list[AlterConfigsResourceResponse]) -> AlterConfigsResponse:
        return AlterConfigsResponse(responses=results)

    return _alter(request.resources, respond, call, validate_only=request.validate_only)


def incremental_alter_configs(request: IncrementalAlterConfigsRequest, call: Call) -> Result:
    """Change some of what is set for some resources."""

    def respond(results: list[AlterConfigsResourceResponse]) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(responses=results)

    return _alter(request.resources, respond, call, validate_only=request.validate_only)


def refused_of_brokers(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    call: Call,
    set_before: Callable[[str], Mapping[str, str]],
) -> dict[int, AlterConfigsResourceResponse]:
    """What is wrong with changes of brokers' settings, by their places in the request.

    On a quorum no controller looks at these: the broker does that is asked, before it passes the rest on. set_before:
    what is set for this broker (by its number), or for all (by an empty name).
    """
    resources: Sequence[Resource] = request.resources
    times = Counter(map(_identity, resources))
    refused = {}
    for at, resource in enumerate(resources):
        if resource.resource_type == BROKER:
            try:
                _check_resource(resource, times[_identity(resource)], call.broker.plane)
                change = _change_of(resource, call.broker.plane.configs.broker)
                _checked(change, resource, call, validate_only=True)(dict(set_before(resource.resource_name)))
            except KafkaError as error:
                refused[at] = _altered(resource, error)
    return refused


def _change_of(resource: Resource, broker: BrokerConfig) -> Change:
    """From what is set to what is to be set. Raises: KafkaError, for what cannot be asked."""
    if not isinstance(resource, IncrementalAlterConfigsResource):
        wanted = {each.name: _given(each.name, each.value) for each in resource.configs}
        return lambda _: wanted
    keys = _keys_of(resource.resource_type)
    for each in resource.configs:
        _check_operation(each, keys)
    return lambda before: _changed(before, resource, keys, broker)


def _alter(
    resources: Sequence[Resource],
    respond: Callable[[list[AlterConfigsResourceResponse]], Message],
    call: Call,
    *,
    validate_only: bool,
) -> InSlices:
    plane = call.broker.store_plane
    refused: dict[int, KafkaError] = {}
    changes: dict[Entity, Change] = {}
    times = Counter(map(_identity, resources))
    for at, resource in enumerate(resources):
        if at:
            yield
        try:
            _check_resource(resource, times[_identity(resource)], plane)
            change = _change_of(resource, plane.configs.broker)
            changes[_entity(resource)] = _checked(change, resource, call, validate_only=validate_only)
        except KafkaError as error:
            refused[at] = error
    pending = plane.admin.change_configs(changes, validate_only=validate_only)

    def answer_with() -> InSlices:
        results = []
        for at, resource in enumerate(resources):
            if at:
                yield
            error = refused.get(at) or _written(resource, pending, plane, validate_only=validate_only)  # type: ignore[arg-type]
            results.append(_altered(resource, error))
        return respond(results)

    waiting = AwaitStore(pending, answer_with, call.now_ms)
    answer = waiting.answer(call.now_ms)
    return waiting if answer is None else (yield from answer)


def _written(
    resource: Resource, pending: Pending[dict[Entity, object]], plane: StorePlane, *, validate_only: bool
) -> KafkaError | None:
    """What became of one resource's change; one that was made is applied here, before its notice comes round."""
    try:
        settings = value_of(pending, _entity(resource))
    except KafkaError as error:
        return error
    if isinstance(settings, KafkaError):
        return settings
    assert isinstance(settings, dict), settings
    if not validate_only:
        kind, name = _entity(resource)
        if kind == "topics":
            plane.notices.set_topic(name, settings)
        elif kind == GROUPS:
            plane.notices.set_group(resource.resource_name, settings)
        elif name == ALL_BROKERS:
            plane.notices.set_broker(default=settings)
        else:
            plane.notices.set_broker(own=settings, is_asked=True)
    return None


def _entity(resource: Resource | DescribeConfigsResource) -> Entity:
    if resource.resource_type == TOPIC:
        return "topics", resource.resource_name
    if resource.resource_type == GROUP:
        return GROUPS, group_node(resource.resource_name)
    return "brokers", resource.resource_name or ALL_BROKERS


def _check_resource(resource: Resource, times: int, plane: ControlPlane) -> None:
    """Whether there is such a resource, and the request is sound about it. times: it has it. Raises: KafkaError."""
    if times > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len(resource.configs) > ELEMENTS_AT_ONCE:
        text = f"{len(resource.configs)} settings of one resource; allowed: {ELEMENTS_AT_ONCE}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    names = [each.name for each in resource.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if resource.resource_type == TOPIC:
        if not resource.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        _check_topic_name(resource.resource_name)
        if resource.resource_name not in plane.cache.topics:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist."
            )
    elif resource.resource_type == BROKER:
        if resource.resource_name:
            _check_broker_name(resource.resource_name, plane)
    elif resource.resource_type != GROUP:
        kind = resource.resource_type
        text = f"AlterConfigs is only supported for topics, brokers and groups, but resource type is {kind}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    elif not resource.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name can't be empty.")


def _identity(resource: Resource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _checked(change: Change, resource: Resource, call: Call, *, validate_only: bool) -> Change:
    """A change that is refused where its outcome is not legal; passwords of a broker are enciphered."""
    configs, random = call.broker.plane.configs, call.broker.random
    is_for_one = resource.resource_type == BROKER and bool(resource.resource_name)

    def checked(before: dict[str, str]) -> dict[str, str]:
        wanted = change(dict(configs.deciphered(before)) if is_for_one else before)
        if resource.resource_type == TOPIC:
            faults = check_topic(wanted, configs.broker)
        elif resource.resource_type == GROUP:
            faults = check_group(wanted, configs.broker)
        else:
            faults = configs.faults(wanted, per_broker=is_for_one)
        if faults:
            raise KafkaError(ErrorCode.INVALID_CONFIG, "; ".join(faults))
        _check_length(wanted)
        if not is_for_one or validate_only:
            return wanted
        try:
            return configs.enciphered(wanted, before, random.token)
        except ValueError as error:
            of = f"ConfigResource(type=BROKER, name='{resource.resource_name}')"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid config value for resource {of}: {error}") from None

    return checked


def _check_length(settings: Mapping[str, str]) -> None:
    """Whether each value can be told again: a list that is appended to may outgrow any answer. As Kafka 4 does."""
    for name, value in settings.items():
        if len(value) > MAX_STRING_BYTES // UTF8_BYTES and (size := len(value.encode())) > MAX_STRING_BYTES:
            text = f"{name} would be of {size} bytes; allowed: {MAX_STRING_BYTES}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value


def _check_operation(change: IncrementalAlterableConfig, keys: Mapping[str, Setting]) -> None:
    operation = change.config_operation
    if operation not in (SET, DELETE, APPEND, SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown operation {operation} on {change.name}")
    if operation != DELETE:
        _given(change.name, change.value)
    if operation in (APPEND, SUBTRACT):
        known = keys.get(change.name)
        if known is None or known.type is not ConfigType.LIST:
            verb = "APPEND to" if operation == APPEND else "SUBTRACT from"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} key {change.name} because its type is not LIST.")


def _changed(
    before: Mapping[str, str],
    resource: IncrementalAlterConfigsResource,
    keys: Mapping[str, Setting],
    broker: BrokerConfig,
) -> dict[str, str]:
    """Settings after the operations of a resource."""
    after = dict(before)
    for each in resource.configs:
        if each.config_operation == DELETE:
            after.pop(each.name, None)
        elif each.config_operation == SET:
            after[each.name] = _given(each.name, each.value)
        else:
            items = _items(after.get(each.name, _in_force(keys[each.name], broker)))
            change = _items(each.value)
            if each.config_operation == APPEND:
                known = set(items)  # a list may have 100,000 items, and the change more
                items += [item for item in change if item not in known]
            else:
                gone = set(change)
                items = [item for item in items if item not in gone]
            after[each.name] = ",".join(items)
    return after


def _keys_of(resource_type: int) -> Mapping[str, Setting]:
    """Of a broker those of parts that are not here, too: tools change them on any broker."""
    if resource_type == TOPIC:
        return TopicConfig.KEYS
    if resource_type == GROUP:
        from kbroker.config.group import GroupConfig  # only a change pays for loading it

        return GroupConfig.KEYS
    from kbroker.config.foreign import KNOWN  # only a change pays for loading it

    return KNOWN


def _in_force(setting: Setting, broker: BrokerConfig) -> str | None:
    """The text of a list that is not set on the resource: the broker's, for a topic."""
    if setting.broker is not None:
        setting = BrokerConfig.KEYS[setting.broker]
        return setting.shown(getattr(broker, setting.attribute))
    return setting.shown(setting.default)


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in text.split(",")] if text else []


def _altered(resource: Resource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _all_refused(resources: Iterable[Resource], code: ErrorCode, text: str) -> list[AlterConfigsResourceResponse]:
    return [_altered(each, KafkaError(code, text)) for each in resources]


def _refuse_alter(request: AlterConfigsRequest, code: ErrorCode, text: str, version: int) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=_all_refused(request.resources, code, text))


def _refuse_incremental(
    request: IncrementalAlterConfigsRequest, code: ErrorCode, text: str, version: int
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=_all_refused(request.resources, code, text))


# -- ListConfigResources


def list_config_resources(request: ListConfigResourcesRequest, call: Call) -> InSlices:
    """Name what may have settings; by default everything. There are no subscriptions to client metrics."""
    listed = LISTED if call.version >= TYPES_SINCE else (CLIENT_METRICS,)
    wanted = request.resource_types or listed
    if any(each not in listed for each in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    cache, listener = call.broker.plane.cache, call.session.listener
    registered = [*cache.brokers.values(), *call.broker.plane.fenced_brokers()]
    brokers = [str(each.id) for each in registered if each.endpoint(listener) is not None]
    groups = sorted(call.broker.plane.configs.groups)
    names = {GROUP: groups, BROKER_LOGGER: brokers, BROKER: brokers, TOPIC: cache.sorted_names()}
    found = []
    for kind in (each for each in LISTED if each in wanted):
        for at, name in enumerate(names.get(kind, ())):
            if is_break(at, NAMES_AT_ONCE):
                yield
            found.append(ConfigResource(resource_name=name, resource_type=kind))
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=found)


def _refuse_list(
    request: ListConfigResourcesRequest, code: ErrorCode, text: str, version: int
) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=code, config_resources=[])


# -- names


def _check_topic_name(name: str) -> None:
    fault = topic_name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)


def _check_broker_name(name: str, plane: ControlPlane) -> None:
    """Whether a broker's name is this one's number. Raises: KafkaError INVALID_REQUEST."""
    if name != str(plane.broker_id):
        is_number = re.fullmatch(r"[+-]?[0-9]+", name) is not None
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {plane.broker_id}, but received {name}"
            if is_number
            else f"Broker id must be an integer, but it is: {name}",
        )


# -- rights


def _what(resource: Resource | DescribeConfigsResource, call: Call) -> tuple[ResourceType, str] | None:
    """A topic and a group have settings of their own; what concerns brokers, and clients' metrics, is the cluster's."""
    if resource.resource_type == TOPIC:
        return ResourceType.TOPIC, resource.resource_name
    if resource.resource_type == GROUP:
        return ResourceType.GROUP, resource.resource_name
    if resource.resource_type in (BROKER, BROKER_LOGGER, CLIENT_METRICS):
        return ResourceType.CLUSTER, CLUSTER_NAME
    return None


READERS_NEED = (Each(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "resources", "results", _what),)
WRITERS_NEED = (Each(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "resources", "responses", _what),)
ROUTES = (
    Route(
        32,
        DescribeConfigsRequest,
        0,
        4,
        describe_configs,
        _refuse_describe,
        READERS_NEED,
        elements=ELEMENTS_PER_REQUEST,
    ),
    Route(33, AlterConfigsRequest, 0, 2, alter_configs, _refuse_alter, WRITERS_NEED, elements=MANY_SETTINGS),
    Route(
        44,
        IncrementalAlterConfigsRequest,
        0,
        1,
        incremental_alter_configs,
        _refuse_incremental,
        WRITERS_NEED,
        elements=MANY_SETTINGS,
    ),
    Route(
        74,
        ListConfigResourcesRequest,
        0,
        1,
        list_config_resources,
        _refuse_list,
        (cluster(Operation.DESCRIBE_CONFIGS),),
    ),
)
