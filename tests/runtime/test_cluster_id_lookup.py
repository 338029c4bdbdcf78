"""What a broker learns of an ensemble before it opens a log directory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.metadata.store import BROKER_SEQUENCE, CLUSTER_ID, decode_cluster_id, encode_cluster_id, encode_controller
from kbroker.ports import Create, Operation, Outcome, Post, SessionStarted, StoreAnswer, StoreEvent, StoreFault
from kbroker.runtime.cluster_id_lookup import ClusterIdLookup
from kbroker.sim.store import Ensemble

OURS, THEIRS = "b3Vycy1vdXJzLW91cnMtbw", "dGhlaXJzLXRoZWlycy10aA"


def introduced(ensemble: Ensemble, own: str | None = None, *, above: int | None = None) -> ClusterIdLookup:
    """Run to its end."""
    events: list[StoreEvent] = []
    introduction = ClusterIdLookup(ensemble.connect(events.append), own, "ZnJlc2gtZnJlc2gtZnJlcw", above=above)
    while events:
        introduction.handle(events.pop(0))
    return introduction


def ensemble_of(cluster_id: bytes) -> Ensemble:
    ensemble = Ensemble()
    for path, data in (("/cluster", b""), (CLUSTER_ID, cluster_id)):
        assert ensemble.tree.apply(Create(path, data), 0).fault is None
    return ensemble


def test_the_first_broker_gives_a_cluster_its_id() -> None:
    ensemble = Ensemble()
    introduction = introduced(ensemble)
    assert introduction.cluster_id == decode_cluster_id(ensemble.tree.nodes[CLUSTER_ID].data)


def test_a_later_broker_takes_the_id_that_is_there() -> None:
    assert introduced(ensemble_of(encode_cluster_id(THEIRS))).cluster_id == THEIRS


def test_directories_of_the_cluster_are_welcome() -> None:
    assert introduced(ensemble_of(encode_cluster_id(OURS)), OURS).fault == ""


def test_directories_of_another_cluster_are_refused_with_both_ids() -> None:
    assert introduced(ensemble_of(encode_cluster_id(THEIRS)), OURS).fault == (
        f"the log directories are of cluster {OURS} (meta.properties), ZooKeeper is of cluster {THEIRS}: "
        "is zookeeper.connect right?"
    )


def test_an_ensemble_without_a_cluster_does_not_get_one_from_old_directories() -> None:
    ensemble = Ensemble()
    introduction = introduced(ensemble, OURS)
    assert "ZooKeeper is of no cluster yet" in introduction.fault
    assert CLUSTER_ID not in ensemble.tree.nodes


class Rootless:
    """The store of a path in an ensemble that is not there, and that this broker may not make."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        self._post(StoreAnswer(token, tuple(Outcome(StoreFault.NO_NODE, "") for _ in operations)))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("above", [None, 1000])
def test_a_path_that_is_not_there_and_cannot_be_made_is_not_waited_for(above: int | None) -> None:
    events: list[StoreEvent] = [SessionStarted(1)]
    introduction = ClusterIdLookup(Rootless(events.append), None, "ZnJlc2gtZnJlc2gtZnJlcw", above=above)
    while events:
        introduction.handle(events.pop(0))
    assert introduction.fault == "/cluster/id cannot be made in ZooKeeper: is there the path of zookeeper.connect?"


def test_a_cluster_that_a_kraft_controller_has_taken_over_is_left_alone() -> None:
    ensemble = ensemble_of(encode_cluster_id(OURS))
    ensemble.tree.apply(Create("/controller", b'{"version":2,"brokerid":3000,"kraftControllerEpoch":4}'), 0)
    assert introduced(ensemble).fault == "the cluster is on its way to KRaft (kraftControllerEpoch 4 in /controller)"


def test_a_controller_on_zookeeper_is_no_reason_to_stay_away() -> None:
    ensemble = ensemble_of(encode_cluster_id(OURS))
    ensemble.tree.apply(Create("/controller", encode_controller(1, 0)), 0)
    assert introduced(ensemble).fault == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":"1"}'])
def test_a_cluster_id_that_cannot_be_read_is_named(content: bytes) -> None:
    assert introduced(ensemble_of(content)).fault.startswith("/cluster/id in ZooKeeper makes no sense: ")


def test_broker_ids_that_nobody_chose_are_counted_above_the_reserved_ones() -> None:
    ensemble = Ensemble()
    assert [introduced(ensemble, above=1000).broker_id for _ in range(3)] == [1001, 1002, 1003]


def test_a_broker_with_an_id_counts_nothing() -> None:
    ensemble = Ensemble()
    assert introduced(ensemble).broker_id == -1
    assert BROKER_SEQUENCE not in ensemble.tree.nodes


def test_an_ensemble_that_lets_nobody_in_without_a_login_is_said() -> None:
    events: list[StoreEvent] = []
    introduction = ClusterIdLookup(Ensemble().connect(events.append), None, "ZnJlc2gtZnJlc2gtZnJlcw", above=None)
    introduction.handle(events.pop(0))
    (answer,) = (event for event in events if isinstance(event, StoreAnswer))
    refused = tuple(Outcome(StoreFault.REFUSED, "/cluster") for _ in answer.outcomes)
    introduction.handle(StoreAnswer(answer.token, refused))
    assert introduction.fault == (
        "the metadata store refuses what is asked of /cluster: is a login missing "
        "(kbroker.zookeeper.sasl.jaas.config), or a certificate (zookeeper.ssl.keystore.location)?"
    )
