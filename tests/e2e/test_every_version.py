"""Whatever ApiVersions lists is served, in each version, by a broker process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.api.routes import ROUTES, load
from protocol.errors import ErrorCode
from protocol.messages.control import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from tests.e2e import (  # noqa: F401 - they add their exchanges
    control_exchanges,
    group_exchanges,
    login_exchanges,
    share_exchanges,
    transaction_exchanges,
)
from tests.e2e.exchanges import EXCHANGES
from tests.e2e.world import World
from tests.processes import CONTROL_LISTENER, BrokerProcess

load()
SERVED = [(api, version) for api, route in sorted(ROUTES.items()) for version in range(route.first, route.last + 1)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "3"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), **settings, **CONTROL_LISTENER) as broker:
        yield World(broker.port, control_port=broker.ports["CONTROL"])
        assert "Traceback" not in broker.log


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), SERVED, ids=[f"{ROUTES[api].name}-v{version}" for api, version in SERVED])
def test_an_advertised_version_works(here: World, api: int, version: int) -> None:
    assert api in EXCHANGES, f"{ROUTES[api].name} is advertised, and nothing here asks it"
    EXCHANGES[api](here, version)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_001, 2**31 - 2])
def test_a_count_of_partitions_beyond_reason_is_refused(here: World, count: int) -> None:
    asked = CreatableTopic(
        name=here.name("vast"), num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    (made,) = here.ask(CreateTopicsRequest(topics=[asked]), 7).topics
    more = CreatePartitionsTopic(name=here.topic().name, count=count + 1, assignments=None)
    (grown,) = here.ask(CreatePartitionsRequest(topics=[more], timeout_ms=10_000, validate_only=False), 3).results
    assert (made.error_code, grown.error_code) == (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../outside", "a/b", "", "nul\0", ".."])
def test_a_controller_cannot_make_folders_of_any_name(here: World, name: str) -> None:
    state = LeaderAndIsrPartitionState(
        partition_index=0, controller_epoch=1, leader=1, leader_epoch=0, isr=[1], partition_epoch=0, replicas=[1]
    )
    topics = [LeaderAndIsrTopicState(topic_name=name, partition_states=[state])]
    request = LeaderAndIsrRequest(controller_id=1, controller_epoch=1, topic_states=topics, live_leaders=[])
    assert here.ask(request, 4).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
