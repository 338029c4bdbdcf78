"""The launcher itself: Apache's brokers come up, answer, end cleanly, and come up again on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.apache import NEWEST, KraftBroker, NotReadyError, run_tool, zookeeper_cluster

TOPICS = "org.apache.kafka.tools.TopicCommand"
pytestmark = [pytest.mark.quick, pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars


@pytest.mark.parametrize("release", ["3.9.1", NEWEST])
def test_kraft_broker_keeps_its_topics_over_a_restart(release: str, tmp_path: Path) -> None:
    broker = KraftBroker(release, tmp_path)
    with broker:
        run_tool(release, TOPICS, "--bootstrap-server", broker.address, "--create", "--topic", "kept")
    assert (tmp_path / "data0" / ".kafka_cleanshutdown").exists()
    with broker:
        assert run_tool(release, TOPICS, "--bootstrap-server", broker.address, "--list").stdout.split() == ["kept"]


def test_zookeeper_cluster_has_the_brokers_asked_for(tmp_path: Path) -> None:
    with zookeeper_cluster(tmp_path, brokers=2) as (first, second):
        arguments = ["--create", "--topic", "pair", "--replication-factor", "2", "--partitions", "1"]
        done = run_tool("3.9.1", TOPICS, "--bootstrap-server", first.address, *arguments)
        assert done.stdout.strip() == "Created topic pair.", second.output


def test_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"log\.retention\.ms"):
        KraftBroker(NEWEST, tmp_path, settings={"log.retention.ms": "x"}).start()
