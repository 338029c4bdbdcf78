"""Every sender of a broker meets an endpoint of another one that speaks SSL, and speaks it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.broker.facts import Leave
from kbroker.metadata.store import BrokerInfo
from kbroker.ports import Peers
from kbroker.replica.facts import InSyncProposed
from kbroker.replica.partition import LeaderState, Proposal
from kbroker.txn import Producer
from kbroker.txn.shard import WriteMarkers
from kbroker.txn.state import PREPARE_COMMIT, Transaction
from protocol.apis import BY_KEY
from protocol.messages.control import UpdateMetadataRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.contracts.peer_benches import SSL, TlsBench
from tests.world import World

OTHER = 2


class Stage(World):
    """A broker over sockets. other: broker 2, which a test plays, behind a listener of TLS."""

    def __init__(self) -> None:
        self.bench = TlsBench()
        self.played = self.bench.broker(OTHER)
        self.played.cluster_id = None
        self.played.served = {key: api.versions for key, api in BY_KEY.items()}
        super().__init__(transaction_state_log_num_partitions="1", num_replica_fetchers="2")
        self.create("t", 2)
        self.client().ask(FindCoordinatorRequest(key="pay", key_type=1), 3)
        self.advance(100)
        endpoint = self.played.address._replace(listener=self.plane.listener)
        self.other = self.plane.cache.brokers[OTHER] = BrokerInfo(OTHER, (endpoint,))

    def peers(self) -> Peers:
        return self.bench.peers

    def wait(self, by_ms: int) -> None:
        """Let time pass at both ends."""
        for _ in range(by_ms // 500):
            self.bench.advance(500)
            while self.bench.events:
                self.core.step(self.bench.events.pop(0), self.clock.now_ms())
            self.advance(500)

    def end(self) -> None:
        self.bench.close()

    def lose_the_controller(self) -> None:
        """It is broker 2 now."""
        self.plane.controller.epoch = None
        self.plane.controller.active_id = self.plane.cache.controller_id = OTHER


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.end()


def control(stage: Stage) -> None:
    controller = stage.plane.controller
    assert controller.epoch is not None
    controller.epoch.context.brokers[OTHER] = stage.other
    controller.channels.open(OTHER)
    controller.channels.put(OTHER, UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=[]))


def controlled_shutdown(stage: Stage) -> None:
    stage.lose_the_controller()
    stage.partition("t").replicas = (1, OTHER)
    stage.broker.tell(Leave())


def creation_of_topics(stage: Stage) -> None:
    stage.lose_the_controller()
    stage.client().send(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 4)


def in_sync_sets(stage: Stage) -> None:
    stage.lose_the_controller()
    partition = stage.partition("t")
    partition.proposal = Proposal((1,), partition.leader_epoch, partition.partition_epoch, -1)
    stage.broker.tell(InSyncProposed(partition))


def fetchers(stage: Stage) -> None:
    for index in (0, 1):
        state = LeaderState(1, OTHER, 5, (1, OTHER), 5, (1, OTHER))
        stage.replicas.become("t", index, stage.topic_id("t"), state, is_new=False)


def markers(stage: Stage) -> None:
    stage.plane.cache.topics["t"].partitions[1].leader = OTHER
    transaction = Transaction("pay", 7, 0, 1000, PREPARE_COMMIT, frozenset({("t", 1)}), 0, 0)
    stage.broker.markers.send(WriteMarkers(0, 3, transaction), 0)


def verification(stage: Stage) -> None:
    from kbroker.broker.transaction_partitions import Question

    stage.broker.transactions.runtime.resigned(0, 0)
    stage.plane.cache.topics["__transaction_state"].partitions[0].leader = OTHER
    question = Question("pay", Producer(7, 0), [("t", 0)], adds=False)
    stage.broker.transaction_partitions.ask(question, lambda codes, now_ms: None, 0)


@pytest.mark.parametrize(
    ("begin", "asked"),
    [
        (control, "UpdateMetadataRequest"),
        (controlled_shutdown, "ControlledShutdownRequest"),
        (creation_of_topics, "CreateTopicsRequest"),
        (in_sync_sets, "AlterPartitionRequest"),
        (fetchers, "FetchRequest"),
        (markers, "WriteTxnMarkersRequest"),
        (verification, "AddPartitionsToTxnRequest"),
    ],
)
def test_a_sender_speaks_tls_and_shows_its_certificate(
    begin: Callable[[Stage], None], asked: str, stage: Stage
) -> None:
    begin(stage)
    stage.wait(3_000)
    assert asked in {each.kind.__name__ for each in stage.played.asked}
    assert {str(each) for each in stage.bench.principals} == {"User:CN=broker,O=kbroker"}


def test_without_certificates_it_says_nothing_and_says_so_once_a_minute(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker.peers")
    del stage.bench.peers.transports[SSL]
    fetchers(stage)
    stage.wait(30_000)
    host, port = stage.other.endpoints[0][2:]
    (said,) = [each for each in caplog.messages if f"to broker {OTHER} at {host}:{port} failed" in each]
    assert said.endswith("the listener PLAINTEXT of broker 2 speaks SSL, which this broker does not speak to others")
    assert stage.played.accepted == 0
