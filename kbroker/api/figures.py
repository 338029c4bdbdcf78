"""Metrics: what a broker tells of itself to those who watch it, figures of its parts, and whether it is well.

Made of what the parts have anyway, looked at when it is asked for. Names are those that Kafka's MBeans have behind the
usual rules of the JMX exporter, and those of kafka_exporter for groups, so that people's dashboards find them; what
neither of them knows begins with `kbroker_`. How a page is written is `runtime/metrics.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker import __version__
from kbroker.api.routes import tables_of
from kbroker.broker.coordinator_types import GROUP, SHARE, TRANSACTION
from kbroker.metadata.entities import desanitized
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.broker.logins import Logins
    from kbroker.groups.group import Group
    from kbroker.metadata.store import LeaderIsr


USED = {"Produce": "byte_rate", "Fetch": "byte_rate", "Request": "request_time", "ControllerMutation": "tokens"}
"""Kafka's names of what clients use, by kind of quota."""
RUNNING = 3  # Kafka's BrokerState


class Sample(NamedTuple):
    """One line. suffix: of a histogram's, behind the family's name."""

    value: float
    labels: tuple[tuple[str, object], ...] = ()
    suffix: str = ""


class Family(NamedTuple):
    """All samples of one name. kind: counter, gauge or histogram."""

    name: str
    kind: str
    text: str
    samples: Iterable[Sample]


class Health(NamedTuple):
    """Whether a broker serves, and what is told of it: JSON's names and values."""

    serves: bool
    told: dict[str, object]


def health_of(broker: Broker) -> Health:
    """Whether the broker serves, and what a person or a probe wants to know of it first."""
    plane = broker.plane
    offline = [each.path for each in broker.logs.directories if not each.online]
    serves = plane.ready and not plane.fatal
    told: dict[str, object] = {
        "status": "ok" if serves and not offline else "degraded" if serves else "failing",
        "version": __version__,
        "broker_id": plane.broker_id,
        "cluster_id": plane.cluster_id,
        "controller_id": plane.cache.controller_id,
        "brokers": len(plane.cache.brokers),
        "offline_log_directories": offline,
        "why": plane.fatal,
    }
    return Health(serves, told)


def figures_of(broker: Broker, delayed: Counter[str]) -> Iterator[Family]:
    """All families. delayed: how many requests are parked, by API."""
    yield from _broker(broker)
    yield from _requests(broker, delayed)
    if broker.logins is not None:
        yield from _logins(broker.logins)
    yield from _quotas(broker)
    yield from _replicas(broker)
    yield from _controller(broker)
    yield from _logs(broker)
    yield from _cleaner(broker)
    for key_type in broker.coordinators:
        yield from OF_COORDINATORS[key_type](broker)


def single(name: str, kind: str, text: str, value: float) -> Family:
    """A family of one sample without labels."""
    return Family(name, kind, text, [Sample(value)])


def _broker(broker: Broker) -> Iterator[Family]:
    plane = broker.plane
    about = (("version", __version__), ("broker_id", plane.broker_id), ("cluster_id", plane.cluster_id or ""))
    yield Family("kbroker_info", "gauge", "Which broker this is.", [Sample(1, about)])
    state = RUNNING if plane.ready else 1
    yield single("kafka_server_kafkaserver_brokerstate", "gauge", "3 while it serves, 1 while it starts.", state)


# ---- requests


def _requests(broker: Broker, delayed: Counter[str]) -> Iterator[Family]:
    counters = broker.counters
    names = {api: served.name for api, served in tables_of(broker).served.items()}
    yield Family(
        "kafka_network_requestmetrics_requests_total",
        "counter",
        "Requests that were begun, by API.",
        [Sample(counters.requests[api], (("request", name),)) for api, name in names.items()],
    )
    yield Family(
        "kafka_network_requestmetrics_errors_total",
        "counter",
        "Error codes in answers, by API; an answer about many partitions has many.",
        [
            Sample(count, (("request", names.get(api, api)), ("error", ErrorCode.of(code).name)))
            for (api, code), count in sorted(counters.errors.items())
        ],
    )
    yield Family(
        "kafka_network_requestmetrics_totaltimems",
        "histogram",
        "How long requests waited for their answers, in whole milliseconds; most wait for nothing.",
        [sample for api, name in names.items() for sample in _waits(broker, api, name)],
    )
    yield Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "gauge",
        "Requests that wait for something to happen, or for their time to end.",
        [Sample(delayed[name], (("delayedOperation", name),)) for name in sorted({"Produce", "Fetch", *delayed})],
    )


