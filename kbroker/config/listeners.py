"""Listeners: where the broker listens, what it calls each place, and which address it tells clients.

Read by the composition root, at the start and when advertised.listeners change. Names are upper-cased, as Kafka does.
No socket is touched: an empty host means every interface, and an advertised address without host, or with port 0, is
completed by the runtime when it has bound.

Unlike Kafka: where neither inter.broker.listener.name nor a PLAINTEXT listener exists, the first advertised listener
serves the brokers, which Kafka refuses. Clients are told [::] as little as 0.0.0.0, in any spelling; Kafka tells them
[::], which leads a client to its own machine.
"""

from __future__ import annotations

import re
from itertools import combinations

from kbroker.config.broker import SECURITY_PROTOCOLS, BrokerConfig
from kbroker.config.given import ConfigError
from protocol.namedtuple import NamedTuple


class Listener(NamedTuple):
    """One named place to listen, or one address to tell clients.

    host: a name or address without brackets; "" for every interface. port: 0 for any free one.
    """

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """A host as it stands before a port: an IPv6 address has brackets."""
    return f"[{host}]" if ":" in host else host


_ZEROS = re.compile(r"(?:0[0.]*)?|[0:.]+(?:ffff:[0:.]+)?(?:%.*)?", re.IGNORECASE)


def is_every_interface(host: str) -> bool:
    """Whether this is no host, or a spelling of 0.0.0.0 or ::, which name no interface: a server there is on all."""
    if _ZEROS.fullmatch(host) is None:
        return False
    if ":" not in host:
        return "%" not in host
    from ipaddress import IPv6Address  # few settings have such a host

    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return False
    return not int(address.ipv4_mapped or address)


class Listeners(NamedTuple):
    """All listeners of a broker.

    advertised: what clients are told, in listeners' order; a listener without an entry is not told.
    inter_broker, control_plane: names; control_plane is None where the controller shares a listener with the data.
    """

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker: str
    control_plane: str | None


def resolve_listeners(config: BrokerConfig) -> Listeners:
    """The listeners that the settings describe. Raises: ConfigError, all faults at once."""
    protocols = protocol_map(config.listener_security_protocol_map)
    left_out = {name.upper() for name in config.controller_listener_names}
    bound = _endpoints("listeners", config.listeners, protocols, left_out)
    if config.advertised_listeners is None:
        advertised = bound
    else:
        advertised = _endpoints("advertised.listeners", config.advertised_listeners, protocols, left_out)
    faults = _bound_faults(config, bound) + _advertised_faults(config, bound, advertised)
    if faults:
        raise ConfigError(faults)
    order = [listener.name for listener in bound]
    advertised = tuple(sorted(advertised, key=lambda listener: order.index(listener.name)))
    inter_broker = _inter_broker(config, advertised)
    return Listeners(bound, advertised, inter_broker, _control_plane(config, advertised, inter_broker))


def listeners_after(before: BrokerConfig, after: BrokerConfig) -> Listeners:
    """The listeners once settings have changed at run time. Raises: ConfigError, also where brokers lose theirs."""
    now, then = resolve_listeners(before), resolve_listeners(after)
    if (now.inter_broker, now.control_plane) != (then.inter_broker, then.control_plane):
        needed = ", ".join(filter(None, (now.inter_broker, now.control_plane)))
        shown = f"advertised.listeners={after.advertised_listeners}"
        raise ConfigError([f"{shown}: allowed: with {needed}, over which brokers speak to each other"])
    return then


def protocol_map(text: str) -> dict[str, str]:
    """The security protocol of each listener, by its name. Raises: ConfigError."""
    protocols = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or not name or protocol not in SECURITY_PROTOCOLS:
            allowed = f"NAME:PROTOCOL, comma-separated, PROTOCOL one of {', '.join(SECURITY_PROTOCOLS)}"
            raise ConfigError([f"listener.security.protocol.map={text}: {pair!r}; allowed: {allowed}"])
        protocols[name] = protocol
    return protocols


def listener_names(text: str) -> list[str]:
    """The names in `listeners`, however its addresses may be written."""
    return [item.partition("://")[0].strip().upper() for item in text.split(",") if item.strip()]


