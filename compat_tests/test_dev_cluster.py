"""The metadata server of `kbroker dev-cluster` in ZooKeeper's place, judged by Apache Kafka 3.9.1 and its own client.

The stories are those of `test_mixed_cluster.py`; the fixture is what differs. Brokers are stopped and killed, so that
sessions end and go on, controllers are elected, and watches are set again. Part of scripts/compat, not of scripts/test,
whose time they would take: there the contract of metadata stores is played to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from compat_tests.test_mixed_cluster import (  # noqa: F401 - collected here, too
    CONTROLLERS,
    Mixed,
    eventually,
    test_a_leader_of_either_kind_and_its_follower_have_the_same_bytes,
    test_control_passes_to_the_other_kind_and_back,
    test_settings_changed_at_one_broker_count_at_the_other,
    test_the_first_controls,
    test_topics_are_made_described_and_deleted_through_either,
)
from tests.runtime.metadata_servers import RunningServer

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=CONTROLLERS.values(), ids=CONTROLLERS)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("dev-cluster")
    with ExitStack() as running:
        server = running.enter_context(RunningServer(folder))
        made = Mixed(folder, request.param, server.address)
        for _, broker in sorted(made.brokers.items()):
            running.enter_context(broker)
        eventually(lambda: all(len(made.seen(each).brokers) == 2 for each in made.brokers))
        yield made
