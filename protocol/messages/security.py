"""Who may do what, and who is who: ACLs (keys 29 to 31), SCRAM credentials (50, 51), delegation tokens (38 to 41).

Sent by admin clients. ACLs: DescribeAcls, CreateAcls, DeleteAcls. An access rule allows or denies a principal one
operation, from one host, on the resources that a pattern names. Its numbers are the same in all three:

  resource type    1 any, 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user
  pattern type     1 any, 2 match, 3 literal, 4 prefixed
  operation        1 any, 2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action,
                   10 describe configs, 11 alter configs, 12 idempotent write, 13 create tokens, 14 describe tokens
  permission type  1 any, 2 deny, 3 allow

"Any" and "match" are for filters only; 0 stands for what the sender does not know. Pattern type "match" finds every
pattern that applies to a name: the literal one, the prefixes of it, and the literal "*". A principal reads
"User:alice", or "User:*" for every user; host "*" means any. In a filter None matches everything.

SCRAM: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554). Passwords never travel: the client salts and
hashes before it sends.

Delegation tokens: CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (KIP-48).
A token is a name and a secret (its HMAC) with which another client may log in for its owner, until it expires; renewers
may put that off, up to a last day. All times are milliseconds since 1970.
"""

from __future__ import annotations

from protocol.message import Array, Bytes, Int8, Int16, Int32, Int64, Message, String, Struct, plain, since


class DescribeAclsRequest(Message, api=29, versions="0-3", flexible="2+"):
    """Asks for the access rules that a filter matches.

    Versions:
      0  introduced by KIP-140
      1  pattern_type_filter (KIP-290); throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  resource type user (KIP-373)

    Kafka 4 serves 1 and up.
    """

    resource_type_filter: Int8
    resource_name_filter: String | None  # None: any
    pattern_type_filter: Int8 = since(1, default=3)  # version 0 knows literal patterns alone
    principal_filter: String | None  # None: any
    host_filter: String | None  # None: any
    operation: Int8
    permission_type: Int8


class DescribeAclsResponse(Message, api=29, versions="0-3", flexible="2+"):
    """The access rules, grouped by the pattern they belong to.

    Versions:
      0  introduced by KIP-140
      1  pattern_type (KIP-290); throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  resource type user (KIP-373)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None  # None: no error
    resources: Array[DescribeAclsResource]


class DescribeAclsResource(Struct):
    """A pattern of resources and its rules."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = since(1, default=3)  # 3 literal, 4 prefixed; in version 0 literal only
    acls: Array[AclDescription]


class AclDescription(Struct):
    """One access rule."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8  # 2 deny, 3 allow


class CreateAclsRequest(Message, api=30, versions="0-3", flexible="2+"):
    """Access rules to be added.

    Versions:
      0  introduced by KIP-140
      1  resource_pattern_type (KIP-290); throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  resource type user (KIP-373)

    Kafka 4 serves 1 and up.
    """

    creations: Array[AclCreation]


class AclCreation(Struct):
    """One access rule."""

    resource_type: Int8
    resource_name: String  # "kafka-cluster" for type cluster; "*" with literal: all of the type
    resource_pattern_type: Int8 = since(1, default=3)  # 3 literal, 4 prefixed
    principal: String
    host: String  # an address, or "*"
    operation: Int8
    permission_type: Int8  # 2 deny, 3 allow


class CreateAclsResponse(Message, api=30, versions="0-3", flexible="2+"):
    """What became of each rule, in the order of the request.

    Versions:
      0  introduced by KIP-140
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  as 2
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[AclCreationResult]


class AclCreationResult(Struct):
    """The outcome for one rule; a rule that is there already is no error."""

    error_code: Int16
    error_message: String | None  # None: no error


