"""What the scripts of the image call: the environment of a container into settings, and the format step of KRaft.

`python -m kbroker.cli.container COMMAND ...`, by docker/etc and docker/bin; docs/containers.md says what users see.
Like the scripts of other images it is run before the broker. It writes three files:

| file | what |
|---|---|
| kafka.properties | what follows from the environment beside its `KAFKA_*` variables, which the broker reads itself |
| launch.env | variables that the broker is not to see: they have been turned into settings |
| health | host and port that the health check asks, and whether plain text is spoken there |

A KRaft quorum whose members are brokers as well (`broker,controller`) becomes a cluster on one metadata server, which
the container of the first voter runs on its controller's port: it speaks ZooKeeper's protocol, and has no replica. That
is for trying things out, as the compose files are that this is for. Every mistake is one line and exit code 1.

Source: the documentation of Apache's, Confluent's and Bitnami's images, and what Testcontainers' modules rely on.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from kbroker.cli._broker import say
from kbroker.config import (
    BrokerLayers,
    ConfigError,
    check_file,
    parse_properties,
    resolve_broker,
    resolve_listeners,
    static_values,
)
from kbroker.config.listeners import Listeners, is_every_interface
from kbroker.properties import format_properties
from kbroker.runtime.platform import mounts
from protocol.namedtuple import NamedTuple

PROPERTIES = "/etc/kafka/kafka.properties"
LAUNCH = "/etc/kafka/launch.env"
HEALTH = "/etc/kafka/health"
GIVEN = ("/mnt/shared/config/server.properties", "/etc/kbroker/server.properties")
"""Files of a user: where Apache's image has one, and this image's own place."""
SECRETS = "/etc/kafka/secrets"
DATA = "/var/lib/kbroker/data"
VOLUMES = (
    ("/var/lib/kafka/data", ""),
    ("/var/lib/kafka", "/data"),
    ("/bitnami/kafka", "/data"),
    ("/bitnami", "/kafka/data"),
)
"""Where other images keep data, and what is added to it: it counts if the user has mounted something there."""
ADVERTISED = "PLAINTEXT://localhost:9092"
METADATA_FOLDER = "/var/lib/kbroker/metadata"

_STORES = {  # what names a file in SECRETS; what names one whose content is the password
    "KAFKA_SSL_KEYSTORE_FILENAME": ("ssl.keystore.location", False),
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": ("ssl.keystore.password", True),
    "KAFKA_SSL_KEY_CREDENTIALS": ("ssl.key.password", True),
    "KAFKA_SSL_TRUSTSTORE_FILENAME": ("ssl.truststore.location", False),
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": ("ssl.truststore.password", True),
}
_LOGIN_FILE = re.compile(r"-Djava\.security\.auth\.login\.config=(\"[^\"]*\"|\S+)")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"({_QUOTED})|/\*.*?\*/|//[^\n]*|#[^\n]*", re.S)
_SECTION = re.compile(rf"([\w.-]+)\s*\{{((?:[^{{}}\"]|{_QUOTED})*)\}}\s*;", re.S)
_MODULE = re.compile(rf"\s*((?:[^;\"]|{_QUOTED})+;)", re.S)
_MECHANISMS = {  # by the login module that Java has for it
    "PlainLoginModule": ("plain",),
    "ScramLoginModule": ("scram-sha-256", "scram-sha-512"),
    "OAuthBearerLoginModule": ("oauthbearer",),
}
_CLIENTS = ("KAFKA_CLIENT_USERS", "KAFKA_CLIENT_PASSWORDS")
_VOTER = re.compile(r"(\d+)@([^:@]+|\[[^\]]+\]):(\d+)(?::\S+)?")
_QUORUM = (
    "process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names",
    "node.id", "broker.id",
)  # fmt: skip

Place = Callable[[str], str]
"""Where a file of the image is: where it says, but in tests."""


class Configured(NamedTuple):
    """What a container is to do. properties: the broker's. unset: variables that it is not to see.

    metadata_port: where it serves a metadata server, 0 for none. health: host, port and "yes" for plain text, "no".
    users: to be made by SCRAM, as kafka-storage takes them, where they are not there.
    """

    properties: dict[str, str]
    unset: tuple[str, ...]
    metadata_port: int = 0
    health: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


def configure(environment: Mapping[str, str], place: Place, mounts: str = "") -> Configured:
    """What follows from an environment. mounts: the text of proc(5), mountinfo. Raises: ConfigError, OSError."""
    cluster_id = _cluster_id(environment)
    environment = {name: value for name, value in environment.items() if name != "CLUSTER_ID"}
    settings: dict[str, str] = {}
    for path in map(place, GIVEN):
        if os.path.isdir(path):  # which would be a start on defaults, open to every client
            raise ConfigError([f"{path}: is a directory; Docker makes one where the file to be mounted is not there"])
        if os.path.isfile(path):
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                found = parse_properties(file.read(), path)
            check_file(found, path)
            settings = {key: each.text for key, each in found.items()}
            break
    unset: list[str] = []
    settings |= _stores(environment, place, unset)
    given = static_values(format_properties(settings), environment=environment)
    folders = given.get("log.dirs", given.get("log.dir"))
    settings["log.dirs"] = data_directory(mounts) if folders is None else folders.text  # a file has a key at least
    if not given.keys() & {"listeners", "advertised.listeners"}:
        settings["advertised.listeners"] = ADVERTISED
    if cluster_id and "cluster.id" not in given:
        settings["cluster.id"] = cluster_id
    settings |= _logins(environment, place, settings, unset)
    users = _clients(environment, settings, unset)
    configured = _in_a_quorum(Configured(settings, tuple(unset), users=users), environment)
    left = {name: value for name, value in environment.items() if name not in configured.unset}
    return configured._replace(health=_asked_for_health(_listeners(configured.properties, left)))


def _listeners(settings: Mapping[str, str], environment: Mapping[str, str]) -> Listeners:
    """Raises: ConfigError."""
    given = static_values(format_properties(settings), environment=environment)
    return resolve_listeners(resolve_broker(BrokerLayers(static=given)))


def _asked_for_health(listeners: Listeners) -> tuple[str, str, str]:
    """The first listener of plain text, or the first of all."""
    plain = [each for each in listeners.bound if each.protocol == "PLAINTEXT"]
    asked = (plain or listeners.bound)[0]
    host = "127.0.0.1" if is_every_interface(asked.host) else asked.host
    return host, str(asked.port), "yes" if plain else "no"


def data_directory(mounts: str) -> str:
    """Where data are: where the user has mounted a volume for them, by the habits of an image, else `DATA`."""
    points = {line.split()[4] for line in mounts.splitlines() if len(line.split()) > 4}
    return next((f"{path}{below}" for path, below in VOLUMES if path in points), DATA)


def _stores(environment: Mapping[str, str], place: Place, unset: list[str]) -> dict[str, str]:
    """Keys, certificates and their passwords, from files that variables name."""
    settings: dict[str, str] = {}
    for variable, (key, is_password) in _STORES.items():
        name = environment.get(variable, "")
        if variable in environment:
            unset.append(variable)
        if not name:
            continue
        path = place(f"{SECRETS}/{name}")
        if not os.path.isfile(path):
            raise ConfigError([f"{variable}={name}: there is no file {SECRETS}/{name}; mount its folder there"])
        settings[key] = path
        if is_password:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                settings[key] = file.read().rstrip("\r\n")
    if settings and "KAFKA_SSL_KEYSTORE_TYPE" not in environment:
        settings["ssl.keystore.type"] = "JKS"
    return settings


def _cluster_id(environment: Mapping[str, str]) -> str:
    """CLUSTER_ID as Kafka writes ids; plain base64, or its padding, means the same, and of a name one is made."""
    given = environment.get("CLUSTER_ID", "").strip()
    if not given:
        return ""
    try:
        return cluster_id_of(given, "CLUSTER_ID")
    except ConfigError:  # as tests call their clusters; the same name is the same cluster
        made = base64.urlsafe_b64encode(sha256(given.encode()).digest()[:16]).decode().rstrip("=")
        say(f"kbroker: CLUSTER_ID={given}: is no id of Kafka's, 22 letters of base64url; made of it: {made}")
        return made


def cluster_id_of(text: str, what: str) -> str:
    """Raises: ConfigError for what is no id of 16 bytes."""
    plain = text.rstrip("=").replace("+", "-").replace("/", "_")
    if re.fullmatch(r"[\w-]{22}", plain, re.ASCII):
        return plain
    raise ConfigError([f"{what}={text}: allowed: 22 letters of base64url; kafka-storage random-uuid makes one"])


def _logins(
    environment: Mapping[str, str], place: Place, settings: Mapping[str, str], unset: list[str]
) -> dict[str, str]:
    """The login modules of the file that KAFKA_OPTS names, as settings of each listener that logs clients in."""
    found = _LOGIN_FILE.search(environment.get("KAFKA_OPTS", ""))
    if found is None:
        return {}
    unset.append("KAFKA_OPTS")
    path = found[1].strip('"')
    try:
        with open(place(path), encoding="utf-8") as file:
            sections = read_sections(file.read())
    except OSError as error:
        raise ConfigError([f"KAFKA_OPTS: {path}: {error.strerror}"]) from None
    given = static_values(format_properties(settings), environment=environment)
    logins: dict[str, str] = {}
    for listener in _listeners(settings, environment).bound:
        if not listener.protocol.startswith("SASL_"):
            continue
        name = listener.name.lower()
        for module in sections.get(f"{name}.KafkaServer", sections.get("KafkaServer", ())):
            for mechanism in _MECHANISMS.get(module.split()[0].rpartition(".")[2], ()):
                key = f"listener.name.{name}.{mechanism}.sasl.jaas.config"
                if key not in given:
                    logins[key] = module
    return logins


def _clients(environment: Mapping[str, str], settings: dict[str, str], unset: list[str]) -> tuple[str, ...]:
    """The users of Bitnami's variables: by PLAIN as settings, by SCRAM to be made. Raises: ConfigError."""
    names, passwords = ([each for each in environment.get(variable, "").split(",") if each] for variable in _CLIENTS)
    if not names:
        return ()
    unset += [variable for variable in _CLIENTS if variable in environment]
    if len(names) != len(passwords):
        raise ConfigError([f"{' and '.join(_CLIENTS)}: allowed: as many passwords as users, with commas between them"])
    given = static_values(format_properties(settings), environment=environment)
    if "sasl.enabled.mechanisms" not in given:
        settings["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    enabled = settings.get("sasl.enabled.mechanisms") or given["sasl.enabled.mechanisms"].text
    mechanisms = {each.strip().upper() for each in enabled.split(",")}
    if "PLAIN" in mechanisms:
        options = " ".join(
            f"user_{name}={_in_quotes(password)}" for name, password in zip(names, passwords, strict=True)
        )
        for listener in _listeners(settings, environment).bound:
            key = f"listener.name.{listener.name.lower()}.plain.sasl.jaas.config"
            if listener.protocol.startswith("SASL_") and key not in given:
                settings[key] = f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};"
    return tuple(
        f'{mechanism}=[name={name},password="{password}"]'
        for mechanism in sorted(mechanisms)
        if mechanism.startswith("SCRAM-")
        for name, password in zip(names, passwords, strict=True)
    )


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read_sections(text: str) -> dict[str, list[str]]:
    """The login modules of a JAAS file, by section, each as `sasl.jaas.config` has one."""
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    return {
        found[1]: [" ".join(each[1].split()) for each in _MODULE.finditer(found[2])]
        for found in _SECTION.finditer(plain)
    }


