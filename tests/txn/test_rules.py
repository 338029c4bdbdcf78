"""What plays do not tell: legal moves, record bytes, and that no sequence of requests breaks what is promised."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.txn import Producer, records, rules
from kbroker.txn.records import TransactionRecord
from kbroker.txn.state import (
    AT_REST,
    EMPTY,
    LAST_EPOCH,
    MAY_FOLLOW,
    ONGOING,
    PREPARED,
    STATUS_OF,
    State,
    Transaction,
)
from protocol.errors import KafkaError
from protocol.message import DecodeError
from protocol.messages.stored import TransactionLogValue, encode_versioned

HELD = Transaction("pay", 7, 3, 60_000, ONGOING, frozenset({("t", 1), ("t", 0), ("a", 2)}), 1_000, 2_000)


def test_diagram_in_the_docs_shows_every_legal_move_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text()
    drawn = {tuple(line.split(" --> ")) for line in map(str.strip, text.splitlines()) if " --> " in line}
    assert drawn == {(state.value, after.value) for state, afters in MAY_FOLLOW.items() for after in afters}


def test_states_have_the_numbers_and_words_of_kafka() -> None:
    assert {state.value: number for state, number in STATUS_OF.items()} == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
        "PrepareEpochFence": 7,
    }


def test_a_transaction_that_is_fenced_is_aborted_for_a_client_of_the_first_protocol() -> None:
    fenced = rules.fence(HELD._replace(client_version=2), 3_000)
    assert (fenced.state, fenced.producer_epoch, fenced.client_version) == (State.PREPARE_ABORT, 4, 0)


def test_transaction_is_written_as_kafka_writes_it() -> None:
    key, value = records.encode(TransactionRecord("pay", HELD))
    assert key == b"\0\0\0\3pay"
    assert value == (
        b"\0\0" + (7).to_bytes(8, "big") + b"\0\3" + (60_000).to_bytes(4, "big") + b"\1"
        b"\0\0\0\2" b"\0\1a" b"\0\0\0\1" b"\0\0\0\2" b"\0\1t" b"\0\0\0\2" b"\0\0\0\0" b"\0\0\0\1"
        + (2_000).to_bytes(8, "big") + (1_000).to_bytes(8, "big")
    )  # fmt: skip


def test_id_without_a_transaction_is_written_without_partitions() -> None:
    held = HELD._replace(state=EMPTY, partitions=frozenset(), started_ms=-1)
    _, value = records.encode(TransactionRecord("pay", held))
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("transaction", [None, HELD, HELD._replace(state=EMPTY, partitions=frozenset())])
def test_record_is_read_as_it_was_written(transaction: Transaction | None) -> None:
    record = TransactionRecord("pay", transaction)
    assert records.decode(*records.encode(record)) == record


def test_key_of_a_newer_version_is_passed_by() -> None:
    assert records.decode(b"\0\1rest", None) is None


def test_state_that_nobody_knows_is_a_decode_error() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1,
        transaction_status=9,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=0,
        transaction_start_timestamp_ms=0,
    )
    with pytest.raises(DecodeError):
        records.decode(b"\0\0\0\1x", encode_versioned(value, 0))


@given(st.binary())
def test_any_value_is_read_or_refused(value: bytes) -> None:
    with suppress(DecodeError):
        records.decode(b"\0\0\0\1x", value)


def test_transaction_is_timed_out_after_its_time_and_not_before() -> None:
    assert [rules.is_timed_out(HELD, 61_000 + late_ms) for late_ms in (0, 1)] == [False, True]


def test_id_is_old_only_at_rest() -> None:
    old = [state for state in State if rules.is_old(HELD._replace(state=state), 2_100, 100)]
    assert set(old) == AT_REST
    assert not rules.is_old(HELD._replace(state=EMPTY), 2_099, 100)


VERBS = ["init", "again", "add", "commit", "abort", "commit 5", "abort 5", "marked", "overdue", "overdue 2"]
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(REQUESTS, st.sampled_from([0, LAST_EPOCH - 2]))
@settings(max_examples=200)
def test_whatever_is_asked_epochs_rise_and_only_the_last_holder_gets_in(
    requests: list[tuple[str, int]], first_epoch: int
) -> None:
    """Three producers share an id; who holds it is who was answered last, and moves are legal (`become` asserts)."""
    ids = iter(range(100))
    holders: dict[int, Producer] = {}
    known: Transaction | None = None
    seen: list[tuple[int, int]] = []
    for now_ms, (verb, who) in enumerate(requests):
        before, asker = known, holders.get(who, Producer(99, 0))
        try:
            if verb in ("init", "again"):
                known = rules.init("pay", known, asker if verb == "again" else None, 10, now_ms, lambda: next(ids))
                if known.state is EMPTY:
                    if before is None:
                        known = known._replace(producer_epoch=first_epoch)
                    holders[who] = Producer(known.producer_id, known.producer_epoch)
            elif verb == "add":
                known = rules.add_partitions(known, asker, frozenset({("t", who)}), now_ms) or known
            elif verb in ("commit", "abort"):
                known = rules.end(known, asker, commit=verb == "commit", now_ms=now_ms) or known
            elif verb in ("commit 5", "abort 5"):
                commit = verb == "commit 5"
                ended = rules.end_and_raise(known, asker, commit=commit, now_ms=now_ms, new_id=lambda: next(ids))
                known = ended or known
                assert known is not None
                holders[who] = Producer(*known.goes_on_as)
            elif verb == "marked" and known is not None and known.state in PREPARED:
                known = rules.complete(known, now_ms)
            elif verb == "overdue" and known is not None and known.state is ONGOING:
                known = rules.fence(known, now_ms)
            elif verb == "overdue 2" and known is not None and known.state is ONGOING:
                known = rules.fence_and_raise(known, now_ms, lambda: next(ids))
        except KafkaError:
            continue
        if known is None:
            continue
        if verb in ("add", "commit", "abort"):
            assert asker == (known.producer_id, known.producer_epoch)
        assert known.producer_epoch <= LAST_EPOCH + 1
        assert (known.state in AT_REST) <= (not known.partitions)
        seen.append((known.producer_id, known.producer_epoch))
    assert seen == sorted(seen)
