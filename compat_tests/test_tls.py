"""Stock clients and Apache's tools over TLS, with a certificate of their own and without, on stores that keytool makes.

The broker's stores are Java's, so are those of Java's tools; the other clients have the same in PEM.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaTimeoutError

from compat_tests.apache import RELEASES
from compat_tests.environments import unavailable
from compat_tests.test_apache_tools import API_VERSIONS, CONFIGS, CONSOLE_CONSUMER, CONSOLE_PRODUCER, run
from tests.certificates import Authority
from tests.processes import BrokerProcess

SECTION = "9 TLS"
PASSWORD = "changeit"
RULES = "RULE:^CN=(.*?)(,.*)?$/$1/L,DEFAULT"
pytestmark = pytest.mark.timeout(300)


class Stores:
    """An authority, and what it vouches for, as Java keeps it. folder: of all files."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.folder = folder
        self.trust = folder / "trust.jks"
        self._keytool("-importcert", "-alias", "ca", "-file", self.authority.trust, "-keystore", self.trust)

    def key_store(self, name: str, kind: str) -> Path:
        """One that was made as PKCS12 and, for JKS, imported."""
        made = self.authority.make(f"CN={name},O=kbroker")
        source, target = self.folder / f"{name}.p12", self.folder / f"{name}.jks"
        source.write_bytes(made.pkcs12(PASSWORD))
        if kind == "PKCS12":
            return source
        self._keytool("-importkeystore", "-srckeystore", source, "-srcstorepass", PASSWORD, "-destkeystore", target)
        return target

    def _keytool(self, *arguments: object) -> None:
        command = ["keytool", *map(str, arguments), "-noprompt", "-storepass", PASSWORD, "-deststoretype", "JKS"]
        if arguments[0] == "-importcert":
            command[-2:] = ["-storetype", "JKS"]
        subprocess.run(command, check=True, capture_output=True)

    def java(self, path: Path, *, shows: bool) -> str:
        """The client.properties of a Java program."""
        lines = [
            "security.protocol=SSL",
            f"ssl.truststore.location={self.trust}",
            f"ssl.truststore.password={PASSWORD}",
        ]
        if shows:
            lines += [f"ssl.keystore.location={self.key_store('java', 'JKS')}", f"ssl.keystore.password={PASSWORD}"]
        path.write_text("\n".join(lines))
        return str(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    if shutil.which("keytool") is None:
        unavailable("no keytool of a JDK")
    return Stores(tmp_path_factory.mktemp("stores"))


def started(stores: Stores, folder: Path, kind: str, auth: str) -> BrokerProcess:
    return BrokerProcess(
        folder,
        listeners="SSL://127.0.0.1:0",
        security_inter_broker_protocol="SSL",
        ssl_keystore_location=str(stores.key_store("broker", kind)),
        ssl_keystore_password=PASSWORD,
        ssl_truststore_location=str(stores.trust),
        ssl_truststore_password=PASSWORD,
        ssl_principal_mapping_rules=RULES,
        ssl_client_auth=auth,
    )


@pytest.fixture(scope="module", params=[("JKS", "required"), ("PKCS12", "none")], ids=["mutual", "one way"])
def broker(
    request: pytest.FixtureRequest, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrokerProcess, bool]]:
    """And whether it demands a certificate."""
    kind, auth = request.param
    with started(stores, tmp_path_factory.mktemp("broker"), kind, auth) as made:
        yield made, auth == "required"


def pem(stores: Stores) -> str:
    """A client's key and certificate."""
    return str(stores.authority.store(stores.authority.make("CN=Client,O=kbroker"), "client.pem"))


