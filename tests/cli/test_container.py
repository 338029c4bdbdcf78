"""The environment of a container, as programs and compose files of other images give it, becomes settings; or one line.

`compat_tests/test_testcontainers.py` has the programs themselves start an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.cli.container import (
    ADVERTISED,
    DATA,
    PROPERTIES,
    Configured,
    Place,
    cluster_id_of,
    configure,
    main,
    read_sections,
    storage,
    write,
)
from kbroker.config import (
    BrokerLayers,
    ConfigError,
    Listeners,
    check_file,
    resolve_broker,
    resolve_listeners,
    static_values,
)
from kbroker.config import parse_properties as broker_parse
from kbroker.properties import parse_properties

ID = "4L6g3nShT-eMCtK--X86sw"
QUORUM = {
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@kafka-1:9093,2@kafka-2:9094,3@kafka-3:9095",
    "KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093,PLAINTEXT_HOST://:9092",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://localhost:29092",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "CLUSTER_ID": ID,
}
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for folder in ("etc/kafka/secrets", "etc/kbroker", "mnt/shared/config"):
        (tmp_path / folder).mkdir(parents=True)
    return lambda path: f"{tmp_path}{path}"


def as_started(configured: Configured, environment: Mapping[str, str]) -> Listeners:
    """What a broker makes of the files and of what is left of the environment."""
    left = {name: value for name, value in environment.items() if name not in configured.unset}
    text = "\n".join(f"{key}={value}" for key, value in configured.properties.items())
    return resolve_listeners(resolve_broker(BrokerLayers(static=static_values(text, environment=left))))


def test_without_any_variable_it_is_found_under_localhost(place: Place) -> None:
    configured = configure({}, place)
    assert configured.properties == {"log.dirs": DATA, "advertised.listeners": ADVERTISED}
    assert configured.health == ("127.0.0.1", "9092", "yes")
    (listener,) = as_started(configured, {}).bound
    assert (listener.host, listener.port) == ("", 9092)


def test_variables_that_say_it_leave_nothing_to_assume(place: Place) -> None:
    environment = {"KAFKA_LOG_DIRS": "/tmp/x", "KAFKA_LISTENERS": "PLAINTEXT://:1234"}
    assert configure(environment, place).properties == {"log.dirs": "/tmp/x"}
    assert configure(environment, place).health == ("127.0.0.1", "1234", "yes")


@pytest.mark.parametrize("path", ["mnt/shared/config/server.properties", "etc/kbroker/server.properties"])
def test_a_file_of_the_user_counts(path: str, place: Place) -> None:
    Path(place(f"/{path}")).write_text("listeners=PLAINTEXT://:5555\nnum.partitions=7\n")
    assert configure({}, place).properties == {
        "listeners": "PLAINTEXT://:5555",
        "num.partitions": "7",
        "log.dirs": DATA,
    }


@pytest.mark.parametrize("more", [{}, {"KAFKA_LISTENERS": "PLAINTEXT://:0", "KAFKA_LOG_DIRS": "/tmp/x"}])
def test_a_broker_takes_the_file_that_is_written(more: dict[str, str], place: Place) -> None:
    """Whatever variables say: a file without any key would be no start."""
    write(configure(more, place), place)
    given = broker_parse(Path(place(PROPERTIES)).read_text())
    check_file(given, PROPERTIES)
    assert given["log.dirs"].text == more.get("KAFKA_LOG_DIRS", DATA)


@pytest.mark.parametrize("path", ["mnt/shared/config/server.properties", "etc/kbroker/server.properties"])
def test_a_folder_in_place_of_the_user_s_file_is_no_start(path: str, place: Place) -> None:
    """Docker makes one where the file to be mounted is not there; a broker on defaults would be open to everybody."""
    Path(place(f"/{path}")).mkdir()
    with pytest.raises(ConfigError, match=r"server\.properties: is a directory; Docker makes one where the file"):
        configure({}, place)


@pytest.mark.parametrize("content", ["", "# nothing\n", '{"listeners": "PLAINTEXT://:9092"}'])
def test_a_file_of_the_user_without_a_key_is_no_start(content: str, place: Place) -> None:
    Path(place("/etc/kbroker/server.properties")).write_text(content)
    with pytest.raises(ConfigError, match="no key of a broker is in it"):
        configure({}, place)


@pytest.mark.parametrize(
    ("mounted", "folder"),
    [
        ("/var/lib/kafka/data", "/var/lib/kafka/data"),
        ("/bitnami", "/bitnami/kafka/data"),
        ("/bitnami/kafka", "/bitnami/kafka/data"),
        ("/etc/hosts", DATA),
    ],
)
def test_data_are_where_a_volume_is_mounted_for_them(mounted: str, folder: str, place: Place) -> None:
    mounts = f"36 35 98:0 / {mounted} rw,noatime master:1 - ext4 /dev/root rw,errors=continue\n"
    assert configure({}, place, mounts).properties["log.dirs"] == folder


@pytest.mark.parametrize("given", [ID, f"{ID}==", ID.replace("-", "+"), ID.replace("-", "/").replace("//", "/+")])
def test_an_id_in_any_base64_is_an_id(given: str, place: Place) -> None:
    """Testcontainers' module for Python makes them with padding, and with plus and slash."""
    assert len(configure({"CLUSTER_ID": given}, place).properties["cluster.id"]) == 22
    assert "+" not in cluster_id_of(given, "CLUSTER_ID")


