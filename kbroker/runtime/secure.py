"""A secured broker from nothing: an authority, a certificate, a first user, and the settings that use them.

Called by `kbroker start --secure`, `dev-cluster --secure` and `kbroker.testing.broker(security=...)`. All that is made
is files in one folder, made once and kept, and Kafka's own settings in `secure.properties`, which a reader may study
and take over into a server.properties; a broker knows nothing of this module.

| file | what it is | mode |
|---|---|---|
| secure-authority.key | the authority's private key: who has it can make certificates | 600 |
| secure-authority.pem | its certificate, which clients trust | 644 |
| secure-broker.pem | the broker's private key and its certificates | 600 |
| secure-client.pem | a client's, where the listener wants one | 600 |
| secure-admin.properties | a client's settings, with the admin's password | 600 |
| secure.properties | the broker's settings, with the password by which it logs in at other brokers | 600 |

A certificate is made again when a third of its life is left, at a start and while the broker runs, or when the broker
has another name; the authority when it would end before a certificate that it signs, at a start alone: clients have to
trust the new one.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING

from kbroker.config.jaas import read_module
from kbroker.config.listeners import is_every_interface
from kbroker.log.names import SECURE_FILES
from kbroker.properties import format_properties, parse_properties
from kbroker.runtime.add_scram import SALT_BYTES, NewUser, add_users
from kbroker.runtime.files import SystemDisk
from kbroker.security.client import MODULES, SCRAM
from kbroker.security.recipes import MECHANISM, Recipe, jaas
from kbroker.security.scram import LEAST_ITERATIONS, make_credential, write_credential
from kbroker.usage import UsageError, installed_by
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ADMIN, BROKER = "admin", "broker"
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 397  # browsers take no certificate that lives longer; neither need brokers
RENEWED_AT = 1 / 3  # of its life left
PASSWORD_BYTES = 18
SETTINGS_FILE, ADMIN_FILE, AUTHORITY_KEY_FILE, AUTHORITY_FILE, BROKER_FILE, CLIENT_FILE = SECURE_FILES
_HOST = re.compile(r"://(\[[^\]]*\]|[^:,/]*):")
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


class Secured(NamedTuple):
    """What there is. settings: the broker's. made: what is new, in words. is_new: whether the password is."""

    folder: str
    protocol: str
    settings: dict[str, str]
    password: str
    made: list[str]
    is_new: bool

    def __repr__(self) -> str:
        return f"Secured({self.folder})"  # without password and settings

    @property
    def properties(self) -> str:
        """The path of the file with the settings."""
        return f"{self.folder}/{SETTINGS_FILE}"

    @property
    def admin_file(self) -> str:
        """The path of the file with a client's settings."""
        return f"{self.folder}/{ADMIN_FILE}"

    def recipe(self, bootstrap: str) -> Recipe:
        """For clients, as the admin."""
        tls, sasl = self.protocol.endswith("SSL"), self.protocol.startswith("SASL")
        return Recipe(
            bootstrap,
            self.protocol,
            f"{self.folder}/{AUTHORITY_FILE}" if tls else "",
            f"{self.folder}/{CLIENT_FILE}" if self.protocol == "SSL" else "",
            ADMIN if sasl else "",
            self.password,
        )

    def write_recipe(self, bootstrap: str) -> Recipe:
        """Write it for Java's clients, once it is known where the broker listens. Raises: OSError."""
        recipe = self.recipe(bootstrap)
        _write(self.admin_file, format_properties(recipe.java()).encode())
        return recipe


