"""A leader and its followers: the high watermark, and who joins and leaves the in-sync set."""

from __future__ import annotations

import pytest

from kbroker.log.producer_state import Origin
from kbroker.replica.facts import InSyncProposed
from kbroker.replica.partition import LeaderState, Partition
from protocol.errors import ErrorCode, KafkaError
from tests.requests import batch
from tests.world import World

ME, ONE, TWO = 1, 2, 3
ALL = (ME, ONE, TWO)
ID = bytes(range(16))
LAG_MS = 30_000


@pytest.fixture
def world() -> World:
    world = World()
    world.replicas.rules.is_alive = lambda broker_id: True
    return world


def lead(world: World, isr: tuple[int, ...] = ALL, epoch: int = 0, replicas: tuple[int, ...] = ALL) -> Partition:
    world.replicas.become("p", 0, ID, LeaderState(1, ME, epoch, isr, epoch, replicas), is_new=epoch == 0)
    world.broker.facts.clear()
    return world.partition("p")


def append(world: World, count: int = 1, acks: int = 1) -> None:
    records = memoryview(bytearray(batch(*[b"v"] * count)))
    world.replicas.append(world.partition("p"), records, acks, Origin.CLIENT, world.clock.wall_ms())


def fetch(world: World, broker_id: int, offset: int) -> None:
    now_ms = world.clock.now_ms()
    world.replicas.follower_fetched(world.partition("p"), broker_id, offset, 0, 7, now_ms)


def high_watermark(world: World) -> int:
    log = world.partition("p").log
    assert log is not None
    return log.high_watermark


def proposals(world: World) -> int:
    return sum(isinstance(fact, InSyncProposed) for fact in world.broker.facts)


def grant(world: World, isr: tuple[int, ...] | None = None, partition_epoch: int = 5) -> None:
    partition = world.partition("p")
    assert partition.proposal is not None
    world.replicas.in_sync_granted(
        partition, partition.proposal, isr or partition.proposal.isr, partition.leader_epoch, partition_epoch
    )


# ---- the high watermark


def test_what_is_on_all_in_sync_is_committed(world: World) -> None:
    lead(world)
    append(world, 3)
    fetch(world, ONE, 2)
    before = high_watermark(world)
    fetch(world, TWO, 3)
    assert (before, high_watermark(world)) == (0, 2)


def test_a_follower_out_of_sync_holds_nothing_up(world: World) -> None:
    lead(world, isr=(ME, ONE))
    append(world, 3)
    fetch(world, ONE, 3)
    assert high_watermark(world) == 3


def test_a_leader_alone_in_sync_commits_at_once(world: World) -> None:
    lead(world, isr=(ME,))
    append(world, 3)
    assert high_watermark(world) == 3


def test_nothing_is_committed_while_too_few_are_in_sync(world: World) -> None:
    partition = lead(world, isr=(ME,))
    partition.min_insync_replicas = 2
    append(world, 3)
    assert high_watermark(world) == 0


def test_acks_of_all_needs_enough_in_sync(world: World) -> None:
    lead(world, isr=(ME,)).min_insync_replicas = 2
    with pytest.raises(KafkaError) as error:
        append(world, acks=-1)
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_what_the_broker_itself_writes_needs_enough_in_sync(world: World) -> None:
    """Markers, and the records of coordinators: those who wait are told at once that it cannot be done."""
    partition = lead(world, isr=(ME,))
    partition.min_insync_replicas = 2
    with pytest.raises(KafkaError) as error:
        world.replicas.append_own(partition, bytearray(batch(b"v")), world.clock.wall_ms())
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_new_leader_commits_nothing_before_it_has_heard_of_all_in_sync(world: World) -> None:
    lead(world)
    append(world, 3)
    fetch(world, ONE, 3)
    assert high_watermark(world) == 0


