"""Certificates for tests, made while they run: an authority, keys that it vouches for, and the stores they come in."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

DAY = timedelta(days=1)
SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Made:
    """A key and its certificate. issuer: who vouches for it; None for itself."""

    def __init__(
        self,
        subject: x509.Name,
        issuer: Made | None = None,
        *,
        hosts: tuple[str, ...] = (),
        days: float = 90,
        since: float = 1,
    ) -> None:
        now = datetime.now(UTC)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.issuer = issuer
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - since * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            # Python 3.13 and later ask for these (VERIFY_X509_STRICT)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer or self).key.public_key()), critical=False
            )
        )
        if issuer is None:
            builder = builder.add_extension(SIGNS, critical=True)
        if hosts:
            names = [_other_name(each) for each in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self.certificate = builder.sign((issuer or self).key, hashes.SHA256())

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, password: str) -> bytes:
        others = [self.issuer.certificate] if self.issuer else None
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"own", self.key, self.certificate, others, encryption)


def _other_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def name(text: str) -> x509.Name:
    """CN=..., as RFC 4514 writes it."""
    return x509.Name.from_rfc4514_string(text)


class Authority:
    """Vouches for others, in a folder for their files."""

    def __init__(self, folder: Path, subject: str = "CN=authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.made = Made(name(subject))
        self.trust = folder / "authority.pem"
        self.trust.write_text(self.made.certificate_pem)

    def make(self, subject: str, *hosts: str, **times: float) -> Made:
        return Made(name(subject), self.made, hosts=hosts or ("127.0.0.1", "localhost"), **times)

    def store(self, made: Made, file: str = "own.pem") -> Path:
        """A PEM file with key and certificates."""
        path = self.folder / file
        path.write_text(made.key_pem() + made.certificate_pem + self.made.certificate_pem)
        return path

    @cached_property
    def broker(self) -> Path:
        """The store of a broker at 127.0.0.1."""
        return self.store(self.make("CN=broker,O=kbroker"), "broker.pem")

    def settings(self, **others: str) -> dict[str, str]:
        """Of a broker with one listener, of TLS."""
        return {
            "listeners": "SSL://127.0.0.1:0",
            "security_inter_broker_protocol": "SSL",
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(self.broker),
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(self.trust),
            **others,
        }

    def context(self, own: Path | None = None, **attributes: Any) -> ssl.SSLContext:
        """A client's. own: the store it shows."""
        context = ssl.create_default_context(cafile=str(self.trust))
        if own is not None:
            context.load_cert_chain(own)
        for key, value in attributes.items():
            setattr(context, key, value)
        return context
