"""What holds for every message of the client-facing families: its schema is sound and its history complete."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any, TypeVar

import pytest

from protocol import schema
from protocol.message import Message, Struct
from protocol.messages import (
    consumer_groups,
    fetch,
    group_offsets,
    groups,
    handshake,
    metadata,
    offsets,
    produce,
    share_group_offsets,
    share_group_state,
    share_groups,
    stored_consumer_groups,
    stored_share_groups,
    stored_streams_groups,
    streams_groups,
    transactions,
)

AnyStruct = TypeVar("AnyStruct", bound=Struct)

MODULES = [
    produce,
    fetch,
    offsets,
    metadata,
    groups,
    group_offsets,
    consumer_groups,
    share_groups,
    share_group_state,
    share_group_offsets,
    stored_consumer_groups,
    stored_share_groups,
    streams_groups,
    stored_streams_groups,
    handshake,
    transactions,
]


def declared_in(module: ModuleType) -> list[type[Struct]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct) and value.__module__ == module.__name__
    ]


CLASSES = [cls for module in MODULES for cls in declared_in(module)]
MESSAGES = [cls for cls in CLASSES if issubclass(cls, Message)]
REQUESTS = [cls for cls in MESSAGES if schema.direction(cls) == "request"]
EVERY_VERSION = [(cls, version) for cls in MESSAGES for version in range(cls.versions[0], cls.versions[1] + 1)]


def smallest(cls: type[AnyStruct], version: int) -> AnyStruct:
    """The smallest value that uses every struct: nothing but defaults, and one element in each list of structs."""
    values: dict[str, Any] = {}
    for field in schema.fields(cls):
        values[field.name] = field.default_value()
        if field.present_at(version) and field.tag is None:
            if field.type.struct:
                values[field.name] = smallest(field.type.struct, version)
            elif field.type.element:
                inner = field.type.element.struct
                values[field.name] = [smallest(inner, version)] if inner else []
    return cls(**values)


def test_every_version_goes_out_and_comes_back_to_its_last_byte() -> None:
    for cls, version in EVERY_VERSION:
        value = smallest(cls, version)
        encoded = value.encode(version)
        assert cls.decode_from(encoded, version) == (value, len(encoded)), (cls, version)


def test_every_request_has_a_response_of_the_same_versions() -> None:
    for cls in REQUESTS:
        response = getattr(inspect.getmodule(cls), cls.__name__.removesuffix("Request") + "Response")
        assert (response.api, response.versions, response.flexible) == (cls.api, cls.versions, cls.flexible), cls


def test_no_two_requests_share_an_api_key() -> None:
    assert len({cls.api for cls in REQUESTS}) == len(REQUESTS) == 48


def test_tags_of_a_struct_count_up_from_zero() -> None:
    for cls in CLASSES:
        tags = [field.tag for field in schema.fields(cls) if field.tag is not None]
        assert sorted(tags) == list(range(len(tags))), cls


def test_tagged_fields_are_in_flexible_versions_only() -> None:
    for cls in MESSAGES:
        tagged = [field for one in schema.structs(cls) for field in schema.fields(one) if field.tag is not None]
        assert all(field.first >= cls.flexible[0] for field in tagged), cls


def test_every_range_begins_or_ends_inside_its_message() -> None:
    for cls in MESSAGES:
        first, last = cls.versions
        for one in schema.structs(cls):
            for field in schema.fields(one):
                assert field.first <= last, (cls, field)
                assert field.last >= first, (cls, field)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_struct_is_part_of_a_message_above_it(module: ModuleType) -> None:
    classes = declared_in(module)
    for position, cls in enumerate(classes):
        if not issubclass(cls, Message):
            users = [above for above in classes[:position] if cls in schema.structs(above)]
            assert users, cls.__name__


def test_docstrings_open_with_one_sentence() -> None:
    for cls in CLASSES:
        first, _, rest = (cls.__doc__ or "").partition("\n")
        assert first.endswith("."), cls
        assert not rest or issubclass(cls, Message), f"{cls}: a struct says what it is in one sentence"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_names_its_api_keys(module: ModuleType) -> None:
    doc = module.__doc__ or ""
    for cls in declared_in(module):
        if cls in REQUESTS:
            assert isinstance(cls.api, int)
            assert re.search(rf"\b{cls.__name__.removesuffix('Request')} \((key )?{cls.api}\)", doc), cls.__name__
