"""How a client shows who it is and whom it trusts, from the settings that Kafka's own clients have.

Called by the command line, which hands it to stock clients in their words (`cli/_client_security.py`), and by the
pipeline's own client. Java's names: security.protocol, sasl.mechanism, sasl.jaas.config, sasl.oauthbearer.*,
ssl.truststore.*, ssl.keystore.*, ssl.key.password, ssl.endpoint.identification.algorithm; librdkafka's ssl.ca.location
and its like, and kafka-python's (ssl.cafile), are other names of the same things. Every mistake is one line, which
names the setting and never says a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kbroker.config.jaas import Module, read_module
from protocol.namedtuple import NamedTuple

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN, GSSAPI, OAUTHBEARER = "PLAIN", "GSSAPI", "OAUTHBEARER"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER, GSSAPI)
STORE_TYPES = ("JKS", "PKCS12", "PEM")
MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    GSSAPI: "com.sun.security.auth.module.Krb5LoginModule",
}
"""The login module of each mechanism, in Java."""
_ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "sasl.kerberos.name": "sasl.kerberos.principal",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
    "ssl.crlfile": "ssl.crl.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
"""Names of one thing: kafka-python's and librdkafka's -> the one that is read here."""
KEY = re.compile(r"[\w.-]+", re.ASCII)
"""How settings of clients are called, whichever they are."""
_NAMES = """
    security.protocol sasl.mechanism sasl.jaas.config sasl.username sasl.password sasl.kerberos.principal
    sasl.kerberos.keytab sasl.kerberos.service.name
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret
    ssl.ca.location ssl.certificate.location ssl.key.location ssl.key.password ssl.crl.location
    ssl.truststore.location ssl.truststore.type ssl.truststore.password ssl.truststore.certificates
    ssl.keystore.location ssl.keystore.type ssl.keystore.password ssl.keystore.key ssl.keystore.certificate.chain
    ssl.endpoint.identification.algorithm ssl.check.hostname enable.ssl.certificate.verification
    """
NAMES = frozenset(_NAMES.split())
"""All that is read here, by the first of its names."""


_CLASS = re.compile(r"(sasl|ssl)\..*(?<!jwt\.validator)\.class")
"""Settings that have a class of their user's take over: without it, the login is not the one that was meant."""


class Login(NamedTuple):
    """What is said to a broker that asks who comes.

    is_token: the user is a delegation token's id. keytab: of GSSAPI. endpoint, scope: of OAUTHBEARER, whose user and
    password are a client's id and secret. unsecured: claims of a token that is not signed.
    """

    mechanism: str
    user: str = ""
    password: str = ""
    is_token: bool = False
    keytab: str = ""
    service: str = "kafka"
    endpoint: str = ""
    scope: str = ""
    unsecured: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.user!r}, ...)"  # without the password: a traceback may show it


class Store(NamedTuple):
    """Keys or certificates. setting: which names it. path or text: where they are, or they themselves. kind: "PEM",
    "PKCS12", "JKS", or "" where the settings do not say."""

    setting: str
    path: str = ""
    text: str = ""
    kind: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.setting}={self.path}" if self.path else self.setting

    def __repr__(self) -> str:
        return f"Store({self})"  # without password and keys


class ClientSecurity(NamedTuple):
    """How to connect. authorities: who may sign brokers' certificates, None: whom the system trusts.

    key, certificate: what is shown to a broker that wants a certificate; both are one store where they are in one file.
    revoked: certificates that count no more.
    """

    protocol: str = "PLAINTEXT"
    login: Login | None = None
    authorities: Store | None = None
    certificate: Store | None = None
    key: Store | None = None
    key_password: str = ""
    revoked: Store | None = None
    checks_host: bool = True
    checks_certificate: bool = True

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol}, {self.login!r}, {self.authorities!r}, {self.certificate!r})"

    @property
    def tls(self) -> bool:
        """Whether the connection is inside TLS."""
        return self.protocol.endswith("SSL")


