"""What a core tells of its requests: where they wait, for whom, and how much of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.console import notes as module
from kbroker.console.notes import Note, Notes
from kbroker.testing import Broker, broker, cluster
from protocol.messages.metadata import MetadataRequest
from tests.processes import Client
from tests.requests import fetch, produce

ALL = -1


def watched(of: Broker) -> Notes:
    """Notes of a broker from now on."""

    def watch(node: Any) -> Notes:
        notes = Notes(node.broker.clock)
        node.core._core.watch(notes)  # behind the faults
        return notes

    return of.call(watch)


@pytest.fixture
def alone() -> Iterator[Broker]:
    with broker() as running:
        running.create_topic("t")
        yield running


def last(of: Broker, notes: Notes) -> Note:
    return of.call(lambda node: notes.notes[-1])


def reasons(of: Broker, notes: Notes, count: int) -> list[str]:
    """Why requests wait, once so many do."""
    while len(found := of.call(lambda node: [why for _, why in notes.waiting()])) < count:
        pass
    return found


def stages(note: Note) -> list[str]:
    return [each.what for each in note.stages]


def test_a_request_is_received_begun_and_answered(alone: Broker) -> None:
    notes = watched(alone)
    with Client(alone.port, "me") as client:
        client.ask(produce(b"a"), 9)
        note = last(alone, notes)
        assert (note.api, note.version, note.client_id, stages(note)) == (0, 9, "me", ["received", "begun", "answered"])
        times = [each.at_ns for each in note.stages]
        assert times == sorted(times)
        assert note.frame is not None
        assert note.frame[:4] == b"\x00\x00\x00\x09"
        client.send(produce(b"a", acks=0), 9)
        client.ask(MetadataRequest(topics=[]), 5)
        assert stages(alone.call(lambda node: notes.notes[-2])) == ["received", "begun", "silent"]


def test_one_behind_another_is_held_by_it(alone: Broker) -> None:
    notes = watched(alone)
    with Client(alone.port) as client:
        client.send(fetch(max_wait_ms=60_000, min_bytes=100), 11)
        client.send(MetadataRequest(topics=[]), 5)
        first, second = reasons(alone, notes, 2)
        assert first.startswith("purgatory: records in t-0")
        assert second == module.HELD
        alone.produce("t", b"x" * 200)
        client.receive()
        client.receive()
        found = {
            note.api: stages(note) for note in alone.call(lambda node: list(notes.notes)) if note.client_id == "test"
        }
        assert found[1] == ["received", "begun", "waits", "woken", "answered"]
        assert found[3] == ["received", "held", "begun", "answered"]


def test_followers_that_are_waited_for_are_named() -> None:
    with cluster(2) as brokers:
        brokers.create_topic("t", replication_factor=2)
        leader, follower = sorted(brokers.brokers, key=lambda each: "t" not in _led(each))
        notes = watched(leader)
        follower.pause()
        try:
            with Client(leader.port) as client:
                client.send(produce(b"a", acks=ALL, timeout_ms=60_000), 9)
                while not (found := [each for each in reasons(leader, notes, 1) if each.startswith("replicas")]):
                    pass
                waits_for = f"it waits for broker {follower.node_id} to fetch"
                assert found == [f"replicas: t-0 is committed up to 0 of 1; {waits_for}"]
                follower.resume()
                assert client.receive().responses[0].partition_responses[0].error_code == 0
        finally:
            if follower.is_paused:
                follower.resume()


def _led(of: Broker) -> set[str]:
    return of.call(lambda node: {part.topic for part in node.broker.replicas.partitions.values() if part.is_leader})


def test_a_disk_that_is_waited_for_is_named(alone: Broker) -> None:
    alone.create_topic("safe", flush_messages=1)
    notes = watched(alone)
    alone.disk.slow(0.1)
    with Client(alone.port) as client:
        client.send(produce(b"a", topic="safe"), 9)
        (found,) = reasons(alone, notes, 1)
        assert found.startswith("disk: safe-0 is synced up to 0, wanted is 1")
        client.receive()
    alone.disk.heal()


def test_what_is_kept_has_a_limit(alone: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NOTES", 50)
    monkeypatch.setattr(module, "MOST_BYTES", 3000)
    notes = watched(alone)
    with Client(alone.port) as client:
        for size in (10, 100, 20_000):
            for _ in range(40):
                client.ask(produce(b"x" * size), 9)
        kept = alone.call(lambda node: [len(note.frame or b"") for note in notes.notes])
        assert len(kept) == 50
        assert sum(kept) <= 3000
        assert notes._kept_bytes <= 3000
        assert len(notes._with_bytes) <= 50
    while alone.call(lambda node: notes.connected()):
        pass
    assert alone.call(lambda node: {note.channel for note in notes.notes}) == {None}


def test_quotas_set_meanwhile_change_nothing_in_what_is_noted(alone: Broker) -> None:
    notes = watched(alone)
    with Client(alone.port, "limited") as client:
        client.ask(produce(b"a"), 9)
        _set_quota(client)
        _until_metered(alone)
        client.ask(produce(b"b"), 9)
        note = last(alone, notes)
        assert (note.api, stages(note)) == (0, ["received", "begun", "answered"])
        numbers = alone.call(lambda node: [each.number for each in notes.notes])
        assert numbers == sorted(set(numbers))


def _set_quota(client: Client) -> None:
    from protocol.messages.quotas import AlterClientQuotasEntry, AlterClientQuotasRequest, EntityData, OpData

    entity = [EntityData(entity_type="client-id", entity_name="limited")]
    entry = AlterClientQuotasEntry(entity=entity, ops=[OpData(key="request_percentage", value=1e6, remove=False)])
    answer = client.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
    assert answer.entries[0].error_code == 0


def _until_metered(of: Broker) -> None:
    metered: Callable[[Any], bool] = lambda node: node.core._core._metering is not None  # noqa: E731
    while not of.call(metered):
        pass
