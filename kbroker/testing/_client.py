"""A test's own questions to its brokers: one blocking connection for each broker asked, gone with the answer.

They go over the wire as those of any client, under a name that faults and history pass by; a secured broker is asked as
its admin.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from kbroker.faults.core import OWN_CLIENT
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.runtime.client_security import log_in, wrapped
from kbroker.security.client import ClientSecurity
from kbroker.usage import UsageError
from protocol.message import Message

ANSWER_S = 15.0
NEWEST = {17: 1, 36: 2}  # SaslHandshake, SaslAuthenticate
PLAINTEXT = ClientSecurity()


class Connection(BlockingConnection):
    """To one broker."""

    def __init__(self, host: str, port: int, security: ClientSecurity = PLAINTEXT) -> None:
        """Raises: UsageError if none listens there, or it does not let us in."""
        self._where = f"{host}:{port}"
        logs_in = security.login is not None
        try:
            sock = wrapped(security, connect(host, port, ANSWER_S), host)
            super().__init__(sock, OWN_CLIENT, answer_s=ANSWER_S, negotiates=logs_in, authenticates=logs_in)
            if security.login is not None:
                self.negotiate()
                log_in(security.login, lambda request: self.ask(request, NEWEST[request.api or 0]), self._where)
                self.protocol.authenticated()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise UsageError(f"no broker answers at {self._where} ({why}): is it stopped? Call start()") from None
        except ValueError as error:
            raise UsageError(str(error)) from None

    def ask(self, request: Message, version: int) -> Any:
        """The response. Raises: UsageError if there is none."""
        try:
            return super().ask(request, version)
        except TimeoutError:
            raise UsageError(f"the broker at {self._where} does not answer: is it paused? Call resume()") from None
        except OSError:
            raise UsageError(f"the broker at {self._where} hung up: was it stopped meanwhile?") from None


class Connections:
    """To all brokers that the first one knows; in a `with` block."""

    def __init__(self, bootstrap: str, security: ClientSecurity = PLAINTEXT) -> None:
        """bootstrap: `host:port`, or several with commas: the first that listens is asked."""
        self._security = security
        self._addresses = bootstrap.split(",")
        self._open: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open.values():
            connection.close()

    def to(self, address: str) -> Connection:
        """The connection to one address."""
        if address not in self._open:
            host, _, port = address.rpartition(":")
            self._open[address] = Connection(host, int(port), self._security)
        return self._open[address]

    def any(self) -> Connection:
        """A connection to whichever broker answers. Raises: UsageError if none does."""
        for at, address in enumerate(self._addresses):
            try:
                return self.to(address)
            except UsageError:
                if at == len(self._addresses) - 1:
                    raise
        raise AssertionError(self._addresses)
