"""What `kbroker start --secure` makes before a broker starts, and what it says once it serves.

The password of the admin is said once, when it was made; after that it is in a file that only its owner can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.cli._broker import on_port
from kbroker.config import BrokerLayers, ConfigError, Given, resolve_broker, resolve_listeners, static_values
from kbroker.runtime.node import cannot_listen
from kbroker.runtime.secure import Secured, put_admin, secure
from kbroker.runtime.server import bound_socket
from kbroker.runtime.store_file import StoreMissingError
from kbroker.usage import UsageError

if TYPE_CHECKING:
    from kbroker.cli._broker import Start

DATA = "data"
PORT = 9092
PROTOCOL = "SASL_SSL"
_HOST = re.compile(r"://(\[[^\]]*\]|[^:,/]*):")


def secured_start(start: Start) -> Secured:
    """Make what is missing in the data directory. Raises: ConfigError, StartupError, OSError."""
    given = static_values("", file_name="", environment=os.environ, overrides=start.overrides)
    listeners = f"{PROTOCOL}://127.0.0.1:{PORT if start.port is None else start.port}"
    if "listeners" in given:
        listeners, where = given["listeners"].text, given["listeners"].where
        if f"{PROTOCOL}://" not in listeners.upper():
            raise ConfigError([f"{where}: listeners={listeners}: allowed with --secure: {PROTOCOL}://HOST:PORT"])
        listeners = listeners if start.port is None else on_port(listeners, start.port)
    if "zookeeper.connect" in given:
        raise ConfigError(["--secure is for a broker that is alone: in a cluster take its settings, and make the user"])
    told = given["advertised.listeners"].text if "advertised.listeners" in given else ""
    data = start.data or (given["log.dirs"].text.split(",")[0] if "log.dirs" in given else DATA)
    folder = os.path.abspath(data)
    _try_ports(listeners, given)
    try:
        secured = secure(folder, listeners=listeners, hosts=_HOST.findall(told))
        put_admin(folder, secured)
    except (UsageError, StoreMissingError) as error:
        raise ConfigError([str(error)]) from None
    return secured


def _try_ports(listeners: str, given: Mapping[str, Given]) -> None:
    """Nothing is made for a broker whose port is taken. Raises: ConfigError, StartupError."""
    static = {**given, "listeners": Given(listeners, "--secure")}
    bound = resolve_listeners(resolve_broker(BrokerLayers(static=static))).bound
    for each in bound:
        try:
            bound_socket(each.host, each.port, receive_buffer_bytes=-1).close()
        except OSError as error:
            port = each.port if len(bound) == 1 else None
            raise cannot_listen(each, error, "listeners", each.host, port) from None


def recipes_of(secured: Secured, bootstrap: str) -> list[str]:
    """What clients are told, to paste. Writes the file of the admin's settings. Raises: OSError."""
    recipe = secured.write_recipe(bootstrap)
    if not secured.is_new:
        recipe = recipe._replace(password=f"(in {secured.admin_file})")
    made = f", made now: {', '.join(secured.made)}" if secured.made else ""
    java = [f"{name}={_escaped(value)}" for name, value in recipe.java().items()]
    plain = [f"{name}={value}" for name, value in recipe.librdkafka().items()]
    python = [f"{name}={value!r}," for name, value in recipe.kafka_python().items()]
    spark = [f'.option("{name}", {_quoted(value)})' for name, value in recipe.spark().items()]
    parts = [
        (f"Java, and kbroker's commands: --command-config {secured.admin_file}, or its lines:", java),
        ("librdkafka (confluent-kafka, kcat):", plain),
        ("kafka-python, for KafkaProducer(...) and its like:", python),
        ('Spark, for format("kafka") and format("kbroker"):', spark),
    ]
    lines = [f"  secured by   {secured.properties}{made}"]
    for title, body in parts:
        lines += [f"  {title}", *(f"    {each}" for each in body)]
    return lines


def _quoted(text: str) -> str:
    escaped = _escaped(text).replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(text: str) -> str:
    """As a value of properties."""
    return text.replace("\\", "\\\\")
