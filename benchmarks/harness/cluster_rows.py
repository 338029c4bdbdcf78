"""The rows of `scripts/bench cluster`: what is asked of three brokers, what is measured, what is allowed.

Run by `benchmarks/cluster.py`. A `SteadyRow` gets rounds in turn on clusters that stay up, or at the members of one; a
`FreshRow` makes clusters of its own, for it kills brokers or fills them. A row knows one cluster at a time and compares
nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from kazoo.client import KazooClient

from benchmarks.harness.clusters import COUNT, SESSION_TIMEOUT_MS, Cluster, partitions, seen, until
from benchmarks.harness.rows import BATCH_BYTES, GB, KEEP, MB, Measured, Metric
from benchmarks.harness.streams import ALL, LEADER, Stream, open_streams, run
from benchmarks.harness.wire import Connection, create_topics, delete_topics, wait_for_leaders
from protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

LATEST, LIST_OFFSETS_VERSION = -1, 5
LEADERLESS_S = SESSION_TIMEOUT_MS / 1000 + 0.5
KILLED_PATIENCE_S, CREATED_PATIENCE_S = 120, 240


class Size(NamedTuple):
    """How much load a round is, and how many rounds there are.

    warm_most: how many go before those that count, at most: fewer if both have stopped getting faster.
    """

    rounds: int
    warm_most: int
    bytes_1k: int
    pings: int
    leaderless_partitions: int
    created: tuple[int, int]  # topics, and partitions of each
    many: tuple[int, int]  # the same, of the row of memory


FULL = Size(5, 20, 100 * MB, 2000, 1000, (10, 300), (10, 1000))
QUICK = Size(3, 4, 20 * MB, 500, 100, (10, 30), (10, 100))


class ClusterRow:
    """One kind of load on three brokers. has_peer: whether Apache's get their turn."""

    key: str
    title: str
    metrics: tuple[Metric, ...]
    has_peer = True

    def __init__(self, size: Size) -> None:
        self.size = size


class SteadyRow(ClusterRow):
    """One with rounds on clusters that stay up. `begin` and `end` go around the rounds, once for each cluster."""

    measures_latency = False

    def begin(self, cluster: Cluster) -> None:
        """Make the topic, and connections to its leaders."""
        raise NotImplementedError

    def measure(self, cluster: Cluster) -> Measured:
        """One round."""
        raise NotImplementedError

    def topic(self, cluster: Cluster) -> str:
        """What `begin` makes."""
        return f"bench-{self.key}"

    def end(self, cluster: Cluster) -> None:
        """Take away what `begin` made."""
        with cluster.controller() as connection:
            delete_topics(connection, [self.topic(cluster)])


class FreshRow(ClusterRow):
    """One that makes its clusters. on_zookeeper: they are on Apache's ZooKeeper, and the peer is Apache 3.9.1."""

    on_zookeeper = False

    def measure(self, cluster: Cluster, zookeeper: str) -> Measured:
        """What is found on a new cluster. zookeeper: its address, if there is one."""
        raise NotImplementedError


class Produce(SteadyRow):
    """A producer with a batch of each of three partitions under way, five deep: what a busy one does."""

    key = "produce"
    title = "produce, 1 KB, acks=all, idempotent, three replicas"
    metrics = (
        Metric("rate", "throughput", "MB/s", 2.0, more_is_better=True, shows_value=False),
        Metric("cpu", "CPU per GB, three brokers", "s", 0.4),
    )
    acks, is_idempotent = ALL, True

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.streams: dict[str, list[Stream]] = {}

    def begin(self, cluster: Cluster) -> None:
        topic = self.topic(cluster)
        with cluster.controller() as connection:
            create_topics(connection, [topic], COUNT, configs=KEEP, replicas=3, placed=self.placed(cluster))
        cluster.await_in_sync([topic])
        count = BATCH_BYTES // 1010
        self._batch_bytes = count * 1000
        self.streams[cluster.kind] = open_streams(cluster, topic, 1000, count, self.acks, idempotent=self.is_idempotent)

    def placed(self, cluster: Cluster) -> Sequence[Sequence[int]]:
        """The brokers of each partition, the leader first; () lets the controller choose."""
        return ()

    def measure(self, cluster: Cluster) -> Measured:
        batches = self.size.bytes_1k // self._batch_bytes
        before = cluster.cpu_s()
        seconds = run(self.streams[cluster.kind], batches)
        used, size = cluster.cpu_s() - before, batches * self._batch_bytes
        return {"rate": size / seconds / MB, "cpu": used / size * GB}

    def end(self, cluster: Cluster) -> None:
        for each in self.streams.pop(cluster.kind, []):
            each.connection.close()
        super().end(cluster)


