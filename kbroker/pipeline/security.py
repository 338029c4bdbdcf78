"""How the wire client shows who it is: TLS and SASL/PLAIN, from the settings that Kafka's own clients have.

Called by `wire.py` alone, with the settings that Spark's connector takes too: security.protocol, sasl.mechanism,
sasl.jaas.config, ssl.truststore.location (PEM), ssl.endpoint.identification.algorithm. Other mechanisms are refused
before anything is sent.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Self

from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.jaas import unescaped
from kbroker.pipeline.errors import PipelineError
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.handshake import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.namedtuple import NamedTuple

MECHANISM = "PLAIN"
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""", re.DOTALL)
"""An option of a login as Java reads it."""


class Security(NamedTuple):
    """How to connect. ca_file: PEM of who signs brokers' certificates, None: the system's. login: user and password."""

    tls: bool = False
    ca_file: str | None = None
    checks_host: bool = True
    login: tuple[str, str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From Kafka's client settings, without the prefix `kafka.`. Raises PipelineError for what is not spoken."""
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in SECURITY_PROTOCOLS:
            raise PipelineError(f"security.protocol={protocol}: it is one of {', '.join(SECURITY_PROTOCOLS)}")
        tls = protocol.endswith("SSL")
        store = options.get("ssl.truststore.location") if tls else None
        if store and options.get("ssl.truststore.type", "PEM").upper() != "PEM":
            raise PipelineError(f"ssl.truststore.location={store}: jobs read PEM only (ssl.truststore.type=PEM)")
        checks_host = options.get("ssl.endpoint.identification.algorithm", "https") != ""
        return cls(tls, store, checks_host, _login(options) if protocol.startswith("SASL") else None)

    def wrapped(self, plain: socket.socket, host: str) -> socket.socket:
        """The connection, inside TLS if that is wanted. Raises OSError; PipelineError for an unreadable file."""
        if not self.tls:
            return plain
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            plain.close()
            raise PipelineError(
                f"ssl.truststore.location={self.ca_file}: no certificates in PEM there ({error.strerror or error})"
            ) from error
        context.check_hostname = self.checks_host
        return context.wrap_socket(plain, server_hostname=host)

    def log_in(self, ask: Callable[[Message], Any], address: str) -> None:
        """Authenticate with `login`. ask: sends a request, returns its answer. Raises PipelineError."""
        assert self.login is not None
        user, password = self.login
        agreed = ask(SaslHandshakeRequest(mechanism=MECHANISM))
        if agreed.error_code:
            offered = ", ".join(agreed.mechanisms) or "none"
            raise PipelineError(f"{address} does not take sasl.mechanism={MECHANISM}; it takes: {offered}")
        token = f"\0{user}\0{password}".encode()
        answer = ask(SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code:
            reason = answer.error_message or ErrorCode.of(answer.error_code).message
            raise PipelineError(f"{address} does not let {user!r} in: {reason}")


def _login(options: Mapping[str, str]) -> tuple[str, str]:
    """User and password from sasl.jaas.config. Raises PipelineError."""
    mechanism = options.get("sasl.mechanism", "GSSAPI").upper()  # as Kafka's clients have it
    if mechanism != MECHANISM:
        raise PipelineError(
            f"sasl.mechanism={mechanism}: jobs log in by {MECHANISM} only (--option sasl.mechanism=PLAIN)"
        )
    jaas = options.get("sasl.jaas.config", "")
    found = {name: unescaped(double or single) for name, double, single in _OPTION.findall(jaas)}
    if "username" not in found or "password" not in found:
        raise PipelineError(
            "sasl.jaas.config has no username and password: write "
            '\'org.apache.kafka.common.security.plain.PlainLoginModule required username="U" password="P";\''
        )
    return found["username"], found["password"]
