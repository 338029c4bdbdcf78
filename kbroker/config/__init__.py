"""Configuration: what may be set (broker, topic), where it is written (sources, listeners), what counts (resolve)."""

from kbroker.config.broker import BrokerConfig
from kbroker.config.environment import unheeded
from kbroker.config.given import ConfigError, Given
from kbroker.config.listeners import Listener, Listeners, is_every_interface, listeners_after, resolve_listeners
from kbroker.config.resolve import (
    ONE_BROKER,
    BrokerLayers,
    Entry,
    ListenerConfig,
    Source,
    Synonym,
    check_broker,
    check_file,
    check_group,
    check_topic,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
    is_password,
    listener_limits,
    listener_prefix,
    resolve_broker,
    resolve_listener,
    resolve_topic,
    warnings,
)
from kbroker.config.settings import ConfigType, Dynamic, Setting
from kbroker.config.sources import parse_properties, static_values
from kbroker.config.topic import TopicConfig

__all__ = [
    "ONE_BROKER",
    "BrokerConfig",
    "BrokerLayers",
    "ConfigError",
    "ConfigType",
    "Dynamic",
    "Entry",
    "Given",
    "Listener",
    "ListenerConfig",
    "Listeners",
    "Setting",
    "Source",
    "Synonym",
    "TopicConfig",
    "check_broker",
    "check_file",
    "check_group",
    "check_topic",
    "describe_all_brokers",
    "describe_broker",
    "describe_group",
    "describe_topic",
    "is_every_interface",
    "is_password",
    "listener_limits",
    "listener_prefix",
    "listeners_after",
    "parse_properties",
    "resolve_broker",
    "resolve_listener",
    "resolve_listeners",
    "resolve_topic",
    "static_values",
    "unheeded",
    "warnings",
]
