"""Worlds of transactions: that seeds pass, that a crash at any write leaves all or nothing, that breaches are seen."""

from __future__ import annotations

from itertools import count

import pytest

from kbroker.broker.transaction_markers import TransactionMarkers
from kbroker.log.log import Log
from kbroker.log.producer_state import Producers
from kbroker.sim.exactly_once import ExactlyOnce
from kbroker.sim.world import Broken
from kbroker.txn import rules
from kbroker.txn.shard import TransactionShard
from tests.sim.campaign import campaign


@pytest.mark.parametrize(
    ("seed", "machines", "replicated"),
    [
        (307, 1, False),
        pytest.param(2, 3, False, marks=pytest.mark.slow),
        pytest.param(12, 3, True, marks=pytest.mark.slow),
    ],
)
def test_a_few_worlds_hold(seed: int, machines: int, *, replicated: bool) -> None:
    outcome = ExactlyOnce(seed, machines, replicated=replicated).run(60_000)
    assert min(outcome.committed, outcome.aborted, outcome.counted, outcome.boots) > 5


def test_a_seed_repeats_itself() -> None:
    assert ExactlyOnce(204, 3, replicated=False).run(9_000) == ExactlyOnce(204, 3, replicated=False).run(9_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [13_002_003, 13_402_004, 13_806_009, 21_007_005], ids=["coordinator", "leader", "both", "group"]
)
def test_who_was_replaced_unawares_ends_producers_and_harms_no_record(seed: int) -> None:
    assert ExactlyOnce(seed, 3).run(112_000).committed > 100


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_worlds_hold() -> None:
    assert campaign(count(1), seconds=5, kind="transactions").failed is None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("machines", "power_loss"), [(1, True), (3, False)])
def test_a_crash_at_any_write_leaves_all_or_nothing(machines: int, *, power_loss: bool) -> None:
    crashes = 0
    for calls in range(1, 7):
        lived = ExactlyOnce(calls, machines, ["power"] if power_loss else [])
        lived.faults.kinds.clear()  # of faults there is this one alone
        for machine in lived.machines:
            lived.world.after(8_000, lambda machine=machine, n=calls: machine.kill_in_calls(n, power_loss=power_loss))
        crashes += lived.run(12_000).boots - machines
    assert crashes >= 6  # one in each world, at least: of several machines some write less often before it is over


def live_until_broken() -> None:
    """Worlds one after the other, until one has in it what shows the fault."""
    for seed in range(1, 12):
        ExactlyOnce(seed, 3).run(60_000)


def test_markers_that_other_brokers_never_get_leave_transactions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionMarkers, "_ask", lambda *_: True)
    with pytest.raises(Broken, match=r"stable to|does not come to its end|commits nothing|is not counted"):
        live_until_broken()


def test_a_last_stable_offset_that_forgets_open_transactions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "last_stable_offset", property(lambda log: log.high_watermark))
    with pytest.raises(Broken, match=r"stable to|no client asked for"):
        live_until_broken()


def test_an_id_that_is_taken_over_without_a_new_epoch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_raised", lambda known, asker: (known.producer_epoch, -1))
    with pytest.raises(Broken, match="was handed out twice"):
        live_until_broken()


def test_an_abort_that_is_not_indexed_is_a_dirty_read(monkeypatch: pytest.MonkeyPatch) -> None:
    really = Producers.end_transaction

    def as_commit(self: Producers, header: object, base_offset: int, marker: object) -> object:
        completed = really(self, header, base_offset, marker)  # type: ignore[arg-type]
        return None if completed is None else completed._replace(is_aborted=False)

    monkeypatch.setattr(Producers, "end_transaction", as_commit)
    with pytest.raises(Broken, match=r"no client asked for|is ABORTED, and"):
        live_until_broken()


def test_a_transaction_that_is_not_aborted_in_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "_abort_timed_out_transactions", lambda self, operation: None)
    with pytest.raises(Broken, match="is open since"):
        live_until_broken()
