"""ApiVersions: what this broker speaks.

Served: ApiVersions 0-5. The answer lists exactly the routes of `routes.py`, but for those that wait for a feature which
the cluster has not finalized, or for a kind of group that the settings leave out. A client that asks in a version we do
not know gets UNSUPPORTED_VERSION in the layout of version 0 with the versions of ApiVersions itself, and asks again.
Then come the features that this broker supports, and those that the cluster has finalized (`metadata/features.py`). A
client that took this broker for another one is told REBOOTSTRAP_REQUIRED.

Unlike Kafka: Kafka 4 lists Produce 0-2 and refuses them, and group APIs whose feature is off; here every listed version
works, so that a client which can do without an API finds out by this answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kbroker.api.routes import SERVED, Route, tables_of
from protocol.errors import ErrorCode
from protocol.messages.handshake import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call
    from kbroker.broker.broker import Broker

API_VERSIONS = 18
NO_NODE = -1
LEVEL_0_SINCE = 4  # clients know features that begin at level 0; the older Java ones fail at them (KIP-1022)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")  # KIP-511: what a software name may look like


def api_versions(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    """List what is served; remember what the client says it is."""
    is_understood = call.version < 3 or (
        _is_software(request.client_software_name)
        and _is_software(request.client_software_version)
        and (request.cluster_id is None) == (request.node_id == NO_NODE)
    )
    if call.session.login is not None:
        call.session.login.versions_told(understood=is_understood)
    if call.version >= 3:
        if not is_understood:
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        call.session.client_software = f"{request.client_software_name} {request.client_software_version}"
    if request.cluster_id is not None and not _is_meant(request, call):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])
    features = call.broker.features
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=_served(call.broker),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, first, last in call.broker.plane.supported
            if first > 0 or call.version >= LEVEL_0_SINCE
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ],
    )


def _is_meant(request: ApiVersionsRequest, call: Call) -> bool:
    """Whether this is the broker that a client thinks it is connected to: addresses are given to others (KIP-1242)."""
    plane = call.broker.plane
    return (request.cluster_id, request.node_id) == (plane.cluster_id, plane.broker_id)


def unsupported_version() -> ApiVersionsResponse:
    """What a client is told that asks for ApiVersions in a version we do not know; written as version 0."""
    own = SERVED[API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=API_VERSIONS, min_version=own.first, max_version=own.last)],
    )


def _served(broker: Broker) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api, min_version=served.first, max_version=served.last)
        for api, served in tables_of(broker).served.items()
        if not served.why_not(broker)
    ]


def _is_software(name: str) -> bool:
    return _SOFTWARE.fullmatch(name) is not None


def _refuse(request: ApiVersionsRequest, code: ErrorCode, text: str, version: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=code, api_keys=[])


ROUTES = (Route(API_VERSIONS, ApiVersionsRequest, 0, 5, api_versions, _refuse, ()),)
