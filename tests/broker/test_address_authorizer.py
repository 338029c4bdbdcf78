"""Who counts as another broker: by the control plane's listener, else by address; nobody where there is no other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.address_authorizer import AddressAuthorizer
from kbroker.broker.authorizer import CLUSTER_NAME, AuthHelper, Operation, ResourceType
from kbroker.broker.session import Session
from kbroker.broker.store_plane import registered_hosts
from kbroker.metadata.steps import Steps
from kbroker.metadata.store import BrokerInfo, Endpoint, broker_path, encode_broker
from kbroker.ports import Create, StoreAnswer, StoreEvent
from kbroker.sim.store import Ensemble
from protocol.errors import ErrorCode, KafkaError

NAMES = {"two.example": ["192.0.2.2"]}


class Place:
    """A broker's control plane and its pool, of which nothing happens by itself."""

    def __init__(self, *hosts: str, alone: bool = False, control_listener: str = "") -> None:
        brokers = {at: BrokerInfo(at, (Endpoint("PLAINTEXT", 0, host, 1),), None) for at, host in enumerate(hosts)}
        self.jobs: list[Any] = []
        self.asked: list[Callable[[frozenset[str]], None]] = []
        plane = SimpleNamespace(cache=SimpleNamespace(brokers=brokers), find_hosts=self._find_hosts)
        self.told: list[Any] = []
        self.only = AddressAuthorizer(
            cast(Any, plane),
            self._look_up,
            self._give,
            self.told.append,
            alone=alone,
            control_listener=control_listener,
        )

    def _find_hosts(self, done: Callable[[frozenset[str]], None], failed: Any) -> None:
        self.asked.append(done)

    def _give(self, job: Any, owner: Any) -> None:
        self.jobs.append(job)

    def _look_up(self, host: str) -> list[str]:
        if host not in NAMES:
            raise OSError("no such host")
        return NAMES[host]

    def look_up(self) -> None:
        for job in self.jobs:
            job.run()
            self.only.finished(job, None, 0)
        self.jobs.clear()

    def hears(self, address: str, listener: str = "PLAINTEXT") -> bool:
        session = Session(listener, address, 5000)
        return self.only.allows(session, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def test_a_broker_that_is_alone_has_no_other() -> None:
    assert not Place("192.0.2.1", alone=True).hears("192.0.2.1")


def test_whoever_comes_by_the_control_planes_listener_is_a_broker() -> None:
    place = Place("192.0.2.1", alone=True, control_listener="CONTROL")
    assert (place.hears("192.0.2.9", "CONTROL"), place.hears("192.0.2.9")) == (True, False)


def test_without_rules_all_operations_are_told_to_clients_as_kafka_does() -> None:
    place = Place("192.0.2.1")
    stranger = Session("PLAINTEXT", "192.0.2.9", 5000)
    assert not place.hears("192.0.2.9")
    assert AuthHelper(place.only).operations(stranger, ResourceType.CLUSTER) == 0b1_1111_1010_0000


def test_registered_addresses_are_brokers() -> None:
    place = Place("192.0.2.1", "192.0.2.2")
    assert [place.hears(each) for each in ("192.0.2.1", "192.0.2.2", "192.0.2.3")] == [True, True, False]


def test_before_the_first_image_the_store_says_who_is_a_broker() -> None:
    place = Place()
    before = place.hears("192.0.2.3")
    (learn,) = place.asked
    learn(frozenset({"192.0.2.1"}))
    assert (before, place.hears("192.0.2.1"), place.hears("192.0.2.3")) == (False, True, False)


def test_a_name_is_looked_up_and_meanwhile_any_address_may_have_it() -> None:
    place = Place("192.0.2.1", "two.example")
    before = place.hears("192.0.2.3")
    place.look_up()
    assert (before, place.hears("192.0.2.3"), place.hears("192.0.2.2")) == (True, False, True)


def test_a_broker_that_is_back_under_its_name_at_another_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("two.example")
    place.hears("192.0.2.2")
    place.look_up()
    monkeypatch.setitem(NAMES, "two.example", ["192.0.2.7"])
    key = awaited(place, "192.0.2.7")
    (learn,) = place.asked
    learn(frozenset({"two.example"}))
    told_before = list(place.told)
    place.look_up()
    assert (told_before, [each.keys for each in place.told]) == ([], [[key]])
    assert (place.hears("192.0.2.7"), place.hears("192.0.2.2")) == (True, False)


def test_while_names_cannot_be_looked_up_the_addresses_they_had_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("two.example")
    place.hears("192.0.2.2")
    place.look_up()
    monkeypatch.delitem(NAMES, "two.example")
    place.hears("192.0.2.7")
    place.asked[0](frozenset({"two.example"}))
    before = place.hears("192.0.2.2"), place.hears("192.0.2.7")
    place.look_up()
    assert (before, place.hears("192.0.2.2"), place.hears("192.0.2.7")) == ((True, False), True, False)


def test_a_broker_that_has_just_come_is_found_in_the_store() -> None:
    place = Place("192.0.2.1")
    refused = place.hears("192.0.2.3")
    (learn,) = place.asked
    learn(frozenset({"192.0.2.1", "192.0.2.3"}))
    assert (refused, place.hears("192.0.2.3")) == (False, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("7", b""),
        ("7", b"{"),
        ("7", b'{"version":9,"endpoints":["QUIC://192.0.2.7:1"]}'),
        ("backup", b"{}"),
        ("\u00b2", b"{}"),
    ],
)
def test_a_registration_that_makes_no_sense_hides_no_other(name: str, content: bytes) -> None:
    ensemble = Ensemble()
    good = encode_broker(BrokerInfo(1, (Endpoint("PLAINTEXT", 0, "192.0.2.1", 1),)), 0)
    for path, data in (
        ("/brokers", b""),
        ("/brokers/ids", b""),
        (broker_path(1), good),
        (f"/brokers/ids/{name}", content),
    ):
        assert ensemble.tree.apply(Create(path, data), 0).fault is None
    events: list[StoreEvent] = []
    hosts: list[frozenset[str]] = []
    steps = Steps(ensemble.connect(events.append))
    steps.start(registered_hosts(), hosts.append)
    while events:
        event = events.pop(0)
        if isinstance(event, StoreAnswer):
            steps.resume(event)
    assert hosts == [{"192.0.2.1"}]


