"""`kbroker start` as click reads it: for help, and for command lines that `_broker.plain_start` leaves to it."""

from __future__ import annotations

import os
from shlex import quote

import click

from kbroker.cli._broker import LAST_PORT, LOG_FORMATS, LOG_LEVEL, LOG_LEVELS, Start, is_directory, run_broker
from kbroker.cli._elsewhere import ReadFile
from kbroker.cli._numbers import Number


def _meant(path: str) -> str:
    """What the word for the file may have been meant for."""
    if os.path.isdir(path):
        return f" To keep data there: kbroker start --data {quote(path)}"
    is_port = path.isascii() and path.isdigit() and int(path) <= LAST_PORT
    return f" To listen on that port: kbroker start --port {path}" if is_port else ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("properties", required=False, type=ReadFile(_meant))
@click.option("--port", type=Number(0, LAST_PORT), help="Where to listen instead of the listener's own; 0: any free.")
@click.option("--data", type=click.Path(file_okay=False), help="Where to keep data, log.dirs.")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting; beats the file and the environment."
)
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default=LOG_FORMATS[0], show_default=True)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default=LOG_LEVEL, show_default=True)
@click.option(
    "--faults", type=click.Path(exists=True, dir_okay=False), help="What to do wrong on purpose, for tests of clients."
)
@click.option("--console", is_flag=True, help="Pages for a browser, at console.listener or else 127.0.0.1:8080.")
@click.option(
    "--secure", is_flag=True, help="Make certificates, an admin and settings in --data: TLS, logins, rules of access."
)
@click.option("--ready-lines", is_flag=True, help="Also print what programs wait for in the log of Apache's broker.")
def start(
    properties: str | None,
    port: int | None,
    data: str | None,
    overrides: tuple[str, ...],
    log_format: str,
    log_level: str,
    faults: str | None,
    secure: bool,
    ready_lines: bool,
    console: bool,
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    PROPERTIES is a server.properties as Apache Kafka's. Without one the broker is for this machine alone: on
    127.0.0.1:9092, with its data in your data directory. Environment variables such as KAFKA_LOG_DIRS set any key too.
    """
    if secure and properties is not None:
        raise click.UsageError("--secure writes its own settings: leave PROPERTIES out, or take those over into it")
    if not is_directory(data):
        raise click.UsageError(f"--data {data}: allowed: a path without commas, which part directories in log.dirs")
    arguments = properties, port, data, overrides, log_format, log_level, faults, secure, ready_lines, console
    return run_broker(Start(*arguments))
