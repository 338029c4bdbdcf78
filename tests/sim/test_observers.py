"""Nodes that follow a quorum whose leaders change, on machines that die: each is told what was committed, once."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from kbroker.ports import LIFE, QUORUM, Endpoint
from kbroker.quorum.metadata_log import SnapshotId
from kbroker.sim.observers import ObserverWorld
from kbroker.sim.peers import SimPeers
from kbroker.sim.quorum import LogBatch
from kbroker.sim.world import Broken
from protocol.messages.quorum import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    QuorumListener,
    QuorumVoter,
    VotersRecord,
)
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.records.control_records import build_quorum_batch


@pytest.mark.parametrize("seed", [3, 13])
def test_a_world_of_observers_is_told_what_was_committed(seed: int) -> None:
    assert ObserverWorld(seed).run(15_000, healing_ms=25_000) > 0


def test_in_a_quiet_world_everything_is_told_at_once() -> None:
    world = ObserverWorld(1, kinds=(), machines=2)
    world.run(3_000, healing_ms=3_000)
    assert [each.member is not None and each.member.life.is_fenced for each in world.machines] == [False, False]


def test_controllers_are_asked_by_the_security_protocol_of_their_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, Endpoint]] = set()
    send = SimPeers.send

    def noted(peers: SimPeers, broker_id: int, endpoint: Endpoint, purpose: str, *what: Any) -> None:
        asked.add((purpose, endpoint))
        send(peers, broker_id, endpoint._replace(security_protocol=0), purpose, *what)  # all that it speaks

    monkeypatch.setattr(SimPeers, "send", noted)
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL"}
    ObserverWorld(1, kinds=(), machines=1, settings=protocols).world.run_until(2_000)
    assert {purpose for purpose, _ in asked} == {QUORUM, LIFE}
    assert {endpoint[:2] for _, endpoint in asked} == {("CONTROLLER", 3)}


def test_a_log_that_begins_at_a_snapshot_is_met_from_there() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    (machine,) = world.machines
    machine.kill()
    world.world.run_until(3_000)
    for each in world.quorum.nodes:
        each.take_snapshot(forget=True)
    machine.disk.remove(f"/data/__cluster_metadata-0/{0:020d}.log")
    machine.start()
    world.run(4_000, healing_ms=25_000)
    assert machine.member is not None
    assert machine.member.quorum.metadata_log.start_offset > 0


def test_a_quorum_that_changes_its_leader_in_the_middle_of_a_snapshot_is_met_at_the_next_one() -> None:
    world = ObserverWorld(2, kinds=(), machines=1, settings={"controller.quorum.fetch.snapshot.max.bytes": "100"})
    (machine,) = world.machines
    machine.kill()
    world.world.run_until(3_000)
    for each in world.quorum.nodes:
        each.take_snapshot(forget=True)
    machine.disk.remove(f"/data/__cluster_metadata-0/{0:020d}.log")
    machine.start()
    assert machine.member is not None
    quorum, leader = machine.member.quorum, world.quorum.leader
    for _ in range(5_000):
        if quorum._partial is not None and quorum._partial.size:
            break
        world.world.run_until(world.world.now_ms + 1)
    assert quorum._partial is not None
    assert leader is not None
    leader.stop()
    assert world.quorum.elect() not in (None, leader)
    world.run(world.world.now_ms + 4_000, healing_ms=25_000)
    assert machine.member.quorum.metadata_log.start_offset > 0


def test_a_member_takes_snapshots_itself_and_starts_from_them() -> None:
    often = {"metadata.log.max.record.bytes.between.snapshots": "500"}
    world = ObserverWorld(1, kinds=(), machines=1, settings=often)
    (machine,) = world.machines
    world.world.run_until(3_000)
    assert machine.member is not None
    kept = machine.member.quorum.metadata_log.snapshots
    assert kept
    assert isinstance(kept[-1], SnapshotId)
    machine.kill()
    machine.start()
    world.run(4_000, healing_ms=25_000)


def test_a_member_that_was_not_let_in_for_too_long_is_started_again() -> None:
    """Each new leader of the quorum waits for a whole session before it takes the former life for dead."""
    impatient = {"initial.broker.registration.timeout.ms": "3000"}
    world = ObserverWorld(2255443705, kinds=("elections", "kills"), settings=impatient)
    world.run(15_000, healing_ms=25_000)
    assert sum("ends by itself" in line for line in world.world.lines) > 0


def test_the_judge_sees_what_was_not_committed() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    world.world.run_until(2_000)
    (machine,) = world.machines
    assert machine.member is not None
    machine.member.state.configs[2, "topic-1", "odd"] = "1"
    with pytest.raises(Broken, match="was told something else than was committed"):
        world.world.run_until(4_000)


def test_the_judge_sees_a_batch_that_differs() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    world.world.run_until(2_000)
    (machine,) = world.machines
    assert machine.member is not None
    log = machine.member.quorum.metadata_log.log
    log.segments[0].file.write([b"?"], 70)
    with pytest.raises(Broken, match="is not what was committed"):
        world.check_logs()


def test_another_cluster_ends_the_member_in_a_line() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    (machine,) = world.machines
    world.world.run_until(1_000)
    world.quorum.cluster_id = "another"
    world.world.run_until(4_000)
    assert "of another cluster than simulated-cluster-00000" in machine.end


def test_a_disk_that_fails_at_the_end_keeps_no_member_from_stopping() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    world.world.run_until(2_000)
    (machine,) = world.machines
    assert machine.member is not None
    machine.disk.fault = lambda call, path: OSError(errno.EIO, "EIO", path)
    machine.member.observer.close()


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (b"\x01\x63\x00", "type: 99 of a metadata record, in version 0, is not known"),
        (b"\x01\x02\x07", "version: 7 of TopicRecord is not known, 0 to 0 are"),
    ],
    ids=["type", "version"],
)
def test_a_record_of_an_unknown_type_or_version_ends_the_member_in_a_line(frame: bytes, line: str) -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    world.world.run_until(2_000)
    leader = world.quorum.leader
    assert leader is not None
    at = leader.end_offset
    data = build_batch([Record(at, 0, None, frame)], leader_epoch=leader.epoch)
    leader._append(LogBatch(at, at + 1, leader.epoch, bytes(data), ()))
    world.world.run_until(4_000)
    (machine,) = world.machines
    assert machine.end == f"the metadata log cannot be read: {line}"


def test_a_quorum_whose_voters_are_records_is_taken_note_of() -> None:
    """In quorum-state, whose format is another then, and where controllers are, of whom no setting tells."""
    world = ObserverWorld(1, kinds=(), machines=1)
    world.world.run_until(2_000)
    leader, (machine,) = world.quorum.leader, world.machines
    assert leader is not None
    at = leader.end_offset
    voter = QuorumVoter(
        voter_id=3009,
        voter_directory_id=b"v" * 16,
        endpoints=[QuorumListener(name="CONTROLLER", host="elsewhere", port=9093)],
        k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
    )
    says = [KRaftVersionRecord(version=0, k_raft_version=1), VotersRecord(version=0, voters=[voter])]
    data = build_quorum_batch(says, timestamp=0, offset=at, leader_epoch=leader.epoch)
    leader._append(LogBatch(at, at + 2, leader.epoch, bytes(data), ()))
    world.world.run_until(4_000)
    member = machine.member
    assert member is not None
    text = machine.disk.open("/data/__cluster_metadata-0/quorum-state", "read").read(0, 500)
    assert json.loads(text)["data_version"] == 1
    assert member.observer.voters == says[1]


def test_a_start_beside_another_cluster_ends_in_a_line() -> None:
    world = ObserverWorld(1, kinds=(), machines=1)
    (machine,) = world.machines
    machine.kill()
    world.quorum.cluster_id = "another"
    machine.start()
    world.world.run_until(10_000)
    assert "of another cluster than simulated-cluster-00000" in machine.end
