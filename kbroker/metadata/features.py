"""Features (KIP-584): what this broker can do, and at which level all brokers of the cluster have agreed to do it.

Code that depends on a feature asks `Features.is_on`, each time: levels change while brokers run. What is agreed is in
the node `/feature`, as Apache Kafka 3.9 keeps it; `FeatureNode` reads it in each session with the store, before the
broker registers, and again whenever it changes. The controller alone writes it (`controller/features.py`), but for a
broker that is alone: that one has every feature on at its newest level from the start.

A cluster on ZooKeeper begins with none, as Apache's does: an Apache broker of ZooKeeper mode supports no feature, and
ends itself if one is finalized.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.metadata.steps import SessionLostError
from kbroker.metadata.store import FEATURES, SupportedFeature, decode_features, encode_features, understood
from kbroker.ports import Create, Delete, Exists, Get, Multi
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.metadata.steps import Procedure, Steps
    from kbroker.ports import NodeChanged, Outcome

log = logging.getLogger("kbroker.cluster")

GROUP_VERSION = "group.version"
"""1: groups of the consumer protocol (KIP-848)."""
SHARE_VERSION = "share.version"
"""1: share groups (KIP-932). 2: their dead letter queues (KIP-1191)."""
STREAMS_VERSION = "streams.version"
"""1: streams groups (KIP-1071)."""
TRANSACTION_VERSION = "transaction.version"
"""1: the coordinator's records have tagged fields. 2: an epoch for each transaction (KIP-890)."""

SUPPORTED: tuple[SupportedFeature, ...] = (
    SupportedFeature(GROUP_VERSION, 0, 1),
    SupportedFeature(SHARE_VERSION, 0, 2),
    SupportedFeature(STREAMS_VERSION, 0, 1),
    SupportedFeature(TRANSACTION_VERSION, 0, 2),
)
"""What this broker can do. A row comes with the code that does it."""

UNKNOWN_EPOCH = -1
LOOK = (Exists(FEATURES, watch=True), Get(FEATURES))  # the watch is on a node that is not there, too


class FeaturesChanged(NamedTuple):
    """Fact: other levels are finalized."""


class Features:
    """What the cluster has finalized, as this broker knows.

    finalized: levels by name, each at least 1. epoch: grows with each change; -1 before anything is known.
    """

    def __init__(
        self, finalized: Mapping[str, int] | None = None, tell: Callable[[object], None] | None = None
    ) -> None:
        """tell: takes `FeaturesChanged`."""
        self.finalized: Mapping[str, int] = finalized or {}
        self.epoch = UNKNOWN_EPOCH
        self._tell = tell

    def level(self, name: str) -> int:
        """The level of a feature; 0: it is off."""
        return self.finalized.get(name, 0)

    def is_on(self, name: str, level: int = 1) -> bool:
        """Whether a feature is finalized at this level or a higher one."""
        return self.finalized.get(name, 0) >= level

    def adopt(self, levels: Mapping[str, int], epoch: int) -> None:
        """Accept these levels as finalized now."""
        self.epoch = epoch
        if levels != self.finalized:
            self.finalized = levels
            log.info("finalized features: %s", ", ".join(f"{name}={levels[name]}" for name in levels) or "none")
            if self._tell is not None:
                self._tell(FeaturesChanged())


def newest() -> dict[str, int]:
    """Every feature at the highest level that this broker supports."""
    return {each.name: each.last for each in SUPPORTED}


def unsupported(finalized: Mapping[str, int], supported: Iterable[SupportedFeature]) -> dict[str, int]:
    """Those of some levels that a broker with these features cannot run."""
    ranges = {each.name: (each.first, each.last) for each in supported}
    return {
        name: level
        for name, level in finalized.items()
        if name not in ranges or not ranges[name][0] <= level <= ranges[name][1]
    }


class FeatureNode:
    """An image of `/feature` (`store_plane.Image`), which keeps a `Features` right."""

    def __init__(self, features: Features, steps: Steps, end: Callable[[str], None], *, alone: bool) -> None:
        """end: has the broker end, for it cannot be in a cluster that does what it cannot. alone: see above."""
        self._features = features
        self._steps = steps
        self._end = end
        self._alone = alone

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins. Who is alone switches everything on, until levels are changed by who asks for it."""
        create = Create(FEATURES, encode_features(newest()))
        *_, found = yield [create, *LOOK] if self._alone else LOOK
        if self._alone and _was_made_before(found):
            yield [Multi((Delete(FEATURES, 0), create))]  # its version stays that of a node that was never set
            *_, found = yield LOOK
        self._apply_finalized(found)

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        if change.path != FEATURES:
            return False
        self._steps.start(self._read(), failed=_only_lost)
        return True

    def _read(self) -> Procedure[None]:
        *_, found = yield LOOK
        self._apply_finalized(found)

    def _apply_finalized(self, found: Outcome) -> None:
        levels = {} if found.stat is None else _levels(found)
        if levels is None:
            return  # what was agreed on before still is
        unfit = unsupported(levels, SUPPORTED)
        if unfit:
            wanted = ", ".join(f"{name}={level}" for name, level in unfit.items())
            able = ", ".join(f"{each.name} {each.first}-{each.last}" for each in SUPPORTED)
            self._end(f"the cluster has finalized {wanted}; this broker supports {able}")
            return
        self._features.adopt(levels, UNKNOWN_EPOCH if found.stat is None else found.stat.version)


def _levels(found: Outcome) -> dict[str, int] | None:
    """None if they make no sense."""
    return understood(FEATURES, found.data, decode_features)


def _was_made_before(found: Outcome) -> bool:
    """Whether an earlier kbroker made the node, which knew fewer features, and what it says was never changed."""
    if found.stat is None or found.stat.version:
        return False
    levels = _levels(found)
    return levels is not None and levels != newest() and not unsupported(levels, SUPPORTED)


def _only_lost(error: Exception) -> None:
    if not isinstance(error, SessionLostError):
        raise error
