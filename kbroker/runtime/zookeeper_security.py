"""How a broker shows an ensemble who it is, by a certificate or a login, and what its nodes let others do.

Made by the node from the settings, read by zookeeper.py. TLS is Python's, with keys and certificates in PEM files: Java
reads them, too (KIP-651). The login is SASL's DIGEST-MD5, by kazoo and pure-sasl: that of ZooKeeper's
DigestLoginModule, which Apache's brokers find in the `Client` section of a JAAS file.

Source of the rules for nodes: ZkData.defaultAcls of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import Any

from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from kbroker.config.broker import BrokerConfig
from kbroker.config.jaas import read_login
from kbroker.usage import installed_by
from protocol.namedtuple import NamedTuple

OPEN_TO_ALL = "/consumers"  # where the consumers of old wrote, each under its own name
HIDDEN = ("/config/users", "/config/brokers", "/delegation_token/tokens")  # they may hold secrets


class Security(NamedTuple):
    """What a connection to the ensemble begins with, and what its nodes allow.

    tls: None for a connection in plain text. login: user and password, None without. secures: whether the nodes that
    are made are for the broker alone.
    """

    tls: ssl.SSLContext | None = None
    login: tuple[str, str] | None = None
    secures: bool = False

    def rights(self, path: str) -> list[Any] | None:
        """The access list of a new node, as kazoo takes it; None: each client may do everything."""
        if not self.secures or path == OPEN_TO_ALL:
            return None
        everything = list(CREATOR_ALL_ACL)  # for the identity of the connection, as the ensemble knows it
        return everything if path.startswith(HIDDEN) else [*everything, *READ_ACL_UNSAFE]


OPEN = Security()


def security_of(config: BrokerConfig) -> Security:
    """As the settings want it. Raises: ValueError for files that cannot be used, or a library that is missing."""
    login = read_login(config.kbroker_zookeeper_sasl_jaas_config or "")
    if login and find_spec("puresasl") is None:
        raise ValueError(f"kbroker.zookeeper.sasl.jaas.config needs pure-sasl: {installed_by('zookeeper-login')}")
    tls = _tls(config) if config.zookeeper_ssl_client_enable else None
    return Security(tls, login, config.zookeeper_set_acl)


def in_bytes(password: str) -> bytes:
    """A password as DIGEST-MD5 hashes it: in ISO 8859-1 if that has all of its letters (RFC 2831, 2.1.2.1)."""
    try:
        return password.encode("latin-1")
    except UnicodeEncodeError:
        return password.encode()


def _tls(config: BrokerConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    named = config.zookeeper_ssl_enabled_protocols or (config.zookeeper_ssl_protocol,)
    allowed = [ssl.TLSVersion[name.replace(".", "_")] for name in named]
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)
    context.check_hostname = bool(config.zookeeper_ssl_endpoint_identification_algorithm)
    trusted, own = config.zookeeper_ssl_truststore_location, config.zookeeper_ssl_keystore_location
    if trusted is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(trusted)
        except OSError as error:  # ssl's own errors are OSErrors
            raise ValueError(f"zookeeper.ssl.truststore.location={trusted}: {_reason(error, 'certificates')}") from None
    if own is not None:
        password = config.zookeeper_ssl_keystore_password or ""  # given, so that OpenSSL does not ask for one
        try:
            context.load_cert_chain(own, password=password)
        except OSError as error:
            why = _reason(error, "a key and certificates, or another password")
            raise ValueError(f"zookeeper.ssl.keystore.location={own}: {why}") from None
    return context


def _reason(error: OSError, wanted: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no PEM file with {wanted}"
    return error.strerror or str(error)


def why_no_tls(error: OSError) -> str:
    """Why a handshake failed, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)) or type(error).__name__
