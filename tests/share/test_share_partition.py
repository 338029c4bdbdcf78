"""What becomes of the records of a share-partition: acquired, acknowledged, given back, too often, too late."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kbroker.share.in_flight import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE
from kbroker.share.share_partition import (
    ACCEPT,
    DELIVERY_COUNT_EXCEEDED,
    GAP,
    NEVER,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    Change,
    DeadLetter,
    Limits,
    LogBatch,
    SharePartition,
    StateBatch,
)
from protocol.errors import ErrorCode, KafkaError

LIMITS = Limits(record_locks=100, deliveries=5, lock_duration_ms=1_000)


def new(start: int = 0, stored: Sequence[StateBatch] = (), limits: Limits = LIMITS) -> SharePartition:
    return SharePartition(start, stored, limits)


def acquire(
    of: SharePartition,
    *batches: tuple[int, int],
    member: str = "m",
    most: int = 1_000,
    size: int = 1_000,
    now_ms: int = 0,
    exactly: bool = False,
    aborted: Sequence[tuple[int, int]] = (),
) -> list[Acquired]:
    return of.acquire(
        member,
        [LogBatch(*each) for each in batches],
        of.next_fetch_offset,
        most=most,
        batch_size=size,
        exactly=exactly,
        now_ms=now_ms,
        aborted=[LogBatch(*each) for each in aborted],
    )


def say(of: SharePartition, first: int, last: int, *types: int, member: str = "m", now_ms: int = 0) -> Change:
    return of.acknowledge(member, [Acknowledgement(first, last, types)], now_ms)


def done(of: SharePartition, first: int, last: int, *types: int, member: str = "m", now_ms: int = 0) -> Change:
    change = say(of, first, last, *types, member=member, now_ms=now_ms)
    of.written(change, now_ms, is_written=True)
    return change


def refused(of: SharePartition, *batches: Acknowledgement, member: str = "m") -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        of.acknowledge(member, batches, 0)
    return raised.value.code


def seen(of: SharePartition) -> list[tuple[int, int, str, int]]:
    return [(each.first, each.last, each.state.name, each.count) for each in of.stretches]


# --- acquiring


def test_records_are_acquired_once() -> None:
    of = new()
    assert acquire(of, (0, 9)) == [Acquired(0, 9, 1)]
    assert of.next_fetch_offset == 10
    assert of.acquire("n", [LogBatch(0, 9)], 0, most=5, batch_size=5, exactly=False, now_ms=0) == []


def test_whole_batches_of_the_log_are_acquired() -> None:
    of = new()
    assert acquire(of, (0, 9), (10, 19), (20, 29), most=12) == [Acquired(0, 19, 1)]


def test_a_record_limit_is_kept_to_the_record() -> None:
    of = new()
    assert acquire(of, (0, 9), (10, 19), most=12, exactly=True) == [Acquired(0, 11, 1)]
    assert acquire(of, (10, 19), most=3, exactly=True) == [Acquired(12, 14, 1)]


def test_what_is_acquired_comes_in_portions_that_begin_with_batches_of_the_log() -> None:
    of = new()
    assert acquire(of, (0, 4), (5, 9), (10, 14), size=8) == [Acquired(0, 9, 1), Acquired(10, 14, 1)]


def test_a_portion_may_be_as_large_as_the_batch_size() -> None:
    of = new()
    assert acquire(of, (0, 4), (5, 9), (10, 14), size=10) == [Acquired(0, 9, 1), Acquired(10, 14, 1)]


def test_no_more_than_the_record_locks_are_in_flight() -> None:
    of = new(limits=LIMITS._replace(record_locks=10))
    assert acquire(of, (0, 3), (4, 7), (8, 11), (12, 15)) == [Acquired(0, 11, 1)]
    assert not of.may_acquire
    done(of, 4, 7, RELEASE)
    assert of.may_acquire
    assert acquire(of, (4, 7), (8, 11), (12, 15)) == [Acquired(4, 7, 2)]


def test_records_given_back_are_delivered_again_and_counted() -> None:
    of = new()
    acquire(of, (0, 9))
    done(of, 3, 5, RELEASE)
    assert of.next_fetch_offset == 3
    assert acquire(of, (0, 9), (10, 12)) == [Acquired(3, 5, 2), Acquired(10, 12, 1)]


def test_offsets_that_the_log_has_no_more_are_passed() -> None:
    of = new()
    acquire(of, (0, 9))
    done(of, 0, 9, RELEASE)
    assert acquire(of, (5, 9), (15, 19)) == [Acquired(5, 9, 2), Acquired(10, 19, 1)]
    assert of.start_offset == 5


def test_a_gap_of_the_log_behind_all_in_flight_is_passed() -> None:
    of = new()
    acquire(of, (0, 4))
    assert acquire(of, (8, 9)) == [Acquired(8, 9, 1)]
    done(of, 0, 4, ACCEPT)
    assert of.start_offset == 8


def test_an_empty_partition_begins_where_the_log_does() -> None:
    of = new()
    assert acquire(of, (100, 109)) == [Acquired(100, 109, 1)]
    assert of.start_offset == 100


def test_aborted_batches_are_for_nobody() -> None:
    of = new()
    assert acquire(of, (0, 4), (5, 9), (10, 14), aborted=[(5, 9)]) == [Acquired(0, 4, 1), Acquired(10, 14, 1)]
    done(of, 0, 4, ACCEPT)
    assert of.start_offset == 10


def test_where_all_is_aborted_the_start_moves_on() -> None:
    of = new()
    assert acquire(of, (0, 4), (5, 9), aborted=[(0, 4), (5, 9)]) == []
    assert (of.start_offset, of.next_fetch_offset) == (10, 10)


# --- acknowledging


def test_the_start_moves_once_what_is_accepted_is_written() -> None:
    of = new()
    acquire(of, (0, 9))
    change = say(of, 0, 4, ACCEPT)
    assert change.batches == [StateBatch(0, 4, ACKNOWLEDGED, 1)]
    assert of.start_offset == 0
    of.written(change, 0, is_written=True)
    assert of.start_offset == 5


def test_nothing_has_changed_if_a_change_cannot_be_written() -> None:
    of = new()
    acquire(of, (0, 9))
    change = say(of, 0, 4, ACCEPT)
    of.written(change, 0, is_written=False)
    assert {(state, count) for *_, state, count in seen(of)} == {("ACQUIRED", 1)}
    done(of, 0, 9, ACCEPT)
    assert of.start_offset == 10


def test_each_offset_may_have_its_own_fate() -> None:
    of = new()
    acquire(of, (0, 4))
    change = done(of, 0, 4, ACCEPT, RELEASE, RELEASE, REJECT, GAP)
    assert change.batches == [
        StateBatch(0, 0, ACKNOWLEDGED, 1),
        StateBatch(1, 2, AVAILABLE, 1),
        StateBatch(3, 4, ARCHIVED, 1),
    ]
    assert acquire(of, (0, 4)) == [Acquired(1, 2, 2)]
    assert of.delivery_complete_count == 2


def test_an_acknowledgement_counts_as_a_whole_or_not_at_all() -> None:
    of = new()
    acquire(of, (0, 4), member="m")
    acquire(of, (5, 9), member="n")
    code = refused(of, Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(5, 9, [ACCEPT]))
    assert code is ErrorCode.INVALID_RECORD_STATE
    done(of, 0, 4, ACCEPT)
    assert of.start_offset == 5


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (Acknowledgement(20, 24, [ACCEPT]), ErrorCode.INVALID_REQUEST),  # never acquired, behind what was
        (Acknowledgement(5, 14, [ACCEPT]), ErrorCode.INVALID_REQUEST),  # reaches behind it
        (Acknowledgement(0, 9, [7]), ErrorCode.INVALID_REQUEST),
        (Acknowledgement(5, 9, [ACCEPT]), ErrorCode.INVALID_RECORD_STATE),  # given back meanwhile
    ],
)
def test_what_was_not_acquired_cannot_be_acknowledged(batch: Acknowledgement, code: ErrorCode) -> None:
    of = new()
    acquire(of, (0, 9))
    done(of, 5, 9, RELEASE)
    assert refused(of, batch) is code


def test_where_nothing_was_acquired_nothing_can_be_acknowledged() -> None:
    assert refused(new(), Acknowledgement(0, 0, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE


def test_the_records_of_another_member_cannot_be_acknowledged() -> None:
    of = new()
    acquire(of, (0, 9), member="m")
    assert refused(of, Acknowledgement(0, 9, [ACCEPT]), member="n") is ErrorCode.INVALID_RECORD_STATE


def test_an_offset_is_not_acknowledged_twice_in_one_request() -> None:
    of = new()
    acquire(of, (0, 9))
    batches = Acknowledgement(0, 5, [ACCEPT]), Acknowledgement(5, 9, [ACCEPT])
    assert refused(of, *batches) is ErrorCode.INVALID_RECORD_STATE


def test_what_was_over_before_is_acknowledged_again_without_effect() -> None:
    of = new()
    acquire(of, (0, 9))
    done(of, 0, 9, ACCEPT)
    assert say(of, 0, 9, REJECT).batches == []


def test_a_member_that_is_gone_gives_its_records_back() -> None:
    of = new()
    acquire(of, (0, 4), member="m")
    acquire(of, (5, 9), member="n")
    of.written(of.release("m"), 0, is_written=True)
    assert [(first, state) for first, _, state, _ in seen(of)] == [(0, "AVAILABLE"), (5, "ACQUIRED")]


# --- locks


def test_a_lock_expires() -> None:
    of = new()
    acquire(of, (0, 9), now_ms=10)
    assert of.next_deadline_ms == 1_010
    assert of.expire(1_009).batches == []
    assert of.expire(1_010).batches == [StateBatch(0, 9, AVAILABLE, 1)]
    assert of.next_deadline_ms == NEVER
    assert acquire(of, (0, 9)) == [Acquired(0, 9, 2)]


def test_a_lock_that_is_renewed_begins_anew() -> None:
    of = new()
    acquire(of, (0, 9), now_ms=0)
    assert say(of, 0, 9, RENEW, now_ms=600).batches == []
    assert of.expire(1_500).batches == []
    assert of.expire(1_600).batches == [StateBatch(0, 9, AVAILABLE, 1)]


def test_locks_are_not_renewed_where_the_group_forbids_it() -> None:
    of = new(limits=LIMITS._replace(may_renew=False))
    acquire(of, (0, 9))
    assert refused(of, Acknowledgement(0, 9, [RENEW])) is ErrorCode.INVALID_RECORD_STATE


def test_a_lock_does_not_expire_while_its_acknowledgement_is_written() -> None:
    of = new()
    acquire(of, (0, 9))
    change = say(of, 0, 9, ACCEPT)
    assert of.expire(5_000).batches == []
    of.written(change, 5_000, is_written=True)
    assert of.start_offset == 10


def test_a_lock_whose_time_was_up_is_gone_when_its_acknowledgement_could_not_be_written() -> None:
    of = new()
    acquire(of, (0, 9))
    change = say(of, 0, 9, ACCEPT)
    assert of.written(change, 5_000, is_written=False)
    assert acquire(of, (0, 9), member="n") == [Acquired(0, 9, 2)]


# --- deliveries


def test_a_lock_that_has_expired_is_written_after_another_member_has_accepted_the_record() -> None:
    of = new()
    acquire(of, (0, 0))
    expired = of.expire(LIMITS.lock_duration_ms)
    acquire(of, (0, 0), member="n")
    accepted = say(of, 0, 0, ACCEPT, member="n")
    of.written(expired, 0, is_written=True)
    of.written(accepted, 0, is_written=True)
    assert of.start_offset == 1


def deliver_and_fail(of: SharePartition, *batches: tuple[int, int]) -> list[Acquired]:
    found = acquire(of, *batches)
    for each in found:
        done(of, each.first, each.last, RELEASE)
    return found


def test_a_record_is_delivered_so_often_and_no_more() -> None:
    of = new()
    counts = [each.deliveries for _ in range(10) for each in deliver_and_fail(of, (0, 0))]
    assert counts == [1, 2, 3, 4, 5]
    assert of.start_offset == 1


def test_a_record_that_may_be_bad_is_delivered_with_few_others_and_then_alone() -> None:
    of = new()
    sizes = [[each.last - each.first + 1 for each in deliver_and_fail(of, (0, 15))] for _ in range(6)]
    assert sizes[:3] == [[16], [16], [16]]
    assert sizes[3:] == [[8], [1], [1]]


def test_a_record_delivered_too_often_goes_into_the_dead_letter_queue() -> None:
    of = new(limits=LIMITS._replace(deliveries=2, has_dead_letter_queue=True))
    acquire(of, (0, 0))
    done(of, 0, 0, RELEASE)
    acquire(of, (0, 0))
    change = done(of, 0, 0, RELEASE)
    assert change.batches == [StateBatch(0, 0, ARCHIVING, 2)]
    assert change.dead == [DeadLetter(0, 0, 2, DELIVERY_COUNT_EXCEEDED)]
    assert of.start_offset == 0
    assert of.archived(change.dead[0]) == [StateBatch(0, 0, ARCHIVED, 2)]
    assert of.start_offset == 1


# --- what is stored


def test_a_new_leader_goes_on_with_what_was_stored() -> None:
    stored = [StateBatch(3, 4, ACKNOWLEDGED, 1), StateBatch(7, 8, AVAILABLE, 2), StateBatch(9, 9, ARCHIVING, 5)]
    of = new(3, stored)
    assert (of.start_offset, of.end_offset, of.next_fetch_offset) == (5, 10, 5)
    assert acquire(of, (0, 12)) == [Acquired(5, 6, 1), Acquired(7, 8, 3), Acquired(10, 12, 1)]
    assert [each.first for each in of.archiving] == [9]


@pytest.mark.parametrize("stored", [[(2, 1)], [(5, 9), (9, 10)], [(-1, 3)]])
def test_what_cannot_have_been_stored_is_refused(stored: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="are stored behind"):
        new(0, [StateBatch(first, last, AVAILABLE, 1) for first, last in stored])


def test_what_the_log_has_lost_is_lost_to_the_group() -> None:
    of = new()
    acquire(of, (0, 9))
    done(of, 0, 2, RELEASE)
    change = say(of, 5, 6, ACCEPT)
    of.log_starts_at(8)
    assert of.start_offset == 8
    of.written(change, 0, is_written=False)
    assert seen(of) == [(8, 9, "ACQUIRED", 1)]


# --- all together


def test_at_random_no_record_is_lost_and_none_is_delivered_after_it_was_accepted() -> None:
    for seed in range(60):
        _walk(random.Random(seed))


def _walk(rng: random.Random) -> None:
    """Members take, say, renew and vanish at random; the log has batches of 1 to 5 records."""
    limits = Limits(rng.choice([20, 60]), rng.choice([2, 3, 5]), 100, rng.random() < 0.5)
    of, now_ms, end = new(0, limits=limits), 0, 200
    log: list[tuple[int, int]] = []
    while not log or log[-1][1] < end - 1:
        first = log[-1][1] + 1 if log else 0
        log.append((first, min(end - 1, first + rng.randrange(5))))
    accepted: set[int] = set()
    deliveries = [0] * end
    open_changes: list[Change] = []
    for _ in range(600):
        now_ms += rng.randrange(30)
        _dead(of, of.expire(now_ms), rng)
        member, what = rng.choice("abc"), rng.random()
        if what < 0.4 and of.may_acquire and of.next_fetch_offset < end:
            batches = [each for each in log if each[1] >= of.next_fetch_offset][: rng.randrange(1, 6)]
            exactly, most = rng.random() < 0.5, rng.randrange(1, 12)
            for each in acquire(of, *batches, member=member, most=most, exactly=exactly, now_ms=now_ms):
                for offset in range(each.first, each.last + 1):
                    assert offset not in accepted
                    deliveries[offset] += 1
                    assert deliveries[offset] == each.deliveries <= limits.deliveries
        elif what < 0.8:
            mine = [each for each in of.stretches if each.member_id == member and each.pending is None]
            if mine:
                stretch = rng.choice(mine)
                first = rng.randint(stretch.first, stretch.last)
                last = rng.randint(first, stretch.last)
                types = [rng.choice([ACCEPT, ACCEPT, RELEASE, REJECT, RENEW]) for _ in range(first, last + 1)]
                open_changes.append(say(of, first, last, *types, member=member, now_ms=now_ms))
        elif what < 0.85:
            open_changes.append(of.release(member))
        elif open_changes:
            change = open_changes.pop(rng.randrange(len(open_changes)))
            is_written = rng.random() < 0.7
            if is_written:
                accepted |= {
                    offset
                    for batch in change.batches
                    if batch.state == ACKNOWLEDGED
                    for offset in range(batch.first, batch.last + 1)
                }
            of.written(change, now_ms, is_written=is_written)
            if is_written:
                _dead(of, change, rng)
        _check(of, accepted)
    assert of.start_offset > 0


def _dead(of: SharePartition, change: Change, rng: random.Random) -> None:
    for letter in change.dead:
        of.archived(letter)


def _check(of: SharePartition, accepted: set[int]) -> None:
    offset = of.start_offset
    for each in of.stretches:
        assert each.first == offset, "a record is lost"
        assert not (each.state in (AVAILABLE, ARCHIVED, ARCHIVING) and each.pending)
        assert not ({*range(each.first, each.last + 1)} & accepted and each.state in (AVAILABLE, ACQUIRED))
        offset = each.last + 1
    assert offset == of.end_offset
