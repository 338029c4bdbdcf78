"""Writes a JKS store, for tests of its reader."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence

OID_OF_SUN = bytes.fromhex("060a2b060104012a02110101")  # how keys are enciphered


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes([size]) if size < 128 else b"\x82" + struct.pack(">H", size)
    return bytes([tag]) + head + content


def enciphered(key: bytes, password: str) -> bytes:
    secret, salt, stream = password.encode("utf-16-be"), os.urandom(20), b""
    link = salt
    while len(stream) < len(key):
        link = hashlib.sha1(secret + link).digest()
        stream += link
    body = bytes(one ^ other for one, other in zip(key, stream, strict=False))
    data = salt + body + hashlib.sha1(secret + key).digest()
    return der(0x30, der(0x30, OID_OF_SUN + b"\x05\x00") + der(0x04, data))


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def write_jks(
    password: str,
    keys: Sequence[tuple[bytes, Sequence[bytes]]] = (),
    trusted: Sequence[bytes] = (),
    key_password: str | None = None,
) -> bytes:
    """keys: PKCS#8 and certificates."""
    parts = [b"\xfe\xed\xfe\xed", struct.pack(">II", 2, len(keys) + len(trusted))]
    for key, chain in keys:
        parts += [struct.pack(">I", 1), text("own"), bytes(8), sized(enciphered(key, key_password or password))]
        parts += [struct.pack(">I", len(chain)), *(text("X.509") + sized(each) for each in chain)]
    for each in trusted:
        parts += [struct.pack(">I", 2), text("ca"), bytes(8), text("X.509"), sized(each)]
    data = b"".join(parts)
    return data + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + data).digest()
