"""One exchange for each API that clients use, good for every version served: it asks, and asserts one visible fact."""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.logdirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import legacy
from protocol.records.content import parse_set
from tests.e2e.world import NODE, NONE, Topic, World, by_id, by_name
from tests.quotas import PRODUCER, alter, altered, describe, described

TOPIC = 2  # the kind of resource that settings belong to

Exchange = Callable[[World, int], None]
EXCHANGES: dict[int, Exchange] = {}
"""By API key."""


def exchange(api: int) -> Callable[[Exchange], Exchange]:
    """This function is the exchange of that API."""

    def put(function: Exchange) -> Exchange:
        assert api not in EXCHANGES, api
        EXCHANGES[api] = function
        return function

    return put


# -- records


@exchange(0)
def produce(here: World, version: int) -> None:
    topic = here.filled()
    named = by_name(topic) if version < 13 else by_id(topic)
    answers = [here.produce(named, b"more", version=version, acks=acks) for acks in (1, 0, -1)]
    assert [answer and answer.base_offset for answer in answers] == [3, None, 5]


@exchange(1)
def fetch(here: World, version: int) -> None:
    topic = here.filled()
    partition = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[partition])]
    found = here.ask(FetchRequest(max_wait_ms=100, min_bytes=1, topics=topics), version)
    data = bytes(found.responses[0].partitions[0].records)
    if version < 4:  # from the wanted one on, where newer versions give the whole batch that holds it
        assert [record.value for record in legacy.parse_set(data)][-2:] == [b"value 1", b"value 2"]
        return
    assert [each.value for _, records in parse_set(data) for each in records] == [b"value 0", b"value 1", b"value 2"]


@exchange(2)
def list_offsets(here: World, version: int) -> None:
    topic = here.filled()
    specs = {-1: 3, -2: 0, 1_001: 1, 99_999: -1} | ({-3: 2} if version >= 7 else {})
    if version == 0:  # by time it knows only where segments begin
        specs = {-1: 3, -2: 0}
    answers = {}
    for timestamp in specs:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=1)
        asked = [ListOffsetsTopic(name=topic.name, partitions=[partition])]
        (found,) = here.ask(ListOffsetsRequest(replica_id=-1, topics=asked), version).topics[0].partitions
        answers[timestamp] = found.offset if version else found.old_style_offsets[0]
    assert answers == specs


@exchange(21)
def delete_records(here: World, version: int) -> None:
    topic = here.filled()
    partition = DeleteRecordsPartition(partition_index=0, offset=2)
    asked = [DeleteRecordsTopic(name=topic.name, partitions=[partition])]
    found = here.ask(DeleteRecordsRequest(topics=asked, timeout_ms=10_000), version)
    assert found.topics[0].partitions[0].low_watermark == 2


@exchange(22)
def init_producer_id(here: World, version: int) -> None:
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    first, second = (here.until(asked, version, lambda found: found.error_code == NONE).producer_id for _ in range(2))
    assert 0 <= first < second


@exchange(23)
def offset_for_leader_epoch(here: World, version: int) -> None:
    topic = here.filled()
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    asked = [OffsetForLeaderTopic(topic=topic.name, partitions=[partition])]
    found = here.ask(OffsetForLeaderEpochRequest(topics=asked), version)
    assert found.topics[0].partitions[0].end_offset == 3


# -- the cluster and its topics


@exchange(3)
def metadata(here: World, version: int) -> None:
    topic = here.topic(2)
    found = here.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]), version)
    assert [(each.partition_index, each.leader_id) for each in found.topics[0].partitions] == [(0, NODE), (1, NODE)]


@exchange(18)
def api_versions(here: World, version: int) -> None:
    asked = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    if version >= 5:
        other = ApiVersionsRequest(
            client_software_name="tests", client_software_version="1", cluster_id="another", node_id=NODE
        )
        assert here.ask(other, version).error_code == ErrorCode.REBOOTSTRAP_REQUIRED
    found = here.ask(asked, version)
    assert (18, 0, 5) in [(each.api_key, each.min_version, each.max_version) for each in found.api_keys]


