"""Every setting of a group (resource type GROUP): of consumer groups, of share groups and of streams groups.

A group's value is its own, else the broker's for all groups (`broker=`). It must lie within the bounds that the broker
sets (BOUNDS) when it is set; who acts on it takes the nearest bound where those have moved since. Loaded when a group's
settings are described or changed; coordinators read the text by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.broker import BrokerConfig
from kbroker.config.settings import Boolean, Check, Int, List, Long, Settings, String, Value, at_least, one_of, setting
from kbroker.config.share_groups import EARLIEST, LATEST, parse_auto_offset_reset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE_AT_ONCE = "assignments are made at once here"
NO_WARMUP = "streams groups have no warm-up tasks here"
OWN_INTERVAL = "a share group's assignment is made with each change"


def _is_reset(text: str) -> bool:
    try:
        parse_auto_offset_reset(text)
    except ValueError:
        return False
    return True


AUTO_OFFSET_RESET = Check(f"{EARLIEST}, {LATEST}, or by_duration: and a duration as P1DT2H30M", _is_reset)
OF_USERS = Check("not starting with __", lambda name: not name.startswith("__"))


class GroupConfig(Settings):
    """One group's settings, resolved."""

    consumer_session_timeout_ms: Int = setting(
        45_000,
        at_least(1),
        broker="group.consumer.session.timeout.ms",
        doc="How long a member of this consumer group may be silent.",
    )
    consumer_heartbeat_interval_ms: Int = setting(
        5000,
        at_least(1),
        broker="group.consumer.heartbeat.interval.ms",
        doc="How often members of this consumer group send heartbeats.",
    )
    consumer_assignment_interval_ms: Int = setting(
        1000,
        at_least(0),
        broker="group.consumer.assignment.interval.ms",
        doc="Shortest time between two target assignments of this consumer group.",
    )
    consumer_assignor_offload_enable: Boolean = setting(
        True, doc="Whether assignments are made by a thread of their own.", unused=HERE_AT_ONCE
    )
    share_session_timeout_ms: Int = setting(
        45_000,
        at_least(1),
        broker="group.share.session.timeout.ms",
        doc="How long a member of this share group may be silent.",
    )
    share_heartbeat_interval_ms: Int = setting(
        5000,
        at_least(1),
        broker="group.share.heartbeat.interval.ms",
        doc="How often members of this share group send heartbeats.",
    )
    share_record_lock_duration_ms: Int = setting(
        30_000,
        at_least(1000),
        broker="group.share.record.lock.duration.ms",
        doc="How long a record is a consumer's before it is given to another one.",
    )
    share_delivery_count_limit: Int = setting(
        5,
        at_least(2),
        broker="group.share.delivery.count.limit",
        doc="How often a record is delivered before it is given up.",
    )
    share_partition_max_record_locks: Int = setting(
        2000,
        at_least(100),
        broker="group.share.partition.max.record.locks",
        doc="Most records of a partition that are in flight in this share group.",
    )
    share_auto_offset_reset: String = setting(
        LATEST, AUTO_OFFSET_RESET, doc="Where this share group begins: earliest, latest, or by_duration:P1DT2H."
    )
    share_isolation_level: String = setting(
        "read_uncommitted",
        one_of("read_committed", "read_uncommitted"),
        doc="Whether records of transactions that are open or were aborted are delivered to this share group.",
    )
    share_renew_acknowledge_enable: Boolean = setting(
        True, doc="Whether consumers of this share group may hold records for longer by acknowledging with renew."
    )
    share_assignment_interval_ms: Int = setting(
        1000, at_least(0), doc="Shortest time between two assignments of this share group.", unused=OWN_INTERVAL
    )
    share_assignor_offload_enable: Boolean = setting(
        True, doc="Whether assignments are made by a thread of their own.", unused=HERE_AT_ONCE
    )
    streams_session_timeout_ms: Int = setting(
        45_000,
        at_least(1),
        broker="group.streams.session.timeout.ms",
        doc="How long a member of this streams group may be silent.",
    )
    streams_heartbeat_interval_ms: Int = setting(
        5000,
        at_least(1),
        broker="group.streams.heartbeat.interval.ms",
        doc="How often members of this streams group send heartbeats.",
    )
    streams_num_standby_replicas: Int = setting(
        0,
        at_least(0),
        broker="group.streams.num.standby.replicas",
        doc="Standby tasks of each task with state in this streams group.",
    )
    streams_initial_rebalance_delay_ms: Int = setting(
        3000,
        at_least(0),
        broker="group.streams.initial.rebalance.delay.ms",
        doc="How long this streams group waits for more members before tasks are assigned.",
    )
    streams_assignment_interval_ms: Int = setting(
        1000,
        at_least(0),
        broker="group.streams.assignment.interval.ms",
        doc="Shortest time between two target assignments of this streams group.",
    )
    streams_assignor_offload_enable: Boolean = setting(
        True, doc="Whether assignments are made by a thread of their own.", unused=HERE_AT_ONCE
    )
    streams_task_offset_interval_ms: Int = setting(
        60_000,
        at_least(1),
        broker="group.streams.task.offset.interval.ms",
        doc="How often members of this streams group tell how far they have restored their tasks.",
    )
    streams_num_warmup_replicas: Int = setting(
        2, at_least(0), doc="Tasks of this streams group that warm up at a time.", unused=NO_WARMUP
    )
    streams_rack_aware_assignment_tags: List = setting(
        (),
        Check("each once", lambda tags: len(set(tags)) == len(tags)),
        broker="group.streams.rack.aware.assignment.tags",
        doc="Client tags that members of this streams group are asked for.",
    )
    streams_acceptable_recovery_lag: Long = setting(
        10_000,
        at_least(0),
        broker="group.streams.acceptable.recovery.lag",
        doc="Offsets that a restored task may lack and counts as caught up, in this streams group.",
    )
    streams_assignor_name: String = setting(
        None, doc="Which assignor hands out the tasks of this streams group.", unused="there is one"
    )
    errors_deadletterqueue_topic_name: String = setting(
        "", OF_USERS, doc="The topic that records go to which this share group gives up; empty: they go nowhere."
    )
    errors_deadletterqueue_copy_record_enable: Boolean = setting(
        False, doc="Whether key, value and headers of a record go to the dead letter queue, besides what became of it."
    )


