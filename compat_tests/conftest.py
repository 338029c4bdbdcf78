"""Which broker, which clients: options, fixtures and the reporter of the compatibility suite.

    pytest compat_tests -m quick                            what scripts/test runs
    pytest compat_tests --broker apache-4.4.0               the same against Apache's broker
    pytest compat_tests --matrix docs/compatibility.md      and write the matrix

Tests that need Java are skipped, visibly, where there is none; under CI=true they fail instead.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests import apache
from compat_tests.apache import Server
from compat_tests.brokers import CHOICES, Place, broker_of
from compat_tests.clients import CLIENTS, REFERENCE, Client, Driver, start
from compat_tests.environments import unavailable
from compat_tests.report import MatrixReporter, cell_of
from kbroker.testing import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compatibility")
    group.addoption("--broker", choices=CHOICES, default="kbroker", help="the broker under test")
    group.addoption("--client", action="append", default=[], help="only clients whose name contains this")
    group.addoption("--matrix", metavar="FILE", help="write the results as a Markdown page")
    group.addoption("--pictures", metavar="FOLDER", help="where the console's tasks leave a picture each")
    group.addoption("--kills", type=int, default=3, help="how often each kill test kills the broker")
    group.addoption("--image", default="", help="the container image that test_containers.py is about")
    group.addoption("--new-topics", type=int, default=0, help="how many topics each client makes and uses at once")


def pytest_configure(config: pytest.Config) -> None:
    ours = config.getoption("--broker") == "kbroker"
    config.pluginmanager.register(OurBroker() if ours else ApachesBroker(), "compatibility-broker")
    if config.getoption("--matrix") and not hasattr(config, "workerinput"):
        reporter = MatrixReporter(Path(config.getoption("--matrix")), config.getoption("--broker"))
        config.pluginmanager.register(reporter, "compatibility-matrix")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for order, item in enumerate(items):
        if hasattr(getattr(item, "module", None), "SECTION"):
            item.user_properties.append(("cell", cell_of(item, order)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--client")
        clients = [one for one in CLIENTS if not wanted or any(part in str(one) for part in wanted)]
        parameters = [pytest.param(one, id=str(one), marks=[pytest.mark.quick] * one.quick) for one in clients]
        metafunc.parametrize("client", parameters, indirect=True)


@pytest.fixture(autouse=True)
def _java(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("java") is None:
        return
    try:
        for release in apache.RELEASES:
            apache.jars(release)
    except apache.NoApacheError as reason:
        unavailable(f"Apache's programs cannot run: {reason}")


class OurBroker:
    """Fixtures for `--broker kbroker`: the plugin's broker, emptied after each test, and shown where one fails."""

    @pytest.fixture
    def broker(self, kafka_broker: Broker) -> Place:
        """The broker under test, shared by the tests of a session."""
        return Place("127.0.0.1", kafka_broker.port)


class ApachesBroker:
    """Fixtures for `--broker apache-...`: a process."""

    @pytest.fixture(scope="session")
    def _running(self) -> Iterator[list[Server]]:
        """The session's broker in a list of one, so that a test can put a new one in place of one that died."""
        running: list[Server] = []
        yield running
        for server in running:
            server.stop()

    @pytest.fixture
    def broker(
        self, pytestconfig: pytest.Config, _running: list[Server], tmp_path_factory: pytest.TempPathFactory
    ) -> Place:
        """The broker under test, shared by the tests of a session; one that died is replaced by a new one."""
        if not _running or not _running[0].alive:
            folder = tmp_path_factory.mktemp("broker")
            settings = {
                "connections.max.idle.ms": "3600000",  # a client may have to wait long for its next turn
                "log.retention.ms": "-1",  # records of a given time are years old
            }
            _running[:] = [broker_of(pytestconfig.getoption("--broker"), folder, settings).start()]
        return Place(_running[0].host, _running[0].port)


@pytest.fixture(scope="session")
def _drivers() -> Iterator[dict[tuple[Client, str], Driver]]:
    drivers: dict[tuple[Client, str], Driver] = {}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture
def start_driver(broker: Place, tmp_path: Path) -> Iterator[Callable[[Client], Driver]]:
    """Start one more driver of a client, ended with the test."""
    started: list[Driver] = []

    def begin(client: Client) -> Driver:
        started.append(start(client, broker.address, tmp_path))
        return started[-1]

    yield begin
    for driver in started:
        driver.close()


@pytest.fixture
def client(
    request: pytest.FixtureRequest, broker: Place, _drivers: dict[tuple[Client, str], Driver], tmp_path: Path
) -> Driver:
    """The client of this cell of the matrix, connected to the broker."""
    return _shared(request.param, broker, _drivers, tmp_path)


@pytest.fixture
def reference(broker: Place, _drivers: dict[tuple[Client, str], Driver], tmp_path: Path) -> Driver:
    """The client that prepares and checks what the client under test reads and writes."""
    return _shared(REFERENCE, broker, _drivers, tmp_path)


@pytest.fixture
def topic() -> str:
    """A name nobody used before."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is shipped, built once."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(Path(__file__).parents[1])], check=True)
    (built,) = folder.glob("kbroker-*.whl")
    return built


def _shared(client: Client, broker: Place, drivers: dict[tuple[Client, str], Driver], folder: Path) -> Driver:
    key = (client, broker.address)
    if key not in drivers or not drivers[key].alive:
        drivers[key] = start(client, broker.address, folder)
    return drivers[key]
