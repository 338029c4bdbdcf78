"""Commands that log in by a delegation token: tokenauth in sasl.jaas.config, as Java's clients have it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages.handshake import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.security import CreateDelegationTokenRequest
from tests.cli.asking import Ask
from tests.processes import BrokerProcess, Client

PLAIN = 'x.PlainLoginModule required user_alice="sesame";'
OF = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "delegation_token_secret_key": "a secret of the cluster",
    }
    with BrokerProcess(
        tmp_path_factory.mktemp("tokens"), arguments=("--override", f"{OF}={PLAIN}"), **settings
    ) as running:
        yield running


def config(folder: Path, broker: BrokerProcess, mechanism: str, *, hmac: str = "") -> str:
    """A properties file of one who has a token."""
    client = Client(broker.port)
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0sesame"), 2).error_code == 0
    made = client.ask(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert made.error_code == 0
    client.close()
    password = hmac or base64.b64encode(made.hmac).decode()
    jaas = f'x.ScramLoginModule required username="{made.token_id}" password="{password}" tokenauth="true";'
    path = folder / "token.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n")
    return str(path)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_command_logs_in_by_a_token(ask: Ask, broker: BrokerProcess, tmp_path: Path, mechanism: str) -> None:
    place = ("--bootstrap-server", f"127.0.0.1:{broker.port}", "--command-config")
    assert ask("topics", "--list", *place, config(tmp_path, broker, mechanism))[::2] == (0, "")


def test_a_wrong_token_is_a_line(ask: Ask, broker: BrokerProcess, tmp_path: Path) -> None:
    place = ("--bootstrap-server", f"127.0.0.1:{broker.port}", "--command-config")
    code, _, err = ask("topics", "--list", *place, config(tmp_path, broker, "SCRAM-SHA-256", hmac="d3Jvbmc="))
    assert (code, err.count("\n"), "d3Jvbmc=" in err) == (2, 1, False)


def test_a_command_that_carries_records_says_that_it_cannot(ask: Ask, broker: BrokerProcess, tmp_path: Path) -> None:
    place = ("--bootstrap-server", f"127.0.0.1:{broker.port}", "--command-config")
    code, _, err = ask("produce", "--topic", "t", *place, config(tmp_path, broker, "SCRAM-SHA-256"), stdin=b"x\n")
    assert code == 2
    assert err.startswith('kbroker: sasl.jaas.config with tokenauth="true": records are carried by librdkafka')
