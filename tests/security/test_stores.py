"""Key stores and trust stores of all three formats: read whole, and refused by one line that names the setting."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from kbroker.security.stores import (
    KeyEntry,
    Passwords,
    StoreError,
    read_key_store,
    read_pem_certificates,
    read_pem_key,
    read_trust_store,
    type_of,
)
from tests.certificates import Authority, Made
from tests.security.jks_writer import write_jks

PASSWORD, OTHER = "changeit", "sesame-öffne"
needs_keytool = pytest.mark.skipif(shutil.which("keytool") is None, reason="no keytool of a JDK on this machine")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Made:
    return authority.make("CN=broker")


def pkcs8(made: Made) -> bytes:
    return made.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def jks(made: Made, authority: Authority, key_password: str | None = None) -> bytes:
    return write_jks(PASSWORD, [(pkcs8(made), [made.der, authority.made.der])], key_password=key_password)


def fits(entry: KeyEntry, folder: Path) -> None:
    """OpenSSL takes it."""
    (folder / "entry.pem").write_bytes(entry.pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "entry.pem", password=entry.password)


STORES: dict[str, Callable[[Made, Authority], bytes]] = {
    "PEM": lambda own, authority: (own.key_pem() + own.certificate_pem + authority.made.certificate_pem).encode(),
    "PKCS12": lambda own, authority: own.pkcs12(PASSWORD),
    "JKS": jks,
}


@pytest.mark.parametrize("kind", STORES)
def test_a_key_is_read_with_its_chain(kind: str, own: Made, authority: Authority, tmp_path: Path) -> None:
    data = STORES[kind](own, authority)
    assert type_of(data) == kind
    (entry,) = read_key_store(data, kind, Passwords(None if kind == "PEM" else PASSWORD))
    assert entry.chain == (own.der, authority.made.der)
    fits(entry, tmp_path)
    assert "PRIVATE" not in repr(entry)
    assert PASSWORD not in repr(Passwords(PASSWORD))


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_either_of_javas_formats_is_read_under_the_others_name(kind: str, own: Made, authority: Authority) -> None:
    """As by Java, whose default type is JKS and whose keytool makes PKCS12."""
    other = "JKS" if kind == "PKCS12" else "PKCS12"
    assert read_key_store(STORES[other](own, authority), kind, Passwords(PASSWORD))


def test_a_key_with_a_password_of_its_own(own: Made, authority: Authority, tmp_path: Path) -> None:
    (entry,) = read_key_store(jks(own, authority, OTHER), "JKS", Passwords(PASSWORD, OTHER))
    fits(entry, tmp_path)
    pem = own.key_pem(OTHER) + own.certificate_pem
    (entry,) = read_key_store(pem.encode(), "PEM", Passwords(None, OTHER))
    fits(entry, tmp_path)


def test_inline_pem(own: Made, authority: Authority, tmp_path: Path) -> None:
    (entry,) = read_pem_key(own.key_pem(), own.certificate_pem, None)
    fits(entry, tmp_path)
    assert read_pem_certificates(authority.made.certificate_pem) == [authority.made.der]


def test_trust_stores(own: Made, authority: Authority) -> None:
    ca = authority.made
    assert read_trust_store(ca.certificate_pem.encode(), "PEM", None) == [ca.der]
    assert read_trust_store(write_jks(PASSWORD, trusted=[ca.der]), "JKS", PASSWORD) == [ca.der]
    assert read_trust_store(write_jks(PASSWORD, trusted=[ca.der]), "JKS", None) == [ca.der]
    bag = pkcs12.serialize_key_and_certificates(None, None, None, [ca.certificate], NoEncryption())
    assert read_trust_store(bag, "PKCS12", None) == [ca.der]


def test_the_chain_of_a_key_is_not_trusted_for_it_lies_in_a_trust_store(own: Made, authority: Authority) -> None:
    """Else each client that a public authority vouches for would be let in."""
    assert read_trust_store(own.pkcs12(PASSWORD), "PKCS12", PASSWORD) == [own.der]
    assert read_trust_store(jks(own, authority), "JKS", PASSWORD) == [own.der]


@pytest.mark.parametrize(
    ("kind", "make", "passwords", "setting", "why"),
    [
        ("JKS", lambda own, ca: b"nothing", (PASSWORD,), "ssl.keystore.location", "no store; allowed: a file of JKS"),
        ("JKS", lambda own, ca: b"", (PASSWORD,), "ssl.keystore.location", "no store"),
        ("JKS", lambda own, ca: b"\xce\xce\xce\xce", (PASSWORD,), "ssl.keystore.location", "a JCEKS store"),
        ("JKS", STORES["PEM"], (PASSWORD,), "ssl.keystore.type", "JKS, but the file is PEM; allowed: PEM"),
        ("PEM", STORES["PKCS12"], (), "ssl.keystore.type", "PEM, but the file is PKCS12"),
        ("JKS", jks, ("wrong",), "ssl.keystore.password", "does not fit"),
        ("JKS", jks, (), "ssl.keystore.password", "not set"),
        ("JKS", jks, (PASSWORD, "wrong"), "ssl.key.password", "does not fit the key 'own'"),
        ("PKCS12", STORES["PKCS12"], ("wrong",), "ssl.keystore.password", "does not fit"),
        ("PKCS12", STORES["PKCS12"], (), "ssl.keystore.password", "not set"),
        (
            "JKS",
            lambda own, ca: write_jks(PASSWORD, trusted=[own.der]),
            (PASSWORD,),
            "ssl.keystore.location",
            "no priv",
        ),
        ("PEM", lambda own, ca: own.key_pem().encode(), (), "ssl.keystore.location", "no certificate in it"),
        ("PEM", lambda own, ca: own.certificate_pem.encode(), (), "ssl.keystore.location", "no private key"),
        (
            "PEM",
            lambda own, ca: (own.key_pem(OTHER) + own.certificate_pem).encode(),
            (),
            "ssl.key.password",
            "not set, and the private key has a password",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_setting(
    kind: str,
    make: Callable[[Made, Authority], bytes],
    passwords: tuple[str, ...],
    setting: str,
    why: str,
    own: Made,
    authority: Authority,
) -> None:
    with pytest.raises(StoreError) as caught:
        read_key_store(make(own, authority), kind, Passwords(*passwords))
    assert (caught.value.setting, why in caught.value.why) == (setting, True), caught.value
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_no_part_of_a_store_is_taken_for_all_of_it(kind: str, own: Made, authority: Authority) -> None:
    data = STORES[kind](own, authority)
    for size in range(0, len(data), 7):
        with pytest.raises(StoreError):
            read_key_store(data[:size], kind, Passwords(PASSWORD))
    for at in range(4, len(data), 101):
        changed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        with pytest.raises(StoreError):
            read_key_store(changed, kind, Passwords(PASSWORD))


@needs_keytool
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_store_of_keytools(kind: str, tmp_path: Path, authority: Authority) -> None:
    store, trust = tmp_path / "store", tmp_path / "trust"
    words = ["-storetype", kind, "-storepass", PASSWORD, "-noprompt"]

    def keytool(*arguments: object) -> None:
        subprocess.run(["keytool", *map(str, arguments), *words], check=True, capture_output=True)

    keytool("-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=b", "-keystore", store)
    keytool("-importcert", "-alias", "ca", "-file", authority.trust, "-keystore", trust)
    (entry,) = read_key_store(store.read_bytes(), kind, Passwords(PASSWORD))
    fits(entry, tmp_path)
    assert read_trust_store(trust.read_bytes(), kind, PASSWORD) == [authority.made.der]
