"""What makes a broker a member of the cluster of a metadata quorum (KRaft): process.roles=broker, and whom it asks.

Read by the composition root and by resolve.py. A broker has no vote and is no controller: it reads the quorum's log as
an observer. Values only: no name is looked up, and no address is tried.

Source: KafkaConfig, QuorumConfig and KRaftConfigs of Apache Kafka 4.3, by behaviour; KIP-631, KIP-853.
"""

from __future__ import annotations

import re

from kbroker.config.broker import SECURITY_PROTOCOLS, BrokerConfig
from kbroker.config.given import ConfigError
from kbroker.config.listeners import listener_names, protocol_map
from protocol.namedtuple import NamedTuple

ALONE = frozenset({"broker", "controller"})
"""The roles of a quorum of one, as stock files and images have them: here a broker that is alone."""
NO_VOTE = "this broker votes in no metadata quorum, and is no controller"

_ADDRESS = re.compile(r"(?:\[([0-9a-zA-Z\-%._:]*)\]|([0-9a-zA-Z\-%._]+)):([0-9]{1,5})")


class Voter(NamedTuple):
    """A controller of controller.quorum.voters."""

    node_id: int
    host: str
    port: int


class QuorumSettings(NamedTuple):
    """Of a member. servers: (host, port) of controllers that may be asked who leads, at least one.

    listener: the controllers' that is spoken to; security_protocol: its, by its number on the wire. voters: where they
    are given by id, else empty.
    """

    node_id: int
    servers: tuple[tuple[str, int], ...]
    voters: tuple[Voter, ...]
    listener: str
    security_protocol: int
    metadata_log_dir: str


def quorum_settings(config: BrokerConfig) -> QuorumSettings | None:
    """None for a broker that is a member of no quorum's cluster. Raises: ConfigError, all faults at once."""
    if "broker" not in config.process_roles or "controller" in config.process_roles:
        return None
    faults: list[str] = []
    voters = _voters(config.controller_quorum_voters, faults)
    servers = _servers(config.controller_quorum_bootstrap_servers, faults)
    faults += _faults(config, voters)
    if faults:
        raise ConfigError(faults)
    listener = config.controller_listener_names[0].upper()
    return QuorumSettings(
        config.broker_id,
        servers or tuple((each.host, each.port) for each in voters),
        voters,
        listener,
        SECURITY_PROTOCOLS.index(_protocol(config, listener) or ""),
        config.metadata_log_dir or next(filter(None, config.log_dirs or (config.log_dir,))),
    )


def refused_roles(config: BrokerConfig) -> list[str]:
    """A line for each setting by which a broker would be a controller among others, or alone by mistake.

    A stock file's quorum of one is a broker that is alone, with the metadata beside its logs.
    """
    roles = config.process_roles
    if roles == ("broker",):
        return []
    lines = []
    if roles and not set(roles).issuperset(ALONE):
        allowed = "broker, or broker,controller for a broker that is alone"
        lines.append(f"process.roles={','.join(roles)}: allowed: {allowed}: {NO_VOTE}")
    members = {
        "controller.quorum.voters": config.controller_quorum_voters,
        "controller.quorum.bootstrap.servers": config.controller_quorum_bootstrap_servers,
    }
    allowed = "one, for a broker that is alone; several with process.roles=broker"
    return lines + [
        f"{key}={','.join(some)}: allowed: {allowed}: {NO_VOTE}" for key, some in members.items() if len(some) > 1
    ]


def _faults(config: BrokerConfig, voters: tuple[Voter, ...]) -> list[str]:
    """Rules of a member, a line for each that is broken."""
    names = tuple(each.upper() for each in config.controller_listener_names)
    both = sorted(set(names) & set(listener_names(config.listeners)))
    first = names[0] if names else ""
    rules = [
        (config.broker_id >= 0, f"node.id={config.broker_id}: allowed: at least 0, with process.roles=broker"),
        (not config.zookeeper_connect, f"zookeeper.connect={config.zookeeper_connect}: allowed: without process.roles"),
        (
            bool(config.controller_quorum_voters or config.controller_quorum_bootstrap_servers),
            "process.roles=broker: allowed: with controller.quorum.bootstrap.servers or controller.quorum.voters",
        ),
        (bool(names), "controller.listener.names=: allowed: at least one, with process.roles=broker"),
        (not both, f"listeners={config.listeners}: {', '.join(both)}; allowed: none of controller.listener.names"),
        (
            not names or _protocol(config, first) is not None,
            f"controller.listener.names={','.join(names)}: {first}; allowed: names of listener.security.protocol.map",
        ),
        (
            all(each.node_id != config.broker_id for each in voters),
            f"node.id={config.broker_id}: allowed: no id of controller.quorum.voters: {NO_VOTE}",
        ),
    ]
    return [line for holds, line in rules if not holds]


def _protocol(config: BrokerConfig, listener: str) -> str | None:
    """The security protocol of the controllers' listener; None if it is unknown.

    One without an entry is PLAINTEXT where the map is the default's and no other listener is of TLS or SASL.
    """
    found = protocol_map(config.listener_security_protocol_map).get(listener)
    is_default = config.listener_security_protocol_map == BrokerConfig.KEYS["listener.security.protocol.map"].default
    secured = set(SECURITY_PROTOCOLS[1:])
    if found is None and is_default and not secured & set(listener_names(config.listeners)):
        return "PLAINTEXT"
    return found


def _voters(items: tuple[str, ...], faults: list[str]) -> tuple[Voter, ...]:
    found = []
    for item in items:
        number, at, address = item.partition("@")
        place = _place(address)
        if not at or not number.isdecimal() or place is None:
            faults.append(
                f"controller.quorum.voters={','.join(items)}: {item!r}; allowed: id@host:port, comma-separated"
            )
        else:
            found.append(Voter(int(number), *place))
    return tuple(found)


def _servers(items: tuple[str, ...], faults: list[str]) -> tuple[tuple[str, int], ...]:
    found = []
    for item in items:
        place = _place(item)
        if place is None:
            shown = f"controller.quorum.bootstrap.servers={','.join(items)}"
            faults.append(f"{shown}: {item!r}; allowed: host:port, comma-separated")
        else:
            found.append(place)
    return tuple(found)


def _place(address: str) -> tuple[str, int] | None:
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or not 0 < int(match[3]) <= 65_535:
        return None
    return match[1] or match[2], int(match[3])