class DeleteAclsRequest(Message, api=31, versions="0-3", flexible="2+"):
    """Filters: every access rule that one of them matches is to be removed.

    Versions:
      0  introduced by KIP-140
      1  pattern_type_filter (KIP-290); throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  resource type user (KIP-373)

    Kafka 4 serves 1 and up.
    """

    filters: Array[DeleteAclsFilter]


class DeleteAclsFilter(Struct):
    """One filter."""

    resource_type_filter: Int8
    resource_name_filter: String | None  # None: any
    pattern_type_filter: Int8 = since(1, default=3)  # version 0 knows literal patterns alone
    principal_filter: String | None  # None: any
    host_filter: String | None  # None: any
    operation: Int8
    permission_type: Int8


class DeleteAclsResponse(Message, api=31, versions="0-3", flexible="2+"):
    """What each filter has removed, in the order of the request.

    Versions:
      0  introduced by KIP-140
      1  pattern_type (KIP-290); throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  resource type user (KIP-373)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    filter_results: Array[DeleteAclsFilterResult]


class DeleteAclsFilterResult(Struct):
    """The rules that one filter matched."""

    error_code: Int16
    error_message: String | None  # None: no error
    matching_acls: Array[DeleteAclsMatchingAcl]  # empty if nothing matched, which is no error


class DeleteAclsMatchingAcl(Struct):
    """A rule, and whether it is gone."""

    error_code: Int16
    error_message: String | None  # None: no error
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = since(1, default=3)  # 3 literal, 4 prefixed
    principal: String
    host: String
    operation: Int8
    permission_type: Int8  # 2 deny, 3 allow


class DescribeUserScramCredentialsRequest(Message, api=50, versions="0", flexible="0+"):
    """Asks with which mechanisms some users can log in.

    Versions:
      0  introduced by KIP-554, flexible from the start
    """

    users: Array[UserName] | None  # None or empty: all users


class UserName(Struct):
    """A user."""

    name: String


class DescribeUserScramCredentialsResponse(Message, api=50, versions="0", flexible="0+"):
    """The credentials of each user, without anything secret.

    Versions:
      0  introduced by KIP-554, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # of the whole request; CLUSTER_AUTHORIZATION_FAILED, for instance
    error_message: String | None  # None: no error
    results: Array[DescribeUserScramCredentialsResult]


class DescribeUserScramCredentialsResult(Struct):
    """One user's credentials."""

    user: String
    error_code: Int16  # RESOURCE_NOT_FOUND: the user has none; DUPLICATE_RESOURCE: asked for twice
    error_message: String | None  # None: no error
    credential_infos: Array[CredentialInfo]


class CredentialInfo(Struct):
    """A credential that the user has."""

    mechanism: Int8  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: Int32  # rounds of hashing


class AlterUserScramCredentialsRequest(Message, api=51, versions="0", flexible="0+"):
    """Credentials to be removed, added or replaced.

    Versions:
      0  introduced by KIP-554, flexible from the start
    """

    deletions: Array[ScramCredentialDeletion]
    upsertions: Array[ScramCredentialUpsertion]


class ScramCredentialDeletion(Struct):
    """A credential to be removed."""

    name: String
    mechanism: Int8  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


class ScramCredentialUpsertion(Struct):
    """A credential to be added, or to take the place of the one there is."""

    name: String
    mechanism: Int8  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: Int32  # rounds of hashing: 4096 to 16384
    salt: Bytes  # random, chosen by the client
    salted_password: Bytes  # what RFC 5802 calls SaltedPassword; the broker derives its two keys from it


