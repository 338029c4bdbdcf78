"""A member of a quorum's cluster where all want a login: users, tokens and rules are those of the metadata log.

One controller and one broker of Apache Kafka 4.4.0, and a kbroker, all by SASL_SSL with SCRAM, the controllers'
listener too. The first users are made by Apache's storage tool. Each broker has a listener of plain text, where tests
see that it is up; who comes there may do nothing. And a kbroker that itself speaks plain text, at controllers that do
not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests.apache import NEWEST, Quorum, QuorumBroker, free_port, run_tool
from compat_tests.brokers import KbrokerMember
from compat_tests.secured_brokers import ADMIN, BROKER, MECHANISM, PASSWORD, SecuredBrokers, eventually
from kbroker.properties import format_properties
from kbroker.runtime.secure import AUTHORITY_FILE, BROKER_FILE, secure
from kbroker.security.recipes import jaas

APACHE, OURS = 1, 3
KINDS = (APACHE, OURS)
TOOLS = "org.apache.kafka.tools"
SECRET = "of this cluster's tokens"
SIMPLE = "sesame"  # where storage tools and quotation marks do not get on
pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


def user(name: str) -> str:
    """As the storage tool makes one."""
    return f"{MECHANISM}=[name={name},password={SIMPLE}]"


def tls(made: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made / BROKER_FILE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made / AUTHORITY_FILE),
    }


def of_controllers(protocol: str, mechanism: str = "", password: str = SIMPLE) -> dict[str, str]:
    """How their listener is spoken to."""
    settings = {"listener.security.protocol.map": f"CONTROLLER:{protocol},PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL"}
    if mechanism:
        users = f' user_{BROKER}="{SIMPLE}"' if mechanism == "PLAIN" else ""
        login = jaas(BROKER, password, mechanism).removesuffix(";") + users + ";"
        settings |= {
            "sasl.mechanism.controller.protocol": mechanism,
            "listener.name.controller.sasl.enabled.mechanisms": mechanism,
            f"listener.name.controller.{mechanism.lower()}.sasl.jaas.config": login,
        }
    return settings


class Secured(SecuredBrokers):
    """The cluster."""

    def __init__(self, folder: Path) -> None:
        made = folder / "secure"
        secure(str(made), listeners="SASL_SSL://127.0.0.1:0")
        super().__init__(folder, made / AUTHORITY_FILE, KINDS, NEWEST)
        common = tls(made) | of_controllers("SASL_SSL", MECHANISM) | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{BROKER};User:{ADMIN}",
            "delegation.token.secret.key": SECRET,
        }  # fmt: skip
        self.quorum = Quorum(NEWEST, folder, settings=common, users=[user(BROKER), user(ADMIN)])
        for number in KINDS:
            plain, place = free_port(), folder / f"broker{number}"
            settings = common | {
                "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{self.ports[number]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{self.ports[number]}",
                "inter.broker.listener.name": "SASL_SSL",
                "sasl.mechanism.inter.broker.protocol": MECHANISM,
                "sasl.enabled.mechanisms": MECHANISM,
                f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": jaas(BROKER, SIMPLE),
                "replica.lag.time.max.ms": "10000",
                "controlled.shutdown.retry.backoff.ms": "500",
                "auto.create.topics.enable": "false",
            }
            if number == APACHE:
                self.brokers[number] = QuorumBroker(
                    self.quorum, place, number, settings=settings, heap="320m", port=plain
                )
            else:
                self.brokers[number] = KbrokerMember(self.quorum, place, number, settings=settings, port=plain)

    def give_admin_its_password(self) -> None:
        """The one by which tests know it: the storage tool takes no such word."""
        entity = ("--alter", "--entity-type", "users", "--entity-name", ADMIN)
        done = self.by(
            self.recipe(OURS, ADMIN, SIMPLE).java(),
            f"{TOOLS}.ConfigCommand", *entity, "--add-config", f"{MECHANISM}=[password={PASSWORD}]", at=OURS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        for at in KINDS:
            eventually(lambda at=at: self.is_let_in(at, ADMIN))  # type: ignore[misc]

    def by(self, client: dict[str, str], name: str, *arguments: str, at: int) -> subprocess.CompletedProcess[str]:
        """One of Apache's tools. client: its settings."""
        config = self.folder / "client.properties"
        config.write_text(format_properties(client))
        place = ("--bootstrap-server", self.address(at), "--command-config", str(config))
        return run_tool(self.release, name, *place, *arguments)

    def by_token(self, name: str, *arguments: str, at: int, token: tuple[str, str]) -> subprocess.CompletedProcess[str]:
        """One of Apache's tools, that logs in by a token."""
        client = self.recipe(at, *token).java()
        login = client["sasl.jaas.config"].removesuffix(";") + ' tokenauth="true";'
        return self.by(client | {"sasl.jaas.config": login}, name, *arguments, at=at)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with ExitStack() as running:
        for each in (*made.quorum.controllers.values(), *made.brokers.values()):
            running.enter_context(each)
        made.give_admin_its_password()
        yield made


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: Secured) -> str:
    """Of a topic, or a user, of the test's own."""
    return "n-" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:].strip("-")