def secure(folder: str, *, protocol: str = "SASL_SSL", listeners: str, hosts: Sequence[str] = ()) -> Secured:
    """Make what is missing of a secured broker in a folder. protocol: any but PLAINTEXT. listeners: as the setting.

    hosts: by what names clients know it, beside the listeners' and this machine's. Raises: OSError; UsageError.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    made: list[str] = []
    if protocol.endswith("SSL"):
        _certificates(folder, _names([*_HOST.findall(listeners), *hosts]), made, with_client=protocol == "SSL")
    password, is_new = _password(folder) if protocol.startswith("SASL") else ("", False)
    settings = {"listeners": listeners, **_settings(folder, protocol, password)}
    _write(f"{folder}/{SETTINGS_FILE}", _as_text(settings).encode())
    return Secured(folder, protocol, settings, password, made, is_new)


def renew(folder: str) -> list[str]:
    """Make certificates again that are near their end, by the authority that there is, for the same names.

    Returns: what was made, in words. Raises: OSError; UsageError.
    """
    from cryptography import x509

    now, made = datetime.now(UTC), []
    authority = _read(folder, AUTHORITY_FILE, AUTHORITY_KEY_FILE)
    if authority is None:
        raise UsageError(f"{folder}/{AUTHORITY_KEY_FILE}: not there, so that no certificate can be made again")
    days = min(CERTIFICATE_DAYS, (authority.certificate.not_valid_after_utc - now).days)
    for file in (BROKER_FILE, CLIENT_FILE):
        pair = _read(folder, file, file)
        if pair is None or not _is_near_end(pair.certificate, now):
            continue
        (named, *_) = pair.certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        subject = named.value if isinstance(named.value, str) else BROKER
        fresh = _signed(subject, authority, _names_of(pair.certificate), days, now)
        _write(f"{folder}/{file}", _key_text(fresh) + _text(fresh) + _text(authority))
        made.append(f"a certificate of {subject}")
    return made


def _settings(folder: str, protocol: str, password: str) -> dict[str, str]:
    """The broker's settings, by Kafka's names."""
    settings = {
        "security.inter.broker.protocol": protocol,
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:{ADMIN}" if protocol != "SSL" else f"User:CN={ADMIN};User:CN={BROKER}",
    }
    if protocol.endswith("SSL"):
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{folder}/{BROKER_FILE}",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": f"{folder}/{AUTHORITY_FILE}",
        }
    if protocol == "SSL":
        settings["ssl.client.auth"] = "required"
    else:
        settings |= {
            "sasl.enabled.mechanisms": ",".join(reversed(SCRAM)),
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
        }
        for each in SCRAM:
            login = jaas(ADMIN, password) if each == MECHANISM else f"{MODULES[each]} required;"
            settings[f"listener.name.{protocol.lower()}.{each.lower()}.sasl.jaas.config"] = login
    return settings


def put_admin(folder: str, secured: Secured) -> None:
    """Have the admin in the metadata of a broker that does not run: always if its password is new, else if it is gone.

    folder: that has the metadata, or will have it. Raises: StoreMissingError; OSError, for one that is in use, too.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    credential = make_credential(MECHANISM, secured.password.encode(), salt, LEAST_ITERATIONS)
    admin = NewUser(ADMIN, MECHANISM, write_credential(credential))
    path = add_users(SystemDisk(), [folder], [admin], only_missing=not secured.is_new)
    os.chmod(path, 0o600)  # what is kept of passwords is in it; the files that SQLite puts beside it are like it


_SAID = {
    "listeners": "Where it listens, and what is spoken there: TLS, and a login inside it.",
    "security.inter.broker.protocol": "How brokers speak to each other.",
    "authorizer.class.name": "Rules decide who may do what; without a rule nothing is allowed (kbroker acls),",
    "super.users": "but to these, who may do everything.",
    "ssl.keystore.type": "The broker's key and certificate, and whom it trusts; clients trust the same authority.",
    "ssl.client.auth": "Clients show a certificate, whose name is the user's.",
    "sasl.enabled.mechanisms": "How clients log in; users are kept in the metadata store (kbroker users).",
    "sasl.mechanism.inter.broker.protocol": "How this broker logs in at others, and as whom.",
}
"""What is said above a setting in the file."""


def _as_text(settings: dict[str, str]) -> str:
    lines = ["# Made by kbroker for a secured start; settings are Apache Kafka's. It is written again at each start.\n"]
    for key, value in settings.items():
        if key in _SAID:
            lines.append(f"\n# {_SAID[key]}\n")
        lines.append(format_properties({key: value}))
    return "".join(lines)


