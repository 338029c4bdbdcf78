"""Kafka brokers for tests: real ones, in the test's own process, there in some milliseconds and gone without a trace.

    from kbroker.testing import broker, cluster

    with broker() as b:
        producer = KafkaProducer(bootstrap_servers=b.bootstrap)

    with cluster(3) as c:
        c.brokers[1].stop()

Nothing is imported before it is used: pytest loads the plugin's module in every run, whether a test wants a broker or
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing._broker import Broker, broker
    from kbroker.testing._cluster import Cluster, cluster
    from kbroker.usage import UsageError

_HOMES = {
    "Broker": "kbroker.testing._broker",
    "Cluster": "kbroker.testing._cluster",
    "UsageError": "kbroker.usage",
    "broker": "kbroker.testing._broker",
    "cluster": "kbroker.testing._cluster",
}

__all__ = ["Broker", "Cluster", "UsageError", "broker", "cluster"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"kbroker.testing has no {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
