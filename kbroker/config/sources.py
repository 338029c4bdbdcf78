"""Where static values are written: server.properties, KAFKA_* environment variables, --override on the command line.

The composition root reads the file and the environment and hands both in as values; what comes out is one mapping of
key to `Given`, which says where each value came from, so that a complaint can point there. Nothing here knows which
keys exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.config.environment import completed, from_environment
from kbroker.config.given import ConfigError, Given
from kbroker.properties import numbered_properties


def static_values(
    properties: str = "",
    *,
    file_name: str = "server.properties",
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> dict[str, Given]:
    """Everything given before the start, by key: --override beats the environment, which beats the file.

    properties: the file's text. environment: all of it, as `environment.py` reads it. overrides: `key=value` each.
    Raises: ConfigError.
    """
    given = parse_properties(properties, file_name)
    given |= from_environment(environment or {})
    given |= parse_overrides(overrides)
    return completed(given, environment or {})


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
