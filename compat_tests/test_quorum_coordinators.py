"""Groups and transactions in a cluster of Apache Kafka 4.4 with one kbroker: coordinators move between the kinds.

Members of a classic group, of one whose coordinator assigns and of a share group stay, and transactions with records
and offsets stay open, while the leaders of the topics in which coordinators keep their state change. Both kinds read
what the other wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from compat_tests.apache import NEWEST, Quorum
from compat_tests.clients import LIBRDKAFKA, ClientError, Driver, running
from compat_tests.raw import Connection
from compat_tests.test_quorum_member import OURS, Cluster, eventually
from compat_tests.test_share_groups import SHARES, poll
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

STATES = ("__consumer_offsets", "__transaction_state")
SHARE_STATES = ("__consumer_offsets", "__share_group_state")
ELSEWHERE = (14, 15, 16)  # the coordinator loads, is not known, is another one: ask again
OTHER = {1: 2, OURS: 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("coordinators")
    with Cluster(folder, Quorum(NEWEST, folder)) as made:
        yield made


def lead(cluster: Cluster, broker: int, *topics: str) -> None:
    """Have a broker lead all partitions of these topics, which then have replicas on two; asked of kbroker.

    Not by Apache's tools, which take their time: transactions are open meanwhile.
    """
    replicas = [broker, OTHER[broker]]
    moves = [
        ReassignableTopic(
            name=topic,
            partitions=[
                ReassignablePartition(partition_index=index, replicas=replicas)
                for index in range(len(cluster.partitions(topic)))
            ],
        )
        for topic in topics
    ]
    with Connection(cluster.brokers[OURS].port) as connection:
        moved = connection.ask(AlterPartitionReassignmentsRequest(topics=moves), 0)
        assert moved.error_code == ErrorCode.NONE, moved
        for topic in topics:
            for number in cluster.brokers:
                eventually(
                    lambda topic=topic, number=number: (  # type: ignore[misc]
                        {isr for _, _, isr in cluster.partitions(topic, number)} == {frozenset(replicas)}
                    )
                )
        elected = connection.ask(ElectLeadersRequest(topic_partitions=None), 2)
        assert elected.error_code == ErrorCode.NONE, elected
    for topic in topics:
        for number in cluster.brokers:
            eventually(
                lambda topic=topic, number=number: (  # type: ignore[misc]
                    {leader for leader, _, _ in cluster.partitions(topic, number)} == {broker}
                )
            )


def produce(cluster: Cluster, topic: str, first: int, count: int) -> list[str]:
    """So many records into partition 0, all of them acknowledged by all in sync."""
    producer = KafkaProducer(bootstrap_servers=cluster.addresses.split(","), acks="all", enable_idempotence=True)
    values = [str(number) for number in range(first, first + count)]
    for sent in [producer.send(topic, value.encode(), partition=0) for value in values]:
        sent.get(30)
    producer.close()
    return values


def committed(cluster: Cluster, group: str, topic: str) -> int | None:
    """What a group has committed of partition 0; None: nothing, or its coordinator is just moving."""
    place = TopicPartition(topic, 0)
    admin = KafkaAdminClient(bootstrap_servers=cluster.addresses.split(","))
    try:
        found = admin.list_group_offsets({group: [place]})[group].get(place)
    except (NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError):
        return None
    finally:
        admin.close()
    return None if found is None or found.offset < 0 else int(found.offset)


def settled(driver: Driver, member: str) -> bool:
    """Whether a commit of a member is taken; False while its coordinator moves."""
    try:
        driver.commit(member)
    except ClientError as error:
        if error.code not in ELSEWHERE:
            raise
        return False
    return True


@pytest.mark.parametrize("strategy", ["range", "consumer"])
def test_groups_and_open_transactions_outlive_moves_of_their_coordinators(
    cluster: Cluster, tmp_path: Path, strategy: str
) -> None:
    topic, group = f"orders-{strategy}", f"readers-{strategy}"
    cluster.make(topic, [1, 2])
    cluster.make(f"{topic}-out", [1, 2])
    values: list[str] = []
    outcomes: list[int] = []
    with running(cluster.addresses, tmp_path, LIBRDKAFKA) as (driver,):
        driver.join("member", group, [topic], strategy)
        for turn, broker in enumerate((OURS, 1, OURS, 1)):
            values += produce(cluster, topic, 10 * turn, 10)
            place = {"group": f"{group}-offsets", "source": topic, "offset": turn + 1}
            driver.transact(group, f"{topic}-out", [str(turn)], outcome=False, **place)  # type: ignore[arg-type]
            assert [each["value"] for each in driver.poll("member", 10)] == values[-10:]
            lead(cluster, broker, *STATES)
            eventually(lambda: settled(driver, "member"))
            end = len(values)
            eventually(lambda end=end: committed(cluster, group, topic) == end)  # type: ignore[misc]
            driver.ask("end_transaction", producer=group, commit=turn != 2)
            outcomes += [turn] * (turn != 2)
            eventually(lambda last=outcomes[-1]: committed(cluster, f"{group}-offsets", topic) == last + 1)  # type: ignore[misc]
            assert driver.read_committed(f"{topic}-out", len(outcomes)) == [str(each) for each in outcomes]
        assert driver.assignment("member") == {(topic, 0)}


def test_share_groups_outlive_moves_of_their_coordinators_and_of_what_they_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What was accepted is never delivered again, whichever broker keeps the group, its state or the records."""
    topic = "jobs"
    cluster.make(topic, [1, 2])
    produce(cluster, topic, 0, 2)
    with running(cluster.addresses, tmp_path, SHARES) as (shares,):
        shares.ask("start_at", group="work", topic=topic, partitions=1, offset=0)
        shares.ask("join", member="m", group="work", topic=topic)
        assert poll(shares, "m") == [(0, 1), (1, 1)]
        shares.ask("acknowledge", member="m", offsets=[0], type="ACCEPT")
        shares.ask("acknowledge", member="m", offsets=[1], type="RELEASE")
        assert shares.ask("commit", member="m") == []
        offset, released = 2, 1
        for broker in (OURS, 1, OURS):
            lead(cluster, broker, *SHARE_STATES, topic)
            produce(cluster, topic, offset, 1)
            found = poll(shares, "m")
            while len(found) < 2:
                found += poll(shares, "m")
            assert [each for each, _ in found] == [released, offset]
            assert found[0][1] >= 2
            shares.ask("acknowledge", member="m", offsets=[found[0][0]], type="ACCEPT")
            shares.ask("acknowledge", member="m", offsets=[offset], type="RELEASE")
            assert shares.ask("commit", member="m") == []
            released, offset = offset, offset + 1
