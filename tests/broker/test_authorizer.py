"""Who may do what: everybody everything without an authorizer, and with one what it says."""

from __future__ import annotations

import pytest

from kbroker.api.routes import ROUTES
from kbroker.broker.authorizer import CLUSTER_NAME, AuthHelper, Operation, ResourceType
from kbroker.broker.facts import Touched
from kbroker.broker.session import Session
from kbroker.config.limits import PERMISSION_PATIENCE_MS
from kbroker.core import EXPIRED
from protocol.errors import ErrorCode, KafkaError
from protocol.message import Message
from protocol.messages.control import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from protocol.messages.fetch import FetchRequest
from protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from protocol.messages.logdirs import DescribeLogDirsRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from protocol.messages.security import DescribeAclsRequest
from protocol.messages.topics import ElectLeadersRequest, ListPartitionReassignmentsRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WriteTxnMarkersRequest,
)
from tests.api.test_follower_fetch import lead, of_follower
from tests.requests import fetched, produce
from tests.world import World

ME = Session("PLAINTEXT", "192.0.2.1", 5000)


class Only:
    """Has rules: allows some operations, on everything."""

    has_rules = True

    def __init__(self, *allowed: Operation) -> None:
        self._allowed = allowed

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        return operation in self._allowed

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        return operation in self._allowed

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> object:
        return None


class NoRules(Only):
    """Goes by addresses, say."""

    has_rules = False


class Later(NoRules):
    """Knows only later what it allows."""

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> object:
        return "later"

    def know(self, world: World, *allowed: Operation) -> None:
        self._allowed = allowed
        world.broker.tell(Touched(["later"]))
        world.core.step(EXPIRED, world.clock.now_ms())
        world.settle()


def test_without_an_authorizer_everybody_may_do_everything() -> None:
    permission = AuthHelper()
    permission.require(ME, Operation.ALTER)
    groups = permission.operations(ME, ResourceType.GROUP, "g")
    assert groups == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11  # the last two are of a group's own settings


def test_what_may_be_done_is_a_bit_for_each_operation() -> None:
    permission = AuthHelper(Only(Operation.WRITE, Operation.CLUSTER_ACTION))
    found = [permission.operations(ME, each, "x") for each in ResourceType]
    assert found == [1 << 4, 0, 0, 1 << 4, 0, 0]


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_a_refusal_has_the_code_of_the_resource_and_names_who_and_what(resource: ResourceType, code: ErrorCode) -> None:
    with pytest.raises(
        KafkaError, match=rf"User:ANONYMOUS at 192.0.2.1:5000 .* may not READ {resource.name} x"
    ) as told:
        AuthHelper(Only(Operation.WRITE)).require(ME, Operation.READ, resource=resource, name="x")
    assert told.value.code is code


def test_one_of_several_operations_is_enough() -> None:
    AuthHelper(Only(Operation.ALTER)).require(ME, Operation.CLUSTER_ACTION, Operation.ALTER)


WHOLE_REQUESTS: list[tuple[Message, Operation]] = [
    (LeaderAndIsrRequest(controller_id=1, controller_epoch=1, live_leaders=[]), Operation.CLUSTER_ACTION),
    (StopReplicaRequest(controller_id=1, controller_epoch=1), Operation.CLUSTER_ACTION),
    (UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=[]), Operation.CLUSTER_ACTION),
    (DescribeLogDirsRequest(topics=None), Operation.DESCRIBE),
    (ListPartitionReassignmentsRequest(topics=None), Operation.DESCRIBE),
    (ElectLeadersRequest(topic_partitions=None), Operation.ALTER),
    (
        DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        Operation.DESCRIBE,
    ),
]


@pytest.mark.parametrize(("request_", "needed"), WHOLE_REQUESTS, ids=lambda each: type(each).__name__)
def test_what_concerns_the_cluster_is_refused_as_a_whole(request_: Message, needed: Operation) -> None:
    world = World()
    route = ROUTES[type(request_).api or 0]
    codes = []
    for authorizer in (Only(), Only(needed)):
        world.broker.auth_helper.authorizer = authorizer
        answer = world.client().ask(request_, route.last)
        codes.append(answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert codes == [True, False]


def test_only_brokers_fetch_as_followers() -> None:
    world = World()
    world.create("t")
    world.broker.auth_helper.authorizer = NoRules(Operation.READ)
    request = FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[])
    assert world.client().ask(request, 11).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("allowed", [Operation.ALTER, Operation.CLUSTER_ACTION])
def test_markers_are_written_for_brokers_and_for_admins(allowed: Operation) -> None:
    world = World()
    world.broker.auth_helper.authorizer = Only(allowed)
    assert world.client().ask(WriteTxnMarkersRequest(markers=[]), 1).markers == []


def test_what_a_client_may_do_is_told_to_those_who_ask() -> None:
    world = World()
    world.create("t")
    world.broker.auth_helper.authorizer = Only(Operation.DESCRIBE, Operation.READ)
    client = world.client()
    told = client.ask(MetadataRequest(topics=None, include_topic_authorized_operations=True), 9)
    cluster = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
    groups = client.ask(DescribeGroupsRequest(groups=[], include_authorized_operations=True), 4).groups
    topic = told.topics[0].topic_authorized_operations
    assert (topic, cluster.cluster_authorized_operations, groups) == (1 << 3 | 1 << 8, 1 << 8, [])