def session_of(address: str) -> Session:
    return Session("PLAINTEXT", address, 5000)


def awaited(place: Place, address: str) -> object:
    return place.only.undecided(session_of(address), Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def test_an_unknown_address_waits_for_what_the_store_says() -> None:
    place = Place("192.0.2.1")
    key = awaited(place, "192.0.2.3")
    (learn,) = place.asked
    learn(frozenset({"192.0.2.3"}))
    assert [each.keys for each in place.told] == [[key]]
    assert awaited(place, "192.0.2.3") is None


def test_who_comes_while_the_store_is_asked_waits_for_a_newer_answer() -> None:
    """It may have registered after the store was asked; those before are not held up for it."""
    place = Place("192.0.2.1")
    first, second = awaited(place, "192.0.2.3"), awaited(place, "192.0.2.4")
    place.asked[0](frozenset({"192.0.2.3"}))
    place.asked[1](frozenset({"192.0.2.3", "192.0.2.4"}))
    assert [each.keys for each in place.told] == [[first], [second]]
    assert place.hears("192.0.2.4")


def test_nothing_is_waited_for_where_the_answer_is_known() -> None:
    assert awaited(Place("192.0.2.1"), "192.0.2.1") is None
    assert awaited(Place("192.0.2.1", alone=True), "192.0.2.3") is None


def test_what_clients_do_is_allowed_to_everybody() -> None:
    only = Place("192.0.2.1", alone=True).only
    assert only.allows(Session("PLAINTEXT", "192.0.2.9", 1), Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


def test_controllers_have_to_use_their_listener() -> None:
    permission = AuthHelper(None, "CONTROL")
    permission.require_control_listener(Session("CONTROL", "192.0.2.1", 1))
    with pytest.raises(KafkaError) as caught:
        permission.require_control_listener(Session("PLAINTEXT", "192.0.2.1", 1))
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
