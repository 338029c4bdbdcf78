"""This broker's replicas: which partitions it leads or follows, and what it lets clients see of them."""

from kbroker.replica.manager import ReplicaManager
from kbroker.replica.partition import Partition

__all__ = ["Partition", "ReplicaManager"]