@exchange(19)
def create_topics(here: World, version: int) -> None:
    name = here.name("made")
    asked = CreatableTopic(name=name, num_partitions=3, replication_factor=1, assignments=[], configs=[])
    codes = [here.ask(CreateTopicsRequest(topics=[asked]), version).topics[0].error_code for _ in range(2)]
    assert codes == [NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


@exchange(20)
def delete_topics(here: World, version: int) -> None:
    topic = here.topic()
    if version < 6:
        asked = DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=10_000)
    else:
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic.id)], timeout_ms=10_000)
    assert [each.error_code for each in here.ask(asked, version).responses] == [NONE]
    look = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)], allow_auto_topic_creation=False)
    here.until(look, 9, lambda found: found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@exchange(34)
def alter_replica_log_dirs(here: World, version: int) -> None:
    topic = here.filled()
    (home,) = here.ask(DescribeLogDirsRequest(topics=[]), 1).results
    wanted = [AlterReplicaLogDirTopic(name=topic.name, partitions=[0])]
    dirs = [AlterReplicaLogDir(path=home.log_dir, topics=wanted)]
    done = here.ask(AlterReplicaLogDirsRequest(dirs=dirs), version)
    assert done.results[0].partitions[0].error_code == NONE, done


@exchange(35)
def describe_log_dirs(here: World, version: int) -> None:
    topic = here.filled()
    found = here.ask(DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic.name, partitions=[0])]), version)
    (size,) = (p.partition_size for each in found.results for t in each.topics for p in t.partitions)
    assert size > 0


@exchange(37)
def create_partitions(here: World, version: int) -> None:
    topic = here.topic()
    asked = CreatePartitionsTopic(name=topic.name, count=3, assignments=None)
    done = here.ask(CreatePartitionsRequest(topics=[asked], timeout_ms=10_000, validate_only=False), version)
    assert done.results[0].error_code == NONE, done
    look = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)])
    here.until(look, 9, lambda found: len(found.topics[0].partitions) == 3)


@exchange(43)
def elect_leaders(here: World, version: int) -> None:
    topic = here.topic()
    asked = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=topic.name, partitions=[0])], timeout_ms=10_000)
    (result,) = here.ask(asked, version).replica_election_results
    assert result.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


@exchange(60)
def describe_cluster(here: World, version: int) -> None:
    found = here.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
    assert [(each.broker_id, each.host, each.port) for each in found.brokers] == [(NODE, here.host, here.port)]


@exchange(75)
def describe_topic_partitions(here: World, version: int) -> None:
    topic = here.topic(3)
    found = here.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic.name)]), version)
    assert [each.partition_index for each in found.topics[0].partitions] == [0, 1, 2]


@exchange(45)
def alter_partition_reassignments(here: World, version: int) -> None:
    wanted = ReassignablePartition(partition_index=0, replicas=[NODE])
    asked = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=here.topic().name, partitions=[wanted])])
    done = here.ask(asked, version)
    assert (done.error_code, done.responses[0].partitions[0].error_code) == (NONE, NONE)
    if version >= 1:
        wanted.replicas, asked.allow_replication_factor_change = [NODE, NODE + 1], False
        refused = here.ask(asked, version)
        assert not refused.allow_replication_factor_change
        assert refused.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT  # no such broker


@exchange(46)
def list_partition_reassignments(here: World, version: int) -> None:
    found = here.ask(ListPartitionReassignmentsRequest(topics=None), version)
    assert (found.error_code, found.topics) == (NONE, [])


@exchange(57)
def update_features(here: World, version: int) -> None:
    wanted = FeatureUpdateKey(feature="none", max_version_level=1)
    done = here.ask(UpdateFeaturesRequest(feature_updates=[wanted]), version)
    assert (done.error_code, done.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])


