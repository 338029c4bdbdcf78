"""What a broker asks an ensemble before it touches a log directory: which cluster it is, and perhaps a broker id.

Made by the node when `zookeeper.connect` is set. A cluster that is new gets an id; log directories of another cluster
are refused before anything is written into them. The session with the ensemble stays: it is the broker's from then on.

Source: KafkaServer's start in Apache Kafka 3.9, by behaviour. Unlike Kafka, directories that know their cluster are
refused by an ensemble that knows none without giving it a new id.
"""

from __future__ import annotations

import logging

from kbroker.metadata.steps import Procedure, SessionLostError, Steps, StoreRefusedError
from kbroker.metadata.store import (
    BROKER_SEQUENCE,
    CLUSTER_ID,
    CONTROLLER,
    decode_cluster_id,
    encode_cluster_id,
    kraft_fault,
)
from kbroker.metadata.tree import ancestors
from kbroker.ports import Create, Get, MetadataStore, SessionExpired, SessionStarted, SetData, StoreAnswer

log = logging.getLogger("kbroker.cluster")

NO_SESSION = 0
NO_BROKER_ID = -1


class ClusterIdLookup:
    """The first questions to an ensemble.

    cluster_id: of the cluster, None until it is known. broker_id: a fresh one, if that was asked for; else -1. fault:
    why the broker does not belong here, or empty. session: the one that is open, 0 if none is.
    """

    def __init__(self, store: MetadataStore, own: str | None, fresh: str, *, above: int | None) -> None:
        """own: the cluster of the log directories, None if they are new. fresh: the id for a new cluster.

        above: where generated broker ids begin; None: one is known.
        """
        self.cluster_id: str | None = None
        self.broker_id = NO_BROKER_ID
        self.fault = ""
        self.session = NO_SESSION
        self._own = own
        self._fresh = fresh
        self._above = above
        self._steps = Steps(store)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to ask."""
        return self.cluster_id is not None or bool(self.fault)

    def handle(self, event: object) -> None:
        """Something happened on the ensemble."""
        if isinstance(event, SessionStarted):
            self.session = self._steps.session = event.session
            if not self.is_over:
                self._steps.start(self._ask(), failed=self._failed)
        elif isinstance(event, SessionExpired):
            self.session = NO_SESSION
        elif isinstance(event, StoreAnswer):
            self._steps.resume(event)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, SessionLostError):
            return  # another one follows, and the questions are asked again
        if isinstance(error, StoreRefusedError):
            self.fault = (
                f"{error}: is a login missing (kbroker.zookeeper.sasl.jaas.config), or a certificate "
                "(zookeeper.ssl.keystore.location)?"
            )
            return
        if not isinstance(error, ValueError | KeyError | TypeError):
            raise error
        self.fault = f"{CLUSTER_ID} in ZooKeeper makes no sense: {error!r}"

    def _ask(self) -> Procedure[None]:
        parents = [Create(path) for path in dict.fromkeys((*ancestors(CLUSTER_ID), *ancestors(BROKER_SEQUENCE)))]
        if self._own is None:
            parents.append(Create(CLUSTER_ID, encode_cluster_id(self._fresh)))
        *_, found, controller = yield [*parents, Get(CLUSTER_ID), Get(CONTROLLER)]
        self.fault = kraft_fault(controller.data) if controller.fault is None else ""
        if self.fault:
            return
        there = decode_cluster_id(found.data) if found.fault is None else None
        if self._own not in (None, there):
            is_of = f"cluster {there}" if there else "no cluster yet"
            self.fault = (
                f"the log directories are of cluster {self._own} (meta.properties), ZooKeeper is of {is_of}: "
                "is zookeeper.connect right?"
            )
            return
        if there is None:  # nor could it be made: its parent is not there, and so neither is the root
            self.fault = f"{CLUSTER_ID} cannot be made in ZooKeeper: is there the path of zookeeper.connect?"
            return
        if self._above is not None:
            _, counted = yield [Create(BROKER_SEQUENCE), SetData(BROKER_SEQUENCE, b"")]
            assert counted.stat is not None, counted
            self.broker_id = self._above + counted.stat.version
            log.info("broker.id %d is taken: none was set", self.broker_id)
        self.cluster_id = there
