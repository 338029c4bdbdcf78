"""What replication costs, counted as in `test_cost.py`: lines of Python run, in a warm broker.

On a leader with two followers in sync, from the frame of a produce with acks=all to its answer: both are sent the batch
and fetch again; what waits is looked at as on a loop that comes to rest after each request. On a follower, from a
leader's answer to the next fetch.
"""

from __future__ import annotations

from collections import deque

from benchmarks.harness.wire import batch, frame, produce_frame
from kbroker.core import AT_REST, EXPIRED, Channel
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.peers import BrokerConnection, BrokerConnections, Link
from kbroker.replica.partition import LeaderState
from protocol.frames import SIZE_BYTES
from protocol.headers import encode_response_header, parse_request_header
from protocol.message import Message
from protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from protocol.messages.handshake import ApiVersion, ApiVersionsResponse
from protocol.messages.metadata import MetadataResponse
from tests.test_cost import SLACK, LineCount, answered, ask
from tests.world import World

FETCH, METADATA = 1, 3
ME, OTHERS, EPOCH, VERSION = 1, (2, 3), 5, 17
WARM_UP = 5
SESSION = slice(15, 19)  # of the frame of an answer to Fetch: behind size, header, throttle time and error
LEADER_LINES, FOLLOWER_LINES = 1552, 481  # the follower's with those that find the frame among the bytes


def become(world: World, leader: int) -> None:
    replicas = (ME, *OTHERS)
    state = LeaderState(1, leader, EPOCH, replicas, EPOCH, replicas)
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)


# ---- as the leader


def step(world: World, channel: Channel, data: bytes) -> None:
    ask(world, channel, data)
    if world.core.effects.moved:
        world.core.step(AT_REST, world.clock.now_ms())


class Follower:
    """Its connection to the leader, with a session of one partition."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number
        self._channel: Channel = world.core.open("PLAINTEXT", "localhost", number)
        self._session = self._session_epoch = self._offset = 0

    def frame(self) -> bytes:
        """Its next fetch, from the end of what it has."""
        part = FetchPartition(
            partition=0, current_leader_epoch=EPOCH, fetch_offset=self._offset, log_start_offset=0,
            last_fetched_epoch=EPOCH if self._offset else -1, partition_max_bytes=1 << 20,
        )  # fmt: skip
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._number, replica_epoch=7), max_wait_ms=500, min_bytes=1,
            max_bytes=1 << 20, session_id=self._session, session_epoch=self._session_epoch,
            topics=[FetchTopic(topic_id=self._world.topic_id("t"), partitions=[part])],
        )  # fmt: skip
        return frame(request, VERSION)

    def fetch(self, data: bytes) -> None:
        step(self._world, self._channel, data)

    def take(self) -> None:
        """The answer, with a record more."""
        head = self._channel.out[0]
        assert isinstance(head, bytes)
        self._session = int.from_bytes(head[SESSION], "big")
        self._session_epoch += 1
        self._offset += 1
        answered(self._channel)


def lines_of_the_leader() -> int:
    world = World()
    world.core.gathers = True
    world.create("t", min_insync_replicas="2")
    become(world, ME)
    produce, client = produce_frame("t", [batch(1, 100)], acks=-1), world.core.open("PLAINTEXT", "localhost", 1)
    followers = [Follower(world, number) for number in OTHERS]
    for each in followers:
        each.fetch(each.frame())
    for _ in range(WARM_UP):
        with LineCount() as count:
            step(world, client, produce)
        lines = count.lines
        for each in followers:
            each.take()
            data = each.frame()
            with LineCount() as count:
                each.fetch(data)
            lines += count.lines
        answered(client)
    return lines


# ---- as a follower


class Wire(Link):
    """Keeps the frames that are sent."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.sent: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        """Nobody does."""


class OneConnection(BrokerConnections):
    """The connection to the leader."""

    def dial(self, connection: BrokerConnection) -> Link:
        self.wire = Wire(connection)
        return self.wire

    def wake_at(self, deadline_ms: int | None) -> None:
        """Nothing is late here."""

    def frame(self, response: Message, version: int) -> memoryview:
        """Of an answer to what was sent last."""
        _, _, correlation_id, _, _ = parse_request_header(memoryview(self.wire.sent.pop())[SIZE_BYTES:])
        data = encode_response_header(type(response), version, correlation_id) + response.encode(version)
        return memoryview(len(data).to_bytes(SIZE_BYTES, "big") + data)

    def receive(self, data: memoryview) -> None:
        connection = self.wire.connection
        connection.received(connection.client.feed, data, self.now_ms())
        self.settle()


class FollowingWorld(World):
    """A broker that follows t-0 of broker 2."""

    def peers(self) -> OneConnection:
        self.lines = OneConnection(
            "broker-1", self.clock.now_ms, lambda event: self.core.step(event, self.clock.now_ms())
        )
        return self.lines

    def begin(self) -> None:
        self.create("t")
        leader = BrokerInfo(OTHERS[0], (Endpoint(self.plane.listener, 0, "h", 1),))
        self.plane.cache.brokers[leader.id] = leader
        become(self, OTHERS[0])
        self.core.step(EXPIRED, self.clock.now_ms())  # and what has been told is heard
        self.lines.wire.connection.connected()
        served = {FETCH: VERSION, METADATA: 12}
        keys = [ApiVersion(api_key=key, min_version=0, max_version=last) for key, last in served.items()]
        self.lines.receive(self.lines.frame(ApiVersionsResponse(error_code=0, api_keys=keys), 3))
        self.lines.receive(self.lines.frame(MetadataResponse(brokers=[], topics=[]), 12))

    def answer_with(self, offset: int) -> memoryview:
        """The leader's next answer: one record, and what lies before it is committed."""
        data = bytearray(batch(1, 100))
        data[:8], data[12:16] = offset.to_bytes(8, "big"), EPOCH.to_bytes(4, "big")
        part = PartitionData(
            partition_index=0, error_code=0, high_watermark=offset, log_start_offset=0, records=bytes(data)
        )
        topic = FetchableTopicResponse(topic_id=self.topic_id("t"), partitions=[part])
        return self.lines.frame(FetchResponse(session_id=9, responses=[topic]), VERSION)

    def receive(self, frame: memoryview) -> None:
        self.lines.receive(frame)
        assert self.core.effects.wake_ms >= 0  # asked after every event


def lines_of_a_follower() -> int:
    world = FollowingWorld()
    world.begin()
    for offset in range(WARM_UP):
        data = world.answer_with(offset)
        with LineCount() as count:
            world.receive(data)
    log = world.partition("t").log
    assert log is not None
    assert (log.log_end_offset, log.high_watermark, len(world.lines.wire.sent)) == (WARM_UP, WARM_UP - 1, 1)
    return count.lines


def test_a_leader_runs_no_more_lines_than_it_may() -> None:
    assert lines_of_the_leader() <= LEADER_LINES * SLACK


def test_a_follower_runs_no_more_lines_than_it_may() -> None:
    assert lines_of_a_follower() <= FOLLOWER_LINES * SLACK
