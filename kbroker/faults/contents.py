"""What a message is about: its topics, partitions, groups and errors, found by the names that fields have in Kafka.

Used by `script.py` to match and by `core.py` to refuse one part of a request and to serve the rest. Pure; knows no API
by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from protocol.errors import ErrorCode
from protocol.message import Message, Struct
from protocol.namedtuple import NamedTuple
from protocol.schema import fields, structs

TopicName = Callable[[bytes], "str | None"]
Partition = tuple[str, int]

TOPIC_NAMES = ("topic", "name", "topic_name")
TOPIC_LISTS = ("topics", "topic_data", "responses", "topic_names", "results", "topic_states", "deletions")
PARTITION_INDICES = ("index", "partition", "partition_index", "partition_id")
GROUPS = ("group_id", "groups", "groups_names", "group_ids")
TRANSACTIONS = ("transactional_id", "transactional_ids")


class Filters(NamedTuple):
    """Which filters make sense for an API's requests."""

    topics: bool
    groups: bool
    transactions: bool


@cache
def filters_of(request: type[Message]) -> Filters:
    """Looked up in the declaration of a request."""
    names = {field.name for struct in structs(request) for field in fields(struct)}
    lists = any(field.name in TOPIC_LISTS for field in fields(request))
    finds = request.__name__ == "FindCoordinatorRequest"
    return Filters(lists, finds or bool(names & set(GROUPS)), finds or bool(names & set(TRANSACTIONS)))


@cache
def _names(struct: type[Struct]) -> frozenset[str]:
    return frozenset(field.name for field in fields(struct))


def topic_list(message: Message) -> str | None:
    """The name of the field that lists a message's topics, None if there is none."""
    for field in fields(type(message)):
        if field.name in TOPIC_LISTS and getattr(message, field.name):
            return field.name
    return None


def name_of(entry: Any, topic_name: TopicName) -> str | None:
    """The topic that an entry of such a list is about."""
    if isinstance(entry, str):
        return entry
    for field in TOPIC_NAMES:
        name = getattr(entry, field, None)
        if name:
            return str(name)
    topic_id = getattr(entry, "topic_id", None)
    return topic_name(topic_id) if topic_id else None


def partition_list(entry: Any) -> str | None:
    """The name of the field that lists an entry's partitions."""
    if isinstance(entry, str):
        return None
    kind: type[Struct] = type(entry)
    for field in fields(kind):
        if field.type.kind != "array":
            continue
        element = field.type.element
        if element is None:
            continue
        if element.struct is not None:
            if _names(element.struct) & set(PARTITION_INDICES):
                return field.name
        elif element.kind == "int32" and "partition" in field.name:
            return field.name
    return None


def index_of(entry: Any) -> int:
    """The partition that an entry is about."""
    if isinstance(entry, int):
        return entry
    return int(next(getattr(entry, name) for name in PARTITION_INDICES if hasattr(entry, name)))


def partitions(message: Message, topic_name: TopicName) -> Iterator[Partition]:
    """Every partition that a message is about; of a topic without partitions (CreateTopics), -1."""
    listed = topic_list(message)
    for entry in getattr(message, listed) if listed else ():
        name = name_of(entry, topic_name)
        if name is None:
            continue
        inner = partition_list(entry)
        inside = getattr(entry, inner) if inner else None
        if not inside:
            yield name, -1
        else:
            for each in inside:
                yield name, index_of(each)


def groups(message: Message) -> set[str]:
    """The groups that a request names."""
    return _named(message, GROUPS, key_type=0)


def transactional_ids(message: Message) -> set[str]:
    """The transactional ids that a request names."""
    return _named(message, TRANSACTIONS, key_type=1)


def _named(message: Message, names: tuple[str, ...], key_type: int) -> set[str]:
    found: set[str] = set()
    for name in names:
        value = getattr(message, name, None)
        for each in value if isinstance(value, list) else [value]:
            text = each if isinstance(each, str) else getattr(each, "group_id", None)
            if text:
                found.add(text)
    if type(message).__name__ == "FindCoordinatorRequest" and message.key_type == key_type:  # type: ignore[attr-defined]
        found |= {message.key, *message.coordinator_keys} - {""}  # type: ignore[attr-defined]
    return found


def split(message: Message, wanted: Callable[[Partition], bool], topic_name: TopicName) -> tuple[Message, Message]:
    """A request in two: what is about wanted partitions, and the rest. The two share what they need not change."""
    listed = topic_list(message)
    assert listed is not None, message
    inside: list[Any] = []
    outside: list[Any] = []
    for entry in getattr(message, listed):
        name = name_of(entry, topic_name)
        inner = partition_list(entry)
        parts = getattr(entry, inner) if inner else None
        if name is None or not parts:
            (inside if name is not None and wanted((name, -1)) else outside).append(entry)
            continue
        for home, keep in ((inside, True), (outside, False)):
            chosen = [each for each in parts if wanted((name, index_of(each))) is keep]
            if chosen:
                home.append(changed(entry, inner, chosen))
    return changed(message, listed, inside), changed(message, listed, outside)


def changed(struct: Any, field: str | None, value: Any) -> Any:
    """A copy of a struct with another value in one field."""
    assert field is not None, struct
    kind: type[Struct] = type(struct)
    values = {each.name: getattr(struct, each.name) for each in fields(kind)}
    return kind(**{**values, field: value})


def join(real: Message, refused: Message, topic_name: TopicName) -> None:
    """Put the entries of a refusal into the answer to the rest; they take the place of its own."""
    listed = topic_list(refused)
    if listed is None:
        return
    ours = getattr(real, listed)
    ours = list(ours) if ours is not None else []
    for entry in getattr(refused, listed):
        name = name_of(entry, topic_name)
        at = next((at for at, each in enumerate(ours) if name_of(each, topic_name) == name), None)
        inner = partition_list(entry)
        if at is None or inner is None:
            ours = [each for each in ours if name_of(each, topic_name) != name] if inner is None else ours
            ours.append(entry)
            continue
        taken = {index_of(each) for each in getattr(entry, inner)}
        kept = [each for each in getattr(ours[at], inner) if index_of(each) not in taken]
        ours[at] = changed(ours[at], inner, kept + getattr(entry, inner))
    setattr(real, listed, ours)


def errors(message: Any) -> Iterator[ErrorCode]:
    """Every error code in an answer, but NONE."""
    if isinstance(message, list):
        for each in message:
            yield from errors(each)
    elif isinstance(message, Struct):
        for field in fields(type(message)):
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                if value:
                    yield ErrorCode.of(value)
            elif isinstance(value, list | Struct):
                yield from errors(value)
