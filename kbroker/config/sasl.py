"""How clients log in on one listener: its mechanisms, and of each its login module, its callback, its time to live.

Keys are looked up as Kafka does it, the first that is there: `listener.name.NAME.MECHANISM.KEY` (for sasl.jaas.config,
the callback handlers and connections.max.reauth.ms), `listener.name.NAME.KEY`, `KEY`. Names of listeners and mechanisms
are in lower case there.

Unlike Kafka: a login module may also stand for all mechanisms (sasl.jaas.config without a listener), which Kafka takes
from a file of Java's instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.given import ConfigError
from kbroker.config.jaas import Module, read_module
from kbroker.config.resolve import BrokerLayers, ListenerConfig, listener_prefix, resolve_listener
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.config.broker import BrokerConfig

PLAIN, OAUTHBEARER, GSSAPI = "PLAIN", "OAUTHBEARER", "GSSAPI"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SERVED_MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER, GSSAPI)
KERBEROS_EXAMPLE = (
    'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="FILE" '
    'principal="kafka/HOST@REALM";'
)

VALIDATOR = "OAuthBearerValidatorCallbackHandler"
UNSECURED_VALIDATOR = "OAuthBearerUnsecuredValidatorCallbackHandler"
_KAFKAS = {PLAIN: {"PlainServerCallbackHandler"}, OAUTHBEARER: {VALIDATOR, UNSECURED_VALIDATOR}}


class MechanismConfig(NamedTuple):
    """One mechanism of a listener.

    module: its login module, None if it has none. callback: module:function of a user's own, or a class of Kafka's
    without its package; empty for what is usual. max_reauth_ms: connections.max.reauth.ms.
    """

    name: str
    module: Module | None
    callback: str
    max_reauth_ms: int


class SaslConfig(NamedTuple):
    """One listener. mechanisms: by name, in the order of sasl.enabled.mechanisms. config: as it is for the listener."""

    listener: str
    config: BrokerConfig
    mechanisms: Mapping[str, MechanismConfig]


def sasl_config(layers: BrokerLayers, listener: str) -> SaslConfig:
    """Of a listener that speaks SASL. Raises: ConfigError with a line for every fault."""
    of_listener = resolve_listener(layers, listener)
    names = of_listener.config.sasl_enabled_mechanisms
    key = of_listener.named("sasl.enabled.mechanisms")
    served = ", ".join(SERVED_MECHANISMS)
    unknown = [each for each in names if each not in SERVED_MECHANISMS]
    faults = [f"{key}={','.join(names)}: {each!r}; allowed: {served}" for each in unknown]
    if not names:
        faults.append(f"{key}=: allowed: at least one of {served}")
    found = {}
    for name in names:
        if name in SERVED_MECHANISMS:
            try:
                found[name] = _mechanism(layers, of_listener, name)
            except ConfigError as error:
                faults += error.lines
    if faults:
        raise ConfigError(faults)
    return SaslConfig(listener, of_listener.config, found)


def _mechanism(layers: BrokerLayers, of_listener: ListenerConfig, name: str) -> MechanismConfig:
    config, prefix = of_listener.config, f"{listener_prefix(of_listener.listener)}{name.lower()}."
    texts = {key.removeprefix(prefix): given.text for key, given in layers.static.items() if key.startswith(prefix)}
    for_all = layers.static.get("sasl.jaas.config")  # from the file alone, as all that says who may log in
    module = module_of(f"{prefix}sasl.jaas.config", texts.get("sasl.jaas.config") or (for_all and for_all.text))
    callback = texts.get("sasl.server.callback.handler.class", config.sasl_server_callback_handler_class) or ""
    if ":" not in callback:
        callback = callback.rpartition(".")[2]
        if callback and callback not in _KAFKAS.get(name, ()):
            allowed = ", ".join(["module:function", *sorted(_KAFKAS.get(name, ()))])
            where = f"{prefix}sasl.server.callback.handler.class"
            raise ConfigError([f"{where}={callback}: allowed for {name}: {allowed}, or none"])
    elif name in (*SCRAM, GSSAPI):
        raise ConfigError([f"{prefix}sasl.server.callback.handler.class={callback}: allowed for {name}: none"])
    reauth = texts.get("connections.max.reauth.ms", str(config.connections_max_reauth_ms)).strip()
    if not reauth.isdecimal() or len(reauth) > 18:
        raise ConfigError([f"{prefix}connections.max.reauth.ms={reauth}: allowed: a 64-bit integer, at least 0"])
    if name == PLAIN and not callback.count(":") and module is None:
        allowed = 'a PlainLoginModule with user_NAME="PASSWORD" of each user, or sasl.server.callback.handler.class'
        raise ConfigError([f"{prefix}sasl.jaas.config: allowed: {allowed}"])
    if name == GSSAPI:
        _check_kerberos(of_listener, f"{prefix}sasl.jaas.config", module, "sasl.enabled.mechanisms")
    if name == OAUTHBEARER and callback in ("", VALIDATOR) and not config.sasl_oauthbearer_jwks_endpoint_url:
        key = of_listener.named("sasl.oauthbearer.jwks.endpoint.url")
        allowed = f"where the keys are that sign tokens; or {prefix}sasl.server.callback.handler.class"
        raise ConfigError([f"{key}: allowed: {allowed}"])
    return MechanismConfig(name, module, callback, int(reauth))


def _check_kerberos(of_listener: ListenerConfig, key: str, module: Module | None, asked_by: str) -> None:
    """Raises: ConfigError where it is not said which key the broker has, or which service it is."""
    options = {} if module is None else module.options
    if not options.get("keyTab") or not options.get("principal"):
        raise ConfigError([f"{key}: allowed: {KERBEROS_EXAMPLE} or another {asked_by} than GSSAPI"])
    config = of_listener.config
    setting = of_listener.named("sasl.kerberos.service.name")
    given = [each for each in (config.sasl_kerberos_service_name, options.get("serviceName")) if each]
    service = options["principal"].partition("@")[0].partition("/")[0]
    if not given:
        raise ConfigError([f"{setting}: allowed: {service}, which stands first in the principal of {key}"])
    for each in given:
        if each != service:
            raise ConfigError([f"{setting}={each}: allowed: {service}, which stands first in the principal of {key}"])


class PeerLogin(NamedTuple):
    """As whom a broker logs in at others. source: module:function that gives a token, with OAUTHBEARER.

    is_token: user and password are a delegation token's. keytab, service: with GSSAPI, where user is the principal.
    """

    mechanism: str
    user: str = ""
    password: str = ""
    is_token: bool = False
    source: str = ""
    keytab: str = ""
    service: str = ""

    def __repr__(self) -> str:
        return f"PeerLogin({self.mechanism}, {self.user!r})"

    @property
    def is_bearer(self) -> bool:
        """Whether it shows a token."""
        return self.mechanism == OAUTHBEARER


def peer_login(layers: BrokerLayers, listener: str) -> PeerLogin:
    """How a broker logs in at a listener of others that has this name. Raises: ConfigError."""
    of_listener = resolve_listener(layers, listener)
    config = of_listener.config
    if listener.upper() in map(str.upper, config.controller_listener_names):
        asked_by, mechanism = "sasl.mechanism.controller.protocol", config.sasl_mechanism_controller_protocol
    else:
        asked_by, mechanism = "sasl.mechanism.inter.broker.protocol", config.sasl_mechanism_inter_broker_protocol
    if mechanism not in SERVED_MECHANISMS:
        allowed = f"{', '.join(SERVED_MECHANISMS)}, for listener {listener}"
        raise ConfigError([f"{asked_by}={mechanism}: allowed: {allowed}"])
    prefix = f"{listener_prefix(listener)}{mechanism.lower()}."
    texts = {key.removeprefix(prefix): given.text for key, given in layers.static.items() if key.startswith(prefix)}
    if mechanism == OAUTHBEARER:
        source = texts.get("sasl.login.callback.handler.class", config.sasl_login_callback_handler_class) or ""
        if ":" not in source:
            raise ConfigError([f"{prefix}sasl.login.callback.handler.class={source}: allowed: module:function"])
        return PeerLogin(mechanism, source=source)
    module = module_of(f"{prefix}sasl.jaas.config", texts.get("sasl.jaas.config") or config.sasl_jaas_config)
    options = {} if module is None else module.options
    if mechanism == GSSAPI:
        _check_kerberos(of_listener, f"{prefix}sasl.jaas.config", module, asked_by)
        service = options["principal"].partition("@")[0].partition("/")[0]
        return PeerLogin(mechanism, options["principal"], keytab=options["keyTab"], service=service)
    if not options.get("username") or "password" not in options:
        allowed = "a login module with username and password, as whom this broker logs in at others"
        raise ConfigError([f"{prefix}sasl.jaas.config: allowed: {allowed}"])
    is_token = mechanism in SCRAM and options.get("tokenauth", "").lower() == "true"
    return PeerLogin(mechanism, options["username"], options["password"], is_token)


def module_of(key: str, text: str | None) -> Module | None:
    """The login module of a setting. Raises: ConfigError that says nothing of what is in it."""
    try:
        return read_module(text) if text and text.strip() else None
    except ValueError as error:
        raise ConfigError([f"{key}=[hidden]: {error}"]) from None
