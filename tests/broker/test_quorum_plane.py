"""A member of a quorum's cluster: what the metadata log says comes to pass at this broker, and is told to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.control_plane import Basis
from kbroker.broker.facts import Leave
from kbroker.broker.published_security import PublishedRules, PublishedTokens
from kbroker.broker.quorum_plane import Join, QuorumPlane
from kbroker.config import BrokerLayers, Given
from kbroker.log.facts import LogMoved
from kbroker.log.names import TopicPartition
from kbroker.metadata.cache import MetadataCache, MetadataDelta
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.ports import TO_CONTROLLER
from kbroker.quorum.facts import Committed, LeftCluster, Registered
from kbroker.replica import ReplicaManager
from kbroker.replica.facts import RoleChanged
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode, KafkaError
from protocol.message import Message
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
)
from protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from protocol.messages.topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from tests.world import World

ME, ONE, TWO = 1, 2, 3
EPOCH = 40  # of this broker's registration
T, U = b"t" * 16, b"u" * 16


def broker(broker_id: int, epoch: int = 9, *, fenced: bool = False) -> RegisterBrokerRecord:
    at = BrokerEndpoint(name="PLAINTEXT", host=f"host{broker_id}", port=9092, security_protocol=0)
    return RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id=T, broker_epoch=epoch, end_points=[at], features=[], rack=None,
        fenced=fenced,
    )  # fmt: skip


def partition(topic_id: bytes = T, index: int = 0, *, replicas: tuple[int, ...] = (ME, ONE), **fields: Any) -> Message:
    values = {"isr": list(replicas), "leader": replicas[0], "leader_epoch": 0, "partition_epoch": 0} | fields
    return PartitionRecord(
        partition_id=index, topic_id=topic_id, replicas=list(replicas), removing_replicas=[], adding_replicas=[],
        directories=[bytes(16)] * len(replicas), **values,
    )  # fmt: skip


def change(**fields: Any) -> Message:
    return PartitionChangeRecord(partition_id=0, topic_id=T, **fields)


def config(of_type: int, resource: str, name: str, value: str | None) -> Message:
    return ConfigRecord(resource_type=of_type, resource_name=resource, name=name, value=value)


FIRST = (
    FeatureLevelRecord(name="metadata.version", feature_level=25),
    broker(ONE),
    broker(TWO),
    broker(ME, EPOCH, fenced=True),
)
MADE = (TopicRecord(name="t", topic_id=T), partition())


class Member:
    """Broker 1, whose quorum and life a test plays. asked: of controllers. facts: what was told beside its own."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.now_ms = self.world.clock.now_ms()
        self.queue: deque[object] = deque()
        self.facts: list[object] = []
        self.asked: list[tuple[Message, Any, Callable[[Any], None], Callable[[KafkaError], None]]] = []
        self.published: list[int] = []
        self.assigned: list[tuple[bytes, int]] = []
        self.said: list[str] = []
        self.sent: list[tuple[int, str, Message]] = []
        self.life: Any = SimpleNamespace(
            broker_epoch=-1, is_fenced=True, fatal="", published=self.published.append,
            ready_to_serve=lambda now_ms: self.said.append("ready"), leave=lambda now_ms: self.said.append("leave"),
            assigned=lambda topic_id, index, directory, now_ms: self.assigned.append((topic_id, index)),
            unassigned=lambda topic_id, index: None, start=lambda endpoints, now_ms: self.said.append("start"),
        )  # fmt: skip
        self.observer: Any = SimpleNamespace(
            fatal="", wants_snapshot=False, leader=None,
            start=lambda now_ms: self.said.append("follow"),
            take_snapshot=lambda values, fact: self.said.append("write"),
        )  # fmt: skip
        requester = SimpleNamespace(listener="PLAINTEXT", cluster_id="", ask=self._send)
        to_controller = SimpleNamespace(ask=lambda request, versions, timeout_ms, done, failed: self.asked.append(
            (request, versions, done, failed)
        ))  # fmt: skip
        configs = Configs(BrokerLayers(static={"log.dirs": Given("/a", "the test")}))
        self.scheduler = Scheduler(self.now_ms)
        self.replicas = ReplicaManager(ME, self.world.logs, self.world.clock, configs, self.queue.append)
        self.cache = MetadataCache()
        endpoints = (Endpoint("PLAINTEXT", 0, "host1", 9092),)
        basis = Basis(
            ME, "cluster", configs, self.replicas, self.world.logs, self.cache, cast(Any, requester), endpoints,
            self.world.clock, cast(Any, None), self.scheduler, self.queue.append,
        )  # fmt: skip
        self.plane = QuorumPlane(basis, self.observer, self.life, cast(Any, to_controller))
        self._offset = -1

    def _send(self, asker: Any, node_id: int, purpose: str, request: Message, token: Any, **where: Any) -> bool:
        self.sent.append((node_id, purpose, request))
        return True

    def hear(self, fact: object) -> None:
        """Tell the plane something; what follows has happened, too."""
        self.queue.append(fact)
        while self.queue or self.scheduler.is_slicing:
            if not self.queue:
                self.scheduler.run_slice(self.world.clock.now_ms)
                continue
            told = self.queue.popleft()
            handler = self.plane.handlers.get(type(told))
            if handler is None or isinstance(told, RoleChanged):
                self.facts.append(told)
            if handler is not None:
                handler(told, self.now_ms)
        self.world.settle()

    def commit(self, *records: Message, **snapshot: bool) -> None:
        self._offset += max(len(records), 1)
        self.hear(Committed(records, self._offset, 3, 0, **snapshot))

    def join(self, *records: Message) -> None:
        """It is registered, and told of all there is; and then unfenced."""
        self.commit(*FIRST, *records)
        self.life.broker_epoch = EPOCH
        self.hear(Registered(EPOCH))
        self.life.is_fenced = False
        self.commit(BrokerRegistrationChangeRecord(broker_id=ME, broker_epoch=EPOCH, fenced=-1))
        self.facts.clear()

    def partition(self, topic: str = "t") -> Any:
        return self.replicas.partitions.get((topic, 0))


