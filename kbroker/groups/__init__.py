"""Groups: who reads what, and how far; kept in __consumer_offsets."""

from kbroker.groups.coordinator import GroupCoordinator, group_shards
from kbroker.groups.memory import GroupMemory
from kbroker.groups.offsets import Commit, TopicPartition
from kbroker.groups.shard import GroupShard

__all__ = ["Commit", "GroupCoordinator", "GroupMemory", "GroupShard", "TopicPartition", "group_shards"]
