"""The settings in force on this broker: its own, each topic's and each group's, as they change while it runs.

Holds what `/config` says, once read, over the static values; resolving is `kbroker.config`'s business. All parts read
`configs.broker.some_setting` afresh instead of keeping it. `broker/controller_requests.py` fills in a topic's
settings before its first partition appears here, the change notices keep them right.

Passwords are enciphered in the metadata store, by the secret of this broker's file, and clear here (`layers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.config import (
    BrokerConfig,
    BrokerLayers,
    ConfigError,
    TopicConfig,
    check_broker,
    check_topic,
    is_password,
    resolve_broker,
    resolve_topic,
)
from kbroker.config.limits import PASSWORDS_OF_A_BROKER

if TYPE_CHECKING:
    from kbroker.security.password_encoder import PasswordEncoder

log = logging.getLogger("kbroker.config")

NOTHING_SET: Mapping[str, str] = {}


class Configs:
    """layers: every value by its source. broker: this broker's settings, resolved. overrides: of topics known here.

    groups: what is set for a group (resource type GROUP), as text.
    """

    def __init__(self, layers: BrokerLayers) -> None:
        """Raises: ConfigError if the static values are not legal."""
        self.layers = layers
        self.broker: BrokerConfig = resolve_broker(layers)
        self.verify: Callable[[BrokerLayers], list[str]] = lambda layers: []  # what files they name: the runtime's
        self.passwords_are_clear = False  # as a quorum has them; a metadata store has them enciphered
        self.overrides: dict[str, Mapping[str, str]] = {}
        self.groups: dict[str, Mapping[str, str]] = {}
        self._plain: TopicConfig | None = None  # what all topics without overrides share
        self._resolved: dict[str, TopicConfig] = {}
        self._clear: dict[str, str] = {}  # passwords by what the store has of them, which takes milliseconds to read

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
        """What is set for a group; as long as that does not change, the same object."""
        return self.groups.get(group_id, NOTHING_SET)

    def set_group(self, group_id: str, settings: Mapping[str, str]) -> bool:
        """What is set for a group, all of it. Returns: whether it is another thing than before."""
        if self.group(group_id) == settings:
            return False
        kept = self.sound_of_group(settings)
        if kept:
            self.groups[group_id] = kept
        else:
            self.groups.pop(group_id, None)
        return True

    def sound_of_group(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Those of a group's settings that are known and legal, wherever the bounds are now."""
        if not settings:
            return {}
        from kbroker.config.group import legal  # only a group with settings pays for it

        return legal(settings)

    def forget_topic(self, topic: str) -> None:
        """The topic has no replica here any more."""
        self.overrides.pop(topic, None)
        self._resolved.pop(topic, None)

    def set_dynamic(self, *, broker: Mapping[str, str] | None = None, default: Mapping[str, str] | None = None) -> bool:
        """What is set for this broker, or for all, at run time; None leaves it. Returns: whether anything changed.

        Passwords are as the store has them, enciphered. Values that are not legal together with the others are not
        taken, and stay as they were (a line in the log).
        """
        layers = self.layers.with_dynamic(
            broker=self.layers.dynamic_broker if broker is None else self.deciphered(broker),
            default=self.layers.dynamic_default if default is None else without_passwords(default),
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

    # -- passwords

    def deciphered(self, stored: Mapping[str, str]) -> Mapping[str, str]:
        """This broker's own dynamic settings, with their passwords clear; one that cannot be read is none, with a line.

        What the secret of before has enciphered is read, too: another broker, or tool, may have been late.
        """
        if self.passwords_are_clear or not any(map(is_password, stored)):
            return stored
        clear = {key: text for key, text in stored.items() if not is_password(key)}
        for key in stored.keys() - clear.keys():
            text = stored[key]
            try:
                if text not in self._clear:
                    if len(self._clear) >= 2 * PASSWORDS_OF_A_BROKER:
                        self._clear.clear()
                    self._clear[text] = self._deciphered(text)
                clear[key] = self._clear[text]
            except ValueError as error:
                log.error("Dynamic password config %s could not be decoded, ignoring: %s", key, error)
        return {key: clear[key] for key in stored if key in clear}

    def _deciphered(self, text: str) -> str:
        """Raises: ValueError, which tells no secret."""
        current, old = self._encoder(self.broker.password_encoder_secret), self.broker.password_encoder_old_secret
        try:
            return current.decode(text)
        except ValueError:
            if not old:
                raise
            return self._encoder(old).decode(text)

    def enciphered(
        self, clear: Mapping[str, str], stored: Mapping[str, str], token: Callable[[int], bytes]
    ) -> dict[str, str]:
        """This broker's own dynamic settings as the store keeps them. Raises: ValueError without a secret.

        stored: what is there now: of a password that stays, its text stays. token: random bytes, so many.
        """
        count = sum(map(is_password, clear))
        if not count:
            return dict(clear)
        if count > PASSWORDS_OF_A_BROKER:
            raise ValueError(f"{count} passwords of one broker; allowed: {PASSWORDS_OF_A_BROKER}")
        before = self.deciphered({key: text for key, text in stored.items() if key in clear})
        return {
            key: text
            if not is_password(key)
            else stored[key]
            if before.get(key) == text
            else self._encoder(self.broker.password_encoder_secret).encode(text, token)
            for key, text in clear.items()
        }

    def enciphered_again(self, stored: Mapping[str, str], token: Callable[[int], bytes]) -> dict[str, str]:
        """What is kept, with that by the new secret which is by the one of before; the same if there is none of it."""
        old = self.broker.password_encoder_old_secret
        again = dict(stored)
        for key in filter(is_password, stored) if old else ():
            try:
                clear = self._encoder(old).decode(stored[key])
                again[key] = self._encoder(self.broker.password_encoder_secret).encode(clear, token)
            except ValueError:  # by the new one, most likely: the old one is still in the file
                continue
        return again

    def _encoder(self, secret: str | None) -> PasswordEncoder:
        """Raises: ValueError."""
        if not secret:
            raise ValueError("Password encoder secret not configured")
        from kbroker.security.password_encoder import KEY_FACTORY, PasswordEncoder  # only a password pays for it

        config = self.broker
        return PasswordEncoder(
            secret,
            config.password_encoder_keyfactory_algorithm or KEY_FACTORY,
            config.password_encoder_cipher_algorithm,
            config.password_encoder_key_length,
            config.password_encoder_iterations,
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


def without_passwords(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Those that are set for all brokers: a password is one broker's, by its own secret."""
    ignored = [key for key in settings if is_password(key)]
    if not ignored:
        return settings
    log.error("Per-broker configs defined at default cluster level will be ignored: %s", ", ".join(ignored))
    return {key: text for key, text in settings.items() if key not in ignored}
