"""What a client needs of files and of the net to show who it is: TLS, tokens of OAUTHBEARER, and the login itself.

Called by the command line, the pipeline and brokers for tests, with what `kbroker.security.client` has read from
settings. Every fault is a ValueError of one line that names the setting, and never says a password or a token.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Generator
from typing import Any

from kbroker.runtime.platform import secret_file
from kbroker.security.client import OAUTHBEARER, PLAIN, SCRAM, ClientSecurity, Login, Store
from kbroker.security.scram import NONCE_BYTES, ScramClient, printable
from kbroker.security.stores import PEM, Passwords, StoreError, as_pem, read_key_store, read_trust_store, type_of
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.handshake import SaslAuthenticateRequest, SaslHandshakeRequest

TOKEN_S = 3600.0  # of a token that nothing is known about but that we have just got it; and of one not signed
FRESH = 0.8  # of a token's life, after which another is fetched
ANSWER_S = 10.0
ANSWER_BYTES = 1 << 20


def context_of(security: ClientSecurity) -> ssl.SSLContext:
    """For connections to brokers: TLS 1.2 or newer. Raises: ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.checks_host
    if not security.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    if security.authorities is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=trusted(security.authorities))
        except ssl.SSLError:
            raise ValueError(f"{security.authorities}: a certificate in it is damaged") from None
    if security.revoked is not None:
        _read(security.revoked)
        try:
            context.load_verify_locations(cafile=security.revoked.path)
        except ssl.SSLError:
            raise ValueError(f"{security.revoked}: no list of revoked certificates in PEM there") from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if security.certificate is not None:
        _show(context, security)
    return context


def trusted(store: Store) -> str:
    """The certificates of a store, in PEM. Raises: ValueError."""
    data = _read(store)
    try:
        found = read_trust_store(data, store.kind or type_of(data) or PEM, store.password or None)
    except StoreError as error:
        raise ValueError(f"{store}: {error.why}") from None
    return b"".join(as_pem("CERTIFICATE", each) for each in found).decode()


def shown(security: ClientSecurity) -> tuple[bytes, str]:
    """Key and certificates that a client shows, in PEM, and the key's password. Raises: ValueError."""
    store, key = security.certificate, security.key
    assert store is not None
    assert key is not None
    data = _read(store)
    passwords = Passwords(store.password or None, security.key_password or None)
    try:
        if key is not store:
            data = _read(key) + b"\n" + data
        entry = read_key_store(data, store.kind or type_of(data) or PEM, passwords)[0]
    except StoreError as error:
        where = error.setting if error.setting.endswith("password") else str(store)
        raise ValueError(f"{where}: {error.why}") from None
    return entry.pem, entry.password


def _show(context: ssl.SSLContext, security: ClientSecurity) -> None:
    pem, password = shown(security)
    try:
        with secret_file(pem) as path:
            context.load_cert_chain(path, password=password)  # given: OpenSSL would ask the terminal for one
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ValueError(
                f"{security.key}: the key does not fit the certificate of {security.certificate}"
            ) from None
        if b"ENCRYPTED" in pem:
            raise ValueError(f"{security.key}: ssl.key.password does not open the key") from None
        raise ValueError(f"{security.certificate}: no certificate and key that OpenSSL can use") from None


def _read(store: Store) -> bytes:
    if store.text:
        return store.text.encode()
    try:
        with open(store.path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"{store}: {error.strerror}") from None


def wrapped(security: ClientSecurity, plain: socket.socket, host: str) -> socket.socket:
    """The connection, inside TLS if that is wanted. Raises: OSError; ValueError, and then it is closed."""
    if not security.tls:
        return plain
    try:
        context = context_of(security)
    except ValueError:
        plain.close()
        raise
    return context.wrap_socket(plain, server_hostname=host)