def test_the_authorizer_is_told_whose_permission_is_asked() -> None:
    asked = []

    class Notes:
        has_rules = True

        def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
            asked.append((session.listener, str(session.principal), operation, resource, name))
            return True

        def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
            return True

        def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> None:
            return None

    world = World()
    world.broker.auth_helper.authorizer = Notes()
    world.client().ask(ListPartitionReassignmentsRequest(topics=None), 0)
    assert asked == [("PLAINTEXT", "User:ANONYMOUS", Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)]


NEWS = UpdateMetadataRequest(controller_id=1, controller_epoch=7, live_brokers=[])


@pytest.mark.parametrize(
    ("allowed", "code", "epoch"),
    [((Operation.CLUSTER_ACTION,), ErrorCode.NONE, 7), ((), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 1)],
)
def test_what_is_undecided_waits_and_is_handled_once_or_refused(
    allowed: tuple[Operation, ...], code: ErrorCode, epoch: int
) -> None:
    world, later = World(), Later()
    world.broker.auth_helper = AuthHelper(later)
    client = world.client()
    number = client.send(NEWS, 8)
    before = client.look().get(number)
    later.know(world, *allowed)
    answer = client.look().get(number)
    assert answer is not None
    assert (before, ErrorCode(answer.error_code), world.plane.control_requests.controller_epoch) == (None, code, epoch)


def test_what_stays_undecided_is_refused_when_patience_ends() -> None:
    world = World()
    world.broker.auth_helper = AuthHelper(Later())
    client = world.client()
    number = client.send(NEWS, 8)
    world.advance(PERMISSION_PATIENCE_MS + 1)
    answer = client.look().get(number)
    assert answer is not None
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [4, 17])
@pytest.mark.parametrize("max_wait_ms", [0, 500])
@pytest.mark.parametrize(
    ("allowed", "code"),
    [((Operation.CLUSTER_ACTION,), ErrorCode.NONE), ((), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)],
)
def test_a_follower_that_is_undecided_waits_and_is_answered_or_refused(
    version: int, max_wait_ms: int, allowed: tuple[Operation, ...], code: ErrorCode
) -> None:
    world, later = World(), Later()
    world.create("t")
    lead(world, (1, 2))
    world.client().ask(produce(b"a"), 9)
    world.broker.auth_helper = AuthHelper(later)
    client = world.client()
    number = client.send(of_follower(world, 1, version, max_wait_ms=max_wait_ms, min_bytes=1), version)
    before = client.look().get(number)
    later.know(world, *allowed)
    world.advance(2 * max_wait_ms)
    answer = client.look()[number]
    told = answer.error_code if version >= 7 else fetched(answer)[0].error_code
    assert (before, ErrorCode(told), world.partition("t").log.high_watermark) == (None, code, len(allowed))  # type: ignore[union-attr]


def add_to_transaction(topic: str, *, verify_only: bool = False) -> AddPartitionsToTxnRequest:
    """As a broker asks, for a transactional id that does not exist."""
    added = AddPartitionsToTxnTransaction(
        transactional_id="pay",
        producer_id=7,
        producer_epoch=0,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    return AddPartitionsToTxnRequest(transactions=[added])


def world_with_coordinators() -> World:
    world = World(offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1")
    world.create("t")
    for kind in (0, 1):
        world.client().ask(FindCoordinatorRequest(key="pay", key_type=kind), 3)
    world.advance(100)
    return world


@pytest.mark.parametrize("authorizer", [NoRules(), Later()], ids=["refused", "undecided"])
@pytest.mark.parametrize("version", [4, 5])
def test_clients_add_partitions_in_the_versions_that_brokers_use(authorizer: Only, version: int) -> None:
    world = world_with_coordinators()
    world.broker.auth_helper = AuthHelper(authorizer)  # type: ignore[arg-type]
    answer = world.client().ask(add_to_transaction("t"), version)
    (part,) = answer.results_by_transaction[0].topic_results[0].results_by_partition
    told = ErrorCode(answer.error_code), ErrorCode(part.partition_error_code)
    assert told == (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)  # the coordinator was asked


def test_internal_topics_are_verified_for_anybody_as_nothing_changes() -> None:
    world = world_with_coordinators()
    world.broker.auth_helper = AuthHelper(NoRules())
    answer = world.client().ask(add_to_transaction("__consumer_offsets", verify_only=True), 5)
    assert answer.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("allowed", "code"),
    [((Operation.CLUSTER_ACTION,), ErrorCode.NONE), ((), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)],
)
def test_internal_topics_are_added_for_brokers_once_they_are_known(
    allowed: tuple[Operation, ...], code: ErrorCode
) -> None:
    world, later = world_with_coordinators(), Later()
    world.broker.auth_helper = AuthHelper(later)
    client = world.client()
    number = client.send(add_to_transaction("__consumer_offsets"), 5)
    before = client.look().get(number)
    later.know(world, *allowed)
    assert (before, ErrorCode(client.look()[number].error_code)) == (None, code)