_ENDPOINT = re.compile(r"([^:/]+)://(?:\[([0-9a-zA-Z\-%._:]*)\]|([0-9a-zA-Z\-%._]*)):([0-9]{1,5})")


def _endpoints(key: str, text: str, protocols: dict[str, str], left_out: set[str]) -> tuple[Listener, ...]:
    faults = []
    found = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        match = _ENDPOINT.fullmatch(item)
        name = match[1].upper() if match else ""
        if match is None or int(match[4]) > 65_535:
            faults.append(f"{key}={text}: {item!r}; allowed: NAME://host:port, IPv6 as [::1], port 0 to 65535")
        elif name in left_out:
            continue
        elif name not in protocols:
            known = ", ".join(sorted(protocols)) or "none"
            faults.append(f"{key}={text}: {item!r}; allowed: names of listener.security.protocol.map ({known})")
        else:
            found.append(Listener(name, protocols[name], match[2] or match[3] or "", int(match[4])))
    if not faults and not found:
        faults.append(f"{key}={text}: allowed: at least one listener")
    if faults:
        raise ConfigError(faults)
    return tuple(found)


def _bound_faults(config: BrokerConfig, bound: tuple[Listener, ...]) -> list[str]:
    faults = []
    names = [listener.name for listener in bound]
    if len(set(names)) < len(names):
        faults.append(f"listeners={config.listeners}: allowed: every name once")
    # the same port may serve IPv4 under one name and IPv6 under another (KIP-797)
    clashes = [
        one.port
        for one, other in combinations(bound, 2)
        if one.port and one.port == other.port and _family(one.host) == _family(other.host)
    ]
    faults += [f"listeners={config.listeners}: port {port} twice; allowed: every port once, or 0" for port in clashes]
    return faults


def _family(host: str) -> str:
    if ":" in host:
        return "IPv6"
    return "IPv4" if re.fullmatch(r"[0-9.]+", host) else "any"


def _advertised_faults(
    config: BrokerConfig, bound: tuple[Listener, ...], advertised: tuple[Listener, ...]
) -> list[str]:
    shown = f"advertised.listeners={config.advertised_listeners}"
    names = [listener.name for listener in advertised]
    known = {listener.name for listener in bound}
    is_given = config.advertised_listeners is not None
    faults = [
        f"{shown}: {listener}; allowed: an address that clients can reach"
        if is_given
        else f"listeners={config.listeners}: {listener} cannot be told to clients; allowed: advertised.listeners with "
        f"one, or no host at all ({listener.name}://:{listener.port}), which tells them this machine's name"
        for listener in advertised
        if listener.host and is_every_interface(listener.host)
    ]
    faults += [
        f"{shown}: {name}; allowed: names of listeners ({', '.join(sorted(known))})"
        for name in names
        if name not in known
    ]
    if is_given and len(set(names)) < len(names):
        faults.append(f"{shown}: allowed: every name once")
    return faults


def _inter_broker(config: BrokerConfig, advertised: tuple[Listener, ...]) -> str:
    names = [listener.name for listener in advertised]
    wanted = config.inter_broker_listener_name
    if wanted is not None:
        if wanted.upper() not in names:
            raise ConfigError([f"inter.broker.listener.name={wanted}: allowed: {', '.join(names)}"])
        return wanted.upper()
    by_protocol = config.security_inter_broker_protocol
    if by_protocol in names:
        return by_protocol
    if by_protocol != "PLAINTEXT":
        allowed = f"a protocol that is also a listener's name ({', '.join(names)}), or inter.broker.listener.name"
        raise ConfigError([f"security.inter.broker.protocol={by_protocol}: allowed: {allowed}"])
    return names[0]


def _control_plane(config: BrokerConfig, advertised: tuple[Listener, ...], inter_broker: str) -> str | None:
    if config.control_plane_listener_name is None:
        return None
    wanted = config.control_plane_listener_name.upper()
    others = [listener.name for listener in advertised if listener.name != inter_broker]
    if wanted not in others:
        allowed = f"an advertised listener that is not the inter-broker one ({', '.join(others) or 'none left'})"
        raise ConfigError([f"control.plane.listener.name={config.control_plane_listener_name}: allowed: {allowed}"])
    return wanted