def test_kafka_python(broker: tuple[BrokerProcess, bool], stores: Stores) -> None:
    """kafka-python produces and consumes over TLS"""
    process, mutual = broker
    settings = {
        "bootstrap_servers": f"127.0.0.1:{process.port}",
        "security_protocol": "SSL",
        "ssl_cafile": str(stores.authority.trust),
        **({"ssl_certfile": pem(stores), "ssl_keyfile": pem(stores)} if mutual else {}),
    }
    with closing(KafkaProducer(**settings)) as producer:
        for _ in range(100):
            producer.send("by-kafka-python", b"x" * 10_000)
        producer.flush(60)
    with closing(KafkaConsumer("by-kafka-python", auto_offset_reset="earliest", **settings)) as consumer:
        assert sum(len(each.value) for each in islice(consumer, 100)) == 1_000_000


def test_librdkafka(broker: tuple[BrokerProcess, bool], stores: Stores) -> None:
    """librdkafka produces and consumes over TLS"""
    process, mutual = broker
    settings = {
        "bootstrap.servers": f"127.0.0.1:{process.port}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(stores.authority.trust),
        **({"ssl.certificate.location": pem(stores), "ssl.key.location": pem(stores)} if mutual else {}),
    }
    producer = Producer(settings)
    for _ in range(100):
        producer.produce("by-librdkafka", b"x" * 10_000)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["by-librdkafka"])
    got = 0
    while got < 100:
        message = consumer.poll(60)
        assert message is not None
        got += not message.error()
    consumer.close()


@pytest.mark.java
@pytest.mark.parametrize("release", RELEASES)
def test_apaches_tools(release: str, broker: tuple[BrokerProcess, bool], stores: Stores, tmp_path: Path) -> None:
    """kafka-console-producer, -consumer, kafka-broker-api-versions and kafka-configs over TLS"""
    process, mutual = broker
    file = stores.java(tmp_path / "client.properties", shows=mutual)
    place, topic = ("--bootstrap-server", f"127.0.0.1:{process.port}"), ("--topic", f"by-java-{release}")
    producer_file, consumer_file = ("--producer.config", file), ("--consumer.config", file)
    run(release, CONSOLE_PRODUCER[release], *place, *topic, *producer_file, text="one\ntwo\n")
    wanted = ("--from-beginning", "--max-messages", "2")
    assert run(release, CONSOLE_CONSUMER, *place, *topic, *consumer_file, *wanted).endswith("one\ntwo\n")
    assert "Produce(0): " in run(release, API_VERSIONS[release], *place, "--command-config", file)
    key = "listener.name.ssl.ssl.keystore.location"
    broker_1 = ("--command-config", file, "--entity-type", "brokers", "--entity-name", "1")
    kind = "JKS" if mutual else "PKCS12"
    setting = f"{key}={stores.key_store('broker', kind)}"  # another certificate by the same name
    run(release, CONFIGS[release], *place, *broker_1, "--alter", "--add-config", setting)
    assert key in run(release, CONFIGS[release], *place, *broker_1, "--describe")
    assert "was loaded again" in process.log


def test_a_client_without_a_certificate_is_told_so(stores: Stores, tmp_path: Path) -> None:
    """What kafka-python and librdkafka say where a certificate is demanded and none is shown"""
    with started(stores, tmp_path, "PKCS12", "required") as broker:
        place, ca = f"127.0.0.1:{broker.port}", str(stores.authority.trust)
        with pytest.raises((KafkaConnectionError, KafkaTimeoutError)):  # noqa: SIM117
            with closing(
                KafkaProducer(bootstrap_servers=place, security_protocol="SSL", ssl_cafile=ca, max_block_ms=3_000)
            ) as producer:
                producer.send("t", b"x").get(5)
        said: list[KafkaError] = []
        settings = {"bootstrap.servers": place, "security.protocol": "ssl", "ssl.ca.location": ca}
        producer = Producer({**settings, "error_cb": said.append})
        while not said:
            producer.poll(1)
        assert said[0].code() in (KafkaError._SSL, KafkaError._TRANSPORT)
        assert "it shows no certificate, and ssl.client.auth=required" in broker.log