def test_a_new_epoch_of_the_same_leader_remembers_how_far_its_followers_are(world: World) -> None:
    lead(world)
    append(world, 3)
    fetch(world, ONE, 3)
    fetch(world, TWO, 1)
    lead(world, isr=(ME, ONE), epoch=1)
    assert high_watermark(world) == 3


def test_a_commit_wakes_who_waits_for_it(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    append(world)
    world.replicas.touched.clear()
    fetch(world, ONE, 1)
    assert world.replicas.touched == [partition]


def test_one_that_has_caught_up_and_is_not_in_sync_yet_holds_the_high_watermark_back(world: World) -> None:
    lead(world, isr=(ME,))
    append(world, 3)
    fetch(world, ONE, 3)  # and the controller has not answered
    append(world)
    assert high_watermark(world) == 3


def test_a_dead_one_that_had_caught_up_holds_nothing_back(world: World) -> None:
    lead(world, isr=(ME,))
    world.replicas.rules.is_alive = lambda broker_id: False
    append(world, 3)
    fetch(world, ONE, 3)
    append(world)
    assert high_watermark(world) == 4


def test_a_dead_one_lets_go_of_the_high_watermark_without_another_fetch(world: World) -> None:
    partition = lead(world, isr=(ME,))
    append(world, 3)
    fetch(world, ONE, 3)
    append(world)
    before = high_watermark(world)
    world.replicas.rules.is_alive = lambda broker_id: False
    partition.proposal = None  # refused by the controller: it is dead
    world.replicas.touched.clear()
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert (before, high_watermark(world), world.replicas.touched) == (3, 4, [partition])


def test_one_that_lags_for_too_long_lets_go_of_the_high_watermark_without_another_fetch(world: World) -> None:
    partition = lead(world, isr=(ME, TWO))
    append(world, 3)
    fetch(world, ONE, 3)
    partition.proposal = None
    append(world)
    world.clock.advance(LAG_MS - 1)
    fetch(world, TWO, 4)
    before = high_watermark(world)
    world.clock.advance(2)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert (before, high_watermark(world)) == (3, 4)


def test_nothing_is_committed_that_one_in_sync_may_lack_who_is_no_replica(world: World) -> None:
    lead(world, isr=(ME, ONE, 9))
    append(world, 3)
    fetch(world, ONE, 3)
    fetch(world, TWO, 3)
    assert high_watermark(world) == 0


def test_fewer_that_have_to_be_in_sync_commit_what_is_there(world: World) -> None:
    partition = lead(world, isr=(ME,))
    partition.min_insync_replicas = 2
    append(world, 3)
    before = high_watermark(world)
    world.replicas.touched.clear()
    world.plane.configs.set_topic("p", {"min.insync.replicas": "1"})
    world.replicas.reconfigure("p")
    assert (before, high_watermark(world), world.replicas.touched) == (0, 3, [partition])


def test_one_that_is_no_replica_leaves_the_in_sync_set_and_holds_nothing_up_any_more(world: World) -> None:
    partition = lead(world, isr=(ME, ONE, 9))
    append(world)
    fetch(world, ONE, 1)
    world.replicas.shrink_isrs(world.clock.now_ms())
    before = high_watermark(world)
    grant(world)
    assert (before, partition.isr, high_watermark(world)) == (0, (ME, ONE), 1)


# ---- joining


def test_a_follower_at_the_high_watermark_is_to_be_in_sync(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    append(world, 3)
    fetch(world, ONE, 2)
    fetch(world, TWO, 1)
    early = partition.proposal
    fetch(world, TWO, 2)
    assert early is None
    assert partition.proposal is not None
    assert (partition.proposal.isr, partition.proposal.joining, proposals(world)) == ((ME, ONE, TWO), TWO, 1)


def test_a_follower_that_has_not_reached_the_leaders_epoch_is_not_in_sync(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    append(world, 3)
    fetch(world, ONE, 1)
    lead(world, isr=(ME, ONE), epoch=1)  # begins at 3, the high watermark being 1
    fetch(world, TWO, 2)
    assert partition.proposal is None


def test_a_broker_that_is_not_alive_is_not_to_be_in_sync(world: World) -> None:
    partition = lead(world, isr=(ME,))
    world.replicas.rules.is_alive = lambda broker_id: broker_id != ONE
    fetch(world, ONE, 0)
    assert partition.proposal is None


def test_while_one_is_joining_it_counts_and_nothing_else_is_proposed(world: World) -> None:
    partition = lead(world, isr=(ME,))
    fetch(world, ONE, 0)
    first = partition.proposal
    world.clock.advance(LAG_MS + 1)  # too long ago to count as caught up
    append(world)
    fetch(world, TWO, 1)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert (partition.proposal, high_watermark(world)) == (first, 0)


@pytest.mark.parametrize("partition_epoch", [0, 5])  # 0: it was so already, and nothing had to be written
def test_once_granted_the_set_is_another_one(world: World, partition_epoch: int) -> None:
    partition = lead(world, isr=(ME,))
    fetch(world, ONE, 0)
    grant(world, partition_epoch=partition_epoch)
    assert (partition.isr, partition.partition_epoch, partition.proposal) == ((ME, ONE), partition_epoch, None)


def test_an_answer_to_a_proposal_of_an_older_epoch_says_nothing(world: World) -> None:
    partition = lead(world, isr=(ME,))
    fetch(world, ONE, 0)
    proposal = partition.proposal
    assert proposal is not None
    lead(world, isr=(ME, TWO), epoch=1)
    world.replicas.in_sync_granted(partition, proposal, (ME, ONE), 0, 9)
    assert (partition.isr, partition.partition_epoch) == ((ME, TWO), 1)


def test_a_new_epoch_ends_what_was_proposed_in_the_one_before(world: World) -> None:
    partition = lead(world, isr=(ME,))
    fetch(world, ONE, 0)
    lead(world, isr=(ME,), epoch=1)
    assert partition.proposal is None


def test_a_proposal_that_is_withdrawn_is_made_again_at_the_next_fetch(world: World) -> None:
    partition = lead(world, isr=(ME,))
    fetch(world, ONE, 0)
    assert partition.proposal is not None
    partition.withdraw(partition.proposal)
    fetch(world, ONE, 0)
    assert proposals(world) == 2


# ---- leaving


def test_who_does_not_fetch_for_too_long_is_to_leave(world: World) -> None:
    partition = lead(world, isr=ALL)
    append(world)
    world.clock.advance(LAG_MS)
    fetch(world, ONE, 1)
    world.replicas.shrink_isrs(world.clock.now_ms())
    in_time = partition.proposal
    world.clock.advance(1)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert in_time is None
    assert partition.proposal is not None
    assert (partition.proposal.isr, partition.proposal.joining) == ((ME, ONE), -1)


def test_the_same_epoch_told_again_gives_a_laggard_no_new_time(world: World) -> None:
    partition = lead(world, isr=ALL)
    append(world)
    world.clock.advance(LAG_MS + 1)
    fetch(world, ONE, 1)
    assert partition.log is not None
    partition.lead(LeaderState(1, ME, 0, ALL, 1, ALL), partition.log)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert partition.proposal is not None
    assert partition.proposal.isr == (ME, ONE)


def test_who_has_everything_stays_however_quiet_it_is(world: World) -> None:
    partition = lead(world)
    append(world)
    fetch(world, ONE, 1)
    fetch(world, TWO, 1)
    world.clock.advance(10 * LAG_MS)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert partition.proposal is None


def test_who_always_comes_to_where_the_log_ended_the_last_time_stays(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    for offset in range(10):
        append(world)  # each of its fetches finds one more
        fetch(world, ONE, offset)
        world.clock.advance(LAG_MS // 2)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert partition.proposal is None


def test_who_falls_further_behind_with_each_fetch_is_to_leave(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    for offset in range(10):
        append(world, 2)
        fetch(world, ONE, offset)
        world.clock.advance(LAG_MS // 2)
    world.replicas.shrink_isrs(world.clock.now_ms())
    assert partition.proposal is not None


def test_until_the_controller_has_agreed_the_larger_set_counts(world: World) -> None:
    lead(world, isr=(ME, ONE))
    append(world)
    world.clock.advance(LAG_MS + 1)
    world.replicas.shrink_isrs(world.clock.now_ms())
    before = high_watermark(world)
    world.replicas.touched.clear()
    grant(world)
    assert (before, high_watermark(world), world.replicas.touched) == (0, 1, [world.partition("p")])


def test_the_broker_looks_for_laggards_at_half_the_lag_that_is_allowed(world: World) -> None:
    partition = lead(world, isr=(ME, ONE))
    append(world)
    world.advance(LAG_MS + LAG_MS // 2)
    assert partition.proposal is not None


def test_a_follower_knows_nothing_of_other_followers(world: World) -> None:
    partition = lead(world)
    world.replicas.become("p", 0, ID, LeaderState(1, ONE, 1, ALL, 1, ALL), is_new=False)
    assert partition.followers == {}


# -- news within a leader epoch, as a quorum has them


def amend(world: World, isr: tuple[int, ...], partition_epoch: int, replicas: tuple[int, ...] = ALL) -> ErrorCode:
    state = LeaderState(1, ME, 0, isr, partition_epoch, replicas)
    return world.replicas.amend(world.partition("p"), state)


def test_replicas_that_are_added_within_an_epoch_are_followed_from_their_first_fetch(world: World) -> None:
    partition = lead(world, (ME,), replicas=(ME,))
    append(world)
    assert amend(world, (ME,), 1, (ME, ONE)) is ErrorCode.NONE
    append(world)
    fetch(world, ONE, 1)
    behind = proposals(world)
    fetch(world, ONE, 2)
    assert (high_watermark(world), behind, proposals(world)) == (2, 0, 1)
    assert partition.replicas == (ME, ONE)


def test_the_set_that_the_log_has_counts_and_ends_a_proposal(world: World) -> None:
    partition = lead(world, (ME, ONE))
    append(world)
    fetch(world, ONE, 1)
    fetch(world, TWO, 1)
    assert partition.proposal is not None
    assert amend(world, ALL, 1) is ErrorCode.NONE
    append(world)
    fetch(world, ONE, 2)
    assert (partition.isr, partition.proposal, high_watermark(world)) == (ALL, None, 1)
    fetch(world, TWO, 2)
    assert high_watermark(world) == 2


def test_what_was_granted_comes_from_the_log_again_and_leaves_the_next_proposal_alone(world: World) -> None:
    partition = lead(world, (ME,))
    append(world)
    fetch(world, ONE, 1)
    grant(world, (ME, ONE), partition_epoch=1)
    fetch(world, TWO, 1)
    proposed = partition.proposal
    assert amend(world, (ME, ONE), 1) is ErrorCode.NONE
    assert partition.proposal is proposed is not None


def test_older_news_than_is_known_is_refused(world: World) -> None:
    partition = lead(world, (ME,))
    assert amend(world, (ME, ONE), 2) is ErrorCode.NONE
    assert (amend(world, (ME,), 1), partition.isr) == (ErrorCode.STALE_CONTROLLER_EPOCH, (ME, ONE))


def test_a_follower_keeps_following_when_others_come_or_go(world: World) -> None:
    state = LeaderState(1, ONE, 0, (ONE, ME), 0, (ONE, ME))
    world.replicas.become("p", 0, ID, state, is_new=True)
    world.broker.facts.clear()
    world.replicas.amend(world.partition("p"), state._replace(isr=(ONE, ME, TWO), partition_epoch=1, replicas=ALL))
    assert (world.partition("p").isr, list(world.broker.facts)) == ((ONE, ME, TWO), [])
