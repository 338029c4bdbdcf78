"""docs/wire.md says of every message who judged it, and is not behind the code."""

from __future__ import annotations

import pytest

from kbroker.api.routes import SERVED
from protocol.apis import APIS
from tests.judges.java import NEWEST, RELEASES, require
from tests.judges.pairs import all_messages, versions
from tests.judges.report import PAGE, judged, row, span, table, unjudged


def _rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("|")]


def test_the_page_has_every_message_and_what_kio_judged() -> None:
    lines = {line.split(" | ")[1]: line for line in _rows()[2:]}
    assert list(lines) == list(all_messages())
    for name, cls in all_messages().items():
        theirs = [line.strip(" |") for line in lines[name].split(" | ")[4:6]]
        assert lines[name] == row(cls, [*theirs, span(judged(cls, "kio"))]), "run scripts/wire"


@pytest.mark.java
@pytest.mark.timeout(600)
def test_the_table_is_what_the_judges_have() -> None:
    assert [require(release).release for release in RELEASES] == list(RELEASES)
    assert _rows() == table(), "run scripts/wire"


@pytest.mark.java
@pytest.mark.timeout(600)
def test_nothing_is_judged_by_nobody() -> None:
    assert [require(release).release for release in RELEASES] == list(RELEASES)
    assert unjudged() == []


@pytest.mark.java
@pytest.mark.timeout(600)
def test_every_api_of_a_zookeeper_broker_is_there_in_every_version() -> None:
    ours = {cls.api: set(versions(cls)) for name, cls in all_messages().items() if name.endswith("Request")}
    theirs = {
        api["key"]: set(range(api["request"][0], api["request"][1] + 1))
        for api in require("3.9.1").has["apis"]
        if "ZK_BROKER" in api["listeners"]
    }
    assert {key: served - ours.get(key, set()) for key, served in theirs.items() if served - ours.get(key, set())} == {}


OF_A_QUORUM = {
    55: "DescribeQuorum",
    64: "UnregisterBroker",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    94: "UnregisterController",
}
"""What brokers pass on to a KRaft quorum, which there is none of."""

TELEMETRY = {71: "GetTelemetrySubscriptions", 72: "PushTelemetry"}
"""Apache's brokers list these only with a plugin that takes what clients push (README.md)."""

LISTED_FROM = {0: 0}
"""Versions that 4.4 lists and does not serve, by key: clients give up where Produce has no old ones."""


def _stable(release: str, listener: str) -> dict[int, tuple[int, int]]:
    """The versions that a release's broker lists, by key."""
    return {
        api["key"]: (api["request"][0], api["stable"])
        for api in require(release).has["apis"]
        if listener in api["listeners"] and api["stable"] >= api["request"][0]
    }


@pytest.mark.java
@pytest.mark.timeout(600)
def test_the_newest_release_serves_clients_nothing_that_is_not_served() -> None:
    theirs = _stable(NEWEST, "BROKER")
    served = {key: range(each.first, each.last + 1) for key, each in SERVED.items()}
    missing = {key for key, (first, last) in theirs.items() if not {first, last} <= set(served.get(key, ()))}
    assert missing == OF_A_QUORUM.keys() | TELEMETRY.keys()


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("release", "listener", "column"), [("3.9.1", "ZK_BROKER", "kafka_3_9"), (NEWEST, "BROKER", "kafka_4_4")]
)
def test_the_table_of_apis_says_what_apaches_brokers_list(release: str, listener: str, column: str) -> None:
    theirs = _stable(release, listener)
    if release == NEWEST:
        theirs |= {key: (first, theirs[key][1]) for key, first in LISTED_FROM.items()}
    ours = {api.key: getattr(api, column) for api in APIS}
    assert {key: said for key, said in ours.items() if said != theirs.get(key)} == {}


def test_ranges_are_short() -> None:
    assert [span([]), span([4]), span([0, 1, 2]), span([0, 2, 3])] == ["-", "4", "0-2", "0, 2-3"]


def test_the_page_says_how_many_values_were_judged() -> None:
    assert "Values judged when this page was written, without an objection: Kafka 3.9.1 " in PAGE.read_text()
