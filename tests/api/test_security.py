"""Rules of who may do what: there are none, and whoever asks is told so."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tests.world import World

RULE = AclCreation(resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3)
WANTED = DeleteAclsFilter(
    resource_type_filter=1,
    resource_name_filter=None,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


def test_without_an_authorizer_nothing_can_be_asked_about_rules() -> None:
    wanted = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    told = World().client().ask(wanted, 3)
    assert (told.error_code, told.error_message) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )


def test_without_an_authorizer_each_rule_and_each_filter_is_refused() -> None:
    client = World().client()
    made = client.ask(CreateAclsRequest(creations=[RULE, RULE]), 3).results
    gone = client.ask(DeleteAclsRequest(filters=[WANTED, WANTED, WANTED]), 3).filter_results
    disabled = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    assert [(each.error_code, each.error_message) for each in [*made, *gone]] == [disabled] * 5