@pytest.fixture
def member() -> Member:
    return Member()


# -- joining


def test_nothing_is_done_before_the_log_has_come_to_the_brokers_own_registration(member: Member) -> None:
    member.hear(Join())
    member.commit(*FIRST[:-1], broker(ME, 7), *MADE)
    member.life.broker_epoch = EPOCH
    member.hear(Registered(EPOCH))
    assert (member.said, member.partition(), member.cache.brokers) == (["follow", "start"], None, {})
    member.commit(broker(ME, EPOCH, fenced=True))
    assert member.partition().is_leader
    assert (member.said[2:], member.published, sorted(member.cache.brokers)) == (["ready"], [5, 6, 6], [ONE, TWO])


def test_it_is_ready_once_it_is_unfenced_and_is_the_one_that_clients_ask_for_changes(member: Member) -> None:
    member.commit(*FIRST)
    member.life.broker_epoch = EPOCH
    member.hear(Registered(EPOCH))
    early = member.plane.ready, member.plane.open_to_brokers, member.cache.controller_id
    member.life.is_fenced = False
    member.commit(BrokerRegistrationChangeRecord(broker_id=ME, broker_epoch=EPOCH, fenced=-1))
    assert (early, member.plane.ready, member.cache.controller_id) == ((False, True, ONE), True, ME)


def test_a_feature_that_it_does_not_know_is_its_end_before_anything_is_done(member: Member) -> None:
    member.join(FeatureLevelRecord(name="novel.version", feature_level=2), *MADE)
    assert member.plane.fatal.startswith("the cluster has finalized novel.version=2; this broker supports ")
    assert member.partition() is None


def test_logs_of_partitions_that_went_elsewhere_meanwhile_are_set_aside() -> None:
    world = World()
    before = Member(world)
    before.join(*MADE, TopicRecord(name="u", topic_id=U), partition(U))
    again = Member(world)
    again.join(*MADE, TopicRecord(name="u", topic_id=U), partition(U, replicas=(ONE, TWO)))
    assert world.logs.get("t", 0) is again.partition().log is before.partition().log
    assert world.logs.get("u", 0) is None
    assert any("-stray" in entry.name for entry in world.disk.list("/a"))


