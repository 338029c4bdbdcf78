"""Key stores and trust stores as Kafka's settings name them: PEM, PKCS12 and JKS become PEM that OpenSSL reads.

`runtime/tls.py` reads the files and gives their bytes. As Java does, a store that is said to be JKS may be PKCS12, and
the other way round. A fault is a `StoreError` that says which setting is wrong; it never has a secret in it.

Source: DefaultSslEngineFactory of Apache Kafka 3.9, KIP-651. Unlike there, a private key in a PEM file may have any
form that OpenSSL reads, and all certificates of a PKCS12 trust store are trusted, marked or not, but for the chain of a
key that is in it, too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kbroker.security.certificates import read_certificate
from kbroker.security.der import parse
from kbroker.security.jks import MAGIC, JksKey, JksStore, WrongPasswordError, read_jks
from kbroker.usage import installed_by
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

PEM, JKS, PKCS12 = "PEM", "JKS", "PKCS12"
STORE_TYPES = (JKS, PKCS12, PEM)
JCEKS_MAGIC = b"\xce\xce\xce\xce"
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


class StoreError(ValueError):
    """A store cannot be used. setting: Kafka's name of what is wrong, without a listener's prefix."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(f"{setting}: {why}")
        self.setting = setting
        self.why = why


class KeyEntry(NamedTuple):
    """A private key with its certificates. pem: both; password: of the key in it; chain: in DER, its own first."""

    pem: bytes
    password: str
    chain: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"KeyEntry({len(self.chain)} certificates)"


class Passwords(NamedTuple):
    """store: of the file; key: of the key in it, the file's where there is none."""

    store: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return "Passwords([hidden])"


def type_of(data: bytes) -> str | None:
    """The type that a store's bytes show; None if it is none that is known."""
    if data.startswith(MAGIC):
        return JKS
    if data[:1] == b"\x30":
        return PKCS12
    return PEM if _BLOCK.search(data) else None


def read_key_store(data: bytes, kind: str, passwords: Passwords, place: str = "ssl.keystore") -> list[KeyEntry]:
    """The keys of a store, at least one. kind: as ssl.keystore.type says. Raises: StoreError."""
    kind = _checked_type(data, kind, place)
    if kind == PEM:
        return [_pem_entry(data, data, passwords.key, f"{place}.location")]
    if kind == JKS:
        store = _jks(data, passwords.store, place)
        entries = [_jks_entry(each, passwords) for each in store.keys]
    else:
        bag = _pkcs12(data, passwords.store, place)
        entries = [_pkcs12_entry(bag)] if bag.key is not None else []
    if not entries:
        raise StoreError(f"{place}.location", "there is no private key in it; allowed: a store with one")
    return entries


def read_pem_key(key: str, chain: str, password: str | None) -> list[KeyEntry]:
    """ssl.keystore.key and ssl.keystore.certificate.chain. Raises: StoreError."""
    text = key.encode()
    if not any(label.endswith(b"PRIVATE KEY") for label, _ in _blocks(text)):
        raise StoreError("ssl.keystore.key", "no private key in PEM (BEGIN PRIVATE KEY)")
    return [_pem_entry(text, chain.encode(), password, "ssl.keystore.certificate.chain")]


def read_trust_store(data: bytes, kind: str, password: str | None, place: str = "ssl.truststore") -> list[bytes]:
    """The certificates that are trusted, in DER. Raises: StoreError."""
    kind = _checked_type(data, kind, place)
    if kind == PEM:
        found = _certificates(data)
    elif kind == JKS:
        store = _jks(data, password, place)
        found = [*store.trusted, *(key.certificates[0] for key in store.keys if key.certificates)]
    else:
        found = _trusted(_pkcs12(data, password, place))
    if not found:
        raise StoreError(f"{place}.location", "there is no certificate in it; allowed: a store with those to trust")
    return found


def read_pem_certificates(text: str) -> list[bytes]:
    """ssl.truststore.certificates. Raises: StoreError."""
    found = _certificates(text.encode())
    if not found:
        raise StoreError("ssl.truststore.certificates", "no certificate in PEM (BEGIN CERTIFICATE)")
    return found


def _checked_type(data: bytes, kind: str, place: str) -> str:
    """What to read it as."""
    found = type_of(data)
    wanted = kind.upper()
    if found is None:
        sort = "a JCEKS store" if data.startswith(JCEKS_MAGIC) else "no store"
        raise StoreError(f"{place}.location", f"{sort}; allowed: a file of {', '.join(STORE_TYPES)}")
    if (found == PEM) != (wanted == PEM):
        raise StoreError(f"{place}.type", f"{kind}, but the file is {found}; allowed: {found}")
    return found


# -- PEM


