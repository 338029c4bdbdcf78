"""Passwords that are set at run time, as Apache's brokers keep them in the metadata store: enciphered (KIP-226).

    keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,iterations:4096,
    salt:...,initializationVector:...,encryptedPassword:...,passwordLength:5

In any order, bytes in base64. The key is made of `password.encoder.secret` by PBKDF2; the cipher is AES. With GCM there
is `authenticationTagLength`, too, in bits. The length is that of the password in Java, in units of UTF-16: with it a
wrong secret is found out where the cipher does not tell. Each value says by which of these it was made, so that
settings may change; only the secret has to be known.

`metadata/configs.py` asks. A fault never has the password, or the secret, in it.

Source: EncryptingPasswordEncoder of Apache Kafka 3.9, by behaviour. Unlike there, the modes CFB and OFB and the cipher
DES are not there, and how a value was enciphered need not be how this broker would.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from kbroker.config.broker import PASSWORD_CIPHERS, PASSWORD_KEY_BITS, PASSWORD_KEY_FACTORIES
from kbroker.config.limits import PASSWORD_ITERATIONS
from kbroker.usage import installed_by
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cryptography.hazmat.primitives.ciphers import Cipher

CBC, GCM = PASSWORD_CIPHERS
KEY_FACTORY = "PBKDF2WithHmacSHA512"
SALT_BYTES, BLOCK_BYTES, NONCE_BYTES, TAG_BYTES = 256, 16, 12, 16


class EncoderError(ValueError):
    """A password cannot be enciphered, or deciphered."""


class PasswordEncoder(NamedTuple):
    """How passwords are enciphered; what is deciphered says itself how it was."""

    secret: str
    key_factory: str = KEY_FACTORY
    cipher: str = CBC
    key_bits: int = 128
    iterations: int = 4096

    def __repr__(self) -> str:
        return f"PasswordEncoder([hidden], {self.cipher})"

    def encode(self, password: str, token: Callable[[int], bytes]) -> str:
        """What is kept of a password. token: random bytes, so many. Raises: EncoderError."""
        salt = token(SALT_BYTES)
        key = self._key(self.key_factory, salt, self.iterations, self.key_bits)
        start = token(NONCE_BYTES if self.cipher == GCM else BLOCK_BYTES)
        text = password.encode()
        if self.cipher == CBC:
            fill = BLOCK_BYTES - len(text) % BLOCK_BYTES
            text += bytes((fill,)) * fill
        encryptor = _cipher(key, self.cipher, start).encryptor()
        enciphered = encryptor.update(text) + encryptor.finalize()
        values = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "keyLength": self.key_bits,
            "salt": _base64(salt),
            "iterations": self.iterations,
            "passwordLength": _java_length(password),
            "initializationVector": _base64(start),
        }
        if self.cipher == GCM:
            enciphered += encryptor.tag
            values["authenticationTagLength"] = 8 * TAG_BYTES
        values["encryptedPassword"] = _base64(enciphered)
        return ",".join(f"{name}:{value}" for name, value in values.items())

    def decode(self, text: str) -> str:
        """The password that is kept as this. Raises: EncoderError, also where it was enciphered by another secret."""
        try:
            values = _values(text)
            cipher = values["cipherAlgorithm"]
            if cipher not in PASSWORD_CIPHERS:
                raise EncoderError(f"cipherAlgorithm:{cipher:.40}; allowed: {', '.join(PASSWORD_CIPHERS)}")
            iterations, bits = int(values["iterations"]), int(values["keyLength"])
            key = self._key(values["keyFactoryAlgorithm"], _bytes(values["salt"]), iterations, bits)
            start = _bytes(values["initializationVector"])
            password = _deciphered(_bytes(values["encryptedPassword"]), key, cipher, start, values)
            length = int(values["passwordLength"])
        except EncoderError:
            raise
        except KeyError as error:
            raise EncoderError(f"{error.args[0]} is missing") from None
        except ValueError:
            raise EncoderError("a value in it makes no sense, or another password.encoder.secret made it") from None
        if _java_length(password) != length:
            raise EncoderError("another password.encoder.secret made it")
        return password

    def _key(self, factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
        if factory not in PASSWORD_KEY_FACTORIES:
            raise EncoderError(f"keyFactoryAlgorithm:{factory:.40}; allowed: {', '.join(PASSWORD_KEY_FACTORIES)}")
        if bits not in PASSWORD_KEY_BITS:
            raise EncoderError(f"keyLength:{bits}; allowed: {', '.join(map(str, PASSWORD_KEY_BITS))}")
        if not 1 <= iterations <= PASSWORD_ITERATIONS:
            raise EncoderError(f"iterations:{iterations}; allowed: 1 to {PASSWORD_ITERATIONS}")
        return hashlib.pbkdf2_hmac(PASSWORD_KEY_FACTORIES[factory], self.secret.encode(), salt, iterations, bits // 8)


def _values(text: str) -> Mapping[str, str]:
    values = {}
    for part in text.split(","):
        name, colon, value = part.strip().rpartition(":")
        if colon:
            values[name] = value
    return values


def _deciphered(data: bytes, key: bytes, cipher: str, start: bytes, values: Mapping[str, str]) -> str:
    """Raises: ValueError."""
    tag = b""
    if cipher == GCM:
        size = int(values["authenticationTagLength"]) // 8
        if not (12 <= size <= TAG_BYTES and size <= len(data)):
            raise ValueError
        data, tag = data[:-size], data[-size:]
    decryptor = _cipher(key, cipher, start, tag).decryptor()
    try:
        text = decryptor.update(data) + decryptor.finalize()
    except Exception:  # of cryptography's own kind: the tag does not fit
        raise ValueError from None
    if cipher == CBC:
        fill = text[-1] if text else 0
        if not 1 <= fill <= BLOCK_BYTES or text[-fill:] != bytes((fill,)) * fill:
            raise ValueError
        text = text[:-fill]
    return text.decode()


def _cipher(key: bytes, name: str, start: bytes, tag: bytes = b"") -> Cipher[Any]:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, modes
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
    except ImportError:
        raise EncoderError(f"cryptography is not installed: {installed_by('security')}") from None
    if name == GCM:
        return Cipher(AES(key), modes.GCM(start, tag or None))
    return Cipher(AES(key), modes.CBC(start))


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
