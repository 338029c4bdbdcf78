"""Apache's own classes agree with every message, in every version that they have."""

from __future__ import annotations

import pytest

from protocol.message import Message
from tests.judges.java import RELEASES, require
from tests.judges.pairs import all_pairs
from tests.judges.verdicts import apache_objects, for_examples

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars
_PAIRS = [pytest.param(cls, version, id=f"{cls.__name__}-{version}") for cls, version in all_pairs()]


@pytest.mark.parametrize(("cls", "version"), _PAIRS)
def test_apache_agrees(cls: type[Message], version: int) -> None:
    judges = [judge for judge in map(require, RELEASES) if version in judge.versions(cls.__name__)]
    assert judges, "no release of Apache's has this version"

    def ask(value: Message) -> None:
        assert [objection for judge in judges for objection in apache_objects(judge, value, version)] == []

    for_examples(cls, version, 8, True, ask)
