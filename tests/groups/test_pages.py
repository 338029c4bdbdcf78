"""The diagrams in docs/groups.md show every legal move, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from kbroker.groups import classic_group, consumer_group
from kbroker.groups.streams import group, reconciliation
from kbroker.share import in_flight

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text()
OF_MEMBERS = {
    state: after
    for state, after in reconciliation.MAY_FOLLOW.items()
    if state is not reconciliation.MemberState.UNKNOWN
}


def value(state: Enum) -> str:
    """The word on the wire."""
    return str(state.value)


def name(state: Enum) -> str:
    """The name in the code, as one word."""
    return "".join(word.capitalize() for word in state.name.split("_"))


@pytest.mark.parametrize(
    ("heading", "table", "word"),
    [
        ("Classic groups", classic_group.MAY_FOLLOW, value),
        ("Consumer groups", consumer_group.MAY_FOLLOW, value),
        ("Streams groups", group.MAY_FOLLOW, value),
        ("Members of streams groups", OF_MEMBERS, name),
        ("Records of share groups", in_flight.MAY_FOLLOW, name),
    ],
)
def test_a_diagram_is_its_table(heading: str, table: Mapping[Any, Iterable[Any]], word: Callable[[Any], str]) -> None:
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    drawn = {tuple(found) for found in re.findall(r"^ *(\w+) --> (\w+)$", section, re.MULTILINE)}
    assert drawn == {(word(state), word(after)) for state, afters in table.items() for after in afters}