def log_in(login: Login, ask: Callable[[Message], Any], address: str) -> None:
    """Show a broker who we are. ask: sends a request, returns its answer. Raises: ValueError."""
    said = _said(login)
    token = next(said)
    agreed = ask(SaslHandshakeRequest(mechanism=login.mechanism))
    if agreed.error_code:
        offered = ", ".join(agreed.mechanisms) or "none"
        raise ValueError(f"{address} does not take sasl.mechanism={login.mechanism}; it takes: {offered}")
    while True:
        answer = ask(SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code:
            reason = answer.error_message or ErrorCode.of(answer.error_code).message
            raise ValueError(f"{address} does not let {login.user or 'us'!r} in: {reason}")
        try:
            token = said.send(answer.auth_bytes)
        except StopIteration:
            return


def _said(login: Login) -> Generator[bytes, bytes, None]:
    """What is said to the broker, one message for each of its answers. Raises: ValueError."""
    if login.mechanism == PLAIN:
        yield f"\0{login.user}\0{login.password}".encode()
    elif login.mechanism == OAUTHBEARER:
        if (yield f"n,,\1auth=Bearer {Tokens(login).token()}\1\1".encode()):
            yield b"\1"  # the broker has said what is wrong, and says it again as an error
    elif login.mechanism in SCRAM:
        extensions = {"tokenauth": "true"} if login.is_token else None
        nonce = printable(secrets.token_bytes(NONCE_BYTES))
        client = ScramClient(login.mechanism, login.user, login.password, nonce, extensions)
        token: bytes | None = client.first()
        while token is not None:
            token = client.evaluate_challenge((yield token))
    else:
        raise ValueError(f"sasl.mechanism={login.mechanism}: not spoken here; allowed: {PLAIN}, {', '.join(SCRAM)}, "
                         f"{OAUTHBEARER}")  # fmt: skip


class Tokens:
    """Tokens of OAUTHBEARER, each kept while it is fresh. Satisfies what kafka-python and confluent-kafka ask for."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._token, self._ends_s, self._stale_s = "", 0.0, 0.0

    def __repr__(self) -> str:
        return f"Tokens({self._login!r})"

    def token(self) -> str:
        """A token. Raises: ValueError."""
        now_s = time.time()
        if now_s >= self._stale_s:
            self._token, self._ends_s = self._fresh(now_s)
            self._stale_s = now_s + FRESH * (self._ends_s - now_s)
        return self._token

    def extensions(self) -> dict[str, str]:
        """None (KIP-342)."""
        return {}

    def __call__(self, _: object = None) -> tuple[str, float]:
        """A token, and when it ends in seconds since 1970."""
        return self.token(), self._ends_s

    def _fresh(self, now_s: float) -> tuple[str, float]:
        login = self._login
        if not login.endpoint:
            claims = {"iat": now_s, "exp": now_s + TOKEN_S, **login.unsecured}
            return f"{_part({'alg': 'none'})}.{_part(claims)}.", now_s + TOKEN_S
        where = f"sasl.oauthbearer.token.endpoint.url={login.endpoint}"
        try:
            said = _asked(login)
        except (OSError, ValueError) as error:
            raise ValueError(f"{where}: {getattr(error, 'reason', None) or error}") from None
        token, life_s = said.strip(), TOKEN_S
        if login.endpoint.startswith("http"):
            try:
                answer = json.loads(said)
                token, life_s = str(answer["access_token"]), float(answer.get("expires_in", TOKEN_S))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{where}: the answer has no access_token") from None
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise ValueError(f"{where}: there is no token")
        return token, _end_of(token) or now_s + life_s


def _asked(login: Login) -> str:
    """What is at the endpoint. Raises: OSError; ValueError."""
    from urllib.parse import urlencode
    from urllib.request import Request, urlopen

    if login.endpoint.startswith("file:"):
        with urlopen(login.endpoint) as file:
            return str(file.read(ANSWER_BYTES).decode("ascii", "replace"))
    form = {"grant_type": "client_credentials", **({"scope": login.scope} if login.scope else {})}
    identity = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    request = Request(login.endpoint, urlencode(form).encode(), {"Authorization": f"Basic {identity}"})
    with urlopen(request, timeout=ANSWER_S) as answer:
        return str(answer.read(ANSWER_BYTES).decode("utf-8", "replace"))


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _end_of(token: str) -> float | None:
    """When a JWT ends, in seconds since 1970; None for what says nothing of it."""
    try:
        middle = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
