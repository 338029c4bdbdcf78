"""kafka-features.sh of two releases on a broker that is alone; and a cluster with Apache Kafka 3.9.1: it has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat_tests.apache import RELEASES, NotReadyError, Server, ZooKeeper, ZooKeeperBroker, run_tool
from compat_tests.brokers import KbrokerProcess
from compat_tests.raw import Connection
from compat_tests.waiting import eventually
from kbroker.metadata.features import SUPPORTED, TRANSACTION_VERSION
from protocol.messages.metadata import MetadataRequest

FEATURES = "org.apache.kafka.tools.FeatureCommand"
NAME = TRANSACTION_VERSION
DESCRIBED = re.compile(
    r"Feature: (\S+)\s+SupportedMinVersion: (\d+)\s+SupportedMaxVersion: (\d+)\s+FinalizedVersionLevel: (\d+|-)\s"
)
SESSION = {"zookeeper.session.timeout.ms": "6000"}
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


def features(release: str, broker: Server, *words: str, code: int = 0) -> str:
    """What the tool said; it must end with `code`."""
    done = run_tool(release, FEATURES, "--bootstrap-server", broker.address, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def described(release: str, broker: Server) -> dict[str, tuple[int, int, int]]:
    """By feature: the first and the last level that is supported, and the one that is finalized; 0: none is."""
    found = DESCRIBED.findall(features(release, broker, "describe"))
    return {name: (int(first), int(last), int(level.replace("-", "0"))) for name, first, last, level in found}


def level(release: str, broker: Server) -> int:
    """Of the feature that these tests move, as it is finalized; Apache 3.9.1, which the tool may ask, knows of none."""
    return described(release, broker).get(NAME, (0, 0, 0))[2]


@pytest.mark.parametrize("release", RELEASES)
def test_features_go_down_and_up_by_apaches_tool(release: str, tmp_path: Path) -> None:
    """kafka-features describes, downgrades, disables, upgrades, and does so for trial only"""
    with KbrokerProcess(tmp_path / "broker") as broker:
        assert described(release, broker) == {name: (first, last, last) for name, first, last in SUPPORTED}
        features(release, broker, "downgrade", "--feature", f"{NAME}=1", "--dry-run")
        assert level(release, broker) == 2
        features(release, broker, "downgrade", "--feature", f"{NAME}=1")
        assert level(release, broker) == 1
        features(release, broker, "disable", "--feature", NAME)
        assert level(release, broker) == 0
        said = features(release, broker, "upgrade", "--feature", f"{NAME}=9", code=1)
        assert "only supports versions 0-2" in said
        features(release, broker, "upgrade", "--feature", f"{NAME}=2")
        assert level(release, broker) == 2


@pytest.mark.parametrize("release", RELEASES)
def test_what_apaches_broker_cannot_do_stays_off_while_it_is_there(release: str, tmp_path: Path) -> None:
    """A cluster of kbroker and Apache 3.9.1 finalizes nothing; without Apache's broker it may"""
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        own = {"broker.id": "1", "zookeeper.connect": zookeeper.address, **SESSION}
        ours = KbrokerProcess(tmp_path / "broker1", settings=own)
        theirs = ZooKeeperBroker(
            tmp_path / "broker2", zookeeper=zookeeper.address, node_id=2, settings=SESSION, heap="256m"
        )
        with ours:
            with theirs:
                for each in (ours, theirs):  # both know the cluster, whose controller is ours: it came first
                    eventually(lambda each=each: _brokers(each) == {1, 2}, within_s=60)  # type: ignore[misc]
                said = features(release, ours, "upgrade", "--feature", f"{NAME}=2", code=1)
                assert "Broker 2 does not support this feature" in said
                assert level(release, ours) == 0
                assert theirs.alive
            eventually(lambda: _brokers(ours) == {1}, within_s=60)
            features(release, ours, "upgrade", "--feature", f"{NAME}=2")
            assert level(release, ours) == 2
            with pytest.raises(NotReadyError, match="ended with"):  # Apache's own rule: it cannot do what is finalized
                theirs.start()


def test_apaches_controller_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Asked of Apache 3.9.1 as the controller, a feature stays off"""
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        own = {"broker.id": "1", "zookeeper.connect": zookeeper.address, **SESSION}
        theirs = ZooKeeperBroker(
            tmp_path / "broker2", zookeeper=zookeeper.address, node_id=2, settings=SESSION, heap="256m"
        )
        with theirs, KbrokerProcess(tmp_path / "broker1", settings=own) as ours:
            eventually(lambda: _brokers(ours) == {1, 2}, within_s=60)
            said = features("3.9.1", ours, "upgrade", "--feature", f"{NAME}=2", code=1)
            assert "the provided feature is not supported" in said
            assert level("3.9.1", ours) == 0


def _brokers(at: Server) -> set[int]:
    with Connection(at.port) as connection:
        return {each.node_id for each in connection.ask(MetadataRequest(topics=[]), 9).brokers}