def _blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(found[1], found[0]) for found in _BLOCK.finditer(data)]


def _certificates(data: bytes) -> list[bytes]:
    found = []
    for label, block in _blocks(data):
        if label.endswith(b"CERTIFICATE"):
            try:
                found.append(base64.b64decode(b"".join(block.splitlines()[1:-1])))
            except ValueError:
                continue
    return found


def _pem_entry(key: bytes, chain: bytes, password: str | None, setting: str) -> KeyEntry:
    keys = [block for label, block in _blocks(key) if label.endswith(b"PRIVATE KEY")]
    certificates = [block for label, block in _blocks(chain) if label.endswith(b"CERTIFICATE")]
    if not keys:
        raise StoreError(setting, "there is no private key in it; allowed: PEM with a key and its certificates")
    if not certificates:
        raise StoreError(setting, "there is no certificate in it; allowed: PEM with a key and its certificates")
    if b"ENCRYPTED" in keys[0] and not password:
        raise StoreError("ssl.key.password", "not set, and the private key has a password; allowed: that one")
    return KeyEntry(b"\n".join([keys[0], *certificates, b""]), password or "", tuple(_certificates(chain)))


def as_pem(label: str, data: bytes) -> bytes:
    """DER as a block of PEM."""
    text = base64.b64encode(data)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    name = label.encode()
    return b"\n".join([b"-----BEGIN " + name + b"-----", *lines, b"-----END " + name + b"-----", b""])


def _entry(key: bytes, chain: Sequence[bytes]) -> KeyEntry:
    """key: PKCS#8, in the clear."""
    blocks = [as_pem("PRIVATE KEY", key), *(as_pem("CERTIFICATE", each) for each in chain)]
    return KeyEntry(b"".join(blocks), "", tuple(chain))


# -- JKS


def _jks(data: bytes, password: str | None, place: str) -> JksStore:
    try:
        return read_jks(data, password)
    except WrongPasswordError:
        why = "does not fit, or the file is damaged; allowed: the password that the store was made with"
        raise StoreError(f"{place}.password", why) from None
    except ValueError as error:
        raise StoreError(f"{place}.location", f"the JKS file is damaged: {error}") from None


def _jks_entry(each: JksKey, passwords: Passwords) -> KeyEntry:
    password = passwords.store if passwords.key is None else passwords.key
    if password is None:
        raise StoreError("ssl.keystore.password", "not set; allowed: the password that the store was made with")
    try:
        return _entry(each.open(password), each.certificates)
    except WrongPasswordError:
        why = f"does not fit the key {each.name!r}; allowed: its password, or none if it is the store's"
        raise StoreError("ssl.key.password", why) from None
    except (ValueError, IndexError):
        raise StoreError("ssl.keystore.location", f"the key {each.name!r} is damaged") from None


# -- PKCS12


def _pkcs12(data: bytes, password: str | None, place: str) -> PKCS12KeyAndCertificates:
    if find_spec("cryptography") is None:
        raise StoreError(f"{place}.location", f"PKCS12 needs cryptography: {installed_by('security')}")
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12  # for this format alone

    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        if "password" in str(error).lower() or password is None:
            stated = "not set" if password is None else "does not fit, or the file is damaged"
            why = f"{stated}; allowed: the password that the store was made with"
            raise StoreError(f"{place}.password", why) from None
        raise StoreError(f"{place}.location", "the PKCS12 file is damaged") from None


def _pkcs12_entry(bag: PKCS12KeyAndCertificates) -> KeyEntry:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    assert bag.key is not None
    if bag.cert is None:
        raise StoreError("ssl.keystore.location", "the private key in it has no certificate")
    key = bag.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    chain = _chain(_der(bag.cert), [_der(each) for each in bag.additional_certs])
    return _entry(key, chain)


def _der(each: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    data: bytes = each.certificate.public_bytes(Encoding.DER)
    return data


def _trusted(bag: PKCS12KeyAndCertificates) -> list[bytes]:
    others = [_der(each) for each in bag.additional_certs]
    if bag.cert is None:
        return others
    own = _der(bag.cert)
    chain = _chain(own, others)
    return [own, *(each for each in others if each not in chain)]


def _chain(own: bytes, others: Sequence[bytes]) -> list[bytes]:
    """A certificate and those that vouch for it, one for the other, as far as they are there."""
    chain = [own]
    while True:
        issuer = _issuer(chain[-1])
        behind = [each for each in others if each not in chain and read_certificate(each).subject == issuer]
        if not behind:
            return chain
        chain.append(behind[0])


def _issuer(certificate: bytes) -> bytes:
    fields = parse(certificate)[0].children[0].children
    return fields[3 if fields[0].tag == 0xA0 else 2].whole
