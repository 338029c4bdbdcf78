"""DescribeUserScramCredentials, AlterUserScramCredentials: who may log in by SCRAM.

Served: version 0 of both. Credentials are settings of the user in the metadata store; of a user all changes are made or
none. The controller makes them (NOT_CONTROLLER elsewhere); any broker tells them, without what is secret. A change is
in force here before it is answered, and reaches the other brokers by a notice.

Source: ZkAdminManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from kbroker.api.authorization import cluster
from kbroker.api.configs import AwaitStore
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation
from kbroker.metadata.entities import desanitized, sanitized, user_path
from kbroker.security.scram import (
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    credential_of,
    read_credential,
    write_credential,
)
from protocol.errors import ErrorCode, KafkaError, shortened
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.api.call import Call, Result
    from kbroker.controller.admin import Change
    from kbroker.metadata.entities import Entities

MECHANISMS = dict(enumerate(HASHES, start=1))
"""By their numbers on the wire."""

USERS = "users/"


# -- describing


def describe(request: DescribeUserScramCredentialsRequest, call: Call) -> DescribeUserScramCredentialsResponse:
    """Tell which credentials users have."""
    entities = call.broker.plane.entities
    names = [each.name for each in request.users or ()]
    if names:
        times = Counter(names)
        results = [_named(name, times[name], entities) for name in times]
    else:
        paths = [path for path in entities.settings if path.startswith(USERS) and path.count("/") == 1]
        everyone = [(desanitized(path.removeprefix(USERS)), _infos(entities.of(path))) for path in paths]
        results = [_described(name, infos) for name, infos in everyone if infos]
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message="", results=results)


def _named(name: str, times: int, entities: Entities) -> DescribeUserScramCredentialsResult:
    infos = _infos(entities.of(user_path(name)))
    if times > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return _not_described(name, ErrorCode.DUPLICATE_RESOURCE, text)
    if not infos:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return _not_described(name, ErrorCode.RESOURCE_NOT_FOUND, text)
    return _described(name, infos)


def _infos(settings: Mapping[str, str]) -> list[CredentialInfo]:
    """Those that make sense."""
    found = []
    for number, mechanism in MECHANISMS.items():
        if mechanism in settings:
            try:
                iterations = read_credential(mechanism, settings[mechanism]).iterations
            except ValueError:
                continue
            found.append(CredentialInfo(mechanism=number, iterations=iterations))
    return found


def _described(name: str, infos: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name, error_code=ErrorCode.NONE, error_message="", credential_infos=infos
    )


def _not_described(name: str, code: ErrorCode, text: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name, error_code=code, error_message=shortened(text), credential_infos=[]
    )


# -- altering


def alter(request: AlterUserScramCredentialsRequest, call: Call) -> Result:
    """Make and delete credentials."""
    plane = call.broker.store_plane
    if not plane.controller.is_active:
        return _refuse_alter(request, ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message, call.version)
    refused = _refused(request)
    changes: dict[tuple[str, str], Change] = {
        ("users", sanitized(user)): _change(user, request) for user in _users(request) if user not in refused
    }
    pending = plane.admin.change_configs(changes, validate_only=False)

    def answer_with() -> AlterUserScramCredentialsResponse:
        results = []
        for user in _users(request):
            entity = ("users", sanitized(user))
            outcome: object = refused.get(user) or pending.error
            if outcome is None:
                found = pending.value
                outcome = KafkaError(ErrorCode.REQUEST_TIMED_OUT) if found is None else found[entity]
            if isinstance(outcome, KafkaError):
                results.append(_altered(user, outcome))
            else:
                plane.notices.set_entity(user_path(user), cast("dict[str, str]", outcome))
                results.append(_altered(user, None))
        return AlterUserScramCredentialsResponse(results=results)

    waiting = AwaitStore(pending, answer_with, call.now_ms)
    return waiting.answer(call.now_ms) or waiting


def _users(request: AlterUserScramCredentialsRequest) -> list[str]:
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return list(dict.fromkeys(names))


def _refused(request: AlterUserScramCredentialsRequest) -> dict[str, KafkaError]:
    """Users whose changes are not legal, and why."""
    refused: dict[str, KafkaError] = {}
    both: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    for each in both:
        if not each.name:
            refused[each.name] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        elif each.mechanism not in MECHANISMS:
            refused[each.name] = KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        elif isinstance(each, ScramCredentialUpsertion) and (fault := _fault(each)):
            refused[each.name] = KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, fault)
    for (user, _), times in Counter((each.name, each.mechanism) for each in both).items():
        if times > 1 and user not in refused:
            text = "A user credential cannot be altered twice in the same request"
            refused[user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
    return refused


def _fault(upsertion: ScramCredentialUpsertion) -> str:
    if upsertion.iterations < LEAST_ITERATIONS:
        return "Too few iterations"
    if upsertion.iterations > MOST_ITERATIONS:
        return "Too many iterations"
    if not upsertion.salted_password:
        return "Password must not be empty"
    return "" if upsertion.salt else "Salt must not be empty"


def _change(user: str, request: AlterUserScramCredentialsRequest) -> Change:
    gone = [MECHANISMS[each.mechanism] for each in request.deletions if each.name == user]
    made = {}
    for each in request.upsertions:
        if each.name == user:
            mechanism = MECHANISMS[each.mechanism]
            credential = credential_of(mechanism, bytes(each.salted_password), bytes(each.salt), each.iterations)
            made[mechanism] = write_credential(credential)

    def change(before: dict[str, str]) -> dict[str, str]:
        if not before.keys() >= set(gone):
            text = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        return {key: text for key, text in before.items() if key not in gone} | made

    return change


def _altered(user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(
        user=user, error_code=error.code if error else ErrorCode.NONE, error_message=error.message if error else None
    )


# -- refusals


def _refuse_describe(
    request: DescribeUserScramCredentialsRequest, code: ErrorCode, text: str | None, version: int
) -> DescribeUserScramCredentialsResponse:
    """As Apache's broker has it: a result for each user that is named, without the name."""
    nameless = DescribeUserScramCredentialsResult(user="", error_code=code, error_message=text, credential_infos=[])
    return DescribeUserScramCredentialsResponse(
        error_code=code, error_message=text, results=[nameless for _ in request.users or ()]
    )


def _refuse_alter(
    request: AlterUserScramCredentialsRequest, code: ErrorCode, text: str | None, version: int
) -> AlterUserScramCredentialsResponse:
    results = [
        AlterUserScramCredentialsResult(user=user, error_code=code, error_message=text) for user in _users(request)
    ]
    return AlterUserScramCredentialsResponse(results=results)


ROUTES = (
    Route(50, DescribeUserScramCredentialsRequest, 0, 0, describe, _refuse_describe, (cluster(Operation.DESCRIBE),)),
    Route(51, AlterUserScramCredentialsRequest, 0, 0, alter, _refuse_alter, (cluster(Operation.ALTER),)),
)