# -- topics


def test_a_topic_is_led_and_followed_as_the_log_says(member: Member) -> None:
    member.join(*MADE)
    led = member.partition()
    member.commit(change(leader=ONE, isr=[ONE, ME]))
    assert (led is member.partition(), led.is_leader, led.leader_epoch, led.isr) == (True, False, 1, (ONE, ME))
    told = member.cache.partition("t", 0)
    assert told is not None
    assert (told.leader, told.leader_epoch, member.cache.topic_id("t")) == (ONE, 1, T)
    assert [type(each) for each in member.facts] == [RoleChanged, MetadataDelta]


def test_who_is_in_sync_changes_without_a_new_epoch_and_without_a_new_role(member: Member) -> None:
    member.join(*MADE)
    member.commit(change(isr=[ME], replicas=[ME, ONE, TWO], adding_replicas=[TWO], directories=[bytes(16)] * 3))
    found = member.partition()
    assert (found.isr, found.replicas, found.adding, found.leader_epoch) == ((ME,), (ME, ONE, TWO), (TWO,), 0)
    assert [type(each) for each in member.facts] == [MetadataDelta]


def test_a_replica_that_is_taken_elsewhere_goes_with_its_log(member: Member) -> None:
    member.join(*MADE)
    member.commit(change(leader=ONE, replicas=[ONE, TWO], isr=[ONE, TWO]))
    assert (member.partition(), member.world.logs.get("t", 0)) == (None, None)
    assert member.cache.partition("t", 0) is not None


def test_a_topic_deleted_and_created_again_by_one_change_is_another_one(member: Member) -> None:
    member.join(*MADE)
    before = member.partition()
    member.commit(RemoveTopicRecord(topic_id=T), TopicRecord(name="t", topic_id=U), partition(U))
    after = member.partition()
    assert (after.topic_id, after.log is before.log, member.cache.topic_id("t")) == (U, False, U)
    member.commit(RemoveTopicRecord(topic_id=U))
    assert (member.partition(), member.cache.topics, member.world.logs.get("t", 0)) == (None, {}, None)


def test_a_snapshot_takes_the_place_of_all_that_was_known(member: Member) -> None:
    member.join(*MADE, TopicRecord(name="u", topic_id=U), partition(U))
    kept = member.partition()
    member.commit(*FIRST[:-1], is_snapshot=True, is_last=False)
    still = member.partition("u")
    member.commit(broker(ME, EPOCH), *MADE, is_snapshot=True, is_first=False)
    assert (still is not None, member.partition("u"), member.partition() is kept) == (True, None, True)
    assert sorted(member.cache.topics) == ["t"]


def test_a_broker_that_is_fenced_is_told_to_no_client_and_may_not_come_into_sync(member: Member) -> None:
    member.join(*MADE)
    alive = member.replicas.rules.is_alive
    before = alive(ONE), alive(TWO)
    member.commit(
        BrokerRegistrationChangeRecord(broker_id=ONE, broker_epoch=9, fenced=1),
        BrokerRegistrationChangeRecord(broker_id=TWO, broker_epoch=9, in_controlled_shutdown=1),
    )
    told = member.cache.partition("t", 0)
    assert told is not None
    assert (before, alive(ONE), alive(TWO), alive(7)) == ((True, True), False, False, False)
    assert (sorted(member.cache.brokers), told.offline_replicas) == ([ME, TWO], [ONE])
    assert [each.id for each in member.plane.fenced_brokers()] == [ONE]