@pytest.mark.parametrize("given", ["kraftCluster", ID[:-1], f"{ID}A", "ünï" * 7])
def test_of_a_name_an_id_is_made_and_told(given: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"CLUSTER_ID": given, "KAFKA_PROCESS_ROLES": "broker,controller"}
    made = configure(environment, place).properties["cluster.id"]
    assert cluster_id_of(made, "made") == made == configure(environment, place).properties["cluster.id"]
    assert f"CLUSTER_ID={given}: is no id of Kafka's" in capsys.readouterr().err


# -- TLS and logins


STORES = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "kafka01.keystore.jks",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "creds",
    "KAFKA_SSL_KEY_CREDENTIALS": "creds",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "kafka.truststore.jks",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "creds",
    "KAFKA_LISTENERS": "SSL://:9093",
}


def test_stores_are_in_the_folder_of_secrets(place: Place) -> None:
    for name, text in {"kafka01.keystore.jks": "", "kafka.truststore.jks": "", "creds": "abcdefgh\n"}.items():
        Path(place(f"/etc/kafka/secrets/{name}")).write_text(text)
    configured = configure(STORES, place)
    assert configured.properties["ssl.keystore.location"] == place("/etc/kafka/secrets/kafka01.keystore.jks")
    assert {configured.properties[f"ssl.{each}.password"] for each in ("keystore", "key", "truststore")} == {"abcdefgh"}
    assert set(configured.unset) == STORES.keys() - {"KAFKA_LISTENERS"}
    assert configured.health == ("127.0.0.1", "9093", "no")


def test_a_secret_that_is_not_there_is_told(place: Place) -> None:
    with pytest.raises(ConfigError) as refused:
        configure(STORES, place)
    assert str(refused.value) == (
        "KAFKA_SSL_KEYSTORE_FILENAME=kafka01.keystore.jks: there is no file"
        " /etc/kafka/secrets/kafka01.keystore.jks; mount its folder there"
    )


JAAS = f"""
// of the broker
KafkaServer {{
    {LOGIN}
    username="admin"   # said to others
    password="a;b}}c"
    user_admin="a;b}}c";
    org.apache.kafka.common.security.scram.ScramLoginModule required;
}};
Client {{ /* for an ensemble */ {LOGIN} username="x"; }};
"""


def test_a_file_of_logins_has_its_modules_by_section() -> None:
    assert read_sections(JAAS) == {
        "KafkaServer": [
            f'{LOGIN} username="admin" password="a;b}}c" user_admin="a;b}}c";',
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        ],
        "Client": [f'{LOGIN} username="x";'],
    }


def test_the_file_of_logins_counts_for_each_listener_that_logs_in(place: Place) -> None:
    Path(place("/etc/kafka/secrets/jaas.conf")).write_text(JAAS)
    environment = {
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,HOST://:9094",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,HOST:SASL_PLAINTEXT",
        "KAFKA_OPTS": "-Djava.security.auth.login.config=/etc/kafka/secrets/jaas.conf",
    }
    configured = configure(environment, place)
    logins = {key for key in configured.properties if key.endswith("sasl.jaas.config")}
    assert logins == {
        f"listener.name.host.{each}.sasl.jaas.config" for each in ("plain", "scram-sha-256", "scram-sha-512")
    }
    assert configured.unset == ("KAFKA_OPTS",)


def test_users_of_bitnami_s_variables_log_in_by_plain_and_scram(place: Place) -> None:
    environment = {
        "KAFKA_CFG_LISTENERS": "SASL_PLAINTEXT://:9092",
        "KAFKA_CFG_LISTENER_SECURITY_PROTOCOL_MAP": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "KAFKA_CLIENT_USERS": "a,b",
        "KAFKA_CLIENT_PASSWORDS": "one,two",
    }
    configured = configure(environment, place)
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    assert configured.properties[key] == f'{LOGIN} user_a="one" user_b="two";'
    assert 'SCRAM-SHA-256=[name=b,password="two"]' in configured.users
    with pytest.raises(ConfigError, match="as many passwords as users"):
        configure(environment | {"KAFKA_CLIENT_PASSWORDS": "one"}, place)


