"""Which messages there are to judge: every Message class in protocol/messages, found by walking the package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

import protocol.messages
from protocol.message import Message


@cache
def all_messages() -> dict[str, type[Message]]:
    """Every message by its name, in the order of API key, request before response; records last, by name."""
    found: list[type[Message]] = []
    for module in pkgutil.iter_modules(protocol.messages.__path__):
        names = vars(importlib.import_module(f"protocol.messages.{module.name}"))
        found += [
            cls for cls in names.values() if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
        ]
    found.sort(key=lambda cls: (cls.api is None, cls.api or 0, cls.__name__))
    return {cls.__name__: cls for cls in found}


def versions(cls: type[Message]) -> range:
    """The versions that we declare of a message."""
    first, last = cls.versions
    return range(first, last + 1)


def all_pairs() -> Iterator[tuple[type[Message], int]]:
    """Every message in every version."""
    for cls in all_messages().values():
        for version in versions(cls):
            yield cls, version
