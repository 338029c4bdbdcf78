"""What a member of a quorum's cluster passes on to the controllers, and what it serves at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.api.call import LATER
from kbroker.api.forwarding import FORWARDED, OF_ZOOKEEPER, SERVED_WITH_QUORUM, QuorumRoutes
from kbroker.api.routes import AUTHORIZED, ROUTES, SERVED, tables_of
from kbroker.broker.facts import Reply
from kbroker.broker.session import Principal, Session
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode, KafkaError
from protocol.headers import encode_response_header, parse_request_header, request_header_version, skip_tags
from protocol.message import Message
from protocol.messages.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.control import EnvelopeRequest, EnvelopeResponse
from protocol.messages.embedded import DefaultPrincipalData
from protocol.messages.quorum import DescribeQuorumRequest, UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.security import CreateDelegationTokenRequest
from protocol.messages.stored import decode_versioned
from protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


class _Configs:
    """Settings of a broker whose threads are a number."""

    broker = None

    def deciphered(self, stored: dict[str, str]) -> dict[str, str]:
        return stored

    def faults(self, wanted: dict[str, str], *, per_broker: bool) -> list[str]:
        return [] if wanted.get("num.io.threads", "1").isdecimal() else ["num.io.threads: allowed: a number"]


class Asked:
    """A request of a client, and what became of it. envelope: as the controller gets it."""

    def __init__(
        self,
        request: Message,
        version: int,
        *,
        authorized: bool = False,
        host: str = "192.0.2.7",
        protocol: str = "SSL",
    ) -> None:
        self.told: list[object] = []
        self.envelope: Any = None
        self.done: Callable[[EnvelopeResponse], None]
        self.failed: Callable[[KafkaError], None]
        self.request, self.version = request, version
        session = Session("PLAINTEXT", host, 5000, protocol)
        session.principal = Principal("User", "alice")
        broker = SimpleNamespace(
            quorum_plane=SimpleNamespace(forward=self._forward, image=SimpleNamespace(configs={})),
            plane=SimpleNamespace(broker_id=1, configs=_Configs()),
            tell=self.told.append,
            delegation_tokens=object(),
            random=None,
        )
        call = SimpleNamespace(broker=broker, ticket="ticket", version=version, client_id="me", session=session)
        route = QuorumRoutes(AUTHORIZED if authorized else ROUTES)[type(request).api or 0]
        self.route = route
        self.result = route.handle(request, cast(Any, call))
        assert (self.result is LATER) is (self.envelope is not None)

    def _forward(self, envelope: EnvelopeRequest, done: Any, failed: Any) -> None:
        self.envelope, self.done, self.failed = envelope, done, failed

    def answer(self, response: Message) -> Any:
        """What the client gets when the controller says this."""
        head = encode_response_header(type(self.request), self.version, 0)
        self.done(EnvelopeResponse(error_code=0, response_data=head + response.encode(self.version)))
        return self.response

    @property
    def response(self) -> Any:
        (reply,) = self.told
        assert isinstance(reply, Reply)
        assert reply.ticket == "ticket"
        return reply.response


@pytest.mark.parametrize("authorized", [False, True])
def test_a_request_goes_to_the_controller_with_who_sent_it_and_its_answer_comes_back(*, authorized: bool) -> None:
    request = DeleteTopicsRequest(topic_names=["t"], topics=[], timeout_ms=7)
    asked = Asked(request, 5, authorized=authorized)
    frame = asked.envelope.request_data
    api, version, _, client_id, start = parse_request_header(frame)
    assert (api, version, client_id, request_header_version(DeleteTopicsRequest, 5)) == (20, 5, "me", 2)
    assert DeleteTopicsRequest.decode(memoryview(frame), 5, skip_tags(frame, start)).topic_names == ["t"]
    principal = decode_versioned(DefaultPrincipalData, asked.envelope.request_principal)
    assert (principal.type, principal.name, principal.token_authenticated) == ("User", "alice", False)
    assert asked.envelope.client_host_address == bytes([192, 0, 2, 7])
    assert asked.answer(DeleteTopicsResponse(responses=[])).responses == []


def test_an_address_of_ipv6_has_sixteen_bytes() -> None:
    asked = Asked(UnregisterBrokerRequest(broker_id=7), 0, host="fe80::1%eth0")
    assert len(asked.envelope.client_host_address) == 16
    response = asked.answer(UnregisterBrokerResponse(error_code=102, error_message="no"))
    assert (response.error_code, response.error_message) == (102, "no")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_envelope_that_is_refused_is_an_error_of_each_part(code: ErrorCode, told: ErrorCode) -> None:
    asked = Asked(CreateTopicsRequest(topics=[], timeout_ms=1), 7)
    asked.done(EnvelopeResponse(error_code=code))
    assert isinstance(asked.response, CreateTopicsResponse)
    described = Asked(DescribeQuorumRequest(topics=[]), 2)
    described.done(EnvelopeResponse(error_code=code))
    assert described.response.error_code == told


def test_an_answer_that_makes_no_sense_is_none() -> None:
    asked = Asked(DescribeQuorumRequest(topics=[]), 2)
    asked.done(EnvelopeResponse(error_code=0, response_data=b"\0\0\0\0\0\0"))
    assert asked.response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_where_no_controller_answers_the_request_has_timed_out() -> None:
    asked = Asked(UnregisterBrokerRequest(broker_id=7), 0)
    asked.failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller"))
    assert asked.response.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_delegation_tokens_are_not_asked_for_over_plain_text() -> None:
    request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    with pytest.raises(KafkaError) as refused:
        Asked(request, 3, protocol="PLAINTEXT")
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert Asked(request, 3).envelope is not None


def test_what_is_told_of_is_what_there_is_a_route_for() -> None:
    routes, authorized, served = tables_of(cast(Any, SimpleNamespace(plane=SimpleNamespace(controller=None))))
    assert served is SERVED_WITH_QUORUM
    for api, row in served.items():
        for table in (routes, authorized):
            route = table[api]
            assert (route.api, route.first, route.last, route.name) == (api, row.first, row.last, row.name)
        assert BY_KEY[api].request is routes[api].request
    assert served.keys() == (SERVED.keys() | {55, 64}) - OF_ZOOKEEPER
    assert {api: served[api].first for api in FORWARDED} == FORWARDED
    assert not any(routes[api].needs or authorized[api].needs for api in FORWARDED)


def test_what_is_passed_on_nowhere_is_the_same_as_everywhere() -> None:
    routes = QuorumRoutes(ROUTES)
    same = [api for api in SERVED_WITH_QUORUM if api not in FORWARDED and api not in (8, 9)]
    assert all(routes[api] is ROUTES[api] for api in same)
    assert (routes[8].first, routes[9].first) == (1, 1)


def _settings(*changes: tuple[int, str, str, str]) -> IncrementalAlterConfigsRequest:
    """Each: type of a resource, its name, a setting's name and value."""
    resources = [
        IncrementalAlterConfigsResource(
            resource_type=of_type,
            resource_name=name,
            configs=[IncrementalAlterableConfig(name=key, config_operation=0, value=value)],
        )
        for of_type, name, key, value in changes
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def _outcome(code: ErrorCode, of_type: int, name: str) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(error_code=code, error_message=None, resource_type=of_type, resource_name=name)


def test_settings_of_a_broker_are_looked_at_before_the_rest_goes_to_the_controller() -> None:
    """No controller knows what a broker takes: Apache's brokers check it, too."""
    request = _settings(
        (4, "1", "num.io.threads", "none"), (2, "t", "segment.bytes", "no"), (4, "2", "a", "b"), (4, "", "c", "d")
    )
    asked = Asked(request, 1)
    frame = asked.envelope.request_data
    start = skip_tags(frame, parse_request_header(frame)[4])
    sent = IncrementalAlterConfigsRequest.decode(memoryview(frame), 1, start)
    assert [(each.resource_type, each.resource_name) for each in sent.resources] == [(2, "t"), (4, "")]
    done = [_outcome(ErrorCode.NONE, 4, ""), _outcome(ErrorCode.INVALID_CONFIG, 2, "t")]
    response = asked.answer(IncrementalAlterConfigsResponse(responses=done))
    assert [(each.resource_name, each.error_code) for each in response.responses] == [
        ("1", ErrorCode.INVALID_CONFIG),
        ("t", ErrorCode.INVALID_CONFIG),
        ("2", ErrorCode.INVALID_REQUEST),
        ("", ErrorCode.NONE),
    ]
    assert response.responses[2].error_message == "Unexpected broker id, expected 1, but received 2"


def test_settings_of_a_broker_that_are_refused_alone_do_not_go_to_the_controller() -> None:
    asked = Asked(_settings((4, "1", "num.io.threads", "none")), 1)
    (outcome,) = cast(IncrementalAlterConfigsResponse, asked.result).responses
    assert (outcome.error_code, outcome.error_message) == (
        ErrorCode.INVALID_CONFIG,
        "num.io.threads: allowed: a number",
    )
