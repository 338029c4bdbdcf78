"""UpdateFeatures: what all brokers of a cluster have agreed to do.

Served: UpdateFeatures 0-1. There is no feature to agree on, as in a cluster of Apache Kafka 3.9 on ZooKeeper:
ApiVersions lists none, and every update is refused with the code and the words of that broker. A broker that is not the
controller answers NOT_CONTROLLER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from protocol.errors import ErrorCode
from protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
UPGRADE_TYPES_SINCE = 1  # before, only whether a downgrade is allowed


def update_features(request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    """Say of each feature why it cannot be."""
    if not call.broker.plane.controller.is_active:
        return _refuse(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message, call.version)
    results = [
        UpdatableFeatureResult(
            feature=update.feature,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=_why_not(update, call.version),
        )
        for update in request.feature_updates
    ]
    return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


def _why_not(update: FeatureUpdateKey, version: int) -> str:
    """In the order in which Apache's broker looks."""
    if version >= UPGRADE_TYPES_SINCE:
        may_go_down = update.upgrade_type in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)
        is_known = may_go_down or update.upgrade_type == UPGRADE
    else:
        may_go_down, is_known = update.allow_downgrade, True
    if not update.feature:
        return "Feature name can not be empty."
    if not is_known:
        return "Received unknown upgrade type."
    level = update.max_version_level
    if level < 1 and not may_go_down:
        why = "without setting the SAFE downgradeType in the request."
        return f"Can not provide versionLevel: {level} less than 1 {why}"
    if level < 1:
        return "Can not delete non-existing finalized feature."
    return "Could not apply finalized feature update because the provided feature is not supported."


def _refuse(request: UpdateFeaturesRequest, code: ErrorCode, text: str, version: int) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=text, results=[])


ROUTES = (Route(57, UpdateFeaturesRequest, 0, 1, update_features, _refuse, (cluster(Operation.ALTER),)),)
