"""A broker that shows an ensemble who it is: by TLS, a login, a certificate; and what its nodes then allow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions

from compat_tests import secured
from compat_tests.apache import NoApacheError
from compat_tests.apache import missing as missing_apache
from compat_tests.secured import LOGIN, ODD_LOGIN, ODD_USER, PASSWORD, USER, SecuredZooKeeper
from kbroker.config import BrokerLayers, Given
from kbroker.config.broker import BrokerConfig
from kbroker.config.resolve import resolve_broker
from kbroker.ports import Create, Get, Multi, SessionStarted, StoreAnswer, StoreEvent, StoreFault
from kbroker.runtime.zookeeper import ZooKeeperStore
from kbroker.runtime.zookeeper_security import Security, security_of

pytestmark = [pytest.mark.java, pytest.mark.slow]

PATIENCE_S = 30.0
LOGGED_IN = {"kbroker.zookeeper.sasl.jaas.config": LOGIN}
EVERYTHING = ACL(Permissions.ALL, Id("sasl", USER))
MAY_READ = ACL(Permissions.READ, Id("world", "anyone"))
OPEN = ACL(Permissions.ALL, Id("world", "anyone"))


class Client:
    """A store whose events are taken one by one."""

    def __init__(self, connect: str, security: Security) -> None:
        self.events: Queue[StoreEvent] = Queue()
        self.store = ZooKeeperStore(
            connect, self.events.put, session_timeout_ms=5_000, connection_timeout_ms=200, security=security
        )

    def ask(self, *operations: Create | Get | Multi) -> list[StoreFault | None]:
        self.store.submit(operations, "asked")
        while not isinstance(event := self.events.get(timeout=PATIENCE_S), StoreAnswer):
            assert isinstance(event, SessionStarted), event
        return [outcome.fault for outcome in event.outcomes]


def config(**settings: str) -> BrokerConfig:
    texts = {key.replace("_", "."): text for key, text in settings.items()}
    return resolve_broker(BrokerLayers({key: Given(text, "here") for key, text in texts.items()}))


def tls(server: SecuredZooKeeper, **settings: str) -> dict[str, str]:
    trusted = str(server.certificates.authority)
    return {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": trusted,
        "zookeeper.ssl.truststore.type": "PEM",
        **{key.replace("_", "."): text for key, text in settings.items()},
    }


@pytest.fixture(scope="module")
def _tools() -> None:
    if reason := missing_apache():
        raise NoApacheError(reason)
    if reason := secured.missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def server(_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with SecuredZooKeeper(tmp_path_factory.mktemp("secured")) as server:
        yield server


@pytest.fixture(scope="module")
def strict(_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    """One that wants a login, and a certificate of who comes by TLS."""
    with SecuredZooKeeper(tmp_path_factory.mktemp("strict"), wants_login=True, wants_certificate=True) as server:
        yield server


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    made: list[Client] = []
    yield made
    for client in made:
        client.store.close()


def rights(server: SecuredZooKeeper, path: str) -> set[ACL]:
    login = {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD}
    client = KazooClient(server.address, sasl_options=login)
    client.start()
    found = client.get_acls(path)[0]
    client.stop()
    client.close()
    return set(found)


def line(said: Queue[logging.LogRecord], begin: str) -> str:
    """The next line that begins so."""
    while not (text := said.get(timeout=PATIENCE_S).getMessage()).startswith(begin):
        pass
    return text


def test_everything_goes_over_tls(server: SecuredZooKeeper, clients: list[Client]) -> None:
    clients.append(Client(f"{server.secure}/tls", security_of(config(**tls(server)))))
    assert (
        clients[0].ask(Create("/a", bytes(300_000)), Get("/a"), Multi((Create("/a/b"), Create("/a/c")))) == [None] * 3
    )
    assert rights(server, "/tls/a") == {OPEN}


def test_nodes_are_for_the_brokers_alone_to_change(server: SecuredZooKeeper, clients: list[Client]) -> None:
    security = security_of(config(**LOGGED_IN, **{"zookeeper.set.acl": "true"}))
    clients.append(Client(f"{server.address}/closed/to/others", security))
    made = [Create("/config"), Create("/config/users"), Create("/consumers"), Multi((Create("/config/topics"),))]
    assert clients[0].ask(*made) == [None] * 4
    assert {
        path: rights(server, f"/closed{path}") for path in ("", "/to", "/to/others", "/to/others/config/topics")
    } == {path: {EVERYTHING, MAY_READ} for path in ("", "/to", "/to/others", "/to/others/config/topics")}
    assert rights(server, "/closed/to/others/config/users") == {EVERYTHING}
    assert rights(server, "/closed/to/others/consumers") == {OPEN}


def test_who_has_no_rights_is_refused_and_keeps_the_session(server: SecuredZooKeeper, clients: list[Client]) -> None:
    owner = security_of(config(**LOGGED_IN, **{"zookeeper.set.acl": "true"}))
    clients.append(Client(f"{server.address}/owned", owner))
    assert clients[0].ask(Create("/a")) == [None]
    clients.append(Client(f"{server.address}/owned", Security()))
    assert clients[1].ask(Create("/a/b"), Get("/a")) == [StoreFault.REFUSED, None]
    assert clients[1].ask(Multi((Create("/a/b"),))) == [StoreFault.REFUSED]


def test_a_password_may_have_letters_beyond_ascii_quotes_and_backslashes(
    server: SecuredZooKeeper, clients: list[Client]
) -> None:
    settings = {"kbroker.zookeeper.sasl.jaas.config": ODD_LOGIN, "zookeeper.set.acl": "true"}
    clients.append(Client(f"{server.address}/odd", security_of(config(**settings))))
    assert clients[0].ask(Create("/a")) == [None]
    assert rights(server, "/odd/a") == {ACL(Permissions.ALL, Id("sasl", ODD_USER)), MAY_READ}


def test_a_certificate_is_a_name_too(strict: SecuredZooKeeper, clients: list[Client]) -> None:
    own = str(strict.certificates.of("broker"))
    settings = tls(strict, zookeeper_ssl_keystore_location=own, zookeeper_set_acl="true", **LOGGED_IN)
    clients.append(Client(f"{strict.secure}/shown", security_of(config(**settings))))
    assert clients[0].ask(Create("/a")) == [None]
    assert rights(strict, "/shown/a") == {EVERYTHING, MAY_READ, ACL(Permissions.ALL, Id("x509", "CN=broker"))}


def test_an_ensemble_that_wants_a_login_refuses_who_has_none(strict: SecuredZooKeeper, clients: list[Client]) -> None:
    clients.append(Client(strict.address, Security()))
    assert clients[0].ask(Get("/")) == [StoreFault.REFUSED]


@pytest.mark.parametrize("wants_login", [False, True])
def test_a_wrong_password_is_said_and_tried_on(
    server: SecuredZooKeeper,
    strict: SecuredZooKeeper,
    clients: list[Client],
    said: Queue[logging.LogRecord],
    wants_login: bool,
) -> None:
    """One that wants a login says so with another code, and ends the session."""
    server = strict if wants_login else server
    clients.append(Client(server.address, Security(login=(USER, "guess"))))
    wanted = f"no ZooKeeper answers at {server.address}; trying on: 127.0.0.1 refuses the login of {USER}"
    for _ in range(2):
        while line(said, "no ZooKeeper") != wanted:
            pass  # the first may come before the answer to the login
    assert clients[0].events.empty()


@pytest.mark.parametrize("other_host", [False, True])
def test_a_server_that_nobody_vouches_for_is_said_and_tried_on(
    server: SecuredZooKeeper, clients: list[Client], said: Queue[logging.LogRecord], tmp_path: Path, other_host: bool
) -> None:
    settings = tls(server)
    address = server.secure
    if other_host:
        address = address.replace("127.0.0.1", "localhost")
    else:
        settings["zookeeper.ssl.truststore.location"] = str(secured.Certificates(tmp_path).authority)
    clients.append(Client(address, security_of(config(**settings))))
    why = (
        "Hostname mismatch, certificate is not valid for 'localhost'."
        if other_host
        else "unable to get local issuer certificate"
    )
    while f"; trying on: no TLS with {address}: {why}" not in line(said, "no ZooKeeper"):
        pass
    settings["zookeeper.ssl.endpoint.identification.algorithm"] = ""
    if other_host:
        clients.append(Client(address, security_of(config(**settings))))
        assert clients[1].ask(Get("/")) == [None]


def test_a_session_survives_the_loss_of_a_connection_with_login(
    strict: SecuredZooKeeper, clients: list[Client]
) -> None:
    """On a new connection the login comes before what waits; else it would be refused."""
    own = str(strict.certificates.of("again"))
    settings = tls(strict, zookeeper_ssl_keystore_location=own, **LOGGED_IN)
    clients.append(Client(strict.secure, security_of(config(**settings))))
    assert clients[0].ask(Create("/kept", ephemeral=True)) == [None]
    again = threading.Event()
    clients[0].store._client.add_listener(lambda state: again.set() if state == "CONNECTED" else None)
    clients[0].store._client._connection._socket.shutdown(2)
    assert again.wait(PATIENCE_S)
    while (faults := clients[0].ask(Get("/kept"))) == [StoreFault.CONNECTION_LOST]:
        pass
    assert faults == [None]