EACH_KIND = pytest.mark.parametrize("at", KINDS, ids=["on Apache", "on kbroker"])


@EACH_KIND
def test_records_are_replicated_between_the_kinds(cluster: Secured, at: int, name: str) -> None:
    cluster.make(name, at, APACHE + OURS - at)
    values = [b"%d" % number for number in range(500)]
    cluster.write(at, name, *values)
    for each in KINDS:
        assert cluster.read(each, name, len(values)) == values
        eventually(lambda each=each: cluster.log(name, each) == cluster.log(name, at))  # type: ignore[misc]
        assert cluster.in_sync(name, each) == set(KINDS)


@EACH_KIND
def test_a_user_that_is_made_on_either_is_let_in_by_both(cluster: Secured, at: int, name: str) -> None:
    assert not any(cluster.is_let_in(each, name) for each in KINDS)
    cluster.make_user(name, at)
    for each in KINDS:
        eventually(lambda each=each: cluster.is_let_in(each, name))  # type: ignore[misc]
        assert not cluster.is_let_in(each, name, "another")
    other = APACHE + OURS - at
    entity = ("--alter", "--entity-type", "users", "--entity-name", name)
    cluster.configs(*entity, "--add-config", f"{MECHANISM}=[password=changed]", at=other)
    for each in KINDS:
        eventually(lambda each=each: cluster.is_let_in(each, name, "changed"))  # type: ignore[misc]
        assert not cluster.is_let_in(each, name)
    cluster.configs(*entity, "--delete-config", MECHANISM, at=other)
    for each in KINDS:
        eventually(lambda each=each: not cluster.is_let_in(each, name, "changed"))  # type: ignore[misc]


@EACH_KIND
def test_a_token_that_is_made_on_either_logs_in_at_both_until_it_expires(cluster: Secured, at: int, name: str) -> None:
    tokens = f"{TOOLS}.DelegationTokenCommand"
    cluster.make(name, *KINDS)
    life = ("--max-life-time-period", "-1", "--renewer-principal", f"User:{BROKER}")
    said = cluster.tool(tokens, "--create", *life, at=at)
    found = re.search(rf"([\w-]{{22}})\s+(\S{{88}})\s+User:{ADMIN}", said)
    assert found is not None, said
    token, hmac = (found[1], found[2]), found[2]
    listed = (f"{TOOLS}.TopicCommand", "--list")
    for each in KINDS:
        eventually(lambda each=each: name in cluster.by_token(*listed, at=each, token=token).stdout)  # type: ignore[misc]
    refused = cluster.by_token(*listed, at=OURS, token=(token[0], "another"))
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
    end = ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    cluster.tool(tokens, *end, at=APACHE + OURS - at)
    for each in KINDS:
        eventually(lambda each=each: cluster.by_token(*listed, at=each, token=token).returncode != 0)  # type: ignore[misc]


