"""No secret is told: a broker with one in each place where one may be is asked, misled and looked into, and all that it
and its tools have said is searched for each.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from contextlib import closing
from typing import NamedTuple

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError

from kbroker.runtime.secure import secure
from kbroker.runtime.tree_file import whole_nodes
from kbroker.security.client import MODULES
from kbroker.security.recipes import Recipe
from tests.processes import BrokerProcess

pytestmark = pytest.mark.slow

USERS = {"plain": "sesame-of-plain", "scram": "sesame-of-scram", "wrong": "sesame-that-is-wrong"}


class Asked(NamedTuple):
    """secrets: what must not be found. said: all that was printed and answered."""

    secrets: set[str]
    said: str


def tool(*words: str, stdin: str = "") -> str:
    """All that a command prints."""
    command = [sys.executable, "-m", "kbroker", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def try_login(recipe: Recipe) -> str:
    """What a client is told that writes a record, if it can."""
    settings = recipe.kafka_python()
    try:
        with closing(KafkaProducer(**settings, bootstrap_timeout_ms=2000, max_block_ms=2000)) as producer:
            producer.send("orders", b"x").get(5)
    except KafkaError as error:
        return repr(error)
    return ""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A broker at DEBUG with users of PLAIN and SCRAM, asked by good ones and bad ones, and then looked into."""
    folder = tmp_path_factory.mktemp("secrets")
    made = secure(str(folder / "secure"), listeners="SASL_SSL://127.0.0.1:0")
    key = (folder / "secure" / "secure-broker.pem").read_text()
    name = "listener.name.sasl_ssl"
    properties = folder / "server.properties"
    lines = [f"{key}={value}" for key, value in made.settings.items() if not key.startswith(("listeners", "sasl.en"))]
    lines += ["sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,SCRAM-SHA-256"]
    lines += [f'{name}.plain.sasl.jaas.config={MODULES["PLAIN"]} required user_admin="{USERS["plain"]}";']
    properties.write_text("\n".join(lines))
    broker = BrokerProcess(
        folder, arguments=(str(properties), "--log-level", "debug"), listeners="SASL_SSL://127.0.0.1:0"
    ).await_start()
    authority = made.settings["ssl.truststore.location"]
    address = f"127.0.0.1:{broker.port}"
    admin = Recipe(address, "SASL_SSL", authority, "", "admin", USERS["plain"], "PLAIN")
    said = [tool("--help")]
    config = folder / "admin.properties"
    config.write_text("\n".join(f"{key}={value}" for key, value in admin.java().items()))
    client = ("--command-config", str(config))
    said.append(tool("users", *client, "--create", "--user", "scram", stdin=f"{USERS['scram']}\n"))
    said += [
        try_login(admin),
        try_login(admin._replace(user="scram", password=USERS["scram"], mechanism="SCRAM-SHA-512")),
    ]
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"):
        said.append(try_login(admin._replace(password=USERS["wrong"], mechanism=mechanism)))
    said.append(tool("topics", *client, "-X", f"sasl.jaas.config=Plain required password={USERS['wrong']}", "--list"))
    for entity in ("brokers", "topics"):
        said.append(tool("configs", *client, "--describe", "--entity-type", entity, "--all", "--json"))
    change = f"listener.name.sasl_ssl.plain.sasl.jaas.config={USERS['wrong']}"
    said.append(tool("configs", *client, "--alter", "--broker", "1", "--add-config", change))
    said.append(
        tool("configs", *client, "--alter", "--broker", "1", "--add-config", f"ssl.key.password={USERS['wrong']}")
    )
    with closing(KafkaAdminClient(**admin.kafka_python())) as described:
        found = described.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all")
        said.append(repr(found))
    broker.process.terminate()
    said += [*broker.says, broker.process.communicate(timeout=60)[0]]
    nodes = whole_nodes(f"{folder}/data/metadata.db")
    said += [tool("metadata", "check", str(folder / "data")), tool("verify-log", str(folder / "data"))]
    for part in sorted(folder.glob("data/*-0")):
        said.append(tool("dump-log", str(part), "--print-data-log"))
    for wrong in (f"ssl.keystore.password={USERS['wrong']}", f"{name}.plain.sasl.jaas.config={USERS['wrong']}"):
        words = ("--override", "listeners=SASL_SSL://127.0.0.1:0", "--override", f"log.dirs={folder}/other")
        said.append(tool("start", str(properties), *words, "--override", wrong, "--log-level", "debug"))
    said.append(broker.log)
    kept = nodes["/config/users/scram"].decode()
    hashes = set(re.findall(r"(?:salt|stored_key|server_key)=([A-Za-z0-9+/=]{16,})", kept))
    keys = {line for line in key.splitlines() if len(line) > 40 and "-----" not in line}
    certificates = {line for line in key.partition("-----BEGIN CERT")[2].splitlines() if len(line) > 40}
    encoded = {base64.b64encode(f"\0admin\0{each}".encode()).decode() for each in USERS.values()}
    return Asked({*USERS.values(), made.password, *hashes, *(keys - certificates), *encoded}, "\n".join(said))


def test_there_is_something_to_be_found(asked: Asked) -> None:
    assert len(asked.secrets) > 10
    for word in ("DEBUG", "failed to log in", "sasl.jaas.config", "ssl.keystore", "SCRAM-SHA-512", "baseOffset"):
        assert word in asked.said


def test_no_secret_is_found(asked: Asked) -> None:
    found = [line for line in asked.said.splitlines() for secret in asked.secrets if secret in line]
    assert found == []