@exchange(74)
def list_config_resources(here: World, version: int) -> None:
    topic = here.topic()
    found = here.ask(ListConfigResourcesRequest(), version)
    listed = [(each.resource_type, each.resource_name) for each in found.config_resources]
    assert found.error_code == NONE
    assert [each for each in listed if each[1] in (topic.name, str(NODE))] == (
        [(8, str(NODE)), (4, str(NODE)), (TOPIC, topic.name)] if version >= 1 else []
    )


# -- who may do what

ANY, LITERAL, READ, ALLOW = 1, 3, 3, 3
A_TOPIC = 2


@exchange(29)
def describe_acls(here: World, version: int) -> None:
    asked = DescribeAclsRequest(
        resource_type_filter=A_TOPIC,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    assert here.ask(asked, version).error_code == ErrorCode.SECURITY_DISABLED


@exchange(30)
def create_acls(here: World, version: int) -> None:
    rule = AclCreation(
        resource_type=A_TOPIC,
        resource_name="t",
        resource_pattern_type=LITERAL,
        principal="User:a",
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )
    done = here.ask(CreateAclsRequest(creations=[rule]), version)
    assert done.results[0].error_code == ErrorCode.SECURITY_DISABLED


@exchange(31)
def delete_acls(here: World, version: int) -> None:
    wanted = DeleteAclsFilter(
        resource_type_filter=A_TOPIC,
        resource_name_filter="t",
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    done = here.ask(DeleteAclsRequest(filters=[wanted]), version)
    assert done.filter_results[0].error_code == ErrorCode.SECURITY_DISABLED


# -- settings


@exchange(32)
def describe_configs(here: World, version: int) -> None:
    assert setting(here, version, here.topic()) == "604800000"


@exchange(33)
def alter_configs(here: World, version: int) -> None:
    topic = here.topic()
    change = AlterableConfig(name="retention.ms", value="1234567")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=topic.name, configs=[change])
    done = here.ask(AlterConfigsRequest(resources=[resource], validate_only=False), version)
    assert (done.responses[0].error_code, setting(here, 4, topic)) == (NONE, "1234567")


@exchange(44)
def incremental_alter_configs(here: World, version: int) -> None:
    topic = here.topic()
    change = IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="1234567")
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic.name, configs=[change])
    done = here.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), version)
    assert (done.responses[0].error_code, setting(here, 4, topic)) == (NONE, "1234567")


def setting(here: World, version: int, topic: Topic) -> str:
    """The topic's retention.ms."""
    asked = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic.name, configuration_keys=["retention.ms"])
    (found,) = here.ask(DescribeConfigsRequest(resources=[asked]), version).results
    return str(found.configs[0].value)


# -- groups


@exchange(10)
def find_coordinator(here: World, version: int) -> None:
    group = here.group()
    asked = FindCoordinatorRequest(key=group) if version < 4 else FindCoordinatorRequest(coordinator_keys=[group])
    found = here.ask(asked, version)
    answer = found.coordinators[0] if version >= 4 else found
    assert (answer.error_code, answer.node_id, answer.port) == (NONE, NODE, here.port)


@exchange(11)
def join_group(here: World, version: int) -> None:
    group = here.group()
    joined = here.until(here.joining(group), version, lambda answer: answer.error_code in (NONE, 79))
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED, joined
        joined = here.ask(here.joining(group, joined.member_id), version)
    assert (joined.generation_id, joined.protocol_name, joined.leader) == (1, "range", joined.member_id)


@exchange(14)
def sync_group(here: World, version: int) -> None:
    assert here.ask(here.syncing(here.member()), version).assignment == b"yours"


@exchange(12)
def heartbeat(here: World, version: int) -> None:
    member = here.member()
    codes = [
        here.ask(HeartbeatRequest(group_id=member.group, generation_id=each, member_id=member.id), version).error_code
        for each in (member.generation, member.generation + 1)
    ]
    assert codes == [NONE, ErrorCode.ILLEGAL_GENERATION]