def first_name(key: str) -> str:
    """The name that a setting is read by, of its names; kafka-python's have underscores."""
    dotted = key.replace("_", ".").replace("-", ".")
    return _ALIASES.get(dotted, dotted)


def client_security(settings: Mapping[str, str]) -> ClientSecurity:
    """What the settings say, by any of their names; others are passed over. Raises: ValueError in one line."""
    given: dict[str, str] = {}
    shown: dict[str, str] = {}  # as their user has written them
    for written, value in settings.items():
        name = first_name(written)
        if KEY.fullmatch(written) is None:  # of JSON, say: passed over, it would be plain text and no login
            raise ValueError(f"{written!r}: no setting of a client; allowed: lines of key=value")
        if name in NAMES:
            given[name], shown[name] = value, written
        elif _CLASS.fullmatch(name) and value:
            raise ValueError(f"{written}={value}: a class of Java's, which nothing here can load; leave it out")
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"security.protocol={given['security.protocol']}: allowed: {', '.join(PROTOCOLS)}")
    login = _login(given) if protocol.startswith("SASL") else None
    if not protocol.endswith("SSL"):
        return ClientSecurity(protocol, login)
    certificate, key = _own(given, shown)
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "none", "https"):
        raise ValueError(f"ssl.endpoint.identification.algorithm={algorithm}: allowed: https, or nothing")
    checks_certificate = _is_true(given, shown, "enable.ssl.certificate.verification")
    checks_host = algorithm == "https" and _is_true(given, shown, "ssl.check.hostname") and checks_certificate
    return ClientSecurity(
        protocol,
        login,
        _authorities(given, shown),
        certificate,
        key,
        given.get("ssl.key.password", ""),
        _file(given, shown, "ssl.crl.location"),
        checks_host=checks_host,
        checks_certificate=checks_certificate,
    )


def _is_true(given: Mapping[str, str], shown: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "true").lower()
    if value not in ("true", "false"):
        raise ValueError(f"{shown[name]}={given[name]}: allowed: true, false")
    return value == "true"


def _login(given: Mapping[str, str]) -> Login:
    mechanism = given.get("sasl.mechanism", GSSAPI).upper()  # as Kafka's clients have it
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism={given['sasl.mechanism']}: allowed: {', '.join(MECHANISMS)}")
    if "sasl.mechanism" not in given and "sasl.jaas.config" not in given:
        raise ValueError(
            f"security.protocol={given['security.protocol']} wants sasl.mechanism: {', '.join(MECHANISMS)}"
        )
    options: Mapping[str, str] = {}
    if "sasl.jaas.config" in given:
        options = _module(given["sasl.jaas.config"], mechanism).options
    return _OF_MECHANISM[mechanism](mechanism, given, options)


def _module(text: str, mechanism: str) -> Module:
    wanted = MODULES[mechanism]
    try:
        module = read_module(text)
    except ValueError as error:
        raise ValueError(f"sasl.jaas.config: {str(error).rstrip(';')}: {_example(mechanism)}") from None
    if module.name != wanted.rpartition(".")[2]:
        raise ValueError(f"sasl.jaas.config has a {module.name}: {_example(mechanism)}")
    return module


def _example(mechanism: str) -> str:
    options = 'username="U" password="P"' if mechanism in (PLAIN, *SCRAM) else "..."
    return f"for sasl.mechanism={mechanism} write {MODULES[mechanism]} required {options};"


def _by_password(mechanism: str, given: Mapping[str, str], options: Mapping[str, str]) -> Login:
    user = options.get("username", given.get("sasl.username", ""))
    password = options.get("password", given.get("sasl.password"))
    if not user or password is None:
        where = "sasl.jaas.config has no username and password"
        raise ValueError(f"{where}: {_example(mechanism)}")
    return Login(mechanism, user, password, is_token=options.get("tokenauth", "").lower() == "true")


