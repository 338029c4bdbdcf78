"""Brokers that log in at each other, as processes: records are replicated over a listener that wants a login."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kazoo.client import KazooClient

from kbroker.metadata.store import encode_config
from kbroker.security.scram import make_credential, write_credential
from tests.processes import BrokerProcess
from tests.runtime.metadata_servers import PATIENCE_S, RunningServer

PREFIX = "listener.name.sasl_plaintext."
JAAS = 'x.PlainLoginModule required username="broker" password="SECRET" user_broker="SECRET";'


def give_token() -> str:
    """What a broker logs in with at others."""
    return "SECRET"


def check_token(token: str) -> str | None:
    """Whom others take it for."""
    return "broker" if token == "SECRET" else None


def settings_of(mechanism: str) -> dict[str, str]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security_inter_broker_protocol": "SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": f"{mechanism},PLAIN" if mechanism != "PLAIN" else mechanism,
        "sasl_mechanism_inter_broker_protocol": mechanism,
        "sasl_jaas_config": JAAS,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_login_callback_handler_class"] = f"{__name__}:give_token"
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_followers_log_in_at_their_leaders(mechanism: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(RunningServer(tmp_path))
        if mechanism.startswith("SCRAM"):
            credential = make_credential(mechanism, b"SECRET", b"salt", 4096)
            put(store.address, "/config/users/broker", encode_config({mechanism: write_credential(credential)}))
        brokers = []
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            more = {"broker_id": str(number), "zookeeper_connect": store.address, "default_replication_factor": "2"}
            callback = f"{PREFIX}oauthbearer.sasl.server.callback.handler.class={__name__}:check_token"
            made = BrokerProcess(folder, arguments=("--override", callback), **settings_of(mechanism), **more)
            brokers.append(stack.enter_context(made))
        login = {
            "bootstrap_servers": f"127.0.0.1:{brokers[0].port}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "broker",
            "sasl_plain_password": "SECRET",
        }
        admin = KafkaAdminClient(**login)
        admin.create_topics([NewTopic("t", 4, 2)])
        admin.close()
        with KafkaProducer(**login, acks="all") as producer:  # until both have them
            for partition in range(4):
                producer.send("t", b"value", partition=partition).get(PATIENCE_S)
        for broker in brokers:
            assert "SECRET" not in broker.log


def put(address: str, path: str, data: bytes) -> None:
    client = KazooClient(address)
    client.start(PATIENCE_S)
    client.create(path, data, makepath=True)
    client.stop()
    client.close()