@exchange(48)
def describe_client_quotas(here: World, version: int) -> None:
    user = here.name("user")
    here.ask(alter(altered({"user": user}, producer_byte_rate=7)), version)
    here.until(
        describe(("user", 0, user)), version, lambda found: described(found) == {(("user", user),): {PRODUCER: 7}}
    )


@exchange(49)
def alter_client_quotas(here: World, version: int) -> None:
    done = here.ask(alter(altered({"user": here.name("user")}, producer_byte_rate=7)), version)
    assert [each.error_code for each in done.entries] == [NONE]


@exchange(13)
def leave_group(here: World, version: int) -> None:
    member = here.member()
    if version < 3:
        asked = LeaveGroupRequest(group_id=member.group, member_id=member.id)
    else:
        asked = LeaveGroupRequest(group_id=member.group, members=[MemberIdentity(member_id=member.id)])
    assert here.ask(asked, version).error_code == NONE
    here.until(DescribeGroupsRequest(groups=[member.group]), 4, lambda found: found.groups[0].group_state == "Empty")


@exchange(15)
def describe_groups(here: World, version: int) -> None:
    member = here.member()
    (group,) = here.ask(DescribeGroupsRequest(groups=[member.group]), version).groups
    assert (group.group_state, [(each.member_id, bytes(each.member_assignment)) for each in group.members]) == (
        "Stable",
        [(member.id, b"yours")],
    )


@exchange(16)
def list_groups(here: World, version: int) -> None:
    member = here.member()
    found = here.ask(ListGroupsRequest(states_filter=["Stable"] if version >= 4 else []), version)
    assert (member.group, "consumer") in [(each.group_id, each.protocol_type) for each in found.groups]


@exchange(42)
def delete_groups(here: World, version: int) -> None:
    empty, full = here.committed(5)[0], here.member().group
    found = here.ask(DeleteGroupsRequest(groups_names=[empty, full]), version)
    assert {each.group_id: each.error_code for each in found.results} == {
        empty: NONE,
        full: ErrorCode.NON_EMPTY_GROUP,
    }


IN_THE_STORE = 42, ""  # version 0 keeps offsets in the metadata store, as ZooKeeper had them: without metadata


@exchange(8)
def offset_commit(here: World, version: int) -> None:
    group, topic = here.group(), here.topic()
    asked = here.committing(group, by_name(topic) if version < 10 else by_id(topic), 42)
    here.until(asked, version, lambda done: done.topics[0].partitions[0].error_code == NONE)
    expected = (42, "mine") if version else IN_THE_STORE
    assert fetched(here, 8 if version else 0, group, topic) == expected


@exchange(9)
def offset_fetch(here: World, version: int) -> None:
    group, topic = here.committed(42, version=8 if version else 0)
    assert fetched(here, version, group, topic) == ((42, "mine") if version else IN_THE_STORE)


def fetched(here: World, version: int, group: str, topic: Topic) -> tuple[int, str | None]:
    """Offset and metadata that a group has committed for partition 0."""
    if version < 8:
        asked = OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0])
        (found,) = here.ask(OffsetFetchRequest(group_id=group, topics=[asked]), version).topics
    else:
        known = OffsetFetchRequestTopics(
            name=topic.name if version < 10 else "",
            topic_id=topic.id if version >= 10 else ZERO_UUID,
            partition_indexes=[0],
        )
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[known])])
        (found,) = here.ask(request, version).groups[0].topics
    assert found.partitions[0].error_code == NONE, found
    return found.partitions[0].committed_offset, found.partitions[0].metadata


@exchange(47)
def offset_delete(here: World, version: int) -> None:
    group, topic = here.committed(42)
    partition = OffsetDeleteRequestPartition(partition_index=0)
    asked = OffsetDeleteRequestTopic(name=topic.name, partitions=[partition])
    done = here.ask(OffsetDeleteRequest(group_id=group, topics=[asked]), version)
    assert (done.error_code, fetched(here, 7, group, topic)[0]) == (NONE, -1)
