"""What is served in a cluster with a quorum: what only its controllers may do is passed on to their leader (KIP-590).

The table of routes of a broker that is a member of such a cluster is `QuorumRoutes`, in place of `routes.ROUTES`. A
request that changes the cluster goes to the leader of the quorum in an Envelope, with the principal of who sent it and
the address that it came from; the controllers decide whether it may, and what they answer is the answer. What
controllers on ZooKeeper say and are asked (LeaderAndIsr, AlterPartition, ...) is not served, nor are offsets in
ZooKeeper.

Served: of what is passed on, the versions of controllers of 4.x. A controller that does not know a version that this
broker tells of refuses it, and so does this broker then (UNSUPPORTED_VERSION).

Source: ForwardingManagerImpl and KafkaApis.forwardToController of Apache Kafka 4.3, by behaviour.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.call import LATER
from kbroker.api.routes import SERVED, Route, Served
from kbroker.broker.facts import Reply
from protocol.errors import ErrorCode, KafkaError
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import DecodeError
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.control import EnvelopeRequest, EnvelopeResponse
from protocol.messages.embedded import DefaultPrincipalData
from protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from protocol.messages.stored import encode_versioned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.api.call import Call, Result
    from kbroker.broker.session import Session
    from protocol.message import Message
    from protocol.messages.configs import (
        AlterConfigsResourceResponse,
        AlterConfigsResponse,
        IncrementalAlterConfigsResponse,
    )

DESCRIBE_QUORUM, UNREGISTER_BROKER = 55, 64

FORWARDED: dict[int, int] = {
    19: 2,  # CreateTopics
    20: 1,  # DeleteTopics
    30: 1,  # CreateAcls
    31: 1,  # DeleteAcls
    33: 0,  # AlterConfigs
    37: 0,  # CreatePartitions
    38: 1,  # CreateDelegationToken
    39: 1,  # RenewDelegationToken
    40: 1,  # ExpireDelegationToken
    43: 0,  # ElectLeaders
    44: 0,  # IncrementalAlterConfigs
    45: 0,  # AlterPartitionReassignments
    46: 0,  # ListPartitionReassignments
    49: 0,  # AlterClientQuotas
    51: 0,  # AlterUserScramCredentials
    DESCRIBE_QUORUM: 0,
    57: 0,  # UpdateFeatures
    UNREGISTER_BROKER: 0,
}
"""By API key, the first version that controllers of 4.x know."""

OF_TOKENS = frozenset({38, 39, 40})
"""Who may not ask for delegation tokens on this connection is told so here: controllers do not know it."""

OF_ZOOKEEPER = frozenset({4, 5, 6, 7, 56, 67})
"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, AlterPartition, AllocateProducerIds."""

WITHOUT_STORE = {8: 1, 9: 1}
"""The first versions of OffsetCommit and OffsetFetch that have nothing to do with ZooKeeper."""


def _served() -> dict[int, Served]:
    own = {
        DESCRIBE_QUORUM: Served("DescribeQuorum", "forwarding", 0, 2),
        UNREGISTER_BROKER: Served("UnregisterBroker", "forwarding", 0, 0),
    }
    rows = {api: served for api, served in (SERVED | own).items() if api not in OF_ZOOKEEPER}
    for api, first in (FORWARDED | WITHOUT_STORE).items():
        rows[api] = rows[api]._replace(first=max(first, rows[api].first))
    return dict(sorted(rows.items()))


SERVED_WITH_QUORUM: Mapping[int, Served] = _served()
"""By API key, as `routes.SERVED`."""


class QuorumRoutes(dict[int, Route]):
    """The routes of a member of a quorum's cluster, made of another table's when they are first asked for."""

    def __init__(self, source: Mapping[int, Route]) -> None:
        super().__init__()
        self._source = source

    def __missing__(self, api: int) -> Route:
        """Raises: as `routes.Routes`."""
        own = next((each for each in OF_QUORUM if each.api == api), None)
        made = self[api] = _for_quorum(own or self._source[api])
        return made


def _for_quorum(route: Route) -> Route:
    served = SERVED_WITH_QUORUM[route.api]
    if route.api not in FORWARDED and served.first == route.first:
        return route
    made = copy(route)
    made.first = served.first
    if route.api in FORWARDED:
        made.needs = ()  # the controllers ask for them
        made.known = None
        made.handle = lambda request, call: forward(request, call, made)
    return made


