"""OAUTHBEARER by stock clients: what each says of a token, on kbroker and on Apache's broker in the same run.

Tokens are signed by an issuer whose keys both brokers have from a file. Kinds of a token: right; expired; for an
audience of others; right, of a user without rights. What comes of it has to be the same on both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from jwt.algorithms import RSAAlgorithm
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, NewTopic, ResourcePattern, ResourceType

from compat_tests.apache import NEWEST, SMALL_JVM, KraftBroker, free_port
from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import CLIENTS, FRANZ_GO, Client, ClientError, start
from compat_tests.test_security import IMPATIENT

SECTION = "13 Logins by tokens of an issuer"
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ISSUER = generate_private_key(65537, 2048)
TOPIC, TOKEN_FILE = "allowed", "token"
LISTENER = "listener.name.sasl_plaintext.oauthbearer."
JAVAS = "org.apache.kafka.common.security.oauthbearer"
TOKENS: dict[str, dict[str, Any]] = {
    "right": {},
    "expired": {"iat": 1, "exp": 600},
    "for others": {"aud": "others"},
    "without rights": {"sub": "stranger"},
}
GO_ON = ("aiokafka", "kafkajs")
"""They take a refusal (RFC 7628) for the end of the login and go on. Apache's broker answers what they ask then by
ILLEGAL_SASL_STATE; kbroker looks at no such request, and hangs up."""
WITH_BEARER = [
    each for each in (*CLIENTS, FRANZ_GO) if each.name != "kcat"
]  # it makes tokens that are not signed, and no others


def bearer(**other: Any) -> str:
    now = int(time.time())
    claims = {"sub": "writer", "iss": "us", "iat": now, "exp": now + 600, "aud": "kafka", **other}
    return jwt.encode(claims, ISSUER, "RS256", headers={"kid": "k"})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address at which each broker wants a token, by kind."""
    folder = tmp_path_factory.mktemp("bearers")
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{**RSAAlgorithm.to_jwk(ISSUER.public_key(), as_dict=True), "kid": "k"}]}))
    common = {
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "us",
        f"{LISTENER}sasl.jaas.config": f"{JAVAS}.OAuthBearerLoginModule required;",
        f"{LISTENER}sasl.server.callback.handler.class": f"{JAVAS}.OAuthBearerValidatorCallbackHandler",
    }
    with ExitStack() as running:
        found = {}
        for kind in ("kbroker", "apache"):
            plain, asked, controller = free_port(), free_port(), free_port()
            listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{asked}"
            if kind == "kbroker":
                own = {"listeners": listeners, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
                running.enter_context(KbrokerProcess(folder / kind, settings={**common, **own}, port=plain))
            else:
                own = {
                    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                    "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                    "advertised.listeners": listeners,
                    "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
                    "SASL_PLAINTEXT:SASL_PLAINTEXT",
                }
                allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
                jvm = (*SMALL_JVM, allowed)
                running.enter_context(
                    KraftBroker(NEWEST, folder / kind, settings={**common, **own}, port=plain, jvm=jvm)
                )
            _fill(plain)
            found[kind] = f"127.0.0.1:{asked}"
        yield found


def _fill(port: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    admin.create_topics([NewTopic(TOPIC, 1, 1)])
    resource = ResourcePattern(ResourceType.TOPIC, TOPIC)
    admin.create_acls([ACL("User:writer", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, resource)])
    admin.close()


def told(client: Client, token: str, folder: Path) -> dict[str, Any]:
    """A token in the words of a client."""
    if client.name == "Java":
        path = folder / TOKEN_FILE
        path.write_text(token)
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{JAVAS}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{JAVAS}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    if client.name == "confluent-kafka":
        return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "bearer": token}
    if client.name == "kafkajs":
        return {"bearer": token}
    if client.name == "franz-go":
        return {"mechanism": "OAUTHBEARER", "bearer": token}
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "bearer": token}


def outcome(client: Client, address: str, token: str, folder: Path) -> str:
    """What a client says of a record."""
    impatient = IMPATIENT.get(str(client), IMPATIENT.get(client.name, {}))
    driver = start(client, address, folder, {**told(client, token, folder), **impatient})
    try:
        driver.produce(TOPIC, [{"value": "bearer"}])
        return "written"
    except ClientError as error:
        said = str(error)
    finally:
        driver.close()
    assert token not in said
    return said.partition(":")[0]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("kind", WITH_BEARER, ids=str)
def test_a_token_is_taken_as_apaches_broker_takes_it(
    both: dict[str, str], kind: Client, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a token that is {token}: as Apache's broker"""
    made = bearer(**TOKENS[token])
    if kind.name == "Java":  # it reads no file but those that it is told of
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(tmp_path / TOKEN_FILE).as_uri()}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    said = {broker: outcome(kind, address, made, tmp_path) for broker, address in both.items()}
    assert [each == "written" for each in said.values()] == [token == "right"] * 2
    if kind.name not in GO_ON or token in ("right", "without rights"):
        assert said["kbroker"] == said["apache"]
