"""Files in which Apache's tools are told of partitions: JSON, one list of them, each with what is to become of it.

Called by `reassign`, `delete-records` and `elect-leaders`. What a file has wrong is said in one line, with its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Place = tuple[str, int]
"""A topic's name and a partition's number."""
Value = TypeVar("Value")


def partitions_in(path: str, value_of: Callable[[Mapping[str, Any]], Value], example: str) -> dict[Place, Value]:
    """What a file says of each partition. value_of: of one's entry; it may raise KeyError, TypeError.

    Raises: ClickException for what is no such file, and a partition that is there twice.
    """
    found: dict[Place, Value] = {}
    try:
        for each in json_in(path)["partitions"]:
            place = (exactly(str, each["topic"]), exactly(int, each["partition"]))
            if place in found:
                raise click.ClickException(f"{path}: {name_of(place)}: a partition, and each of its replicas, once")
            found[place] = value_of(each)
    except (KeyError, TypeError):
        raise click.ClickException(f"{path}: allowed: {example}") from None
    return found


def json_in(path: str) -> Any:
    """A file's document. Raises: OSError, ClickException."""
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except RecursionError:
            raise click.ClickException(f"{path}: not JSON of this kind: it is nested too deeply") from None
        except ValueError as error:
            raise click.ClickException(f"{path}: not JSON: {error}") from None


def exactly(kind: type[Value], value: object) -> Value:
    """The value, if it is just that: true and 0.9 would pass for the broker 1, or 0. Raises: TypeError."""
    if type(value) is not kind:
        raise TypeError
    return value


def name_of(place: Place) -> str:
    """As Kafka writes a partition."""
    return f"{place[0]}-{place[1]}"
