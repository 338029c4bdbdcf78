"""What a container's environment says: the variables of the images of Confluent, Apache and Bitnami.

Called by `sources.py` for what counts, and by a start for what does not (`unheeded`). Pure: the environment is a value.

| variable | key | whose |
|---|---|---|
| `KAFKA_LOG_DIRS` | log.dirs: `_` is a dot, `__` an underscore, `___` a dash | Confluent's, Apache's |
| `KAFKA_CFG_LOG_DIRS` | log.dirs: `_` is a dot, but in `sasl_ssl` and `sasl_plaintext` | Bitnami's |
| `KAFKA_ADVERTISED_LISTENERS` | listeners, too, on every interface, where nothing says them | Confluent's, Apache's |
| `CLUSTER_ID`, beside process.roles | cluster.id | Confluent's, Apache's |
| `KAFKA_KRAFT_CLUSTER_ID` | cluster.id | Bitnami's |

Variables that a shell has for installations of Kafka (`KAFKA_HOME`) are passed by. Source: the documentation of these
images, and what they do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.config.given import ConfigError, Given

PREFIX, BITNAMI_PREFIX = "KAFKA_", "KAFKA_CFG_"
OF_INSTALLATIONS = frozenset(("KAFKA_VERSION", "KAFKA_HOME", "KAFKA_DATA_DIR"))

_FOR_JAVA = "it is for a Java virtual machine, and there is none here"
_FOR_LOG4J = "--log-level says what is logged"
_FOR_LOGINS = "logins are sasl.enabled.mechanisms, listener.name.NAME.plain.sasl.jaas.config and kbroker users"
_FOR_QUORUM = "process.roles says what it is in a metadata quorum"
_FOR_TOPICS = "kbroker topics --create makes topics"
_FOR_SERVICES = "Kubernetes sets it for a service of that name"
_WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys((
        "KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JMX_OPTS", "KAFKA_JMX_HOSTNAME", "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_EXTRA_FLAGS",
    ), _FOR_JAVA),
    **dict.fromkeys((
        "KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_LOGGERS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    ), _FOR_LOG4J),
    **dict.fromkeys((
        "KAFKA_CLIENT_USERS", "KAFKA_CLIENT_PASSWORDS", "KAFKA_INTER_BROKER_USER", "KAFKA_INTER_BROKER_PASSWORD",
        "KAFKA_CONTROLLER_USER", "KAFKA_CONTROLLER_PASSWORD", "KAFKA_CERTIFICATE_PASSWORD", "KAFKA_TLS_TYPE",
        "KAFKA_TLS_CLIENT_AUTH", "KAFKA_KRAFT_BOOTSTRAP_SCRAM_USERS",
    ), _FOR_LOGINS),
    **dict.fromkeys(("KAFKA_ENABLE_KRAFT", "KAFKA_SKIP_KRAFT_STORAGE_INIT"), _FOR_QUORUM),
    "KAFKA_CREATE_TOPICS": _FOR_TOPICS,
}  # fmt: skip
"""Variables that mean something to an image of Kafka, and why not here."""

_OF_SERVICE = r"KAFKA(_\w+)?_SERVICE_(HOST|PORT(_\w+)?)|KAFKA(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?"
_SERVICE_URL = r"(tcp|udp|sctp)://.*"
_HOST = r"://(\[[^\]]*\]|[^:,]*):"
_EMPTY_IS_UNSET = ("listeners", "advertised.listeners")


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """The variables that name keys, by key. Raises: ConfigError where two of them say different things of one key."""
    given: dict[str, Given] = {}
    faults = []
    for variable in sorted(environment):
        key, text = _key(variable), environment[variable]
        if key is None or _why_not(variable, text) is not None or (not text.strip() and key in _EMPTY_IS_UNSET):
            continue
        found = Given(text, f"environment variable {variable}")
        other = given.setdefault(key, found)
        if other.text.strip() != text.strip():
            names = f"{other.where.removeprefix('environment variable ')} and {variable}"
            faults.append(f"{names}: allowed: one of these environment variables, or the same value for {key}")
    if faults:
        raise ConfigError(faults)
    return given


def completed(given: dict[str, Given], environment: Mapping[str, str]) -> dict[str, Given]:
    """Everything given before a start, with what images derive from it. given: the environment's among it."""
    derived: dict[str, Given] = {}
    advertised = given.get("advertised.listeners")
    if advertised is not None and _is_variable(advertised) and "listeners" not in given:
        derived["listeners"] = Given(re.sub(_HOST, "://:", advertised.text), advertised.where)
    cluster_id = environment.get("CLUSTER_ID", "")
    if "process.roles" in given and cluster_id and "cluster.id" not in given:
        derived["cluster.id"] = Given(cluster_id, "environment variable CLUSTER_ID")
    return given | derived


def unheeded(environment: Mapping[str, str]) -> list[str]:
    """A line for each reason why variables of an image have no effect, with their names."""
    reasons: dict[str, list[str]] = {}
    for variable in sorted(environment):
        why = _why_not(variable, environment[variable])
        if why is not None:
            reasons.setdefault(why, []).append(variable)
    return [f"{', '.join(names)}: has no effect: {why} (environment)" for why, names in reasons.items()]


def _is_variable(given: Given) -> bool:
    return given.where.startswith("environment variable ")


def _why_not(variable: str, text: str) -> str | None:
    """Why a variable has no effect; None if it names a key, or is of no image."""
    if not variable.startswith(PREFIX):
        return None
    is_url = variable.endswith("_PORT") and re.fullmatch(_SERVICE_URL, text)
    return _FOR_SERVICES if is_url or re.fullmatch(_OF_SERVICE, variable) else _WITHOUT_EFFECT.get(variable)


def _key(variable: str) -> str | None:
    """The key that a variable names; None if it names none."""
    if not variable.startswith(PREFIX) or variable in (PREFIX, BITNAMI_PREFIX) or variable in OF_INSTALLATIONS:
        return None
    if variable.startswith(BITNAMI_PREFIX):
        key = variable.removeprefix(BITNAMI_PREFIX).lower().replace("_", ".")
        return key.replace("sasl.ssl", "sasl_ssl").replace("sasl.plaintext", "sasl_plaintext")
    words = variable.removeprefix(PREFIX).lower()
    key = words.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
    return "cluster.id" if key == "kraft.cluster.id" else key
