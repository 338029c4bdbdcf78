"""How a node without a vote follows its quorum: whom it asks, what it cuts, and what it never gives up."""

from __future__ import annotations

import pytest

from kbroker.quorum.metadata_log import METADATA_TOPIC_ID, SnapshotId
from kbroker.quorum.observer import Controller, QuorumRequest
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest
from protocol.messages.quorum import FetchSnapshotRequest, SnapshotPartition
from tests.quorum.worlds import CLUSTER, DIRECTORY_ID, Observed, batch, put_snapshot, snapshot

LEADER = Controller(3000, "leader", 9093)


def partition(asked: QuorumRequest) -> FetchPartition:
    assert isinstance(asked.request, FetchRequest)
    return asked.request.topics[0].partitions[0]


def of_snapshot(asked: QuorumRequest) -> SnapshotPartition:
    assert isinstance(asked.request, FetchSnapshotRequest)
    return asked.request.topics[0].partitions[0]


# -- whom it asks


def test_any_controller_is_asked_first_and_says_who_leads() -> None:
    world = Observed()
    asked = world.ask()
    assert (asked.controller.host, asked.controller.node_id) in {("one", -2), ("two", -3), ("three", -4)}
    world.fetched(asked, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, epoch=3)
    assert world.ask().controller == LEADER
    assert (world.observer.epoch, world.observer.leader_id) == (3, 3000)


def test_a_fetch_says_of_which_cluster_it_is_and_how_far_the_log_goes() -> None:
    world = Observed()
    world.follow(batch(0, b"a", b"b", epoch=5), high_watermark=1, epoch=6)
    request = world.ask().request
    assert isinstance(request, FetchRequest)
    assert (request.cluster_id, request.replica_state.replica_id, request.max_wait_ms) == (CLUSTER, 7, 500)
    assert request.topics[0].topic_id == METADATA_TOPIC_ID
    part = request.topics[0].partitions[0]
    assert (part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch) == (6, 2, 5)
    assert (part.replica_directory_id, part.high_watermark) == (DIRECTORY_ID, 1)


def test_a_leader_that_does_not_answer_rests_and_others_are_asked() -> None:
    world = Observed()
    world.follow()
    world.observer.failed(world.ask().controller, world.config, world.now_ms)
    assert world.ask().controller.node_id < 0
    world.now_ms += 20
    assert world.ask().controller == LEADER


