"""Java's own key store, JKS: keys with their certificates, and certificates that are trusted.

    0   4  magic FEEDFEED          an entry of a key (1):          of a trusted certificate (2):
    4   4  version, 1 or 2         4  1                            4  2
    8   4  count of entries        2+ name, modified UTF-8         2+ name
    12  -  entries                 8  time of its making           8  time of its making
    -  20  SHA-1 of password,      4+ the key, enciphered          certificate
           a salt, and all above   4  count of certificates
                                   -  certificates

    a certificate: (version 2 only: 2+ its type), 4+ its bytes in DER

A key is enciphered by Sun's own way: the salt of 20 bytes begins a chain of SHA-1 of the password and the link before,
whose links are what the key is XORed with; SHA-1 of password and key stands behind. The password is UTF-16.
"""

from __future__ import annotations

import hashlib
import hmac

from kbroker.security.der import parse
from protocol.namedtuple import NamedTuple

MAGIC = b"\xfe\xed\xfe\xed"
KEY, TRUSTED = 1, 2
DIGEST_BYTES = 20
SALT = b"Mighty Aphrodite"  # of the sum over the whole file


class WrongPasswordError(ValueError):
    """The password does not fit."""


class JksKey(NamedTuple):
    """One key, still enciphered, and its certificates in DER, its own first."""

    name: str
    enciphered: bytes
    certificates: tuple[bytes, ...]

    def open(self, password: str) -> bytes:
        """The key as PKCS#8. Raises: WrongPasswordError, ValueError."""
        (outer,) = parse(self.enciphered)
        data = outer.children[1].content
        salt, body, check = data[:DIGEST_BYTES], data[DIGEST_BYTES:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        secret = password.encode("utf-16-be")
        stream, link = bytearray(), salt
        while len(stream) < len(body):
            link = hashlib.sha1(secret + link).digest()
            stream += link
        key = bytes(one ^ other for one, other in zip(body, stream, strict=False))
        if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
            raise WrongPasswordError
        return key


class JksStore(NamedTuple):
    """What is in a file. trusted: certificates in DER."""

    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise ValueError("it ends early")
        self._at += size
        return taken

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "replace")

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()
        return self.take(self.number())


def read_jks(data: bytes, password: str | None) -> JksStore:
    """A store. password: None leaves it unchecked. Raises: WrongPasswordError; ValueError if it is damaged."""
    reader = _Reader(data[:-DIGEST_BYTES])
    if reader.take(4) != MAGIC or (version := reader.number()) not in (1, 2):
        raise ValueError("no JKS of version 1 or 2")
    if password is not None:
        expected = hashlib.sha1(password.encode("utf-16-be") + SALT + data[:-DIGEST_BYTES]).digest()
        if not hmac.compare_digest(expected, data[-DIGEST_BYTES:]):
            raise WrongPasswordError
    keys, trusted = [], []
    for _ in range(reader.number()):
        kind, name = reader.number(), reader.text()
        reader.take(8)
        if kind == KEY:
            enciphered = reader.take(reader.number())
            chain = [reader.certificate(version) for _ in range(reader.number())]
            keys.append(JksKey(name, enciphered, tuple(chain)))
        elif kind == TRUSTED:
            trusted.append(reader.certificate(version))
        else:
            raise ValueError(f"an entry of kind {kind}")
    return JksStore(tuple(keys), tuple(trusted))
