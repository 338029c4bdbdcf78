"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both ends, and credentials as Kafka keeps them.

No password is sent: each end shows that it knows what is derived from it. A credential is what the broker keeps of
one; as a setting of the user (`/config/users/NAME`) it is, in base64,

    salt=...,stored_key=...,server_key=...,iterations=4096

The extension `tokenauth=true` in the client's first message says that its user is the id of a delegation token, and its
password the token's secret. Source: ScramSaslServer, ScramMessages, ScramCredentialUtils of Apache Kafka 3.9.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from kbroker.security.login import Accepted, Challenge, LoginError, Reason, Verdict
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16_384
NONCE_BYTES = 24

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authorized>{_NAME}))?,"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<user>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>(?:,[A-Za-z]+={_VALUE})*))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE})(?:,[A-Za-z]+={_VALUE})*),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST = re.compile(
    rf"(?:m={_VALUE},)?r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}})(?:,[A-Za-z]+={_VALUE})*"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64}))(?:,[A-Za-z]+={_VALUE})*")


class Credential(NamedTuple):
    """What is kept of a password. expires_ms, owner: of one that is a delegation token's; None, empty: a user's own."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    expires_ms: int | None = None
    owner: str = ""

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"  # the keys are secrets


def make_credential(mechanism: str, password: bytes, salt: bytes, iterations: int) -> Credential:
    """Of a password; takes milliseconds."""
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Of what RFC 5802 calls SaltedPassword."""
    name = HASHES[mechanism]
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def write_credential(credential: Credential) -> str:
    """As a user's setting."""
    salt, stored, server = (_b64(each) for each in credential[:3])
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def read_credential(mechanism: str, text: str) -> Credential:
    """A user's setting. Raises: ValueError, without anything of it, if it makes no sense."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("allowed: salt=...,stored_key=...,server_key=...,iterations=...")
    try:
        salt, stored, server = (_unb64(parts[key]) for key in ("salt", "stored_key", "server_key"))
    except ValueError:
        raise ValueError("salt and keys are not base64") from None
    size = hashlib.new(HASHES[mechanism]).digest_size
    if not salt or len(stored) != size or len(server) != size:
        raise ValueError(f"the keys of {mechanism} have {size} bytes, and the salt some")
    iterations = parts["iterations"]
    if not re.fullmatch("[0-9]{1,9}", iterations) or int(iterations) < LEAST_ITERATIONS:
        raise ValueError(f"iterations: allowed: at least {LEAST_ITERATIONS}")
    return Credential(salt, stored, server, int(iterations))


class ScramServer:
    """The broker's end.

    find: the credential of a user, or of a delegation token (by its id, if the second argument is true); None if there
    is none. nonce: the broker's, printable and unlike any before.
    """

    __slots__ = ("_client_bare", "_credential", "_find", "_is_token", "_name", "_nonce", "_server_first", "_user")

    def __init__(self, mechanism: str, find: Callable[[str, bool], Credential | None], nonce: str) -> None:
        self._name = HASHES[mechanism]
        self._find = find
        self._nonce = nonce
        self._credential: Credential | None = None
        self._user = self._client_bare = self._server_first = ""
        self._is_token = False

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """The client's first or final message."""
        try:
            text = token.decode("ascii")
        except UnicodeDecodeError:
            raise LoginError(Reason.MALFORMED, "SCRAM: a message that is not ASCII") from None
        return self._first(text, wall_ms) if self._credential is None else self._final(text, self._credential, wall_ms)

    def _first(self, text: str, wall_ms: int) -> Challenge:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise LoginError(Reason.MALFORMED, "SCRAM: the first message of the client is none")
        user = self._user = found["user"].replace("=2C", ",").replace("=3D", "=")
        authorized = found["authorized"]
        if authorized is not None and authorized.replace("=2C", ",").replace("=3D", "=") != user:
            told = "Authentication failed: Client requested an authorization id that is different from username"
            raise LoginError(Reason.CREDENTIALS, f"user {user!r:.100} wants to be another", told)
        extensions = dict(each.partition("=")[::2] for each in found["extensions"].split(",") if each)
        self._is_token = extensions.get("tokenauth", "").lower() == "true"
        credential = self._find(user, self._is_token)
        if credential is None or _is_over(credential, wall_ms):
            what = "token" if self._is_token else "user"
            raise LoginError(Reason.CREDENTIALS, f"{what} {user!r:.100}: no valid credential for this mechanism")
        if credential.iterations < LEAST_ITERATIONS:
            raise LoginError(Reason.CREDENTIALS, f"user {user!r:.100}: fewer than {LEAST_ITERATIONS} iterations")
        self._credential = credential
        self._client_bare = found["bare"]
        self._nonce = found["nonce"] + self._nonce
        self._server_first = f"r={self._nonce},s={_b64(credential.salt)},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _final(self, text: str, credential: Credential, wall_ms: int) -> Accepted:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise LoginError(Reason.MALFORMED, "SCRAM: the final message of the client is none")
        if found["nonce"] != self._nonce:
            raise LoginError(Reason.MALFORMED, "SCRAM: another nonce in the final message of the client")
        said = f"{self._client_bare},{self._server_first},{found['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, said, self._name)
        proof = _unb64(found["proof"])
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        shown = hashlib.new(self._name, key).digest()
        if len(proof) != len(signature) or not hmac.compare_digest(shown, credential.stored_key):
            raise LoginError(Reason.CREDENTIALS, f"user {self._user!r:.100}: another password")
        if _is_over(credential, wall_ms):
            raise LoginError(Reason.CREDENTIALS, f"token {self._user!r:.100} has expired")
        token = b"v=" + base64.b64encode(hmac.digest(credential.server_key, said, self._name))
        user = credential.owner if self._is_token else self._user
        return Accepted(user, token, credential.expires_ms, self._is_token)


