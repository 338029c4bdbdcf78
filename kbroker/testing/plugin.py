"""pytest's fixtures: `kafka_broker`, `kafka_cluster`, `kafka_topic`. Loaded by pytest wherever kbroker is installed.

One broker serves all tests of a session, unless the setting `kafka_scope` says otherwise, and is put back after each
test that used it: started or resumed if need be, without topics, groups, faults and history. A failing test's report
has a section of what the broker saw, and ends at the test's own line where a call of the kit failed. A setting that
makes no sense ends the run in one line. Nothing else of kbroker is imported before a test asks for one of the fixtures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

if TYPE_CHECKING:
    from types import TracebackType

    from kbroker.testing._broker import Broker
    from kbroker.testing._cluster import Cluster

    Kafka = Broker | Cluster
    Scope = Literal["session", "package", "module", "class", "function"]

SCOPES = ("session", "package", "module", "class", "function")
FIXTURES = ("kafka_broker", "kafka_cluster")
LONGEST_NAME = 200
KIT = str(Path(__file__).parent)
OURS = str(Path(__file__).parents[1])
PROTOCOL = str(Path(__file__).parents[2] / "protocol")  # of a checkout: installed, it is in OURS
WRONG_KINDS = (TypeError, AttributeError, ValueError)  # what a call ends with that is given a "3" for a 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings, in pytest.ini or pyproject.toml."""
    parser.addini("kafka_scope", f"how long a broker lives: {', '.join(SCOPES)}", default="session")
    parser.addini("kafka_reset", "whether a broker is emptied after each test that used it", type="bool", default=True)
    parser.addini("kafka_settings", "lines of server.properties for the brokers", type="linelist", default=[])
    parser.addini("kafka_brokers", "how many brokers a kafka_cluster has", default="3")


_running: dict[str, Kafka] = {}
"""By fixture, what runs now. Of this process: every worker of xdist has its own."""


def pytest_configure(config: pytest.Config) -> None:
    """Settings that make no sense end the run here; pytest makes a traceback of what is raised later."""
    scope, count = config.getini("kafka_scope"), config.getini("kafka_brokers")
    if scope not in SCOPES:
        raise pytest.UsageError(f"kafka_scope = {scope}: allowed: {', '.join(SCOPES)}")
    if not (count.isascii() and count.isdecimal()):
        raise pytest.UsageError(f"kafka_brokers = {count}: allowed: a whole number")
    for line in config.getini("kafka_settings"):
        if "=" not in line:
            raise pytest.UsageError(f"kafka_settings: {line!r}: write name=value")
    try:
        config.getini("kafka_reset")
    except (ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"kafka_reset: {error}; allowed: true, false") from None


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    return cast("Scope", config.getini("kafka_scope"))


def _settings(config: pytest.Config) -> dict[str, object]:
    lines = [line.partition("=") for line in config.getini("kafka_settings")]
    return {name.strip(): value.strip() for name, _, value in lines}


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What cannot be started is said without a traceback: there is no line of the test to show."""
    from kbroker.usage import UsageError

    try:
        yield
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope=_scope)
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker: `kafka_broker.bootstrap` is for clients, `kafka_broker.faults` for what is to go wrong."""
    from kbroker.testing import broker

    with _in_one_line():
        made = broker(settings=_settings(pytestconfig)).start()
    _running["kafka_broker"] = made
    yield made
    del _running["kafka_broker"]
    made.close()


@pytest.fixture(scope=_scope)
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three brokers, or as many as `kafka_brokers` says: `kafka_cluster.brokers[1].stop()`."""
    from kbroker.testing import cluster

    with _in_one_line():
        made = cluster(int(pytestconfig.getini("kafka_brokers")), settings=_settings(pytestconfig)).start()
    _running["kafka_cluster"] = made
    yield made
    del _running["kafka_cluster"]
    made.close()


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


def _cut(failure: pytest.ExceptionInfo[BaseException]) -> None:
    """A call of the kit that failed ends at the line that called: how the kit found out is nothing to its reader."""
    place, caller = failure.tb, None
    while place.tb_next is not None:
        if caller is None and _is_in(OURS, place.tb_next):
            caller = place
        place = place.tb_next
    is_told = (
        failure.type.__module__ == "kbroker.usage"
        or (failure.type is AssertionError and _is_in(KIT, place))
        or (issubclass(failure.type, WRONG_KINDS) and (_is_in(OURS, place) or _is_in(PROTOCOL, place)))
    )
    if caller is not None and is_told:
        caller.tb_next = None


def _is_in(folder: str, place: TracebackType) -> bool:
    return place.tb_frame.f_code.co_filename.startswith(f"{folder}{os.sep}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that failed shows what its broker saw."""
    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        _cut(call.excinfo)
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
