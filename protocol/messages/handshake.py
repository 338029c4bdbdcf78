"""ApiVersions (key 18), SaslHandshake (17), SaslAuthenticate (36): how a connection begins.

A client asks for ApiVersions first and speaks the highest version of each API that both sides know. It cannot
know what ApiVersions the broker speaks before it has asked: a broker answers an unknown version of it with
UNSUPPORTED_VERSION in the form of version 0, which every client reads, and the response header never becomes
flexible, so that its size is known in advance (KIP-511).

On a listener with SASL a client then names a mechanism and exchanges its tokens; until that is done the broker
answers nothing but these three. After SaslHandshake version 0 the tokens travel bare, each behind four bytes of
length; after version 1 in SaslAuthenticate, which can also carry an error back.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Bytes, Int16, Int32, Int64, Message, String, Struct, since, tagged


class ApiVersionsRequest(Message, api=18, versions="0-5", flexible="3+"):
    """Asks what the broker speaks.

    Versions:
      0  introduced by KIP-35
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  flexible (KIP-482); names the client's software (KIP-511)
      4  the client can read features whose lowest version is 0 (KAFKA-17011)
      5  says whom the client takes the broker for (KIP-1242)
    """

    # letters, digits, "-" and "."; else INVALID_REQUEST
    client_software_name: String = since(3, default="", ignorable=True)
    client_software_version: String = since(3, default="", ignorable=True)  # under the same rule
    cluster_id: String | None = since(
        5, default=None, ignorable=True
    )  # None: not known yet, and node_id does not count
    node_id: Int32 = since(5, default=-1, ignorable=True)


class ApiVersionsResponse(Message, api=18, versions="0-5", flexible="3+"):
    """The versions of each API that the broker serves on this listener.

    Versions:
      0  introduced by KIP-35
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  flexible but for its header (KIP-482); features (KIP-584)
      4  features whose lowest version is 0 are listed too (KAFKA-17011)
      5  REBOOTSTRAP_REQUIRED may appear (KIP-1242)
    """

    error_code: Int16
    api_keys: Array[ApiVersion]  # with UNSUPPORTED_VERSION: the versions of ApiVersions alone
    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    supported_features: Array[SupportedFeatureKey] = tagged(0, since=3, default=[], ignorable=True)
    # grows with each change of finalized_features; -1 unknown
    finalized_features_epoch: Int64 = tagged(1, since=3, default=-1, ignorable=True)
    # what the cluster has settled on; means nothing when the epoch is -1
    finalized_features: Array[FinalizedFeatureKey] = tagged(2, since=3, default=[], ignorable=True)
    # from the controller of a metadata quorum only: ready to take over from ZooKeeper (KIP-866)
    zk_migration_ready: Bool = tagged(3, since=3, default=False, ignorable=True)


class ApiVersion(Struct):
    """The versions of one API, both ends included."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Struct):
    """The versions of one feature that the broker could run, both ends included."""

    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Struct):
    """The versions of one feature that the cluster runs, both ends included."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


class SaslHandshakeRequest(Message, api=17, versions="0-1", flexible="none"):
    """Names the mechanism that the client wants to authenticate by.

    Versions:
      0  bare tokens follow (KIP-43)
      1  tokens follow in SaslAuthenticate (KIP-152)

    Cannot grow: old clients send the highest version that the broker lists, known to them or not (KAFKA-9577).
    """

    mechanism: String  # "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"


class SaslHandshakeResponse(Message, api=17, versions="0-1", flexible="none"):
    """Agrees to the mechanism, or says which there are.

    Versions:
      0  introduced by KIP-43
      1  as 0 (KIP-152)
    """

    error_code: Int16  # UNSUPPORTED_SASL_MECHANISM: choose from mechanisms
    mechanisms: Array[String]


class SaslAuthenticateRequest(Message, api=36, versions="0-2", flexible="2+"):
    """A token of the mechanism, from the client.

    Versions:
      0  introduced by KIP-152
      1  the client knows that sessions may end (KIP-368)
      2  flexible (KIP-482)
    """

    auth_bytes: Bytes


class SaslAuthenticateResponse(Message, api=36, versions="0-2", flexible="2+"):
    """A token of the mechanism, from the broker.

    Versions:
      0  introduced by KIP-152
      1  session_lifetime_ms (KIP-368)
      2  flexible (KIP-482)
    """

    error_code: Int16
    error_message: String | None  # None: no error
    auth_bytes: Bytes
    # after this time the client must authenticate again, on the same connection; 0: never
    session_lifetime_ms: Int64 = since(1, default=0, ignorable=True)
