"""Whatever a client calls something, it gets an answer: what is quoted of that in a text for people is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from kbroker.api.routes import ROUTES, load
from protocol.message import Struct
from protocol.schema import FieldType, fields_at
from tests.world import World

LONGEST = "x" * 32_767
WIDEST = "\N{MUSICAL SYMBOL G CLEF}" * (32_767 // 4)  # the same in bytes, and in no name that is taken
load()
SERVED = [(api, version) for api, route in sorted(ROUTES.items()) for version in (route.first, route.last)]


def texts_in(kind: type[Struct], version: int) -> Iterator[str]:
    """Where a version of a struct has a text, as a path of fields."""
    for field in fields_at(kind, version):
        leaf = field.type.element or field.type
        if leaf.struct is not None:
            yield from (f"{field.name}.{path}" for path in texts_in(leaf.struct, version))
        elif leaf.kind == "string":
            yield field.name


def filled(kind: type[Struct], version: int, path: str, text: str, number: int) -> Any:
    """A struct with one element in every array, this text at the path, "t" where there are others, and this number."""

    def value(of: FieldType, path: str, name: str) -> Any:
        if of.element is not None:
            return [value(of.element, path, name)]
        first, _, rest = path.partition(".")
        if of.struct is not None:
            return filled(of.struct, version, rest if first == name else "", text, number)
        if of.kind == "string":
            return text if path == name else "t"
        return {"bool": True, "float64": 1.0, "uuid": bytes(16), "bytes": b"", "records": b""}.get(of.kind, number)

    return kind(**{field.name: value(field.type, path, field.name) for field in fields_at(kind, version)})


@pytest.mark.parametrize(("api", "version"), SERVED, ids=[f"{ROUTES[api].name}-v{version}" for api, version in SERVED])
def test_a_name_of_any_length_is_answered(api: int, version: int) -> None:
    world, request = World(), ROUTES[api].request
    world.create("t")
    for path in texts_in(request, version):
        for text, number in product((LONGEST, WIDEST), (1, 2)):
            client = world.client(LONGEST)
            client.send(filled(request, version, path, text, number), version)
            world.advance(1)
            assert "internal error" not in client.closing, path
