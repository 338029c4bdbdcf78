"""No secret is told: a broker with one in each place where one may be is asked, misled and looked into, and all that it
and its tools have said is searched for each.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
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

LISTENERS = "SASL_SSL://127.0.0.1:0"
OF_PLAIN = "listener.name.sasl_ssl.plain.sasl.jaas.config"
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
    made = secure(str(folder / "secure"), listeners=LISTENERS)
    properties = folder / "server.properties"
    lines = [f"{name}={text}" for name, text in made.settings.items() if not name.startswith(("listeners", "sasl.en"))]
    lines += ["sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,SCRAM-SHA-256"]
    lines += [f'{OF_PLAIN}={MODULES["PLAIN"]} required user_admin="{USERS["plain"]}";']
    properties.write_text("\n".join(lines))
    arguments = (str(properties), "--log-level", "debug")
    broker = BrokerProcess(folder, arguments=arguments, listeners=LISTENERS).await_start()
    authority = made.settings["ssl.truststore.location"]
    admin = Recipe(f"127.0.0.1:{broker.port}", "SASL_SSL", authority, "", "admin", USERS["plain"], "PLAIN")
    said = said_to_clients(admin, folder)
    broker.process.terminate()
    said += [*broker.says, broker.process.communicate(timeout=60)[0], broker.log]
    said += said_of_files(folder, properties)
    kept = whole_nodes(f"{folder}/data/metadata.db")["/config/users/scram"].decode()
    hashes = set(re.findall(r"(?:salt|stored_key|server_key)=([A-Za-z0-9+/=]{16,})", kept))
    key, _, rest = (folder / "secure" / "secure-broker.pem").read_text().partition("-----BEGIN CERT")
    keys = {line for line in key.splitlines() if len(line) > 40 and "-----" not in line and line not in rest}
    encoded = {base64.b64encode(f"\0admin\0{each}".encode()).decode() for each in USERS.values()}
    return Asked({*USERS.values(), made.password, *hashes, *keys, *encoded}, "\n".join(said))


def said_to_clients(admin: Recipe, folder: Path) -> list[str]:
    """What the broker and the commands say to who logs in, rightly and wrongly, and to wrong settings."""
    config = folder / "admin.properties"
    config.write_text("\n".join(f"{name}={text}" for name, text in admin.java().items()))
    client = ("--command-config", str(config))
    said = [tool("users", *client, "--create", "--user", "scram", stdin=f"{USERS['scram']}\n")]
    said += [
        try_login(admin),
        try_login(admin._replace(user="scram", password=USERS["scram"], mechanism="SCRAM-SHA-512")),
    ]
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256"):
        said.append(try_login(admin._replace(password=USERS["wrong"], mechanism=mechanism)))
    said.append(tool("topics", *client, "-X", f"sasl.jaas.config=Plain required password={USERS['wrong']}", "--list"))
    for entity in ("brokers", "topics"):
        said.append(tool("configs", *client, "--describe", "--entity-type", entity, "--all", "--json"))
    for setting in (OF_PLAIN, "ssl.key.password", "listener.name.sasl_ssl.ssl.key.password"):
        change = ("--add-config", f"{setting}={USERS['wrong']}")
        said.append(tool("configs", *client, "--alter", "--broker", "1", *change))
    with closing(KafkaAdminClient(**admin.kafka_python())) as described:
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        said.append(repr(described.describe_configs([broker], config_filter="all")))
    return said


def said_of_files(folder: Path, properties: Path) -> list[str]:
    """What tools say of a log directory, and a start of wrong settings."""
    data = str(folder / "data")
    said = [tool("metadata", "check", data), tool("verify-log", data)]
    said += [tool("dump-log", str(part), "--print-data-log") for part in sorted(folder.glob("data/*-0"))]
    for setting in ("ssl.keystore.password", OF_PLAIN):
        overrides = (f"listeners={LISTENERS}", f"log.dirs={folder}/other", f"{setting}={USERS['wrong']}")
        words = [word for each in overrides for word in ("--override", each)]
        said.append(tool("start", str(properties), *words, "--log-level", "debug"))
    return said


def test_there_is_something_to_be_found(asked: Asked) -> None:
    assert len(asked.secrets) > 10
    for word in ("DEBUG", "failed to log in", "sasl.jaas.config", "ssl.keystore", "SCRAM-SHA-512", "baseOffset"):
        assert word in asked.said


def test_no_secret_is_found(asked: Asked) -> None:
    found = [line for line in asked.said.splitlines() for secret in asked.secrets if secret in line]
    assert found == []
