"""DescribeAcls, CreateAcls, DeleteAcls: the rules of who may do what.

Served: 0-3 of each. There is no authorizer, so each is answered with SECURITY_DISABLED, as Apache's broker does without
one: tools then say so in one line, instead of losing their connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from protocol.errors import ErrorCode
from protocol.messages.security import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call

DISABLED = ErrorCode.SECURITY_DISABLED


def describe_acls(request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    """There are no rules."""
    return _refuse_describe(request, DISABLED, "No Authorizer is configured on the broker", call.version)


def create_acls(request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    """Nobody would heed a rule."""
    return _refuse_create(request, DISABLED, "No Authorizer is configured.", call.version)


def delete_acls(request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    """There are no rules."""
    return _refuse_delete(request, DISABLED, "No Authorizer is configured.", call.version)


def _refuse_describe(request: DescribeAclsRequest, code: ErrorCode, text: str, version: int) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=text, resources=[])


def _refuse_create(request: CreateAclsRequest, code: ErrorCode, text: str, version: int) -> CreateAclsResponse:
    results = [AclCreationResult(error_code=code, error_message=text) for _ in request.creations]
    return CreateAclsResponse(results=results)


def _refuse_delete(request: DeleteAclsRequest, code: ErrorCode, text: str, version: int) -> DeleteAclsResponse:
    results = [DeleteAclsFilterResult(error_code=code, error_message=text, matching_acls=[]) for _ in request.filters]
    return DeleteAclsResponse(filter_results=results)


ROUTES = (
    Route(29, DescribeAclsRequest, 0, 3, describe_acls, _refuse_describe, (cluster(Operation.DESCRIBE),)),
    Route(30, CreateAclsRequest, 0, 3, create_acls, _refuse_create, (cluster(Operation.ALTER),)),
    Route(31, DeleteAclsRequest, 0, 3, delete_acls, _refuse_delete, (cluster(Operation.ALTER),)),
)