def _logins(logins: Logins) -> Iterator[Family]:
    stem = "kafka_server_socket_server_metrics_"
    yield Family(
        f"{stem}successful_authentication_total",
        "counter",
        "Logins by SASL.",
        [
            Sample(count, (("listener", listener), ("mechanism", mechanism)))
            for (listener, mechanism), count in sorted(logins.succeeded.items())
        ],
    )
    yield Family(
        f"{stem}failed_authentication_total",
        "counter",
        "Logins by SASL that failed, by reason; the mechanism is empty before it was agreed on.",
        [
            Sample(count, (("listener", listener), ("mechanism", mechanism), ("reason", reason)))
            for (listener, mechanism, reason), count in sorted(logins.failed.items())
        ],
    )


def _waits(broker: Broker, api: int, name: str) -> Iterator[Sample]:
    """The histogram of one API: below 1, 2, 4, ... ms. Answers that were there at once are counted as requests only."""
    counters = broker.counters
    if not counters.requests[api]:
        return
    waits = counters.waits[api]
    late = sum(waits.values())
    request = ("request", name)
    total = max(counters.requests[api], late)
    below = total - late
    for power in range(max(waits, default=0) + 1):
        below += waits[power]
        yield Sample(below, (request, ("le", (1 << power) - 1)), "_bucket")
    yield Sample(total, (request, ("le", "+Inf")), "_bucket")
    yield Sample(counters.waited_ms[api], (request,), "_sum")
    yield Sample(total, (request,), "_count")


def _quotas(broker: Broker) -> Iterator[Family]:
    """Of clients that have a quota. Averages, which Kafka has, follow of sums and counts."""
    if broker.quotas is None:
        return
    now_ms = broker.clock.now_ms()
    for name, manager in broker.quotas.managers():
        stem = f"kafka_server_{name.lower()}_"
        known = [
            ((("user", desanitized(each.tags[0])), ("client_id", each.tags[1])), each)
            for each in manager.meters.values()
        ]
        yield Family(
            f"{stem}throttle_time_ms_total",
            "counter",
            "For how long requests of a client were throttled.",
            [Sample(each.throttled_ms, labels) for labels, each in known],
        )
        yield Family(
            f"{stem}throttles_total",
            "counter",
            "How many requests of a client were throttled.",
            [Sample(each.throttles, labels) for labels, each in known],
        )
        yield Family(
            stem + USED[name],
            "gauge",
            "What a client uses, as its quota counts it.",
            [Sample(each.meter.measure(now_ms), labels) for labels, each in known],
        )


# ---- replicas, controller, logs


def _replicas(broker: Broker) -> Iterator[Family]:
    stem = "kafka_server_replicamanager_"
    replicas = list(broker.replicas.partitions.values())
    led = [each for each in replicas if each.is_leader]
    lacking = sum(len(each.isr) < len(each.replicas) for each in led)
    short = sum(len(each.isr) < each.min_insync_replicas for each in led)
    exact = sum(len(each.isr) == each.min_insync_replicas for each in led)
    for name, text, value in (
        ("partitioncount", "Replicas on this broker.", len(replicas)),
        ("leadercount", "Replicas that lead.", len(led)),
        ("underreplicatedpartitions", "Led here, with a replica that is not in sync.", lacking),
        ("underminisrpartitioncount", "Led here, with fewer replicas in sync than min.insync.replicas.", short),
        ("atminisrpartitioncount", "Led here, with exactly min.insync.replicas in sync.", exact),
        ("offlinereplicacount", "Whose log directory is offline.", sum(each.log is None for each in replicas)),
    ):
        yield single(stem + name, "gauge", text, value)


