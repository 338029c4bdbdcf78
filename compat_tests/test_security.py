"""Stock clients on listeners that want to know who comes: by every way that each of them has, right and wrong.

One broker, `--broker`, has a listener of each kind. Its user `writer` may write to and read one topic, and knows of
another by name, which it must not see. What a client says of a refusal is its own: here it is that it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, NewTopic, ResourcePattern, ResourceType
from kafka.admin import UserScramCredentialUpsertion as Credential

from compat_tests.apache import KraftBroker, free_port
from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import CLIENTS, FRANZ_GO, LIBRDKAFKA, REFERENCE, Client, ClientError, Driver, start
from compat_tests.test_spark import SPARK, Spark
from kbroker.runtime.secure import AUTHORITY_FILE, BROKER_FILE, CLIENT_FILE, secure
from kbroker.security.client import MODULES, PLAIN, SCRAM
from kbroker.security.recipes import Recipe, jaas

SECTION = "10 Listeners that want to know who comes"
pytestmark = pytest.mark.timeout(600)

USER, PASSWORD = "writer", "wonder land, 'of' \"sorts\""
ALLOWED, SECRET = "allowed", "secret"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
WAYS = [("SSL", ""), *((protocol, each) for protocol in PROTOCOLS[1:] for each in (PLAIN, *SCRAM))]
QUICK = {("SASL_SSL", SCRAM[1]): (REFERENCE, LIBRDKAFKA), ("SSL", ""): (REFERENCE,)}
NOT_AUTHORIZED = (29, 3)  # TOPIC_AUTHORIZATION_FAILED; a client that asks for the topic's name only hears of none
CELLS = [(client, *way) for way in WAYS for client in (*CLIENTS, FRANZ_GO)]
IMPATIENT = {
    "kafka-python 2.3.3": {"max_block_ms": 5000},
    "kafka-python 3.0.12": {"bootstrap_timeout_ms": 3000},
    "confluent-kafka 2.16.0": {"message.timeout.ms": "3000"},
    "kcat": {"message.timeout.ms": "3000"},
}
"""Of clients that log in again and again for half a minute."""


def named(cell: tuple[Client, str, str], *, is_quick: bool) -> Any:
    """A cell as a parameter."""
    client, *way = cell
    marks = [pytest.mark.quick] if is_quick and client in QUICK.get((way[0], way[1]), ()) else []
    return pytest.param(*cell, id=f"{client}-{'-'.join(filter(None, way))}", marks=marks)


class Guarded(NamedTuple):
    """A broker's listeners: ports by protocol. folder: of what `secure` made."""

    ports: Mapping[str, int]
    folder: Path

    def recipe(self, protocol: str, mechanism: str, password: str = PASSWORD) -> Recipe:
        """What the user's clients are told."""
        tls = protocol.endswith("SSL")
        return Recipe(
            f"127.0.0.1:{self.ports[protocol]}",
            protocol,
            str(self.folder / AUTHORITY_FILE) if tls else "",
            str(self.folder / CLIENT_FILE) if protocol == "SSL" else "",
            USER if mechanism else "",
            password,
            mechanism,
        )


