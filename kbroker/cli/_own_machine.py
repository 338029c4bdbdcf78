"""What a start without a properties file assumes: a person who tries things out on their own machine.

Called by `_broker.py` for `kbroker start`; with a file, Kafka's own defaults count. No folder is made here: the broker
makes its own, once it has its port.

| key | Kafka's default | here |
|---|---|---|
| listeners | every interface, port 9092 | the loopback, port 9092 |
| log.dirs | /tmp/kafka-logs | the user's data directory |

A member of a cluster is no such thing: with `zookeeper.connect` or `process.roles`, and where an address is advertised,
listeners stay Kafka's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from kbroker.cli._broker import NO_FILE
from kbroker.config import ConfigError, Given

LISTENERS = "PLAINTEXT://127.0.0.1:9092"
_OF_A_CLUSTER = ("zookeeper.connect", "process.roles")


def own_machine_defaults(static: Mapping[str, Given], *, needs_directory: bool) -> dict[str, Given]:
    """The settings that a start assumes beside those that were given. needs_directory: whether none was named.

    Raises: ConfigError where there is no home directory to keep data in.
    """
    assumed: dict[str, Given] = {}
    in_cluster = any(key in static and static[key].text.strip() for key in _OF_A_CLUSTER)
    if not in_cluster and "listeners" not in static and "advertised.listeners" not in static:
        assumed["listeners"] = Given(LISTENERS, NO_FILE)
    if needs_directory:
        assumed["log.dirs"] = Given(user_data_directory(os.environ, sys.platform), NO_FILE)
    return assumed


def user_data_directory(environment: Mapping[str, str], platform: str) -> str:
    """Where programs of this user keep their data. platform: as sys.platform has it. Raises: ConfigError.

    Source: the XDG base directory specification; Apple's file system guide.
    """
    given = environment.get("XDG_DATA_HOME", "")
    if platform == "darwin":
        base = _home(environment) + "/Library/Application Support"
    elif os.path.isabs(given):  # the specification has others passed by
        base = given
    else:
        base = _home(environment) + "/.local/share"
    folder = os.path.join(base, "kbroker")
    if "," in folder:  # it would part it in log.dirs
        raise ConfigError([f"{folder} has a comma, which no log directory may have; kbroker start --data DIR"])
    return folder


def _home(environment: Mapping[str, str]) -> str:
    home = environment.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home) or home == "/":  # a user that the machine does not know, as in many containers
        raise ConfigError(["this user has no home directory to keep data in; kbroker start --data DIR"])
    return home.rstrip("/")
