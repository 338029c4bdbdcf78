"""The levels of features that the cluster runs: checked against what every live broker supports, written to `/feature`.

A procedure of the active controller, begun by UpdateFeatures. All updates of a request are made or none. Which broker
can do what is in its registration; a broker that cannot do what is finalized does not join (`metadata/features.py`).

Source: FeatureControlManager of Apache Kafka 4.4, by behaviour and words, for Apache's controller of ZooKeeper mode
knows no feature to change; what is written is what that one reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.controller.epoch import ControllerEpoch, check_fence, fault_of
from kbroker.metadata.features import Features
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import FEATURES, BrokerInfo, SupportedFeature, decode_features, encode_features, understood
from kbroker.ports import Get, SetData, StoreFault
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

ATTEMPTS = 10
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class Update(NamedTuple):
    """A feature and the level it is to have; 0: off. kind: UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE."""

    name: str
    level: int
    kind: int


def update(
    epoch: ControllerEpoch, updates: Sequence[Update], features: Features, *, validate_only: bool
) -> Procedure[bool]:
    """Finalize other levels. features: what this broker knows of them, right when this ends. Returns: whether any is.

    Raises: KafkaError.
    """
    for _ in range(ATTEMPTS):
        (found,) = yield [Get(FEATURES)]
        current = None if found.stat is None else understood(FEATURES, found.data, decode_features)
        if found.stat is None or current is None:
            raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, f"{FEATURES} in the metadata store makes no sense")
        wanted = after(updates, current, epoch.broker_id, epoch.context.brokers)
        if validate_only or wanted == current:
            return False
        (done,) = yield [epoch.fenced(SetData(FEATURES, encode_features(wanted), found.stat.version))]
        check_fence([done])
        if done.fault is None:
            stat = done.parts[1].stat
            assert stat is not None, done
            features.adopt(wanted, stat.version)
            return True
        if fault_of(done) is not StoreFault.BAD_VERSION:
            break
    raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, f"{FEATURES} could not be written")


def after(
    updates: Sequence[Update], current: Mapping[str, int], controller: int, brokers: Mapping[int, BrokerInfo]
) -> dict[str, int]:
    """The levels to which updates lead. controller: its node id. Raises: KafkaError for the first that may not be."""
    levels = dict(current)
    for each in updates:
        reason = _why_not(each, current.get(each.name, 0), controller, brokers)
        if reason:
            text = f"Invalid update version {each.level} for feature {each.name}. {reason}"
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
        levels[each.name] = each.level
    return {name: level for name, level in levels.items() if level}


def _why_not(update: Update, level: int, controller: int, brokers: Mapping[int, BrokerInfo]) -> str:
    """In the order in which Apache's controller looks; empty if it may be. level: that it has now."""
    if update.kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    own = brokers.get(controller)
    others = [(f"Broker {each}", brokers[each].features) for each in sorted(brokers)]
    for who, supported in [(f"Local controller {controller}", own.features if own else ()), *others]:
        if reason := _unsupported(update, who, supported):
            return reason
    if update.level < level and update.kind == UPGRADE:
        without = "without setting the upgrade type to either safe or unsafe downgrade."
        return f"Can't downgrade the version of this feature {without}"
    if update.level > level and update.kind != UPGRADE:
        return "Can't downgrade to a newer version."
    return ""


def _unsupported(update: Update, who: str, supported: Sequence[SupportedFeature]) -> str:
    """Every broker can do without a feature, which is level 0, if it knows that there is one."""
    own = next((each for each in supported if each.name == update.name), None)
    if own is None:
        is_known = update.level == 0 and who.startswith("Broker ")
        return "" if is_known else f"{who} does not support this feature."
    return "" if 0 <= update.level <= own.last else f"{who} only supports versions 0-{own.last}"
