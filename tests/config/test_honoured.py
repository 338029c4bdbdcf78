"""A setting that says nothing else is acted on: something reads it, or another setting takes its value."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kbroker.config.broker import BrokerConfig
from kbroker.config.group import GroupConfig
from kbroker.config.settings import Setting
from kbroker.config.topic import TopicConfig

KBROKER = Path(__file__).parents[2] / "kbroker"
SETTINGS = [*BrokerConfig.KEYS.values(), *TopicConfig.KEYS.values()]
SOURCES = {name for each in SETTINGS for name in (each.broker, *(key for key, _ in each.fallbacks))}


@cache
def words() -> set[str]:
    """What is read, but for where settings are declared; texts of the code are read when a test asks, not before."""
    return {
        word
        for path in KBROKER.rglob("*.py")
        if path.parts[-2:] not in (("config", "broker.py"), ("config", "topic.py"), ("config", "group.py"))
        and "sim" not in path.parts
        for word in re.findall(r'\w+|"[a-z.]+"', path.read_text())
    }


@cache
def text() -> str:
    """All of it, but for where settings of groups are declared."""
    return "".join(path.read_text() for path in KBROKER.rglob("*.py") if path.name != "group.py")


@pytest.mark.parametrize(
    "each", [each for each in GroupConfig.KEYS.values() if not each.unused], ids=lambda each: each.name
)
def test_a_group_s_setting_is_read_by_its_name(each: Setting) -> None:
    assert f'"{each.name}"' in text()


@pytest.mark.parametrize("each", [each for each in SETTINGS if each.unused is None], ids=lambda each: each.name)
def test_a_setting_is_read_or_says_why_not(each: Setting) -> None:
    takes_one_value = any(
        check.allowed in ("here only false", "-1 to -1", "one of PEM") or check.allowed.startswith("empty: ")
        for check in each.checks
    )
    is_read = each.attribute in words() or f'"{each.name}"' in words()
    assert is_read or each.name in SOURCES or takes_one_value