class OfMember(Produce):
    """The same in a quorum's cluster, in which both kinds have a member beside two of Apache's brokers."""

    def topic(self, cluster: Cluster) -> str:
        """Each member has its own."""
        return f"{super().topic(cluster)}-{cluster.kind}"


class MemberLeads(OfMember):
    """To one broker, which two of Apache's follow; what it uses is counted."""

    key = "member-leads"
    title = "produce, 1 KB, acks=all, idempotent, in a quorum's cluster: it leads, two of Apache's follow"
    metrics = (
        Metric("rate", "throughput", "MB/s", more_is_better=True, shows_value=False),
        Metric("cpu", "CPU per GB, the leader", "s", 0.4),
    )

    def placed(self, cluster: Cluster) -> Sequence[Sequence[int]]:
        """It leads all."""
        return [[max(cluster.members), 1, 2]] * COUNT


class MemberFollows(OfMember):
    """To two of Apache's brokers, which a third one follows; what that uses is counted."""

    key = "member-follows"
    title = "produce, 1 KB, acks=all, idempotent, in a quorum's cluster: two of Apache's lead, it follows"
    metrics = (
        Metric("rate", "throughput", "MB/s", more_is_better=True, shows_value=False),
        Metric("cpu", "CPU per GB, the follower", "s", 0.4),
    )

    def placed(self, cluster: Cluster) -> Sequence[Sequence[int]]:
        """It leads none."""
        member = max(cluster.members)
        return [[1, 2, member], [2, 1, member], [1, 2, member]]


class KeepingUp(Produce):
    """The same with acks=1: no producer waits for the followers."""

    key = "followers"
    title = "produce, 1 KB, acks=1, three replicas"
    metrics = (
        Metric("behind", "followers behind at the end", "s", most=1.0),
        Metric("in_sync", "replicas in sync at the end, of 9", "", most=9, more_is_better=True),
        Metric("rate", "throughput", "MB/s", more_is_better=True, shows_value=False),
        Metric("cpu", "CPU per GB, three brokers", "s"),
    )
    acks, is_idempotent = LEADER, False

    def measure(self, cluster: Cluster) -> Measured:
        before, batches = cluster.cpu_s(), self.size.bytes_1k // self._batch_bytes
        streams = self.streams[cluster.kind]
        seconds = run(streams, batches)
        ended = time.perf_counter()
        for index, each in enumerate(streams):
            until(lambda: end_offset(each.connection, f"bench-{self.key}", index) == each.records, "all is replicated")  # noqa: B023
        behind, used = time.perf_counter() - ended, cluster.cpu_s() - before
        with cluster.connect() as connection:
            in_sync = sum(len(each.isr_nodes) for each in partitions(connection, f"bench-{self.key}"))
        size = batches * self._batch_bytes
        return {"behind": behind, "in_sync": in_sync, "rate": size / seconds / MB, "cpu": used / size * GB}


class Small(Produce):
    """One small produce at a time, to one leader."""

    key = "small"
    title = "one small produce at a time, acks=all, three replicas"
    metrics = (
        Metric("p50", "latency, p50", "us", 0.6, shows_value=False),
        Metric("p99", "latency, p99", "us", 0.6, shows_value=False),
        Metric("cpu", "CPU per request, three brokers", "us"),
    )
    measures_latency = True

    def begin(self, cluster: Cluster) -> None:
        topic = f"bench-{self.key}"
        with cluster.controller() as connection:
            create_topics(connection, [topic], 1, configs=KEEP, replicas=3)
        cluster.await_in_sync([topic])
        self.streams[cluster.kind] = open_streams(cluster, topic, 100, 1, ALL, idempotent=True)

    def measure(self, cluster: Cluster) -> Measured:
        (stream,) = self.streams[cluster.kind]
        before = cluster.cpu_s()
        seconds = [stream.ping() for _ in range(self.size.pings)]
        used = cluster.cpu_s() - before
        hundredths = statistics.quantiles(seconds, n=100)
        return {"p50": hundredths[49] * 1e6, "p99": hundredths[98] * 1e6, "cpu": used / len(seconds) * 1e6}