def _by_token(mechanism: str, given: Mapping[str, str], options: Mapping[str, str]) -> Login:
    claim = "unsecuredLoginStringClaim_"
    unsecured = {key.removeprefix(claim): value for key, value in options.items() if key.startswith(claim)}
    endpoint = given.get("sasl.oauthbearer.token.endpoint.url", "")
    identity = given.get("sasl.oauthbearer.client.credentials.client.id", options.get("clientId", ""))
    secret = given.get("sasl.oauthbearer.client.credentials.client.secret", options.get("clientSecret", ""))
    scope = given.get("sasl.oauthbearer.scope", options.get("scope", ""))
    if not endpoint and "sub" not in unsecured:
        raise ValueError("sasl.mechanism=OAUTHBEARER wants sasl.oauthbearer.token.endpoint.url: https://..., file:/...")
    if endpoint and not endpoint.startswith(("https://", "http://", "file:/")):
        raise ValueError(f"sasl.oauthbearer.token.endpoint.url={endpoint}: allowed: https://..., http://..., file:/...")
    if endpoint.startswith("http") and not (identity and secret):
        where = "sasl.oauthbearer.client.credentials.client.id and .client.secret"
        raise ValueError(f"sasl.oauthbearer.token.endpoint.url={endpoint} wants {where}")
    return Login(mechanism, identity, secret, endpoint=endpoint, scope=scope, unsecured={} if endpoint else unsecured)


def _by_ticket(mechanism: str, given: Mapping[str, str], options: Mapping[str, str]) -> Login:
    user = options.get("principal", given.get("sasl.kerberos.principal", ""))
    keytab = options.get("keyTab", given.get("sasl.kerberos.keytab", ""))
    service = given.get("sasl.kerberos.service.name", options.get("serviceName", "kafka"))
    return Login(mechanism, user, keytab=keytab, service=service)


_OF_MECHANISM: Mapping[str, Callable[[str, Mapping[str, str], Mapping[str, str]], Login]] = {
    PLAIN: _by_password,
    **dict.fromkeys(SCRAM, _by_password),
    OAUTHBEARER: _by_token,
    GSSAPI: _by_ticket,
}


def _authorities(given: Mapping[str, str], shown: Mapping[str, str]) -> Store | None:
    """Whom we trust; the first of these that is given."""
    if text := given.get("ssl.truststore.certificates"):
        return Store(shown["ssl.truststore.certificates"], text=text, kind="PEM")
    return _file(given, shown, "ssl.ca.location") or _store(given, "ssl.truststore")


def _file(given: Mapping[str, str], shown: Mapping[str, str], name: str) -> Store | None:
    return Store(shown[name], given[name], kind="PEM") if given.get(name) else None


def _own(given: Mapping[str, str], shown: Mapping[str, str]) -> tuple[Store | None, Store | None]:
    """What we show: certificate and key."""
    for one, other in (
        ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
        ("ssl.certificate.location", "ssl.key.location"),
    ):
        certificate, key = given.get(one), given.get(other)
        if key and not certificate:
            raise ValueError(f"{shown[other]} wants {one}, too: the certificate of that key")
        if certificate and not key and one == "ssl.keystore.certificate.chain":
            raise ValueError(f"{shown[one]} wants {other}, too: the key of that certificate")
        if certificate:
            inline = one == "ssl.keystore.certificate.chain"
            stores = [
                Store(shown[each], "" if inline else value, value if inline else "", "PEM")
                for each, value in ((one, certificate), (other, key or ""))
                if value
            ]
            return stores[0], stores[-1]
    store = _store(given, "ssl.keystore")
    return store, store


def _store(given: Mapping[str, str], prefix: str) -> Store | None:
    path, kind = given.get(f"{prefix}.location", ""), given.get(f"{prefix}.type", "").upper()
    if kind and kind not in STORE_TYPES:
        raise ValueError(f"{prefix}.type={given[f'{prefix}.type']}: allowed: {', '.join(STORE_TYPES)}")
    password = given.get(f"{prefix}.password", "")
    return Store(f"{prefix}.location", path, "", kind, password) if path else None