def test_who_does_not_answer_again_and_again_rests_longer_up_to_a_second() -> None:
    world = Observed(servers=[("one", 9093)])
    rests = []
    for _ in range(9):
        world.observer.failed(world.ask().controller, world.config, world.now_ms)
        assert world.observer.next_request(world.config, world.now_ms) is None
        rests.append(world.observer.rests_until_ms() - world.now_ms)
        world.now_ms = world.observer.rests_until_ms()
    assert rests == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_a_leader_that_is_silent_for_too_long_is_looked_for_elsewhere() -> None:
    world = Observed()
    world.follow()
    world.now_ms += 2001
    asked = world.ask()
    assert asked.controller.node_id < 0
    world.fetched(asked, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.ask().controller == LEADER


def test_others_are_not_asked_again_and_again_while_the_leader_rests() -> None:
    """All name a leader that does not answer: without a pause they would be asked without end."""
    world = Observed()
    world.follow()
    world.observer.failed(world.ask().controller, world.config, world.now_ms)
    for _ in range(3):
        world.fetched(world.ask(), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.observer.next_request(world.config, world.now_ms) is None


def test_a_leader_whose_address_no_controller_tells_is_the_one_that_answers_as_such() -> None:
    world = Observed()
    asked = world.ask()
    world.fetched(asked, batch(0), epoch=2, address=None)
    assert world.ask().controller == Controller(3000, asked.controller.host, 9093)


def test_another_epoch_is_taken_over_before_its_records_are() -> None:
    world = Observed()
    world.follow(batch(0))
    world.fetched(world.ask(), batch(1, epoch=2), leader=3001, epoch=2, address=("other", 9093))
    assert (world.log.end_offset, world.ask().controller) == (1, Controller(3001, "other", 9093))
    assert partition(world.ask()).current_leader_epoch == 2


def test_an_election_without_a_leader_yet_is_asked_about_elsewhere() -> None:
    world = Observed()
    world.follow()
    world.fetched(world.ask(), error=ErrorCode.FENCED_LEADER_EPOCH, leader=-1, epoch=2)
    assert world.observer.leader is None
    assert world.ask().controller.node_id < 0


def test_an_answer_of_an_older_epoch_changes_nothing() -> None:
    world = Observed()
    world.follow(epoch=5)
    world.fetched(world.ask(), batch(0), leader=3001, epoch=4)
    assert (world.log.end_offset, world.observer.epoch, world.observer.leader_id) == (0, 5, 3000)


def test_two_leaders_of_one_epoch_are_not_followed_both() -> None:
    world = Observed()
    world.follow()
    world.observer.failed(world.ask().controller, world.config, world.now_ms)
    world.fetched(world.ask(), batch(0), leader=3001)
    assert (world.log.end_offset, world.observer.leader_id) == (0, 3000)


def test_a_leader_at_another_address_is_found_there() -> None:
    world = Observed()
    world.follow()
    world.observer.failed(world.ask().controller, world.config, world.now_ms)
    world.fetched(world.ask(), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, address=("moved", 9099))
    assert world.ask().controller == Controller(3000, "moved", 9099)


def test_another_cluster_ends_the_node_in_a_line() -> None:
    world = Observed(servers=[("one", 9093)])
    world.refused(world.ask(), ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert (
        world.observer.fault == f"controller one:9093 is of another cluster than {CLUSTER}, which meta.properties names"
    )
    assert world.observer.next_request(world.config, world.now_ms) is None


def test_one_address_of_another_cluster_is_passed_by() -> None:
    world = Observed(servers=[("one", 9093), ("two", 9093)])
    first = world.ask()
    world.refused(first, ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert not world.observer.fault
    assert world.ask().controller != first.controller
    world.follow()
    assert world.observer.leader is not None
    world.now_ms += 5000
    for _ in range(20):  # while the leader is silent
        asked = world.ask()
        if asked.controller.host == first.controller.host:
            world.refused(asked, ErrorCode.INCONSISTENT_CLUSTER_ID)
            break
        world.now_ms += 5000
    assert not world.observer.fault


# -- records


def test_records_are_kept_as_they_came_and_committed_as_far_as_the_leader_says() -> None:
    world = Observed()
    world.follow(batch(0, b"a", b"b"), batch(2, b"c"), high_watermark=2)
    assert (world.log.end_offset, world.observer.high_watermark) == (3, 2)
    world.fetched(world.ask(), high_watermark=9)
    assert world.observer.high_watermark == 3
    world.fetched(world.ask(), high_watermark=1)
    assert world.observer.high_watermark == 3


def test_damaged_records_are_asked_for_again() -> None:
    world = Observed()
    damaged = bytearray(batch(0, b"abc"))
    damaged[-1] ^= 1
    world.follow(bytes(damaged))
    assert world.log.end_offset == 0
    world.now_ms += 20
    world.fetched(world.ask(), batch(0, b"abc"))
    assert world.log.end_offset == 1


@pytest.mark.parametrize("sent", [(batch(1),), (batch(0), batch(2))])
def test_records_that_leave_one_out_are_not_taken(sent: tuple[bytes, ...]) -> None:
    world = Observed()
    world.follow(*sent, high_watermark=3)
    assert world.log.end_offset == 0
    assert world.observer.high_watermark == -1


def test_an_unknown_high_watermark_is_none() -> None:
    world = Observed()
    world.follow(batch(0))
    assert world.observer.high_watermark == -1


# -- logs that differ


def test_a_log_that_went_astray_is_cut_and_nothing_is_asked_before_that_is_durable() -> None:
    world = Observed()
    world.follow(batch(0), batch(1), batch(2), high_watermark=1)
    world.fetched(world.ask(), diverging=(1, 2))
    assert world.log.end_offset == 2
    assert world.observer.next_request(world.config, world.now_ms) is None
    assert world.run_jobs() == 1
    assert partition(world.ask()).fetch_offset == 2


def test_nothing_that_was_committed_is_cut() -> None:
    world = Observed()
    world.follow(batch(0), batch(1), batch(2), high_watermark=3)
    world.fetched(world.ask(), diverging=(1, 2))
    assert world.observer.fault.startswith(
        "controller 3000 at leader:9093, the leader of epoch 1, has the metadata log to 2 in epoch 1; this node knows "
        "that all below 3 was committed"
    )
    assert world.log.end_offset == 3


def test_a_cut_that_cuts_nothing_is_not_asked_about_at_once() -> None:
    world = Observed(servers=[("leader", 9093)])
    world.follow(batch(0), batch(1), high_watermark=2)
    world.fetched(world.ask(), diverging=(1, 2))
    assert world.log.end_offset == 2
    assert world.observer.next_request(world.config, world.now_ms) is None


# -- snapshots


def test_a_snapshot_is_fetched_in_pieces_and_the_log_goes_on_from_it() -> None:
    world = Observed()
    world.follow(batch(0))
    data = snapshot(b"all of it")
    world.fetched(world.ask(), snapshot_id=(100, 1))
    first = world.ask()
    assert (first.controller, of_snapshot(first).position) == (LEADER, 0)
    world.piece(first, data[:50], size=len(data))
    assert of_snapshot(world.ask()).position == 50
    world.piece(world.ask(), data[50:], size=len(data), position=50)
    assert world.observer.next_request(world.config, world.now_ms) is None
    world.run_jobs()
    assert world.log.snapshots == [SnapshotId(100, 1)]
    assert (world.log.start_offset, world.log.end_offset, world.observer.high_watermark) == (100, 100, 100)
    asked = partition(world.ask())
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (100, 1)


def test_a_snapshot_that_is_gone_is_given_up() -> None:
    world = Observed()
    world.follow()
    world.fetched(world.ask(), snapshot_id=(100, 1))
    world.piece(world.ask(), b"", size=0, error=ErrorCode.SNAPSHOT_NOT_FOUND)
    assert partition(world.ask()).fetch_offset == 0


def test_a_leader_that_changes_in_the_middle_is_asked_for_its_own_snapshot() -> None:
    world = Observed()
    world.follow()
    world.fetched(world.ask(), snapshot_id=(100, 1))
    world.piece(world.ask(), b"12345", size=100)
    world.piece(world.ask(), b"", size=0, error=ErrorCode.FENCED_LEADER_EPOCH, epoch=2)
    assert partition(world.ask()).current_leader_epoch == 2
    world.fetched(world.ask(), snapshot_id=(120, 2), epoch=2)
    assert of_snapshot(world.ask()).position == 0


def test_a_leader_that_does_not_answer_in_the_middle_goes_on_where_it_was() -> None:
    world = Observed()
    world.follow()
    world.fetched(world.ask(), snapshot_id=(100, 1))
    world.piece(world.ask(), b"12345", size=100)
    world.observer.failed(world.ask().controller, world.config, world.now_ms)
    world.fetched(world.ask(), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.now_ms += 20
    assert of_snapshot(world.ask()).position == 5


@pytest.mark.parametrize(("snapshot_id", "position"), [((101, 1), 0), ((100, 1), 7)])
def test_a_piece_that_was_not_asked_for_is_not_taken(snapshot_id: tuple[int, int], position: int) -> None:
    world = Observed()
    world.follow()
    world.fetched(world.ask(), snapshot_id=(100, 1))
    world.piece(world.ask(), b"12345", size=100, snapshot_id=snapshot_id, position=position)
    world.now_ms += 20
    assert partition(world.ask()).fetch_offset == 0


def test_older_snapshots_go_with_the_log_that_a_newer_one_replaces() -> None:
    world = Observed()
    world.follow(batch(0, *([b"x"] * 10)), high_watermark=10)
    put_snapshot(world.log, 5, b"x")
    data = snapshot(b"all")
    world.fetched(world.ask(), snapshot_id=(100, 1))
    world.piece(world.ask(), data, size=len(data))
    world.run_jobs()
    assert world.log.snapshots == [SnapshotId(100, 1)]


# -- starts


def test_after_a_start_it_goes_on_where_it_was() -> None:
    world = Observed()
    world.follow(batch(0, b"a", b"b", epoch=4), epoch=4)
    world.log.write_state(3000, 4, kraft_version=0).run()
    world.log.close()
    again = Observed(world.disk)
    assert again.observer.epoch == 4
    assert again.observer.leader is None
    assert partition(again.ask()).fetch_offset == 2
    assert again.observer.high_watermark == -1
