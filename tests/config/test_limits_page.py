"""docs/limits.md says of every limit what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.config import BrokerLayers, limits, resolve_broker
from protocol.records.compression import LIMIT_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\| `([\w.]+)` \| (-?[\d,]+) \| (\S.*) \|$", PAGE, re.M)
NAMES = [name for name in vars(limits) if name.isupper()]


def shipped(name: str) -> object:
    if name == "LIMIT_BYTES":
        return LIMIT_BYTES
    return getattr(limits, name) if name.isupper() else getattr(resolve_broker(BrokerLayers()), name.replace(".", "_"))


def test_every_row_is_understood() -> None:
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.M)) > 30


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value, _ in ROWS])
def test_a_limit_is_as_the_page_says(name: str, value: str) -> None:
    assert shipped(name) == int(value.replace(",", ""))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_every_limit_once(name: str) -> None:
    assert f"`{name}`" in PAGE
    assert [row for row, _, _ in ROWS].count(name) <= 1


def test_the_page_names_nothing_that_is_not_there() -> None:
    known = {*NAMES, "LIMIT_BYTES"}
    assert {name for name in re.findall(r"`([A-Z_]+)`", PAGE) if "_" in name} <= known
