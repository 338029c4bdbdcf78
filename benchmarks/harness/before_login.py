"""Attacks for `scripts/bench fair` by clients that have not shown who they are: on listeners that want them to.

The clients that behave are on the listener of PLAINTEXT, of the same broker, as everywhere in `attacks.py`. Each row is
the protocol of the listener that it attacks, and a function of its port.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.harness.attacks import ELSEWHERE, hold
from benchmarks.harness.wire import frame
from compat_tests.apache import free_port
from kbroker.runtime.secure import secure
from protocol.messages.handshake import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.metadata import MetadataRequest
from tests.frames import take

CROWD = 5_000
MECHANISM = "SCRAM-SHA-512"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


def listening(folder: Path, port: int) -> tuple[dict[str, str], dict[str, int]]:
    """Settings of a broker that listens by all protocols, by PLAINTEXT at `port`, and the ports of the others."""
    ports = {each: free_port() for each in PROTOCOLS}
    made = secure(str(folder / "secure"), protocol="SASL_SSL", listeners="SASL_SSL://127.0.0.1:0").settings
    settings = {key: value for key, value in made.items() if key.startswith(("ssl.", "sasl.enabled"))}
    settings["listeners"] = ",".join(f"{name}://127.0.0.1:{at}" for name, at in {"PLAINTEXT": port, **ports}.items())
    for key, value in made.items():
        if key.startswith("listener.name.sasl_ssl."):
            settings[key] = settings[key.replace("sasl_ssl", "sasl_plaintext")] = value
    return settings, ports


# ---- connections that wait in the middle of something


def _half_hello() -> Iterator[bytes]:
    """The beginning of a TLS handshake."""
    hello, _ = _hello()
    yield hello[:100]


def _hello() -> tuple[bytes, ssl.SSLObject]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(inward, outward)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outward.read(), client


def _whole_hello() -> Iterator[bytes]:
    """A handshake whose second half never comes: the broker has answered, and has signed for it."""
    yield _hello()[0]


def _half_login() -> Iterator[bytes]:
    """A login agreed upon, and the half of its first token."""
    yield frame(SaslHandshakeRequest(mechanism=MECHANISM), 1)
    token = _first_token()
    yield token[: len(token) // 2]


def _first_token() -> bytes:
    return frame(SaslAuthenticateRequest(auth_bytes=f"n,,n=admin,r={os.urandom(12).hex()}".encode()), 2)


def _half_token() -> Iterator[bytes]:
    """A token of half a megabyte, but for its last byte."""
    yield frame(SaslHandshakeRequest(mechanism=MECHANISM), 1)
    token = frame(SaslAuthenticateRequest(auth_bytes=bytes(500_000)), 2)
    yield token[:-1]


def _too_large() -> Iterator[bytes]:
    """A frame that says it is of 90 MB, and some of it."""
    yield struct.pack(">i", 90_000_000) + bytes(400_000)


# ---- connections that never cease


def _begin(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), source_address=(ELSEWHERE, 0))
    client.settimeout(10)
    return client


def handshakes(port: int) -> None:
    """A handshake of TLS, and then the next."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with suppress(OSError), _begin(port) as plain:
            context.wrap_socket(plain).close()


def wrong_passwords(port: int) -> None:
    """A login of a user that there is not, and then the next; twenty at a time, for each is answered late."""
    while True:
        clients: list[socket.socket] = []
        with suppress(OSError):
            for _ in range(20):
                clients.append(_begin(port))
                clients[-1].sendall(frame(SaslHandshakeRequest(mechanism=MECHANISM), 1) + _first_token())
            for client in clients:
                take(client)
                take(client)
        for client in clients:
            client.close()


def other_requests(port: int) -> None:
    """What is not allowed before a login, behind what is."""
    data = frame(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    data += frame(MetadataRequest(topics=None), 9) * 50
    while True:
        with suppress(OSError), _begin(port) as client:
            client.sendall(data)
            while client.recv(1 << 16):
                pass


def _held(parts: Callable[[], Iterator[bytes]], count: int = CROWD) -> Callable[[int], None]:
    return lambda port: hold(port, count, parts, ELSEWHERE)


ROWS: dict[str, tuple[str, Callable[[int], None]]] = {
    "half-hellos": ("SSL", _held(_half_hello)),
    "half-handshakes": ("SASL_SSL", _held(_whole_hello)),
    "half-logins": ("SASL_PLAINTEXT", _held(_half_login)),
    "half-tokens": ("SASL_PLAINTEXT", _held(_half_token, 200)),
    "too-large-before-login": ("SASL_PLAINTEXT", _held(_too_large, 200)),
    "handshakes": ("SSL", handshakes),
    "wrong-passwords": ("SASL_PLAINTEXT", wrong_passwords),
    "requests-before-login": ("SASL_PLAINTEXT", other_requests),
}
"""By name: which listener, and what is done to it."""
