"""A broker's console as `kbroker start` sees it: its port is taken first, its core watches, its process begins last.

Imported where `console.listener` is set, and nowhere else.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.config import ConfigError
from kbroker.console.beside import Beside, installed
from kbroker.console.looks import Looks
from kbroker.console.notes import Notes
from kbroker.core import Core
from kbroker.faults import scripted
from kbroker.properties import parse_properties
from kbroker.runtime.node import cannot_listen
from kbroker.runtime.server import bound_socket
from kbroker.usage import installed_by

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.config.listeners import Listener
    from kbroker.faults.script import Faults
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.node import Node

BACKLOG = 200


class BrokerConsole:
    """Made before the broker. address: as `console.listener` has it. port: that was taken."""

    def __init__(self, address: str, faults: Faults, *, remembers: bool) -> None:
        """faults: of a file, too; remembers: it was given. Raises: ConfigError, StartupError."""
        if not installed():
            raise ConfigError(
                [f"console.listener={address} wants Starlette, uvicorn and Jinja: {installed_by('console')}"]
            )
        self.host, _, port = address.rpartition(":")
        if not self.host or not (port.isascii() and port.isdigit()):
            raise ConfigError([f"console.listener={address}: allowed: host:port"])
        self._faults, self._remembers = faults, remembers
        self._notes: list[Notes] = []
        try:
            self._listening: socket.socket = bound_socket(self.host.strip("[]"), int(port), receive_buffer_bytes=-1)
            self._listening.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            key = "console.listener"
            raise cannot_listen(f"{key}={address}", error, key, self.host, int(port)) from None
        self.port: int = self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        """Where browsers find it."""
        return f"http://{self.host}:{self.port}/"

    def make_core(self) -> Callable[[Broker, int], Core]:
        """What makes the broker's core: one that is watched, and may be told to err."""

        def watched(broker: Broker, now_ms: int) -> Core:
            core, notes = Core(broker, now_ms), Notes(broker.clock)
            core.watch(notes)
            self._notes.append(notes)
            return core

        return scripted(self._faults, watched, remembers=self._remembers)

    def start_process(self, loop: Loop, node: Node) -> Beside:
        """The process, once the broker serves. Raises: OSError for settings that cannot be read."""
        config = node.config
        listener = _listener_for(node)
        settings: dict[str, str] = {}
        if config.console_client_config:
            with open(config.console_client_config, encoding="utf-8-sig") as file:
                settings = parse_properties(file.read())
        settings["security.protocol"] = listener.protocol
        host = listener.host.strip("[]")
        options = {
            "bootstrap": [("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, node.ports[listener.name])],
            "settings": settings,
            "host": self.host,
            "names": [each for each in config.console_names if each],
            "read_only": config.console_read_only,
            "registry": config.console_schema_registry_url or "",
        }
        return Beside(loop, Looks(node, self._notes[-1], self._faults), self._listening, options)

    def close(self) -> None:
        """The broker has not come up."""
        self._listening.close()


def _listener_for(node: Node) -> Listener:
    """The listener that the console comes in by: where there are rules of access, one at which users log in."""
    wanted = ("SASL_PLAINTEXT", "SASL_SSL", "SSL", "PLAINTEXT")
    order = wanted if node.config.authorizer_class_name else wanted[::-1]
    bound = [each for each in node.listeners.bound if each.name != node.listeners.control_plane]
    return min(bound, key=lambda each: order.index(each.protocol))
