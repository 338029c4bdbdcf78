"""The console on a socket, until it is told to stop: uvicorn runs the app, on asyncio and its own parser in Python."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence

import uvicorn

from kbroker.console.app import Console, make_app
from kbroker.console.cluster import ConsoleError
from kbroker.runtime.server import bound_socket
from kbroker.security.client import ClientSecurity, client_security, first_name

MOST_CONNECTIONS = 200
KEEP_ALIVE_S = 30
STOP_S = 2  # for requests that are under way
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. host: as it is written, IPv6 in brackets."""
    return host in LOOPBACK or host.startswith("127.")


def hosts_for(host: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names that browsers may ask for. names: others than the address's own; on an address that others reach,
    without any, they may be all: it is not known here what it is called there."""
    if is_loopback(host):
        return (host, *LOOPBACK, *names)
    return tuple(names) and (host, *LOOPBACK, *names)


def security_of(settings: Mapping[str, str], *, users_log_in: bool = False) -> ClientSecurity:
    """How to connect. users_log_in: the user of the settings is left out: each browser says its own.

    Raises: ValueError in one line.
    """
    names = {first_name(key): key for key in settings}
    protocol = settings[names["security.protocol"]].upper() if "security.protocol" in names else "PLAINTEXT"
    has_user = any(name.startswith("sasl.") and name != "sasl.mechanism" for name in names)
    if not protocol.startswith("SASL") or (has_user and not users_log_in):
        return client_security(settings)
    rest = {key: value for name, key in names.items() if not name.startswith("sasl.") for value in [settings[key]]}
    rest[names["security.protocol"]] = "SSL" if protocol.endswith("SSL") else "PLAINTEXT"
    return client_security(rest)._replace(protocol=protocol)


def listening(host: str, port: int) -> socket.socket:
    """A socket for browsers. Raises: ConsoleError."""
    try:
        sock = bound_socket(host.strip("[]"), port, receive_buffer_bytes=-1)
        sock.listen(MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else error
        raise ConsoleError(f"cannot listen on {host}:{port}: {reason}") from None
    return sock


def serve(console: Console, sock: socket.socket, begun: Callable[[uvicorn.Server], None] = lambda server: None) -> None:
    """Serve browsers until SIGINT or SIGTERM, or until `should_exit` of the server is set. begun: is handed it."""
    config = uvicorn.Config(
        make_app(console),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = uvicorn.Server(config)
    begun(server)
    try:
        server.run(sockets=[sock])
    finally:
        console.close()
