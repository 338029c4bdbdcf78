"""Where static values are written: server.properties, KAFKA_* environment variables, --override on the command line.

The composition root reads the file and the environment and hands both in as values; what comes out is one mapping of
key to `Given`, which says where each value came from, so that a complaint can point there. Nothing here knows which
keys exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.properties import numbered_properties
from protocol.namedtuple import NamedTuple


class ConfigError(Exception):
    """The configuration cannot be used. lines: one a fault, each with key, value and what is allowed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Given(NamedTuple):
    """A value as written, and where."""

    text: str
    where: str


def static_values(
    properties: str = "",
    *,
    file_name: str = "server.properties",
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> dict[str, Given]:
    """Everything given before the start, by key: --override beats the environment, which beats the file.

    properties: the file's text. environment: all of it; only KAFKA_* is looked at. overrides: `key=value` each.
    Raises: ConfigError.
    """
    given = parse_properties(properties, file_name)
    given |= from_environment(environment or {})
    return given | parse_overrides(overrides)


def parse_overrides(overrides: Iterable[str]) -> dict[str, Given]:
    """`key=value` arguments. Raises: ConfigError for one without a key or without `=`."""
    given: dict[str, Given] = {}
    faults = []
    for argument in overrides:
        key, equals, value = argument.partition("=")
        if not equals or not key.strip():
            faults.append(f"--override {argument!r}: allowed: key=value")
        given[key.strip()] = Given(value.strip(), "--override")
    if faults:
        raise ConfigError(faults)
    return given


# What the scripts around Apache's broker read for themselves, and what images set for their own use.
NOT_SETTINGS = frozenset((
    "KAFKA_VERSION", "KAFKA_HOME", "KAFKA_DATA_DIR", "KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JMX_OPTS",
    "KAFKA_JMX_HOSTNAME", "KAFKA_JMX_PORT", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_LOG4J_OPTS",
    "KAFKA_LOG4J_LOGGERS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_TOOLS_LOG4J_LOGLEVEL", "KAFKA_CLUSTER_ID",
))  # fmt: skip


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """KAFKA_* variables by key: `_` is a dot, `__` an underscore, `___` a dash.

    KAFKA_ADVERTISED_LISTENERS is advertised.listeners. Source: Apache's and Confluent's Docker images.
    """
    given = {}
    for variable in sorted(environment):
        if variable.startswith("KAFKA_") and len(variable) > len("KAFKA_") and variable not in NOT_SETTINGS:
            words = variable.removeprefix("KAFKA_").lower()
            key = words.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
            given[key] = Given(environment[variable], f"environment variable {variable}")
    return given


def parse_properties(text: str, file_name: str = "server.properties") -> dict[str, Given]:
    r"""The keys of a Java properties file; of a repeated key the last value.

    Raises: ConfigError for a broken \u escape.
    """
    try:
        return {
            key: Given(value.strip(), f"{file_name} line {number}") for number, key, value in numbered_properties(text)
        }
    except ValueError as error:
        raise ConfigError([f"{file_name} {error}"]) from None