def _in_a_quorum(alone: Configured, environment: Mapping[str, str]) -> Configured:
    """The part of one of several brokers that are a KRaft quorum; what is none stays as it is. Raises: ConfigError."""
    given = static_values(format_properties(alone.properties), environment=environment)
    text = {key: given[key].text.strip() for key in _QUORUM if key in given}
    roles = {each.strip() for each in text.get("process.roles", "").split(",")}
    voters = sorted(
        (int(found[1]), found[2], int(found[3])) for found in _VOTER.finditer(text.get("controller.quorum.voters", ""))
    )
    if roles != {"broker", "controller"} or len(voters) < 2:
        return alone
    node_id = text.get("node.id", text.get("broker.id", ""))
    if not node_id.isdigit() or int(node_id) not in {each[0] for each in voters}:
        ids = ", ".join(str(each[0]) for each in voters)
        raise ConfigError([f"node.id={node_id}: allowed: an id of controller.quorum.voters ({ids})"])
    first_id, host, port = voters[0]
    properties = {key: value for key, value in alone.properties.items() if key not in _QUORUM}
    properties |= {"zookeeper.connect": f"{host}:{port}", "broker.id": node_id}
    left_out = {each.strip().upper() for each in text.get("controller.listener.names", "").split(",")}
    for key in ("listeners", "advertised.listeners"):
        if key in given:
            addresses = given[key].text.split(",")
            kept = [each for each in addresses if each.partition("://")[0].strip().upper() not in left_out]
            properties[key] = ",".join(kept)
    settled = {*_QUORUM, "listeners", "advertised.listeners"}
    gone = {each.where.removeprefix("environment variable ") for key, each in given.items() if key in settled}
    unset = (*alone.unset, *sorted(gone & environment.keys()))
    return Configured(properties, unset, port if first_id == int(node_id) else 0)


