"""A member's life: what it tells controllers when, and how it comes to its end."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerConfig, BrokerLayers, Given, resolve_broker
from kbroker.metadata.store import Endpoint, SupportedFeature
from kbroker.quorum.life import BrokerLife, BrokerState, Identity
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

WHO = Identity(7, "cluster", b"i" * 16, "rack", (SupportedFeature("metadata.version", 21, 30),), (b"b" * 16, b"a" * 16))
ADDRESS = Endpoint("PLAINTEXT", 0, "host", 9092)
CONFIG = resolve_broker(BrokerLayers())


class Told:
    """A life, and a clock that goes to whatever is due next."""

    def __init__(self, config: BrokerConfig = CONFIG, who: Identity = WHO) -> None:
        self.config = config
        self.now_ms = 0
        self.life = BrokerLife(who, [ADDRESS], config, 0)

    def heartbeat(self) -> BrokerHeartbeatRequest:
        """The next request, when it is due."""
        request = self.due()
        assert isinstance(request, BrokerHeartbeatRequest)
        return request

    def registration(self) -> BrokerRegistrationRequest:
        request = self.due()
        assert isinstance(request, BrokerRegistrationRequest)
        return request

    def due(self) -> BrokerRegistrationRequest | BrokerHeartbeatRequest:
        assert self.life.due_ms is not None
        self.now_ms = max(self.now_ms, self.life.due_ms)
        request = self.life.next_request(self.now_ms)
        assert request is not None
        return request

    def register(self, *, epoch: int = 40) -> None:
        request = self.registration()
        self.life.answered(
            request, BrokerRegistrationResponse(error_code=0, broker_epoch=epoch), self.config, self.now_ms
        )

    def refuse(self, error: ErrorCode) -> None:
        request = self.registration()
        self.life.answered(request, BrokerRegistrationResponse(error_code=error), self.config, self.now_ms)

    def answer(
        self,
        *,
        caught_up: bool = True,
        fenced: bool = False,
        shut_down: bool = False,
        error: ErrorCode = ErrorCode.NONE,
    ) -> BrokerHeartbeatRequest:
        request = self.heartbeat()
        response = BrokerHeartbeatResponse(
            error_code=error, is_caught_up=caught_up, is_fenced=fenced, should_shut_down=shut_down
        )
        self.life.answered(request, response, self.config, self.now_ms)
        return request

    def run(self) -> None:
        """Up to RUNNING."""
        self.register()
        self.answer(fenced=True)
        self.life.ready_to_serve(self.now_ms)
        self.answer()
        assert self.life.state is BrokerState.RUNNING


def config(**settings: str) -> BrokerConfig:
    return resolve_broker(
        BrokerLayers(static={key.replace("_", "."): Given(text, "a test") for key, text in settings.items()})
    )


def test_it_registers_with_all_that_controllers_want_to_know() -> None:
    request = Told(who=WHO._replace(previous_epoch=12)).registration()
    assert (request.broker_id, request.cluster_id, request.incarnation_id, request.rack) == (
        7,
        "cluster",
        b"i" * 16,
        "rack",
    )
    assert [(each.name, each.host, each.port, each.security_protocol) for each in request.listeners] == [
        ("PLAINTEXT", "host", 9092, 0)
    ]
    assert [(each.name, each.min_supported_version, each.max_supported_version) for each in request.features] == [
        ("metadata.version", 21, 30)
    ]
    assert request.log_dirs == [b"a" * 16, b"b" * 16]
    assert request.previous_broker_epoch == 12


def test_it_is_fenced_until_it_is_ready_and_controllers_let_it_in() -> None:
    told = Told()
    told.register()
    first = told.answer(caught_up=False, fenced=True)
    assert (first.broker_epoch, first.want_fence, told.life.state) == (40, True, BrokerState.STARTING)
    told.answer(fenced=True)
    assert told.life.state is BrokerState.RECOVERY
    told.life.ready_to_serve(told.now_ms)
    assert told.life.is_fenced
    assert told.answer().want_fence is False
    assert (told.life.state, told.life.is_fenced) == (BrokerState.RUNNING, False)


def test_heartbeats_tell_how_far_it_has_read() -> None:
    told = Told()
    told.register()
    told.life.metadata_offset = 99
    assert told.heartbeat().current_metadata_offset == 99


def test_catching_up_is_asked_about_often_and_the_rest_in_the_interval() -> None:
    told = Told()
    told.register()
    told.answer(caught_up=False, fenced=True)
    assert told.life.due_ms == told.now_ms + 10
    told.answer(fenced=True)
    told.life.ready_to_serve(told.now_ms)
    told.answer()
    assert told.life.due_ms == told.now_ms + 2000


def test_one_request_is_under_way() -> None:
    told = Told()
    told.registration()
    assert told.life.next_request(told.now_ms) is None
    assert told.life.due_ms is None


def test_what_is_wanted_at_once_comes_behind_what_is_under_way() -> None:
    told = Told()
    told.run()
    request = told.heartbeat()
    told.life.directory_failed(b"a" * 16, told.config, told.now_ms)
    told.life.answered(
        request,
        BrokerHeartbeatResponse(error_code=0, is_fenced=False, should_shut_down=False),
        told.config,
        told.now_ms,
    )
    assert told.life.due_ms == told.now_ms
    assert told.heartbeat().offline_log_dirs == [b"a" * 16]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            "INCONSISTENT_CLUSTER_ID: it is none of cluster cluster, which meta.propert",
        ),
        (
            ErrorCode.UNSUPPORTED_VERSION,
            "UNSUPPORTED_VERSION: the cluster has finalized a feature at a level that",
        ),
    ],
)
def test_what_does_not_end_by_itself_ends_the_broker_in_a_line(error: ErrorCode, line: str) -> None:
    told = Told()
    told.refuse(error)
    assert told.life.fault.startswith(f"broker 7 cannot be registered in the quorum: controller answers {line}")
    assert told.life.next_request(told.now_ms + 10_000) is None


def test_a_node_id_that_is_taken_is_tried_again_until_the_other_is_dead() -> None:
    told = Told()
    told.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert not told.life.fault
    assert told.life.due_ms == told.now_ms + 2000
    told.register()
    assert told.life.broker_epoch == 40


def test_a_start_ends_that_cannot_be_registered_for_so_long() -> None:
    told = Told(config(initial_broker_registration_timeout_ms="5000"))
    told.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert told.life.deadline_ms() == 5000
    told.life.expire(5000)
    assert told.life.fault == (
        "broker 7 could not be registered in the quorum: controller answers DUPLICATE_BROKER_REGISTRATION: node.id=7 "
        "is that of another broker, which lives"
    )


def test_without_an_answer_it_is_tried_again_soon() -> None:
    told = Told()
    told.registration()
    told.life.failed("no connection came about", told.config, told.now_ms)
    assert told.life.due_ms == told.now_ms + 100
    told.register()


def test_another_leader_is_asked_soon() -> None:
    told = Told()
    told.run()
    told.answer(error=ErrorCode.NOT_CONTROLLER)
    assert told.life.due_ms == told.now_ms + 100


def test_who_is_not_known_any_more_registers_again_in_the_same_life() -> None:
    told = Told()
    told.run()
    told.answer(error=ErrorCode.BROKER_ID_NOT_REGISTERED)
    assert told.registration().incarnation_id == WHO.incarnation_id


def test_a_broker_that_controllers_take_for_dead_is_fenced_and_comes_back() -> None:
    told = Told()
    told.run()
    told.answer(fenced=True)
    assert told.life.is_fenced
    told.answer()
    assert not told.life.is_fenced


def test_it_leaves_once_controllers_say_that_nothing_is_led_here() -> None:
    told = Told()
    told.run()
    told.life.leave(told.now_ms)
    assert told.answer().want_shut_down
    assert told.life.due_ms == told.now_ms + 50
    told.answer()
    assert told.life.due_ms == told.now_ms + 2000
    assert not told.life.is_over
    told.answer(shut_down=True)
    assert told.life.is_over
    assert told.life.due_ms is None


def test_an_answer_to_what_was_asked_before_is_no_leave_to_stop() -> None:
    told = Told()
    told.run()
    request = told.heartbeat()
    told.life.leave(told.now_ms)
    told.life.answered(
        request, BrokerHeartbeatResponse(error_code=0, is_fenced=False, should_shut_down=True), told.config, told.now_ms
    )
    assert told.life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN


def test_who_is_not_running_leaves_at_once() -> None:
    told = Told()
    told.register()
    told.life.leave(told.now_ms)
    assert told.life.is_over


def test_a_failed_directory_that_cannot_be_told_ends_the_broker() -> None:
    told = Told(config(log_dir_failure_timeout_ms="3000"))
    told.run()
    told.life.directory_failed(b"a" * 16, told.config, told.now_ms)
    until_ms = told.now_ms + 3000
    told.heartbeat()
    told.life.failed("no answer", told.config, told.now_ms)
    assert told.life.deadline_ms() == until_ms
    told.life.expire(until_ms)
    assert told.life.fault == f"no controller could be told that log directory {'61' * 16} has failed"


def test_a_failed_directory_that_was_told_is_told_again_and_ends_nothing() -> None:
    told = Told()
    told.run()
    told.life.directory_failed(b"a" * 16, told.config, told.now_ms)
    told.answer()
    assert told.life.deadline_ms() is None
    assert told.heartbeat().offline_log_dirs == [b"a" * 16]


def test_other_addresses_are_registered_again_under_the_same_incarnation() -> None:
    told = Told()
    told.run()
    told.life.advertise([ADDRESS._replace(port=9999)], told.now_ms)
    request = told.registration()
    assert ([each.port for each in request.listeners], request.incarnation_id) == ([9999], WHO.incarnation_id)