BOUNDS = {
    "consumer.session.timeout.ms": "group.consumer.{}.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.{}.heartbeat.interval.ms",
    "consumer.assignment.interval.ms": "group.consumer.{}.assignment.interval.ms",
    "share.session.timeout.ms": "group.share.{}.session.timeout.ms",
    "share.heartbeat.interval.ms": "group.share.{}.heartbeat.interval.ms",
    "share.record.lock.duration.ms": "group.share.{}.record.lock.duration.ms",
    "share.delivery.count.limit": "group.share.{}.delivery.count.limit",
    "share.partition.max.record.locks": "group.share.{}.partition.max.record.locks",
    "streams.session.timeout.ms": "group.streams.{}.session.timeout.ms",
    "streams.heartbeat.interval.ms": "group.streams.{}.heartbeat.interval.ms",
    "streams.assignment.interval.ms": "group.streams.{}.assignment.interval.ms",
    "streams.num.standby.replicas": "group.streams.{}.standby.replicas",
    "streams.task.offset.interval.ms": "group.streams.{}.task.offset.interval.ms",
}
"""The broker's keys that hold the least and the most that a group may have, with min and max for {}, where they are."""


def legal(said: Mapping[str, str]) -> dict[str, str]:
    """Those of a group's settings that are known and of their type; out of bounds they may be."""
    kept = {}
    for key, text in said.items():
        try:
            if key in GroupConfig.KEYS:
                GroupConfig.KEYS[key].parse(text)
                kept[key] = text
        except ValueError:
            continue
    return kept


def out_of_bounds(said: Mapping[str, str], broker: BrokerConfig) -> Iterator[str]:
    """What of a group's legal values the broker does not allow, a line each."""
    values = {key: GroupConfig.KEYS[key].parse(text) for key, text in said.items()}
    for key, bounds in BOUNDS.items():
        if key not in values:
            continue
        low, high = _bound(bounds, "min", broker), _bound(bounds, "max", broker)
        value = values[key]
        assert isinstance(value, int), key
        if low is not None and high is not None:
            if not low <= value <= high:
                yield f"{key} must be in the range {low} to {high} inclusive."
        elif high is not None and value > high:
            yield f"{key} must be less than or equal to {high}"
        elif low is not None and value < low:
            yield f"{key} must be greater than or equal to {low}"
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if (session in values or heartbeat in values) and _in_force(session, values, broker) <= _in_force(
            heartbeat, values, broker
        ):
            yield f"{session} must be greater than {heartbeat}"


def _bound(bounds: str, end: str, broker: BrokerConfig) -> int | None:
    known = BrokerConfig.KEYS.get(bounds.format(end))
    return None if known is None else getattr(broker, known.attribute)


def _in_force(key: str, values: Mapping[str, Value], broker: BrokerConfig) -> int:
    known = GroupConfig.KEYS[key].broker
    assert known is not None, key
    value = values.get(key, getattr(broker, BrokerConfig.KEYS[known].attribute))
    assert isinstance(value, int), key
    return value
