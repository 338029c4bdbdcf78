"""Settings of users, clients and addresses: in the metadata store, and from there in each broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.controller.admin import Change
from kbroker.metadata.entities import desanitized, is_entity, sanitized, user_path
from kbroker.metadata.store import encode_config_change
from kbroker.ports import Children, Create, Delete, Get, Operation
from kbroker.sim.store import SimSession
from tests.controller.cluster import Cluster
from tests.controller.test_odd_nodes import write

ALICE, APP = ("users", "alice"), ("users", "alice/clients/my%20app")


def change(cluster: Cluster, entity: tuple[str, str], settings: dict[str, str]) -> None:
    wanted: Change = lambda before: settings  # noqa: E731
    cluster.machine(1).turn(
        lambda: cluster.machine(1).plane.admin.change_configs({entity: wanted}, validate_only=False)
    )
    cluster.settle()


def known(cluster: Cluster, broker: int) -> dict[str, dict[str, str]]:
    return {path: dict(found) for path, found in cluster.machine(broker).plane.notices.entities.settings.items()}


def test_what_one_broker_sets_for_a_user_all_know() -> None:
    cluster = Cluster(1, 2)
    change(cluster, ALICE, {"producer_byte_rate": "7"})
    change(cluster, APP, {"request_percentage": "3"})
    expected = {"users/alice": {"producer_byte_rate": "7"}, "users/alice/clients/my%20app": {"request_percentage": "3"}}
    assert known(cluster, 1) == known(cluster, 2) == expected
    change(cluster, ALICE, {})
    assert known(cluster, 2).keys() == {"users/alice/clients/my%20app"}


def test_a_broker_that_comes_finds_what_was_set_before() -> None:
    cluster = Cluster(1)
    change(cluster, ALICE, {"producer_byte_rate": "7"})
    change(cluster, APP, {"request_percentage": "3"})
    change(cluster, ("ips", "10.0.0.1"), {"connection_creation_rate": "2"})
    cluster.start(2)
    assert known(cluster, 2) == known(cluster, 1)
    assert len(known(cluster, 2)) == 3


def test_a_broker_takes_no_step_at_its_start_to_find_that_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Sequence[Operation]] = []
    submit = SimSession.submit

    def count(store: SimSession, operations: Sequence[Operation], token: object) -> None:
        steps.append(operations)
        submit(store, operations, token)

    cluster = Cluster(1)
    monkeypatch.setattr(SimSession, "submit", count)
    cluster.start(2)
    listings = [step for step in steps if Children("/config/users") in step]
    assert [step[0] for step in listings] == [Children("/config/changes", watch=True)]
    assert not any(isinstance(each, Get) and is_entity(each.path[len("/config/") :]) for step in steps for each in step)


@pytest.mark.parametrize(
    "path", ["users/", "users/..", "users/a/b", "users/a/clients/..", "ips/a/b", "users/a/clients/b/c"]
)
def test_a_notice_of_no_entity_is_passed_by(path: str) -> None:
    assert not is_entity(path)
    cluster = Cluster(1)
    write(cluster, Create("/config/changes/config_change_", encode_config_change(path), sequential=True))
    cluster.settle()
    assert known(cluster, 1) == {}


def test_a_node_that_makes_no_sense_counts_for_none_and_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1)
    change(cluster, ALICE, {"SCRAM-SHA-256": "salt=c2FsdA==,stored_key=SECRET"})
    write(cluster, Delete("/config/users/alice"))
    write(cluster, Create("/config/users/alice", b'{"SCRAM-SHA-256": "SECRET"'))
    write(cluster, Create("/config/changes/config_change_", encode_config_change("users/alice"), sequential=True))
    cluster.settle()
    assert known(cluster, 1) == {}
    assert "makes no sense" in caplog.text
    assert "SECRET" not in caplog.text


def test_names_are_written_as_apaches_sanitizer_writes_them() -> None:
    assert sanitized("a b/c*~é.-_") == "a%20b%2Fc%2A%7E%C3%A9.-_"
    assert desanitized("a%20b%2Fc%2A%7E%C3%A9.-_") == "a b/c*~é.-_"
    assert user_path("a/b") == "users/a%2Fb"