@EACH_KIND
def test_controllers_decide_about_who_asked_and_not_about_the_broker_that_passed_it_on(
    cluster: Secured, at: int, name: str
) -> None:
    cluster.make_user(name, at)
    eventually(lambda: cluster.is_let_in(at, name))

    def make() -> str:
        wanted = ("--create", "--topic", name, "--partitions", "1", "--replication-factor", "2")
        client = cluster.recipe(at, name, PASSWORD).java()
        done = cluster.by(client, f"{TOOLS}.TopicCommand", *wanted, at=at)
        return done.stdout + done.stderr

    assert "Authorization failed" in make()
    rule = ("--add", "--allow-principal", f"User:{name}", "--operation", "CREATE", "--topic", name)
    cluster.tool(f"{TOOLS}.AclCommand", *rule, at=APACHE + OURS - at)
    eventually(lambda: "Created topic" in make())


def alone(folder: Path, protocol: str, mechanism: str, *, password: str = SIMPLE, authority: str = "") -> KbrokerMember:
    """A controller, which runs, and a kbroker of plain text. authority: whom the kbroker trusts, not the true one."""
    made = folder / "secure"
    secure(str(made), listeners="SASL_SSL://127.0.0.1:0")
    users = [user(BROKER)] if mechanism.startswith("SCRAM") else []
    common = of_controllers(protocol, mechanism)
    quorum = Quorum(NEWEST, folder, settings=tls(made) | common, users=users)
    trust = authority or str(made / AUTHORITY_FILE)
    own = of_controllers(protocol, mechanism, password) | {
        "ssl.truststore.type": "PEM", "ssl.truststore.location": trust,
        "initial.broker.registration.timeout.ms": "8000" if password != SIMPLE or authority else "60000",
        "offsets.topic.replication.factor": "1",
    }  # fmt: skip
    return KbrokerMember(quorum, folder / "member", OURS, settings=own)


SPOKEN = [("SSL", ""), ("SASL_SSL", "PLAIN"), ("SASL_PLAINTEXT", MECHANISM)]


@pytest.mark.parametrize(("protocol", "mechanism"), SPOKEN, ids=[f"{one} {other}".strip() for one, other in SPOKEN])
def test_a_broker_of_plain_text_speaks_to_controllers_as_they_want(
    protocol: str, mechanism: str, tmp_path: Path
) -> None:
    member = alone(tmp_path, protocol, mechanism)
    with ExitStack() as running:
        for each in (*member.quorum.controllers.values(), member):
            running.enter_context(each)
        admin = KafkaAdminClient(bootstrap_servers=member.address)
        admin.create_topics([NewTopic("passed-on", 1, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=member.address, acks="all")
        producer.send("passed-on", b"value").get(30)
        producer.close()
        consumer = KafkaConsumer("passed-on", bootstrap_servers=member.address, auto_offset_reset="earliest")
        assert next(consumer).value == b"value"
        consumer.close()


@pytest.mark.parametrize(
    ("protocol", "mechanism", "wrong", "line"),
    [
        ("SASL_PLAINTEXT", MECHANISM, {"password": "another"}, "Authentication failed"),
        ("SSL", "", {"authority": "other"}, "its certificate is not taken"),
    ],
    ids=["password", "authority"],
)
def test_a_broker_that_controllers_do_not_let_in_says_so_and_ends(
    protocol: str, mechanism: str, wrong: dict[str, str], line: str, tmp_path: Path
) -> None:
    if "authority" in wrong:
        other = tmp_path / "other"
        secure(str(other), listeners="SASL_SSL://127.0.0.1:0")
        wrong = {"authority": str(other / AUTHORITY_FILE)}
    member = alone(tmp_path, protocol, mechanism, **wrong)
    with ExitStack() as running:
        for each in member.quorum.controllers.values():
            running.enter_context(each)
        member.format(member.quorum.cluster_id)
        done = subprocess.run(member.command, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert line in said, said
    assert "could not be registered in the quorum" in said
    assert "Traceback" not in said
    assert SIMPLE not in said
