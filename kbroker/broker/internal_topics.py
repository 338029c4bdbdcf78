"""Topics that come into being because somebody needs them: asked for by clients, or kept by the brokers themselves.

Called by `metadata.py` and by the coordinators' handlers. Says how such a topic is made; making it is `Admin`'s work.
Source: AutoTopicCreationManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.controller.admin import FROM_BROKER, NewTopic
from kbroker.metadata.cache import CONSUMER_OFFSETS, TRANSACTION_STATE

if TYPE_CHECKING:
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.config import BrokerConfig


def create_if_missing(name: str, plane: ControlPlane) -> bool:
    """Have a coordinator's topic created that this broker does not know yet; whether it was missing."""
    if name in plane.cache.topics:
        return False
    plane.admin.auto_create([topic_on_demand(name, plane.configs.broker)])
    return True


def topic_on_demand(name: str, config: BrokerConfig) -> NewTopic:
    """How a topic is made that nobody has described."""
    if name == CONSUMER_OFFSETS:
        return NewTopic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            {},
            {
                "cleanup.policy": "compact",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "compression.type": "producer",
            },
        )
    if name == TRANSACTION_STATE:
        return NewTopic(
            name,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {},
            {
                "unclean.leader.election.enable": "false",
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
            },
        )
    return NewTopic(name, FROM_BROKER, FROM_BROKER, {}, {})
