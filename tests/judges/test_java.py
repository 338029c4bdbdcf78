"""The Java judge answers, and what is no message (error codes, whole record sets) is as Apache has it."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from tests.judges.java import NEWEST, Judge, require

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars


def test_a_message_is_written_as_apache_writes_it(apache: Judge) -> None:
    case = ("MetadataRequest", 9, {"topics": [{"name": "a"}], "_tags": {"5": "00ff"}})
    assert apache.encode([case]) == [bytes.fromhex("02 02 61 00 01 00 00 01 05 02 00ff")]


def test_bytes_left_over_are_counted(apache: Judge) -> None:
    (answer,) = apache.decode([("HeartbeatResponse", 0, b"\x00\x1bleft")])
    assert answer == ({"throttletimems": 0, "errorcode": 27}, 4)


def test_what_cannot_be_written_says_why(apache: Judge) -> None:
    (answer,) = apache.encode([("HeartbeatRequest", 0, {"groupinstanceid": "i"})])
    assert isinstance(answer, str)
    assert "UnsupportedVersionException" in answer


def test_a_case_for_a_message_that_is_not_there_fails_alone(apache: Judge) -> None:
    answers = apache.decode([("NoSuchRequest", 0, b""), ("HeartbeatResponse", 0, b"\x00\x1b")])
    assert [type(answer) for answer in answers] == [str, tuple]


def test_every_error_code_has_apaches_name(apache: Judge) -> None:
    theirs = {error["code"]: error["name"] for error in apache.has["errors"]}
    assert theirs.items() <= {int(code): code.name for code in ErrorCode}.items()


def test_the_newest_release_has_no_error_code_that_we_lack() -> None:
    assert {error["code"] for error in require(NEWEST).has["errors"]} == set(map(int, ErrorCode))


def test_clients_may_retry_what_the_newest_release_says_they_may() -> None:
    theirs = {error["code"]: error["retriable"] for error in require(NEWEST).has["errors"]}
    assert {code.name: code.retriable for code in ErrorCode if theirs[int(code)] != code.retriable} == {}
