"""Logins by GSSAPI, with a KDC: kafka-python shows tickets to a broker that has a keytab, and brokers to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from kbroker.properties import parse_properties
from tests import kdc
from tests.kdc import REALM, Kdc
from tests.processes import BrokerProcess
from tests.runtime.metadata_servers import PATIENCE_S, RunningServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kdc.missing()), reason=f"no Kerberos here: {kdc.missing()}"),
]
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with Kdc(tmp_path_factory.mktemp("kdc")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(realm: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    keytab = realm.keytab("kafka/localhost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(realm.config))
        folder = tmp_path_factory.mktemp("broker")
        with BrokerProcess(folder, arguments=settings_of(keytab), listeners="SASL_PLAINTEXT://127.0.0.1:0") as running:
            yield running


def settings_of(keytab: Path) -> tuple[str, ...]:
    """As docs/security.md has them, with this keytab, and a listener of plain text."""
    (block,) = re.findall(r"^    (sasl\.enabled\.mechanisms=GSSAPI\n(?:    .+\n)+)", PAGE, re.MULTILINE)
    for printed, own in (
        ("/etc/kafka.keytab", str(keytab)),
        ("broker.example@EXAMPLE.COM", f"localhost@{REALM}"),
        ("sasl_ssl", "sasl_plaintext"),
    ):
        assert printed in block
        block = block.replace(printed, own)
    settings = {
        **parse_properties(block),
        "advertised.listeners": "SASL_PLAINTEXT://localhost:0",
        "sasl.kerberos.principal.to.local.rules": "RULE:[2:$1](dr.*)s/dr-//,RULE:[1:$1]",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:alice;User:who",
    }
    return tuple(word for key, value in settings.items() for word in ("--override", f"{key}={value}"))


def client(broker: BrokerProcess, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": f"localhost:{broker.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_domain_name": "localhost",
        **more,
    }


def use(realm: Kdc, principal: str, patch: pytest.MonkeyPatch) -> None:
    for name, value in realm.environment(realm.keytab(principal)).items():
        patch.setenv(name, value)


@pytest.mark.parametrize(("principal", "user"), [("alice", "alice"), ("dr-who/tardis", "who")])
def test_a_ticket_lets_its_owner_in(
    broker: BrokerProcess, realm: Kdc, principal: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(realm, principal, monkeypatch)
    with KafkaProducer(**client(broker)) as producer:
        assert producer.send(f"of-{user}", b"value").get(20).offset == 0


def test_a_user_without_rights_is_known_and_sees_nothing(
    broker: BrokerProcess, realm: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(realm, "bob", monkeypatch)
    admin = KafkaAdminClient(**client(broker))
    assert admin.list_topics() == []
    admin.close()


def test_who_no_rule_names_is_not_let_in(broker: BrokerProcess, realm: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    use(realm, "other/host", monkeypatch)
    with pytest.raises(KafkaError):
        KafkaProducer(**client(broker, bootstrap_timeout_ms=3000))
    assert f"no rule of sasl.kerberos.principal.to.local.rules applies to other/host@{REALM}" in broker.log


def test_brokers_show_tickets_to_each_other(realm: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All by one keytab, on one host; a record that both have says that it works, and the log that it was asked for."""
    keytab = realm.keytab("kafka/localhost")
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
    with ExitStack() as stack:
        store = stack.enter_context(RunningServer(tmp_path))
        brokers = []
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            settings = {
                "broker_id": str(number),
                "zookeeper_connect": store.address,
                "default_replication_factor": "2",
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "security_inter_broker_protocol": "SASL_PLAINTEXT",
                "super_users": "User:alice;User:kafka",
                "sasl_kerberos_principal_to_local_rules": "RULE:[2:$1](kafka),RULE:[1:$1]",
            }
            given = BrokerProcess(folder, arguments=settings_of(keytab), **settings)
            brokers.append(stack.enter_context(given))
        use(realm, "alice", monkeypatch)
        admin = KafkaAdminClient(**client(brokers[0]))
        admin.create_topics([NewTopic("t", 4, 2)])
        admin.close()
        with KafkaProducer(**client(brokers[0]), acks="all") as producer:
            for partition in range(4):
                assert producer.send("t", b"value", partition=partition).get(PATIENCE_S).offset == 0
        assert not any("not let in" in each.log for each in brokers)


def test_a_keytab_that_has_no_key_of_the_broker_is_one_line(realm: Kdc, tmp_path: Path) -> None:
    other = realm.keytab("kafka/elsewhere")
    for keytab, why in ((other, "no key of kafka/localhost@"), (tmp_path / "none", "no key of kafka/localhost@")):
        folder = tmp_path / keytab.stem
        folder.mkdir()
        broker = BrokerProcess(folder, arguments=settings_of(keytab), listeners="SASL_PLAINTEXT://127.0.0.1:0")
        assert broker.wait() != 0
        (line,) = broker.log.splitlines()
        assert f"listener.name.sasl_plaintext.gssapi.sasl.jaas.config: {why}" in line
