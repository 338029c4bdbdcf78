"""Logins by what Apache's tools make: users of SCRAM, delegation tokens; and by tokens of OAUTHBEARER.

Other passwords and mechanisms by all clients are in `test_security.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from jwt.algorithms import RSAAlgorithm
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from compat_tests.apache import RELEASES
from compat_tests.test_apache_tools import CONFIGS, CONSOLE_CONSUMER, CONSOLE_PRODUCER, run
from compat_tests.waiting import eventually
from tests.processes import BrokerProcess

SECTION = "11 Logins by what Apache's tools make"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
PASSWORD = "admin-secret"
PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="{PASSWORD}" user_admin="{PASSWORD}";'
)
SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
ISSUER = generate_private_key(65537, 2048)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("logins")
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{**RSAAlgorithm.to_jwk(ISSUER.public_key(), as_dict=True), "kid": "k"}]}))
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.jaas.config": PLAIN_JAAS,
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "delegation.token.secret.key": "a secret of the cluster",
    }
    arguments = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
    with BrokerProcess(folder, arguments=tuple(arguments), listeners=settings["listeners"]) as running:
        yield running


def properties(folder: Path, mechanism: str, jaas: str, **more: str) -> str:
    """A file of client settings for Java."""
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={jaas}"]
    path = folder / f"{mechanism}-{abs(hash(jaas))}.properties"
    path.write_text("\n".join([*lines, *(f"{key.replace('_', '.')}={value}" for key, value in more.items())]))
    return str(path)


def scram(user: str, password: str, *, is_token: bool = False) -> str:
    more = ' tokenauth="true"' if is_token else ""
    return f'{SCRAM_JAAS} username="{user}" password="{password}"{more};'


def bearer(**other: Any) -> str:
    claims = {"sub": "alice", "iat": int(time.time()), "exp": int(time.time()) + 600, "aud": "kafka", **other}
    return jwt.encode(claims, ISSUER, "RS256", headers={"kid": "k"})


def carry(release: str, at: str, topic: str, config: str) -> None:
    """A record out and back by the console tools."""
    place = ("--bootstrap-server", at, "--topic", topic)
    run(release, CONSOLE_PRODUCER[release], *place, "--producer.config", config, text="hello\n")
    limits = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    assert "hello" in run(release, CONSOLE_CONSUMER, *place, "--consumer.config", config, *limits)


@pytest.mark.java
@pytest.mark.parametrize("release", RELEASES)
def test_users_that_kafka_configs_makes_log_in(release: str, broker: BrokerProcess, tmp_path: Path) -> None:
    at, admin = f"127.0.0.1:{broker.port}", properties(tmp_path, "PLAIN", PLAIN_JAAS)
    user = f"carol{release}"
    wanted = "SCRAM-SHA-256=[iterations=8192,password=first],SCRAM-SHA-512=[password=second]"
    of_user = ("--bootstrap-server", at, "--command-config", admin, "--entity-type", "users", "--entity-name", user)
    run(release, CONFIGS[release], *of_user, "--alter", "--add-config", wanted)
    said = run(release, CONFIGS[release], *of_user, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert "SCRAM-SHA-512=iterations=4096" in said
    for mechanism, password in (("SCRAM-SHA-256", "first"), ("SCRAM-SHA-512", "second")):
        carry(release, at, f"{user}-{mechanism}", properties(tmp_path, mechanism, scram(user, password)))
    run(release, CONFIGS[release], *of_user, "--alter", "--delete-config", "SCRAM-SHA-256")
    said = run(release, CONFIGS[release], *of_user, "--describe")
    assert "SCRAM-SHA-256" not in said


@pytest.mark.java
@pytest.mark.parametrize("release", RELEASES)
def test_tokens_that_apaches_tool_makes_log_in(release: str, broker: BrokerProcess, tmp_path: Path) -> None:
    at, admin = f"127.0.0.1:{broker.port}", properties(tmp_path, "PLAIN", PLAIN_JAAS)
    common = ("--bootstrap-server", at, "--command-config", admin)
    said = run(release, TOKENS, *common, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    found = re.search(r"([\w-]{22})\s+(\S{88})\s+User:admin", said)
    assert found is not None, said
    token_id, secret = found[1], found[2]
    config = properties(tmp_path, "SCRAM-SHA-256", scram(token_id, secret, is_token=True))
    carry(release, at, f"token-{release}", config)
    of_admin = (
        *common,
        "--describe",
        "--owner-principal",
        "User:admin",
    )  # without an owner it asks for the tokens of none
    assert token_id in run(release, TOKENS, *of_admin)
    run(release, TOKENS, *common, "--renew", "--renew-time-period", "-1", "--hmac", secret)
    run(release, TOKENS, *common, "--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert token_id not in run(release, TOKENS, *of_admin)


@pytest.mark.java
@pytest.mark.parametrize("release", RELEASES)
def test_a_token_that_has_expired_is_javas_own_error(release: str, broker: BrokerProcess, tmp_path: Path) -> None:
    """One of a second's life: also of kbroker's commands, which log in by kafka-python."""
    at, admin = f"127.0.0.1:{broker.port}", properties(tmp_path, "PLAIN", PLAIN_JAAS)
    common = ("--bootstrap-server", at, "--command-config", admin)
    life = ("--max-life-time-period", "1000", "--renewer-principal", "User:bob")
    said = run(release, TOKENS, *common, "--create", *life)
    found = re.search(r"([\w-]{22})\s+(\S{88})\s+User:admin", said)
    assert found is not None, said
    config = properties(tmp_path, "SCRAM-SHA-256", scram(found[1], found[2], is_token=True))

    def says() -> str:
        try:
            return run(release, CONFIGS[release], "--bootstrap-server", at, "--command-config", config,
                       "--entity-type", "brokers", "--describe")  # fmt: skip
        except AssertionError as error:
            return str(error)

    eventually(lambda: "SaslAuthenticationException" in says(), within_s=60)
    command = [sys.executable, "-m", "kbroker", "topics", "-b", at, "--command-config", config, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert found[2] not in done.stderr


@pytest.mark.java
@pytest.mark.parametrize("release", RELEASES)
def test_a_wrong_password_is_javas_own_error(release: str, broker: BrokerProcess, tmp_path: Path) -> None:
    config = properties(tmp_path, "SCRAM-SHA-512", scram("nobody", "SECRET"))
    with pytest.raises(AssertionError, match="SaslAuthenticationException"):
        run(release, CONFIGS[release], "--bootstrap-server", f"127.0.0.1:{broker.port}", "--command-config", config,
            "--entity-type", "brokers", "--describe")  # fmt: skip


class Provider(AbstractTokenProvider):
    """A token for kafka-python."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def test_tokens_of_an_issuer_log_in_by_librdkafka_and_kafka_python(broker: BrokerProcess) -> None:
    at = f"127.0.0.1:{broker.port}"
    common = {"bootstrap.servers": at, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    errors: list[str] = []
    for token, is_right in ((bearer(), True), (bearer(exp=1), False), (bearer(aud="others"), False)):
        given: Any = lambda _, token=token: (token, time.time() + 300)  # noqa: E731
        producer = Producer({**common, "oauth_cb": given, "error_cb": lambda error: errors.append(error.name())})
        producer.produce("bearer", b"value")
        assert (producer.flush(10 if is_right else 3) == 0) is is_right
        assert is_right or "_AUTHENTICATION" in errors
        producer.purge()
        producer.flush(1)
        login: Any = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(token),
        }
        if is_right:
            with KafkaProducer(bootstrap_servers=at, **login) as other:
                assert other.send("bearer", b"value").get(30).topic == "bearer"
