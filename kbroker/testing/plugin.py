"""pytest's fixtures: `kafka_broker`, `kafka_cluster`, `kafka_topic`. Loaded by pytest wherever kbroker is installed.

One broker serves all tests of a session, unless the setting `kafka_scope` says otherwise, and is put back after each
test that used it: started or resumed if need be, without topics, groups, faults and history. A failing test's report
has a section of what the broker saw. Nothing else of kbroker is imported before a test asks for one of the fixtures.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from kbroker.testing._broker import Broker
    from kbroker.testing._cluster import Cluster

    Kafka = Broker | Cluster
    Scope = Literal["session", "package", "module", "class", "function"]

SCOPES = ("session", "package", "module", "class", "function")
FIXTURES = ("kafka_broker", "kafka_cluster")
LONGEST_NAME = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings, in pytest.ini or pyproject.toml."""
    parser.addini("kafka_scope", f"how long a broker lives: {', '.join(SCOPES)}", default="session")
    parser.addini("kafka_reset", "whether a broker is emptied after each test that used it", type="bool", default=True)
    parser.addini("kafka_settings", "lines of server.properties for the brokers", type="linelist", default=[])
    parser.addini("kafka_brokers", "how many brokers a kafka_cluster has", default="3")


_running: dict[str, Kafka] = {}
"""By fixture, what runs now. Of this process: every worker of xdist has its own."""


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    scope = config.getini("kafka_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"kafka_scope = {scope}: allowed: {', '.join(SCOPES)}")
    return cast("Scope", scope)


def _settings(config: pytest.Config) -> dict[str, object]:
    lines = [line.partition("=") for line in config.getini("kafka_settings")]
    for name, equals, _ in lines:
        if not equals:
            raise pytest.UsageError(f"kafka_settings: {name!r}: write name=value")
    return {name.strip(): value.strip() for name, _, value in lines}


@pytest.fixture(scope=_scope)
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker: `kafka_broker.bootstrap` is for clients, `kafka_broker.faults` for what is to go wrong."""
    from kbroker.testing import broker

    with broker(settings=_settings(pytestconfig)) as made:
        _running["kafka_broker"] = made
        yield made
        del _running["kafka_broker"]


@pytest.fixture(scope=_scope)
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three brokers, or as many as `kafka_brokers` says: `kafka_cluster.brokers[1].stop()`."""
    from kbroker.testing import cluster

    count = pytestconfig.getini("kafka_brokers")
    if not count.isdecimal():
        raise pytest.UsageError(f"kafka_brokers = {count}: allowed: a whole number")
    with cluster(int(count), settings=_settings(pytestconfig)) as made:
        _running["kafka_cluster"] = made
        yield made
        del _running["kafka_cluster"]


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic made for this test, after which it is called: on the cluster if the test has one."""
    used = "kafka_cluster" if "kafka_cluster" in request.fixturenames else "kafka_broker"
    kafka: Kafka = request.getfixturevalue(used)
    return kafka.create_topic(re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:LONGEST_NAME])


def _used(item: pytest.Item) -> list[Kafka]:
    names = getattr(item, "fixturenames", ())
    wanted = {*names, "kafka_broker"} if "kafka_topic" in names else names
    return [_running[name] for name in FIXTURES if name in wanted and name in _running]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that failed shows what its broker saw."""
    made = yield
    if made.failed and call.when in ("setup", "call"):
        for kafka in _used(item):
            made.sections.append(("kafka", kafka.report()))
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """After the test's own fixtures are done, well or not: what is left of the broker is put back."""
    used = _used(item)
    try:
        return (yield)
    finally:  # or the next test would meet the faults of one whose client could not be closed
        if item.config.getini("kafka_reset"):
            for kafka in used:
                if kafka in _running.values():
                    kafka.put_back()