def write(configured: Configured, place: Place) -> None:
    """Put both files in their places. Raises: OSError."""
    with open(place(PROPERTIES), "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(format_properties(configured.properties))
    lines = [f"unset {shlex.join(configured.unset)}"] if configured.unset else []
    lines.append("unset CLUSTER_ID")  # it is in the file, as the broker takes it
    lines.append(f"METADATA_PORT={configured.metadata_port or ''}")
    with open(place(LAUNCH), "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))
    with open(place(HEALTH), "w", encoding="utf-8") as file:
        file.write(f"{' '.join(configured.health)}\n")


# -- kafka-storage


def storage(words: Sequence[str], environment: Mapping[str, str], place: Place) -> int:
    """kafka-storage as images and modules use it: random-uuid, and format with a cluster id and users of SCRAM."""
    if list(words) == ["random-uuid"]:
        from kbroker.log.checkpoints import format_uuid

        print(format_uuid(os.urandom(16)).replace("-", "A"))  # none that a command line takes for an option
        return 0
    if not words or words[0] != "format":
        raise ConfigError([f"kafka-storage {' '.join(words[:1])}: allowed: random-uuid, format"])
    options, users, ignores = _format_options(words[1:])
    path = options.get("config")
    if path is None or "cluster-id" not in options:
        raise ConfigError(["kafka-storage format: allowed: with -t CLUSTER-ID and -c FILE"])
    cluster_id = cluster_id_of(options["cluster-id"], "--cluster-id")
    with open(place(path), encoding="utf-8") as file:
        settings = {key: each.text for key, each in parse_properties(file.read(), path).items()}
    directories = _directories(settings, environment)
    formatted = [each for each in directories if os.path.exists(f"{each}/meta.properties")]
    if formatted and not ignores:
        raise ConfigError([f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore it."])
    if not formatted:
        settings["cluster.id"] = cluster_id
        with open(place(path), "w", encoding="utf-8") as file:
            file.write(format_properties(settings))
    if users:
        _add_users(directories, users)
    return 0


def _format_options(words: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """The options of format, its users, and whether it passes by what is formatted. Raises: ConfigError."""
    short = {"-t": "--cluster-id", "-c": "--config", "-S": "--add-scram", "-g": "--ignore-formatted"}
    flags = ("--ignore-formatted", "--standalone", "--no-initial-controllers")
    known = ("--cluster-id", "--config", "--add-scram", "--release-version", "--feature", "--initial-controllers")
    options: dict[str, str] = {}
    users: list[str] = []
    seen: set[str] = set()
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        name = short.get(name, name)
        if name in flags:
            seen.add(name)
            continue
        value = value if equals else next(left, "")
        if name not in known or not value:
            raise ConfigError([f"kafka-storage format {word}: allowed: {', '.join((*known, *flags))}"])
        if name == "--add-scram":
            users.append(value)
        else:
            options[name.removeprefix("--")] = value
    return options, users, flags[0] in seen


def _directories(settings: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """The log directories. Raises: ConfigError."""
    static = static_values(format_properties(settings), environment=environment)
    config = resolve_broker(BrokerLayers(static=static))
    return [os.path.abspath(each) for each in config.log_dirs or [config.log_dir] if each]


def _add_users(directories: Sequence[str], users: Sequence[str]) -> None:
    from kbroker.runtime.add_scram import add_users, read_user
    from kbroker.runtime.clock import SystemRandom
    from kbroker.runtime.files import SystemDisk
    from kbroker.runtime.store_file import StoreMissingError

    for each in directories:
        os.makedirs(each, exist_ok=True)
    try:
        add_users(SystemDisk(), directories, [read_user(each, SystemRandom()) for each in users], only_missing=True)
    except (ValueError, StoreMissingError) as error:
        raise ConfigError([str(error)]) from None


# -- a metadata server, for what speaks to ZooKeeper


def serve_metadata(port: int, folder: str) -> int:
    """Serve metadata on every interface until a signal comes. Raises: OSError."""
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.metadata_server.server import MetadataServer
    from kbroker.runtime.store_file import STORE_FILE

    os.makedirs(folder, exist_ok=True)
    loop = Loop()
    ended: list[object] = []
    loop.on_end(ended.append)
    server = MetadataServer(loop, f"{folder}/{STORE_FILE}", host="", port=port, failed=ended.append)
    print(
        f"metadata server on port {server.port}, in ZooKeeper's protocol: one process, for trying things out",
        flush=True,
    )
    try:
        loop.run_until(lambda: ended)
    finally:
        server.close()
        loop.close()
    return int(isinstance(ended[0], OSError))


def _client_port(path: str) -> int:
    """Of a zookeeper.properties. Raises: ConfigError, OSError."""
    with open(path, encoding="utf-8") as file:
        text = parse_properties(file.read(), path)
    port = text["clientPort"].text if "clientPort" in text else ""
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ConfigError([f"{path}: clientPort={port}: allowed: a port, 1 to 65535"])
    return int(port)


def main(words: Sequence[str]) -> int:
    """Do one of these; the exit code."""
    place: Place = str
    try:
        match list(words):
            case ["configure"]:
                configured = configure(os.environ, place, mounts())
                write(configured, place)
                if configured.users:
                    _add_users(_directories(configured.properties, os.environ), configured.users)
                return 0
            case ["storage", *rest]:
                return storage(rest, os.environ, place)
            case ["zookeeper", path]:
                return serve_metadata(_client_port(path), METADATA_FOLDER)
            case ["metadata", port]:
                return serve_metadata(int(port), METADATA_FOLDER)
            case _:
                raise ConfigError([f"{' '.join(words)}: allowed: configure, storage, zookeeper, metadata"])
    except ConfigError as error:
        for line in error.lines:
            say(f"kbroker: {line}")
    except OSError as error:
        say(f"kbroker: {error.filename}: {error.strerror}" if error.filename else f"kbroker: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
