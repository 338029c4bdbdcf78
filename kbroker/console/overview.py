"""What there is at a glance: brokers, health, log directories; and the curve of how many records come in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from kbroker.console import MOST_SAMPLES, SAMPLED_S
from kbroker.console.cluster import Cluster, ConsoleError
from kbroker.console.inside import Inside
from kbroker.console.offsets import LATEST, offsets_at, stored
from kbroker.console.topics import BROKER, settings_of
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

MINUTE_S = 60.0
WATCHED_S = 30.0  # how long samples are taken after a look at them
MOST_PARTITIONS = 2000  # whose ends are asked for a sample
MOST_TROUBLES = 20


def overview(cluster: Cluster) -> dict[str, Any]:
    """The cluster: brokers, controller, topics, and what is wrong."""
    found = cluster.described()
    parts = [(name, each) for name, topic in found.topics.items() for each in topic.partitions]
    leaderless = [f"{name}-{each.number}" for name, each in parts if each.leader < 0]
    behind = [
        f"{name}-{each.number}" for name, each in parts if each.leader >= 0 and len(each.in_sync) < len(each.replicas)
    ]
    leads: dict[int, int] = dict.fromkeys(found.brokers, 0)
    has: dict[int, int] = dict.fromkeys(found.brokers, 0)
    for _, each in parts:
        if each.leader in leads:
            leads[each.leader] += 1
        for node in each.replicas:
            if node in has:
                has[node] += 1
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller_id,
        "brokers": [
            {
                "id": each.node_id,
                "address": f"{each.host}:{each.port}",
                "rack": each.rack,
                "controller": each.node_id == found.controller_id,
                "leads": leads[each.node_id],
                "replicas": has[each.node_id],
            }
            for each in sorted(found.brokers.values())
        ],
        "topics": len(found.topics),
        "partitions": len(parts),
        "leaderless": leaderless[:MOST_TROUBLES],
        "leaderless_count": len(leaderless),
        "under_replicated": behind[:MOST_TROUBLES],
        "under_replicated_count": len(behind),
        "user": cluster.user,
        "healthy": not leaderless and not behind,
    }


def log_directories(cluster: Cluster) -> dict[str, Any]:
    """Log directories of all brokers: how full they are, and the largest partitions in them."""
    replicas, directories = stored(cluster)
    for each in directories:
        each["error"] = ErrorCode.of(each["error"]).name if each["error"] else None
    largest = sorted(replicas, key=lambda each: -each.size)[:50]
    return {
        "directories": sorted(directories, key=lambda each: (each["broker"], each["path"])),
        "largest": [
            {
                "broker": each.node,
                "path": each.path,
                "topic": each.place[0],
                "partition": each.place[1],
                "bytes": each.size,
                "future": each.is_future,
            }
            for each in largest
        ],
    }


def settings(cluster: Cluster, broker: int = -1, search: str = "", changed: bool = False) -> dict[str, Any]:
    """Settings of a broker with their documentation.

    broker: its id; -1 for the first. search: a part of a name. changed: only those that are not at their defaults.
    """
    nodes = sorted(cluster.brokers())
    node = broker if broker >= 0 else nodes[0]
    rows = settings_of(cluster, BROKER, str(node))
    found = [
        each
        for each in rows
        if search.casefold() in each["name"].casefold() and (not changed or not each["is_default"])
    ]
    return {"broker": node, "brokers": nodes, "settings": found, "all": len(rows)}


# ---- curves


class Sample(NamedTuple):
    """What had been counted at a time. at_s: monotonic."""

    at_s: float
    counts: dict[str, float]


class BrokersCurves:
    """Counters of the broker that has started the console, which it takes samples of."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def close(self) -> None:
        """Nothing was begun."""

    def rates(self) -> dict[str, Any]:
        """As `rates_of` has them. Raises: ConsoleError."""
        return rates_of([Sample(each.pop("at_s"), each) for each in self._inside.samples()])


class Curves:
    """Counters of any cluster, sampled while there is a look at them. count: gives the counters now, by name."""

    def __init__(self, count: Callable[[], dict[str, float]]) -> None:
        self._count = count
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._looked_s = time.monotonic()
        self._wake = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._run, name="kbroker-curves", daemon=True).start()

    def close(self) -> None:
        """Take no more samples."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            if time.monotonic() - self._looked_s < WATCHED_S:
                try:
                    self._samples.append(Sample(time.monotonic(), self._count()))
                except (ConsoleError, OSError):
                    self._samples.clear()
                self._wake.wait(SAMPLED_S)
            else:
                self._samples.clear()
                self._wake.clear()
                self._wake.wait()

    def rates(self) -> dict[str, Any]:
        """As `rates_of` has them."""
        is_new = time.monotonic() - self._looked_s >= WATCHED_S
        self._looked_s = time.monotonic()
        if is_new:
            self._wake.set()
        return rates_of(list(self._samples))


def rates_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """A second's worth of each counter: now, over the last minute and the last hour. Points are oldest first."""
    names = sorted({name for each in samples for name in each.counts})
    return {
        "every_s": SAMPLED_S,
        "seconds": round(samples[-1].at_s - samples[0].at_s) if samples else 0,
        "rates": {name: _rate(samples, name) for name in names},
    }


def _rate(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    points = [
        max(after.counts.get(name, 0) - before.counts.get(name, 0), 0) / max(after.at_s - before.at_s, 0.001)
        for before, after in pairwise(samples)
    ]
    minute = points[-round(MINUTE_S / SAMPLED_S) :]
    return {
        "now": round(points[-1], 1) if points else 0,
        "minute": [round(each, 1) for each in minute],
        "hour": [round(each, 1) for each in _thinned(points)],
    }


def _thinned(points: Sequence[float], most: int = 120) -> list[float]:
    """At most so many points, each the mean of some."""
    width = max(1, -(-len(points) // most))
    return [sum(points[at : at + width]) / len(points[at : at + width]) for at in range(0, len(points), width)]


def count_records(cluster: Cluster) -> dict[str, float]:
    """Records that have ever come in, over the partitions of all topics, or of some where there are many."""
    places = [(name, each.number) for name, topic in cluster.described().topics.items() for each in topic.partitions]
    found = offsets_at(cluster, dict.fromkeys(places[:MOST_PARTITIONS], LATEST))
    return {"records in": float(sum(found.values()))}