def forward(request: Message, call: Call, route: Route) -> Result:
    """Pass a request on to the controller; the answer comes later. Raises: KafkaError for what is not passed on."""
    if route.api in OF_TOKENS:
        from kbroker.api.delegation_tokens import check_enabled, check_session

        check_session(call)
        check_enabled(call)
    broker, ticket, version = call.broker, call.ticket, call.version
    finish: Callable[[Any], Any] = _as_it_is
    if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest):
        from kbroker.api.configs import BROKER, refused_of_brokers

        configs = broker.quorum_plane.image.configs
        refused = refused_of_brokers(request, call, lambda name: configs.get((BROKER, name), {}))
        if len(refused) == len(request.resources) > 0:
            answer: Any = _response_of(type(request))
            return cast("Message", answer(responses=[*refused.values()]))
        if refused:
            request, finish = _without(request, refused)

    def answered(response: EnvelopeResponse) -> None:
        broker.tell(Reply(ticket, finish(_opened(response, request, route, version))))

    def failed(error: KafkaError) -> None:
        broker.tell(Reply(ticket, finish(route.refuse(request, error.code, error.message, version))))

    broker.quorum_plane.forward(_envelope(request, call), answered, failed)
    return LATER


def _as_it_is(response: Any) -> Any:
    return response


def _without(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, refused: dict[int, AlterConfigsResourceResponse]
) -> tuple[Message, Callable[[Any], Any]]:
    """The request without what this broker has refused, and what puts that back into its answer, in the order asked."""
    rest: Any = copy(request)
    rest.resources = [each for at, each in enumerate(request.resources) if at not in refused]
    identities = [(each.resource_type, each.resource_name) for each in request.resources]

    def finish(response: AlterConfigsResponse | IncrementalAlterConfigsResponse) -> Message:
        found = {(each.resource_type, each.resource_name): each for each in response.responses}
        response.responses = [
            refused[at] if at in refused else found[identity]
            for at, identity in enumerate(identities)
            if at in refused or identity in found
        ]
        return response

    return rest, finish


def _envelope(request: Message, call: Call) -> EnvelopeRequest:
    head = encode_request_header(type(request), call.version, 0, call.client_id)
    principal, by_token = call.session.principal, call.session.by_token
    data = DefaultPrincipalData(type=principal.type, name=principal.name, token_authenticated=by_token)
    return EnvelopeRequest(
        request_data=head + request.encode(call.version),
        request_principal=encode_versioned(data, 0),
        client_host_address=_address(call.session),
    )


def _address(session: Session) -> bytes:
    """The 4 or 16 bytes of the client's address."""
    from ipaddress import ip_address

    return ip_address(session.peer_host.partition("%")[0]).packed


def _opened(envelope: EnvelopeResponse, request: Message, route: Route, version: int) -> Result:
    """The answer in an envelope, or a refusal if there is none, or none that makes sense."""
    code = ErrorCode.of(envelope.error_code)
    if code is ErrorCode.NONE and envelope.response_data is not None:
        try:
            kind = type(request)
            _, start = parse_response_header(kind, version, envelope.response_data)
            answer: Message = _response_of(kind).decode(memoryview(envelope.response_data), version, start)
            return answer
        except DecodeError:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
    if code is not ErrorCode.UNSUPPORTED_VERSION:  # of this broker the controllers think something, not of the client
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return route.refuse(request, code, code.message, version)


def _response_of(kind: type[Message]) -> type[Message]:
    from protocol.apis import BY_KEY

    assert kind.api is not None, kind
    return BY_KEY[kind.api].response


# -- what only a cluster with a quorum has


def _refuse_description(
    request: DescribeQuorumRequest, code: ErrorCode, text: str, version: int
) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=text, topics=[])


def _refuse_unregistering(
    request: UnregisterBrokerRequest, code: ErrorCode, text: str, version: int
) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=code, error_message=text)


def _passed_on(request: Message, call: Call) -> Result:
    raise AssertionError(request)  # is replaced: `_for_quorum`


OF_QUORUM = (
    Route(DESCRIBE_QUORUM, DescribeQuorumRequest, 0, 2, _passed_on, _refuse_description, ()),
    Route(UNREGISTER_BROKER, UnregisterBrokerRequest, 0, 0, _passed_on, _refuse_unregistering, ()),
)
"""Those that no broker without a quorum has."""
