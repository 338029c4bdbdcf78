"""UpdateFeatures: what all brokers of a cluster have agreed to do.

Served: UpdateFeatures 0-2, by the controller; others answer NOT_CONTROLLER. All updates of a request are made or none,
in all versions: the first that may not be is the answer's error (`controller/features.py`), as Apache's controllers of
4.4 have it. Up to version 1 what was done is named feature by feature, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.configs import AwaitStore
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.controller.features import SAFE_DOWNGRADE, UPGRADE, Update, update
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call, Result
    from kbroker.controller.admin import Pending

UPGRADE_TYPES_SINCE = 1  # before, only whether a downgrade is allowed
RESULTS_UNTIL = 1


def update_features(request: UpdateFeaturesRequest, call: Call) -> Result:
    """Have other levels finalized."""
    plane, version = call.broker.store_plane, call.version
    epoch = plane.controller.epoch
    if epoch is None:
        return _refuse(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message, version)
    updates = [Update(each.feature, each.max_version_level, _kind(each, version)) for each in request.feature_updates]
    pending: Pending[bool] = plane.admin.start(
        update(epoch, updates, plane.features, validate_only=request.validate_only)
    )

    def answer_with() -> UpdateFeaturesResponse:
        error = pending.error
        if error is None and pending.value is None:
            error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        if error is not None:
            return _refuse(request, error.code, _said(error), version)
        results = [_done(each) for each in request.feature_updates] if version <= RESULTS_UNTIL else []
        return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)

    waiting = AwaitStore(pending, answer_with, call.now_ms)
    return waiting.answer(call.now_ms) or waiting


def _kind(update: FeatureUpdateKey, version: int) -> int:
    if version >= UPGRADE_TYPES_SINCE:
        return update.upgrade_type
    return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE


def _said(error: KafkaError) -> str:
    text = error.message or error.code.message
    if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
        return text
    return f"The update failed for all features since the following feature had an error: {text}"


def _done(update: FeatureUpdateKey) -> UpdatableFeatureResult:
    return UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.NONE, error_message="NONE")  # as Kafka's


def _refuse(request: UpdateFeaturesRequest, code: ErrorCode, text: str, version: int) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=text, results=[])


ROUTES = (Route(57, UpdateFeaturesRequest, 0, 2, update_features, _refuse, (cluster(Operation.ALTER),)),)