class ScramClient:
    """The client's end. nonce: its own, printable and unlike any before. extensions: such as {"tokenauth": "true"}.

    done: whether the broker has shown that it knows the credential.
    """

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, extensions: dict[str, str] | None = None
    ) -> None:
        self.done = False
        self._mechanism, self._name = mechanism, HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        told = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{told}"
        self._expected = b""

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def evaluate_challenge(self, token: bytes) -> bytes | None:
        """What the broker's message is answered with; None: it was the last. Raises: ValueError."""
        text = token.decode("ascii")
        if self._expected:
            self._check_last(text)
            return None
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise ValueError("SCRAM: the first message of the broker is none")
        iterations = int(found["iterations"])
        if not LEAST_ITERATIONS <= iterations <= 1 << 20:
            raise ValueError(f"SCRAM: {iterations} iterations; allowed: from {LEAST_ITERATIONS} to {1 << 20}")
        salt = _unb64(found["salt"])
        salted = hashlib.pbkdf2_hmac(self._name, self._password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._name)
        without_proof = f"c=biws,r={found['nonce']}"
        said = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._name, client_key).digest(), said, self._name)
        self._expected = hmac.digest(hmac.digest(salted, b"Server Key", self._name), said, self._name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={_b64(proof)}".encode()

    def _check_last(self, text: str) -> None:
        found = _SERVER_FINAL.fullmatch(text)
        if found is None or found["error"]:
            raise ValueError("SCRAM: the broker refuses")
        if not hmac.compare_digest(_unb64(found["signature"]), self._expected):
            raise ValueError("SCRAM: the broker does not know the credential")
        self.done = True


def printable(random: bytes) -> str:
    """A nonce of chance."""
    return base64.urlsafe_b64encode(random).decode().rstrip("=")


def _is_over(credential: Credential, wall_ms: int) -> bool:
    return credential.expires_ms is not None and credential.expires_ms <= wall_ms


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