class Leaderless(FreshRow):
    """kill -9 of a broker that is not the controller, and leads a third of the partitions."""

    key = "leaderless"
    title = f"kill -9 of a broker, session timeout {SESSION_TIMEOUT_MS / 1000:g} s"
    metrics = (Metric("leaderless", "longest without a leader", "s", most=LEADERLESS_S),)

    def measure(self, cluster: Cluster, zookeeper: str) -> Measured:
        names = [f"bench-{number}" for number in range(10)]
        with cluster.controller() as connection:
            create_topics(connection, names, self.size.leaderless_partitions // 10, replicas=3)
            controller = seen(connection, []).controller_id
        cluster.await_in_sync(names)
        victim = max(number for number in cluster.members if number != controller)
        begun = time.perf_counter()
        cluster.members[victim].kill()
        await_moved(cluster, names, victim)
        return {"leaderless": time.perf_counter() - begun}


class Control(FreshRow):
    """Many partitions made at once; then the controller is killed, which leads a third of them."""

    key = "control"
    title = "topics of 300 partitions x 3, on Apache's ZooKeeper"
    metrics = (
        Metric("created", "ten created, all led", "s", 0.3, shows_value=False),
        Metric("moved", "a new controller, until no leader is the killed one", "s", 0.3, shows_value=False),
        Metric("rss", "largest broker's memory", "MB"),
    )
    on_zookeeper = True

    def measure(self, cluster: Cluster, zookeeper: str) -> Measured:
        topics, count = self.size.created
        names = [f"bench-{number}" for number in range(topics)]
        begun = time.perf_counter()
        with cluster.controller() as connection:
            create_topics(connection, names, count, replicas=3, patience_s=CREATED_PATIENCE_S)
        for number in cluster.members:
            with cluster.connect(number) as connection:
                wait_for_leaders(connection, names, count, CREATED_PATIENCE_S)
        created = time.perf_counter() - begun
        cluster.await_in_sync(names)
        rss = max(each.rss_bytes() for each in cluster.members.values())
        client = KazooClient(hosts=zookeeper)
        client.start()
        try:
            elected, victim = kill_controller(cluster, client)
            await_moved(cluster, names, victim)
            return {"created": created, "moved": time.perf_counter() - elected, "rss": rss / MB}
        finally:
            client.stop()
            client.close()


class Memory(FreshRow):
    """What a partition costs each of three brokers that have a replica of all."""

    key = "memory"
    title = "10,000 partitions x 3"
    metrics = (
        Metric("kilobytes", "memory per partition, the largest broker's", "KB", most=10),
        Metric("created", "created, all led", "s", shows_value=False),
    )
    has_peer = False

    def measure(self, cluster: Cluster, zookeeper: str) -> Measured:
        topics, count = self.size.many
        before = {number: each.rss_bytes() for number, each in cluster.members.items()}
        names = [f"bench-{number}" for number in range(topics)]
        begun = time.perf_counter()
        with cluster.controller() as connection:
            for name in names:
                create_topics(connection, [name], count, replicas=3, patience_s=CREATED_PATIENCE_S)
        created = time.perf_counter() - begun
        cluster.await_in_sync(names)
        grown = max(each.rss_bytes() - before[number] for number, each in cluster.members.items())
        return {"kilobytes": grown / (topics * count) / 1000, "created": created}


# ---- asking


def end_offset(connection: Connection, topic: str, index: int) -> int:
    """The high watermark of a partition, asked of its leader."""
    part = ListOffsetsPartition(partition_index=index, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
    )
    found = connection.ask(request, LIST_OFFSETS_VERSION).topics[0].partitions[0]
    return found.offset


def await_moved(cluster: Cluster, topics: Sequence[str], dead: int) -> None:
    """Until, as all that live tell, every partition has a leader, and none has the dead one."""
    with ExitStack() as stack:
        for each in cluster.living.values():
            connection = stack.enter_context(each.connect())
            for topic in topics:  # one at a time: what has moved is not asked for again
                until(lambda: has_moved(connection, topic, dead), f"{topic} is led again", KILLED_PATIENCE_S)  # noqa: B023


def has_moved(connection: Connection, topic: str, dead: int) -> bool:
    """Whether a broker knows living leaders for a whole topic."""
    found = partitions(connection, topic)
    return bool(found) and all(each.leader_id not in (dead, -1) for each in found)


def kill_controller(cluster: Cluster, client: KazooClient) -> tuple[float, int]:
    """Kill it. Returns: when there was another, by time.perf_counter(); the id of the killed one."""
    first = controller_of(client)
    assert first is not None, "there is no controller"
    cluster.members[first].kill()
    until(lambda: controller_of(client) not in (None, first), "another controller", KILLED_PATIENCE_S)
    return time.perf_counter(), first


def controller_of(client: KazooClient) -> int | None:
    """Who is the controller, as ZooKeeper has it."""
    if client.exists("/controller") is None:
        return None
    data, _ = client.get("/controller")
    number: int = json.loads(data)["brokerid"]
    return number


STEADY: tuple[type[SteadyRow], ...] = (Produce, KeepingUp, Small)
MEMBERS: tuple[type[SteadyRow], ...] = (MemberLeads, MemberFollows)
"""On one cluster of a quorum, with a member of each kind."""
FRESH: tuple[type[FreshRow], ...] = (Leaderless, Control, Memory)
