"""The settings in force on this broker: its own, each topic's and each group's, as they change while it runs.

Holds what `/config` says, once read, over the static values; resolving is `kbroker.config`'s business. All parts read
`configs.broker.some_setting` afresh instead of keeping it. `broker/controller_requests.py` fills in a topic's
settings before its first partition appears here, the change notices keep them right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kbroker.config import (
    BrokerConfig,
    BrokerLayers,
    ConfigError,
    TopicConfig,
    check_broker,
    check_topic,
    resolve_broker,
    resolve_topic,
)

log = logging.getLogger("kbroker.config")


class Configs:
    """layers: every value by its source. broker: this broker's settings, resolved. overrides: of topics known here.

    groups: what is set for a group (resource type GROUP), as text.
    """

    def __init__(self, layers: BrokerLayers) -> None:
        """Raises: ConfigError if the static values are not legal."""
        self.layers = layers
        self.broker: BrokerConfig = resolve_broker(layers)
        self.verify: Callable[[BrokerLayers], list[str]] = lambda layers: []  # what files they name: the runtime's
        self.overrides: dict[str, Mapping[str, str]] = {}
        self.groups: dict[str, Mapping[str, str]] = {}
        self._plain: TopicConfig | None = None  # what all topics without overrides share
        self._resolved: dict[str, TopicConfig] = {}

    def topic_config(self, topic: str) -> TopicConfig:
        """A topic's settings; those of a topic not known here are the broker's defaults."""
        overrides = self.overrides.get(topic)
        if not overrides:
            if self._plain is None:
                self._plain = resolve_topic({}, self.broker)
            return self._plain
        found = self._resolved.get(topic)
        if found is None:
            found = self._resolved[topic] = self._resolve(topic, overrides)
        return found

    def set_topic(self, topic: str, overrides: Mapping[str, str]) -> None:
        """What is set for a topic, all of it."""
        self.overrides[topic] = overrides
        self._resolved.pop(topic, None)

    def group(self, group_id: str) -> Mapping[str, str]:
        """What is set for a group."""
        return self.groups.get(group_id, {})

    def forget_topic(self, topic: str) -> None:
        """The topic has no replica here any more."""
        self.overrides.pop(topic, None)
        self._resolved.pop(topic, None)

    def set_dynamic(self, *, broker: Mapping[str, str] | None = None, default: Mapping[str, str] | None = None) -> bool:
        """What is set for this broker, or for all, at run time; None leaves it. Returns: whether anything changed.

        Values that are not legal together with the others are not taken, and stay as they were (a line in the log).
        """
        layers = self.layers.with_dynamic(
            broker=self.layers.dynamic_broker if broker is None else broker,
            default=self.layers.dynamic_default if default is None else default,
        )
        try:
            resolved = resolve_broker(layers)
        except ConfigError as error:
            log.error("dynamic settings are not taken: %s", "; ".join(error.lines))
            return False
        changed = layers != self.layers
        self.layers, self.broker = layers, resolved
        self._plain = None
        self._resolved.clear()
        return changed

    def faults(self, changes: Mapping[str, str], *, per_broker: bool) -> list[str]:
        """Why these cannot become the dynamic values of this broker, or of all, a line each; empty if they can."""
        faults = check_broker(changes, self.layers, per_broker=per_broker)
        if faults:
            return faults
        layers = self.layers
        return self.verify(
            layers._replace(dynamic_broker=changes) if per_broker else layers._replace(dynamic_default=changes)
        )

    def _resolve(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        try:
            return resolve_topic(overrides, self.broker)
        except ConfigError as error:
            log.error("settings of topic %s are not taken: %s", topic, "; ".join(error.lines))
        return resolve_topic(self.sound(overrides), self.broker)

    def sound(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Those of a topic's settings that are known and legal; none if they contradict each other.

        What is stored was legal when it was written, perhaps by a broker of another version.
        """
        kept = {key: text for key, text in overrides.items() if not check_topic({key: text}, self.broker)}
        return {} if check_topic(kept, self.broker) else kept