def _password(folder: str) -> tuple[str, bool]:
    """The admin's, and whether it is new."""
    try:
        settings = parse_properties(_content(f"{folder}/{ADMIN_FILE}").decode())
        return read_module(settings["sasl.jaas.config"]).options["password"], False
    except (FileNotFoundError, KeyError):
        return secrets.token_urlsafe(PASSWORD_BYTES), True
    except ValueError as error:
        raise UsageError(f"{folder}/{ADMIN_FILE}: {error}; remove the file to have a new password made") from None


def _names(hosts: Sequence[str]) -> list[str]:
    named = [host for each in hosts if (host := each.strip("[]")) and not is_every_interface(host)]
    return list(dict.fromkeys([*named, "localhost", "127.0.0.1", "::1", socket.gethostname()]))


def _content(path: str) -> bytes:
    """All of a file. Raises: OSError; UsageError for a pipe, which would be waited for."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path}: is no file")
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Put a file in place, whole; its mode is right from its first byte on."""
    fresh = f"{path}.new"
    with suppress(FileNotFoundError):
        os.remove(fresh)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.rename(fresh, path)


# -- certificates


class _Pair(NamedTuple):
    key: EllipticCurvePrivateKey
    certificate: x509.Certificate


def _certificates(folder: str, names: list[str], made: list[str], *, with_client: bool) -> None:
    """Make the authority and certificates if they are missing or near their end. Raises: UsageError."""
    if find_spec("cryptography") is None:
        raise UsageError(f"to make certificates needs cryptography: {installed_by('security')}")
    now = datetime.now(UTC)
    authority = _read(folder, AUTHORITY_FILE, AUTHORITY_KEY_FILE)
    is_new = authority is None or authority.certificate.not_valid_after_utc < now + timedelta(days=CERTIFICATE_DAYS)
    if is_new or authority is None:
        authority = _signed(f"kbroker authority {secrets.token_hex(4)}", None, [], AUTHORITY_DAYS, now)
        _write(f"{folder}/{AUTHORITY_KEY_FILE}", _key_text(authority))
        _write(f"{folder}/{AUTHORITY_FILE}", _text(authority), 0o644)
        made.append("an authority")
    wanted = [(BROKER, BROKER_FILE, names)] + [(ADMIN, CLIENT_FILE, [])] * with_client
    for subject, file, own_names in wanted:
        pair = _read(folder, file, file)
        if is_new or pair is None or _is_near_end(pair.certificate, now) or not _has(pair.certificate, own_names):
            fresh = _signed(subject, authority, own_names, CERTIFICATE_DAYS, now)
            _write(f"{folder}/{file}", _key_text(fresh) + _text(fresh) + _text(authority))
            made.append(f"a certificate of {subject}")


def _signed(subject: str, issuer: _Pair | None, names: list[str], days: int, now: datetime) -> _Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    signer = issuer.key if issuer else key
    ids = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(ids, False)
    )
    if issuer is None:
        builder = builder.add_extension(_usage(signs=True), True)
    else:
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(_usage(signs=False), True).add_extension(uses, False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), False)
    return _Pair(key, builder.sign(signer, hashes.SHA256()))


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_text(pair: _Pair) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _text(pair: _Pair) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return pair.certificate.public_bytes(Encoding.PEM)


def _read(folder: str, certificate: str, key: str) -> _Pair | None:
    """What is in files; None if one is missing. Raises: OSError; UsageError for what is no such thing."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = x509.load_pem_x509_certificate(_content(f"{folder}/{certificate}"))
        private = load_pem_private_key(_content(f"{folder}/{key}"), None)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise UsageError(
            f"{folder}/{certificate}: no certificate and key in PEM; remove it to have another made"
        ) from None
    if not isinstance(private, EllipticCurvePrivateKey):
        raise UsageError(f"{folder}/{key}: not a key that was made here; remove it to have another made")
    return _Pair(private, found)


def _is_near_end(certificate: x509.Certificate, now: datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < RENEWED_AT * life


def _names_of(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found]


def _has(certificate: x509.Certificate, names: list[str]) -> bool:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not names
    return all(_general(each) in found for each in names)
