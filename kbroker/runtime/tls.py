"""TLS of one broker: what its listeners show and demand, and what it shows other brokers and demands of them.

Made by the node where a listener speaks TLS, and loaded by no other. A listener's stores are read at the start, and
again when its settings, or the files they name, have changed (KIP-226): connections that are there keep what they have,
new ones get the new. What cannot be used is refused in one line that names the setting, and what runs is kept.

Secrets are given to OpenSSL by a file, for it takes no other: on Linux one in memory, so that no disk has it;
elsewhere a temporary one, which only this user can read.

A listener that others alone have (a quorum's controllers') is connected to with the settings of its name; there a
certificate of one's own is needed only where the others want to see one.

Source: SslFactory, DefaultSslEngineFactory and SslPrincipalMapper of Apache Kafka 3.9 by behaviour. Unlike there, a
listener without a certificate is refused at the start; a changed ssl.client.auth, ssl.enabled.protocols or
ssl.cipher.suites of a listener counts at once; and a broker that is alone need not trust itself.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from kbroker.broker.session import Principal
from kbroker.config import BrokerLayers, ConfigError, ListenerConfig, Listeners, resolve_broker, resolve_listener
from kbroker.runtime.platform import secret_file
from kbroker.runtime.ssl_transport import SCRATCH_BYTES, SslTransport, TlsError, why_no_tls
from kbroker.security.certificates import Certificate, java_name, read_certificate
from kbroker.security.cipher_suites import TLS_1_3, openssl_name
from kbroker.security.principal_rules import PrincipalRules
from kbroker.security.stores import (
    PEM,
    KeyEntry,
    Passwords,
    StoreError,
    read_key_store,
    read_pem_certificates,
    read_pem_key,
    read_trust_store,
)

if TYPE_CHECKING:
    import socket

    from kbroker.broker.session import Session
    from kbroker.config import BrokerConfig
    from kbroker.ports import Endpoint
    from kbroker.runtime.transport import Transport

log = logging.getLogger("kbroker.tls")

WARNED_DAYS = 30  # before a certificate ends
REPLACED_BY = "put another in its place, and send SIGHUP (kill -HUP), or set the same path again by kbroker configs"
VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
MOST_STEPS = 10  # of a handshake with oneself

_Stamp = tuple[int, int, int] | None


class ListenerTls:
    """One listener's, as loaded. named: its settings. stamps: its files as they were then.

    own: the certificate that is shown; None where there need not be one.
    """

    def __init__(self, named: ListenerConfig, protocol: str, *, accepts: bool = True) -> None:
        """accepts: whether clients connect to it; else it is others' alone. Raises: ConfigError, one line that names a
        setting.
        """
        self.named = named
        self._protocol = protocol
        self.stamps = stamps_of(named.config)
        try:
            self._keys = _keys(named.config) if accepts or _has_keys(named.config) else ()
            self._trusted = _trusted(named.config)
            self.rules = _rules(named.config)
            self.own = _certificate(self._keys[0]) if self._keys else None
            self.server = self._server_context()
        except StoreError as error:
            raise ConfigError([f"{named.named(error.setting)}: {error.why}"]) from None
        self._client: ssl.SSLContext | None = None

    @property
    def client_auth(self) -> str:
        """Of SASL_SSL, only what is set for the listener itself (KIP-684)."""
        if self._protocol == "SASL_SSL" and "ssl.client.auth" not in self.named.own:
            return "none"
        return self.named.config.ssl_client_auth

    @property
    def client(self) -> ssl.SSLContext:
        """For connections to other brokers' listener of this name; made when there is one."""
        if self._client is None:
            context = self._context(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = bool(self.named.config.ssl_endpoint_identification_algorithm)
            self._client = context
        return self._client

    def _server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = VERIFY[self.client_auth]
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.named.config.kbroker_tls_kernel:
            context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
        return context

    def _context(self, side: int) -> ssl.SSLContext:
        config = self.named.config
        context = ssl.SSLContext(side)
        versions = [ssl.TLSVersion[name.replace(".", "_")] for name in config.ssl_enabled_protocols]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # all that is in a trust store is trusted, as in Java
        if config.ssl_cipher_suites:
            _choose_suites(context, config.ssl_cipher_suites)
        for entry in reversed(self._keys):  # of several of a kind the first counts
            _load(context, entry, config)
        if self._trusted is None:
            context.load_default_certs(
                ssl.Purpose.CLIENT_AUTH if side == ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
            )
        else:
            try:
                context.load_verify_locations(cadata=b"".join(self._trusted))
            except ssl.SSLError:
                raise StoreError(_trust_setting(config), "a certificate in it is damaged") from None
        return context

    def trust_fault(self) -> str:
        """Why a broker with these settings would not speak to another one that has the same; empty if it would."""
        (to_server, to_client), why = (ssl.MemoryBIO(), ssl.MemoryBIO()), ""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        client = context.wrap_bio(to_client, to_server)
        server = self.server.wrap_bio(to_server, to_client, server_side=True)
        for step in range(MOST_STEPS):
            try:
                (server if step % 2 else client).do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                why = why_no_tls(error)
                break
        if not why or self.own is None:
            return ""
        return (
            f"{self.named.named(_trust_setting(self.named.config))}: brokers with these settings do not take each "
            f"other's certificate ({why}); allowed: a trust store that vouches for {self.own.name}"
        )

    def identify(self, session: Session, shaken: ssl.SSLObject | ssl.SSLSocket) -> None:
        """Say who a client is by its certificate. Raises: OSError if no rule gives it a name."""
        shown = shaken.getpeercert(binary_form=True)
        if shown:
            name = java_name(read_certificate(shown).subject)
            user = self.rules.name_of(name)
            if user is None:
                why = f"no rule of {self.named.named('ssl.principal.mapping.rules')} applies to {name}"
                raise TlsError(why)
            session.principal = Principal("User", user)


class Tls:
    """That of all listeners. by_kernel: whether the kernel has a part in it."""

    library = " ".join(ssl.OPENSSL_VERSION.split()[:2])  # without its date

    def __init__(
        self, layers: BrokerLayers, listeners: Listeners, *, in_cluster: bool, dialled: Collection[str] = ()
    ) -> None:
        """in_cluster: whether there are other brokers, which have what this one has. dialled: names of listeners that
        others alone have. Raises: ConfigError.
        """
        self._layers = layers
        self._protocols = {each.name: each.protocol for each in listeners.bound if each.protocol.endswith("SSL")}
        self._among_brokers = {listeners.inter_broker, listeners.control_plane} if in_cluster else set()
        self._loaded: dict[str, ListenerTls] = {}
        self._sessions: dict[tuple[str, int], tuple[ssl.SSLContext, ssl.SSLSession]] = {}  # of other brokers
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.by_kernel = resolve_broker(layers).kbroker_tls_kernel and _has_kernel()
        faults: list[str] = []
        for name in (*self._protocols, *dialled):
            try:
                self._loaded[name] = self._load(layers, name)
            except ConfigError as error:
                faults += error.lines
        if faults:
            raise ConfigError(list(dict.fromkeys(faults)))
        for each in self._loaded.values():
            _warn_of_end(each)

    def _load(self, layers: BrokerLayers, name: str) -> ListenerTls:
        accepts = name in self._protocols
        made = ListenerTls(resolve_listener(layers, name), self._protocols.get(name, "SSL"), accepts=accepts)
        if accepts and name in self._among_brokers and not _days_over(made.own) and (fault := made.trust_fault()):
            raise ConfigError([fault])
        return made

    # -- transports

    def accept(self, name: str, sock: socket.socket, session: Session) -> Transport:
        """That of a connection that a listener has accepted."""
        tls = self._loaded[name]
        named = partial(tls.identify, session) if self._protocols[name] == "SSL" else _by_login
        if self.by_kernel:
            from kbroker.runtime.kernel_ssl_transport import KernelSslTransport  # for who asks

            wrap = partial(tls.server.wrap_socket, server_side=True, do_handshake_on_connect=False)
            return KernelSslTransport(sock, wrap, named)
        return SslTransport(sock, partial(tls.server.wrap_bio, server_side=True), named, self._scratch)

    def connect(self, sock: socket.socket, endpoint: Endpoint) -> SslTransport:
        """That of a connection to another broker. Raises: ConfigError."""
        tls = self._loaded.get(endpoint.listener)
        if tls is None:  # a listener that the others have, and this broker has not
            tls = self._loaded[endpoint.listener] = self._load(self._layers, endpoint.listener)
        context, place = tls.client, (endpoint.host, endpoint.port)
        known = self._sessions.get(place)
        session = known[1] if known is not None and known[0] is context else None
        make = partial(context.wrap_bio, server_side=False, server_hostname=endpoint.host, session=session)

        def keep(ended: ssl.SSLObject) -> None:
            if ended.session is not None and ended.session.has_ticket:
                self._sessions[place] = context, ended.session

        return SslTransport(sock, make, _by_its_address, self._scratch, keep)

    def warn_of_ends(self) -> None:
        """Say which certificates end soon, or have ended, a line each."""
        for each in self._loaded.values():
            _warn_of_end(each)

    # -- changes

    def faults(self, layers: BrokerLayers) -> list[str]:
        """Why changed settings, or the files that they name, cannot be used, a line each."""
        return [
            line for _, outcome in self._changed(layers) if isinstance(outcome, ConfigError) for line in outcome.lines
        ]

    def reload(self, layers: BrokerLayers) -> None:
        """Use them for connections to come; a listener whose cannot be used keeps what it has, and a line says so."""
        self._layers = layers
        for name, outcome in self._changed(layers):
            if isinstance(outcome, ConfigError):
                log.error("TLS of listener %s stays as it was: %s", name, "; ".join(outcome.lines))
                continue
            self._loaded[name] = outcome
            shown = "no certificate" if outcome.own is None else f"{outcome.own.name} until {outcome.own.not_after}"
            log.info("TLS of listener %s was loaded again: %s", name, shown)
            _warn_of_end(outcome)

    def _changed(self, layers: BrokerLayers) -> Iterator[tuple[str, ListenerTls | ConfigError]]:
        for name, before in list(self._loaded.items()):
            try:
                named = resolve_listener(layers, name)
                if (_values(named), stamps_of(named.config)) == (_values(before.named), before.stamps):
                    continue
                after = self._load(layers, name)
                faults = _replacement_faults(before, after)
                if faults:
                    raise ConfigError(faults)
            except ConfigError as error:
                yield name, error
            else:
                yield name, after


def _has_kernel() -> bool:
    from kbroker.runtime.kernel_ssl_transport import kernel_fault

    if fault := kernel_fault():
        log.warning("kbroker.tls.kernel=true: has no effect: %s", fault)
    return not fault


def _by_login(shaken: ssl.SSLObject | ssl.SSLSocket) -> None:
    """Who is there is shown by a login."""


def _by_its_address(shaken: ssl.SSLObject) -> None:
    """OpenSSL has checked that the certificate is that of the address."""


def _values(named: ListenerConfig) -> list[object]:
    return [value for each, value in named.config.items() if each.name.startswith("ssl.")]


def stamps_of(config: BrokerConfig) -> tuple[_Stamp, ...]:
    """By which files that have changed are told: inode, size and time."""

    def stamp(path: str | None) -> _Stamp:
        if path is None:
            return None
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    return stamp(config.ssl_keystore_location), stamp(config.ssl_truststore_location)


def _replacement_faults(before: ListenerTls, after: ListenerTls) -> list[str]:
    """Source: CertificateEntries.ensureCompatible of Apache Kafka 3.9."""
    config, old, new = after.named.config, before.own, after.own
    setting = after.named.named(_key_setting(config))
    lines: list[str] = []
    if old is None or new is None:
        return lines
    if old.subject != new.subject and not config.ssl_allow_dn_changes:
        lines.append(
            f"{setting}: Keystore DistinguishedName does not match: existing={old.name}, new={new.name}; "
            "allowed: with ssl.allow.dn.changes=true"
        )
    if not old.other_names <= new.other_names and not config.ssl_allow_san_changes:
        lines.append(
            f"{setting}: Keystore SubjectAltNames do not match: the new certificate lacks "
            f"{len(old.other_names - new.other_names)} of {len(old.other_names)}; "
            "allowed: with ssl.allow.san.changes=true"
        )
    return lines


# -- what is loaded


def _read(path: str, setting: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no name for a file"
        raise StoreError(setting, f"{path}: {why}; allowed: a file that the broker can read") from None


def _key_setting(config: BrokerConfig) -> str:
    return "ssl.keystore.location" if config.ssl_keystore_key is None else "ssl.keystore.certificate.chain"


def _trust_setting(config: BrokerConfig) -> str:
    return "ssl.truststore.location" if config.ssl_truststore_certificates is None else "ssl.truststore.certificates"


def _has_keys(config: BrokerConfig) -> bool:
    named = config.ssl_keystore_location, config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    return any(each is not None for each in named)


def _keys(config: BrokerConfig) -> Sequence[KeyEntry]:
    kind, path = config.ssl_keystore_type, config.ssl_keystore_location
    key, chain, password = config.ssl_keystore_key, config.ssl_keystore_certificate_chain, config.ssl_keystore_password
    if key is not None or chain is not None:
        if key is None or chain is None:
            missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
            raise StoreError(missing, "not set; allowed: a private key and its certificates, both in PEM")
        if path is not None:
            raise StoreError("ssl.keystore.location", "set beside ssl.keystore.key; allowed: one of them")
        if kind.upper() != PEM:
            raise StoreError("ssl.keystore.type", f"{kind}; allowed with ssl.keystore.key: PEM")
        _no_password("ssl.keystore.password", password)
        return read_pem_key(key, chain, config.ssl_key_password)
    if path is None:
        raise StoreError("ssl.keystore.location", "not set, and a listener of TLS needs a certificate; allowed: a "
                         "key store, or ssl.keystore.key and ssl.keystore.certificate.chain")  # fmt: skip
    if kind.upper() == PEM:
        _no_password("ssl.keystore.password", password)
    return read_key_store(_read(path, "ssl.keystore.location"), kind, Passwords(password, config.ssl_key_password))


def _trusted(config: BrokerConfig) -> list[bytes] | None:
    """None: what the system trusts."""
    kind, path, password = config.ssl_truststore_type, config.ssl_truststore_location, config.ssl_truststore_password
    if config.ssl_truststore_certificates is not None:
        if path is not None:
            raise StoreError("ssl.truststore.location", "set beside ssl.truststore.certificates; allowed: one of them")
        if kind.upper() != PEM:
            raise StoreError("ssl.truststore.type", f"{kind}; allowed with ssl.truststore.certificates: PEM")
        return read_pem_certificates(config.ssl_truststore_certificates)
    if path is None:
        return None
    if kind.upper() == PEM:
        _no_password("ssl.truststore.password", password)
    return read_trust_store(_read(path, "ssl.truststore.location"), kind, password)


def _no_password(setting: str, password: str | None) -> None:
    if password is not None:
        raise StoreError(setting, "set; allowed with a PEM store: none (ssl.key.password is for its key)")


def _rules(config: BrokerConfig) -> PrincipalRules:
    try:
        return PrincipalRules(config.ssl_principal_mapping_rules)
    except ValueError as error:
        raise StoreError("ssl.principal.mapping.rules", str(error)) from None


def _certificate(entry: KeyEntry) -> Certificate:
    try:
        return read_certificate(entry.chain[0])
    except (ValueError, IndexError):
        raise StoreError("ssl.keystore.location", "its first certificate is damaged") from None


def _choose_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    unknown = [name for name in names if openssl_name(name) is None]
    if unknown:
        raise StoreError("ssl.cipher.suites", f"{unknown[0]}: unknown; allowed: Java's names, as {TLS_1_3[0]}")
    newer, older = [name for name in names if name in TLS_1_3], [name for name in names if name not in TLS_1_3]
    if older:
        try:
            context.set_ciphers(":".join(str(openssl_name(name)) for name in older))
        except ssl.SSLError:
            raise StoreError("ssl.cipher.suites", "OpenSSL has none of those for TLS 1.2") from None
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif len(set(newer)) < len(TLS_1_3):
        if hasattr(context, "set_ciphersuites"):  # Python 3.15
            context.set_ciphersuites(":".join(newer))
        else:
            raise StoreError("ssl.cipher.suites", f"{', '.join(newer)} alone of TLS 1.3; allowed on this version of "
                             f"Python: all of {', '.join(TLS_1_3)}, or none of them")  # fmt: skip
    if context.minimum_version > context.maximum_version:
        raise StoreError("ssl.cipher.suites", "none is for a version of ssl.enabled.protocols")


def _load(context: ssl.SSLContext, entry: KeyEntry, config: BrokerConfig) -> None:
    with secret_file(entry.pem) as path:
        try:
            context.load_cert_chain(path, password=entry.password)  # given, so that OpenSSL does not ask for one
        except ssl.SSLError as error:
            reason = error.reason or ""
            if "MISMATCH" in reason:
                why = "the private key does not fit the first certificate; allowed: the certificates of that key"
                raise StoreError(_key_setting(config), why) from None
            if entry.password and b"ENCRYPTED" in entry.pem:
                raise StoreError("ssl.key.password", "does not fit the private key; allowed: its password") from None
            why = f"the key or a certificate cannot be used ({reason.replace('_', ' ').lower() or 'no PEM'})"
            raise StoreError(_key_setting(config), why) from None


# -- the end of certificates


def _days_over(own: Certificate | None) -> bool:
    """Whether it does not count now."""
    return own is None or not own.not_before <= datetime.now(UTC) < own.not_after


def _warn_of_end(tls: ListenerTls) -> None:
    own, now = tls.own, datetime.now(UTC)
    if own is None:
        return
    setting, days = tls.named.named(_key_setting(tls.named.config)), (own.not_after - now).days
    if now >= own.not_after:
        log.warning(
            "%s: the certificate %s has expired on %s: clients refuse it; %s",
            setting,
            own.name,
            own.not_after,
            REPLACED_BY,
        )
    elif now < own.not_before:
        log.warning("%s: the certificate %s counts from %s on: clients refuse it", setting, own.name, own.not_before)
    elif days < WARNED_DAYS:
        log.warning(
            "%s: the certificate %s expires in %d days, on %s; %s", setting, own.name, days, own.not_after, REPLACED_BY
        )
