"""DescribeAcls, CreateAcls, DeleteAcls: the rules of who may do what.

Served: 0-3 of each. The rules are the authorizer's (`broker/acl_authorizer.py`). Without one each is answered with
SECURITY_DISABLED, as Apache's broker does: tools then say so in one line, instead of losing their connection.

A request with a number 0, which stands for what the sender does not know, loses its connection, as in Kafka; a rule
with another unknown number is INVALID_REQUEST. So is one of TWO_PHASE_COMMIT (KIP-939) where brokers of Kafka 3.9,
which do not know it, may be in the cluster.

Unlike Kafka: a principal without a type, or a name for which there can be no node, is told with its reason, and the
other rules of its pattern are made. A host that looks like a network and is none is refused, as in 4.3.

Source: AclApis and AclAuthorizer of Apache Kafka 3.9, by behaviour; KIP-1276.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.api.authorization import cluster
from kbroker.api.call import HANGUP
from kbroker.api.configs import AwaitStore
from kbroker.api.routes import Route
from kbroker.broker.acl_authorizer import AclAuthorizer, RulesAuthorizer
from kbroker.broker.acls import (
    OPERATION_NAMES,
    Filter,
    Pattern,
    PatternType,
    Permission,
    Rule,
    host_fault,
    name_fault,
    principal_fault,
)
from kbroker.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from kbroker.metadata.features import TRANSACTION_VERSION
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from typing import Any

    from kbroker.api.call import Call, Result

DISABLED = ErrorCode.SECURITY_DISABLED
TOO_NEW = "TWO_PHASE_COMMIT needs transaction.version to be finalized: older brokers cannot read such a rule."


def _authorizer(call: Call) -> AclAuthorizer | None:
    """The one that changes rules; in a cluster with a quorum such requests are passed on."""
    authorizer = call.broker.auth_helper.authorizer
    return authorizer if isinstance(authorizer, AclAuthorizer) else None


# -- DescribeAcls


def describe_acls(request: DescribeAclsRequest, call: Call) -> Result:
    """The rules that a filter means, by pattern."""
    authorizer = call.broker.auth_helper.authorizer
    if not isinstance(authorizer, RulesAuthorizer):
        return _refuse_describe(request, DISABLED, "No Authorizer is configured on the broker", call.version)
    if _is_unknown(request):
        return HANGUP
    resources = [
        DescribeAclsResource(
            resource_type=pattern.resource,
            resource_name=pattern.name,
            pattern_type=pattern.kind,
            acls=[AclDescription(principal=p, host=h, operation=o, permission_type=a) for p, h, o, a in rules],
        )
        for pattern, rules in authorizer.rules.found_by(_filter(request))
    ]
    return DescribeAclsResponse(error_code=ErrorCode.NONE, error_message=None, resources=resources)


def _is_unknown(wanted: DescribeAclsRequest | DeleteAclsFilter) -> bool:
    numbers = wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type
    return 0 in numbers


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> Filter:
    return Filter(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


# -- CreateAcls


def create_acls(request: CreateAclsRequest, call: Call) -> Result:
    """Add rules; those of one pattern succeed or fail together."""
    authorizer = _authorizer(call)
    if authorizer is None:
        return _refuse_create(request, DISABLED, "No Authorizer is configured.", call.version)
    if any(
        0 in (each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
        for each in request.creations
    ):
        return HANGUP
    if any(
        1 in (each.resource_type, each.operation, each.permission_type) or each.resource_pattern_type in (1, 2)
        for each in request.creations
    ):  # no rule at all: "any" is for filters
        return _refuse_create(request, ErrorCode.UNKNOWN_SERVER_ERROR, None, call.version)
    bindings: list[tuple[Pattern, Rule] | KafkaError] = []
    for each in request.creations:
        try:
            if each.operation == Operation.TWO_PHASE_COMMIT and not call.broker.features.is_on(TRANSACTION_VERSION):
                raise KafkaError(ErrorCode.INVALID_REQUEST, TOO_NEW)
            bindings.append(_binding(each))
        except KafkaError as error:
            bindings.append(error)
    pending = authorizer.create([each for each in bindings if isinstance(each, tuple)])

    def answer_with() -> CreateAclsResponse:
        results = []
        for each in bindings:
            error: KafkaError | None
            if isinstance(each, KafkaError):
                error = each
            elif pending.value is None:
                error = pending.error or KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            else:
                error = pending.value[each[0]]
            results.append(AclCreationResult(error_code=_code(error), error_message=_text(error)))
        return CreateAclsResponse(results=results)

    return _once_over(pending, answer_with, call)


def _binding(wanted: AclCreation) -> tuple[Pattern, Rule]:
    """A pattern and its rule. Raises: KafkaError."""
    if wanted.resource_type == ResourceType.CLUSTER and wanted.resource_name != CLUSTER_NAME:
        text = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if not wanted.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    if fault := host_fault(wanted.host):
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    if "/" in wanted.resource_name or wanted.operation not in OPERATION_NAMES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to create ACL")
    try:
        pattern = Pattern(
            ResourceType(wanted.resource_type), wanted.resource_name, PatternType(wanted.resource_pattern_type)
        )
        rule = Rule(wanted.principal, wanted.host, wanted.operation, Permission(wanted.permission_type))
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to create ACL") from None
    if fault := name_fault(wanted.resource_name) or principal_fault(wanted.principal):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, fault)
    return pattern, rule


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


def _text(error: KafkaError | None) -> str | None:
    return None if error is None else error.message


# -- DeleteAcls


def delete_acls(request: DeleteAclsRequest, call: Call) -> Result:
    """Remove the rules that filters mean; one that several mean is told to the first of them."""
    authorizer = _authorizer(call)
    if authorizer is None:
        return _refuse_delete(request, DISABLED, "No Authorizer is configured.", call.version)
    if any(map(_is_unknown, request.filters)):
        return HANGUP
    pending = authorizer.delete([_filter(each) for each in request.filters])

    def answer_with() -> DeleteAclsResponse:
        if pending.value is None:
            error = pending.error or KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            return _refuse_delete(request, error.code, error.message, call.version)
        results = [
            DeleteAclsFilterResult(
                error_code=ErrorCode.NONE,
                error_message=None,
                matching_acls=[_deleted(*each) for each in found],
            )
            for found in pending.value
        ]
        return DeleteAclsResponse(filter_results=results)

    return _once_over(pending, answer_with, call)


def _deleted(pattern: Pattern, rule: Rule, error: KafkaError | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=_code(error),
        error_message=_text(error),
        resource_type=pattern.resource,
        resource_name=pattern.name,
        pattern_type=pattern.kind,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _once_over(pending: Any, answer_with: Callable[[], Any], call: Call) -> Result:
    waiting = AwaitStore(pending, answer_with, call.now_ms)
    answer = waiting.answer(call.now_ms)
    return waiting if answer is None else answer


# -- refusals


def _refuse_describe(
    request: DescribeAclsRequest, code: ErrorCode, text: str | None, version: int
) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=text, resources=[])


def _refuse_create(request: CreateAclsRequest, code: ErrorCode, text: str | None, version: int) -> CreateAclsResponse:
    results = [AclCreationResult(error_code=code, error_message=text) for _ in request.creations]
    return CreateAclsResponse(results=results)


def _refuse_delete(request: DeleteAclsRequest, code: ErrorCode, text: str | None, version: int) -> DeleteAclsResponse:
    results = [DeleteAclsFilterResult(error_code=code, error_message=text, matching_acls=[]) for _ in request.filters]
    return DeleteAclsResponse(filter_results=results)


ROUTES = (
    Route(29, DescribeAclsRequest, 0, 3, describe_acls, _refuse_describe, (cluster(Operation.DESCRIBE),)),
    Route(30, CreateAclsRequest, 0, 3, create_acls, _refuse_create, (cluster(Operation.ALTER),)),
    Route(31, DeleteAclsRequest, 0, 3, delete_acls, _refuse_delete, (cluster(Operation.ALTER),)),
)
