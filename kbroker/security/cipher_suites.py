"""Names of cipher suites: Kafka's settings have IANA's, as Java does; OpenSSL has its own up to TLS 1.2."""

from __future__ import annotations

import re

TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_NAME = re.compile(r"(?:TLS|SSL)_(?:(ECDHE|DHE)_(RSA|ECDSA|DSS)|RSA)_WITH_(.+)")
_CIPHER = re.compile(r"AES_(128|256)_(?:GCM_(SHA256|SHA384)|CBC_(SHA|SHA256|SHA384))")


def openssl_name(name: str) -> str | None:
    """OpenSSL's name of a suite, which for TLS 1.3 is the same; None if there is none."""
    if name in TLS_1_3:
        return name
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    head = f"{found[1]}-{found[2]}-" if found[1] else ""
    if found[3] == "CHACHA20_POLY1305_SHA256":
        return f"{head}CHACHA20-POLY1305" if head else None
    cipher = _CIPHER.fullmatch(found[3])
    if cipher is None:
        return None
    bits, gcm, cbc = cipher.groups()
    return f"{head}AES{bits}-GCM-{gcm}" if gcm else f"{head}AES{bits}-{cbc}"