def _controller(broker: Broker) -> Iterator[Family]:
    stem = "kafka_controller_kafkacontroller_"
    controller = broker.plane.controller
    if controller is None:
        return
    yield single(f"{stem}activecontrollercount", "gauge", "1 if it is the controller.", int(controller.is_active))
    epoch = controller.epoch
    context = None if epoch is None else epoch.context
    leaders = {} if context is None else dict(context.leaders)
    brokers = {} if context is None else context.brokers
    elsewhere = 0
    if context is not None:
        preferred = [(state.leader, context.replicas(partition)) for partition, state in leaders.items()]
        elsewhere = sum(bool(replicas) and replicas[0] != leader for leader, replicas in preferred)
    for name, text, value in (
        ("offlinepartitionscount", "Partitions without a live leader.", _leaderless(leaders, brokers)),
        ("globaltopiccount", "Topics.", 0 if context is None else len(context.assignments)),
        ("globalpartitioncount", "Partitions.", 0 if context is None else sum(map(len, context.assignments.values()))),
        ("activebrokercount", "Live brokers.", len(brokers)),
        ("preferredreplicaimbalancecount", "Partitions led by another than their first replica.", elsewhere),
        ("topicstodeletecount", "Topics whose deletion goes on.", 0 if context is None else len(context.to_delete)),
    ):
        yield single(stem + name, "gauge", f"{text} 0 where it is not the controller.", value)


def _leaderless(leaders: Mapping[tuple[str, int], LeaderIsr], brokers: Container[int]) -> int:
    return sum(state.leader not in brokers for state in leaders.values())


def _logs(broker: Broker) -> Iterator[Family]:
    directories = broker.logs.directories
    offline = [each for each in directories if not each.online]
    yield single(
        "kafka_log_logmanager_offlinelogdirectorycount", "gauge", "Log directories that have failed.", len(offline)
    )
    yield Family(
        "kafka_log_logmanager_logdirectoryoffline",
        "gauge",
        "1 if this log directory has failed.",
        [Sample(int(not each.online), (("logDirectory", each.path),)) for each in directories],
    )
    logs = [((("topic", topic), ("partition", index)), log) for (topic, index), log in broker.logs.logs()]
    for name, text, value_of in (
        ("size", "Bytes of batches in all segments.", lambda log: log.size),
        ("logstartoffset", "First offset.", lambda log: log.log_start_offset),
        ("logendoffset", "Offset of the next record.", lambda log: log.log_end_offset),
        ("numlogsegments", "Segments.", lambda log: len(log.segments)),
    ):
        samples = (Sample(value_of(log), labels) for labels, log in logs)
        yield Family(f"kafka_log_log_{name}", "gauge", text, samples)


def _cleaner(broker: Broker) -> Iterator[Family]:
    cleaner = broker.logs.cleaner
    figures = cleaner.figures
    since_ms = max(0, broker.clock.wall_ms() - figures.swept_ms) if figures.swept_ms else 0
    for name, text, value in (
        (
            "logcleaner_cleaner_recopy_percent",
            "Of the last compaction: bytes left of 100 bytes.",
            100 * figures.recopied,
        ),
        ("logcleaner_max_buffer_utilization_percent", "Of the last: memory its keys took.", 100 * figures.map_share),
        ("logcleaner_max_clean_time_secs", "Of the last: how long it took.", figures.took_ms / 1000),
        ("logcleaner_max_compaction_delay_secs", "Beyond max.compaction.lag.ms.", figures.overdue_ms / 1000),
        ("logcleanermanager_max_dirty_percent", "Of the dirtiest log.", 100 * figures.dirtiest_ratio),
        ("logcleanermanager_time_since_last_run_ms", "Since all logs were looked at; 0: not yet.", since_ms),
    ):
        yield single(f"kafka_log_{name}", "gauge", text, value)
    uncleanable = cleaner.uncleanable_bytes()
    paths = [(each.path, uncleanable.get(each.path, [])) for each in broker.logs.directories]
    yield Family(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "gauge",
        "Partitions that cannot be compacted, until the next start.",
        [Sample(len(found), (("logDirectory", path),)) for path, found in paths],
    )
    yield Family(
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "gauge",
        "Dirty bytes of these.",
        [Sample(sum(found), (("logDirectory", path),)) for path, found in paths],
    )


# ---- coordinators


GROUP_STATES = {
    "classic": ("Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead"),
    "consumer": ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    "share": ("Empty", "Stable", "Dead"),
    "streams": ("NotReady", "Empty", "Assigning", "Reconciling", "Stable", "Dead"),
}
"""The states that groups of each kind are counted by. Source: GroupCoordinatorMetrics of Apache Kafka 4.4."""


