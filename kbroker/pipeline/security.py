"""How the wire client shows who it is: TLS and SASL, from the settings that Kafka's own clients have.

Called by `wire.py` alone, with the settings that Spark's connector takes too (`kbroker.security.client` reads them).
What is wrong is told as a job's errors are.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.pipeline.errors import PipelineError
from kbroker.runtime import client_security
from kbroker.security.client import ClientSecurity
from kbroker.security.client import client_security as read
from protocol.message import Message


def security_of(options: Mapping[str, str]) -> ClientSecurity:
    """From Kafka's client settings, without the prefix `kafka.`. Raises PipelineError for what makes no sense."""
    try:
        return read(options)
    except ValueError as error:
        raise PipelineError(str(error)) from None


def wrapped(security: ClientSecurity, plain: socket.socket, host: str) -> socket.socket:
    """The connection, inside TLS if that is wanted. Raises OSError; PipelineError for an unreadable file."""
    try:
        return client_security.wrapped(security, plain, host)
    except ValueError as error:
        raise PipelineError(str(error)) from None


def log_in(security: ClientSecurity, ask: Callable[[Message], Any], address: str) -> None:
    """Show who we are, where that is wanted. ask: sends a request, returns its answer. Raises PipelineError."""
    if security.login is None:
        return
    try:
        client_security.log_in(security.login, ask, address)
    except ValueError as error:
        raise PipelineError(str(error)) from None
