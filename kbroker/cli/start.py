"""`kbroker start`: read the settings, run a broker, and say in a few lines where it is and how to use it."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker import __version__
from kbroker.config import ConfigError, Given, static_values, warnings
from kbroker.runtime.logs import set_up_logging

if TYPE_CHECKING:
    from kbroker.runtime.main import BrokerProcess

log = logging.getLogger("kbroker")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting; beats the file and the environment."
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def start(properties: Path | None, overrides: tuple[str, ...], log_format: str, log_level: str) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    PROPERTIES is a server.properties as Apache Kafka's; without one, Kafka's defaults count. Environment variables
    such as KAFKA_LOG_DIRS set any of them too.
    """
    began = time.monotonic()
    set_up_logging(log_level, as_json=log_format == "json")
    try:
        return _run(_settings(properties, overrides), began)
    except ConfigError as error:
        for line in error.lines:
            click.echo(f"kbroker: {line}", err=True)
        return 1


def _settings(properties: Path | None, overrides: tuple[str, ...]) -> dict[str, Given]:
    text = properties.read_text() if properties is not None else ""
    name = str(properties) if properties is not None else "server.properties"
    static = static_values(text, file_name=name, environment=os.environ, overrides=overrides)
    for line in warnings(static):
        log.warning("%s", line)
    return static


def _run(static: dict[str, Given], began: float) -> int:
    from kbroker.runtime.main import BrokerProcess, StartupError  # after the settings: a typo is told at once

    def started(process: BrokerProcess) -> None:
        click.echo(_summary(process, time.monotonic() - began))
        sys.stdout.flush()

    try:
        return BrokerProcess(static).run(started)
    except StartupError as error:
        click.echo(f"kbroker: {error}", err=True)
        return 1


def _summary(process: BrokerProcess, seconds: float) -> str:
    """Where it is, and the first thing to try."""
    who = f"broker {process.node_id} of cluster {process.cluster_id}"
    lines = [
        f"kbroker {__version__}: {who} is ready after {seconds:.2f} s",
        *(
            f"  listening on {each.name}://{each.host or '*'}:{process.ports[each.name]}"
            for each in process.listeners.bound
        ),
        *(f"  clients are told {each.listener}://{each.host}:{each.port}" for each in process.endpoints),
        f"  data in {', '.join(process.paths)}",
    ]
    if process.endpoints:
        address = f"{process.endpoints[0].host}:{process.endpoints[0].port}"
        lines += [
            f"  produce:  python -c \"from kafka import KafkaProducer as P; p = P(bootstrap_servers='{address}'); "
            "p.send('quickstart', b'hello').get(10)\"",
            f'  consume:  python -c "from kafka import KafkaConsumer as C; '
            f"[print(r.value) for r in C('quickstart', bootstrap_servers='{address}', auto_offset_reset='earliest')]\"",
        ]
    return "\n".join(lines)