@pytest.fixture(scope="module")
def guarded(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The broker, with its users, topics and rules."""
    folder = tmp_path_factory.mktemp("guarded")
    made = folder / "secure"
    secure(str(made), protocol="SSL", listeners="SSL://127.0.0.1:0")
    ports = {each: free_port() for each in ("PLAINTEXT", *PROTOCOLS)}
    settings = _settings(made)
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    choice = pytestconfig.getoption("--broker")
    server: KbrokerProcess | KraftBroker
    if choice == "kbroker":
        settings |= {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "listeners": listeners}
        server = KbrokerProcess(folder / "broker", settings=settings, port=ports["PLAINTEXT"])
    else:
        controller = free_port()
        settings |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT," + ",".join(f"{each}:{each}" for each in ports),
        }
        release = choice.removeprefix("apache-")
        server = KraftBroker(release, folder / "broker", settings=settings, port=ports["PLAINTEXT"])
    with server:
        _fill(ports["PLAINTEXT"])
        yield Guarded(ports, made)


def _settings(made: Path) -> dict[str, str]:
    """Of a broker of either kind; who comes by PLAINTEXT may do everything."""
    settings = {
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": ",".join((PLAIN, *SCRAM)),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made / BROKER_FILE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made / AUTHORITY_FILE),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    quoted = jaas("", PASSWORD).rpartition("password=")[2]
    for protocol in PROTOCOLS[1:]:
        name = f"listener.name.{protocol.lower()}"
        settings[f"{name}.plain.sasl.jaas.config"] = f"{MODULES[PLAIN]} required user_{USER}={quoted}"
        for each in SCRAM:
            settings[f"{name}.{each.lower()}.sasl.jaas.config"] = f"{MODULES[each]} required;"
    return settings


def _fill(port: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    admin.create_topics([NewTopic(ALLOWED, 1, 1), NewTopic(SECRET, 1, 1)])
    for each in SCRAM:  # brokers in KRaft mode refuse a user that is twice in a request
        assert admin.alter_user_scram_credentials([Credential(USER, each, PASSWORD)]) == {USER: None}
    topic, group = ResourcePattern(ResourceType.TOPIC, ALLOWED), ResourcePattern(ResourceType.GROUP, "*")
    rights = ((ACLOperation.READ, topic), (ACLOperation.WRITE, topic), (ACLOperation.READ, group))
    admin.create_acls(
        [
            ACL(principal, "*", operation, ACLPermissionType.ALLOW, resource)
            for principal in (f"User:{USER}", "User:CN=admin")
            for operation, resource in rights
        ]
    )
    admin.close()


def told(client: Client, recipe: Recipe) -> dict[str, Any]:
    """A recipe in the words of a client."""
    if client.name == "Java":
        return recipe.java()
    if client.name in ("confluent-kafka", "kcat"):
        return recipe.librdkafka()
    if client.name == "franz-go":
        own = {"mechanism": recipe.mechanism, "user": recipe.user, "password": recipe.password}
        return {**own, "ca": recipe.authority, "own": recipe.own}
    if client.name != "kafkajs":
        return {key: value for key, value in recipe.kafka_python().items() if key != "bootstrap_servers"}
    settings: dict[str, Any] = {}
    if recipe.user:
        settings["sasl"] = {
            "mechanism": recipe.mechanism.lower(),
            "username": recipe.user,
            "password": recipe.password,
        }
    if recipe.authority:
        settings["ssl"] = {"ca": recipe.authority}
    if recipe.own:
        settings["ssl"] |= {"cert": Path(recipe.own).read_text(), "key": Path(recipe.own).read_text()}
    return settings


def refusal(driver: Driver, topic: str) -> ClientError:
    """What a client says of a record that it may not write."""
    with pytest.raises(ClientError) as caught:
        driver.produce(topic, [{"value": "no"}])
    return caught.value


@pytest.mark.parametrize(("kind", "protocol", "mechanism"), [named(each, is_quick=True) for each in CELLS])
def test_who_has_the_right_writes_and_reads(
    guarded: Guarded, kind: Client, protocol: str, mechanism: str, tmp_path: Path
) -> None:
    """{protocol} {mechanism}: writes, reads; a topic of others is refused, and not named"""
    kind.needs(mechanism)
    recipe = guarded.recipe(protocol, mechanism)
    driver = start(kind, recipe.bootstrap, tmp_path, told(kind, recipe))
    try:
        value = f"{kind} {protocol} {mechanism}"
        driver.produce(ALLOWED, [{"value": value}])
        _, end = driver.bounds(ALLOWED, 0)
        assert driver.read(ALLOWED, 0, end - 1, 1)[0]["value"] == value
        assert SECRET not in driver.topics()
        said = refusal(driver, SECRET)
        assert said.code in NOT_AUTHORIZED or "uthoriz" in str(said), said
    finally:
        driver.close()


@pytest.mark.parametrize(("kind", "protocol", "mechanism"), [named(each, is_quick=False) for each in CELLS])
def test_who_is_not_let_in_is_told(
    guarded: Guarded, kind: Client, protocol: str, mechanism: str, tmp_path: Path
) -> None:
    """{protocol} {mechanism}: a wrong password, or no certificate, is an error"""
    kind.needs(mechanism)
    recipe = guarded.recipe(protocol, mechanism, "wrong")._replace(own="")
    impatient = IMPATIENT.get(str(kind), IMPATIENT.get(kind.name, {}))
    driver = start(kind, recipe.bootstrap, tmp_path, {**told(kind, recipe), **impatient})
    try:
        said = str(refusal(driver, ALLOWED))
        assert PASSWORD not in said
        assert "wrong" not in said
    finally:
        driver.close()


# -- Spark, whose connector has Java's client in it


@pytest.fixture(scope="module")
def sessions() -> Iterator[list[Driver]]:
    """Of Spark; the last one is in use."""
    drivers: list[Driver] = []
    yield drivers
    for each in drivers:
        each.close()


@pytest.fixture
def spark(guarded: Guarded, sessions: list[Driver], tmp_path: Path) -> Spark:
    """One session for all, started again if it died, whose requests each say how to log in."""
    if not sessions or not sessions[-1].alive:
        sessions.append(start(SPARK, f"127.0.0.1:{guarded.ports['PLAINTEXT']}", tmp_path))
    return Spark(sessions[-1])


BY_SPARK = [pytest.param(*way, marks=pytest.mark.java, id="-".join(filter(None, ("Spark", *way)))) for way in WAYS]


def write_by_spark(spark: Spark, topic: str, value: str, recipe: Recipe) -> None:
    rows = [{"topic": topic, "value": value}]
    spark.driver.start("write", rows=rows, options={**recipe.spark(), **HASTY})()


def read_by_spark(spark: Spark, topic: str, recipe: Recipe) -> list[str]:
    options = {"subscribe": topic, "startingOffsets": "earliest", **recipe.spark()}
    return [each["value"] for each in spark.driver.start("read", options=options)()]


HASTY = {"kafka.max.block.ms": "5000", "kafka.delivery.timeout.ms": "6000", "kafka.request.timeout.ms": "5000"}


@pytest.mark.parametrize(("protocol", "mechanism"), BY_SPARK)
def test_spark_with_the_right_writes_and_reads(guarded: Guarded, spark: Spark, protocol: str, mechanism: str) -> None:
    """{protocol} {mechanism}: Spark writes, reads; a topic of others is refused"""
    recipe, value = guarded.recipe(protocol, mechanism), f"Spark {protocol} {mechanism}"
    write_by_spark(spark, ALLOWED, value, recipe)
    assert value in read_by_spark(spark, ALLOWED, recipe)
    for refused in (
        lambda: write_by_spark(spark, SECRET, "no", recipe),
        lambda: read_by_spark(spark, SECRET, recipe),
    ):
        with pytest.raises(ClientError) as caught:
            refused()
        assert "TopicAuthorizationException" in str(caught.value)


@pytest.mark.parametrize(("protocol", "mechanism"), BY_SPARK)
def test_spark_that_is_not_let_in_is_told(guarded: Guarded, spark: Spark, protocol: str, mechanism: str) -> None:
    """{protocol} {mechanism}: Spark with a wrong password, or no certificate, is told so"""
    recipe = guarded.recipe(protocol, mechanism, "wrong")._replace(own="")
    for refused in (
        lambda: write_by_spark(spark, ALLOWED, "no", recipe),
        lambda: read_by_spark(spark, ALLOWED, recipe),
    ):
        with pytest.raises(ClientError) as caught:
            refused()
        said = str(caught.value)
        assert ("SaslAuthenticationException" if mechanism else "Ssl") in said
        assert PASSWORD not in said