class AlterUserScramCredentialsResponse(Message, api=51, versions="0", flexible="0+"):
    """What became of each user.

    Versions:
      0  introduced by KIP-554, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[AlterUserScramCredentialsResult]


class AlterUserScramCredentialsResult(Struct):
    """The outcome for one user: all changes, or none."""

    user: String
    error_code: Int16  # UNACCEPTABLE_CREDENTIAL: too few or too many iterations, or an empty name
    error_message: String | None  # None: no error


class CreateDelegationTokenRequest(Message, api=38, versions="0-3", flexible="2+"):
    """Asks for a new token.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  a token for another owner (KIP-373)

    Kafka 4 serves 1 and up.
    """

    owner_principal_type: String | None = since(3, default="")  # None or empty: the token is for the sender
    owner_principal_name: String | None = since(3, default="")  # None or empty: the token is for the sender
    renewers: Array[CreatableRenewers]  # who may renew it, besides the owner
    # from now to its last day; 0 or less: delegation.token.max.lifetime.ms, which is also the limit
    max_lifetime_ms: Int64


class CreatableRenewers(Struct):
    """A principal who may renew the token."""

    principal_type: String  # always "User"; anything else is INVALID_PRINCIPAL_TYPE
    principal_name: String


class CreateDelegationTokenResponse(Message, api=38, versions="0-3", flexible="2+"):
    """The token, secret included: it is told only here and to those who may describe it.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  who asked for the token (KIP-373)
    """

    error_code: Int16
    principal_type: String  # of the owner
    principal_name: String  # of the owner
    token_requester_principal_type: String = since(3, default="")
    token_requester_principal_name: String = since(3, default="")
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64  # when it expires unless renewed
    max_timestamp_ms: Int64  # its last day: no renewal goes beyond
    token_id: String
    hmac: Bytes  # the secret
    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it


class RenewDelegationTokenRequest(Message, api=39, versions="0-2", flexible="2+"):
    """Asks to put off a token's expiry.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)

    Kafka 4 serves 1 and up.
    """

    hmac: Bytes  # which token
    renew_period_ms: Int64  # from now; below 0: delegation.token.expiry.time.ms


class RenewDelegationTokenResponse(Message, api=39, versions="0-2", flexible="2+"):
    """When the token expires now.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
    """

    error_code: Int16
    expiry_timestamp_ms: Int64  # -1 on error
    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it


class ExpireDelegationTokenRequest(Message, api=40, versions="0-2", flexible="2+"):
    """Asks to bring a token's expiry forward.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)

    Kafka 4 serves 1 and up.
    """

    hmac: Bytes  # which token
    expiry_time_period_ms: Int64  # from now; below 0: at once


class ExpireDelegationTokenResponse(Message, api=40, versions="0-2", flexible="2+"):
    """When the token expires now.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
    """

    error_code: Int16
    expiry_timestamp_ms: Int64  # -1 on error
    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it


class DescribeDelegationTokenRequest(Message, api=41, versions="0-3", flexible="2+"):
    """Asks for the tokens of some owners.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  the response tells who asked for a token (KIP-373)

    Kafka 4 serves 1 and up.
    """

    owners: Array[DescribeDelegationTokenOwner] | None  # None: all that the client may see


class DescribeDelegationTokenOwner(Struct):
    """An owner."""

    principal_type: String
    principal_name: String


class DescribeDelegationTokenResponse(Message, api=41, versions="0-3", flexible="2+"):
    """The tokens, secrets included.

    Versions:
      0  introduced by KIP-48
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  who asked for the token (KIP-373)
    """

    error_code: Int16
    tokens: Array[DescribedDelegationToken]
    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it


class DescribedDelegationToken(Struct):
    """One token."""

    principal_type: String  # of the owner
    principal_name: String  # of the owner
    token_requester_principal_type: String = since(3, default="")
    token_requester_principal_name: String = since(3, default="")
    issue_timestamp: Int64  # milliseconds, as the other two
    expiry_timestamp: Int64  # when it expires unless renewed
    max_timestamp: Int64  # its last day: no renewal goes beyond
    token_id: String
    hmac: Bytes  # the secret
    renewers: Array[DescribedDelegationTokenRenewer]


class DescribedDelegationTokenRenewer(Struct):
    """A principal who may renew the token, besides the owner."""

    principal_type: String
    principal_name: String
