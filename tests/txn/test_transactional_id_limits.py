"""How many transactional ids a broker keeps, and who may have more made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from kbroker.coordinator import Caller
from kbroker.metadata.features import Features
from kbroker.txn import transactional_id_limits
from protocol.errors import ErrorCode
from tests.txn.theatre import World, config_of

Ask = Callable[[str, str], ErrorCode]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Four ids are many."""
    monkeypatch.setattr(transactional_id_limits, "TRANSACTIONAL_IDS", 4)
    return World(config_of(), Features())


@pytest.fixture
def ask(world: World) -> Ask:
    calls = count()

    def ask(name: str, host: str) -> ErrorCode:
        caller = Caller(next(calls), 4, client_host=host)
        world.run(world.transactions.init(name, None, 60_000, caller, world.now_ms))
        return ErrorCode(world.replies[caller.call].error_code)

    return ask


def test_whoever_had_many_made_gets_no_more_and_others_do(ask: Ask) -> None:
    many = [ask(f"id-{number}", "many") for number in range(5)]
    others = [ask(f"other-{number}", f"host-{number}") for number in range(3)]
    assert (many, others) == ([ErrorCode.NONE] * 4 + [ErrorCode.POLICY_VIOLATION], [ErrorCode.NONE] * 3)


def test_an_id_that_is_there_is_not_refused(ask: Ask) -> None:
    for number in range(4):
        ask(f"id-{number}", "many")
    assert [ask("id-0", "many"), ask("id-0", "other")] == [ErrorCode.NONE] * 2


def test_ids_read_from_the_log_are_nobodys_and_leave_others_their_part(world: World, ask: Ask) -> None:
    for number in range(4):
        ask(f"id-{number}", "many")
    world.start()
    answers = [ask(f"new-{number}", "many") for number in range(5)]
    assert answers == [ErrorCode.NONE] * 4 + [ErrorCode.POLICY_VIOLATION]


def test_what_is_forgotten_makes_room(world: World, ask: Ask) -> None:
    for number in range(4):
        ask(f"id-{number}", "many")
    world.now_ms += 1
    operation = world.shard.operation(world.now_ms)
    world.shard.remove_expired_ids(operation, unused_for_ms=1)
    world.run(operation.effects)
    assert (ask("new", "many"), dict(world.shard.creators.by_host)) == (ErrorCode.NONE, {"many": 1})