# -- quorums


def test_several_that_are_a_quorum_are_a_cluster_on_the_first_voter_s_metadata_server(place: Place) -> None:
    ports = []
    for node_id in (1, 2, 3):
        configured = configure(QUORUM | {"KAFKA_NODE_ID": str(node_id)}, place)
        ports.append(configured.metadata_port)
        assert configured.properties["zookeeper.connect"] == "kafka-1:9093"
        assert configured.properties["broker.id"] == str(node_id)
        listeners = as_started(configured, QUORUM)
        assert [each.name for each in listeners.bound] == ["PLAINTEXT", "PLAINTEXT_HOST"]
        assert listeners.inter_broker == "PLAINTEXT"
    assert ports == [9093, 0, 0]


def test_a_member_that_no_voter_has_is_told(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"node.id=7: allowed: an id of controller.quorum.voters \(1, 2, 3\)"):
        configure(QUORUM | {"KAFKA_NODE_ID": "7"}, place)


@pytest.mark.parametrize("variable", ["KAFKA_NODE_ID", "KAFKA_BROKER_ID"])
def test_the_only_voter_is_alone(variable: str, place: Place) -> None:
    environment = QUORUM | {"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094", variable: "1"}
    configured = configure(environment, place)
    assert ("zookeeper.connect" in configured.properties, configured.metadata_port) == (False, 0)
    assert [each.name for each in as_started(configured, environment).bound] == ["PLAINTEXT", "PLAINTEXT_HOST"]


# -- kafka-storage


def format_with(place: Place, *words: str) -> dict[str, str]:
    """The properties after a format."""
    assert storage(["format", "-c", PROPERTIES, *words], {}, place) == 0
    return parse_properties(Path(place(PROPERTIES)).read_text())


@pytest.fixture
def formatted(place: Place, tmp_path: Path) -> Place:
    write(configure({"KAFKA_LOG_DIRS": f"{tmp_path}/data"}, place), place)
    with open(place(PROPERTIES), "a") as file:
        file.write(f"log.dirs={tmp_path}/data\n")
    return place


def test_a_format_gives_a_new_cluster_its_id(formatted: Place) -> None:
    assert format_with(formatted, "-t", ID, "--ignore-formatted")["cluster.id"] == ID


def test_what_is_formatted_keeps_its_id(formatted: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=0\ncluster.id=x\n")
    assert "cluster.id" not in format_with(formatted, "-t", ID, "--ignore-formatted")
    with pytest.raises(ConfigError, match=r"is already formatted\. Use --ignore-formatted"):
        format_with(formatted, "-t", ID)


def test_a_format_makes_users(formatted: Place, tmp_path: Path) -> None:
    format_with(formatted, "-t", ID, "--add-scram", "SCRAM-SHA-256=[name=app-user,password=secret]")
    assert (tmp_path / "data" / "metadata.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["format"], "kafka-storage format: allowed: with -t CLUSTER-ID and -c FILE"),
        (["format", "-t", "x", "-c", PROPERTIES], "--cluster-id=x: allowed: 22 letters of base64url"),
        (["format", "--nonsense", "x"], "kafka-storage format --nonsense: allowed: --cluster-id"),
        (["format", "-t"], "kafka-storage format -t: allowed: --cluster-id"),
        (["info"], "kafka-storage info: allowed: random-uuid, format"),
    ],
)
def test_a_format_that_cannot_be_is_told(words: list[str], said: str, place: Place) -> None:
    with pytest.raises(ConfigError) as refused:
        storage(words, {}, place)
    assert str(refused.value).startswith(said)


def test_random_ids_are_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "random-uuid"]) == 0
    made = capsys.readouterr().out.strip()
    assert cluster_id_of(made, "made") == made


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "zoo.cfg").write_text("clientPort=many\n")
    assert main(["zookeeper", str(tmp_path / "zoo.cfg")]) == 1
    assert capsys.readouterr().err == f"kbroker: {tmp_path}/zoo.cfg: clientPort=many: allowed: a port, 1 to 65535\n"
    assert main(["zookeeper", str(tmp_path / "none.cfg")]) == 1
    assert capsys.readouterr().err == f"kbroker: {tmp_path}/none.cfg: No such file or directory\n"
