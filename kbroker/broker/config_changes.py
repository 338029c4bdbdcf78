"""Changed settings, as brokers tell each other: `/config/changes` watched, settings read again, logs told.

Called by `store_plane.py`. A notice says which entity has changed (`notices.py`). What is to be done about a change is
the same where settings come from a quorum (`AppliedConfigs`), and where a handler has changed them itself.

Settings of users, clients and addresses are all kept here (`metadata/entities.py`), for each broker needs them all;
those of groups in `metadata/configs.py`.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from kbroker.broker.facts import BrokerConfigChanged, SettingsChanged
from kbroker.broker.notices import Notices
from kbroker.config.limits import WRITTEN_AT_ONCE
from kbroker.controller.epoch import pieces
from kbroker.metadata.entities import GROUPS, KINDS, Entities, EntitiesChanged, desanitized, group_node, is_entity
from kbroker.metadata.store import (
    ALL_BROKERS,
    CONFIG_CHANGES,
    config_path,
    decode_config,
    decode_config_change,
    understood,
)
from kbroker.ports import Children, Get, NodeChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kbroker.broker.facts import Tell
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.steps import Procedure, Steps
    from kbroker.ports import Outcome
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.config")

_NO_NODE = re.compile(r"\.{1,2}|.*[/\0].*", re.DOTALL)
"""What a notice may name as a group that is none: a node of the store has no such name."""


class AppliedConfigs:
    """Settings as they change, applied: to the logs and partitions that are here, and told to who depends on them.

    entities: what is set for users, clients and addresses.
    """

    def __init__(self, configs: Configs, replicas: ReplicaManager, tell: Tell) -> None:
        self.entities = Entities()
        self._configs = configs
        self._replicas = replicas
        self._tell = tell

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

    def set_group(self, group_id: str, settings: dict[str, str]) -> None:
        """What is set for a group is this now."""
        if self._configs.set_group(group_id, settings):
            log.info("settings of group %s: %s", group_id, settings or "the defaults")

    def set_broker(
        self, *, own: dict[str, str] | None = None, default: dict[str, str] | None = None, is_asked: bool = False
    ) -> None:
        """The dynamic settings of this broker, or of all, are these now; topics follow where they have none.

        is_asked: by a request, which is told of even if nothing changes: what files hold may have (KIP-226).
        """
        has_changed = self._configs.set_dynamic(broker=own, default=default)
        if has_changed or is_asked:
            self._tell(BrokerConfigChanged())
        if not has_changed:
            return
        for topic in {topic for topic, _ in self._replicas.partitions}:
            self._replicas.reconfigure(topic)
        log.info("dynamic settings of this broker have changed")


class ConfigChanges(AppliedConfigs):
    """What this broker has seen of `/config/changes`."""

    def __init__(
        self, broker_id: int, configs: Configs, replicas: ReplicaManager, steps: Steps, scheduler: Scheduler, tell: Tell
    ) -> None:
        super().__init__(configs, replicas, tell)
        self._broker_id = broker_id
        self._notices = Notices(CONFIG_CHANGES, steps, scheduler, self._handle_changes)

    # -- what happens

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins: all settings are read."""
        *listed, groups = yield from self._notices.begin(now_ms, [f"/config/{kind}" for kind in (*KINDS, GROUPS)])
        topics = list(self._configs.overrides)
        yield from self._read_topics(topics)
        yield from self._read_all_entities(listed)
        yield from self._read_groups(dict.fromkeys([*map(group_node, self._configs.groups), *groups.names]))

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        return self._notices.node_changed(change, now_ms)

    # -- reading

    def _handle_changes(self, answers: Sequence[Outcome]) -> Procedure[None]:
        said = [understood(answer.path, answer.data, decode_config_change) for answer in answers]
        changed = {each: None for each in said if each is not None}
        yield from self._read_topics([name for kind, name in changed if kind == "topics"])
        if changed.keys() & {("brokers", ALL_BROKERS), ("brokers", str(self._broker_id))}:
            yield from self._read_broker()
        paths = (f"{kind}/{name}" for kind, name in changed if kind in KINDS)
        yield from self._read_entities([path for path in paths if is_entity(path)])
        yield from self._read_groups([name for kind, name in changed if kind == GROUPS])
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

    def _read_all_entities(self, listed_of_kinds: Sequence[Outcome]) -> Procedure[None]:
        """Those that are there, and those that were: they may have gone while no notice reached this broker.

        Where there are none, nothing is asked of the store.
        """
        paths = dict.fromkeys(self.entities.settings)
        for kind, listed in zip(KINDS, listed_of_kinds, strict=True):
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

    def _read_groups(self, nodes: Iterable[str]) -> Procedure[None]:
        for some in pieces([node for node in nodes if node and not _NO_NODE.fullmatch(node)], WRITTEN_AT_ONCE):
            answers = yield [Get(config_path(GROUPS, node)) for node in some]
            for node, answer in zip(some, answers, strict=True):
                self.set_group(desanitized(node), decode_config(answer.data) if answer.fault is None else {})