def test_a_broker_that_was_fenced_says_so_even_if_it_is_back_by_now(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat that comes late is answered with what follows from it: only the log tells what was before."""
    member.join(*MADE)
    member.commit(
        BrokerRegistrationChangeRecord(broker_id=ME, broker_epoch=EPOCH, fenced=1),
        BrokerRegistrationChangeRecord(broker_id=ME, broker_epoch=EPOCH, fenced=-1),
    )
    line = f"broker {ME} is fenced: controllers have not heard of it in time"
    assert [each.message for each in caplog.records if "fenced" in each.message] == [line]


def test_controllers_are_told_of_a_replica_that_is_in_another_directory_than_they_know(member: Member) -> None:
    member.join(*MADE)
    own = member.world.logs.directories[0].meta.directory_id
    assert own is not None
    assert member.assigned == [(T, 0)]
    member.commit(change(isr=[ME], directories=[own, bytes(16)]))
    member.hear(LogMoved(TopicPartition("t", 0)))
    assert member.assigned == [(T, 0)]
    member.world.logs.directories[0].meta = member.world.logs.directories[0].meta._replace(directory_id=b"d" * 16)
    member.hear(LogMoved(TopicPartition("t", 0)))
    assert member.assigned == [(T, 0), (T, 0)]


def test_records_that_do_not_fit_are_the_brokers_end(member: Member) -> None:
    member.join(*MADE)
    member.commit(PartitionChangeRecord(partition_id=7, topic_id=T, isr=[ME]))
    assert member.plane.fatal.startswith("the metadata log cannot be applied at offset ")


def test_a_snapshot_is_written_when_there_is_enough_to_write_but_not_in_the_middle_of_a_change(member: Member) -> None:
    member.join()
    member.observer.wants_snapshot = True
    before = len(member.said)
    member.commit(BeginTransactionRecord())
    early = member.said[before:]
    member.commit(*MADE, EndTransactionRecord())
    assert ("write" in early, member.said[-1], member.partition() is not None) == (False, "write", True)


# -- settings


def test_settings_reach_logs_the_broker_groups_and_clients(member: Member) -> None:
    member.join(*MADE, config(2, "t", "min.insync.replicas", "2"))
    early = member.partition().min_insync_replicas
    member.commit(
        config(2, "t", "min.insync.replicas", None),
        config(2, "t", "segment.bytes", "2000000"),
        config(4, "", "log.cleaner.threads", "3"),
        config(4, "1", "background.threads", "7"),
        config(4, "2", "background.threads", "9"),
        config(32, "g", "consumer.session.timeout.ms", "50000"),
        ClientQuotaRecord(
            entity=[EntityData(entity_type="user", entity_name="al/ice")], key="producer_byte_rate", value=10.0,
            remove=False,
        ),
        UserScramCredentialRecord(
            name="al/ice", mechanism=1, salt=b"s", stored_key=b"k" * 32, server_key=b"v" * 32, iterations=4096
        ),
        ClientQuotaRecord(
            entity=[EntityData(entity_type="client-id", entity_name=None)], key="consumer_byte_rate", value=2.5,
            remove=False,
        ),
    )  # fmt: skip
    plane, found = member.plane, member.partition()
    assert (early, found.min_insync_replicas, found.log.config.segment_bytes) == (2, 1, 2_000_000)
    assert (plane.configs.broker.log_cleaner_threads, plane.configs.broker.background_threads) == (3, 7)
    assert plane.configs.group("g") == {"consumer.session.timeout.ms": "50000"}
    user = plane.entities.of("users/al%2Fice")
    assert user["producer_byte_rate"] == "10.0"
    assert user["SCRAM-SHA-256"].startswith("salt=cw==,stored_key=")
    assert plane.entities.of("clients/<default>") == {"consumer_byte_rate": "2.5"}
    assert plane.read_configs([("topics", "t"), ("groups", "g")]).value == {
        ("topics", "t"): {"segment.bytes": "2000000"}, ("groups", "g"): {"consumer.session.timeout.ms": "50000"},
    }  # fmt: skip


def test_rules_and_tokens_are_those_of_the_log(member: Member) -> None:
    static = {"super.users": "User:root", "delegation.token.secret.key": "k"}
    broker_config = Configs(BrokerLayers(static={key: Given(text, "test") for key, text in static.items()})).broker
    rules = PublishedRules(broker_config)
    tokens = PublishedTokens(broker_config, member.world.clock, cast(Any, None))
    member.plane.publishers += [rules, tokens]

    def rule(number: int, operation: int) -> Message:
        return AccessControlEntryRecord(
            id=bytes([number] * 16), resource_type=2, resource_name="t", pattern_type=3, principal="User:alice",
            host="*", operation=operation, permission_type=3,
        )  # fmt: skip

    member.join(rule(1, 3), rule(2, 4))
    (some,) = rules.rules.by_pattern.values()
    member.commit(
        RemoveAccessControlEntryRecord(id=bytes([1] * 16)),
        DelegationTokenRecord(
            owner="User:alice", requester="User:bob", renewers=["User:carol"], issue_timestamp=1, max_timestamp=9,
            expiration_timestamp=5, token_id="x",
        ),
    )  # fmt: skip
    (left,) = rules.rules.by_pattern.values()
    assert ({each.operation for each in some}, {each.operation for each in left}) == ({3, 4}, {4})
    assert (str(tokens.tokens["x"].owner), tokens.tokens["x"].expires_ms) == ("User:alice", 5)


# -- asking


def test_topics_are_made_by_the_controllers_once_however_many_ask(member: Member) -> None:
    from kbroker.controller.admin import NewTopic

    member.join()
    wanted = [NewTopic("new", 2, 1, {}, {}), NewTopic("bad", 2, 1, {}, {})]
    first, second = member.plane.auto_create(wanted), member.plane.auto_create(wanted[:1])
    ((request, _, done, _),) = member.asked
    assert isinstance(request, CreateTopicsRequest)
    made = CreatableTopicResult(name="new", topic_id=T, error_code=0, error_message=None)
    refused = CreatableTopicResult(name="bad", error_code=ErrorCode.POLICY_VIOLATION, error_message="no")
    done(CreateTopicsResponse(topics=[made, refused]))
    assert first["new"] is second["new"] is first["bad"]
    assert first["new"].value is not None
    assert isinstance(first["new"].value["bad"], KafkaError)


def test_what_the_controllers_think_of_this_broker_is_no_answer_about_a_topic(member: Member) -> None:
    from kbroker.controller.admin import NewTopic

    member.join()
    wanted = [NewTopic(name, 2, 1, {}, {}) for name in ("denied", "left out")]
    pending = member.plane.auto_create(wanted)["denied"]
    denied = CreatableTopicResult(
        name="denied", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="not you"
    )
    member.asked[0][2](CreateTopicsResponse(topics=[denied]))
    assert pending.value is not None
    codes = [each.code for each in pending.value.values() if isinstance(each, KafkaError)]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_a_topic_that_no_controller_answers_about_is_asked_for_again_by_the_next(member: Member) -> None:
    from kbroker.controller.admin import NewTopic

    wanted = [NewTopic("new", 2, 1, {}, {})]
    pending = member.plane.auto_create(wanted)["new"]
    member.asked[0][3](KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    member.plane.auto_create(wanted)
    assert (pending.error is not None, len(member.asked)) == (True, 2)


def test_producer_ids_come_from_the_controllers_in_blocks(member: Member) -> None:
    member.join()
    ids = member.plane.producer_ids
    early = ids.take()
    ((request, _, done, _),) = member.asked
    assert isinstance(request, AllocateProducerIdsRequest)
    done(AllocateProducerIdsResponse(error_code=0, producer_id_start=5000, producer_id_len=1000))
    assert (request.broker_epoch, early, ids.take(), ids.take()) == (EPOCH, None, 5000, 5001)


def test_in_sync_sets_are_asked_of_the_quorums_leader(member: Member) -> None:
    request = AlterPartitionRequest(broker_id=ME, broker_epoch=EPOCH, topics=[])
    nobody = member.plane.alter_partition(cast(Any, None), request, 3, None, lambda response: None)
    member.observer.leader = SimpleNamespace(node_id=100, endpoint=None)
    known = member.plane.alter_partition(cast(Any, None), request, 3, None, lambda response: None)
    assert (nobody, known, member.sent) == (False, True, [(100, TO_CONTROLLER, request)])


def test_a_broker_that_stops_waits_until_it_may(member: Member) -> None:
    member.hear(Leave())
    never = member.plane.is_over
    member.join()
    member.hear(Leave())
    asked = member.plane.is_over
    member.hear(LeftCluster())
    assert (never, asked, member.said[-1], member.plane.is_over) == (True, False, "leave", True)
