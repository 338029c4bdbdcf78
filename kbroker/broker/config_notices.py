"""Changed settings, as brokers tell each other: `/config/changes` watched, settings read again, logs told.

Called by `control_plane.py`. A notice says which entity has changed; what it says now is read when the notice is
handled, so that several notices at once, or one that came twice, do no harm. Notices are thrown away PURGE_AFTER_MS
after this broker first saw them, as Apache brokers do; whoever was away longer reads all settings when it comes back.

Settings of users, clients and addresses are all kept here (`metadata/entities.py`), for each broker needs them all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.facts import BrokerConfigChanged, SettingsChanged
from kbroker.config.limits import WRITTEN_AT_ONCE
from kbroker.controller.epoch import pieces
from kbroker.metadata.entities import KINDS, Entities, EntitiesChanged, is_entity
from kbroker.metadata.steps import Procedure, SessionLostError, Steps
from kbroker.metadata.store import (
    ALL_BROKERS,
    CONFIG_CHANGES,
    config_path,
    decode_config,
    decode_config_change,
    understood,
)
from kbroker.ports import Children, Delete, Get, NodeChanged

if TYPE_CHECKING:
    from kbroker.broker.facts import Tell
    from kbroker.metadata.configs import Configs
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.config")

PURGE_AFTER_MS = 15 * 60 * 1000


class ConfigNotices:
    """What this broker has seen of `/config/changes`."""

    def __init__(
        self, broker_id: int, configs: Configs, replicas: ReplicaManager, steps: Steps, scheduler: Scheduler, tell: Tell
    ) -> None:
        self.entities = Entities()
        self._broker_id = broker_id
        self._configs = configs
        self._replicas = replicas
        self._steps = steps
        self._tell = tell
        self._seen_at_ms: dict[str, int] = {}  # by name, in order
        self._purge_at = scheduler.alarm(self._purge)
        self._is_reading = False
        self._is_stale = False  # changed again while it was being read

    # -- what happens

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins: watch, and take what is there for known, since all settings are read anew."""
        (children,) = yield [Children(CONFIG_CHANGES, watch=True)]
        self._seen_at_ms = {name: self._seen_at_ms.get(name, now_ms) for name in children.names}
        self._purge_in_time()
        topics = list(self._configs.overrides)
        yield from self._read_topics(topics)
        yield from self._read_all_entities()

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        if change.path != CONFIG_CHANGES:
            return False
        self._read(now_ms)
        return True

    def _purge(self, now_ms: int) -> None:
        """Throw old notices away."""
        old = [name for name, seen_ms in self._seen_at_ms.items() if now_ms >= seen_ms + PURGE_AFTER_MS]
        if old:
            for name in old:
                del self._seen_at_ms[name]
            self._steps.run(_delete(old), failed=_only_lost)
        self._purge_in_time()

    def _purge_in_time(self) -> None:
        first_ms = next(iter(self._seen_at_ms.values()), None)
        if first_ms is not None:
            self._purge_at.set(first_ms + PURGE_AFTER_MS)

    # -- reading

    def _read(self, now_ms: int) -> None:
        self._is_stale = True
        if not self._is_reading:
            self._is_reading = True
            self._steps.run(self._reading(now_ms), lambda _: self._end(), self._failed)

    def _end(self) -> None:
        self._is_reading = False

    def _failed(self, error: Exception) -> None:
        self._is_reading = False
        _only_lost(error)

    def _reading(self, now_ms: int) -> Procedure[None]:
        while self._is_stale:
            self._is_stale = False
            (children,) = yield [Children(CONFIG_CHANGES, watch=True)]
            fresh = [name for name in children.names if name not in self._seen_at_ms]
            self._is_stale |= len(fresh) > WRITTEN_AT_ONCE
            del fresh[WRITTEN_AT_ONCE:]  # the others follow: each may change the settings of many partitions
            answers = yield [Get(f"{CONFIG_CHANGES}/{name}") for name in fresh]
            for name in fresh:
                self._seen_at_ms[name] = now_ms
            self._purge_in_time()
            said = [
                understood(answer.path, answer.data, decode_config_change) for answer in answers if answer.fault is None
            ]
            changed = {each: None for each in said if each is not None}
            yield from self._read_topics([name for kind, name in changed if kind == "topics"])
            if changed.keys() & {("brokers", ALL_BROKERS), ("brokers", str(self._broker_id))}:
                yield from self._read_broker()
            paths = (f"{kind}/{name}" for kind, name in changed if kind in KINDS)
            yield from self._read_entities([path for path in paths if is_entity(path)])
            if changed:
                self._tell(SettingsChanged())

    def _read_topics(self, topics: list[str]) -> Procedure[None]:
        """Topics without a replica here are none of this broker's business."""
        held = [topic for topic in topics if topic in self._configs.overrides]
        answers = yield [Get(config_path("topics", topic)) for topic in held]
        for topic, answer in zip(held, answers, strict=True):
            self.set_topic(topic, decode_config(answer.data) if answer.fault is None else {})

    def _read_broker(self) -> Procedure[None]:
        own, default = yield [
            Get(config_path("brokers", str(self._broker_id))),
            Get(config_path("brokers", ALL_BROKERS)),
        ]
        self.set_broker(own=decode_config(own.data), default=decode_config(default.data))

    def _read_all_entities(self) -> Procedure[None]:
        """Those that are there, and those that were: they may have gone while no notice reached this broker."""
        paths = dict.fromkeys(self.entities.settings)
        for kind, listed in zip(KINDS, (yield [Children(f"/config/{kind}") for kind in KINDS]), strict=True):
            paths |= dict.fromkeys(f"{kind}/{name}" for name in listed.names)
        users = [path for path in paths if path.startswith("users/") and path.count("/") == 1]
        for some in pieces(users, WRITTEN_AT_ONCE):
            clients = yield [Children(f"/config/{user}/clients") for user in some]
            for user, listed in zip(some, clients, strict=True):
                paths |= dict.fromkeys(f"{user}/clients/{name}" for name in listed.names)
        yield from self._read_entities(list(paths))

    def _read_entities(self, paths: list[str]) -> Procedure[None]:
        for some in pieces(paths, WRITTEN_AT_ONCE):
            answers = yield [Get(f"/config/{path}") for path in some]
            for path, answer in zip(some, answers, strict=True):
                self.set_entity(path, decode_config(answer.data) if answer.fault is None else {})

    # -- applying, also by the handlers of this broker's own changes

    def set_topic(self, topic: str, settings: dict[str, str]) -> None:
        """A topic's settings are these now."""
        if topic not in self._configs.overrides or self._configs.overrides[topic] == settings:
            return
        self._configs.set_topic(topic, settings)
        self._replicas.reconfigure(topic)
        log.info("settings of topic %s: %s", topic, settings or "the defaults")

    def set_entity(self, path: str, settings: dict[str, str]) -> None:
        """What is set for a user, a client or an address is this now. Its values may be secrets: they are not said."""
        if self.entities.put(path, settings):
            self._tell(EntitiesChanged((path,)))
            log.info("settings of %s: %s", path, ", ".join(settings) or "none")

    def set_broker(self, *, own: dict[str, str] | None = None, default: dict[str, str] | None = None) -> None:
        """The dynamic settings of this broker, or of all, are these now; topics follow where they have none."""
        if not self._configs.set_dynamic(broker=own, default=default):
            return
        self._tell(BrokerConfigChanged())
        for topic in {topic for topic, _ in self._replicas.partitions}:
            self._replicas.reconfigure(topic)
        log.info("dynamic settings of this broker have changed")


def _delete(names: list[str]) -> Procedure[None]:
    yield [Delete(f"{CONFIG_CHANGES}/{name}") for name in names]


def _only_lost(error: Exception) -> None:
    if not isinstance(error, SessionLostError):
        raise error
