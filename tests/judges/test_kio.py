"""kio agrees with every message, in every version that it has."""

from __future__ import annotations

import pytest

from protocol.message import Message
from tests.judges import kio
from tests.judges.pairs import all_pairs
from tests.judges.verdicts import for_examples, kio_objects

_PAIRS = [
    pytest.param(cls, version, id=f"{cls.__name__}-{version}")
    for cls, version in all_pairs()
    if kio.can_judge(cls.__name__, version)
]


@pytest.mark.parametrize(("cls", "version"), list({pair.values[0]: pair for pair in _PAIRS}.values()))
def test_kio_agrees(cls: type[Message], version: int) -> None:
    """Of each message the newest version; the longer test has them all."""
    _judge(cls, version, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "version"), _PAIRS)
def test_kio_agrees_on_many_values(cls: type[Message], version: int) -> None:
    _judge(cls, version, 6)


def _judge(cls: type[Message], version: int, count: int) -> None:
    def ask(value: Message) -> None:
        assert kio_objects(value, version) == []

    for_examples(cls, version, count, False, ask)
