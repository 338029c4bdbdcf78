"""Every API names the rights that it needs, and says so, part by part, to who lacks one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.api.authorization import Hides
from kbroker.api.routes import ROUTES, SERVED, load
from kbroker.broker.authorizer import DENIED, Operation, ResourceType
from kbroker.broker.session import Session
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message, Struct
from protocol.messages.fetch import FetchRequest
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest, SyncGroupRequest
from protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.schema import Field, FieldType, fields_at
from tests.requests import batch, fetch, fetched, produce, produced
from tests.world import World

if TYPE_CHECKING:
    from kbroker.api.authorization import Need

load()
TOPIC, GROUP, CLUSTER, ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = list(
    Operation
)[:10]
NEEDED: dict[str, set[tuple[Operation, ResourceType]]] = {
    "Produce": {(WRITE, TOPIC), (WRITE, ID)},
    "Fetch": {(READ, TOPIC), (ACTION, CLUSTER)},
    "ListOffsets": {(DESCRIBE, TOPIC)},
    "Metadata": {(DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC)},
    "OffsetForLeaderEpoch": {(DESCRIBE, TOPIC), (ACTION, CLUSTER)},
    "CreateTopics": {(CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE_CONFIGS, TOPIC)},
    "CreatePartitions": {(ALTER, TOPIC)},
    "DeleteTopics": {(DELETE, TOPIC)},
    "DeleteRecords": {(DELETE, TOPIC)},
    "InitProducerId": {(WRITE, ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)},
    "JoinGroup": {(READ, GROUP)},
    "SyncGroup": {(READ, GROUP)},
    "Heartbeat": {(READ, GROUP)},
    "LeaveGroup": {(READ, GROUP)},
    "OffsetCommit": {(READ, GROUP), (READ, TOPIC)},
    "TxnOffsetCommit": {(WRITE, ID), (READ, GROUP), (READ, TOPIC)},
    "AddOffsetsToTxn": {(WRITE, ID), (READ, GROUP)},
    "AddPartitionsToTxn": {(WRITE, ID), (WRITE, TOPIC), (ACTION, CLUSTER)},
    "EndTxn": {(WRITE, ID)},
    "OffsetFetch": {(DESCRIBE, GROUP), (DESCRIBE, TOPIC)},
    "FindCoordinator": {(DESCRIBE, GROUP), (DESCRIBE, ID), (DESCRIBE, CLUSTER)},
    "DescribeGroups": {(DESCRIBE, GROUP)},
    "ListGroups": {(DESCRIBE, CLUSTER), (DESCRIBE, GROUP)},
    "DeleteGroups": {(DELETE, GROUP)},
    "OffsetDelete": {(DELETE, GROUP), (READ, TOPIC)},
    "ConsumerGroupHeartbeat": {(READ, GROUP), (DESCRIBE, TOPIC)},
    "ConsumerGroupDescribe": {(DESCRIBE, GROUP)},
    "ShareGroupHeartbeat": {(READ, GROUP), (DESCRIBE, TOPIC)},
    "ShareGroupDescribe": {(DESCRIBE, GROUP)},
    "DescribeShareGroupOffsets": {(DESCRIBE, GROUP)},
    "AlterShareGroupOffsets": {(READ, GROUP), (READ, TOPIC)},
    "DeleteShareGroupOffsets": {(DELETE, GROUP), (READ, TOPIC)},
    "ShareFetch": {(READ, GROUP)},
    "ShareAcknowledge": {(READ, GROUP)},
    "InitializeShareGroupState": {(ACTION, CLUSTER)},
    "ReadShareGroupState": {(ACTION, CLUSTER)},
    "WriteShareGroupState": {(ACTION, CLUSTER)},
    "DeleteShareGroupState": {(ACTION, CLUSTER)},
    "ReadShareGroupStateSummary": {(ACTION, CLUSTER)},
    "StreamsGroupHeartbeat": {(READ, GROUP), (DESCRIBE, TOPIC)},
    "StreamsGroupDescribe": {(DESCRIBE, GROUP), (DESCRIBE, TOPIC)},
    "StreamsGroupTopologyDescriptionUpdate": {(READ, GROUP)},
    "DescribeConfigs": {(DESCRIBE_CONFIGS, TOPIC)},
    "AlterConfigs": {(ALTER_CONFIGS, TOPIC)},
    "IncrementalAlterConfigs": {(ALTER_CONFIGS, TOPIC)},
    "AlterPartitionReassignments": {(ALTER, CLUSTER)},
    "ListPartitionReassignments": {(DESCRIBE, CLUSTER)},
    "ElectLeaders": {(ALTER, CLUSTER)},
    "AlterReplicaLogDirs": {(ALTER, CLUSTER)},
    "DescribeLogDirs": {(DESCRIBE, CLUSTER)},
    "UpdateFeatures": {(ALTER, CLUSTER)},
    "ListConfigResources": {(DESCRIBE_CONFIGS, CLUSTER)},
    "DescribeAcls": {(DESCRIBE, CLUSTER)},
    "DescribeClientQuotas": {(DESCRIBE_CONFIGS, CLUSTER)},
    "AlterClientQuotas": {(ALTER_CONFIGS, CLUSTER)},
    "CreateAcls": {(ALTER, CLUSTER)},
    "DeleteAcls": {(ALTER, CLUSTER)},
    "WriteTxnMarkers": {(ALTER, CLUSTER), (ACTION, CLUSTER)},
    "DescribeProducers": {(READ, TOPIC)},
    "DescribeTransactions": {(DESCRIBE, ID), (DESCRIBE, TOPIC)},
    "ListTransactions": {(DESCRIBE, ID)},
    "DescribeTopicPartitions": {(DESCRIBE, TOPIC)},
    "LeaderAndIsr": {(ACTION, CLUSTER)},
    "StopReplica": {(ACTION, CLUSTER)},
    "UpdateMetadata": {(ACTION, CLUSTER)},
    "ControlledShutdown": {(ACTION, CLUSTER)},
    "AlterPartition": {(ACTION, CLUSTER)},
    "AllocateProducerIds": {(ACTION, CLUSTER)},
    "DescribeUserScramCredentials": {(DESCRIBE, CLUSTER)},
    "AlterUserScramCredentials": {(ALTER, CLUSTER)},
    "CreateDelegationToken": set(),  # for the sender's own; CREATE_TOKENS of a user for another's
    "RenewDelegationToken": set(),  # the owner's and the renewers'
    "ExpireDelegationToken": set(),  # likewise
    "DescribeDelegationToken": set(),  # of others: DESCRIBE, or DESCRIBE_TOKENS of their owner
    "SaslHandshake": set(),  # come before anything is known of who asks
    "SaslAuthenticate": set(),
    "ApiVersions": set(),  # comes before anything is known of who asks
    "DescribeCluster": set(),  # each client may see the brokers; DESCRIBE of the cluster shows what else it may do
}


def test_every_api_names_what_it_needs() -> None:
    named = {ROUTES[api].name: {right for need in ROUTES[api].needs for right in need.rights} for api in SERVED}
    assert named == NEEDED


class Denies:
    """An authorizer with rules: some rights are denied, on resources of some names or on all."""

    has_rules = True

    def __init__(self, rights: Iterable[tuple[Operation, ResourceType]], *names: str) -> None:
        self._rights = set(rights)
        self._names = names

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        return (operation, resource) not in self._rights or bool(self._names and name not in self._names)

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        return (operation, resource) not in self._rights

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> None:
        return None


def world_of(*names: str) -> World:
    world = World(offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1")
    for name in names:
        world.create(name)
    for kind in (0, 1):
        world.client().ask(FindCoordinatorRequest(key="x", key_type=kind), 3)
    world.advance(100)
    return world


def deny(world: World, *rights: tuple[Operation, ResourceType], names: Iterable[str] = ()) -> None:
    world.broker.auth_helper.authorizer = Denies(rights, *names)


# -- every API, every need


def sample(cls: type[Struct], version: int) -> dict[str, Any]:
    """A request that names the topic t, a group or a transactional id, once each."""
    return {field.name: _value(field, field.type, version) for field in fields_at(cls, version)}


def _value(field: Field, kind: FieldType, version: int) -> Any:
    if kind.kind == "array":
        assert kind.element is not None
        return [_value(field, kind.element, version)]
    if kind.kind == "struct":
        assert kind.struct is not None
        return kind.struct(**sample(kind.struct, version))
    made = {"uuid": ZERO_UUID, "string": "t", "bool": False, "bytes": b"", "float64": 0.0}
    return made.get(kind.kind, 0)


BATCH = bytes(batch(b"a", producer=(7, 0, 0)))
TRANSACTIONAL = BATCH[:22] + bytes([BATCH[22] | 16]) + BATCH[23:]
NEW = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
SPECIAL: dict[tuple[str, int], dict[str, Any]] = {
    ("Produce", 0): {"transactional_id": "x", "acks": 1},
    ("Produce", 1): {"acks": 1},
    ("Fetch", 0): {"replica_id": -1, "session_epoch": -1},
    ("CreateTopics", 0): {"topics": [NEW], "timeout_ms": 1000},
    ("CreateTopics", 1): {"topics": [NEW], "timeout_ms": 1000},
    ("Metadata", 1): {"topics": [MetadataRequestTopic(name="new")], "allow_auto_topic_creation": True},
    ("InitProducerId", 1): {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    ("DescribeTopicPartitions", 0): {"cursor": None},
    ("DescribeTopicPartitions", 1): {"topics": [], "cursor": None},
}
VERSIONS = {
    ("Produce", 0): 12,
    ("Produce", 1): 12,
    ("Fetch", 0): 12,
    ("OffsetCommit", 1): 9,  # those since name topics by their ids alone
    ("TxnOffsetCommit", 2): 5,
    ("OffsetFetch", 0): 7,
    ("OffsetFetch", 2): 8,  # those since tell who asks, and have to tell the truth
    ("AddPartitionsToTxn", 1): 3,
    ("AddPartitionsToTxn", 2): 3,
}
RESOURCES_OF_CONFIGS = ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs")
HIDDEN = {("DescribeTransactions", 1), ("DescribeTopicPartitions", 1), ("StreamsGroupDescribe", 1)}  # and all `Hides`
CASES = [
    (api, at, need)
    for api, route in sorted(ROUTES.items())
    for at, need in enumerate(route.needs)
    if not isinstance(need, Hides) and (route.name, at) not in HIDDEN
]


def requested(api: int, at: int) -> tuple[Message, int]:
    route = ROUTES[api]
    version = VERSIONS.get((route.name, at), route.last)
    values = sample(route.request, version) | SPECIAL.get((route.name, at), {})
    request = route.request(**values)
    for topic in getattr(request, "topic_data", ()):
        for partition in topic.partition_data:
            partition.records = TRANSACTIONAL if at == 0 else BATCH
    if route.name in RESOURCES_OF_CONFIGS:
        for resource in request.resources:  # type: ignore[attr-defined]
            resource.resource_type = 2
    return request, version


@pytest.mark.parametrize(("api", "at", "need"), CASES, ids=[f"{ROUTES[api].name}-{at}" for api, at, _ in CASES])
def test_who_lacks_a_right_is_told_by_the_code_of_its_resource_type(api: int, at: int, need: Need) -> None:
    world = world_of("t")
    request, version = requested(api, at)
    denied = {DENIED[right.resource] for right in need.rights}
    deny(world, *need.rights)
    assert set(codes_in(world, request, version)) & denied


def codes_in(world: World, request: Message, version: int) -> Iterator[int]:
    client = world.client()
    number = client.send(request, version)
    world.advance(60_000)
    assert number in client.look(), client.closing
    yield from _codes(client.answers[number], version)


def _codes(part: object, version: int) -> Iterator[int]:
    if isinstance(part, list):
        for each in part:
            yield from _codes(each, version)
    elif isinstance(part, Struct):
        for field in fields_at(type(part), version):
            value = getattr(part, field.name)
            if field.name.endswith("error_code"):
                yield value
            else:
                yield from _codes(value, version)


NEEDY = [api for api, route in sorted(ROUTES.items()) if route.needs]


@pytest.mark.parametrize("api", NEEDY, ids=[ROUTES[api].name for api in NEEDY])
def test_with_every_right_no_answer_speaks_of_rights(api: int) -> None:
    world = world_of("t")
    deny(world)
    route = ROUTES[api]
    for at in range(len(route.needs)):
        request, version = requested(api, at)
        assert not set(codes_in(world, request, version)) & set(DENIED.values())


# -- the right place


def test_a_produce_is_refused_for_the_topics_it_may_not_write_to_and_no_others() -> None:
    world = world_of("open", "shut")
    deny(world, (WRITE, TOPIC), names=["shut"])
    request = produce(b"a", topic="open")
    request.topic_data += produce(b"b", topic="shut").topic_data + produce(b"c", topic="nowhere").topic_data
    answer = world.client().ask(request, 9)
    assert {topic.name: topic.partition_responses[0].error_code for topic in answer.responses} == {
        "open": 0,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "shut": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    ends = [world.partition(name).led().log_end_offset for name in ("open", "shut")]
    assert ends == [1, 0]
    errors = world.broker.counters.errors
    assert errors[0, ErrorCode.TOPIC_AUTHORIZATION_FAILED] == 1


@pytest.mark.parametrize("acks", [0, -1])
def test_a_refused_produce_is_completed_whenever_the_rest_is_answered(acks: int) -> None:
    world = world_of("open", "shut")
    deny(world, (WRITE, TOPIC), names=["shut"])
    request = produce(b"a", topic="open", acks=acks)
    request.topic_data += produce(b"b", topic="shut").topic_data
    client = world.client()
    number = client.send(request, 9)
    world.advance(2000)
    if acks == 0:
        assert client.closing
    else:
        assert [topic.name for topic in client.look()[number].responses] == ["open", "shut"]
    assert world.partition("open").led().log_end_offset == 1


def test_a_topic_that_exists_is_refused_as_one_that_does_not() -> None:
    world = world_of("shut")
    deny(world, (WRITE, TOPIC))
    codes = {produced(world.client().ask(produce(b"a", topic=name), 9)).error_code for name in ("shut", "nowhere")}
    assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_fetch_waits_for_what_may_be_read_and_says_what_may_not() -> None:
    world = world_of("open", "shut")
    deny(world, (READ, TOPIC), names=["shut"])
    client = world.client()
    request = fetch(topic="open", max_wait_ms=500, min_bytes=1)
    request.topics += fetch(topic="shut").topics
    number = client.send(request, 11)
    assert number not in client.look()
    world.client().ask(produce(b"a", topic="open"), 9)
    answer = client.look()[number]
    found = {topic.topic: topic.partitions[0] for topic in answer.responses}
    assert found["shut"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found["open"].records


def test_a_fetch_of_nothing_that_may_be_read_is_answered_at_once() -> None:
    world = world_of("t")
    deny(world, (READ, TOPIC))
    answer = world.client().ask(fetch(max_wait_ms=500, min_bytes=1), 11)
    assert fetched(answer)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_session_that_may_read_a_topic_no_longer_is_told_so() -> None:
    world = world_of("t")
    deny(world)
    client = world.client()
    began = client.ask(fetch(session=(0, 0)), 11)
    deny(world, (READ, TOPIC))
    again = FetchRequest(
        max_wait_ms=0, min_bytes=0, session_id=began.session_id, session_epoch=1, topics=[], forgotten_topics_data=[]
    )
    answer = client.ask(again, 11)
    assert fetched(answer)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_only_followers_with_the_right_are_followers() -> None:
    world = world_of("t")
    world.client().ask(produce(b"a"), 9)
    deny(world, (ACTION, CLUSTER))
    request = fetch()
    request.replica_id = 2
    part = fetched(world.client().ask(request, 11))[0]
    assert (part.error_code, part.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_metadata_of_all_topics_hides_those_that_may_not_be_described() -> None:
    world = world_of("open", "shut")
    deny(world, (DESCRIBE, TOPIC), names=["shut", "__consumer_offsets", "__transaction_state"])
    for version in (0, 1, 12):
        topics = None if version else []
        answer = world.client().ask(MetadataRequest(topics=topics), version)
        assert [topic.name for topic in answer.topics] == ["open"]
        assert answer.brokers


def test_metadata_of_version_0_is_not_of_all_topics_where_the_only_one_is_hidden() -> None:
    world = world_of("open", "shut")
    deny(world, (DESCRIBE, TOPIC), names=["shut"])
    answer = world.client().ask(MetadataRequest(topics=[MetadataRequestTopic(name="shut")]), 0)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("shut", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ]


def test_who_may_not_describe_a_topic_learns_neither_its_id_nor_its_name() -> None:
    world = world_of("shut")
    deny(world, (DESCRIBE, TOPIC))
    topic_id = world.topic_id("shut")
    client = world.client()
    by_name, by_id = (
        client.ask(MetadataRequest(topics=[asked]), 12).topics[0]
        for asked in (MetadataRequestTopic(name="shut"), MetadataRequestTopic(name=None, topic_id=topic_id))
    )
    assert (by_name.error_code, by_name.topic_id) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ZERO_UUID)
    assert (by_id.error_code, by_id.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


def test_who_may_not_create_a_topic_makes_none_by_asking_for_it() -> None:
    world = world_of()
    deny(world, (CREATE, CLUSTER), (CREATE, TOPIC))
    answer = world.client().ask(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 9)
    assert answer.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "new" not in world.plane.cache.topics


@pytest.mark.parametrize("denied", [(CREATE, CLUSTER), (CREATE, TOPIC)])
def test_one_of_the_rights_to_create_is_enough(denied: tuple[Operation, ResourceType]) -> None:
    world = world_of()
    deny(world, denied)
    world.create("new")


def test_a_topic_that_is_named_twice_is_refused_for_that() -> None:
    world = world_of()
    deny(world, (CREATE, CLUSTER), (CREATE, TOPIC))
    other = CreatableTopic(name="other", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    client = world.client()
    number = client.send(CreateTopicsRequest(topics=[NEW, NEW, other], timeout_ms=1000), 7)
    world.advance(100)
    codes = {topic.name: topic.error_code for topic in client.look()[number].topics}
    assert codes == {"new": ErrorCode.INVALID_REQUEST, "other": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_who_may_not_describe_configs_is_not_told_those_of_a_new_topic() -> None:
    world = world_of()
    deny(world, (DESCRIBE_CONFIGS, TOPIC))
    client = world.client()
    number = client.send(CreateTopicsRequest(topics=[NEW], timeout_ms=1000), 7)
    world.advance(100)
    (made,) = client.look()[number].topics
    told = made.error_code, made.topic_config_error_code, made.num_partitions, made.configs
    assert told == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, [])


@pytest.mark.parametrize(("denied", "shown"), [((DELETE,), "t"), ((DELETE, DESCRIBE), None)])
def test_who_deletes_by_id_learns_a_name_that_it_may_describe(denied: tuple[Operation, ...], shown: str | None) -> None:
    world = world_of("t")
    deny(world, *((each, TOPIC) for each in denied))
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=world.topic_id("t"))], timeout_ms=1000)
    (result,) = world.client().ask(asked, 6).responses
    assert (result.error_code, result.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, shown)
    assert "t" in world.plane.cache.topics


def test_a_page_of_topics_and_its_cursor_hide_what_may_not_be_described() -> None:
    world = world_of("a", "b", "c")
    deny(world, (DESCRIBE, TOPIC), names=["b"])
    answer = world.client().ask(DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1), 0)
    assert ([topic.name for topic in answer.topics], answer.next_cursor.topic_name) != (["__consumer_offsets"], "b")
    seen = [answer.topics[0].name]
    while answer.next_cursor is not None:
        again = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=answer.next_cursor)
        seen.append(answer.next_cursor.topic_name)
        answer = world.client().ask(again, 0)
    assert seen == ["__consumer_offsets", "__transaction_state", "a", "c"]


def test_groups_that_may_not_be_described_are_not_listed() -> None:
    world = world_of("t")
    asked, version = requested(8, 0)
    asked.group_id, asked.generation_id_or_member_epoch, asked.member_id = "g", -1, ""  # type: ignore[attr-defined]
    asked.topics[0].name, asked.topics[0].topic_id = "t", world.topic_id("t")  # type: ignore[attr-defined]
    assert not any(codes_in(world, asked, version))
    listed = []
    for denied in ([], [(DESCRIBE, GROUP)], [(DESCRIBE, GROUP), (DESCRIBE, CLUSTER)]):
        deny(world, *denied)
        listed.append([each.group_id for each in world.client().ask(ListGroupsRequest(), 4).groups])
    assert listed == [["g"], ["g"], []]


def test_offsets_of_topics_that_may_not_be_described_are_left_out_or_refused() -> None:
    world = world_of("open", "shut")
    for name in ("open", "shut"):
        asked, version = requested(8, 1)
        asked.group_id, asked.generation_id_or_member_epoch, asked.member_id = "g", -1, ""  # type: ignore[attr-defined]
        asked.topics[0].name = name  # type: ignore[attr-defined]
        assert not any(codes_in(world, asked, version))
    deny(world, (DESCRIBE, TOPIC), names=["shut"])
    client = world.client()
    every = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 9).groups[0]
    assert [topic.name for topic in every.topics] == ["open"]
    assert [topic.name for topic in client.ask(OffsetFetchRequest(group_id="g", topics=None), 7).topics] == ["open"]
    named, _ = requested(9, 2)
    named.groups[0].group_id, named.groups[0].topics[0].name = "g", "shut"  # type: ignore[attr-defined]
    (topic,) = client.ask(named, 9).groups[0].topics
    assert (topic.name, topic.partitions[0].error_code) == ("shut", ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_partitions_are_added_to_a_transaction_all_or_none() -> None:
    world = world_of("open", "shut")
    deny(world, (WRITE, TOPIC), names=["shut"])
    asked = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("open", "shut")],
    )
    answer = world.client().ask(asked, 3)
    codes = [topic.results_by_partition[0].partition_error_code for topic in answer.results_by_topic_v3_and_below]
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("denied", [(IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)])
def test_who_may_write_to_a_topic_may_do_so_idempotently(denied: tuple[Operation, ResourceType]) -> None:
    world = world_of()
    deny(world, denied)
    answer = world.client().ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    assert answer.error_code == 0


@pytest.mark.parametrize(
    ("version", "kind", "code"),
    [
        (4, None, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (5, None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (5, "consumer", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_a_sync_without_its_protocol_is_refused_for_that_first(version: int, kind: str | None, code: ErrorCode) -> None:
    """As in Kafka: what each has to have since version 5 is looked for before rights."""
    world = world_of()
    deny(world, (READ, GROUP))
    request = SyncGroupRequest(
        group_id="g", generation_id=1, member_id="m", protocol_type=kind, protocol_name=kind, assignments=[]
    )
    assert world.client().ask(request, version).error_code == code


def test_settings_of_brokers_are_the_clusters() -> None:
    world = world_of("t")
    asked, version = requested(32, 0)
    topic = asked.resources[0]  # type: ignore[attr-defined]
    asked.resources.append(type(topic)(resource_type=4, resource_name="", configuration_keys=None))  # type: ignore[attr-defined]
    deny(world, (DESCRIBE_CONFIGS, CLUSTER))
    told = {each.resource_type: each.error_code for each in world.client().ask(asked, version).results}
    assert told == {2: 0, 4: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


def test_without_rules_no_route_asks() -> None:
    world = world_of()
    assert all(world.client().channel.routes[api] is ROUTES[api] for api in SERVED)


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (6, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_an_id_that_is_no_topics_is_told_as_such_and_an_empty_name_as_no_right(version: int, code: int) -> None:
    world = world_of("t")
    deny(world, (READ, TOPIC))
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata=None)
    topic = TxnOffsetCommitRequestTopic(name="", partitions=[partition])
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, member_id="", topics=[topic]
    )
    assert set(codes_in(world, request, version)) == {code}