def _groups(broker: Broker) -> Iterator[Family]:
    stem = "kafka_coordinator_group_groupmetadatamanager_"
    groups = [group for shard in broker.group_runtime.shards.values() for group in shard.groups.values()]
    counts = Counter((group.TYPE.value, group.state.value) for group in groups)
    of_kind = {kind: sum(counts[kind, state] for state in states) for kind, states in GROUP_STATES.items()}
    yield single(f"{stem}numgroups", "gauge", "Classic groups that this broker coordinates.", of_kind["classic"])
    for state in GROUP_STATES["classic"]:
        text = f"Classic groups that are {state}."
        yield single(f"{stem}numgroups{state.lower()}", "gauge", text, counts["classic", state])
    newer = "kafka_server_group_coordinator_metrics_"
    totals = [Sample(count, (("protocol", kind),)) for kind, count in of_kind.items()]
    yield Family(f"{newer}group_count", "gauge", "Groups that this broker coordinates, by kind.", totals)
    for kind, states in GROUP_STATES.items():
        samples = [Sample(counts[kind, state], (("state", state),)) for state in states]
        yield Family(f"{newer}{kind}_group_count", "gauge", f"Groups of the kind {kind}, by state.", samples)
    offsets = sum(len(group.offsets.committed) for group in groups)
    yield single(f"{stem}numoffsets", "gauge", "Committed offsets that this broker keeps.", offsets)
    yield Family(
        "kafka_consumergroup_members",
        "gauge",
        "Members of a group.",
        (Sample(group.size, (("consumergroup", group.group_id),)) for group in groups),
    )
    yield Family(
        "kafka_consumergroup_current_offset", "gauge", "Committed offset.", _offsets(groups, lambda where, at: at)
    )

    def lag(where: tuple[str, int], committed: int) -> int | None:
        replica = broker.replicas.partitions.get(where)
        log = replica.log if replica is not None else None
        return None if log is None else max(log.high_watermark - committed, 0)

    yield Family(
        "kafka_consumergroup_lag",
        "gauge",
        "Records that a group has not committed yet, of partitions that are on this broker.",
        _offsets(groups, lag),
    )


def _offsets(groups: Iterable[Group], value_of: Callable[[tuple[str, int], int], int | None]) -> Iterator[Sample]:
    for group in groups:
        for where, commit in list(group.offsets.committed.items()):
            value = value_of(where, commit.offset)
            if value is not None:
                topic, index = where
                labels = (("consumergroup", group.group_id), ("topic", topic), ("partition", index))
                yield Sample(value, labels)


def _transactions(broker: Broker) -> Iterator[Family]:
    shards = broker.transaction_runtime.shards.values()
    states = Counter(each.state.value for shard in shards for each in shard.transactions.values())
    yield Family(
        "kbroker_transactions",
        "gauge",
        "Transactional ids that this broker coordinates, by state.",
        [Sample(count, (("state", state),)) for state, count in sorted(states.items())],
    )
    open_here = sum(
        each.log is not None and each.log.producers.first_unstable_offset is not None
        for each in list(broker.replicas.partitions.values())
    )
    yield single("kbroker_partitions_with_open_transactions", "gauge", "Replicas with undecided records.", open_here)


def _share_groups(broker: Broker) -> Iterator[Family]:
    shards = list(broker.share_coordinator.runtime.shards.values())
    kept = sum(len(shard.states) for shard in shards if not shard.loading)
    text = "Share-partitions whose state is kept here."
    yield single("kbroker_share_states", "gauge", text, kept)
    share = broker.share_partitions_in_use
    led = [] if share is None else [each for each in share.led if each.state is not None]
    text = "Share-partitions of the partitions that this broker leads."
    yield single("kbroker_share_partitions", "gauge", text, len(led))
    in_flight = sum(each.state.end_offset - each.state.start_offset for each in led if each.state is not None)
    text = "Records of share groups that are in flight: acquired, or behind others that are."
    yield single("kbroker_share_records_in_flight", "gauge", text, in_flight)
    sessions = 0 if share is None else len(share.sessions)
    yield single("kafka_server_sharesessioncache_sharesessionscount", "gauge", "Share sessions.", sessions)


OF_COORDINATORS: dict[int, Callable[[Broker], Iterator[Family]]] = {
    GROUP.key_type: _groups,
    TRANSACTION.key_type: _transactions,
    SHARE.key_type: _share_groups,
}
