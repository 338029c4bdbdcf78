"""The error codes: complete, numbered as Kafka numbers them, and each with its sentence."""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol.errors import ErrorCode, KafkaError


def test_codes_have_no_gap() -> None:
    assert sorted(ErrorCode) == list(range(-1, 137))


def test_names_and_numbers_are_kafkas() -> None:
    ours = {code.name.lower(): int(code) for code in ErrorCode}
    assert {code.name: int(code) for code in KioErrorCode}.items() <= ours.items()


def test_a_client_may_retry_what_kafka_says_it_may() -> None:
    kio = {int(code): code.retriable for code in KioErrorCode}
    assert [code for code in ErrorCode if code in kio and code.retriable != kio[code]] == []


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_sentence(code: ErrorCode) -> None:
    assert code.message.endswith(".")


def test_no_two_codes_share_a_sentence() -> None:
    assert len({code.message for code in ErrorCode}) == len(ErrorCode)


def test_a_code_of_a_later_kafka_is_an_unknown_server_error() -> None:
    assert ErrorCode.of(32767) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_known_code_is_found_by_its_number() -> None:
    assert ErrorCode.of(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_error_reads_as_name_and_detail() -> None:
    assert (
        str(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0 isr=[1] min=2")) == "NOT_ENOUGH_REPLICAS: t-0 isr=[1] min=2"
    )


def test_error_without_detail_says_the_codes_own_sentence() -> None:
    assert KafkaError(ErrorCode.NOT_CONTROLLER).message == ErrorCode.NOT_CONTROLLER.message


def test_error_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(KafkaError(ErrorCode.NOT_CONTROLLER, "ask 3")))
    assert (copy.code, copy.message) == (ErrorCode.NOT_CONTROLLER, "ask 3")


def test_what_an_error_quotes_at_length_is_cut_and_the_reason_stays() -> None:
    name = "x" * 32_767
    message = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}: is too long").message
    assert (len(message) < 1_100, message.startswith("xxx"), message.endswith("x: is too long")) == (True, True, True)
    assert str(len(name) - 1_000 + len(": is too long")) in message


def test_there_is_no_error_without_a_code() -> None:
    with pytest.raises(AssertionError):
        KafkaError(ErrorCode.NONE)
