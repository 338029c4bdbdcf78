"""UpdateFeatures (key 57): raises or lowers the level of a feature for the whole cluster.

Sent by admin clients to the controller (KIP-584). A feature is something that all brokers have to understand before any
of them uses it; ApiVersions tells which levels a broker supports and which is in force. With ZooKeeper Kafka knows the
exchange, but ships no feature to change by it; its levels live in the node /feature.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Int8, Int16, Int32, Message, String, Struct, plain, since, until


class UpdateFeaturesRequest(Message, api=57, versions="0-2", flexible="0+"):
    """New levels for some features.

    Versions:
      0  introduced by KIP-584, flexible from the start
      1  upgrade_type instead of allow_downgrade; validate_only (KIP-778)
      2  as 1
    """

    timeout_ms: Int32 = plain(default=60000)
    feature_updates: Array[FeatureUpdateKey]
    validate_only: Bool = since(1, default=False)  # True: check everything, change nothing


class FeatureUpdateKey(Struct):
    """One feature and the level it is to have."""

    feature: String
    max_version_level: Int16  # below 1: remove the feature, which counts as a downgrade
    allow_downgrade: Bool = until(0, default=False)  # version 0 only
    # 1 upgrade only, 2 downgrade if nothing is lost by it, 3 downgrade at any price
    upgrade_type: Int8 = since(1, default=1)


class UpdateFeaturesResponse(Message, api=57, versions="0-2", flexible="0+"):
    """What became of the updates: all of them are made or none.

    Versions:
      0  introduced by KIP-584, flexible from the start
      1  as 0
      2  no results by feature
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # of the whole request; NOT_CONTROLLER, for instance
    error_message: String | None  # None: no error
    results: Array[UpdatableFeatureResult] = until(1, default=[], ignorable=True)


class UpdatableFeatureResult(Struct):
    """The outcome for one feature."""

    feature: String
    error_code: Int16
    error_message: String | None  # None: no error
