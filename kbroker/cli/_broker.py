"""What `kbroker start` does: read the settings, run a broker, say in a few lines where it is and how to use it.

Called by `run` with a command line that `plain_start` understood, or by the command in `start.py` with one that click
did. Imports neither click nor anything else that a running broker does not need.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker import __version__

if TYPE_CHECKING:
    from kbroker.config import Given
    from kbroker.runtime.loading import DirectoryLoad, Show
    from kbroker.runtime.node import Node

log = logging.getLogger("kbroker")

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


class Start(NamedTuple):
    """The arguments of `kbroker start`. properties: the path of a server.properties."""

    properties: str | None = None
    overrides: tuple[str, ...] = ()
    log_format: str = "text"
    log_level: str = "info"


def plain_start(words: Sequence[str]) -> Start | None:
    """What click would make of these arguments; None if they ask for help, are wrong, or not worth knowing here."""
    files: list[str] = []
    overrides: list[str] = []
    options = {"--log-format": "text", "--log-level": "info"}
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            files.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = next(left, "-")
            if value.startswith("-"):
                return None
        if name == "--override":
            overrides.append(value)
        elif name in options:
            options[name] = value
        else:
            return None
    is_sound = options["--log-format"] in LOG_FORMATS and options["--log-level"] in LOG_LEVELS
    if not is_sound or len(files) > 1 or not all(map(os.path.isfile, files)):
        return None
    return Start(files[0] if files else None, tuple(overrides), *options.values())


def run_broker(start: Start) -> int:
    """Run a broker until Ctrl-C or SIGTERM; the exit code. Raises: OSError if the properties cannot be read."""
    began = time.monotonic()
    from kbroker.config import ConfigError  # here and below: the tools read this file, too, and need none of it
    from kbroker.runtime.logs import set_up_logging

    set_up_logging(start.log_level, as_json=start.log_format == "json")
    try:
        return _run(_settings(start), began)
    except ConfigError as error:
        for line in error.lines:
            print(f"kbroker: {line}", file=sys.stderr)
        return 1


def _settings(start: Start) -> dict[str, Given]:
    from kbroker.config import ConfigError, static_values, warnings

    text, name = "", "server.properties"
    if start.properties is not None:
        name = start.properties
        with open(name, "rb") as file:
            content = file.read()
        try:
            text = content.decode("utf-8-sig")  # some editors begin a file with a mark of byte order
        except UnicodeDecodeError as error:
            number = content.count(b"\n", 0, error.start) + 1
            raise ConfigError([f"{name} line {number}: allowed: text in UTF-8, other characters as \\uXXXX"]) from None
    static = static_values(text, file_name=name, environment=os.environ, overrides=start.overrides)
    for line in warnings(static):
        log.warning("%s", line)
    return static


def _run(static: dict[str, Given], began: float) -> int:
    from kbroker.runtime.main import run_process  # after the settings: a typo is told at once
    from kbroker.runtime.node import StartupError

    def started(node: Node) -> None:
        print(_summary(node, time.monotonic() - began), flush=True)

    try:
        return run_process(static, started, _bars() if sys.stderr.isatty() else None)
    except StartupError as error:
        print(f"kbroker: {error}", file=sys.stderr)
        return 1


def _bars() -> Show:
    """Bars for a long start, loaded if there is one."""
    shown: list[Show] = []

    def show(load: DirectoryLoad) -> None:
        if not shown:
            from kbroker.cli._loading import LoadingBars

            shown.append(LoadingBars())
        shown[0](load)

    return show


def _summary(node: Node, seconds: float) -> str:
    """Where it is, and the first thing to try."""
    who = f"broker {node.node_id} of cluster {node.cluster_id}"
    lines = [
        f"kbroker {__version__}: {who} is ready after {seconds:.2f} s",
        *(f"  listening on {each.name}://{each.host or '*'}:{node.ports[each.name]}" for each in node.listeners.bound),
        *(f"  clients are told {each.listener}://{each.host}:{each.port}" for each in node.endpoints),
        f"  data in {', '.join(node.paths)}",
    ]
    if node.endpoints:
        address = f"{node.endpoints[0].host}:{node.endpoints[0].port}"
        lines += [
            f"  produce:  python -c \"from kafka import KafkaProducer as P; p = P(bootstrap_servers='{address}'); "
            "p.send('quickstart', b'hello').get(10)\"",
            f'  consume:  python -c "from kafka import KafkaConsumer as C; '
            f"[print(r.value) for r in C('quickstart', bootstrap_servers='{address}', auto_offset_reset='earliest')]\"",
        ]
    return "\n".join(lines)
