"""Consumer groups: membership, rebalances, commits, and what admins see and do."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from compat_tests.clients import Client, ClientError, Driver
from compat_tests.waiting import eventually

SECTION = "4 Consumer groups"
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69


@pytest.fixture
def group(reference: Driver) -> str:
    """A group id nobody used before, on a broker whose coordinator is up."""
    eventually(lambda: _has_coordinator(reference))
    return f"g-{uuid.uuid4().hex[:12]}"


def _has_coordinator(reference: Driver) -> bool:
    try:
        return reference.committed("nobody", "nothing", 0) is None
    except ClientError as error:  # the first question makes the broker create the topic of groups
        if error.code not in (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR):
            raise
        return False


def fill(reference: Driver, topic: str, partitions: int, each: int) -> None:
    reference.create_topic(topic, partitions=partitions)
    records = [{"value": f"{p}-{n}", "partition": p} for p in range(partitions) for n in range(each)]
    reference.produce(topic, records)


def share(members: list[tuple[Driver, str]], partitions: int, at_least: int = 1) -> None:
    """Poll until each member has some and together they have all partitions, each once."""

    def shared() -> bool:
        polls = [driver.start_poll(member, 0, 300) for driver, member in members]
        for poll in polls:
            poll()
        owned = [driver.assignment(member) for driver, member in members]
        return min(map(len, owned)) >= at_least and sum(map(len, owned)) == len(set().union(*owned)) == partitions

    eventually(shared, within_s=45)


def test_lone_member_reads_everything(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """One member reads all partitions"""
    fill(reference, topic, partitions=3, each=4)
    client.join("a", group, [topic])
    records = client.poll("a", 12)
    client.leave("a")
    assert sorted(record["value"] for record in records) == [f"{p}-{n}" for p in range(3) for n in range(4)]


def test_next_member_resumes_at_the_commit(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """Commit, leave, resume at the commit"""
    fill(reference, topic, partitions=1, each=3)
    client.join("a", group, [topic])
    client.poll("a", 3)
    client.commit("a")
    client.leave("a")
    reference.produce(topic, [{"value": "after", "partition": 0}])
    client.join("b", group, [topic])
    records = client.poll("b", 1)
    client.leave("b")
    assert [record["value"] for record in records] == ["after"]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative"])
def test_two_members_share(
    client: Driver, reference: Driver, start_driver: Callable[[Client], Driver], topic: str, group: str, strategy: str
) -> None:
    """A second member takes over half, {strategy}"""
    client.client.needs("rebalance", strategy)
    fill(reference, topic, partitions=4, each=1)
    other = start_driver(client.client)
    client.join("a", group, [topic], strategy)
    share([(client, "a")], partitions=4)
    other.join("b", group, [topic], strategy)
    share([(client, "a"), (other, "b")], partitions=4, at_least=2)
    client.leave("a")


def test_partitions_of_a_leaver_move(
    client: Driver, reference: Driver, start_driver: Callable[[Client], Driver], topic: str, group: str
) -> None:
    """When a member leaves, the other takes over its partitions"""
    client.client.needs("rebalance")
    fill(reference, topic, partitions=4, each=1)
    other = start_driver(client.client)
    client.join("a", group, [topic])
    other.join("b", group, [topic])
    share([(client, "a"), (other, "b")], partitions=4)
    other.leave("b")
    share([(client, "a")], partitions=4)
    client.leave("a")


def test_static_member_comes_back_to_its_partitions(
    client: Driver, reference: Driver, start_driver: Callable[[Client], Driver], topic: str, group: str
) -> None:
    """A static member comes back to its partitions without a rebalance"""
    client.client.needs("static members", "rebalance")
    fill(reference, topic, partitions=4, each=1)
    other = start_driver(client.client)
    client.join("a", group, [topic], instance="one")
    other.join("b", group, [topic], instance="two")
    share([(client, "a"), (other, "b")], partitions=4)
    before = other.assignment("b")
    other.close()  # as a crash: no LeaveGroup
    again = start_driver(client.client)
    again.join("b", group, [topic], instance="two")
    share([(client, "a"), (again, "b")], partitions=4)
    after = again.assignment("b")
    client.leave("a")
    assert after == before


def test_committed_offset_is_seen(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """Read a group's committed offset"""
    fill(reference, topic, partitions=1, each=3)
    reference.join("a", group, [topic])
    reference.poll("a", 3)
    reference.commit("a")
    reference.leave("a")
    assert client.committed(group, topic, 0) == 3


def test_group_is_listed(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """List groups"""
    fill(reference, topic, partitions=1, each=1)
    reference.join("a", group, [topic])
    reference.poll("a", 1)
    listed = client.groups()
    reference.leave("a")
    assert group in listed


def test_group_is_described(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """Describe a group"""
    fill(reference, topic, partitions=1, each=1)
    reference.join("a", group, [topic])
    reference.poll("a", 1)
    described = client.group(group)
    reference.leave("a")
    assert (described["state"].lower(), described["members"]) == ("stable", 1)


def test_group_is_deleted(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """Delete an empty group"""
    fill(reference, topic, partitions=1, each=1)
    reference.join("a", group, [topic])
    reference.poll("a", 1)
    reference.commit("a")
    reference.leave("a")
    client.delete_group(group)
    assert group not in reference.groups()


def test_group_with_members_is_not_deleted(client: Driver, reference: Driver, topic: str, group: str) -> None:
    """Deleting a group with members is refused"""
    fill(reference, topic, partitions=1, each=1)
    reference.join("a", group, [topic])
    reference.poll("a", 1)
    with pytest.raises(ClientError) as refused:
        client.delete_group(group)
    reference.leave("a")
    assert refused.value.code == NON_EMPTY_GROUP


def test_deleting_an_unknown_group_is_refused(client: Driver, group: str) -> None:
    """Deleting an unknown group is refused"""
    with pytest.raises(ClientError) as refused:
        client.delete_group(group)
    assert refused.value.code == GROUP_ID_NOT_FOUND
